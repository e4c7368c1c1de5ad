//! The filters of Gateway API rules, as far as they are not the model's own work: what they answer,
//! what they make of a request for the backend, and of its response for the client.

use crate::ctx::RequestCtx;
use crate::policy::Verdict;
use crate::respond::{Rejection, Reply};
use crate::select::without_port;
use crate::strict::Field;
use http::header::{HOST, LOCATION};
use http::{HeaderName, HeaderValue};
use ingress_core::route::path::routing_path;
use ingress_core::{Filter, HeaderEdit, PathEdit, Redirect, Route};
use pingora_core::{Error, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};

/// A request as a redirect looks at it.
pub struct Asked<'a> {
    /// Whether the client speaks TLS.
    pub https: bool,
    /// The authority that it named.
    pub authority: &'a str,
    /// Path and query as they came.
    pub target: &'a str,
    /// The listener's port; `None` if it is not the one that the client sees.
    pub port: Option<u16>,
}

/// The answer of a rule that has one itself: a redirect, or 500 where it cannot be honoured. The first
/// such filter decides.
pub fn answer(route: &Route, asked: &Asked<'_>) -> Option<Verdict> {
    route.actions.as_ref()?.filters.iter().find_map(|filter| match filter {
        Filter::Redirect(redirect) => Some(match location(redirect, route, asked) {
            Some(location) => {
                Verdict::Respond(Box::new(Reply::new(redirect.status, "redirect").header(LOCATION, location)))
            }
            None => Verdict::Reject(Rejection::Malformed),
        }),
        Filter::Fail => Some(Verdict::Reject(Rejection::Filter)),
        _ => None,
    })
}

fn location(redirect: &Redirect, route: &Route, asked: &Asked<'_>) -> Option<HeaderValue> {
    let https = redirect.https.unwrap_or(asked.https);
    let host = redirect.hostname.as_deref().unwrap_or_else(|| without_port(asked.authority));
    let own = if https { 443 } else { 80 };
    let port = match (redirect.port, redirect.https) {
        (Some(port), _) => port,
        (None, Some(_)) => own,
        (None, None) => asked.port.unwrap_or(own),
    };
    let (path, query) = match asked.target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (asked.target, None),
    };
    let path = edited(redirect.path.as_ref(), route, path)?;
    let mut location = String::with_capacity(24 + host.len() + path.len() + query.map_or(0, str::len));
    location.push_str(if https { "https://" } else { "http://" });
    location.push_str(host);
    if port != own {
        location.push(':');
        location.push_str(itoa::Buffer::new().format(port));
    }
    location.push_str(&path);
    if let Some(query) = query {
        location.push('?');
        location.push_str(query);
    }
    HeaderValue::try_from(location).ok()
}

/// The path that takes the place of a raw one.
fn edited(edit: Option<&PathEdit>, route: &Route, path: &str) -> Option<String> {
    let Some(edit) = edit else {
        return Some(if path.starts_with('/') { path } else { "/" }.to_owned());
    };
    let routing = routing_path(if path == "*" { "/" } else { path }).ok()?;
    Some(edit.apply(&routing, route.path.prefix_text()))
}

/// The filters of the rule, and after them those of the backend that was chosen.
pub fn all(ctx: &RequestCtx) -> impl Iterator<Item = &Filter> {
    let actions = ctx.route.as_ref().and_then(|route| route.actions.as_deref());
    let own = actions.map_or(&[][..], |actions| &actions.filters);
    let picked = ctx.picked().map_or(&[][..], |entry| &entry.filters);
    own.iter().chain(picked)
}

/// Whether the rule, or the chosen backend, has a filter that cannot be honoured.
pub fn fails(ctx: &RequestCtx) -> bool {
    ctx.route.as_ref().is_some_and(|route| route.actions.is_some())
        && all(ctx).any(|filter| matches!(filter, Filter::Fail))
}

