//! Address lists. One that cannot be read lets nobody in.

use super::{Annotation, Reader, Since};
use crate::finding::{Reason, quoted};
use ingress_core::{Access, Ranges};

/// The annotations of this feature.
pub(super) const TABLE: [Annotation; 2] = [
    row(
        "ingress.tak-os.org/allowlist-source-range",
        "only clients from these ranges are let in; the others get 403",
    ),
    row("ingress.tak-os.org/denylist-source-range", "clients from these ranges get 403, allowed or not"),
];

const fn row(key: &'static str, meaning: &'static str) -> Annotation {
    Annotation {
        key,
        accepts: "addresses and CIDR ranges, separated by commas",
        default: "",
        meaning,
        since: Since::Version("0.1"),
    }
}

pub(super) fn read(reader: &mut Reader<'_>) -> Access {
    // Both are read before either decides, so that every mistake is told.
    let (allow, deny) = (list(reader, &TABLE[0]), list(reader, &TABLE[1]));
    match (allow, deny) {
        (Ok(None), Ok(None)) => Access::Open,
        (Ok(allow), Ok(deny)) => Access::Listed { allow, deny: deny.unwrap_or_default() },
        _ => Access::Denied,
    }
}

/// A list of the family does not parse.
struct Unreadable;

fn list(reader: &mut Reader<'_>, row: &Annotation) -> Result<Option<Ranges>, Unreadable> {
    let Some(value) = reader.get(row.key) else { return Ok(None) };
    // An empty list does not parse either: nothing of this family may fall open by accident.
    value.parse().map(Some).map_err(|problem: ingress_core::InvalidRange| {
        let message = format!(
            "{} is not accepted, only {}: {} is none; requests are answered 403",
            quoted(value),
            row.accepts,
            quoted(&problem.entry)
        );
        reader.findings.add(Reason::InvalidAnnotation, row.key, message);
        Unreadable
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{read_all, read_one};
    use super::*;

    fn ranges(list: &str) -> Ranges {
        list.parse().unwrap()
    }

    #[test]
    fn lists_are_read_alone_and_together() {
        let (allow, deny) = (TABLE[0].key, TABLE[1].key);
        for (pairs, access) in [
            (vec![], Access::Open),
            (
                vec![(allow, "10.0.0.0/8, 2001:db8::/32")],
                Access::Listed { allow: Some(ranges("10.0.0.0/8,2001:db8::/32")), deny: Ranges::default() },
            ),
            (vec![(deny, "192.0.2.1")], Access::Listed { allow: None, deny: ranges("192.0.2.1/32") }),
            (
                vec![(allow, "10.0.0.0/8"), (deny, "10.1.0.0/16")],
                Access::Listed { allow: Some(ranges("10.0.0.0/8")), deny: ranges("10.1.0.0/16") },
            ),
        ] {
            let (wanted, found) = read_all(&pairs);
            assert_eq!((wanted.policy.access, found.len()), (access, 0), "{pairs:?}");
        }
    }

    #[test]
    fn a_list_that_cannot_be_read_lets_nobody_in() {
        for key in ["allowlist-source-range", "denylist-source-range"] {
            for value in ["", " ", "not a range", "10.0.0.0/8;10.1.0.0/16", "10.0.0.0/8,", "10.0.0.0/40"] {
                let (wanted, found) = read_one(key, value);
                assert_eq!((wanted.policy.access, found.len()), (Access::Denied, 1), "{key} {value}");
                assert_eq!(found[0].reason, Reason::InvalidAnnotation);
            }
        }
        // A good list beside a bad one does not help it.
        let (wanted, found) = read_all(&[(TABLE[0].key, "0.0.0.0/0"), (TABLE[1].key, "x")]);
        assert_eq!((wanted.policy.access, found.len()), (Access::Denied, 1));
    }
}
