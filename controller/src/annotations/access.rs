//! Address lists. Not enforced yet, so a route that asks for one is closed to everybody.

use super::{Annotation, Reader, Since};
use ingress_core::Access;

/// The annotations of this feature.
pub(super) const TABLE: [Annotation; 2] = [
    row("ingress.tak-os.org/allowlist-source-range", "only clients from these ranges are let in"),
    row("ingress.tak-os.org/denylist-source-range", "clients from these ranges are not let in"),
];

const fn row(key: &'static str, meaning: &'static str) -> Annotation {
    Annotation { key, accepts: "a list of CIDR ranges", default: "", meaning, since: Since::Later }
}

pub(super) fn read(reader: &mut Reader<'_>) -> Access {
    let mut access = Access::Open;
    for row in &TABLE {
        // An empty list too: nothing of this family may fall open by accident.
        if reader.get(row.key).is_some() {
            reader.unsupported(row, "requests are answered 403");
            access = Access::Denied;
        }
    }
    access
}

#[cfg(test)]
mod tests {
    use super::super::tests::read_one;
    use super::*;

    #[test]
    fn a_list_that_cannot_be_honoured_lets_nobody_in() {
        for key in ["allowlist-source-range", "denylist-source-range"] {
            for value in ["10.0.0.0/8", "0.0.0.0/0", "not a range", ""] {
                let (wanted, found) = read_one(key, value);
                assert_eq!((wanted.policy.access, found.len()), (Access::Denied, 1), "{key} {value}");
            }
        }
    }
}
