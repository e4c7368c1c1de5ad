//! htpasswd files: one `user:hash` a line.

use super::{Note, Problem, value};
use crate::cluster::SecretObject;
use crate::finding::Reason;
use ingress_core::{Htpasswd, Kind, PasswordHash, ResourceRef, Scheme};
use openssl::sha::Sha256;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Costs of bcrypt that are taken: beyond, one check would take a thread for seconds.
const BCRYPT_COST: std::ops::RangeInclusive<u32> = 4..=16;
/// Most rounds of SHA-crypt, for the same reason.
const MAX_ROUNDS: u64 = 1_000_000;
/// Fewer rounds are taken as this many, by every implementation.
const MIN_ROUNDS: u64 = 1_000;
const DEFAULT_ROUNDS: u64 = 5_000;
/// Most lines of which it is told that they cannot be used.
const MAX_NOTES: usize = 8;

/// Reads key `auth`.
pub(super) fn parse(secret: &SecretObject) -> Result<(Arc<Htpasswd>, Box<[Note]>), Problem> {
    let file = value(secret, "auth")?;
    let (users, notes) = lines(file);
    let stand_in = users.values().max_by_key(|hash| hash.work).cloned().ok_or(Problem::NoUsers)?;
    let source = ResourceRef::new(Kind::Secret, secret.key.namespace.clone(), secret.key.name.clone());
    let mut sha = Sha256::new();
    for part in [source.namespace.as_bytes(), source.name.as_bytes(), file] {
        sha.update(&(part.len() as u64).to_be_bytes());
        sha.update(part);
    }
    Ok((Arc::new(Htpasswd { users, stand_in, source, fingerprint: sha.finish() }), notes))
}

/// The users, and what is wrong with other lines. Of two lines for one user the first counts, also
/// where it cannot be used.
fn lines(file: &[u8]) -> (BTreeMap<Box<[u8]>, PasswordHash>, Box<[Note]>) {
    let (mut users, mut notes) = (BTreeMap::new(), Vec::new());
    let mut seen = HashSet::new();
    let file = file.strip_prefix(b"\xef\xbb\xbf").unwrap_or(file);
    for (number, line) in (1..).zip(file.split(|b| *b == b'\n')) {
        let line = line.trim_ascii_end();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let mut fields = line.splitn(3, |b| *b == b':');
        let (user, field) = (fields.next().unwrap_or_default(), fields.next());
        let hash = match field {
            _ if user.is_empty() => Err("it names no user"),
            None => Err("it has no colon"),
            Some(field) => {
                if !seen.insert(user) {
                    continue;
                }
                hash(field)
            }
        };
        match hash {
            Ok(hash) => drop(users.insert(user.into(), hash)),
            Err(why) if notes.len() < MAX_NOTES => {
                let message = format!("line {number} of key auth does not count: {why}");
                notes.push((Reason::UnusablePassword, message.into()));
            }
            Err(_) => {}
        }
    }
    (users, notes.into())
}

/// Reads one hash; only what a check could really match is taken.
fn hash(field: &[u8]) -> Result<PasswordHash, &'static str> {
    const UNKNOWN: &str = "its password is not a bcrypt, $apr1$, $5$, $6$ or {SHA} hash";
    const DAMAGED: &str = "its hash is damaged";
    let text = std::str::from_utf8(field).map_err(|_| UNKNOWN)?;
    // Work in microseconds, roughly: it only ranks.
    let (scheme, work) =
        if let Some(rest) = ["$2a$", "$2b$", "$2y$"].iter().find_map(|p| text.strip_prefix(p)) {
            let (cost, digest) = rest.split_once('$').ok_or(DAMAGED)?;
            if cost.len() != 2 || !cost.bytes().all(|b| b.is_ascii_digit()) || !crypt64(digest, 53..=53) {
                return Err(DAMAGED);
            }
            let cost: u32 = cost.parse().map_err(|_| DAMAGED)?;
            if !BCRYPT_COST.contains(&cost) {
                return Err("the cost of its bcrypt hash is not between 4 and 16");
            }
            (Scheme::Bcrypt, 60 << cost)
        } else if let Some(rest) = text.strip_prefix("$apr1$") {
            let (salt, digest) = rest.split_once('$').ok_or(DAMAGED)?;
            if !crypt64(salt, 0..=8) || !crypt64(digest, 22..=22) {
                return Err(DAMAGED);
            }
            (Scheme::Apr1, 300)
        } else if let Some(rest) = text.strip_prefix("$5$") {
            (Scheme::Sha256Crypt, sha_crypt(rest, 43)? / 2)
        } else if let Some(rest) = text.strip_prefix("$6$") {
            (Scheme::Sha512Crypt, sha_crypt(rest, 86)? / 2)
        } else if let Some(digest) = text.strip_prefix("{SHA}") {
            let bytes = openssl::base64::decode_block(digest).map_err(|_| DAMAGED)?;
            if bytes.len() != 20 {
                return Err(DAMAGED);
            }
            (Scheme::Sha1, 1)
        } else {
            return Err(UNKNOWN);
        };
    Ok(PasswordHash { scheme, work, text: text.into() })
}

