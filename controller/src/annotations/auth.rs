//! Authentication: which mechanism an Ingress asks for, and with what.
//!
//! The mechanism of the highest rank that any annotation asks for is the one: OAuth, then external,
//! then Basic. It is never left for another: where it is not whole, the routes are closed.

use super::{Annotation, Reader, Since};
use crate::finding::{Findings, Reason};
use http::{HeaderName, HeaderValue};
use ingress_core::{ExternalAuth, HttpUrl, Slot};

const TYPE: Annotation =
    row("ingress.tak-os.org/auth-type", "\"basic\"", "the kind of built-in authentication");
const SECRET: Annotation =
    row("ingress.tak-os.org/auth-secret", "a Secret's name", "the Secret with the htpasswd file");
const REALM: Annotation = Annotation {
    default: DEFAULT_REALM,
    ..row("ingress.tak-os.org/auth-realm", "text", "what the browser's password prompt shows")
};
const URL: Annotation = row(
    "ingress.tak-os.org/auth-url",
    "an http or https URL",
    "the service that is asked about each request",
);
const SIGNIN: Annotation =
    row("ingress.tak-os.org/auth-signin", "an http or https URL", "where 401 and 403 are redirected to");
const RESPONSE_HEADERS: Annotation = row(
    "ingress.tak-os.org/auth-response-headers",
    "a list of header names",
    "headers copied from the service's answer",
);
const OAUTH: Annotation =
    row("k8s.tak-os.com/oauth2-secret", "a Secret's name", "the Secret with the OAuth2/OIDC settings");
const OAUTH_ALIAS: Annotation = row(
    "ingress.tak-os.org/oauth2-secret",
    "a Secret's name",
    "another spelling of k8s.tak-os.com/oauth2-secret",
);

/// The annotations of this feature.
pub(super) const TABLE: [Annotation; 8] =
    [TYPE, SECRET, REALM, URL, SIGNIN, RESPONSE_HEADERS, OAUTH, OAUTH_ALIAS];

const fn row(key: &'static str, accepts: &'static str, meaning: &'static str) -> Annotation {
    Annotation { key, accepts, default: "", meaning, since: Since::Version("0.1") }
}

/// What is shown where no realm is given.
const DEFAULT_REALM: &str = "Restricted";
/// Longest realm, in octets.
const MAX_REALM: usize = 256;
/// Most header names that are copied.
const MAX_HEADERS: usize = 32;

/// The mechanism that is asked for; Secrets are looked up by whoever has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum WantedAuth {
    #[default]
    Open,
    /// Asked for and not whole; the finding is there.
    Misconfigured,
    Basic {
        secret: Box<str>,
        /// `WWW-Authenticate`
        challenge: HeaderValue,
    },
    External(Box<ExternalAuth>),
    OAuth {
        /// The annotation that names it.
        key: &'static str,
        secret: Box<str>,
    },
}

impl WantedAuth {
    /// The Secret that is needed, of the Ingress's namespace.
    pub(crate) fn secret(&self) -> Option<&str> {
        match self {
            WantedAuth::Basic { secret, .. } | WantedAuth::OAuth { secret, .. } => Some(secret),
            _ => None,
        }
    }
}

/// The key of the annotation that names the htpasswd Secret.
pub(crate) const SECRET_KEY: &str = SECRET.key;

/// One mechanism: the annotations that ask for it, and what reads them.
type Mechanism = (&'static [Annotation], fn(&mut Reader<'_>) -> Option<WantedAuth>);

/// All, the highest rank first.
const MECHANISMS: [Mechanism; 3] = [
    (&[OAUTH, OAUTH_ALIAS], oauth),
    (&[URL, SIGNIN, RESPONSE_HEADERS], external),
    (&[TYPE, SECRET, REALM], basic),
];

pub(super) fn read(reader: &mut Reader<'_>) -> WantedAuth {
    // An empty value asks as well: nothing of this family may fall open by accident.
    let first = |reader: &Reader<'_>, rows: &[Annotation]| {
        rows.iter().map(|row| row.key).find(|key| reader.get(key).is_some())
    };
    let mut wanted = None;
    let mut chosen = "";
    for (rows, read) in MECHANISMS {
        let Some(key) = first(reader, rows) else { continue };
        if wanted.is_none() {
            wanted = Some(read(reader).unwrap_or(WantedAuth::Misconfigured));
            chosen = key;
        } else {
            outranked(reader, chosen, read);
        }
    }
    wanted.unwrap_or_default()
}

