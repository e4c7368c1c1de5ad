//! The identity provider: where its endpoints are, its keys, and the calls to it.
//!
//! What was learned of it is kept and used on while it cannot be reached; what is missing is asked
//! for by one request at a time, and not again for a moment after it failed.

use super::claims::Claims;
use super::jwt::{self, InvalidToken, Key, Token};
use super::request::form;
use arc_swap::ArcSwapOption;
use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION};
use http::{HeaderName, HeaderValue, StatusCode};
use ingress_core::policy::oauth::{FixedEndpoints, Introspection, ProviderEndpoints};
use ingress_core::{HttpUrl, OAuthPolicy};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use tokio::sync::Mutex;

/// Discovery is asked for anew after this many seconds.
const METADATA_TTL: u64 = 3600;
/// Keys are fetched anew after this many seconds.
const KEYS_TTL: u64 = 600;
/// A key that is not known makes us fetch at most this often (seconds).
const KEY_MISS: u64 = 60;
/// Longest pause after a failure (seconds).
const MAX_PAUSE: u64 = 5;

/// One call to a provider: GET, or POST with a form.
pub struct Call {
    pub url: HttpUrl,
    pub form: Option<String>,
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// Its answer; redirects are answers.
pub struct Answer {
    pub status: StatusCode,
    pub body: Bytes,
}

/// Carries calls to one provider: bounded in time and size, over addresses that may be dialled.
#[async_trait]
pub trait Ask: Send + Sync {
    /// `Err` says why there is no answer, in a word.
    async fn ask(&self, call: Call) -> Result<Answer, String>;
}

/// Why the provider was of no help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    #[error("cannot reach {0}: {1}")]
    Unreachable(&'static str, String),
    #[error("{0} answered {1}")]
    Status(&'static str, u16),
    #[error("{0} answered with something else than expected: {1}")]
    Answer(&'static str, &'static str),
    #[error("discovery names another issuer than oidc_issuer_url")]
    Issuer,
    #[error("it failed a moment ago and is not asked again yet")]
    Pause,
    /// The provider says no: the code or the refresh token is not good.
    #[error("the token endpoint refused: {0}")]
    Refused(String),
    #[error("the token is not valid: {0}")]
    Token(#[from] InvalidToken),
}

/// Where things are at the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    pub authorization: HttpUrl,
    pub token: HttpUrl,
    pub jwks: HttpUrl,
    pub userinfo: Option<HttpUrl>,
    pub end_session: Option<HttpUrl>,
    /// The client's secret goes into the form instead of `Authorization`.
    pub secret_in_form: bool,
}

/// What the token endpoint hands out.
#[derive(Clone, Default)]
pub struct Tokens {
    pub access: String,
    pub id: Option<String>,
    pub refresh: Option<String>,
    /// Seconds that the access token lives.
    pub expires_in: Option<u64>,
}

struct Known<T> {
    value: T,
    at: u64,
}

/// One fetch at a time, and pauses after failures.
#[derive(Default)]
struct Attempts {
    failures: u32,
    not_before: u64,
}

impl Attempts {
    fn note<T>(&mut self, result: &Result<T, ProviderError>, now: u64) {
        match result {
            Ok(_) => *self = Self::default(),
            Err(_) => {
                self.failures = self.failures.saturating_add(1);
                self.not_before = now + (1 << self.failures.min(8).saturating_sub(1)).min(MAX_PAUSE);
            }
        }
    }
}

/// One provider, as one client sees it. Shared by all routes whose settings for it are equal.
pub struct Provider {
    issuer: Box<str>,
    endpoints: ProviderEndpoints,
    client_id: Box<str>,
    client_secret: Option<Box<str>>,
    introspection: Option<Introspection>,
    source: String,
    ask: Box<dyn Ask>,
    metadata: ArcSwapOption<Known<Arc<Metadata>>>,
    discovery: Mutex<Attempts>,
    keys: ArcSwapOption<Known<Vec<Key>>>,
    fetching: Mutex<Attempts>,
    missed: AtomicU64,
    renewing_metadata: AtomicBool,
    renewing_keys: AtomicBool,
}

const DISCOVERY: &str = "the discovery endpoint";
const JWKS: &str = "the JWKS endpoint";
const TOKEN: &str = "the token endpoint";
const USERINFO: &str = "the userinfo endpoint";
const INTROSPECTION: &str = "the introspection endpoint";

impl Provider {
    pub fn new(policy: &OAuthPolicy, ask: Box<dyn Ask>) -> Self {
        Self {
            issuer: policy.issuer.clone(),
            endpoints: policy.endpoints.clone(),
            client_id: policy.client_id.clone(),
            client_secret: policy.client_secret.clone(),
            introspection: policy.introspection.clone(),
            source: policy.source.to_string(),
            ask,
            metadata: ArcSwapOption::empty(),
            discovery: Mutex::default(),
            keys: ArcSwapOption::empty(),
            fetching: Mutex::default(),
            missed: AtomicU64::new(0),
            renewing_metadata: AtomicBool::new(false),
            renewing_keys: AtomicBool::new(false),
        }
    }

    /// Where the endpoints are.
    pub async fn metadata(self: &Arc<Self>, now: u64) -> Result<Arc<Metadata>, ProviderError> {
        if let Some(known) = &*self.metadata.load() {
            if known.at + METADATA_TTL <= now && !self.renewing_metadata.swap(true, Relaxed) {
                let this = self.clone();
                tokio::spawn(async move {
                    let _ = this.discover(now, true).await;
                    this.renewing_metadata.store(false, Relaxed);
                });
            }
            return Ok(known.value.clone());
        }
        self.discover(now, false).await
    }

    async fn discover(&self, now: u64, renew: bool) -> Result<Arc<Metadata>, ProviderError> {
        let mut attempts = self.discovery.lock().await;
        if !renew && let Some(known) = &*self.metadata.load() {
            return Ok(known.value.clone());
        }
        if now < attempts.not_before {
            return Err(ProviderError::Pause);
        }
        let found = self.fetch_metadata().await.map(Arc::new);
        attempts.note(&found, now);
        match &found {
            Ok(found) => {
                self.metadata.store(Some(Arc::new(Known { value: found.clone(), at: now })));
            }
            Err(problem) => {
                tracing::warn!(secret = self.source, issuer = &*self.issuer, %problem, "OIDC discovery failed");
                // what is known stays, and is not asked for with every request
                if renew && let Some(known) = &*self.metadata.load() {
                    let again = (now + MAX_PAUSE).saturating_sub(METADATA_TTL);
                    let value = known.value.clone();
                    self.metadata.store(Some(Arc::new(Known { value, at: again })));
                }
            }
        }
        found
    }

    async fn fetch_metadata(&self) -> Result<Metadata, ProviderError> {
        if let ProviderEndpoints::Fixed(fixed) = &self.endpoints {
            let FixedEndpoints { login, redeem, jwks, profile } = &**fixed;
            return Ok(Metadata {
                authorization: login.clone(),
                token: redeem.clone(),
                jwks: jwks.clone(),
                userinfo: profile.clone(),
                end_session: None,
                secret_in_form: false,
            });
        }
        let url = format!("{}/.well-known/openid-configuration", self.issuer.trim_end_matches('/'));
        let url = url.parse().map_err(|_| ProviderError::Answer(DISCOVERY, "its URL is none"))?;
        let document = self.json(DISCOVERY, Call { url, form: None, headers: accept_json() }).await?;
        // OpenID Connect Discovery 1.0 section 4.3
        if document.get("issuer").and_then(Value::as_str) != Some(&*self.issuer) {
            return Err(ProviderError::Issuer);
        }
        let secure = self.issuer.starts_with("https://");
        let url = |name: &str| -> Option<HttpUrl> {
            let url: HttpUrl = document.get(name)?.as_str()?.parse().ok()?;
            (url.tls || !secure).then_some(url)
        };
        let missing = |what| ProviderError::Answer(DISCOVERY, what);
        let methods = document.get("token_endpoint_auth_methods_supported").and_then(Value::as_array);
        let offers = |name: &str| methods.is_some_and(|all| all.iter().any(|m| m.as_str() == Some(name)));
        Ok(Metadata {
            authorization: url("authorization_endpoint")
                .ok_or(missing("there is no usable authorization_endpoint"))?,
            token: url("token_endpoint").ok_or(missing("there is no usable token_endpoint"))?,
            jwks: url("jwks_uri").ok_or(missing("there is no usable jwks_uri"))?,
            userinfo: url("userinfo_endpoint"),
            end_session: url("end_session_endpoint"),
            // client_secret_basic is the default (OpenID Connect Discovery 1.0 section 3)
            secret_in_form: offers("client_secret_post") && !offers("client_secret_basic"),
        })
    }

    /// The claims of a token that one of the provider's keys has signed.
    pub async fn verify(self: &Arc<Self>, token: &str, now: u64) -> Result<Claims, ProviderError> {
        let token = Token::parse(token)?;
        if let Some(known) = &*self.keys.load()
            && token.knows(&known.value)
        {
            if known.at + KEYS_TTL <= now && !self.renewing_keys.swap(true, Relaxed) {
                let this = self.clone();
                tokio::spawn(async move {
                    let mut attempts = this.fetching.lock().await;
                    if now >= attempts.not_before {
                        let _ = this.fetch_keys(&mut attempts, now).await;
                    }
                    this.renewing_keys.store(false, Relaxed);
                });
            }
            return Ok(token.verify(&known.value)?);
        }
        let mut attempts = self.fetching.lock().await;
        let known = self.keys.load_full();
        let fetched = match known {
            // another request has fetched it meanwhile
            Some(known) if token.knows(&known.value) => known,
            Some(_) => {
                let missed = self.missed.load(Relaxed);
                if missed != 0 && now < missed + KEY_MISS {
                    return Err(InvalidToken::UnknownKey.into());
                }
                self.missed.store(now.max(1), Relaxed);
                self.fetch_keys(&mut attempts, now).await?
            }
            None if now < attempts.not_before => return Err(ProviderError::Pause),
            None => self.fetch_keys(&mut attempts, now).await?,
        };
        Ok(token.verify(&fetched.value)?)
    }

    async fn fetch_keys(
        self: &Arc<Self>,
        attempts: &mut Attempts,
        now: u64,
    ) -> Result<Arc<Known<Vec<Key>>>, ProviderError> {
        let fetch = async {
            let url = self.metadata(now).await?.jwks.clone();
            let answer = self.call(JWKS, Call { url, form: None, headers: accept_json() }).await?;
            if answer.status != StatusCode::OK {
                return Err(ProviderError::Status(JWKS, answer.status.as_u16()));
            }
            let keys = jwt::keys(&answer.body).filter(|keys| !keys.is_empty());
            let keys = keys.ok_or(ProviderError::Answer(JWKS, "there is no key in it that could be used"))?;
            Ok(Arc::new(Known { value: keys, at: now }))
        };
        let fetched = fetch.await;
        attempts.note(&fetched, now);
        match &fetched {
            Ok(known) => self.keys.store(Some(known.clone())),
            Err(problem) => {
                tracing::warn!(secret = self.source, issuer = &*self.issuer, %problem, "the provider's keys cannot be fetched");
            }
        }
        fetched
    }

    /// Changes a code for tokens.
    pub async fn redeem(
        self: &Arc<Self>,
        code: &str,
        verifier: &str,
        redirect_uri: &str,
        now: u64,
    ) -> Result<Tokens, ProviderError> {
        let fields = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", redirect_uri),
            ("code_verifier", verifier),
        ];
        self.tokens(&fields, now).await
    }

    /// Changes a refresh token for new tokens.
    pub async fn refresh(self: &Arc<Self>, token: &str, now: u64) -> Result<Tokens, ProviderError> {
        self.tokens(&[("grant_type", "refresh_token"), ("refresh_token", token)], now).await
    }

    async fn tokens(self: &Arc<Self>, fields: &[(&str, &str)], now: u64) -> Result<Tokens, ProviderError> {
        let metadata = self.metadata(now).await?;
        let mut body = String::new();
        form(&mut body, fields.iter().copied());
        let mut headers = accept_json();
        match &self.client_secret {
            Some(secret) if !metadata.secret_in_form => headers.push(basic(&self.client_id, secret)),
            Some(secret) => {
                form(&mut body, [("client_id", &*self.client_id), ("client_secret", secret)]);
            }
            None => form(&mut body, [("client_id", &*self.client_id)]),
        }
        let answer =
            self.call(TOKEN, Call { url: metadata.token.clone(), form: Some(body), headers }).await?;
        let document: Option<Claims> = serde_json::from_slice(&answer.body).ok();
        let text = |name: &str| document.as_ref()?.get(name)?.as_str().map(str::to_owned);
        match answer.status.as_u16() {
            200 => {}
            // RFC 6749 section 5.2; what the error is called decides whose fault it is
            400 | 401 | 403 => {
                return Err(match text("error") {
                    Some(error)
                        if matches!(&*error, "invalid_grant" | "access_denied" | "invalid_request") =>
                    {
                        ProviderError::Refused(error)
                    }
                    _ => ProviderError::Status(TOKEN, answer.status.as_u16()),
                });
            }
            status => return Err(ProviderError::Status(TOKEN, status)),
        }
        let seconds = |value: &Value| value.as_u64().or_else(|| value.as_str()?.parse().ok());
        Ok(Tokens {
            access: text("access_token").ok_or(ProviderError::Answer(TOKEN, "there is no access_token"))?,
            id: text("id_token"),
            refresh: text("refresh_token"),
            expires_in: document.as_ref().and_then(|d| seconds(d.get("expires_in")?)),
        })
    }

    /// What the provider says of the holder of an access token; `None` without such an endpoint.
    pub async fn userinfo(self: &Arc<Self>, access: &str, now: u64) -> Result<Option<Claims>, ProviderError> {
        let Some(url) = self.metadata(now).await?.userinfo.clone() else { return Ok(None) };
        let bearer = HeaderValue::try_from(format!("Bearer {access}"));
        let bearer = bearer.map_err(|_| ProviderError::Answer(TOKEN, "the access_token is no text"))?;
        let mut headers = accept_json();
        headers.push((AUTHORIZATION, bearer));
        self.json(USERINFO, Call { url, form: None, headers }).await.map(Some)
    }

    /// What the provider says of an opaque token (RFC 7662); `None` if it is not asked.
    pub async fn introspect(&self, token: &str) -> Result<Option<Claims>, ProviderError> {
        let Some(introspection) = &self.introspection else { return Ok(None) };
        let mut body = String::new();
        form(&mut body, [("token", token), ("token_type_hint", "access_token")]);
        let mut headers = accept_json();
        match &introspection.client_secret {
            Some(secret) => headers.push(basic(&introspection.client_id, secret)),
            None => form(&mut body, [("client_id", &*introspection.client_id)]),
        }
        let call = Call { url: introspection.url.clone(), form: Some(body), headers };
        self.json(INTROSPECTION, call).await.map(Some)
    }

    /// Whether opaque tokens can be asked about.
    pub fn introspects(&self) -> bool {
        self.introspection.is_some()
    }

    /// Tells a URL of the provider something, and does not mind what it answers.
    pub async fn tell(&self, url: HttpUrl) {
        if let Err(problem) = self.call("backend_logout", Call { url, form: None, headers: vec![] }).await {
            tracing::warn!(secret = self.source, %problem, "backend_logout failed");
        }
    }

    async fn call(&self, what: &'static str, call: Call) -> Result<Answer, ProviderError> {
        self.ask.ask(call).await.map_err(|why| ProviderError::Unreachable(what, why))
    }

    async fn json(&self, what: &'static str, call: Call) -> Result<Claims, ProviderError> {
        let answer = self.call(what, call).await?;
        if answer.status != StatusCode::OK {
            return Err(ProviderError::Status(what, answer.status.as_u16()));
        }
        serde_json::from_slice(&answer.body).map_err(|_| ProviderError::Answer(what, "it is no JSON object"))
    }

    /// What an ID token says, if it is from this provider, for this client and of this login
    /// (OpenID Connect Core 1.0 section 3.1.3.7).
    pub async fn id_token(
        self: &Arc<Self>,
        token: &str,
        nonce: Option<&str>,
        now: u64,
    ) -> Result<Claims, ProviderError> {
        let claims = self.verify(token, now).await?;
        self.check_issuer(&claims)?;
        if !jwt::audiences(&claims).any(|audience| *audience == *self.client_id) {
            return Err(InvalidToken::Audience.into());
        }
        let several = jwt::audiences(&claims).count() > 1;
        match claims.get("azp") {
            None if !several => {}
            Some(azp) if azp.as_str() == Some(&*self.client_id) => {}
            _ => return Err(InvalidToken::AuthorizedParty.into()),
        }
        jwt::check_times(&claims, now)?;
        let same = |nonce: &str| {
            let stated = claims.get("nonce").and_then(Value::as_str).unwrap_or_default();
            stated.len() == nonce.len() && openssl::memcmp::eq(stated.as_bytes(), nonce.as_bytes())
        };
        if nonce.is_some_and(|nonce| !same(nonce)) {
            return Err(InvalidToken::Nonce.into());
        }
        Ok(claims)
    }

    pub fn check_issuer(&self, claims: &Claims) -> Result<(), InvalidToken> {
        let issuer = claims.get("iss").and_then(Value::as_str);
        if issuer == Some(&*self.issuer) { Ok(()) } else { Err(InvalidToken::Issuer) }
    }
}

fn accept_json() -> Vec<(HeaderName, HeaderValue)> {
    vec![(ACCEPT, HeaderValue::from_static("application/json"))]
}

/// RFC 6749 section 2.3.1: both halves are form-encoded first.
fn basic(id: &str, secret: &str) -> (HeaderName, HeaderValue) {
    let mut both = String::new();
    super::request::encode(&mut both, id);
    both.push(':');
    super::request::encode(&mut both, secret);
    let value = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(both)));
    let mut value = value.unwrap_or(HeaderValue::from_static("Basic"));
    value.set_sensitive(true);
    (AUTHORIZATION, value)
}

#[cfg(test)]
mod tests;
