//! JSON Web Tokens (RFC 7515, 7519): reading one, and checking its signature with a provider's key.
//!
//! The algorithm is what the key can do and the fixed list allows; the token only says which of them
//! it claims. `none` and the HMAC family do not exist here.

use super::claims::Claims;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::ecdsa::EcdsaSig;
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{Id, PKey, Public};
use openssl::rsa::{Padding, Rsa};
use openssl::sign::{RsaPssSaltlen, Verifier};
use serde_json::Value;

/// Longest token that is read.
pub const MAX_TOKEN: usize = 32 << 10;
/// How far clocks may be apart, in seconds.
pub const SKEW: u64 = 30;
/// Keys of one provider that are read.
const MAX_KEYS: usize = 100;
/// RSA keys below this many bits are not used (RFC 7518 section 3.3).
const MIN_RSA_BITS: i32 = 2048;

/// The signature algorithms there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    EdDsa,
}

impl Algorithm {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => Self::Rs256,
            "RS384" => Self::Rs384,
            "RS512" => Self::Rs512,
            "PS256" => Self::Ps256,
            "PS384" => Self::Ps384,
            "PS512" => Self::Ps512,
            "ES256" => Self::Es256,
            "ES384" => Self::Es384,
            "EdDSA" | "Ed25519" => Self::EdDsa,
            _ => return None,
        })
    }

    fn digest(self) -> MessageDigest {
        match self {
            Self::Rs384 | Self::Ps384 | Self::Es384 => MessageDigest::sha384(),
            Self::Rs512 | Self::Ps512 => MessageDigest::sha512(),
            _ => MessageDigest::sha256(),
        }
    }
}

/// What a key is, which decides what it can check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Rsa,
    P256,
    P384,
    Ed25519,
}

impl Family {
    fn does(self, algorithm: Algorithm) -> bool {
        use Algorithm::*;
        match self {
            Family::Rsa => matches!(algorithm, Rs256 | Rs384 | Rs512 | Ps256 | Ps384 | Ps512),
            Family::P256 => algorithm == Es256,
            Family::P384 => algorithm == Es384,
            Family::Ed25519 => algorithm == EdDsa,
        }
    }
}

/// One key of a provider.
pub struct Key {
    id: Option<Box<str>>,
    /// The one algorithm that the provider allows it for.
    only: Option<Algorithm>,
    family: Family,
    key: PKey<Public>,
}

/// The signing keys of a JWKS document (RFC 7517); those of other kinds and uses are left out.
pub fn keys(document: &[u8]) -> Option<Vec<Key>> {
    let document: Value = serde_json::from_slice(document).ok()?;
    let all = document.get("keys")?.as_array()?;
    Some(all.iter().take(MAX_KEYS).filter_map(|jwk| key(jwk).ok().flatten()).collect())
}

fn key(jwk: &Value) -> Result<Option<Key>, ErrorStack> {
    let text = |name: &str| jwk.get(name).and_then(Value::as_str);
    let bytes = |name: &str| URL_SAFE_NO_PAD.decode(text(name)?.trim_end_matches('=')).ok();
    let number = |name: &str| bytes(name).map(|b| BigNum::from_slice(&b));
    if text("use").is_some_and(|usage| usage != "sig") {
        return Ok(None);
    }
    let only = match text("alg").map(Algorithm::named) {
        Some(None) => return Ok(None),
        Some(algorithm) => algorithm,
        None => None,
    };
    let (family, key) = match (text("kty"), text("crv")) {
        (Some("RSA"), _) => {
            let (Some(n), Some(e)) = (number("n"), number("e")) else { return Ok(None) };
            let n = n?;
            if n.num_bits() < MIN_RSA_BITS {
                return Ok(None);
            }
            (Family::Rsa, PKey::from_rsa(Rsa::from_public_components(n, e?)?)?)
        }
        (Some("EC"), Some(curve @ ("P-256" | "P-384"))) => {
            let (Some(x), Some(y)) = (number("x"), number("y")) else { return Ok(None) };
            let (family, nid) = match curve {
                "P-256" => (Family::P256, Nid::X9_62_PRIME256V1),
                _ => (Family::P384, Nid::SECP384R1),
            };
            let group = EcGroup::from_curve_name(nid)?;
            let (x, y) = (x?, y?);
            (family, PKey::from_ec_key(EcKey::from_public_key_affine_coordinates(&group, &x, &y)?)?)
        }
        (Some("OKP"), Some("Ed25519")) => {
            let Some(x) = bytes("x") else { return Ok(None) };
            (Family::Ed25519, PKey::public_key_from_raw_bytes(&x, Id::ED25519)?)
        }
        _ => return Ok(None),
    };
    let id = text("kid").map(Into::into);
    Ok(only.is_none_or(|algorithm| family.does(algorithm)).then_some(Key { id, only, family, key }))
}

