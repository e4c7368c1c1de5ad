//! External authentication: a service is asked about each request, with fields chosen here, and what
//! it says is copied by a list.

use super::{Asked, Identity, Outcome, X_AUTH_REQUEST_USER};
use crate::Shared;
use crate::fetch::{Answer, Limits, Outgoing};
use crate::policy::Verdict;
use crate::respond::{Rejection, Reply};
use http::header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, LOCATION, SET_COOKIE, USER_AGENT, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use ingress_core::{ExternalAuth, HttpUrl};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use tokio::sync::Semaphore;

/// Most of a refusal that is passed on.
const MAX_BODY: usize = 64 << 10;
/// Most of an answer's fields that are passed on, names and values.
const MAX_COPIED: usize = 32 << 10;
/// Requests that one provider is asked about at once; more are answered 502.
const AT_ONCE: usize = 1024;
/// A longer target is not remembered over the login.
const MAX_RETURN: usize = 4096;
/// Seconds between two log lines about one provider.
const TELL_EVERY: u64 = 10;

const X_ORIGINAL_URL: HeaderName = HeaderName::from_static("x-original-url");
const X_ORIGINAL_METHOD: HeaderName = HeaderName::from_static("x-original-method");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");

/// What is kept for one provider.
struct Provider {
    free: Semaphore,
    began: Instant,
    /// Seconds since `began`, plus one, at which its failure was last logged; 0 = never.
    told: AtomicU64,
}

impl Default for Provider {
    fn default() -> Self {
        Self { free: Semaphore::new(AT_ONCE), began: Instant::now(), told: AtomicU64::new(0) }
    }
}

impl Provider {
    /// Whether a failure is to be logged: not each one.
    fn tell(&self) -> bool {
        let now = self.began.elapsed().as_secs() + 1;
        let told = self.told.load(Relaxed);
        (told == 0 || now >= told + TELL_EVERY)
            && self.told.compare_exchange(told, now, Relaxed, Relaxed).is_ok()
    }
}

/// Asks about a request.
pub async fn authenticate(
    shared: &Shared,
    external: &ExternalAuth,
    asked: &Asked<'_>,
    identity: &mut Identity,
) -> (Verdict, Outcome) {
    const FAILED: (Verdict, Outcome) = (Verdict::Reject(Rejection::AuthProvider), Outcome::Error);
    let Some(provider) = external.state.get_or_init(Provider::default) else { return FAILED };
    let headers = match question(asked) {
        Ok(headers) => headers,
        Err(rejection) => return (Verdict::Reject(rejection), Outcome::Denied),
    };
    let failed = |why: &dyn std::fmt::Display| {
        if provider.tell() {
            let route = &asked.route.source;
            tracing::warn!(%route, provider = ?external.url, %why, "the authentication service failed");
        }
        FAILED
    };
    let Ok(_one) = provider.free.try_acquire() else {
        return failed(&"too many requests wait for it");
    };
    let limits = Limits { total: shared.config.auth_url_timeout, body: MAX_BODY };
    let question = Outgoing { headers, cut: true, ..Outgoing::get(&external.url) };
    let answer = match shared.client.fetch(question, limits).await {
        Ok(answer) => answer,
        Err(error) => return failed(&error),
    };
    match answer.status {
        status if status.is_success() => match allow(external, &answer.headers, identity) {
            Ok(()) => (Verdict::Continue, Outcome::Allowed),
            Err(why) => failed(&why),
        },
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => match &external.signin {
            Some(signin) => match location(signin, asked) {
                Some(location) => {
                    let reply = Reply::new(StatusCode::FOUND, "auth").header(LOCATION, location);
                    let reply = cookies(reply, &answer.headers);
                    (Verdict::Respond(Box::new(reply)), Outcome::Redirected)
                }
                None => FAILED,
            },
            None => (Verdict::Respond(Box::new(refusal(answer))), Outcome::Denied),
        },
        status => failed(&format_args!("it answered {}", status.as_u16())),
    }
}

/// The fields of the question, from nothing: no framing, no upgrade, nothing that the client says of
/// itself but who it is.
fn question(asked: &Asked<'_>) -> Result<HeaderMap, Rejection> {
    let client = &asked.parts.headers;
    let mut headers = HeaderMap::with_capacity(12);
    let mut authorization = client.get_all(AUTHORIZATION).iter();
    if let Some(field) = authorization.next() {
        if authorization.next().is_some() {
            // The provider might read one and the backend the other.
            return Err(Rejection::Malformed);
        }
        headers.insert(AUTHORIZATION, field.clone());
    }
    let mut crumbs = client.get_all(COOKIE).iter();
    if let Some(first) = crumbs.next() {
        let cookie = match crumbs.next() {
            None => first.clone(),
            Some(second) => {
                let all: Vec<&[u8]> =
                    [first, second].into_iter().chain(crumbs).map(|c| c.as_bytes()).collect();
                HeaderValue::from_bytes(&all.join(&b"; "[..])).map_err(|_| Rejection::Malformed)?
            }
        };
        headers.insert(COOKIE, cookie);
    }
    if let Some(agent) = client.get(USER_AGENT) {
        headers.insert(USER_AGENT, agent.clone());
    }
    let value = |text: &str| HeaderValue::from_str(text).map_err(|_| Rejection::Malformed);
    let method = value(asked.parts.method.as_str())?;
    headers.insert(X_ORIGINAL_URL, value(&original(asked, asked.target()))?);
    headers.insert(X_ORIGINAL_METHOD, method.clone());
    headers.insert(X_FORWARDED_METHOD, method);
    headers.insert(X_FORWARDED_URI, value(asked.target())?);
    headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(asked.scheme()));
    headers.insert(X_FORWARDED_HOST, asked.authority.clone());
    headers.insert(X_FORWARDED_FOR, asked.conn.client.clone());
    Ok(headers)
}

