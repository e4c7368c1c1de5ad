//! Cross-origin requests: what is said to scripts of other origins (Fetch standard, section 3.2).

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use ingress_core::{Cors, Origins};

/// What only the proxy says on a route with CORS; a backend's own words are dropped.
pub const OURS: [HeaderName; 7] = [
    ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_ALLOW_CREDENTIALS,
    ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_HEADERS,
    ACCESS_CONTROL_EXPOSE_HEADERS,
    ACCESS_CONTROL_MAX_AGE,
    HeaderName::from_static("access-control-allow-private-network"),
];

/// Whether a browser asks for leave before the request proper: it sends no credentials with this,
/// so it is answered before anybody asks for them.
pub fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::OPTIONS
        && headers.contains_key(ORIGIN)
        && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// The header fields of an answer, for a request with these fields.
pub fn fields<'a>(
    cors: &'a Cors,
    request: &HeaderMap,
    preflight: bool,
) -> impl Iterator<Item = (HeaderName, HeaderValue)> + use<'a> {
    let allowed = match &cors.origins {
        Origins::Any => Some(HeaderValue::from_static("*")),
        Origins::AnyWithCredentials => origin(request).cloned(),
        origins => origin(request).filter(|origin| origins.admit(origin.as_bytes())).cloned(),
    };
    let admitted = allowed.is_some();
    let credentials =
        matches!(cors.origins, Origins::Listed { credentials: true, .. } | Origins::AnyWithCredentials);
    // With credentials browsers take a wildcard by its letter (Fetch standard, section 3.3.4).
    let listed = |own: &HeaderValue, asked: HeaderName| match request.get(asked) {
        Some(asked) if preflight && credentials && own == "*" => asked.clone(),
        _ => own.clone(),
    };
    let methods = listed(&cors.methods, ACCESS_CONTROL_REQUEST_METHOD);
    let headers = listed(&cors.headers, ACCESS_CONTROL_REQUEST_HEADERS);
    let credentials = credentials.then(|| HeaderValue::from_static("true"));
    let exposes = !preflight || cors.expose_on_preflight;
    let only = move |wanted: bool, value: Option<HeaderValue>| value.filter(|_| wanted && admitted);
    [
        (ACCESS_CONTROL_ALLOW_ORIGIN, allowed),
        (ACCESS_CONTROL_ALLOW_CREDENTIALS, only(true, credentials)),
        (ACCESS_CONTROL_ALLOW_METHODS, only(preflight, Some(methods))),
        (ACCESS_CONTROL_ALLOW_HEADERS, only(preflight, Some(headers))),
        (ACCESS_CONTROL_MAX_AGE, only(preflight, Some(cors.max_age.clone()))),
        (ACCESS_CONTROL_EXPOSE_HEADERS, only(exposes, cors.expose.clone())),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
}

/// Whether `Vary: Origin` must be added to an answer with these fields. It depends on the origin
/// also where the request named none (RFC 9110 section 12.5.5).
pub fn varies(cors: &Cors, response: &HeaderMap) -> bool {
    let says_so = |value: &HeaderValue| {
        let mut names = value.as_bytes().split(|b| *b == b',').map(<[u8]>::trim_ascii);
        names.any(|name| name == b"*" || name.eq_ignore_ascii_case(b"origin"))
    };
    cors.origins != Origins::Any && !response.get_all(VARY).iter().any(says_so)
}

