//! Built-in OAuth2/OIDC: who somebody is by their session or bearer token, and how they get one.
//!
//! Takes `http` types and gives values; the calls to the provider go through [`provider::Ask`]. No
//! state is needed to know a session: it is sealed into the browser's cookies. What is kept here
//! (opened sessions, keys of the provider, refreshes under way) is a cache of one process.

mod bearer;
mod cache;
mod claims;
mod cookie;
mod email;
mod flow;
mod jwt;
pub mod provider;
mod refresh;
pub mod request;
mod seal;
mod session;

pub use cookie::without_ours;
pub use flow::Endpoint;

use bearer::BearerError;
use cache::Cache;
use claims::Refused;
use cookie::{Cookies, Jar};
use http::header::WWW_AUTHENTICATE;
use http::{HeaderName, HeaderValue, StatusCode};
use ingress_core::OAuthPolicy;
use openssl::sha::Sha256;
use parking_lot::Mutex;
use provider::{Provider, ProviderError, Tokens};
use refresh::{Phase, Refreshes, Step, Times};
use request::Incoming;
use seal::{Binding, Purpose, Sealer};
use session::Session;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The path that all endpoints and the cookies of logins are under.
pub const ENDPOINTS: &str = "/_tak/oauth2/";

/// A session that must be refreshed and cannot be, because the provider is away, is good for this
/// much longer (seconds).
const PROVIDER_GRACE: u64 = 300;

/// Who sends a request, ready for the backend.
pub struct Opened {
    session: Session,
    times: Times,
    allowed: Result<(), Refused>,
    /// The session as it came was sealed with the previous key.
    reseal: bool,
    headers: Box<[(HeaderName, HeaderValue)]>,
}

impl Opened {
    /// Headers for the backend: none of them comes from the client.
    pub fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        &self.headers
    }

    /// `sub`
    pub fn user(&self) -> &str {
        &self.session.user
    }
}

/// A request that may go on.
pub struct Pass {
    pub who: Arc<Opened>,
    /// `Set-Cookie` for the response.
    pub cookies: Vec<HeaderValue>,
    /// The same, if the response comes within this time of the request.
    pub claim: Option<(HeaderValue, Duration)>,
}

/// An answer of ours.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub body: String,
    /// What the access log calls it.
    pub label: &'static str,
}

/// What becomes of a request.
pub enum Decision {
    Pass(Pass),
    Answer(Answer),
}

/// Providers in use, shared by all routes whose settings for one are equal: a change of anything
/// else in a Secret does not make us forget a provider's keys.
#[derive(Default)]
pub struct Providers(Mutex<HashMap<[u8; 32], Weak<Provider>>>);

impl Providers {
    /// The provider of these settings; `make` is asked for the way to it if there is none yet.
    pub fn shared(
        &self,
        policy: &OAuthPolicy,
        make: impl FnOnce() -> Box<dyn provider::Ask>,
    ) -> Arc<Provider> {
        let key = provider_key(policy);
        let mut all = self.0.lock();
        if let Some(known) = all.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        all.retain(|_, provider| provider.strong_count() > 0);
        let provider = Arc::new(Provider::new(policy, make()));
        all.insert(key, Arc::downgrade(&provider));
        provider
    }
}

fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut sha = Sha256::new();
    for part in parts {
        sha.update(&(part.len() as u64).to_be_bytes());
        sha.update(part);
    }
    sha.finish()
}

fn provider_key(policy: &OAuthPolicy) -> [u8; 32] {
    use ingress_core::policy::oauth::{FixedEndpoints, ProviderEndpoints};
    let endpoints = match &policy.endpoints {
        ProviderEndpoints::Discovery => String::new(),
        ProviderEndpoints::Fixed(fixed) => {
            let FixedEndpoints { login, redeem, jwks, profile } = &**fixed;
            let profile = profile.as_ref().map(ToString::to_string).unwrap_or_default();
            format!("{login} {redeem} {jwks} {profile}")
        }
    };
    let opt = |text: Option<&[u8]>| text.map_or(vec![0], |text| [&[1], text].concat());
    let (url, id, secret) = match &policy.introspection {
        Some(i) => (i.url.to_string(), &*i.client_id, opt(i.client_secret.as_deref().map(str::as_bytes))),
        None => (String::new(), "", vec![]),
    };
    digest([
        // a tenant's failures and refetches are not another's
        policy.source.namespace.as_bytes(),
        policy.issuer.as_bytes(),
        policy.client_id.as_bytes(),
        &opt(policy.client_secret.as_deref().map(str::as_bytes)),
        endpoints.as_bytes(),
        &opt(policy.provider_ca.as_deref()),
        url.as_bytes(),
        id.as_bytes(),
        &secret,
    ])
}

