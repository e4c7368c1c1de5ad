//! Logging in and out: the authorization code flow with PKCE, and our endpoints.
//!
//! Each login that begins has a name, and a cookie of that name which holds what must be found again
//! at its end: `state`, `nonce`, PKCE verifier and the way back. So any number of tabs can log in at
//! once, a login ends only in the browser in which it began, and the way back is not in any URL.

use super::cookie::{self, Cookies};
use super::provider::ProviderError;
use super::request::{Incoming, form, parameter};
use super::seal::{Binding, Purpose};
use super::session::{Session, number, put, take};
use super::{Answer, ENDPOINTS, RelyingParty, claims, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, StatusCode};
use ingress_core::policy::oauth::SameSite;
use openssl::sha::sha256;
use parking_lot::Mutex;
use serde_json::json;
use std::collections::HashSet;
use std::sync::Arc;

/// A login must end within this many seconds.
const LOGIN_TIME: u64 = 900;
/// Its cookie stays longer: it still tells where a tab that was forgotten wanted to go.
const LOGIN_COOKIE: u64 = 3600;
/// Ended logins that are remembered, twice.
const MAX_USED: usize = 50_000;

/// The paths of a protected host that are ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Callback,
    Start,
    Logout,
    UserInfo,
}

impl Endpoint {
    /// The endpoint at exactly this path.
    pub fn at(path: &str) -> Option<Self> {
        match path.strip_prefix(ENDPOINTS)? {
            "callback" => Some(Self::Callback),
            "start" => Some(Self::Start),
            "logout" => Some(Self::Logout),
            "userinfo" => Some(Self::UserInfo),
            _ => None,
        }
    }
}

/// The logins that ended here: none ends twice.
#[derive(Default)]
pub struct Used(Mutex<Ended>);

#[derive(Default)]
struct Ended {
    newer: HashSet<[u8; 32]>,
    older: HashSet<[u8; 32]>,
}

impl Used {
    /// Whether this is the first use.
    fn first(&self, state: &str) -> bool {
        let key = sha256(state.as_bytes());
        let mut ended = self.0.lock();
        if ended.older.contains(&key) {
            return false;
        }
        if ended.newer.len() >= MAX_USED {
            ended.older = std::mem::take(&mut ended.newer);
        }
        ended.newer.insert(key)
    }
}

/// A login that has begun, as its cookie holds it.
#[derive(Clone, PartialEq, Eq)]
struct Login {
    began: u64,
    state: String,
    nonce: String,
    verifier: String,
    /// Path and query.
    back: String,
}

impl Login {
    fn encode(&self) -> Vec<u8> {
        let mut out = self.began.to_be_bytes().to_vec();
        for text in [&self.state, &self.nonce, &self.verifier, &self.back] {
            put(&mut out, text);
        }
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let login = Self {
            began: number(&mut rest)?,
            state: take(&mut rest)?,
            nonce: take(&mut rest)?,
            verifier: take(&mut rest)?,
            back: take(&mut rest)?,
        };
        rest.is_empty().then_some(login)
    }
}