/// The origin that a request names. One that names several names none.
fn origin(request: &HeaderMap) -> Option<&HeaderValue> {
    let mut all = request.get_all(ORIGIN).iter();
    all.next().filter(|_| all.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cors(origins: &[&str], credentials: bool) -> Cors {
        let origins = match origins {
            ["*"] => Origins::Any,
            list => {
                Origins::Listed { origins: list.iter().map(|o| o.parse().unwrap()).collect(), credentials }
            }
        };
        Cors {
            origins,
            methods: HeaderValue::from_static("GET, PUT"),
            headers: HeaderValue::from_static("X-One"),
            expose: Some(HeaderValue::from_static("X-Two")),
            expose_on_preflight: false,
            max_age: HeaderValue::from_static("60"),
        }
    }

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn said(cors: &Cors, fields_of_request: &[(&'static str, &'static str)], preflight: bool) -> String {
        let all = fields(cors, &headers(fields_of_request), preflight);
        let short = |name: &HeaderName| name.as_str().trim_start_matches("access-control-").to_owned();
        all.map(|(n, v)| format!("{}: {}", short(&n), v.to_str().unwrap())).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn one_origin_is_echoed_and_nobody_elses() {
        let list = cors(&["https://a.example.com", "https://*.b.example.com"], true);
        for (origin, echoed) in [
            ("https://a.example.com", true),
            ("https://x.b.example.com", true),
            ("https://c.example.com", false),
            ("null", false),
            ("", false),
        ] {
            let want = if echoed {
                format!("allow-origin: {origin}; allow-credentials: true; expose-headers: X-Two")
            } else {
                String::new()
            };
            assert_eq!(said(&list, &[("origin", origin)], false), want);
        }
        assert_eq!(said(&list, &[], false), "");
        let twice = [("origin", "https://a.example.com"), ("origin", "https://c.example.com")];
        assert_eq!(said(&list, &twice, false), "");
        let preflight = said(&list, &[("origin", "https://a.example.com")], true);
        let want = "allow-origin: https://a.example.com; allow-credentials: true; allow-methods: GET, PUT; allow-headers: X-One; max-age: 60";
        assert_eq!(preflight, want);
        assert_eq!(said(&list, &[("origin", "https://c.example.com")], true), "");
    }

    #[test]
    fn a_wildcard_is_said_to_everybody_and_never_with_credentials() {
        let any = cors(&["*"], true);
        for request in [&[][..], &[("origin", "https://evil.example")]] {
            assert_eq!(said(&any, request, false), "allow-origin: *; expose-headers: X-Two");
        }
        assert!(!varies(&any, &HeaderMap::new()));
    }

    #[test]
    fn with_credentials_a_wildcard_list_says_what_was_asked_for() {
        let any = HeaderValue::from_static("*");
        let asked = [
            ("origin", "https://a.example.com"),
            ("access-control-request-method", "PATCH"),
            ("access-control-request-headers", "x-a, x-b"),
        ];
        for (credentials, methods, headers) in [(true, "PATCH", "x-a, x-b"), (false, "*", "*")] {
            let list = cors(&["https://a.example.com"], credentials);
            let list = Cors { methods: any.clone(), headers: any.clone(), ..list };
            let said = said(&list, &asked, true);
            let want = format!("allow-methods: {methods}; allow-headers: {headers}; max-age: 60");
            assert!(said.ends_with(&want), "{said}");
        }
    }

    #[test]
    fn vary_is_added_once() {
        let list = cors(&["https://a.example.com"], false);
        for (vary, added) in [
            (&[][..], true),
            (&[("vary", "Accept-Encoding")], true),
            (&[("vary", "Accept-Encoding, origin")], false),
            (&[("vary", "Accept-Encoding"), ("vary", "Origin")], false),
            (&[("vary", "*")], false),
            (&[("vary", "X-Origin")], true),
        ] {
            assert_eq!(varies(&list, &headers(vary)), added, "{vary:?}");
        }
    }

    #[test]
    fn only_a_whole_preflight_is_one() {
        let asks = [("origin", "https://a.example.com"), ("access-control-request-method", "PUT")];
        assert!(is_preflight(&Method::OPTIONS, &headers(&asks)));
        assert!(!is_preflight(&Method::GET, &headers(&asks)));
        assert!(!is_preflight(&Method::OPTIONS, &headers(&asks[..1])));
        assert!(!is_preflight(&Method::OPTIONS, &headers(&asks[1..])));
    }
}
