//! Plain HTTP to https.

use super::{Annotation, BOOLEAN, Reader, Since, boolean};

/// The annotations of this feature.
pub(super) const TABLE: [Annotation; 1] = [Annotation {
    key: "ingress.tak-os.org/ssl-redirect",
    accepts: BOOLEAN,
    default: "true",
    meaning: "plain HTTP is answered with 308 to https where the host has TLS",
    since: Since::Version("0.1"),
}];

pub(super) fn read(reader: &mut Reader<'_>) -> bool {
    reader.parse(&TABLE[0], true, boolean)
}

#[cfg(test)]
mod tests {
    use super::super::tests::read_one;
    use crate::finding::Reason;

    #[test]
    fn only_a_plain_false_turns_the_redirect_off() {
        for (value, redirect, findings) in [
            ("false", false, 0),
            ("FALSE", false, 0),
            ("true", true, 0),
            ("no", true, 1),
            ("", true, 1),
            ("0", true, 1),
        ] {
            let (wanted, found) = read_one("ssl-redirect", value);
            assert_eq!((wanted.ssl_redirect, found.len()), (redirect, findings), "{value}");
            assert!(
                found.iter().all(|f| f.reason == Reason::InvalidAnnotation && f.message.contains("\"true\""))
            );
        }
    }
}