/// Mistakes of a mechanism that does not count beside another: nobody meets them now, and they are told all the same.
fn outranked(reader: &mut Reader<'_>, chosen: &str, read: fn(&mut Reader<'_>) -> Option<WantedAuth>) {
    let mut mistakes = Findings::default();
    read(&mut Reader { annotations: reader.annotations, findings: &mut mistakes });
    for mistake in mistakes.finish() {
        let why = mistake.message.strip_suffix(CLOSED).unwrap_or(&mistake.message);
        let message = format!("{why}; it does not count beside {chosen}");
        reader.findings.add(Reason::OutrankedAuthMistake, mistake.field, message);
    }
}

fn basic(reader: &mut Reader<'_>) -> Option<WantedAuth> {
    match reader.filled(TYPE.key) {
        Some(kind) if kind.trim().eq_ignore_ascii_case("basic") => {}
        Some(_) => return refuse(reader, &TYPE, "only \"basic\" is accepted"),
        None => return refuse(reader, &TYPE, "missing or empty, \"basic\" is needed"),
    }
    let secret = secret(reader, &SECRET)?;
    let challenge = challenge(reader);
    Some(WantedAuth::Basic { secret, challenge })
}

fn external(reader: &mut Reader<'_>) -> Option<WantedAuth> {
    let url = url(reader, &URL)?;
    let signin = match reader.get(SIGNIN.key) {
        Some(_) => Some(self::url(reader, &SIGNIN)?),
        None => None,
    };
    let mut response_headers = Vec::new();
    if let Some(list) = reader.get(RESPONSE_HEADERS.key) {
        for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let name = match HeaderName::from_bytes(name.as_bytes()) {
                Ok(name) if copied(&name) => name,
                Ok(_) => {
                    return refuse(reader, &RESPONSE_HEADERS, "names a header that only the proxy may set");
                }
                Err(_) => {
                    return refuse(
                        reader,
                        &RESPONSE_HEADERS,
                        "not a list of header names, separated by commas",
                    );
                }
            };
            if !response_headers.contains(&name) {
                response_headers.push(name);
            }
        }
        if response_headers.len() > MAX_HEADERS {
            return refuse(reader, &RESPONSE_HEADERS, "more than 32 names");
        }
    }
    Some(WantedAuth::External(Box::new(ExternalAuth {
        url,
        signin,
        response_headers: response_headers.into(),
        state: Slot::new(),
    })))
}

/// Whether a header of the provider may go to the backend: none that frames or routes the request,
/// and none by which the proxy tells where it came from.
fn copied(name: &HeaderName) -> bool {
    // A CGI-like backend reads all of these as one name.
    let name = name.as_str().replace(['_', '.'], "-");
    !matches!(
        name.as_str(),
        "host"
            | "connection"
            | "content-length"
            | "transfer-encoding"
            | "upgrade"
            | "te"
            | "trailer"
            | "keep-alive"
            | "expect"
            | "proxy"
            | "proxy-connection"
            | "proxy-authorization"
            | "proxy-authenticate"
            | "http2-settings"
            | "forwarded"
            | "x-real-ip"
            | "x-rewrite-url"
    ) && !name.starts_with("x-forwarded-")
        && !name.starts_with("x-original-")
}

fn oauth(reader: &mut Reader<'_>) -> Option<WantedAuth> {
    let row = match (reader.get(OAUTH.key), reader.get(OAUTH_ALIAS.key)) {
        (Some(one), Some(other)) if one.trim() != other.trim() => {
            return refuse(reader, &OAUTH_ALIAS, "names another Secret than k8s.tak-os.com/oauth2-secret");
        }
        (Some(_), _) => OAUTH,
        _ => OAUTH_ALIAS,
    };
    let secret = secret(reader, &row)?;
    Some(WantedAuth::OAuth { key: row.key, secret })
}

/// What a mistake costs.
const CLOSED: &str = "; requests are answered 501";

fn refuse<T>(reader: &mut Reader<'_>, row: &Annotation, why: &str) -> Option<T> {
    let message = format!("{why}{CLOSED}");
    reader.findings.add(Reason::AuthMisconfigured, row.key, message);
    None
}

