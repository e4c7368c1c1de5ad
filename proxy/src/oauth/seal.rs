//! Authenticated encryption of what the browser keeps for us.
//!
//! `base64url(version | nonce | ciphertext | tag)`, AES-256-GCM, a random nonce each time. What a value
//! is for and where it belongs (purpose, cookie, issuer, client, host) is authenticated with it and not
//! part of it, so a value of another purpose or place does not open.

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

const VERSION: u8 = 1;
const NONCE: usize = 12;
const TAG: usize = 16;

/// What a sealed value is for; part of what is authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A session.
    Session = 1,
    /// A login that has begun.
    Login = 2,
}

/// Where a sealed value belongs: a digest over cookie name, issuer, client and place.
pub type Binding = [u8; 32];

/// Seals with one key, opens with that and the one before it.
pub struct Sealer {
    current: Aes256Gcm,
    previous: Option<Aes256Gcm>,
}

impl Sealer {
    pub fn new(current: &[u8; 32], previous: Option<&[u8; 32]>) -> Self {
        let cipher = |key: &[u8; 32]| Aes256Gcm::new(key.into());
        Self { current: cipher(current), previous: previous.map(cipher) }
    }

    /// `None` only if the system has no randomness.
    pub fn seal(&self, purpose: Purpose, binding: &Binding, plain: &[u8]) -> Option<String> {
        let mut nonce = [0; NONCE];
        openssl::rand::rand_bytes(&mut nonce).ok()?;
        let aad = aad(purpose, binding);
        let sealed = self.current.encrypt(&Nonce::from(nonce), Payload { msg: plain, aad: &aad }).ok()?;
        let mut bytes = Vec::with_capacity(1 + NONCE + sealed.len());
        bytes.push(VERSION);
        bytes.extend_from_slice(&nonce);
        bytes.extend_from_slice(&sealed);
        Some(URL_SAFE_NO_PAD.encode(bytes))
    }

    /// The plain text, if the value was sealed by one of the keys for this purpose and place, and
    /// whether that was the previous key.
    pub fn open(&self, purpose: Purpose, binding: &Binding, sealed: &[u8]) -> Option<(Vec<u8>, bool)> {
        let bytes = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (version, rest) = bytes.split_first()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE>()?;
        if *version != VERSION || sealed.len() < TAG {
            return None;
        }
        let aad = aad(purpose, binding);
        let with = |cipher: &Aes256Gcm| {
            cipher.decrypt(&Nonce::from(*nonce), Payload { msg: sealed, aad: &aad }).ok()
        };
        let current = with(&self.current).map(|plain| (plain, false));
        current.or_else(|| with(self.previous.as_ref()?).map(|plain| (plain, true)))
    }
}

fn aad(purpose: Purpose, binding: &Binding) -> [u8; 34] {
    let mut aad = [0; 34];
    aad[0] = VERSION;
    aad[1] = purpose as u8;
    aad[2..].copy_from_slice(binding);
    aad
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Binding = [1; 32];
    const B: Binding = [2; 32];

    #[test]
    fn a_value_opens_with_its_key_for_its_purpose_at_its_place_alone() {
        let sealer = Sealer::new(&[7; 32], None);
        let sealed = sealer.seal(Purpose::Session, &A, b"who").unwrap();
        assert_eq!(sealer.open(Purpose::Session, &A, sealed.as_bytes()), Some((b"who".to_vec(), false)));
        assert_eq!(sealer.open(Purpose::Session, &B, sealed.as_bytes()), None);
        assert_eq!(sealer.open(Purpose::Login, &A, sealed.as_bytes()), None);
        assert_eq!(Sealer::new(&[8; 32], None).open(Purpose::Session, &A, sealed.as_bytes()), None);
        assert_ne!(sealed, sealer.seal(Purpose::Session, &A, b"who").unwrap(), "nonces are random");
    }

    #[test]
    fn the_previous_key_opens_and_does_not_seal() {
        let old = Sealer::new(&[7; 32], None).seal(Purpose::Session, &A, b"who").unwrap();
        let rotated = Sealer::new(&[8; 32], Some(&[7; 32]));
        assert_eq!(rotated.open(Purpose::Session, &A, old.as_bytes()), Some((b"who".to_vec(), true)));
        let new = rotated.seal(Purpose::Session, &A, b"who").unwrap();
        assert!(Sealer::new(&[7; 32], None).open(Purpose::Session, &A, new.as_bytes()).is_none());
    }

    #[test]
    fn every_changed_bit_and_every_cut_is_refused() {
        let sealer = Sealer::new(&[7; 32], Some(&[6; 32]));
        let sealed = sealer.seal(Purpose::Session, &A, b"alice").unwrap();
        let bytes = URL_SAFE_NO_PAD.decode(&sealed).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut forged = bytes.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            let forged = URL_SAFE_NO_PAD.encode(forged);
            assert_eq!(sealer.open(Purpose::Session, &A, forged.as_bytes()), None, "bit {bit}");
        }
        for end in 0..sealed.len() {
            assert_eq!(sealer.open(Purpose::Session, &A, &sealed.as_bytes()[..end]), None, "cut at {end}");
        }
        for text in ["", "=", "%%%", "AAAA", "é", "A\0"] {
            assert_eq!(sealer.open(Purpose::Session, &A, text.as_bytes()), None);
        }
    }
}
