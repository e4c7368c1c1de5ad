//! Authentication: the one mechanism of the route decides, and says what the backend is told.

mod oauth;

use crate::Shared;
use crate::edge::Conn;
use crate::oauth::Endpoint;
use crate::policy::Verdict;
use crate::respond::Rejection;
use http::header::COOKIE;
use http::request::Parts;
use http::{HeaderName, HeaderValue};
use ingress_core::{Auth, Route};
use pingora_core::Result;
use pingora_http::RequestHeader;
use std::sync::Arc;

/// `X-Auth-Request-User`: who the request comes from.
pub const X_AUTH_REQUEST_USER: HeaderName = HeaderName::from_static("x-auth-request-user");

/// A request as authentication sees it: as the client sent it. What only the proxy may set
/// (`X-Auth-Request-*`, `X-Forwarded-*`) may still be in it and means nothing.
pub struct Asked<'a> {
    /// Method, target and fields.
    pub parts: &'a Parts,
    /// The authority that was routed on, as the client wrote it.
    pub authority: &'a HeaderValue,
    /// The client's connection: address and scheme.
    pub conn: &'a Conn,
    /// The route that takes the request.
    pub route: &'a Arc<Route>,
    /// The routes of the host that have built-in OAuth.
    pub oauth: &'a [Arc<Route>],
    /// The path is one of their endpoints.
    pub endpoint: Option<Endpoint>,
}

impl Asked<'_> {
    /// `http` or `https`, of this connection.
    pub fn scheme(&self) -> &'static str {
        if self.conn.tls { "https" } else { "http" }
    }

    /// Path and query as they came; `/` for a target that has none.
    pub fn target(&self) -> &str {
        self.parts.uri.path_and_query().map(|p| p.as_str()).filter(|p| p.starts_with('/')).unwrap_or("/")
    }
}

/// What authentication leaves for the rest of a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Who it is, for the access log.
    pub user: Option<Box<str>>,
    /// Fields that the backend must not get as the client sent them, in any spelling.
    pub remove: Vec<HeaderName>,
    /// Fields for the backend; each name replaces what the client sent.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// In place of the client's cookies: `Some(None)` removes them.
    pub cookies: Option<Option<HeaderValue>>,
    /// Fields added to whatever answer the client gets, as `Set-Cookie`.
    pub response: Vec<(HeaderName, HeaderValue)>,
    /// A cookie that is set if the backend answers at once, and not at all otherwise.
    pub soon: Option<HeaderValue>,
}

impl Identity {
    /// Changes the request that was rebuilt for the backend.
    pub fn apply(&self, request: &mut RequestHeader) -> Result<()> {
        for name in &self.remove {
            remove_spellings(request, name);
        }
        for (name, _) in &self.headers {
            request.remove_header(name);
        }
        for (name, value) in &self.headers {
            request.append_header(name, value)?;
        }
        match &self.cookies {
            Some(Some(cookies)) => request.insert_header(COOKIE, cookies)?,
            Some(None) => drop(request.remove_header(&COOKIE)),
            None => {}
        }
        Ok(())
    }
}

/// Removes a field in every spelling that a backend may take for it.
fn remove_spellings(request: &mut RequestHeader, name: &HeaderName) {
    let same = |other: &HeaderName| {
        let fold = |b: u8| if matches!(b, b'_' | b'.') { b'-' } else { b };
        other.as_str().len() == name.as_str().len()
            && other.as_str().bytes().map(fold).eq(name.as_str().bytes().map(fold))
    };
    let spelt: Vec<HeaderName> = request.headers.keys().filter(|other| same(other)).cloned().collect();
    for name in spelt {
        request.remove_header(&name);
    }
}

/// Runs the route's mechanism. Not for `Auth::Open`, which needs no look at the request.
pub async fn authenticate(shared: &Shared, asked: &Asked<'_>, identity: &mut Identity) -> Verdict {
    match &asked.route.policy.auth {
        Auth::Open => Verdict::Continue,
        Auth::OAuth(policy) => oauth::authenticate(shared, policy, asked, identity).await,
        Auth::Basic(_) | Auth::External(_) | Auth::Misconfigured => {
            Verdict::Reject(Rejection::AuthNotConfigured)
        }
    }
}