/// One Secret's settings at work: a client of its provider.
pub struct RelyingParty {
    policy: OAuthPolicy,
    sealer: Sealer,
    provider: Arc<Provider>,
    /// What all sealed values of this client are bound to.
    base: [u8; 32],
    sessions: Cache<Arc<Opened>>,
    bearers: Cache<Result<Arc<Opened>, jwt::InvalidToken>>,
    introspecting: tokio::sync::Semaphore,
    refreshes: Refreshes<Result<Session, ProviderError>>,
    used: flow::Used,
    /// Tells claims of this process from those of others.
    process: u64,
}

impl RelyingParty {
    pub fn new(policy: &OAuthPolicy, provider: Arc<Provider>) -> Self {
        let mut process = [0; 8];
        // claims need no secrecy: without randomness they are merely not told apart
        let _ = openssl::rand::rand_bytes(&mut process);
        let base = digest([
            policy.cookie_name.as_bytes(),
            policy.issuer.as_bytes(),
            policy.client_id.as_bytes(),
            // what the claims in a session mean depends on these
            policy.email_claim.as_bytes(),
            policy.groups_claim.as_bytes(),
            &[u8::from(policy.allow_unverified_email)],
        ]);
        Self {
            sealer: Sealer::new(&policy.cookie_secret, policy.cookie_secret_previous.as_ref()),
            policy: policy.clone(),
            provider,
            base,
            sessions: Cache::new(),
            bearers: Cache::new(),
            introspecting: tokio::sync::Semaphore::new(bearer::MAX_INTROSPECTING),
            refreshes: Refreshes::new(),
            used: flow::Used::default(),
            process: u64::from_ne_bytes(process),
        }
    }

    /// What becomes of a request to the route.
    pub async fn authenticate(self: &Arc<Self>, request: &Incoming<'_>, now_ms: u64) -> Decision {
        let now = now_ms / 1000;
        match bearer::token(request.headers) {
            Ok(None) => {}
            Ok(Some(token)) => return self.authenticate_bearer(token, now).await,
            Err(()) => return Decision::Answer(Answer::text(StatusCode::BAD_REQUEST, "two_credentials")),
        }
        let cookies = Cookies::read(request.headers, &self.policy.cookie_name);
        if cookies.has_session()
            && let Some(opened) = self.open(request, &cookies, now)
        {
            match self.keep_alive(request, &cookies, opened, now_ms).await {
                Ok(Some(pass)) => {
                    return match pass.who.allowed {
                        Ok(()) => Decision::Pass(pass),
                        Err(why) => Decision::Answer(self.forbidden(&pass.who.session, why)),
                    };
                }
                Ok(None) => {}
                Err(problem) => return Decision::Answer(self.provider_failed(&problem)),
            }
        }
        Decision::Answer(if request.is_navigation(&self.policy.api_routes) {
            match self.begin(request, request.return_address(), now).await {
                Ok(mut answer) => {
                    answer.cookies(self.jar(request).no_session(&cookies));
                    answer
                }
                Err(problem) => self.provider_failed(&problem),
            }
        } else {
            Answer::text(StatusCode::UNAUTHORIZED, "no_session").challenge("Bearer")
        })
    }

