//! Cross-origin requests. What is not said is as in ingress-nginx, but for credentials, which are off.

use super::{Annotation, BOOLEAN, Reader, Since, boolean};
use crate::finding::{Reason, quoted};
use http::HeaderValue;
use ingress_core::{Cors, Origin, Origins};

const METHODS: &str = "GET, PUT, POST, DELETE, PATCH, OPTIONS";
const HEADERS: &str = "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization";
const MAX_AGE: &str = "1728000";
const NAMES: &str = "header names, separated by commas";

/// The annotations of this feature.
pub(super) const TABLE: [Annotation; 7] = [
    row("ingress.tak-os.org/enable-cors", BOOLEAN, "false", "CORS headers are added and preflights answered"),
    row(
        "ingress.tak-os.org/cors-allow-origin",
        "origins like https://a.example.com or https://*.example.com, separated by commas, or \"*\"",
        "*",
        "whose scripts may read answers",
    ),
    row(
        "ingress.tak-os.org/cors-allow-credentials",
        BOOLEAN,
        "false",
        "cookies and authentication may go with their requests; only with named origins",
    ),
    row(
        "ingress.tak-os.org/cors-allow-methods",
        "methods, separated by commas",
        METHODS,
        "methods that are allowed",
    ),
    row("ingress.tak-os.org/cors-allow-headers", NAMES, HEADERS, "request headers that are allowed"),
    row("ingress.tak-os.org/cors-expose-headers", NAMES, "", "response headers that scripts may read"),
    row(
        "ingress.tak-os.org/cors-max-age",
        "whole seconds up to 2678400 (31 days)",
        MAX_AGE,
        "how long the answer to a preflight may be kept",
    ),
];