/// 256 bits that nobody can guess.
fn random() -> Result<String, ProviderError> {
    let mut bytes = [0; 32];
    openssl::rand::rand_bytes(&mut bytes)
        .map_err(|_| ProviderError::Unreachable("the system's randomness", "it failed".into()))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

fn login_id(state: &str) -> Option<&str> {
    let (id, _) = state.split_once('.')?;
    (id.len() == 12 && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')).then_some(id)
}

impl RelyingParty {
    /// Whether a callback belongs to this client: it has the cookie of that login, or had it.
    pub fn expects(&self, request: &Incoming<'_>) -> bool {
        let state = parameter(request.query, "state").ok().flatten().unwrap_or_default();
        login_id(&state).is_some_and(|id| {
            cookie::login(request.headers, &self.policy.cookie_name, id).is_some_and(|sealed| {
                self.sealer.open(Purpose::Login, &self.login_binding(request), sealed).is_some()
            })
        })
    }

    /// Whether a request brings a session of this client.
    pub fn knows(&self, request: &Incoming<'_>) -> bool {
        Cookies::read(request.headers, &self.policy.cookie_name).has_session()
    }

    /// Removes what the browser has of this client.
    pub fn forget(&self, request: &Incoming<'_>) -> Vec<HeaderValue> {
        self.jar(request).no_session(&Cookies::read(request.headers, &self.policy.cookie_name))
    }

    /// Sends a browser to the provider.
    pub(super) async fn begin(
        self: &Arc<Self>,
        request: &Incoming<'_>,
        back: String,
        now: u64,
    ) -> Result<Answer, ProviderError> {
        let metadata = self.provider.metadata(now).await?;
        let id = random()?[..12].to_owned();
        let login = Login {
            began: now,
            state: format!("{id}.{}", random()?),
            nonce: random()?,
            verifier: random()?,
            back,
        };
        let challenge = URL_SAFE_NO_PAD.encode(sha256(login.verifier.as_bytes()));
        let redirect_uri = redirect_uri(request);
        let mut to = metadata.authorization.to_string();
        if !to.contains('?') {
            to.push('?');
        }
        form(
            &mut to,
            [
                ("response_type", "code"),
                ("client_id", &self.policy.client_id),
                ("redirect_uri", &redirect_uri),
                ("scope", &self.policy.scope),
                ("state", &login.state),
                ("nonce", &login.nonce),
                ("code_challenge", &challenge),
                ("code_challenge_method", "S256"),
            ],
        );
        let optional = [("prompt", &self.policy.prompt), ("acr_values", &self.policy.acr_values)];
        form(&mut to, optional.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))));
        let impossible = ProviderError::Answer("the provider", "its login URL is none");
        let mut answer = Answer::redirect(&to, "login").ok_or(impossible)?;
        let sealed = self.sealer.seal(Purpose::Login, &self.login_binding(request), &login.encode());
        answer.cookies(sealed.and_then(|sealed| self.jar(request).login(&id, &sealed, LOGIN_COOKIE)));
        Ok(answer)
    }

    /// A login ends at the host at which it began, whatever domain its session is for.
    fn login_binding(&self, request: &Incoming<'_>) -> Binding {
        digest([&self.base[..], b"login", request.host().as_bytes()])
    }

    /// Serves one of our endpoints.
    pub async fn endpoint(
        self: &Arc<Self>,
        endpoint: Endpoint,
        request: &Incoming<'_>,
        now_ms: u64,
    ) -> Answer {
        let allowed = match endpoint {
            Endpoint::Logout => *request.method == Method::GET || *request.method == Method::POST,
            _ => *request.method == Method::GET,
        };
        if !allowed {
            let mut answer = Answer::text(StatusCode::METHOD_NOT_ALLOWED, "method");
            let methods = if endpoint == Endpoint::Logout { "GET, POST" } else { "GET" };
            answer.headers.push((http::header::ALLOW, HeaderValue::from_static(methods)));
            return answer;
        }
        let now = now_ms / 1000;
        match endpoint {
            Endpoint::Callback => self.callback(request, now).await,
            Endpoint::Start => self.start(request, now).await,
            Endpoint::Logout => self.logout(request, now).await,
            Endpoint::UserInfo => self.who(request, now_ms).await,
        }
    }

    async fn start(self: &Arc<Self>, request: &Incoming<'_>, now: u64) -> Answer {
        let back = match named_return(request) {
            Ok(back) => back.unwrap_or_else(|| "/".into()),
            Err(answer) => return answer,
        };
        match self.begin(request, back, now).await {
            Ok(answer) => answer,
            Err(problem) => self.provider_failed(&problem),
        }
    }

    async fn callback(self: &Arc<Self>, request: &Incoming<'_>, now: u64) -> Answer {
        let cookies = Cookies::read(request.headers, &self.policy.cookie_name);
        let query = |name| parameter(request.query, name);
        let (Ok(Some(state)), Ok(code), Ok(error), Ok(issuer)) =
            (query("state"), query("code"), query("error"), query("iss"))
        else {
            return failed(StatusCode::BAD_REQUEST, "The address is not one that ends a login.\n");
        };
        let Some(id) = login_id(&state) else {
            return failed(StatusCode::BAD_REQUEST, "The address is not one that ends a login.\n");
        };
        let login = cookie::login(request.headers, &self.policy.cookie_name, id)
            .and_then(|sealed| self.sealer.open(Purpose::Login, &self.login_binding(request), sealed))
            .and_then(|(plain, _)| Login::decode(&plain))
            .filter(|login| same(&login.state, &state));
        let Some(login) = login else { return forgotten() };
        if now >= login.began.saturating_add(LOGIN_TIME) {
            return self.too_late(request, &cookies, &login, now);
        }
        if !self.used.first(&state) {
            return failed(StatusCode::BAD_REQUEST, "This login has ended before.\n");
        }
        let mut answer = match self.finish(request, &cookies, &login, code, error, issuer, now).await {
            Ok(answer) => answer,
            Err(Stop::Provider(problem)) if is_refusal(&problem) => {
                tracing::warn!(secret = %self.policy.source, %problem, "a login was refused");
                failed(StatusCode::FORBIDDEN, "The login could not be completed. Please start again.\n")
            }
            Err(Stop::Provider(problem)) => self.provider_failed(&problem),
            Err(Stop::Answer(answer)) => answer,
        };
        answer.cookies(self.jar(request).no_login(id));
        answer
    }

    /// A login that took too long. Who has a session meanwhile does not need it any more.
    fn too_late(&self, request: &Incoming<'_>, cookies: &Cookies<'_>, login: &Login, now: u64) -> Answer {
        let session = self.open(request, cookies, now).filter(|who| who.allowed.is_ok());
        let to = || format!("{}{}", request.origin(), login.back);
        session.and_then(|_| Answer::redirect(&to(), "login")).unwrap_or_else(forgotten)
    }

    #[allow(clippy::too_many_arguments)]
    async fn finish(
        self: &Arc<Self>,
        request: &Incoming<'_>,
        cookies: &Cookies<'_>,
        login: &Login,
        code: Option<String>,
        error: Option<String>,
        issuer: Option<String>,
        now: u64,
    ) -> Result<Answer, Stop> {
        // RFC 9207: an answer that another provider was made to give
        if issuer.is_some_and(|issuer| *issuer != *self.policy.issuer) {
            return Err(Stop::Answer(failed(
                StatusCode::BAD_REQUEST,
                "The login was answered by another provider.\n",
            )));
        }
        if let Some(error) = error {
            let error: String = error.chars().filter(|c| c.is_ascii_graphic()).take(64).collect();
            tracing::info!(secret = %self.policy.source, error, "the provider refused a login");
            return Err(Stop::Answer(failed(
                StatusCode::FORBIDDEN,
                &format!("The identity provider did not log you in ({error}).\n"),
            )));
        }
        let Some(code) = code.filter(|code| !code.is_empty()) else {
            return Err(Stop::Answer(failed(StatusCode::BAD_REQUEST, "The provider sent no code.\n")));
        };
        let tokens = self.provider.redeem(&code, &login.verifier, &redirect_uri(request), now).await?;
        let id = tokens
            .id
            .as_deref()
            .ok_or(ProviderError::Answer("the token endpoint", "there is no id_token"))?;
        let claims = self.provider.id_token(id, Some(&login.nonce), now).await?;
        let mut session = Session::default();
        claims::identify(&self.policy, &claims, &mut session)
            .ok_or(ProviderError::Token(super::jwt::InvalidToken::Subject))?;
        self.complete(&claims, &tokens.access, &mut session, now).await?;
        if let Err(why) = claims::allowed(&self.policy, &session.email, &session.groups) {
            return Err(Stop::Answer(self.forbidden(&session, why)));
        }
        self.put_tokens(&mut session, tokens, now);
        let Some(set) = self.seal(request, cookies, &session, now) else {
            tracing::warn!(secret = %self.policy.source, user = session.user, "a session is too large for cookies");
            return Err(Stop::Answer(failed(
                StatusCode::FORBIDDEN,
                "What the identity provider sent is too large to be kept in cookies.\n",
            )));
        };
        let to = format!("{}{}", request.origin(), login.back);
        let mut answer = match self.policy.cookie_samesite {
            // A strict cookie is not sent along a redirect chain that another site began.
            SameSite::Strict => page(&to),
            _ => Answer::redirect(&to, "login")
                .ok_or(ProviderError::Answer("the login", "its way back is none"))?,
        };
        answer.cookies(set);
        Ok(answer)
    }

    async fn logout(self: &Arc<Self>, request: &Incoming<'_>, now: u64) -> Answer {
        let back = match named_return(request) {
            Ok(back) => back,
            Err(answer) => return answer,
        };
        let cookies = Cookies::read(request.headers, &self.policy.cookie_name);
        let who = self.open(request, &cookies, now);
        let hint = who.as_ref().map(|who| who.session.id_token.as_str()).filter(|id| !id.is_empty());
        if let Some(url) = &self.policy.backend_logout
            && who.is_some()
        {
            let text = url.to_string().replace("{id_token}", hint.unwrap_or_default());
            if let Ok(url) = text.parse() {
                let provider = self.provider.clone();
                tokio::spawn(async move { provider.tell(url).await });
            }
        }
        let mut answer =
            match self.policy.post_logout_redirect_uri.as_ref().and_then(|uri| uri.to_str().ok()) {
                Some(after) => {
                    let end = self.provider.metadata(now).await.ok().and_then(|m| m.end_session.clone());
                    let to = end.map_or_else(
                        || after.to_owned(),
                        |end| {
                            let mut to = end.to_string();
                            if !to.contains('?') {
                                to.push('?');
                            }
                            form(&mut to, hint.map(|hint| ("id_token_hint", hint)));
                            let client = ("client_id", &*self.policy.client_id);
                            form(&mut to, [client, ("post_logout_redirect_uri", after)]);
                            to
                        },
                    );
                    Answer::redirect(&to, "logout")
                }
                None => {
                    back.and_then(|back| Answer::redirect(&format!("{}{back}", request.origin()), "logout"))
                }
            }
            .unwrap_or_else(|| Answer {
                status: StatusCode::OK,
                headers: vec![],
                body: "You are logged out.\n".into(),
                label: "logout",
            });
        answer.cookies(self.jar(request).no_session(&cookies));
        answer
    }

    async fn who(self: &Arc<Self>, request: &Incoming<'_>, now_ms: u64) -> Answer {
        use super::Decision;
        // asked like an API: there is nowhere to be redirected to
        let asked = Incoming { method: &Method::POST, ..*request };
        match self.authenticate(&asked, now_ms).await {
            Decision::Pass(pass) => {
                let session = &pass.who.session;
                let mut body = json!({ "user": session.user, "groups": session.groups });
                for (name, value) in [("email", &session.email), ("preferredUsername", &session.preferred)] {
                    if !value.is_empty() {
                        body[name] = value.as_str().into();
                    }
                }
                let mut answer = Answer {
                    status: StatusCode::OK,
                    headers: vec![(CONTENT_TYPE, HeaderValue::from_static("application/json"))],
                    body: format!("{body}\n"),
                    label: "userinfo",
                };
                answer.cookies(pass.cookies.into_iter().chain(pass.claim.map(|(cookie, _)| cookie)));
                answer
            }
            Decision::Answer(answer) => answer,
        }
    }
}