/// Makes of a request what the backend is to get. Done on the copy of each attempt, so that the
/// request itself stays what the client asked.
pub fn edit_request(ctx: &RequestCtx, request: &mut RequestHeader) -> Result<()> {
    let Some(route) = ctx.route.as_ref().filter(|route| route.actions.is_some()) else { return Ok(()) };
    for filter in all(ctx) {
        match filter {
            Filter::RequestHeaders(HeaderEdit { set, add, remove }) => {
                for (name, value) in set.iter().filter(|(name, _)| editable(name)) {
                    request.insert_header(name, value)?;
                }
                for (name, value) in add.iter().filter(|(name, _)| editable(name)) {
                    request.append_header(name, value)?;
                }
                for name in remove.iter().filter(|name| editable(name) && **name != HOST) {
                    request.remove_header(name);
                }
            }
            Filter::Rewrite(rewrite) => {
                if let Some(host) = &rewrite.hostname {
                    request.insert_header(HOST, host)?;
                }
                if rewrite.path.is_some() {
                    let path = edited(rewrite.path.as_ref(), route, request.uri.path())
                        .ok_or_else(|| Error::explain(ErrorType::InternalError, "path"))?;
                    let target = match request.uri.query() {
                        Some(query) => format!("{path}?{query}"),
                        None => path,
                    };
                    request.set_raw_path(target.as_bytes())?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Makes of a backend's response what the client is to get.
pub fn edit_response(ctx: &RequestCtx, response: &mut ResponseHeader) -> Result<()> {
    if ctx.route.as_ref().is_none_or(|route| route.actions.is_none()) {
        return Ok(());
    }
    for filter in all(ctx) {
        let Filter::ResponseHeaders(HeaderEdit { set, add, remove }) = filter else { continue };
        for (name, value) in set.iter().filter(|(name, _)| editable(name)) {
            response.insert_header(name, value)?;
        }
        for (name, value) in add.iter().filter(|(name, _)| editable(name)) {
            response.append_header(name, value)?;
        }
        for name in remove.iter().filter(|name| editable(name)) {
            response.remove_header(name);
        }
    }
    Ok(())
}

/// Framing and the fields of a hop are the connection's: a filter cannot change them.
fn editable(name: &HeaderName) -> bool {
    !matches!(
        Field::of(name.as_str().as_bytes()),
        Field::ContentLength | Field::TransferEncoding | Field::Connection | Field::Hop | Field::Upgrade
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::route;
    use http::StatusCode;
    use ingress_core::{Actions, PathMatch};
    use std::sync::Arc;

    fn redirected(redirect: Redirect, prefix: &str, asked: &Asked<'_>) -> String {
        let mut route = route("web");
        route.path = PathMatch::prefix(prefix).unwrap();
        route.actions =
            Some(Arc::new(Actions { filters: [Filter::Redirect(redirect)].into(), ..Default::default() }));
        match answer(&route, asked) {
            Some(Verdict::Respond(reply)) => {
                assert_eq!(reply.status, StatusCode::FOUND);
                reply.headers[0].1.to_str().unwrap().to_owned()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_a_redirect_leaves_out_is_the_requests() {
        let none =
            || Redirect { https: None, hostname: None, port: None, path: None, status: StatusCode::FOUND };
        let prefix = |p: &str| Some(PathEdit::Prefix(p.into()));
        let asked = |https, authority, target, port| Asked { https, authority, target, port };
        for (redirect, request, want) in [
            (none(), asked(false, "a.x", "/p?q=1", Some(80)), "http://a.x/p?q=1"),
            (none(), asked(false, "a.x:8080", "/p", Some(8080)), "http://a.x:8080/p"),
            (none(), asked(true, "a.x", "/p", Some(443)), "https://a.x/p"),
            (none(), asked(true, "a.x", "/p", Some(8443)), "https://a.x:8443/p"),
            (none(), asked(true, "a.x", "/p", None), "https://a.x/p"),
            (
                Redirect { https: Some(true), ..none() },
                asked(false, "a.x:8080", "/", Some(8080)),
                "https://a.x/",
            ),
            (
                Redirect { https: Some(true), port: Some(8443), ..none() },
                asked(false, "a.x", "/", Some(80)),
                "https://a.x:8443/",
            ),
            (Redirect { port: Some(443), ..none() }, asked(true, "a.x", "/", Some(8443)), "https://a.x/"),
            (Redirect { port: Some(443), ..none() }, asked(false, "a.x", "/", Some(80)), "http://a.x:443/"),
            (
                Redirect { hostname: Some("b.y".into()), ..none() },
                asked(false, "[::1]:80", "*", Some(80)),
                "http://b.y/",
            ),
            (none(), asked(false, "[::1]", "/", Some(80)), "http://[::1]/"),
            (
                Redirect { path: prefix("/new"), ..none() },
                asked(false, "a.x", "//old//x?y", Some(80)),
                "http://a.x/new/x?y",
            ),
            (
                Redirect { path: Some(PathEdit::Full("/one".into())), ..none() },
                asked(false, "a.x", "/old/x?y", Some(80)),
                "http://a.x/one?y",
            ),
        ] {
            assert_eq!(redirected(redirect, "/old", &request), want);
        }
    }

    #[test]
    fn the_first_filter_that_answers_decides() {
        let redirect = || {
            let status = StatusCode::FOUND;
            Filter::Redirect(Redirect { https: None, hostname: None, port: None, path: None, status })
        };
        let asked = Asked { https: false, authority: "a.x", target: "/", port: Some(80) };
        let verdict = |filters: [Filter; 2]| {
            let actions = Actions { filters: filters.into(), ..Default::default() };
            answer(&Route { actions: Some(Arc::new(actions)), ..route("web") }, &asked)
        };
        assert_eq!(verdict([Filter::Fail, redirect()]), Some(Verdict::Reject(Rejection::Filter)));
        assert!(matches!(verdict([redirect(), Filter::Fail]), Some(Verdict::Respond(_))));
    }

    #[test]
    fn framing_and_hops_are_no_filters_to_change() {
        for name in ["content-length", "transfer-encoding", "connection", "upgrade", "te", "keep-alive"] {
            assert!(!editable(&name.parse().unwrap()), "{name}");
        }
        for name in ["x-any", "host", "x-forwarded-for", "server", "set-cookie", "cookie"] {
            assert!(editable(&name.parse().unwrap()), "{name}");
        }
    }
}
