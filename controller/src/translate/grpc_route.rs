//! GRPCRoutes, in the words that both kinds of HTTP routes have in common.

use super::route::{MatchView, RuleView, View, every_path, unknown};
use crate::cluster::gateway::{GrpcMatch, GrpcRouteObject};
use crate::finding::quoted;
use ingress_core::route::regex::Pattern;
use ingress_core::{Kind, PathMatch};

impl<'a> From<&'a GrpcRouteObject> for View<'a> {
    fn from(object: &'a GrpcRouteObject) -> Self {
        let rules = object.spec.rules.iter().map(|rule| RuleView {
            matches: rule.matches.iter().map(MatchView::from).collect(),
            filters: &rule.filters,
            backends: &rule.backend_refs,
            timeouts: None,
            retry: None,
            sticky: rule.session_persistence.is_some(),
        });
        Self {
            kind: Kind::GrpcRoute,
            meta: &object.meta,
            parent_refs: &object.spec.parent_refs,
            hostnames: &object.spec.hostnames,
            rules: rules.collect(),
        }
    }
}

impl<'a> From<&'a GrpcMatch> for MatchView<'a> {
    fn from(wanted: &'a GrpcMatch) -> Self {
        let method = wanted.method.as_ref();
        let service = method.and_then(|m| m.service.as_deref()).filter(|s| !s.is_empty());
        let name = method.and_then(|m| m.method.as_deref()).filter(|m| !m.is_empty());
        let path = match (method.and_then(|m| m.kind.as_deref()).unwrap_or("Exact"), service, name) {
            (_, None, None) => Ok(every_path()),
            ("Exact", Some(service), Some(name)) => {
                PathMatch::exact(&format!("/{service}/{name}")).map_err(|e| e.to_string())
            }
            ("Exact", Some(service), None) => {
                PathMatch::prefix(&format!("/{service}")).map_err(|e| e.to_string())
            }
            ("Exact", None, Some(name)) if name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') => {
                PathMatch::regex(&format!("/[^/]+/{name}")).map_err(|e| e.to_string())
            }
            ("Exact", None, Some(name)) => Err(format!("{} is no name of a method", quoted(name))),
            ("RegularExpression", service, name) => {
                // each by itself, so that none reaches beyond its place
                let part = |text: Option<&str>| match text {
                    Some(text) => Pattern::new(text).map(|_| format!("(?:{text})")),
                    None => Ok("[^/]+".to_owned()),
                };
                part(service)
                    .and_then(|service| Ok((service, part(name)?)))
                    .and_then(|(service, name)| PathMatch::regex(&format!("/{service}/{name}")))
                    .map_err(|e| e.to_string())
            }
            (other, ..) => {
                Err(format!("type {} is not supported, Exact and RegularExpression are", quoted(other)))
            }
        };
        let in_method = method.and_then(|method| method.unknown.0.as_deref());
        let path = match (wanted.unknown.0.as_deref(), in_method) {
            (Some(field), _) => Err(("", unknown(field))),
            (None, Some(field)) => Err((".method", unknown(field))),
            (None, None) => path.map_err(|message| (".method", message)),
        };
        Self { path, method: None, headers: &wanted.headers, query: &[] }
    }
}