    async fn authenticate_bearer(self: &Arc<Self>, token: &str, now: u64) -> Decision {
        match self.bearer(token, now).await {
            Ok(who) => match who.allowed {
                Ok(()) => Decision::Pass(Pass { who, cookies: vec![], claim: None }),
                Err(why) => Decision::Answer(self.forbidden(&who.session, why)),
            },
            Err(BearerError::Invalid(why)) => {
                tracing::debug!(secret = %self.policy.source, %why, "bearer token refused");
                Decision::Answer(
                    Answer::text(StatusCode::UNAUTHORIZED, "bad_token")
                        .challenge("Bearer error=\"invalid_token\""),
                )
            }
            Err(BearerError::Provider(problem)) => Decision::Answer(self.provider_failed(&problem)),
            Err(BearerError::Busy) => {
                let mut answer = Answer::text(StatusCode::SERVICE_UNAVAILABLE, "introspection_busy");
                answer.headers.push((http::header::RETRY_AFTER, HeaderValue::from_static("1")));
                Decision::Answer(answer)
            }
        }
    }

    /// The session in a request's cookies, if it is one of ours and has not ended.
    fn open(&self, request: &Incoming<'_>, cookies: &Cookies<'_>, now: u64) -> Option<Arc<Opened>> {
        let place = request.authority.as_bytes();
        let opened = match self.sessions.find(place, cookies.session(), now) {
            Some(opened) => opened,
            None => {
                let sealed: Vec<u8> = cookies.session().flatten().copied().collect();
                let (plain, previous) =
                    self.sealer.open(Purpose::Session, &self.binding(request), &sealed)?;
                let mut opened = self.opened(Session::decode(&plain)?);
                opened.reseal = previous;
                let opened = Arc::new(opened);
                self.sessions.keep(
                    place,
                    cookies.session(),
                    opened.clone(),
                    2 * plain.len(),
                    opened.times.over,
                );
                opened
            }
        };
        (opened.times.phase(now) != Phase::Over).then_some(opened)
    }

    /// A session with what follows from it under these settings.
    fn opened(&self, session: Session) -> Opened {
        Opened {
            times: Times::of(&session, self.policy.cookie_refresh, self.policy.cookie_expire),
            allowed: claims::allowed(&self.policy, &session.email, &session.groups),
            headers: self.identity(&session),
            reseal: false,
            session,
        }
    }

