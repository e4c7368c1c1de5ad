//! Authentication. No mechanism is built in yet, so whatever asks for one closes the route.

use super::{Annotation, Reader, Since};
use ingress_core::Auth;

/// The annotations of this feature.
pub(super) const TABLE: [Annotation; 8] = [
    row("ingress.tak-os.org/auth-type", "\"basic\"", "the kind of built-in authentication"),
    row("ingress.tak-os.org/auth-secret", "a Secret's name", "the Secret with the htpasswd file"),
    row("ingress.tak-os.org/auth-realm", "text", "what the browser's password prompt shows"),
    row(
        "ingress.tak-os.org/auth-url",
        "an http or https URL",
        "the service that is asked about each request",
    ),
    row("ingress.tak-os.org/auth-signin", "an http or https URL", "where 401 and 403 are redirected to"),
    row(
        "ingress.tak-os.org/auth-response-headers",
        "a list of header names",
        "headers copied from the service's answer",
    ),
    row("k8s.tak-os.com/oauth2-secret", "a Secret's name", "the Secret with the OAuth2/OIDC settings"),
    row(
        "ingress.tak-os.org/oauth2-secret",
        "a Secret's name",
        "another spelling of k8s.tak-os.com/oauth2-secret",
    ),
];

const fn row(key: &'static str, accepts: &'static str, meaning: &'static str) -> Annotation {
    Annotation { key, accepts, default: "", meaning, since: Since::Later }
}

pub(super) fn read(reader: &mut Reader<'_>) -> Auth {
    let mut auth = Auth::Open;
    for row in &TABLE {
        // An empty value too: nothing of this family may fall open by accident.
        if reader.get(row.key).is_some() {
            reader.unsupported(row, "requests are answered 501");
            auth = Auth::Misconfigured;
        }
    }
    auth
}

#[cfg(test)]
mod tests {
    use super::super::tests::read_all;
    use super::*;
    use crate::finding::Reason;

    #[test]
    fn whatever_asks_for_authentication_closes_the_route() {
        for row in &TABLE {
            for value in ["basic", "none", "false", "x y", "https://auth.example.com/auth"] {
                let (wanted, found) = read_all(&[(row.key, value)]);
                assert_eq!(wanted.policy.auth, Auth::Misconfigured, "{} {value}", row.key);
                assert_eq!(found[0].reason, Reason::UnsupportedAnnotation);
                assert!(!found[0].message.contains(value), "values are not repeated: {found:?}");
            }
        }
    }

    #[test]
    fn an_empty_value_closes_the_route_as_well() {
        for row in &TABLE {
            for value in ["", " "] {
                let (wanted, found) = read_all(&[(row.key, value)]);
                assert_eq!(wanted.policy.auth, Auth::Misconfigured, "{}", row.key);
                assert_eq!((found.len(), found[0].reason), (1, Reason::UnsupportedAnnotation));
            }
        }
    }
}