/// Why a token is none. Says nothing of what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidToken {
    #[error("it is not a JWT")]
    Syntax,
    #[error("its algorithm is not among RS*, PS*, ES256, ES384, EdDSA")]
    Algorithm,
    #[error("it is signed with a key that the provider does not publish")]
    UnknownKey,
    #[error("its signature is wrong")]
    Signature,
    #[error("its iss is another issuer")]
    Issuer,
    #[error("its aud is somebody else")]
    Audience,
    #[error("its azp is another client")]
    AuthorizedParty,
    #[error("it has expired, or has no exp")]
    Expired,
    #[error("it is not valid yet")]
    NotYet,
    #[error("its nonce is not that of this login")]
    Nonce,
    #[error("it has no sub")]
    Subject,
    #[error("the provider calls it inactive")]
    Inactive,
}

/// A token that was taken apart and not yet believed.
pub struct Token<'a> {
    algorithm: Algorithm,
    id: Option<String>,
    signed: &'a [u8],
    signature: Vec<u8>,
    payload: Vec<u8>,
}

/// Whether a text has the shape of a JWT: an opaque token has not.
pub fn looks_like_one(token: &str) -> bool {
    let header = token.split('.').next().and_then(|h| URL_SAFE_NO_PAD.decode(h).ok());
    token.split('.').count() == 3 && header.is_some_and(|header| header.first() == Some(&b'{'))
}

impl<'a> Token<'a> {
    pub fn parse(token: &'a str) -> Result<Self, InvalidToken> {
        if token.len() > MAX_TOKEN {
            return Err(InvalidToken::Syntax);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(InvalidToken::Syntax)?;
        let (header, payload) = signed.split_once('.').ok_or(InvalidToken::Syntax)?;
        let bytes = |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|_| InvalidToken::Syntax);
        let header: Claims = serde_json::from_slice(&bytes(header)?).map_err(|_| InvalidToken::Syntax)?;
        // an extension that must be understood, and is not (RFC 7515 section 4.1.11)
        if header.contains_key("crit") {
            return Err(InvalidToken::Syntax);
        }
        let algorithm = header.get("alg").and_then(Value::as_str).and_then(Algorithm::named);
        Ok(Self {
            algorithm: algorithm.ok_or(InvalidToken::Algorithm)?,
            id: match header.get("kid") {
                None => None,
                Some(Value::String(id)) => Some(id.clone()),
                Some(_) => return Err(InvalidToken::Syntax),
            },
            signed: signed.as_bytes(),
            signature: bytes(signature)?,
            payload: bytes(payload)?,
        })
    }

    fn fits(&self, key: &Key) -> bool {
        key.family.does(self.algorithm)
            && key.only.is_none_or(|only| only == self.algorithm)
            && self.id.as_deref().is_none_or(|id| key.id.as_deref() == Some(id))
    }

    /// Whether one of these keys may be the one that signed it.
    pub fn knows(&self, keys: &[Key]) -> bool {
        keys.iter().any(|key| self.fits(key))
    }

    /// The claims, if one of these keys has signed them.
    pub fn verify(&self, keys: &[Key]) -> Result<Claims, InvalidToken> {
        let mut why = InvalidToken::UnknownKey;
        for key in keys.iter().filter(|key| self.fits(key)) {
            if self.signed_by(key).unwrap_or(false) {
                return serde_json::from_slice(&self.payload).map_err(|_| InvalidToken::Syntax);
            }
            why = InvalidToken::Signature;
        }
        Err(why)
    }