    fn identity(&self, session: &Session) -> Box<[(HeaderName, HeaderValue)]> {
        let mut headers = Vec::with_capacity(6);
        let mut set = |name: &'static str, value: &str, sensitive: bool| {
            if !value.is_empty()
                && let Ok(mut value) = HeaderValue::from_bytes(value.as_bytes())
            {
                value.set_sensitive(sensitive);
                headers.push((HeaderName::from_static(name), value));
            }
        };
        set("x-auth-request-user", &session.user, false);
        set("x-auth-request-email", &session.email, false);
        set("x-auth-request-preferred-username", &session.preferred, false);
        // a comma in a group's name would make it two
        let groups: Vec<&str> =
            session.groups.iter().map(String::as_str).filter(|g| !g.contains(',')).collect();
        set("x-auth-request-groups", &groups.join(","), false);
        if self.policy.pass_access_token {
            set("x-auth-request-access-token", &session.access_token, true);
        }
        if self.policy.pass_authorization_header && !session.id_token.is_empty() {
            set(AUTHORIZATION_NAME, &format!("Bearer {}", session.id_token), true);
        }
        headers.into()
    }

    /// Refreshes a session when its time has come. `None`: it has ended.
    async fn keep_alive(
        self: &Arc<Self>,
        request: &Incoming<'_>,
        cookies: &Cookies<'_>,
        who: Arc<Opened>,
        now_ms: u64,
    ) -> Result<Option<Pass>, ProviderError> {
        let now = now_ms / 1000;
        let phase = who.times.phase(now);
        let mut pass = Pass { who, cookies: vec![], claim: None };
        let session = &pass.who.session;
        match phase {
            Phase::Over => return Ok(None),
            Phase::Fresh => {}
            Phase::Due if session.refresh_token.is_empty() => {}
            Phase::Due => {
                match refresh::step(cookies.claim, session, self.policy.cookie_refresh, self.process, now_ms)
                {
                    Step::Wait => {}
                    Step::Claim(value, age, within) => {
                        pass.claim = self.jar(request).claim(&value, age).map(|cookie| (cookie, within));
                    }
                    Step::Refresh => {
                        if let Ok(fresh) = self.refresh(session, now_ms).await {
                            return Ok(Some(self.renewed(request, cookies, fresh)));
                        }
                    }
                }
            }
            Phase::Late if session.refresh_token.is_empty() => {
                return Ok((now < session.expires).then_some(pass));
            }
            Phase::Late => match self.refresh(session, now_ms).await {
                Ok(fresh) => return Ok(Some(self.renewed(request, cookies, fresh))),
                Err(_) if now < session.expires => {}
                Err(ProviderError::Refused(_) | ProviderError::Token(_)) => return Ok(None),
                Err(_) if now < pass.who.times.late.saturating_add(PROVIDER_GRACE) => {}
                Err(problem) => return Err(problem),
            },
        }
        if pass.who.reseal && !pass.who.session.user.is_empty() {
            pass.cookies = self.seal(request, cookies, &pass.who.session, now).unwrap_or_default();
        }
        Ok(Some(pass))
    }

    fn renewed(&self, request: &Incoming<'_>, cookies: &Cookies<'_>, session: Session) -> Pass {
        let now = session.issued;
        let cookies = self.seal(request, cookies, &session, now).unwrap_or_default();
        Pass { who: Arc::new(self.opened(session)), cookies, claim: None }
    }

    async fn refresh(self: &Arc<Self>, session: &Session, now_ms: u64) -> Result<Session, ProviderError> {
        let (this, old) = (self.clone(), session.clone());
        let work = move || async move {
            let refreshed = this.refreshed(old, now_ms / 1000).await;
            if let Err(problem) = &refreshed {
                tracing::warn!(secret = %this.policy.source, %problem, "a session could not be refreshed");
            }
            refreshed
        };
        let failed = |outcome: &Result<Session, ProviderError>| {
            outcome.as_ref().is_err_and(|e| !matches!(e, ProviderError::Refused(_) | ProviderError::Token(_)))
        };
        let outcome = self.refreshes.run(&session.refresh_token, now_ms, failed, work).await;
        outcome.unwrap_or(Err(ProviderError::Pause))
    }

    async fn refreshed(self: &Arc<Self>, mut session: Session, now: u64) -> Result<Session, ProviderError> {
        let tokens = self.provider.refresh(&session.refresh_token, now).await?;
        let user = session.user.clone();
        let news = match &tokens.id {
            Some(id) => Some(self.provider.id_token(id, None, now).await?),
            None => self.provider.userinfo(&tokens.access, now).await.unwrap_or_default(),
        };
        if let Some(claims) = news {
            let kept = std::mem::take(&mut session.groups);
            claims::identify(&self.policy, &claims, &mut session).ok_or(jwt::InvalidToken::Subject)?;
            if session.user != user {
                return Err(jwt::InvalidToken::Subject.into());
            }
            let answered = self.complete(&claims, &tokens.access, &mut session, now).await?;
            if !answered && !claims::tell_groups(&self.policy, &claims) {
                session.groups = kept;
            }
        }
        self.put_tokens(&mut session, tokens, now);
        Ok(session)
    }

    /// Fills in what an ID token lacks from the userinfo endpoint. Tells whether there is nothing more to ask.
    async fn complete(
        self: &Arc<Self>,
        claims: &claims::Claims,
        access: &str,
        session: &mut Session,
        now: u64,
    ) -> Result<bool, ProviderError> {
        if !claims::incomplete(&self.policy, claims) {
            return Ok(true);
        }
        match self.provider.userinfo(access, now).await {
            // it may only be about the same user (OpenID Connect Core 1.0 section 5.3.2)
            Ok(Some(more)) if more.get("sub").and_then(|sub| sub.as_str()) == Some(&session.user) => {
                claims::complete(&self.policy, &more, session);
                Ok(true)
            }
            Ok(Some(_)) => Err(jwt::InvalidToken::Subject.into()),
            Ok(None) => Ok(false),
            Err(problem) if claims::undecided(&self.policy, claims) => Err(problem),
            Err(problem) => {
                tracing::warn!(secret = %self.policy.source, %problem, "a session is without what the userinfo endpoint knows");
                Ok(false)
            }
        }
    }

    /// Keeps of the tokens what will be needed.
    fn put_tokens(&self, session: &mut Session, tokens: Tokens, now: u64) {
        session.issued = now;
        session.expires = tokens.expires_in.map_or(0, |seconds| now.saturating_add(seconds));
        if self.policy.pass_access_token {
            session.access_token = tokens.access;
        }
        if let Some(id) = tokens.id
            && (self.policy.pass_authorization_header || self.wants_hint())
        {
            session.id_token = id;
        }
        if self.policy.cookie_refresh.is_some()
            && let Some(token) = tokens.refresh
        {
            session.refresh_token = token;
        }
        if session.trim_groups(&self.policy.allowed_groups) {
            tracing::warn!(
                secret = %self.policy.source,
                "somebody is in more groups than a session holds; those beyond {} bytes are left out",
                session::MAX_GROUPS
            );
        }
    }

    /// Whether logout sends the ID token along.
    fn wants_hint(&self) -> bool {
        self.policy.post_logout_redirect_uri.is_some() || self.policy.backend_logout.is_some()
    }

    /// The cookies of a session; `None`: it is too large for any browser.
    fn seal(
        &self,
        request: &Incoming<'_>,
        old: &Cookies<'_>,
        session: &Session,
        now: u64,
    ) -> Option<Vec<HeaderValue>> {
        let binding = self.binding(request);
        let end = session.issued.saturating_add(self.policy.cookie_expire.as_secs());
        let set = |session: &Session| {
            let sealed = self.sealer.seal(Purpose::Session, &binding, &session.encode())?;
            self.jar(request).session(&sealed, end.saturating_sub(now), old)
        };
        set(session).or_else(|| {
            // as a mere hint at logout it can be done without
            if self.policy.pass_authorization_header || session.id_token.is_empty() {
                return None;
            }
            set(&Session { id_token: String::new(), ..session.clone() })
        })
    }

    fn jar(&self, request: &Incoming<'_>) -> Jar<'_> {
        Jar {
            name: &self.policy.cookie_name,
            domain: self.domain(request),
            path: &self.policy.cookie_path,
            same_site: self.policy.cookie_samesite,
            secure: request.tls,
        }
    }

    /// `cookie_domain`, where the host is in it: a browser takes it from no other.
    fn domain(&self, request: &Incoming<'_>) -> Option<&str> {
        let domain = self.policy.cookie_domain.as_deref()?;
        let host = request.host();
        let inside = host.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        inside.then_some(domain)
    }

    /// A session belongs to the hosts that its cookies go to.
    fn binding(&self, request: &Incoming<'_>) -> Binding {
        match self.domain(request) {
            Some(domain) => digest([&self.base[..], b"domain", domain.as_bytes()]),
            None => digest([&self.base[..], b"host", request.host().as_bytes()]),
        }
    }

    fn forbidden(&self, session: &Session, why: Refused) -> Answer {
        tracing::info!(secret = %self.policy.source, user = session.user, %why, "refused");
        let mut answer = Answer::text(StatusCode::FORBIDDEN, "not_allowed");
        answer.body.push_str(
            "You are logged in, but not as somebody who may use this page. /_tak/oauth2/logout logs you out.\n",
        );
        answer
    }

    fn provider_failed(&self, problem: &ProviderError) -> Answer {
        tracing::warn!(secret = %self.policy.source, %problem, "the identity provider is of no help");
        Answer::text(StatusCode::BAD_GATEWAY, "provider")
    }
}

const AUTHORIZATION_NAME: &str = "authorization";

impl Answer {
    /// The usual text for a status.
    fn text(status: StatusCode, label: &'static str) -> Self {
        let body = format!("{} {}\n", status.as_u16(), status.canonical_reason().unwrap_or_default());
        Self { status, headers: vec![], body, label }
    }

    /// A redirect by GET.
    fn redirect(to: &str, label: &'static str) -> Option<Self> {
        let location = HeaderValue::try_from(to).ok()?;
        Some(Self {
            status: StatusCode::FOUND,
            headers: vec![(http::header::LOCATION, location)],
            body: String::new(),
            label,
        })
    }

    fn challenge(mut self, value: &'static str) -> Self {
        self.headers.push((WWW_AUTHENTICATE, HeaderValue::from_static(value)));
        self
    }

    fn cookies(&mut self, cookies: impl IntoIterator<Item = HeaderValue>) {
        self.headers.extend(cookies.into_iter().map(|cookie| (http::header::SET_COOKIE, cookie)));
    }
}

#[cfg(test)]
mod tests;
