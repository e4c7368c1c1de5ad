//! Limits by client address. Not enforced yet: reported, and the route stays open.

use super::{Annotation, Reader, Since};

/// The annotations of this feature.
pub(super) const TABLE: [Annotation; 4] = [
    row("ingress.tak-os.org/limit-rps", "a number above 0", "", "requests a second"),
    row(
        "ingress.tak-os.org/limit-burst-multiplier",
        "a number of at least 1",
        "5",
        "the burst, as a multiple of the rate",
    ),
    row("ingress.tak-os.org/limit-rpm", "a number above 0", "", "requests a minute"),
    row("ingress.tak-os.org/limit-connections", "a number above 0", "", "requests at the same time"),
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
    reader.not_yet(&TABLE, "requests are not limited");
}

#[cfg(test)]
mod tests {
    use super::super::tests::read_one;
    use crate::finding::Reason;
    use ingress_core::Policy;

    #[test]
    fn limits_are_told_to_be_missing() {
        for key in ["limit-rps", "limit-rpm", "limit-connections", "limit-burst-multiplier"] {
            for value in ["10", "0", "-1", "abc", "1e12"] {
                let (wanted, found) = read_one(key, value);
                assert_eq!(wanted.policy, Policy::default());
                assert_eq!(
                    (found.len(), found[0].reason),
                    (1, Reason::UnsupportedAnnotation),
                    "{key} {value}"
                );
            }
        }
    }
}