    fn signed_by(&self, key: &Key) -> Result<bool, ErrorStack> {
        use Algorithm::*;
        let der;
        let mut verifier = match self.algorithm {
            EdDsa => {
                return Verifier::new_without_digest(&key.key)?.verify_oneshot(&self.signature, self.signed);
            }
            algorithm => Verifier::new(algorithm.digest(), &key.key)?,
        };
        let signature = match self.algorithm {
            Ps256 | Ps384 | Ps512 => {
                verifier.set_rsa_padding(Padding::PKCS1_PSS)?;
                verifier.set_rsa_mgf1_md(self.algorithm.digest())?;
                verifier.set_rsa_pss_saltlen(RsaPssSaltlen::DIGEST_LENGTH)?;
                &self.signature
            }
            Es256 | Es384 => {
                // r and s side by side (RFC 7518 section 3.4)
                let half = if self.algorithm == Es256 { 32 } else { 48 };
                if self.signature.len() != 2 * half {
                    return Ok(false);
                }
                let (r, s) = self.signature.split_at(half);
                let pair = EcdsaSig::from_private_components(BigNum::from_slice(r)?, BigNum::from_slice(s)?)?;
                der = pair.to_der()?;
                &der
            }
            _ => &self.signature,
        };
        verifier.verify_oneshot(signature, self.signed)
    }
}

/// `exp` and `nbf`, with [`SKEW`]; returns `exp`.
pub fn check_times(claims: &Claims, now: u64) -> Result<u64, InvalidToken> {
    // NumericDate may have a fraction (RFC 7519 section 2)
    let time = |name: &str| match claims.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_f64().map(|t| Some(t.max(0.0) as u64)).ok_or(InvalidToken::Syntax),
    };
    let expires = time("exp")?.ok_or(InvalidToken::Expired)?;
    if expires.saturating_add(SKEW) <= now {
        return Err(InvalidToken::Expired);
    }
    if time("nbf")?.is_some_and(|t| t > now.saturating_add(SKEW)) {
        return Err(InvalidToken::NotYet);
    }
    Ok(expires)
}

/// Whether one of the audiences is among those wanted.
pub fn audience_is(claims: &Claims, wanted: &[Box<str>]) -> bool {
    audiences(claims).any(|audience| wanted.iter().any(|w| **w == *audience))
}

