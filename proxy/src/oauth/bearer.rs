//! Bearer tokens (RFC 6750): JWTs by the provider's keys, opaque ones by introspection.

use super::jwt::{self, InvalidToken};
use super::provider::ProviderError;
use super::session::Session;
use super::{Opened, RelyingParty, claims};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use ingress_core::OAuthPolicy;
use serde_json::Value;
use std::sync::Arc;

/// A JWT that was checked is checked again after this many seconds.
const CHECKED: u64 = 60;
/// What introspection said counts for this many seconds.
const INTROSPECTED: u64 = 30;
/// That a token is inactive counts for this many seconds.
const INACTIVE: u64 = 10;
/// Introspections at once.
pub const MAX_INTROSPECTING: usize = 64;

/// Why a bearer token does not let anybody pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BearerError {
    Invalid(InvalidToken),
    Provider(ProviderError),
    /// Too many introspections at once.
    Busy,
}

impl From<ProviderError> for BearerError {
    fn from(problem: ProviderError) -> Self {
        match problem {
            ProviderError::Token(why) => Self::Invalid(why),
            other => Self::Provider(other),
        }
    }
}

impl From<InvalidToken> for BearerError {
    fn from(why: InvalidToken) -> Self {
        Self::Invalid(why)
    }
}

/// The bearer token of a request. `Err`: there is more than one `Authorization`.
pub fn token(headers: &HeaderMap) -> Result<Option<&str>, ()> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = all.next() else { return Ok(None) };
    if all.next().is_some() {
        return Err(());
    }
    let Some((scheme, token)) = value.as_bytes().split_at_checked(6) else { return Ok(None) };
    if !scheme.eq_ignore_ascii_case(b"bearer") || token.first().is_some_and(|b| *b != b' ') {
        return Ok(None);
    }
    // what is no text is no token either
    Ok(Some(std::str::from_utf8(token).unwrap_or_default().trim()))
}

impl RelyingParty {
    /// Who holds a token.
    pub(super) async fn bearer(self: &Arc<Self>, token: &str, now: u64) -> Result<Arc<Opened>, BearerError> {
        let key = std::iter::once(token.as_bytes());
        if let Some(known) = self.bearers.find(b"", key.clone(), now) {
            return known.map_err(BearerError::Invalid);
        }
        let (checked, until) = if jwt::looks_like_one(token) {
            let claims = self.provider.verify(token, now).await?;
            self.provider.check_issuer(&claims)?;
            if !jwt::audience_is(&claims, &self.policy.bearer_audiences) {
                return Err(InvalidToken::Audience.into());
            }
            let expires = jwt::check_times(&claims, now)?;
            (self.holder(&claims, token), expires.min(now + CHECKED))
        } else if token.is_empty() || token.len() > jwt::MAX_TOKEN || !self.provider.introspects() {
            return Err(InvalidToken::Syntax.into());
        } else {
            let claims = {
                let Ok(_permit) = self.introspecting.try_acquire() else { return Err(BearerError::Busy) };
                self.provider.introspect(token).await?.ok_or(InvalidToken::Syntax)?
            };
            match introspected(&self.policy, &claims, now) {
                Ok(expires) => (self.holder(&claims, token), expires.min(now + INTROSPECTED)),
                Err(why) => (Err(why), now + INACTIVE),
            }
        };
        let bytes = checked.as_ref().map_or(0, |opened| 2 * opened.session.encode().len());
        self.bearers.keep(b"", key, checked.clone(), bytes, until);
        checked.map_err(BearerError::Invalid)
    }

    fn holder(&self, claims: &claims::Claims, token: &str) -> Result<Arc<Opened>, InvalidToken> {
        let mut session = Session::default();
        claims::identify(&self.policy, claims, &mut session).ok_or(InvalidToken::Subject)?;
        session.trim_groups(&self.policy.allowed_groups);
        if self.policy.pass_access_token {
            session.access_token = token.to_owned();
        }
        Ok(Arc::new(self.opened(session)))
    }
}

/// Whether an introspection answer is about a live token for us; until when (RFC 7662 section 2.2).
fn introspected(policy: &OAuthPolicy, claims: &claims::Claims, now: u64) -> Result<u64, InvalidToken> {
    if claims.get("active") != Some(&Value::Bool(true)) {
        return Err(InvalidToken::Inactive);
    }
    let issuer = claims.get("iss").filter(|iss| !iss.is_null());
    if issuer.is_some_and(|iss| iss.as_str() != Some(&*policy.issuer)) {
        return Err(InvalidToken::Issuer);
    }
    // A token without audience was made for the client that it was given to.
    let for_us = if jwt::audiences(claims).next().is_some() {
        jwt::audience_is(claims, &policy.bearer_audiences)
    } else {
        let client = claims.get("client_id").and_then(Value::as_str);
        client.is_some_and(|client| policy.bearer_audiences.iter().any(|a| **a == *client))
    };
    if !for_us {
        return Err(InvalidToken::Audience);
    }
    match claims.get("exp").filter(|exp| !exp.is_null()) {
        Some(_) => jwt::check_times(claims, now),
        None => Ok(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::policy;
    use super::*;
    use http::HeaderValue;
    use serde_json::json;

    #[test]
    fn one_bearer_token_is_found_in_any_case() {
        let with = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            }
            token(&headers).map(|token| token.map(str::to_owned))
        };
        assert_eq!(with(&[]), Ok(None));
        assert_eq!(with(&["Basic eA=="]), Ok(None));
        assert_eq!(with(&["Bearerx"]), Ok(None));
        assert_eq!(with(&["Bear"]), Ok(None));
        for one in ["Bearer abc", "bearer abc", "BEARER  abc "] {
            assert_eq!(with(&[one]), Ok(Some("abc".into())), "{one}");
        }
        assert_eq!(with(&["Bearer"]), Ok(Some(String::new())));
        assert_eq!(with(&["Bearer a", "Bearer b"]), Err(()));
        assert_eq!(with(&["Bearer a", "Basic eA=="]), Err(()));
    }

    #[test]
    fn introspection_must_be_about_a_live_token_for_us() {
        let policy = policy();
        let of = |value: Value| introspected(&policy, value.as_object().unwrap(), 1000);
        assert_eq!(of(json!({"active": true, "aud": "web", "exp": 2000})), Ok(2000));
        assert_eq!(of(json!({"active": true, "aud": ["x", "web"]})), Ok(u64::MAX));
        assert_eq!(of(json!({"active": true, "aud": [], "client_id": "web"})), Ok(u64::MAX));
        assert_eq!(of(json!({"active": true, "client_id": "other"})), Err(InvalidToken::Audience));
        assert_eq!(of(json!({"active": true, "aud": "x", "client_id": "web"})), Err(InvalidToken::Audience));
        assert_eq!(of(json!({"active": true})), Err(InvalidToken::Audience));
        assert_eq!(of(json!({"active": "true", "aud": "web"})), Err(InvalidToken::Inactive));
        assert_eq!(of(json!({"active": false, "aud": "web"})), Err(InvalidToken::Inactive));
        assert_eq!(of(json!({"active": true, "aud": "web", "iss": "other"})), Err(InvalidToken::Issuer));
        assert_eq!(of(json!({"active": true, "aud": "web", "exp": 900})), Err(InvalidToken::Expired));
    }
}