fn url(reader: &mut Reader<'_>, row: &Annotation) -> Option<HttpUrl> {
    match reader.filled(row.key).map(|value| value.trim().parse()) {
        Some(Ok(url)) => Some(url),
        Some(Err(problem)) => {
            let problem: ingress_core::InvalidUrl = problem;
            refuse(reader, row, &problem.to_string())
        }
        None => refuse(reader, row, "missing or empty, an http or https URL is needed"),
    }
}

/// A Secret of the Ingress's own namespace.
fn secret(reader: &mut Reader<'_>, row: &Annotation) -> Option<Box<str>> {
    match reader.filled(row.key).map(str::trim) {
        Some(name) if object_name(name) => Some(name.into()),
        Some(name) if name.contains('/') => {
            refuse(reader, row, "only the name of a Secret in the Ingress's own namespace is accepted")
        }
        Some(_) => refuse(reader, row, "not the name of a Secret"),
        None => refuse(reader, row, "missing or empty, the name of a Secret is needed"),
    }
}

/// A DNS subdomain, as Kubernetes names objects.
fn object_name(name: &str) -> bool {
    name.len() <= 253
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.'))
}

/// `Basic realm="…"` as one valid field (RFC 9110 section 5.6.4): control characters go, quotes and
/// backslashes are escaped.
fn challenge(reader: &mut Reader<'_>) -> HeaderValue {
    let given = reader.filled(REALM.key).unwrap_or(DEFAULT_REALM);
    let mut realm: String = given.chars().filter(|c| !c.is_control()).collect();
    if realm.len() != given.len() {
        let message = "control characters are left out of the realm";
        reader.findings.add(Reason::InvalidAnnotation, REALM.key, message);
    }
    if realm.len() > MAX_REALM || realm.trim().is_empty() {
        let message =
            format!("longer than {MAX_REALM} octets, or empty; the default {DEFAULT_REALM} applies");
        reader.findings.add(Reason::InvalidAnnotation, REALM.key, message);
        realm = DEFAULT_REALM.into();
    }
    let realm = realm.trim().replace('\\', "\\\\").replace('"', "\\\"");
    HeaderValue::from_bytes(format!("Basic realm=\"{realm}\"").as_bytes())
        .unwrap_or(HeaderValue::from_static("Basic realm=\"Restricted\""))
}

#[cfg(test)]
mod tests {
    use super::super::tests::read_all;
    use super::*;
    use crate::finding::Finding;

    const BASIC: [(&str, &str); 2] = [(TYPE.key, "basic"), (SECRET.key, "users")];

    fn read(pairs: &[(&str, &str)]) -> (WantedAuth, Vec<Finding>) {
        let (wanted, found) = read_all(pairs);
        (wanted.auth, found)
    }

    fn closed(pairs: &[(&str, &str)]) {
        let (wanted, found) = read(pairs);
        assert_eq!(wanted, WantedAuth::Misconfigured, "{pairs:?}");
        assert_eq!((found.len(), found[0].reason), (1, Reason::AuthMisconfigured), "{found:?}");
        assert!(found[0].message.ends_with("; requests are answered 501"), "{found:?}");
    }

    #[test]
    fn one_annotation_alone_never_leaves_the_route_open() {
        for row in &TABLE {
            for value in ["", " ", "x y", "ftp://a.example/", "a/b"] {
                let (wanted, found) = read(&[(row.key, value)]);
                assert_eq!(wanted, WantedAuth::Misconfigured, "{} {value}", row.key);
                assert_eq!((found.len(), found[0].reason), (1, Reason::AuthMisconfigured));
            }
        }
    }

    #[test]
    fn basic_needs_its_type_and_its_secret() {
        let (wanted, found) = read(&BASIC);
        let WantedAuth::Basic { secret, challenge } = wanted else { panic!("{wanted:?}") };
        assert_eq!((&*secret, challenge.as_bytes()), ("users", &b"Basic realm=\"Restricted\""[..]));
        assert!(found.is_empty());
        closed(&[(TYPE.key, "basic")]);
        closed(&[(SECRET.key, "users")]);
        closed(&[(REALM.key, "x")]);
        closed(&[(TYPE.key, "digest"), (SECRET.key, "users")]);
        closed(&[(TYPE.key, "basic"), (SECRET.key, "other/users")]);
        closed(&[(TYPE.key, "basic"), (SECRET.key, "Users!")]);
    }