/// The audiences: one text or a list.
pub fn audiences(claims: &Claims) -> impl Iterator<Item = &str> {
    let aud = claims.get("aud");
    let many = aud.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    aud.and_then(Value::as_str).into_iter().chain(many)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use openssl::pkey::Private;
    use openssl::sign::Signer;
    use serde_json::json;

    pub struct Signing {
        pub key: PKey<Private>,
        pub alg: &'static str,
        pub kid: &'static str,
    }

    impl Signing {
        pub fn new(alg: &'static str, kid: &'static str) -> Self {
            let curve = |nid| {
                let group = EcGroup::from_curve_name(nid).unwrap();
                PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap()
            };
            let key = match alg {
                "ES256" => curve(Nid::X9_62_PRIME256V1),
                "ES384" => curve(Nid::SECP384R1),
                "EdDSA" => PKey::generate_ed25519().unwrap(),
                _ => PKey::from_rsa(Rsa::generate(2048).unwrap()).unwrap(),
            };
            Self { key, alg, kid }
        }

        pub fn jwk(&self) -> Value {
            let b64 = |bytes: Vec<u8>| URL_SAFE_NO_PAD.encode(bytes);
            let mut jwk = match self.alg {
                "ES256" | "ES384" => {
                    let ec = self.key.ec_key().unwrap();
                    let (mut x, mut y) = (BigNum::new().unwrap(), BigNum::new().unwrap());
                    let mut ctx = openssl::bn::BigNumContext::new().unwrap();
                    ec.public_key().affine_coordinates(ec.group(), &mut x, &mut y, &mut ctx).unwrap();
                    let crv = if self.alg == "ES256" { "P-256" } else { "P-384" };
                    json!({"kty": "EC", "crv": crv, "x": b64(x.to_vec()), "y": b64(y.to_vec())})
                }
                "EdDSA" => {
                    json!({"kty": "OKP", "crv": "Ed25519", "x": b64(self.key.raw_public_key().unwrap())})
                }
                _ => {
                    let rsa = self.key.rsa().unwrap();
                    json!({"kty": "RSA", "n": b64(rsa.n().to_vec()), "e": b64(rsa.e().to_vec())})
                }
            };
            jwk["kid"] = self.kid.into();
            jwk
        }

        pub fn sign(&self, claims: &Value) -> String {
            self.sign_as(&json!({"alg": self.alg, "kid": self.kid, "typ": "JWT"}), claims)
        }

        pub fn sign_as(&self, header: &Value, claims: &Value) -> String {
            let signed = format!(
                "{}.{}",
                URL_SAFE_NO_PAD.encode(header.to_string()),
                URL_SAFE_NO_PAD.encode(claims.to_string())
            );
            let algorithm = Algorithm::named(self.alg).unwrap();
            let signature = match self.alg {
                "EdDSA" => {
                    let mut signer = Signer::new_without_digest(&self.key).unwrap();
                    signer.sign_oneshot_to_vec(signed.as_bytes()).unwrap()
                }
                alg => {
                    let mut signer = Signer::new(algorithm.digest(), &self.key).unwrap();
                    if alg.starts_with("PS") {
                        signer.set_rsa_padding(Padding::PKCS1_PSS).unwrap();
                        signer.set_rsa_pss_saltlen(RsaPssSaltlen::DIGEST_LENGTH).unwrap();
                    }
                    let raw = signer.sign_oneshot_to_vec(signed.as_bytes()).unwrap();
                    if alg.starts_with("ES") {
                        let half = if alg == "ES256" { 32 } else { 48 };
                        let pair = EcdsaSig::from_der(&raw).unwrap();
                        let mut both = pair.r().to_vec_padded(half).unwrap();
                        both.extend(pair.s().to_vec_padded(half).unwrap());
                        both
                    } else {
                        raw
                    }
                }
            };
            format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
        }
    }

    fn published(all: &[&Signing]) -> Vec<Key> {
        let document = json!({"keys": all.iter().map(|s| s.jwk()).collect::<Vec<_>>()});
        keys(document.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn every_listed_algorithm_verifies_and_a_changed_token_does_not() {
        for alg in ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"] {
            let signing = Signing::new(alg, "k");
            let keys = published(&[&signing]);
            let token = signing.sign(&json!({"sub": "alice"}));
            let claims = Token::parse(&token).unwrap().verify(&keys);
            assert_eq!(claims.unwrap()["sub"], "alice", "{alg}");
            let (head, tail) = token.split_once('.').unwrap();
            let (_, signature) = tail.split_once('.').unwrap();
            let forged = format!("{head}.{}.{signature}", URL_SAFE_NO_PAD.encode("{\"sub\":\"root\"}"));
            assert_eq!(
                Token::parse(&forged).unwrap().verify(&keys).err(),
                Some(InvalidToken::Signature),
                "{alg}"
            );
            let other = published(&[&Signing::new(alg, "k")]);
            assert_eq!(Token::parse(&token).unwrap().verify(&other).err(), Some(InvalidToken::Signature));
        }
    }

    #[test]
    fn the_token_does_not_choose_how_it_is_checked() {
        let rsa = Signing::new("RS256", "k");
        let keys = published(&[&rsa]);
        let claims = json!({"sub": "root"});
        for alg in ["none", "None", "nOnE", "", "HS256", "HS384", "HS512", "ES512", "RSA1_5", "dir"] {
            let header = json!({"alg": alg, "kid": "k"});
            assert_eq!(
                Token::parse(&rsa.sign_as(&header, &claims)).err(),
                Some(InvalidToken::Algorithm),
                "{alg}"
            );
        }
        // HMAC with the public key as its secret, called RS256
        let pem = rsa.key.public_key_to_pem().unwrap();
        let signed = format!(
            "{}.{}",
            URL_SAFE_NO_PAD.encode(json!({"alg": "RS256", "kid": "k"}).to_string()),
            URL_SAFE_NO_PAD.encode(claims.to_string())
        );
        let hmac = PKey::hmac(&pem).unwrap();
        let mac = Signer::new(MessageDigest::sha256(), &hmac)
            .unwrap()
            .sign_oneshot_to_vec(signed.as_bytes())
            .unwrap();
        let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mac));
        assert_eq!(Token::parse(&token).unwrap().verify(&keys).err(), Some(InvalidToken::Signature));
        // an RSA key checks no elliptic signature, and a key that is for one algorithm no other
        let header = json!({"alg": "ES256", "kid": "k"});
        let token = rsa.sign_as(&header, &claims);
        assert_eq!(Token::parse(&token).unwrap().verify(&keys).err(), Some(InvalidToken::UnknownKey));
        let mut jwk = rsa.jwk();
        jwk["alg"] = "PS256".into();
        let strict = super::keys(json!({"keys": [jwk]}).to_string().as_bytes()).unwrap();
        assert!(!Token::parse(&rsa.sign(&claims)).unwrap().knows(&strict));
        let crit = rsa.sign_as(&json!({"alg": "RS256", "kid": "k", "crit": ["b64"]}), &claims);
        assert_eq!(Token::parse(&crit).err(), Some(InvalidToken::Syntax));
    }

    #[test]
    fn keys_are_found_by_id_and_without_one_by_kind() {
        let (a, b) = (Signing::new("RS256", "a"), Signing::new("RS256", "b"));
        let keys = published(&[&a, &b]);
        let claims = json!({"sub": "x"});
        assert!(Token::parse(&b.sign(&claims)).unwrap().verify(&keys).is_ok());
        let anonymous = b.sign_as(&json!({"alg": "RS256"}), &claims);
        assert!(Token::parse(&anonymous).unwrap().verify(&keys).is_ok());
        let unknown = b.sign_as(&json!({"alg": "RS256", "kid": "c"}), &claims);
        assert_eq!(Token::parse(&unknown).unwrap().verify(&keys).err(), Some(InvalidToken::UnknownKey));
    }

    #[test]
    fn unusable_keys_are_left_out() {
        let small =
            Signing { key: PKey::from_rsa(Rsa::generate(1024).unwrap()).unwrap(), alg: "RS256", kid: "s" };
        let good = Signing::new("RS256", "g");
        let mut encryption = good.jwk();
        encryption["use"] = "enc".into();
        let mut hmac = good.jwk();
        hmac["alg"] = "HS256".into();
        let document = json!({"keys": [
            small.jwk(), encryption, hmac, {"kty": "oct", "k": "AAAA"}, {"kty": "RSA"}, 7, null,
            {"kty": "EC", "crv": "P-256", "x": "AAAA", "y": "AAAA"},
            {"kty": "OKP", "crv": "Ed25519", "x": "AAAA"}, good.jwk()
        ]});
        let keys = keys(document.to_string().as_bytes()).unwrap();
        assert_eq!(keys.iter().map(|k| k.id.as_deref()).collect::<Vec<_>>(), [Some("g")]);
        for bad in ["", "[]", "{}", "{\"keys\":7}"] {
            assert!(super::keys(bad.as_bytes()).is_none(), "{bad}");
        }
    }

    #[test]
    fn times_have_thirty_seconds_of_patience() {
        let at = |claims: Value, now| check_times(claims.as_object().unwrap(), now);
        assert_eq!(at(json!({"exp": 1000}), 1029), Ok(1000));
        assert_eq!(at(json!({"exp": 1000}), 1030), Err(InvalidToken::Expired));
        assert_eq!(at(json!({"exp": 1000.9}), 1029), Ok(1000));
        assert_eq!(at(json!({}), 1), Err(InvalidToken::Expired));
        assert_eq!(at(json!({"exp": "1000"}), 1), Err(InvalidToken::Syntax));
        assert_eq!(at(json!({"exp": 9e18, "nbf": 130}), 100), Ok(9_000_000_000_000_000_000));
        assert_eq!(at(json!({"exp": 1000, "nbf": 131}), 100), Err(InvalidToken::NotYet));
    }

    #[test]
    fn what_is_no_token_is_refused_without_panic() {
        for text in
            ["", ".", "..", "a.b.c", "e30.e30.", "e30.e30.e30.e30", "\u{e4}.\u{e4}.\u{e4}", "eyJ.eyJ.x"]
        {
            assert!(Token::parse(text).is_err(), "{text}");
        }
        assert!(looks_like_one("e30.e30.e30") && !looks_like_one("opaque") && !looks_like_one("a.b.c"));
    }
}