/// Why a login did not end in a session.
enum Stop {
    Provider(ProviderError),
    Answer(Answer),
}

impl From<ProviderError> for Stop {
    fn from(problem: ProviderError) -> Self {
        Self::Provider(problem)
    }
}

/// Whether the provider, or what it said, means no; else it is merely broken.
fn is_refusal(problem: &ProviderError) -> bool {
    matches!(problem, ProviderError::Refused(_) | ProviderError::Token(_))
}

fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && openssl::memcmp::eq(a.as_bytes(), b.as_bytes())
}

fn redirect_uri(request: &Incoming<'_>) -> String {
    format!("{}{ENDPOINTS}callback", request.origin())
}

/// The `rd` of a request; `Err` is the answer to one that leads elsewhere.
fn named_return(request: &Incoming<'_>) -> Result<Option<String>, Answer> {
    let refused = || failed(StatusCode::BAD_REQUEST, "rd must be a path of this host.\n");
    match parameter(request.query, "rd").map_err(|()| refused())? {
        Some(named) => request.named_return(&named).map(Some).ok_or_else(refused),
        None => Ok(None),
    }
}

fn forgotten() -> Answer {
    let text = "This browser has not begun this login, or too long ago. Please start again.\n";
    failed(StatusCode::BAD_REQUEST, text)
}

fn failed(status: StatusCode, text: &str) -> Answer {
    let mut answer = Answer::text(status, "login_failed");
    answer.body.push_str(text);
    answer
}

/// A page of our own that goes on to `to`, so that the next request comes from this site.
fn page(to: &str) -> Answer {
    let mut escaped = String::with_capacity(to.len());
    for c in to.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            c => escaped.push(c),
        }
    }
    Answer {
        status: StatusCode::OK,
        headers: vec![(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"))],
        body: format!(
            "<!doctype html><meta charset=utf-8><meta http-equiv=refresh content=\"0;url={escaped}\"><title>Logged in</title><a href=\"{escaped}\">Go on</a>\n"
        ),
        label: "login",
    }
}

#[cfg(test)]
mod tests;
