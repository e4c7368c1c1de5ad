//! Authentication: the one mechanism of the route decides, and says what the backend is told.

mod basic;
mod external;
mod hash;
mod oauth;
mod throttle;
mod workers;

use crate::oauth::Endpoint;
use crate::policy::Verdict;
use crate::respond::Rejection;
use crate::{Config, Shared};
use http::header::COOKIE;
use http::request::Parts;
use http::{HeaderName, HeaderValue};
use ingress_core::{Auth, Route};
use pingora_core::Result;
use pingora_http::RequestHeader;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// `X-Auth-Request-User`: who the request comes from.
pub const X_AUTH_REQUEST_USER: HeaderName = HeaderName::from_static("x-auth-request-user");

/// A request as authentication sees it: as the client sent it. What only the proxy may set
/// (`X-Auth-Request-*`, `X-Forwarded-*`) may still be in it and means nothing.
pub struct Asked<'a> {
    /// Method, target and fields.
    pub parts: &'a Parts,
    /// The authority that was routed on, as the client wrote it.
    pub authority: &'a HeaderValue,
    /// The client's address.
    pub ip: IpAddr,
    /// The same as a header value.
    pub client: &'a HeaderValue,
    /// Whether the client speaks TLS.
    pub https: bool,
    /// The route that takes the request.
    pub route: &'a Arc<Route>,
    /// The routes of the host that have built-in OAuth.
    pub oauth: &'a [Arc<Route>],
    /// The path is one of their endpoints.
    pub endpoint: Option<Endpoint>,
}

impl Asked<'_> {
    /// `http` or `https`, of the client.
    pub fn scheme(&self) -> &'static str {
        if self.https { "https" } else { "http" }
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
    /// A cookie that is set if the answer comes within this time, and not at all otherwise.
    pub soon: Option<(HeaderValue, Duration)>,
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

/// What mechanisms keep between requests, for all routes.
pub struct State {
    basic: basic::Basic,
}

impl State {
    /// Starts what runs beside requests.
    pub fn start(config: &Config) -> std::io::Result<Self> {
        let Config { auth_hash_workers, auth_throttle_failures, auth_throttle_window, .. } = config;
        let window = auth_throttle_window.unwrap_or_default();
        Ok(Self { basic: basic::Basic::start(*auth_hash_workers, *auth_throttle_failures, window)? })
    }
}

/// How authentication ended: the `result` of `auth_requests_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Went on to the backend.
    Allowed,
    /// Nothing to check came with the request.
    Missing,
    /// Refused.
    Denied,
    /// Sent to a login page.
    Redirected,
    /// Too many failures of this client.
    Throttled,
    /// It could not be found out.
    Error,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Allowed, Self::Missing, Self::Denied, Self::Redirected, Self::Throttled, Self::Error];

    /// The label.
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Allowed => "allowed",
            Outcome::Missing => "missing",
            Outcome::Denied => "denied",
            Outcome::Redirected => "redirected",
            Outcome::Throttled => "throttled",
            Outcome::Error => "error",
        }
    }
}

/// The `type` labels of `auth_requests_total`.
pub const TYPES: [&str; 3] = ["basic", "external", "oauth"];

/// Runs the route's mechanism. Not for `Auth::Open`, which needs no look at the request.
pub async fn authenticate(shared: &Shared, asked: &Asked<'_>, identity: &mut Identity) -> Verdict {
    let began = Instant::now();
    let (kind, (verdict, outcome)) = match &asked.route.policy.auth {
        Auth::Open => return Verdict::Continue,
        Auth::Basic(basic) => ("basic", shared.auth.basic.authenticate(basic, asked, identity).await),
        Auth::External(external) => {
            ("external", external::authenticate(shared, external, asked, identity).await)
        }
        Auth::OAuth(policy) => ("oauth", oauth::authenticate(shared, policy, asked, identity).await),
        Auth::Misconfigured => return Verdict::Reject(Rejection::AuthNotConfigured),
    };
    shared.metrics.authenticated(asked.route, kind, outcome, began.elapsed());
    verdict
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use ingress_core::*;

    /// Some route.
    pub fn route() -> Arc<Route> {
        Arc::new(Route {
            path: PathMatch::prefix("/").unwrap(),
            policy: Arc::default(),
            https_redirect: false,
            backend: Arc::new(Backend {
                service: ServicePort { namespace: "ns".into(), name: "web".into(), port: 80 },
                address: BackendAddress::Unavailable(Unavailable::NoService),
                protocol: Default::default(),
                tls_name: "web.ns.svc".into(),
                verify: true,
                keepalive: true,
                tls: None,
                client: None,
            }),
            source: Arc::new(ResourceRef::new(Kind::Ingress, "ns", "web")),
            host: "app.example.com".into(),
            rule: route::RuleIndex { rule: 0, path: 0 },
            created: 0,
            conditions: None,
            actions: None,
            state: Slot::new(),
        })
    }

    #[test]
    fn what_the_backend_is_told_replaces_what_the_client_said_in_any_spelling() {
        let mut request = RequestHeader::build("GET", b"/", None).unwrap();
        for (name, value) in [
            ("Remote-User", "root"),
            ("remote_user", "root"),
            ("remote.user", "root"),
            ("X-Auth-Request-User", "root"),
            ("Authorization", "Basic x"),
            ("Cookie", "a=1; session=2"),
            ("X-Kept", "1"),
        ] {
            request.append_header(name, value).unwrap();
        }
        let identity = Identity {
            remove: vec![http::header::AUTHORIZATION, HeaderName::from_static("remote-user")],
            headers: vec![
                (X_AUTH_REQUEST_USER, HeaderValue::from_static("alice")),
                (HeaderName::from_static("x-many"), HeaderValue::from_static("1")),
                (HeaderName::from_static("x-many"), HeaderValue::from_static("2")),
            ],
            cookies: Some(Some(HeaderValue::from_static("a=1"))),
            ..Identity::default()
        };
        identity.apply(&mut request).unwrap();
        let mut found: Vec<_> =
            request.headers.iter().map(|(n, v)| format!("{n}: {}", v.to_str().unwrap())).collect();
        found.sort();
        assert_eq!(
            found,
            ["cookie: a=1", "x-auth-request-user: alice", "x-kept: 1", "x-many: 1", "x-many: 2"]
        );
        Identity { cookies: Some(None), ..Identity::default() }.apply(&mut request).unwrap();
        assert!(!request.headers.contains_key(COOKIE));
    }
}
