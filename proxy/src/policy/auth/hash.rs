//! Checks a password against one hash. Takes as long as the hash was made to take, so never on a
//! thread that serves.

use ingress_core::{PasswordHash, Scheme};
use openssl::hash::{Hasher, MessageDigest};
use sha_crypt::{PasswordVerifier, ShaCrypt};

/// Whether the password is the one of the hash.
pub fn matches(hash: &PasswordHash, password: &[u8]) -> bool {
    let text = &*hash.text;
    match hash.scheme {
        // bcrypt itself looks at the first 72 octets alone.
        Scheme::Bcrypt => bcrypt::verify(password, text).unwrap_or(false),
        Scheme::Sha256Crypt => ShaCrypt::SHA256.verify_password(password, text).is_ok(),
        Scheme::Sha512Crypt => ShaCrypt::SHA512.verify_password(password, text).is_ok(),
        Scheme::Apr1 => text
            .strip_prefix("$apr1$")
            .and_then(|rest| rest.split_once('$'))
            .and_then(|(salt, digest)| Some(same(&apr1(password, salt.as_bytes())?, digest.as_bytes())))
            .unwrap_or(false),
        Scheme::Sha1 => text
            .strip_prefix("{SHA}")
            .map(|digest| {
                same(
                    openssl::base64::encode_block(&openssl::sha::sha1(password)).as_bytes(),
                    digest.as_bytes(),
                )
            })
            .unwrap_or(false),
    }
}

/// Compares in a time that tells nothing of where the difference is.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && openssl::memcmp::eq(a, b)
}

/// Apache's variant of MD5-crypt: a thousand rounds of MD5 over password, salt and the last digest.
fn apr1(password: &[u8], salt: &[u8]) -> Option<[u8; 22]> {
    let md5 = |parts: &[&[u8]]| -> Option<[u8; 16]> {
        let mut hasher = Hasher::new(MessageDigest::md5()).ok()?;
        parts.iter().try_for_each(|part| hasher.update(part)).ok()?;
        hasher.finish().ok()?.as_ref().try_into().ok()
    };
    let alternate = md5(&[password, salt, password])?;
    let mut first: Vec<&[u8]> = vec![password, b"$apr1$", salt];
    let mut left = password.len();
    while left > 0 {
        first.push(&alternate[..left.min(16)]);
        left = left.saturating_sub(16);
    }
    let mut bits = password.len();
    while bits > 0 {
        // An odd quirk of the original: the first octet of the password, not of a digest.
        first.push(if bits & 1 == 1 { &[0] } else { &password[..1] });
        bits >>= 1;
    }
    let mut digest = md5(&first)?;
    for round in 0..1000 {
        let last = digest;
        let (one, other): (&[u8], &[u8]) = if round & 1 == 1 { (password, &last) } else { (&last, password) };
        let salt = if round % 3 != 0 { salt } else { b"" };
        let again = if round % 7 != 0 { password } else { b"" };
        digest = md5(&[one, salt, again, other])?;
    }
    // Three octets make four characters, least significant bits first.
    const ORDER: [[usize; 3]; 5] = [[0, 6, 12], [1, 7, 13], [2, 8, 14], [3, 9, 15], [4, 10, 5]];
    let mut out = [0; 22];
    for (chunk, [a, b, c]) in out.chunks_mut(4).zip(ORDER) {
        let value = u32::from(digest[a]) << 16 | u32::from(digest[b]) << 8 | u32::from(digest[c]);
        to64(chunk, value);
    }
    to64(&mut out[20..], digest[11].into());
    Some(out)
}

