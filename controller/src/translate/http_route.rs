//! HTTPRoutes, in the words that both kinds of HTTP routes have in common.

use super::route::{MatchView, RuleView, View, every_path, unknown};
use crate::cluster::gateway::{HttpMatch, HttpRouteObject, TypedValue, Unknown};
use crate::finding::quoted;
use ingress_core::{Kind, PathMatch};

impl<'a> From<&'a HttpRouteObject> for View<'a> {
    fn from(object: &'a HttpRouteObject) -> Self {
        let rules = object.spec.rules.iter().map(|rule| RuleView {
            matches: rule.matches.iter().map(MatchView::from).collect(),
            filters: &rule.filters,
            backends: &rule.backend_refs,
            timeouts: rule.timeouts.as_ref(),
            retry: rule.retry.as_ref(),
            sticky: rule.session_persistence.is_some(),
        });
        Self {
            kind: Kind::HttpRoute,
            meta: &object.meta,
            parent_refs: &object.spec.parent_refs,
            hostnames: &object.spec.hostnames,
            rules: rules.collect(),
        }
    }
}

impl<'a> From<&'a HttpMatch> for MatchView<'a> {
    fn from(wanted: &'a HttpMatch) -> Self {
        let path = match &wanted.path {
            None => Ok(every_path()),
            Some(TypedValue { unknown: Unknown(Some(field)), .. }) => Err(unknown(field)),
            Some(TypedValue { kind, value, .. }) => {
                let value = value.as_deref().unwrap_or("/");
                match kind.as_deref().unwrap_or("PathPrefix") {
                    "Exact" => PathMatch::exact(value).map_err(|e| format!("{}: {e}", quoted(value))),
                    "PathPrefix" => PathMatch::prefix(value).map_err(|e| format!("{}: {e}", quoted(value))),
                    "RegularExpression" => {
                        PathMatch::regex(value).map_err(|e| format!("{}: {e}", quoted(value)))
                    }
                    other => Err(format!(
                        "type {} is not supported, Exact, PathPrefix and RegularExpression are",
                        quoted(other)
                    )),
                }
            }
        };
        let path = match &wanted.unknown {
            Unknown(Some(field)) => Err(("", unknown(field))),
            Unknown(None) => path.map_err(|message| (".path", message)),
        };
        Self { path, method: wanted.method.as_deref(), headers: &wanted.headers, query: &wanted.query_params }
    }
}
