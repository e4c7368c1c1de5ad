//! Limits by client address. A value that does not parse limits nothing, and is told.

use super::{Annotation, Reader, Since};
use crate::finding::{Reason, quoted};
use ingress_core::policy::rate_limit::{Bucket, RateLimit};
use std::time::Duration;

/// The annotations of this feature.
pub(super) const TABLE: [Annotation; 4] = [
    row("ingress.tak-os.org/limit-rps", RATE, "", "requests a second of one client; the others get 429"),
    row(
        "ingress.tak-os.org/limit-burst-multiplier",
        "a number from 1 to 10000",
        "5",
        "how many times the rate may pass at once",
    ),
    row("ingress.tak-os.org/limit-rpm", RATE, "", "requests a minute of one client; the others get 429"),
    row(
        "ingress.tak-os.org/limit-connections",
        "a whole number from 1 to 1000000",
        "",
        "requests of one client at the same time; the others get 429",
    ),
];

const RATE: &str = "a number above 0, 1000000 at most";

const fn row(
    key: &'static str,
    accepts: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> Annotation {
    Annotation { key, accepts, default, meaning, since: Since::Version("0.1") }
}

pub(super) fn read(reader: &mut Reader<'_>) -> RateLimit {
    let [rps, multiplier, rpm, connections] = &TABLE;
    let in_range = |value: &str| number(value).filter(|n| (1.0..=10_000.0).contains(n));
    let burst = reader.parse(multiplier, 5.0, in_range);
    let bucket = |period: u64| {
        move |value: &str| {
            let rate = number(value).filter(|rate| *rate <= 1e6)?;
            Bucket::new(rate, Duration::from_secs(period), burst)
        }
    };
    RateLimit {
        second: limit(reader, rps, bucket(1)),
        minute: limit(reader, rpm, bucket(60)),
        connections: limit(reader, connections, |value| {
            let whole = value.trim().bytes().all(|b| b.is_ascii_digit());
            value.trim().parse().ok().filter(|n: &std::num::NonZeroU32| whole && n.get() <= 1_000_000)
        }),
    }
}

fn limit<T>(reader: &mut Reader<'_>, row: &Annotation, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
    let value = reader.get(row.key)?;
    let limit = parse(value);
    if limit.is_none() {
        let Annotation { key, accepts, .. } = row;
        let message = format!("{} is not accepted, only {accepts}; it limits nothing", quoted(value));
        reader.findings.add(Reason::InvalidAnnotation, *key, message);
    }
    limit
}

/// Digits, with a fraction if need be.
fn number(value: &str) -> Option<f64> {
    let value = value.trim();
    let (whole, fraction) = value.split_once('.').unwrap_or((value, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    (digits(whole) && digits(fraction)).then(|| value.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{read_all, read_one};
    use super::*;
    use std::num::NonZeroU32;

    fn bucket(rate: f64, seconds: u64, burst: f64) -> Option<Bucket> {
        Some(Bucket::new(rate, Duration::from_secs(seconds), burst).unwrap())
    }

    #[test]
    fn limits_are_read_with_their_burst() {
        let key = |name: &str| format!("ingress.tak-os.org/{name}");
        let (rps, multiplier) = (key("limit-rps"), key("limit-burst-multiplier"));
        let read = |pairs: &[(&str, &str)]| {
            let (wanted, found) = read_all(pairs);
            assert!(found.is_empty(), "{found:?}");
            wanted.policy.rate_limit
        };
        assert!(read(&[]).is_none());
        assert_eq!(read(&[(&rps, "10")]).second, bucket(10.0, 1, 5.0));
        assert_eq!(read(&[(&rps, " 0.5 ")]).second, bucket(0.5, 1, 5.0));
        assert_eq!(read(&[(&rps, "10"), (&multiplier, "1")]).second, bucket(10.0, 1, 1.0));
        assert_eq!(read(&[(&rps, "10"), (&multiplier, "2.5")]).second, bucket(10.0, 1, 2.5));
        assert_eq!(read(&[(&key("limit-rpm"), "90")]).minute, bucket(90.0, 60, 5.0));
        assert_eq!(read(&[(&key("limit-connections"), "3")]).connections, NonZeroU32::new(3));
    }

    #[test]
    fn bad_values_limit_nothing_and_are_told() {
        for key in ["limit-rps", "limit-rpm", "limit-connections"] {
            for value in
                ["abc", "0", "-1", "", "1e12", "10r/s", "+1", "NaN", "inf", "1.", ".5", "1000001", "0.0"]
            {
                let (wanted, found) = read_one(key, value);
                assert!(wanted.policy.rate_limit.is_none(), "{key} {value}");
                assert_eq!((found.len(), found[0].reason), (1, Reason::InvalidAnnotation), "{key} {value}");
            }
        }
        assert!(read_one("limit-connections", "1.5").0.policy.rate_limit.is_none());
    }

    #[test]
    fn a_bad_multiplier_is_the_default() {
        for value in ["0", "x", "-1", "0.5", "10001", "", "1e1"] {
            let pairs = [
                ("ingress.tak-os.org/limit-rps", "10"),
                ("ingress.tak-os.org/limit-burst-multiplier", value),
            ];
            let (wanted, found) = read_all(&pairs);
            assert_eq!((wanted.policy.rate_limit.second, found.len()), (bucket(10.0, 1, 5.0), 1), "{value}");
        }
    }
}