/// The URL that the client asked for: scheme of this connection, authority that was routed on.
fn original(asked: &Asked<'_>, target: &str) -> String {
    format!("{}://{}{target}", asked.scheme(), asked.authority.to_str().unwrap_or_default())
}

/// Notes what the answer says of the user.
fn allow(external: &ExternalAuth, answer: &HeaderMap, identity: &mut Identity) -> Result<(), &'static str> {
    // What the service does not say this time must not come from the client.
    identity.remove.extend(external.response_headers.iter().filter(|name| **name != AUTHORIZATION).cloned());
    let mut left = MAX_COPIED;
    for (name, value) in answer {
        let known = name.as_str().starts_with("x-auth-request-")
            || *name == AUTHORIZATION
            || external.response_headers.contains(name);
        let into = if *name == SET_COOKIE {
            &mut identity.response
        } else if known {
            &mut identity.headers
        } else {
            continue;
        };
        left = left.checked_sub(name.as_str().len() + value.len()).ok_or("its fields are too large")?;
        into.push((name.clone(), value.clone()));
    }
    identity.user =
        answer.get(X_AUTH_REQUEST_USER).map(|user| String::from_utf8_lossy(user.as_bytes()).into());
    Ok(())
}

/// A denial as the service wrote it.
fn refusal(answer: Answer) -> Reply {
    let mut reply = Reply::new(answer.status, "auth");
    for challenge in answer.headers.get_all(WWW_AUTHENTICATE) {
        reply = reply.header(WWW_AUTHENTICATE, challenge.clone());
    }
    reply = cookies(reply, &answer.headers);
    if !answer.cut && !answer.body.is_empty() {
        if let Some(kind) = answer.headers.get(CONTENT_TYPE) {
            reply = reply.header(CONTENT_TYPE, kind.clone());
        }
        reply.body = answer.body;
    }
    reply
}

fn cookies(mut reply: Reply, answer: &HeaderMap) -> Reply {
    let mut left = MAX_COPIED;
    for cookie in answer.get_all(SET_COOKIE) {
        let Some(rest) = left.checked_sub(cookie.len()) else { break };
        left = rest;
        reply = reply.header(SET_COOKIE, cookie.clone());
    }
    reply
}

/// `auth-signin` with `rd`: where the client wanted to go, percent-encoded once.
fn location(signin: &HttpUrl, asked: &Asked<'_>) -> Option<HeaderValue> {
    let mut location = signin.to_string();
    let query = signin.query();
    // Whoever writes an own `rd` means it.
    if query.is_none_or(|q| !q.split('&').any(|pair| pair == "rd" || pair.starts_with("rd="))) {
        location.push_str(match query {
            None => "?",
            Some("") => "",
            Some(_) => "&",
        });
        location.push_str("rd=");
        let target = if asked.target().len() > MAX_RETURN { "/" } else { asked.target() };
        encode(&mut location, &original(asked, target));
    }
    HeaderValue::try_from(location).ok()
}