    #[test]
    fn a_realm_makes_one_valid_header() {
        for (realm, want, findings) in [
            ("My \"App\"", "Basic realm=\"My \\\"App\\\"\"", 0),
            ("a\\b", "Basic realm=\"a\\\\b\"", 0),
            ("", "Basic realm=\"Restricted\"", 0),
            ("App\r\nSet-Cookie: a=b", "Basic realm=\"AppSet-Cookie: a=b\"", 1),
            ("Büro", "Basic realm=\"Büro\"", 0),
            ("\r\n\u{7f}", "Basic realm=\"Restricted\"", 2),
        ] {
            let (wanted, found) = read(&[BASIC[0], BASIC[1], (REALM.key, realm)]);
            let WantedAuth::Basic { challenge, .. } = wanted else { panic!("{wanted:?}") };
            // Nothing but white space is as good as nothing.
            let findings = if realm.trim().is_empty() { 0 } else { findings };
            assert_eq!((challenge.as_bytes(), found.len()), (want.as_bytes(), findings), "{realm:?}");
        }
    }

    #[test]
    fn the_mechanism_of_the_highest_rank_is_the_one() {
        let url = (URL.key, "https://auth.example.com/auth?allowed_emails=a%40example.com%2Cb%40example.com");
        let (wanted, found) = read(&[BASIC[0], BASIC[1], url]);
        let WantedAuth::External(external) = wanted else { panic!("{wanted:?}") };
        assert_eq!(external.url.to_string(), url.1);
        assert!(found.is_empty());
        let (wanted, _) = read(&[BASIC[0], BASIC[1], url, (OAUTH.key, "oidc")]);
        assert_eq!(wanted, WantedAuth::OAuth { key: OAUTH.key, secret: "oidc".into() });
        // It is not left for the next one where it is not whole.
        closed(&[BASIC[0], BASIC[1], (URL.key, "")]);
        closed(&[BASIC[0], BASIC[1], (SIGNIN.key, "https://auth.example.com/start")]);
        closed(&[BASIC[0], BASIC[1], url, (OAUTH.key, "")]);
        closed(&[(OAUTH.key, "a"), (OAUTH_ALIAS.key, "b")]);
        let (wanted, _) = read(&[(OAUTH.key, "a"), (OAUTH_ALIAS.key, "a")]);
        assert_eq!(wanted, WantedAuth::OAuth { key: OAUTH.key, secret: "a".into() });
    }

    #[test]
    fn mistakes_of_a_mechanism_that_does_not_count_are_told() {
        let url = (URL.key, "https://auth.example.com/auth");
        for (pairs, fields) in [
            (vec![url, (TYPE.key, "basic")], vec![SECRET.key]),
            (
                vec![(OAUTH.key, "oidc"), (URL.key, "ftp://a.example/"), (TYPE.key, "digest")],
                vec![URL.key, TYPE.key],
            ),
            (vec![(OAUTH.key, "oidc"), url, BASIC[0], BASIC[1]], vec![]),
        ] {
            let (wanted, found) = read(&pairs);
            assert!(!matches!(wanted, WantedAuth::Misconfigured | WantedAuth::Open), "{pairs:?}");
            assert_eq!(found.iter().map(|f| &*f.field).collect::<Vec<_>>(), fields, "{pairs:?}");
            for finding in found {
                assert_eq!(finding.reason, Reason::OutrankedAuthMistake);
                let end = format!("; it does not count beside {}", pairs[0].0);
                assert!(finding.message.ends_with(&end) && !finding.message.contains("501"), "{finding:?}");
            }
        }
        // both closed: each is told of as what it is
        let (wanted, found) = read(&[(OAUTH.key, ""), (TYPE.key, "basic")]);
        assert_eq!(wanted, WantedAuth::Misconfigured);
        let reasons: Vec<_> = found.iter().map(|f| f.reason).collect();
        assert_eq!(reasons, [Reason::AuthMisconfigured, Reason::OutrankedAuthMistake]);
    }

    #[test]
    fn headers_to_copy_are_names_that_decide_nothing_else() {
        let url = (URL.key, "http://auth.example.com/auth");
        let (wanted, _) = read(&[url, (RESPONSE_HEADERS.key, "X-Tenant, remote-user,,x-tenant")]);
        let WantedAuth::External(external) = wanted else { panic!("{wanted:?}") };
        assert_eq!(
            *external.response_headers,
            [HeaderName::from_static("x-tenant"), HeaderName::from_static("remote-user")]
        );
        for list in ["X-A, Host", "Content-Length", "x y", "X-Forwarded-For", "Connection"] {
            closed(&[url, (RESPONSE_HEADERS.key, list)]);
        }
    }
}
