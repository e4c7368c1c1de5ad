//! Who issues certificates. Read where Certificates are made (`certificate.rs`); here only known.

use super::{Annotation, Since};
use crate::certificate::{CLUSTER_ISSUER, ISSUER};

/// The annotations of this feature.
pub(super) const TABLE: [Annotation; 2] = [
    row(CLUSTER_ISSUER, "the ClusterIssuer for TLS blocks without secretName; wins over issuer"),
    row(ISSUER, "the Issuer for TLS blocks without secretName"),
];

const fn row(key: &'static str, meaning: &'static str) -> Annotation {
    Annotation { key, accepts: "a name", default: "", meaning, since: Since::Version("0.1") }
}

#[cfg(test)]
mod tests {
    use super::super::tests::read_all;

    #[test]
    fn issuers_are_known_and_ask_nothing_of_routes() {
        for value in ["letsencrypt-prod", ""] {
            let (wanted, found) =
                read_all(&[("cert-manager.io/cluster-issuer", value), ("cert-manager.io/issuer", value)]);
            assert_eq!(wanted, read_all(&[]).0);
            assert!(found.is_empty());
        }
    }
}