/// `[rounds=N$]salt$digest`; the rounds.
fn sha_crypt(rest: &str, digest_len: usize) -> Result<u64, &'static str> {
    const DAMAGED: &str = "its hash is damaged";
    let (rounds, rest) = match rest.strip_prefix("rounds=") {
        Some(rest) => {
            let (rounds, rest) = rest.split_once('$').ok_or(DAMAGED)?;
            let rounds: u64 = rounds.parse().map_err(|_| DAMAGED)?;
            (rounds.max(MIN_ROUNDS), rest)
        }
        None => (DEFAULT_ROUNDS, rest),
    };
    if rounds > MAX_ROUNDS {
        return Err("its hash has more than 1000000 rounds");
    }
    let (salt, digest) = rest.split_once('$').ok_or(DAMAGED)?;
    if !crypt64(salt, 0..=16) || !crypt64(digest, digest_len..=digest_len) {
        return Err(DAMAGED);
    }
    Ok(rounds)
}

/// Text in the alphabet of crypt(3).
fn crypt64(text: &str, len: std::ops::RangeInclusive<usize>) -> bool {
    len.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BCRYPT: &str = "$2y$05$abcdefghijklmnopqrstuuDKhI9uQlWCdDJGGFhUAx1wMy3K3Gkri";

    fn users(file: &[u8]) -> (Vec<String>, usize) {
        let (users, notes) = lines(file);
        (users.keys().map(|user| String::from_utf8_lossy(user).into_owned()).collect(), notes.len())
    }

    #[test]
    fn bom_comments_blanks_line_ends_and_trailing_spaces_do_not_count() {
        let file = format!(
            "\u{feff}# comment\r\nalice:{BCRYPT}\r\n\r\n  \r\nbob:{BCRYPT} \ncarol:{BCRYPT}:Carol C."
        );
        assert_eq!(users(file.as_bytes()), (vec!["alice".into(), "bob".into(), "carol".into()], 0));
    }

    #[test]
    fn the_first_line_of_a_user_counts_even_if_it_cannot_be_used() {
        let other = BCRYPT.replace("2y", "2b");
        let (found, notes) = lines(format!("a:{BCRYPT}\na:{other}\nb:plain\nb:{BCRYPT}\n").as_bytes());
        assert_eq!(found.len(), 1);
        assert_eq!(&*found[&b"a"[..]].text, BCRYPT);
        assert_eq!(notes.len(), 1);
    }

    #[test]
    fn every_scheme_is_read() {
        let long = "a".repeat(86);
        for (field, scheme) in [
            (BCRYPT.to_owned(), Scheme::Bcrypt),
            (BCRYPT.replace("2y", "2a"), Scheme::Bcrypt),
            (BCRYPT.replace("$05", "$16"), Scheme::Bcrypt),
            ("$apr1$salt$abcdefghijklmnopqrstuv".into(), Scheme::Apr1),
            (format!("$5$salt${}", &long[..43]), Scheme::Sha256Crypt),
            (format!("$5$rounds=10000$salt${}", &long[..43]), Scheme::Sha256Crypt),
            (format!("$6$salt${long}"), Scheme::Sha512Crypt),
            ("{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=".into(), Scheme::Sha1),
        ] {
            assert_eq!(hash(field.as_bytes()).map(|h| h.scheme), Ok(scheme), "{field}");
        }
    }

    #[test]
    fn what_cannot_be_used_costs_that_user_alone() {
        for field in [
            "secret",
            "",
            "rqXexS6ZhobKA",
            "$1$salt$abcdefghijklmnopqrstuv",
            "{SSHA}abc",
            "{PLAIN}x",
            "$2y$05$short",
            "$2x$05$abcdefghijklmnopqrstuuDKhI9uQlWCdDJGGFhUAx1wMy3K3Gkri",
            "$2y$5$x",
            "$2y$",
            "$apr1$",
            "$apr1$toolongsalt$abcdefghijklmnopqrstuv",
            "$5$salt$x",
            "$6$rounds=x$salt$y",
            "{SHA}",
            "{SHA}!!!!",
            "{SHA}W6ph5Mm5",
            "*",
            "!",
            "\u{e4}",
        ] {
            let file = format!("good:{BCRYPT}\nbad:{field}\n");
            assert_eq!(users(file.as_bytes()), (vec!["good".into()], 1), "{field}");
        }
        for cost in ["00", "03", "17", "31", "99", "-1", "+5"] {
            assert!(hash(BCRYPT.replace("$05", &format!("${cost}")).as_bytes()).is_err(), "{cost}");
        }
        assert!(hash(format!("$6$rounds=1000001$salt${}", "a".repeat(86)).as_bytes()).is_err());
        assert_eq!(users(format!(":{BCRYPT}\nnocolon\n\u{0}\n").as_bytes()), (vec![], 3));
    }

    #[test]
    fn a_file_of_mistakes_is_told_in_a_few_words() {
        let (found, notes) = lines("x:y\n".repeat(1000).as_bytes());
        assert_eq!((found.len(), notes.len()), (0, 1));
        let many: String = (0..1000).map(|i| format!("u{i}:plain\n")).collect();
        let (_, notes) = lines(many.as_bytes());
        assert_eq!(notes.len(), MAX_NOTES);
        assert!(notes.iter().all(|(_, m)| !m.contains("plain")), "{notes:?}");
    }

    #[test]
    fn the_costliest_hash_stands_in() {
        let costly = BCRYPT.replace("$05", "$12");
        let (found, _) =
            lines(format!("a:{{SHA}}W6ph5Mm5Pz8GgiULbPgzG37mj9g=\nb:{BCRYPT}\nc:{costly}\n").as_bytes());
        assert_eq!(&*found.values().max_by_key(|h| h.work).unwrap().text, costly);
    }
}