/// Percent-encodes all but the unreserved characters (RFC 3986 section 2.3).
fn encode(out: &mut String, text: &str) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(DIGITS[usize::from(byte >> 4)]));
            out.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::Conn;
    use crate::policy::auth::tests::route;
    use http::Request;
    use http::request::Parts;
    use ingress_core::Slot;

    fn external(signin: Option<&str>, copied: &[&'static str]) -> ExternalAuth {
        ExternalAuth {
            url: "http://auth.example.com/auth".parse().unwrap(),
            signin: signin.map(|url| url.parse().unwrap()),
            response_headers: copied.iter().map(|name| HeaderName::from_static(name)).collect(),
            state: Slot::new(),
        }
    }

    fn request(method: &str, target: &str, fields: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn with<T>(parts: &Parts, authority: &str, tls: bool, work: impl FnOnce(&Asked<'_>) -> T) -> T {
        let authority = HeaderValue::from_str(authority).unwrap();
        let conn = Conn::for_test("192.0.2.7", tls);
        work(&Asked {
            parts,
            authority: &authority,
            conn: &conn,
            route: &route(),
            oauth: &[],
            endpoint: None,
        })
    }

    #[test]
    fn the_question_is_built_from_nothing() {
        let parts = request(
            "POST",
            "/a%20b?x=1&y=2",
            &[
                ("content-length", "10"),
                ("transfer-encoding", "chunked"),
                ("expect", "100-continue"),
                ("upgrade", "websocket"),
                ("connection", "upgrade"),
                ("sec-websocket-key", "x"),
                ("x-forwarded-uri", "/public"),
                ("x-original-url", "/public"),
                ("x-auth-request-user", "root"),
                ("cookie", "a=1"),
                ("cookie", "b=2"),
                ("authorization", "Bearer x"),
                ("user-agent", "test"),
                ("accept", "*/*"),
            ],
        );
        let headers = with(&parts, "app.example.com:8443", true, |asked| question(asked).unwrap());
        let mut found: Vec<_> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        found.sort();
        assert_eq!(
            found,
            [
                "authorization: Bearer x",
                "cookie: a=1; b=2",
                "user-agent: test",
                "x-forwarded-for: 192.0.2.7",
                "x-forwarded-host: app.example.com:8443",
                "x-forwarded-method: POST",
                "x-forwarded-proto: https",
                "x-forwarded-uri: /a%20b?x=1&y=2",
                "x-original-method: POST",
                "x-original-url: https://app.example.com:8443/a%20b?x=1&y=2",
            ]
        );
        let two = request("GET", "/", &[("authorization", "Bearer x"), ("authorization", "Bearer y")]);
        with(&two, "a.example", true, |asked| assert_eq!(question(asked), Err(Rejection::Malformed)));
    }

    #[test]
    fn the_way_back_is_encoded_once_and_built_from_what_was_routed() {
        let parts = request("GET", "/a%20b?x=1&y=2", &[]);
        let back = "https%3A%2F%2Fapp.example.com%3A8443%2Fa%2520b%3Fx%3D1%26y%3D2";
        for (signin, want) in [
            ("https://auth.example.com/start", format!("https://auth.example.com/start?rd={back}")),
            (
                "https://auth.example.com/start?app=1",
                format!("https://auth.example.com/start?app=1&rd={back}"),
            ),
            ("https://auth.example.com/start?", format!("https://auth.example.com/start?rd={back}")),
            ("https://auth.example.com", format!("https://auth.example.com/?rd={back}")),
            ("https://auth.example.com/s?rd=%2Fhome", "https://auth.example.com/s?rd=%2Fhome".into()),
            ("https://auth.example.com/s?xrd=1", format!("https://auth.example.com/s?xrd=1&rd={back}")),
        ] {
            let signin = signin.parse().unwrap();
            let found = with(&parts, "app.example.com:8443", true, |asked| location(&signin, asked).unwrap());
            assert_eq!(found.to_str().unwrap(), want);
        }
        let long = request("GET", &format!("/{}", "x".repeat(MAX_RETURN)), &[]);
        let signin = "http://a.example/s".parse().unwrap();
        let found = with(&long, "b.example", false, |asked| location(&signin, asked).unwrap());
        assert_eq!(found, "http://a.example/s?rd=http%3A%2F%2Fb.example%2F");
    }

    fn answer(fields: &[(&'static str, &str)]) -> HeaderMap {
        fields.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_str(v).unwrap())).collect()
    }

    #[test]
    fn of_the_answer_only_what_is_listed_is_copied() {
        let mut identity = Identity::default();
        let fields = [
            ("x-auth-request-user", "alice"),
            ("x-auth-request-groups", "a"),
            ("set-cookie", "s=1"),
            ("x-tenant", "t"),
            ("x-other", "o"),
            ("content-length", "0"),
            ("transfer-encoding", "chunked"),
            ("x_auth_request_user", "root"),
            ("location", "/x"),
        ];
        allow(&external(None, &["x-tenant", "x-role"]), &answer(&fields), &mut identity).unwrap();
        let names = |list: &[(HeaderName, HeaderValue)]| {
            let mut names: Vec<_> = list.iter().map(|(name, _)| name.to_string()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&identity.headers), ["x-auth-request-groups", "x-auth-request-user", "x-tenant"]);
        assert_eq!(names(&identity.response), ["set-cookie"]);
        assert_eq!(identity.remove, [HeaderName::from_static("x-tenant"), HeaderName::from_static("x-role")]);
        assert_eq!(identity.user.as_deref(), Some("alice"));
    }

    #[test]
    fn an_answer_with_too_much_in_it_lets_nobody_in() {
        let large = "x".repeat(MAX_COPIED);
        let fields = answer(&[("x-auth-request-groups", &large)]);
        assert!(allow(&external(None, &[]), &fields, &mut Identity::default()).is_err());
    }

    #[test]
    fn failures_of_one_provider_are_not_all_logged() {
        let provider = Provider::default();
        assert!(provider.tell());
        assert!(!provider.tell());
    }
}
