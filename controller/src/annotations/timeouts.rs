//! Backend timeouts.

use super::{Annotation, Reader, Since};
use ingress_core::Timeouts;
use std::time::Duration;

/// The annotations of this feature.
pub(super) const TABLE: [Annotation; 3] = [CONNECT, READ, SEND];

const ACCEPTS: &str = "whole seconds up to 2678400 (31 days), \"0\" for no limit";

const CONNECT: Annotation = Annotation {
    key: "ingress.tak-os.org/proxy-connect-timeout",
    accepts: ACCEPTS,
    default: "60",
    meaning: "seconds to establish TCP and TLS to the backend",
    since: Since::Version("0.1"),
};
const READ: Annotation = Annotation {
    key: "ingress.tak-os.org/proxy-read-timeout",
    accepts: ACCEPTS,
    default: "300",
    meaning: "seconds of inactivity while reading from the backend; tunnels too",
    since: Since::Version("0.1"),
};
const SEND: Annotation = Annotation {
    key: "ingress.tak-os.org/proxy-send-timeout",
    accepts: ACCEPTS,
    default: "300",
    meaning: "seconds of inactivity while writing to the backend; tunnels too",
    since: Since::Version("0.1"),
};

const MAX_SECONDS: u64 = 31 * 24 * 60 * 60;

pub(super) fn read(reader: &mut Reader<'_>) -> Timeouts {
    let Timeouts { connect, read, send } = Timeouts::default();
    Timeouts {
        connect: reader.parse(&CONNECT, connect, seconds),
        read: reader.parse(&READ, read, seconds),
        send: reader.parse(&SEND, send, seconds),
    }
}

/// Whole seconds in ASCII digits, spaces around them; zero is no limit.
fn seconds(value: &str) -> Option<Option<Duration>> {
    let value = value.trim_matches(' ');
    if value.is_empty() || !value.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let seconds = value.parse().ok().filter(|seconds| *seconds <= MAX_SECONDS)?;
    Some((seconds > 0).then(|| Duration::from_secs(seconds)))
}

#[cfg(test)]
mod tests {
    use super::super::auth::WantedAuth;
    use super::super::tests::{read_all, read_one};
    use super::*;
    use crate::finding::Reason;

    #[test]
    fn whole_seconds_parse() {
        for (value, want) in [
            ("1", Some(1)),
            ("60", Some(60)),
            (" 60 ", Some(60)),
            ("007", Some(7)),
            ("2678400", Some(2_678_400)),
            ("0", None),
            ("00", None),
        ] {
            let (wanted, found) = read_one("proxy-read-timeout", value);
            assert_eq!(wanted.policy.timeouts.read, want.map(Duration::from_secs), "{value}");
            assert!(found.is_empty(), "{value}");
        }
    }

    #[test]
    fn anything_else_is_the_default_one_finding_and_costs_nothing_else() {
        for value in [
            "60s",
            "abc",
            "-5",
            "1.5",
            "99999999999999999999",
            "",
            "  ",
            "+5",
            "6 0",
            "0x10",
            "٣",
            "1e3",
            "2678401",
            "\t5",
            "60\n",
            "１",
        ] {
            let (wanted, found) = read_all(&[
                ("ingress.tak-os.org/proxy-read-timeout", value),
                ("ingress.tak-os.org/auth-url", "http://auth.example.com/"),
            ]);
            assert_eq!(wanted.policy.timeouts, Timeouts::default(), "{value}");
            assert!(matches!(wanted.auth, WantedAuth::External(_)), "{value}: auth stays in force");
            let own: Vec<_> = found.iter().filter(|f| f.reason == Reason::InvalidAnnotation).collect();
            assert_eq!(own.len(), 1, "{value}");
            assert_eq!(&*own[0].field, "ingress.tak-os.org/proxy-read-timeout");
            assert!(
                own[0].message.contains(&format!("{value:?}")) && own[0].message.contains("whole seconds")
            );
        }
    }

    #[test]
    fn each_timeout_has_its_own_key() {
        let (wanted, _) = read_all(&[
            ("ingress.tak-os.org/proxy-connect-timeout", "5"),
            ("ingress.tak-os.org/proxy-read-timeout", "0"),
            ("ingress.tak-os.org/proxy-send-timeout", "7"),
        ]);
        let secs = |n| Some(Duration::from_secs(n));
        assert_eq!(wanted.policy.timeouts, Timeouts { connect: secs(5), read: None, send: secs(7) });
    }
}
