//! From a parsed request to its route: host and path are read once, here.

use crate::edge::Conn;
use crate::oauth::Endpoint;
use crate::respond::Rejection;
use crate::strict::Field;
use http::header::HOST;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use ingress_core::route::host::HostBuf;
use ingress_core::route::path::routing_path;
use ingress_core::{Head, NoMatch, OAuthRoutes, RequestHost, Route, RouteTable, Snapshot};
use pingora_http::RequestHeader;
use std::borrow::Cow;
use std::sync::Arc;

/// What a request asked for, as routing reads it.
pub struct Selected {
    /// The route that takes it.
    pub route: Arc<Route>,
    /// The port the client named in its authority.
    pub port: Option<u16>,
    /// The routes of the host that have built-in OAuth, if there are any.
    pub oauth: Option<OAuthRoutes>,
    /// The path is one of the endpoints of those.
    pub endpoint: Option<Endpoint>,
}

/// The authority of a request as the client wrote it: the target's in absolute form (RFC 9112
/// section 3.2.2) and on HTTP/2, else `Host`.
pub fn authority(request: &RequestHeader) -> Option<HeaderValue> {
    if let Some(authority) = request.uri.authority() {
        return HeaderValue::from_str(authority.as_str()).ok();
    }
    request.headers.get(HOST).cloned()
}

/// The host of an authority as it stands there, without the port.
pub fn without_port(authority: &str) -> &str {
    match authority.rfind(':') {
        Some(colon) if !authority[colon..].contains(']') => &authority[..colon],
        _ => authority,
    }
}

/// Host and path as routing reads them.
pub fn read<'a>(
    authority: &'a HeaderValue,
    path: &'a str,
    buf: &'a mut HostBuf,
) -> Result<(RequestHost<'a>, Cow<'a, str>), Rejection> {
    let host = RequestHost::parse(authority.as_bytes(), buf).map_err(|_| Rejection::Malformed)?;
    let path = match path {
        "*" => "/".into(), // OPTIONS * asks about the host as a whole
        path => routing_path(path).map_err(|_| Rejection::Malformed)?,
    };
    Ok((host, path))
}

/// A request as the conditions of routes look at it.
pub fn head<'a>(method: &'a Method, headers: &'a HeaderMap, query: Option<&'a str>) -> Head<'a> {
    let dropped = |name: &HeaderName| {
        matches!(Field::of(name.as_str().as_bytes()), Field::Hop | Field::Managed | Field::Upgrade)
    };
    Head { method, headers, query, dropped }
}

/// The routes that count where a connection came in. On a Gateway's TLS listener a host that another
/// listener serves is refused: the client would take this listener's certificate and trust for it.
fn scope<'a>(
    snapshot: &'a Snapshot,
    conn: Option<&Conn>,
    host: &str,
) -> Result<&'a Arc<RouteTable>, Rejection> {
    let Some((conn, local)) = conn.and_then(|conn| Some((conn, conn.local?))) else {
        return Ok(&snapshot.routes);
    };
    if let Some(listener) = snapshot.listeners.at(local)
        && listener.misdirected(conn.sni.as_deref(), host)
    {
        return Err(Rejection::Misdirected);
    }
    snapshot.routes_at(local).ok_or(Rejection::NoRoute(NoMatch::Host))
}

/// Finds the route. The path that is matched is the one that is forwarded, raw.
pub fn route(
    snapshot: &Snapshot,
    conn: Option<&Conn>,
    authority: &HeaderValue,
    request: &RequestHeader,
) -> Result<Selected, Rejection> {
    let path = request.uri.path();
    let mut buf = HostBuf::default();
    let (host, routing) = read(authority, path, &mut buf)?;
    let routes = scope(snapshot, conn, host.host)?;
    let virtual_host = routes.host(host.host, &routing).map_err(Rejection::NoRoute)?;
    if let Some(clients) = virtual_host.clients() {
        // Whatever server name the connection was made with, and whatever counted then.
        let let_in_under = conn.and_then(|conn| conn.clients.as_deref());
        if clients.keeps_out(let_in_under) {
            return Err(Rejection::ClientCertificate);
        }
    }
    let oauth = virtual_host.oauth();
    // Whatever route takes that path otherwise, it is a part of the login here.
    if let Some(routes) = oauth
        && let (Some(endpoint), Some(route)) = (Endpoint::at(path), routes.first())
    {
        return Ok(Selected {
            route: route.clone(),
            port: host.port,
            oauth: Some(routes.clone()),
            endpoint: Some(endpoint),
        });
    }
    let head = head(&request.method, &request.headers, request.uri.query());
    let route = virtual_host.find_for(&routing, &head).ok_or(Rejection::NoRoute(NoMatch::Path))?;
    Ok(Selected { route: route.clone(), port: host.port, oauth: oauth.cloned(), endpoint: None })
}
