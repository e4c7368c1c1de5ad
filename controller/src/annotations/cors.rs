//! Cross-origin requests. Not answered yet: reported, and the route stays as it is.

use super::{Annotation, BOOLEAN, Reader, Since, boolean};

/// The annotations of this feature.
pub(super) const TABLE: [Annotation; 7] = [
    row("ingress.tak-os.org/enable-cors", BOOLEAN, "false", "CORS headers are added and preflights answered"),
    row(
        "ingress.tak-os.org/cors-allow-origin",
        "a list of origins, \"*\", \"https://*.example.com\"",
        "*",
        "origins that are let in",
    ),
    row("ingress.tak-os.org/cors-allow-credentials", BOOLEAN, "false", "credentials are allowed"),
    row(
        "ingress.tak-os.org/cors-allow-methods",
        "a list of methods",
        "GET, PUT, POST, DELETE, PATCH, OPTIONS",
        "methods that are allowed",
    ),
    row(
        "ingress.tak-os.org/cors-allow-headers",
        "a list of header names",
        "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization",
        "request headers that are allowed",
    ),
    row(
        "ingress.tak-os.org/cors-expose-headers",
        "a list of header names",
        "",
        "response headers that scripts may read",
    ),
    row("ingress.tak-os.org/cors-max-age", "seconds", "1728000", "how long a preflight's answer may be kept"),
];

const fn row(
    key: &'static str,
    accepts: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> Annotation {
    Annotation { key, accepts, default, meaning, since: Since::Later }
}

pub(super) fn read(reader: &mut Reader<'_>) {
    let [enable, others @ ..] = &TABLE;
    let enabled = reader.get(enable.key).map(boolean);
    match enabled {
        Some(Some(false)) => return,
        Some(Some(true)) => reader.unsupported(enable, "no CORS headers are added"),
        Some(None) => reader.invalid(enable, reader.get(enable.key).unwrap_or_default()),
        None => {}
    }
    reader.not_yet(others, "no CORS headers are added");
}

#[cfg(test)]
mod tests {
    use super::super::tests::{read_all, read_one};
    use crate::finding::Reason;
    use ingress_core::Policy;

    #[test]
    fn cors_is_told_to_be_missing_unless_it_is_off() {
        for (value, reason) in [
            ("true", Some(Reason::UnsupportedAnnotation)),
            ("false", None),
            ("FALSE", None),
            ("yes", Some(Reason::InvalidAnnotation)),
        ] {
            let (wanted, found) = read_one("enable-cors", value);
            assert_eq!(wanted.policy, Policy::default());
            assert_eq!(found.first().map(|f| f.reason), reason, "{value}");
        }
        let off =
            [("ingress.tak-os.org/enable-cors", "false"), ("ingress.tak-os.org/cors-allow-origin", "*")];
        assert!(read_all(&off).1.is_empty());
        assert_eq!(read_one("cors-allow-origin", "*").1.len(), 1);
    }
}