const fn row(
    key: &'static str,
    accepts: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> Annotation {
    Annotation { key, accepts, default, meaning, since: Since::Version("0.1") }
}

pub(super) fn read(reader: &mut Reader<'_>) -> Option<Box<Cors>> {
    let [enable, origins, credentials, methods, headers, expose, max_age] = &TABLE;
    if !reader.parse(enable, false, boolean) {
        return None;
    }
    let credentials_wanted = reader.parse(credentials, false, boolean);
    let origins = match listed(reader, origins) {
        Some(origins) => Origins::Listed { origins, credentials: credentials_wanted },
        None => {
            if credentials_wanted {
                let message = "credentials go with named origins only, and every origin is allowed here; \
                               no credentials header is sent";
                reader.findings.add(Reason::InvalidAnnotation, credentials.key, message);
            }
            Origins::Any
        }
    };
    Some(Box::new(Cors {
        origins,
        methods: reader.parse(methods, HeaderValue::from_static(METHODS), tokens),
        headers: reader.parse(headers, HeaderValue::from_static(HEADERS), tokens),
        expose: reader.parse(expose, None, |value| tokens(value).map(Some)),
        expose_on_preflight: false,
        max_age: reader.parse(max_age, HeaderValue::from_static(MAX_AGE), |value| {
            let digits = value.trim().bytes().all(|b| b.is_ascii_digit());
            value.trim().parse::<u32>().ok().filter(|n| digits && *n <= 2_678_400).map(HeaderValue::from)
        }),
    }))
}

/// The origins of the list; `None` is every origin. One that is none is left out, and where none is
/// left nobody is allowed: a slip of the pen must not open a route to everybody.
fn listed(reader: &mut Reader<'_>, row: &Annotation) -> Option<Box<[Origin]>> {
    let list = reader.get(row.key)?;
    let mut origins = Vec::new();
    let mut any = false;
    for entry in list.split(',').map(str::trim) {
        match entry.parse() {
            _ if entry == "*" => any = true,
            Ok(origin) => origins.push(origin),
            Err(_) => {
                let message =
                    format!("{} is not accepted, only {}; it allows nobody", quoted(entry), row.accepts);
                reader.findings.add(Reason::InvalidAnnotation, row.key, message);
            }
        }
    }
    (!any).then(|| origins.into())
}

/// Methods or header names as they stand in a header: tokens (RFC 9110 section 5.6.2).
fn tokens(list: &str) -> Option<HeaderValue> {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    let mut all = list.split(',').map(str::trim);
    let good = all.all(|name| !name.is_empty() && name.bytes().all(token));
    HeaderValue::from_str(list.trim()).ok().filter(|_| good)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{read_all, read_one};
    use super::*;
    use ingress_core::Policy;

    /// With CORS on: what is read, and how many mistakes are found.
    fn on(pairs: &[(&str, &str)]) -> (Cors, usize) {
        let mut all = vec![("ingress.tak-os.org/enable-cors".to_owned(), "true")];
        all.extend(pairs.iter().map(|(key, value)| (format!("ingress.tak-os.org/cors-{key}"), *value)));
        let all: Vec<_> = all.iter().map(|(key, value)| (key.as_str(), *value)).collect();
        let (wanted, found) = read_all(&all);
        assert!(found.iter().all(|f| f.reason == Reason::InvalidAnnotation), "{found:?}");
        (*wanted.policy.cors.unwrap(), found.len())
    }

    fn named(origins: &[&str], credentials: bool) -> Origins {
        Origins::Listed { origins: origins.iter().map(|o| o.parse().unwrap()).collect(), credentials }
    }

    #[test]
    fn nothing_else_said_is_what_ingress_nginx_says() {
        let (cors, found) = on(&[]);
        assert_eq!((&cors.origins, &cors.expose, found), (&Origins::Any, &None, 0));
        assert!(cors.methods == METHODS && cors.headers == HEADERS, "{cors:?}");
        assert_eq!(cors.max_age, "1728000");
    }

    #[test]
    fn it_is_off_unless_it_is_plainly_on() {
        for (value, findings) in [("false", 0), ("FALSE", 0), ("yes", 1), ("", 1)] {
            let (wanted, found) = read_one("enable-cors", value);
            assert_eq!((wanted.policy, found.len()), (Policy::default(), findings), "{value}");
        }
        // Without it the others say nothing, and nothing is said of them.
        let (wanted, found) = read_one("cors-allow-origin", "nonsense");
        assert_eq!((wanted.policy, found.len()), (Policy::default(), 0));
    }

    #[test]
    fn a_list_names_origins_and_what_is_none_allows_nobody() {
        for (list, origins, findings) in [
            ("*", Origins::Any, 0),
            ("https://a.example.com, *", Origins::Any, 0),
            ("https://a.example.com", named(&["https://a.example.com"], false), 0),
            (
                "https://a.example.com,https://*.b.example.com:8443",
                named(&["https://a.example.com", "https://*.b.example.com:8443"], false),
                0,
            ),
            ("https://a.example.com/, https://b.example.com", named(&["https://b.example.com"], false), 1),
            ("a.example.com", named(&[], false), 1),
            ("null", named(&[], false), 1),
            ("", named(&[], false), 1),
        ] {
            let (cors, found) = on(&[("allow-origin", list)]);
            assert_eq!((cors.origins, found), (origins, findings), "{list}");
        }
    }

    #[test]
    fn credentials_go_with_named_origins_alone() {
        assert_eq!(on(&[("allow-credentials", "true")]).1, 1);
        assert_eq!(on(&[("allow-credentials", "true"), ("allow-origin", "*")]).0.origins, Origins::Any);
        let (cors, found) = on(&[("allow-credentials", "true"), ("allow-origin", "https://a.example.com")]);
        assert_eq!((cors.origins, found), (named(&["https://a.example.com"], true), 0));
    }

    #[test]
    fn lists_are_tokens_and_seconds_are_digits() {
        let (cors, found) = on(&[
            ("allow-methods", "GET,PURGE"),
            ("allow-headers", "*"),
            ("expose-headers", "X-A, X-B"),
            ("max-age", "0"),
        ]);
        assert!(cors.methods == "GET,PURGE" && cors.headers == "*" && found == 0, "{cors:?}");
        assert_eq!(
            (cors.expose, cors.max_age),
            (Some(HeaderValue::from_static("X-A, X-B")), HeaderValue::from_static("0"))
        );
        for (key, value) in [
            ("allow-methods", "GET PUT"),
            ("allow-methods", ""),
            ("allow-headers", "X-A:1"),
            ("allow-headers", "X-A\r\nSet-Cookie: x"),
            ("expose-headers", "X-A,,X-B"),
            ("max-age", "-1"),
            ("max-age", "1.5"),
            ("max-age", "2678401"),
            ("max-age", ""),
        ] {
            let (cors, found) = on(&[(key, value)]);
            assert_eq!((cors, found), (on(&[]).0, 1), "{key} {value:?}");
        }
    }
}