fn to64(out: &mut [u8], mut value: u32) {
    const DIGITS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    for place in out {
        *place = DIGITS[(value & 63) as usize];
        value >>= 6;
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn hash(scheme: Scheme, text: &str) -> PasswordHash {
        PasswordHash { scheme, work: 1, text: text.into() }
    }

    /// Made by htpasswd and `openssl passwd`.
    #[test]
    fn hashes_of_other_programs_match_their_password_alone() {
        for (scheme, text, password) in [
            (Scheme::Apr1, "$apr1$abcdefgh$tZCjPu7axu9jp1Xjq4cw21", &b"pa:ss word"[..]),
            (Scheme::Apr1, "$apr1$ab$MW8Wizufu9hz465GKNNrn.", &b"a"[..]),
            (
                Scheme::Apr1,
                "$apr1$12345678$wkw4EwgEN0NDnwrCI9VBv/",
                &b"a long password of more than sixteen octets"[..],
            ),
            (
                Scheme::Sha256Crypt,
                "$5$saltstring$EX.D7ZKn7uBuimojVC560PqHl/rBSAN0kIsIJmP/G/2",
                &b"pa:ss word"[..],
            ),
            (
                Scheme::Sha256Crypt,
                "$5$rounds=1000$x$HFce4N49CUAjxX.T/Mw5cAzizuovryGcXoMgvQgsJr3",
                &b"pa:ss word"[..],
            ),
            (
                Scheme::Sha256Crypt,
                "$5$rounds=10000$saltstringsaltst$yA36is0vNHdAq1d3fO82qsgmjOpfUsas3r30jAKXbM4",
                &b"pa:ss word"[..],
            ),
            (
                Scheme::Sha512Crypt,
                "$6$saltstring$4viJBC7HqBHiSHzWRCJV/dIYsK/tPJedu28vcGjQqQ8eZ0zAQR6MiblS49vZ.bU6en/hlYM75Jn6ujUYxtqLU/",
                &b"pa:ss word"[..],
            ),
            (
                Scheme::Sha512Crypt,
                "$6$rounds=1234$short$kLwW22KCdIOa.g2lkyHIINrNZdzgZPXpXRTzVyBLYExFcyZoxqbTRnhZv.ebuhr5DZfKPAIzcUojMjCgC7NOC/",
                &b"pa:ss word"[..],
            ),
            (Scheme::Sha1, "{SHA}wLRj6V1KMJOvfvMeovciA0CKWSg=", &b"pa:ss word"[..]),
            (
                Scheme::Bcrypt,
                "$2b$05$cxt/LnrBRHx5OHnjGHc/zOcsnw2NNPoNBqS9mPrIFOirmvrbluHOi",
                &b"pa:ss word"[..],
            ),
        ] {
            let hash = hash(scheme, text);
            assert!(matches(&hash, password), "{text}");
            let mut other = password.to_vec();
            other.push(b'x');
            if other.len() <= 72 {
                assert!(!matches(&hash, &other), "{text}");
            }
            assert!(!matches(&hash, b""), "{text}");
        }
    }

    #[test]
    fn bcrypt_prefixes_are_one_algorithm_and_long_passwords_no_accident() {
        let made = bcrypt::hash("p\u{e4}:ss", 4).unwrap();
        for prefix in ["$2a$", "$2b$", "$2y$"] {
            let text = made.replacen("$2b$", prefix, 1);
            assert!(matches(&hash(Scheme::Bcrypt, &text), "p\u{e4}:ss".as_bytes()), "{text}");
            assert!(!matches(&hash(Scheme::Bcrypt, &text), b"pa:ss"), "{text}");
        }
        let long = [b'a'; 80];
        let made = bcrypt::hash(long, 4).unwrap();
        assert!(matches(&hash(Scheme::Bcrypt, &made), &long));
    }

    #[test]
    fn what_is_no_hash_matches_nothing_and_breaks_nothing() {
        for scheme in [Scheme::Bcrypt, Scheme::Apr1, Scheme::Sha256Crypt, Scheme::Sha512Crypt, Scheme::Sha1] {
            for text in
                ["", "$", "$$$$", "$apr1$", "$apr1$x$", "$5$x$y", "$6$rounds=9$x$y", "{SHA}", "$2y$99$x"]
            {
                for password in [&b""[..], b"x", &[0xff; 100]] {
                    assert!(!matches(&hash(scheme, text), password), "{scheme:?} {text}");
                }
            }
        }
    }
}
