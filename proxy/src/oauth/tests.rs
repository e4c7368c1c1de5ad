//! A provider in this process, and a browser: whole logins without a socket.

use super::jwt::tests::Signing;
use super::provider::{Answer as ProviderAnswer, Ask, Call, Provider};
use super::request::{Incoming, decode, parameter};
use super::{Answer, Decision, Endpoint, RelyingParty};
use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, COOKIE, LOCATION, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use ingress_core::policy::oauth::{ProviderEndpoints, SameSite};
use ingress_core::{Kind, OAuthPolicy, ResourceRef, Slot};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Client `web` of `https://idp.example.com`, all else by default.
pub(super) fn policy() -> OAuthPolicy {
    OAuthPolicy {
        source: ResourceRef::new(Kind::Secret, "shop", "oidc"),
        fingerprint: [0; 32],
        issuer: "https://idp.example.com".into(),
        issuer_url: "https://idp.example.com".parse().ok(),
        endpoints: ProviderEndpoints::Discovery,
        client_id: "web".into(),
        client_secret: Some("web-secret".into()),
        cookie_secret: [7; 32],
        cookie_secret_previous: None,
        cookie_name: "_tak_oauth2".into(),
        cookie_domain: None,
        cookie_path: "/".into(),
        cookie_samesite: SameSite::Lax,
        cookie_expire: Duration::from_secs(168 * 3600),
        cookie_refresh: None,
        scope: "openid email profile".into(),
        prompt: None,
        acr_values: None,
        email_domains: None,
        allowed_emails: Box::default(),
        allowed_groups: Box::default(),
        email_claim: "email".into(),
        groups_claim: "groups".into(),
        allow_unverified_email: false,
        bearer_audiences: Box::new(["web".into()]),
        introspection: None,
        pass_access_token: false,
        pass_authorization_header: false,
        api_routes: Box::default(),
        post_logout_redirect_uri: None,
        backend_logout: None,
        provider_ca: None,
        state: Slot::new(),
    }
}

/// When tests happen.
pub(super) const NOW: u64 = 1_800_000_000;
const ISSUER: &str = "https://idp.example.com";

/// What a provider knows and does; tests bend it.
pub(super) struct Idp {
    pub signing: Signing,
    pub claims: Value,
    pub userinfo: Option<Value>,
    pub introspection: Value,
    pub discovery: Value,
    /// Everything but 200 is what all endpoints answer.
    pub status: u16,
    pub unreachable: bool,
    pub expires_in: u64,
    pub refresh_rotates: bool,
    /// Code to challenge and nonce.
    codes: HashMap<String, (String, String)>,
    live_refresh: Vec<String>,
    pub family_dead: bool,
    pub calls: Vec<String>,
    next: u32,
    pub nonce: Option<String>,
    pub clock: u64,
}

#[derive(Clone)]
pub(super) struct Fake(pub Arc<Mutex<Idp>>);

impl Fake {
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Idp {
            signing: Signing::new("ES256", "k1"),
            claims: json!({"sub": "u-alice", "email": "alice@example.com", "email_verified": true,
                "preferred_username": "alice", "groups": ["team-a", "ops"]}),
            userinfo: None,
            introspection: json!({"active": false}),
            discovery: json!({
                "issuer": ISSUER,
                "authorization_endpoint": "https://idp.example.com/auth",
                "token_endpoint": "https://idp.example.com/token",
                "jwks_uri": "https://idp.example.com/jwks",
                "userinfo_endpoint": "https://idp.example.com/userinfo",
                "end_session_endpoint": "https://idp.example.com/logout",
            }),
            status: 200,
            unreachable: false,
            expires_in: 300,
            refresh_rotates: true,
            codes: HashMap::new(),
            live_refresh: vec![],
            family_dead: false,
            calls: vec![],
            next: 0,
            nonce: None,
            clock: NOW,
        })))
    }

    /// Logs a browser in that was sent to `location`: the address it is sent back to.
    pub fn log_in(&self, location: &str) -> String {
        let query = location.split_once('?').unwrap().1;
        let get = |name: &str| parameter(Some(query), name).unwrap().unwrap_or_default();
        assert_eq!(get("response_type"), "code");
        assert_eq!(get("code_challenge_method"), "S256");
        assert!(get("state").len() > 40 && get("nonce").len() > 40 && get("code_challenge").len() == 43);
        let mut idp = self.0.lock();
        idp.next += 1;
        let code = format!("code-{}", idp.next);
        idp.codes.insert(code.clone(), (get("code_challenge"), get("nonce")));
        format!("{}?code={code}&state={}", get("redirect_uri"), get("state"))
    }

    pub fn token(&self, more: Value) -> String {
        let idp = self.0.lock();
        let mut claims = idp.claims.clone();
        claims["iss"] = ISSUER.into();
        claims["aud"] = "web".into();
        claims["exp"] = (idp.clock + 300).into();
        for (name, value) in more.as_object().unwrap() {
            claims[name] = value.clone();
        }
        idp.signing.sign(&claims)
    }

    pub fn calls(&self, path: &str) -> usize {
        self.0.lock().calls.iter().filter(|call| *call == path).count()
    }
}

#[async_trait]
impl Ask for Fake {
    async fn ask(&self, call: Call) -> Result<ProviderAnswer, String> {
        tokio::task::yield_now().await;
        let mut idp = self.0.lock();
        let path = call.url.path_and_query.path().to_owned();
        idp.calls.push(path.clone());
        if idp.unreachable {
            return Err("no connection".into());
        }
        let answer = |status: u16, body: Value| {
            Ok(ProviderAnswer {
                status: StatusCode::from_u16(status).unwrap(),
                body: body.to_string().into(),
            })
        };
        if idp.status != 200 {
            return answer(idp.status, json!({}));
        }
        let form: BTreeMap<String, String> = call
            .form
            .iter()
            .flat_map(|form| form.split('&'))
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name.to_owned(), decode(value).unwrap()))
            .collect();
        match path.as_str() {
            "/.well-known/openid-configuration" => answer(200, idp.discovery.clone()),
            "/jwks" => answer(200, json!({"keys": [idp.signing.jwk()]})),
            "/userinfo" => {
                assert!(call.headers.iter().any(|(n, v)| n == AUTHORIZATION && v == "Bearer access"));
                answer(200, idp.userinfo.clone().unwrap_or(json!({"sub": "u-alice"})))
            }
            "/introspect" => answer(200, idp.introspection.clone()),
            "/token" => {
                let refused = answer(400, json!({"error": "invalid_grant"}));
                let nonce = match form["grant_type"].as_str() {
                    "authorization_code" => {
                        let Some((challenge, nonce)) = idp.codes.remove(&form["code"]) else {
                            return refused;
                        };
                        let digest = openssl::sha::sha256(form["code_verifier"].as_bytes());
                        if URL_SAFE_NO_PAD.encode(digest) != challenge {
                            return refused;
                        }
                        Some(idp.nonce.clone().unwrap_or(nonce))
                    }
                    "refresh_token" => {
                        let token = &form["refresh_token"];
                        if idp.family_dead || !idp.live_refresh.contains(token) {
                            idp.family_dead = true;
                            return refused;
                        }
                        if idp.refresh_rotates {
                            idp.live_refresh.clear();
                        }
                        None
                    }
                    other => panic!("{other}"),
                };
                idp.next += 1;
                let refresh = format!("refresh-{}", idp.next);
                idp.live_refresh.push(refresh.clone());
                let mut claims = idp.claims.clone();
                claims["iss"] = ISSUER.into();
                claims["aud"] = "web".into();
                claims["exp"] = (idp.clock + 300).into();
                if let Some(nonce) = nonce {
                    claims["nonce"] = nonce.into();
                }
                let id = idp.signing.sign(&claims);
                let expires_in = idp.expires_in;
                answer(
                    200,
                    json!({"access_token": "access", "token_type": "Bearer", "id_token": id,
                    "refresh_token": refresh, "expires_in": expires_in}),
                )
            }
            other => panic!("{other}"),
        }
    }
}

pub(super) fn relying_party(policy: &OAuthPolicy, idp: &Fake) -> Arc<RelyingParty> {
    Arc::new(RelyingParty::new(policy, Arc::new(Provider::new(policy, Box::new(idp.clone())))))
}

/// A browser's cookies, without their attributes.
#[derive(Clone, Default)]
pub(super) struct Browser {
    pub cookies: BTreeMap<String, String>,
    pub host: String,
    pub http: bool,
}

impl Browser {
    pub fn at(host: &str) -> Self {
        Self { host: host.into(), ..Self::default() }
    }

    fn keep<'a>(&mut self, set: impl Iterator<Item = &'a HeaderValue>) {
        for line in set {
            let line = line.to_str().unwrap();
            assert!(line.len() < 4096 && line.contains("; HttpOnly"));
            assert_eq!(line.contains("; Secure"), !self.http);
            let (name, value) = line.split(';').next().unwrap().split_once('=').unwrap();
            if line.contains("Max-Age=0") {
                self.cookies.remove(name);
            } else {
                self.cookies.insert(name.into(), value.into());
            }
        }
    }

    fn headers(&self, more: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if !self.cookies.is_empty() {
            let all: Vec<_> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
            headers.insert(COOKIE, HeaderValue::try_from(all.join("; ")).unwrap());
        }
        for (name, value) in more {
            headers.append(HeaderName::try_from(*name).unwrap(), HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    pub async fn send(
        &mut self,
        rp: &Arc<RelyingParty>,
        method: Method,
        target: &str,
        fields: &[(&str, &str)],
        now_ms: u64,
    ) -> Decision {
        let headers = self.headers(fields);
        let (path, query) =
            target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
        let request = Incoming {
            method: &method,
            path,
            query,
            headers: &headers,
            authority: &self.host.clone(),
            tls: !self.http,
        };
        let decision = match Endpoint::at(path) {
            Some(endpoint) => Decision::Answer(rp.endpoint(endpoint, &request, now_ms).await),
            None => rp.authenticate(&request, now_ms).await,
        };
        match &decision {
            Decision::Pass(pass) => {
                self.keep(pass.cookies.iter().chain(pass.claim.iter().map(|(cookie, _)| cookie)))
            }
            Decision::Answer(answer) => {
                self.keep(answer.headers.iter().filter(|(n, _)| n == SET_COOKIE).map(|(_, v)| v));
            }
        }
        decision
    }

    pub async fn get(&mut self, rp: &Arc<RelyingParty>, target: &str, now: u64) -> Decision {
        self.send(rp, Method::GET, target, &[], now * 1000).await
    }

    /// Follows a login from `target` to its end: the last answer.
    pub async fn log_in(&mut self, rp: &Arc<RelyingParty>, idp: &Fake, target: &str, now: u64) -> Answer {
        let began = answer(self.get(rp, target, now).await);
        assert_eq!(began.status, 302, "{began:?}");
        let back = idp.log_in(location(&began));
        self.come_back(rp, &back, now).await
    }

    pub async fn come_back(&mut self, rp: &Arc<RelyingParty>, url: &str, now: u64) -> Answer {
        let path = url.strip_prefix(&format!("https://{}", self.host)).unwrap();
        answer(self.get(rp, path, now).await)
    }
}

pub(super) fn answer(decision: Decision) -> Answer {
    match decision {
        Decision::Answer(answer) => answer,
        Decision::Pass(pass) => panic!("{} passed", pass.who.user()),
    }
}

pub(super) fn passed(decision: Decision) -> BTreeMap<String, String> {
    match decision {
        Decision::Pass(pass) => {
            let text = |v: &HeaderValue| String::from_utf8_lossy(v.as_bytes()).into_owned();
            pass.who.headers().iter().map(|(n, v)| (n.to_string(), text(v))).collect()
        }
        Decision::Answer(answer) => panic!("{answer:?}"),
    }
}

pub(super) fn location(answer: &Answer) -> &str {
    answer.headers.iter().find(|(n, _)| n == LOCATION).map(|(_, v)| v.to_str().unwrap()).unwrap_or_default()
}

#[tokio::test]
async fn a_browser_logs_in_and_the_backend_is_told_who_it_is() {
    let (idp, rp) = fresh(policy());
    let mut browser = Browser::at("app.example.com");
    let done = browser.log_in(&rp, &idp, "/reports?x=1", NOW).await;
    assert_eq!((done.status.as_u16(), location(&done)), (302, "https://app.example.com/reports?x=1"));
    assert_eq!(browser.cookies.keys().collect::<Vec<_>>(), ["_tak_oauth2"], "the login's cookie is gone");
    for at in [NOW, NOW + 100_000, NOW + 168 * 3600 - 1] {
        let headers = passed(browser.get(&rp, "/reports", at).await);
        assert_eq!(headers["x-auth-request-user"], "u-alice");
        assert_eq!(headers["x-auth-request-email"], "alice@example.com");
        assert_eq!(headers["x-auth-request-groups"], "team-a,ops");
        assert_eq!(headers["x-auth-request-preferred-username"], "alice");
        assert_eq!(headers.len(), 4);
    }
    let over = answer(browser.get(&rp, "/", NOW + 168 * 3600).await);
    assert_eq!(over.status, 302);
    assert_eq!(idp.calls("/token"), 1);
}

fn fresh(policy: OAuthPolicy) -> (Fake, Arc<RelyingParty>) {
    let idp = Fake::new();
    let rp = relying_party(&policy, &idp);
    (idp, rp)
}

#[tokio::test]
async fn forged_and_foreign_sessions_are_none() {
    let (idp, rp) = fresh(policy());
    let mut browser = Browser::at("app.example.com");
    browser.log_in(&rp, &idp, "/", NOW).await;
    let good = browser.cookies["_tak_oauth2"].clone();
    let refused = |value: String, host: &str| {
        let mut other = Browser::at(host);
        other.cookies.insert("_tak_oauth2".into(), value);
        let rp = rp.clone();
        async move { answer(other.get(&rp, "/", NOW).await).status }
    };
    let mut forged = good.clone().into_bytes();
    forged[40] ^= 1;
    let cut = good[..good.len() - 4].to_owned();
    for value in [String::from_utf8(forged).unwrap(), cut, "x".into(), String::new(), "A".repeat(3000)] {
        assert_eq!(refused(value, "app.example.com").await, 302);
    }
    assert_eq!(refused(good.clone(), "other.example.com").await, 302, "of another host");
    for change in [
        |p: &mut OAuthPolicy| p.client_id = "other".into(),
        |p: &mut OAuthPolicy| p.issuer = "https://other.example.com".into(),
        |p: &mut OAuthPolicy| p.cookie_secret = [8; 32],
        |p: &mut OAuthPolicy| p.allow_unverified_email = true,
        |p: &mut OAuthPolicy| p.cookie_domain = Some("example.com".into()),
    ] {
        let mut other = policy();
        change(&mut other);
        idp.0.lock().discovery["issuer"] = (*other.issuer).into();
        let other = relying_party(&other, &idp);
        assert_eq!(answer(browser.clone().get(&other, "/", NOW).await).status, 302);
    }
    let mut rotated = policy();
    rotated.cookie_secret = [8; 32];
    rotated.cookie_secret_previous = Some([7; 32]);
    let rotated = relying_party(&rotated, &idp);
    passed(browser.get(&rotated, "/", NOW).await);
    assert_ne!(browser.cookies["_tak_oauth2"], good, "sealed anew with the current key");
    let mut only_new = policy();
    only_new.cookie_secret = [8; 32];
    passed(browser.get(&relying_party(&only_new, &idp), "/", NOW).await);
}

#[tokio::test]
async fn a_session_spans_hosts_only_with_a_common_domain() {
    let mut shared = policy();
    shared.cookie_domain = Some("example.com".into());
    let (idp, rp) = fresh(shared);
    let mut browser = Browser::at("app.example.com");
    browser.log_in(&rp, &idp, "/", NOW).await;
    for host in ["app.example.com", "other.example.com", "example.com", "OTHER.example.com:8443"] {
        let mut same = Browser { host: host.into(), ..browser.clone() };
        passed(same.get(&rp, "/", NOW).await);
    }
    let mut foreign = Browser { host: "badexample.com".into(), ..browser.clone() };
    assert_eq!(answer(foreign.get(&rp, "/", NOW).await).status, 302);
}

#[tokio::test]
async fn rules_count_at_login_and_with_every_request() {
    let mut rules = policy();
    rules.allowed_groups = Box::new(["admins".into()]);
    let (idp, rp) = fresh(rules.clone());
    let mut browser = Browser::at("app.example.com");
    let done = browser.log_in(&rp, &idp, "/", NOW).await;
    assert_eq!(done.status, 403);
    assert!(browser.cookies.is_empty(), "no session for those who may not pass");
    let open = relying_party(&policy(), &idp);
    browser.log_in(&open, &idp, "/", NOW).await;
    passed(browser.get(&open, "/", NOW).await);
    assert_eq!(answer(browser.get(&rp, "/", NOW).await).status, 403, "the rule came later");
}

#[tokio::test]
async fn large_claims_are_cut_or_refused_and_never_break() {
    let (idp, rp) = fresh(policy());
    let many: Vec<String> = (0..1600).map(|i| format!("group-{i:05}")).collect();
    idp.0.lock().claims["groups"] = json!(many);
    let mut browser = Browser::at("app.example.com");
    assert_eq!(browser.log_in(&rp, &idp, "/", NOW).await.status, 302);
    assert!(browser.cookies.len() > 1);
    let headers = passed(browser.get(&rp, "/", NOW).await);
    assert!((7000..=8192).contains(&headers["x-auth-request-groups"].len()));
    // a smaller session takes the place of the larger one
    idp.0.lock().claims["groups"] = json!(["a"]);
    let done = {
        let began = answer(browser.get(&rp, "/_tak/oauth2/start?rd=/x", NOW).await);
        browser.come_back(&rp, &idp.log_in(location(&began)), NOW).await
    };
    assert_eq!(location(&done), "https://app.example.com/x");
    assert_eq!(browser.cookies.keys().collect::<Vec<_>>(), ["_tak_oauth2"]);
    passed(browser.get(&rp, "/", NOW).await);
}

#[tokio::test]
async fn tokens_are_passed_on_only_when_asked_for() {
    let mut all = policy();
    all.pass_access_token = true;
    all.pass_authorization_header = true;
    let (idp, rp) = fresh(all);
    let mut browser = Browser::at("app.example.com");
    browser.log_in(&rp, &idp, "/", NOW).await;
    let headers = passed(browser.get(&rp, "/", NOW).await);
    assert_eq!(headers["x-auth-request-access-token"], "access");
    assert!(headers["authorization"].starts_with("Bearer ey"));
}

#[tokio::test]
async fn api_calls_are_told_and_not_redirected() {
    let (_, rp) = fresh(policy());
    let mut browser = Browser::at("app.example.com");
    for (method, fields) in [
        (Method::POST, &[][..]),
        (Method::GET, &[("accept", "application/json")][..]),
        (Method::GET, &[("x-requested-with", "XMLHttpRequest")][..]),
        (Method::GET, &[("connection", "upgrade"), ("upgrade", "websocket")][..]),
        (Method::GET, &[("sec-fetch-mode", "cors")][..]),
    ] {
        let told = answer(browser.send(&rp, method, "/", fields, NOW * 1000).await);
        assert_eq!(told.status, 401);
        assert!(browser.cookies.is_empty() && location(&told).is_empty());
        assert!(told.headers.iter().any(|(n, v)| n == "www-authenticate" && v == "Bearer"));
    }
}

#[tokio::test]
async fn bearer_tokens_stand_alone() {
    let (idp, rp) = fresh(policy());
    let mut browser = Browser::at("app.example.com");
    browser.log_in(&rp, &idp, "/", NOW).await;
    let ask = |token: String| {
        let (rp, mut browser) = (rp.clone(), browser.clone());
        async move {
            let field = format!("Bearer {token}");
            browser.send(&rp, Method::GET, "/", &[("authorization", &field)], NOW * 1000).await
        }
    };
    let good = idp.token(json!({"sub": "svc", "groups": []}));
    for _ in 0..2 {
        let headers = passed(ask(good.clone()).await);
        assert_eq!(headers["x-auth-request-user"], "svc");
    }
    let none = format!(
        "{}.{}.",
        URL_SAFE_NO_PAD.encode("{\"alg\":\"none\"}"),
        URL_SAFE_NO_PAD.encode("{\"sub\":\"x\"}")
    );
    for bad in [
        idp.token(json!({"exp": NOW - 31})),
        idp.token(json!({"nbf": NOW + 60})),
        idp.token(json!({"aud": "other"})),
        idp.token(json!({"aud": []})),
        idp.token(json!({"iss": "https://evil.example"})),
        idp.token(json!({"sub": null})),
        Signing::new("ES256", "k1").sign(&json!({"sub": "x"})),
        none,
        "opaque".into(),
        String::new(),
    ] {
        let told = answer(ask(bad.clone()).await);
        assert_eq!(told.status, 401, "{bad}");
        let challenge = told.headers.iter().find(|(n, _)| n == "www-authenticate").map(|(_, v)| v);
        assert_eq!(challenge.unwrap(), "Bearer error=\"invalid_token\"");
    }
    let two = [("authorization", "Bearer a"), ("authorization", "Bearer b")];
    let told = answer(browser.clone().send(&rp, Method::GET, "/", &two, NOW * 1000).await);
    assert_eq!(told.status, 400);
}

#[tokio::test]
async fn introspection_is_asked_once_in_thirty_seconds_and_obeyed() {
    let mut opaque = policy();
    opaque.introspection = Some(ingress_core::policy::oauth::Introspection {
        url: "https://idp.example.com/introspect".parse().unwrap(),
        client_id: "web".into(),
        client_secret: None,
    });
    let (idp, rp) = fresh(opaque);
    let ask = |now: u64| {
        let rp = rp.clone();
        async move {
            let fields = [("authorization", "Bearer opaque")];
            Browser::at("app.example.com").send(&rp, Method::GET, "/", &fields, now * 1000).await
        }
    };
    idp.0.lock().introspection = json!({"active": true, "sub": "svc", "aud": "web", "exp": NOW + 1000});
    for at in [NOW, NOW + 29] {
        assert_eq!(passed(ask(at).await)["x-auth-request-user"], "svc");
    }
    assert_eq!(idp.calls("/introspect"), 1);
    idp.0.lock().introspection = json!({"active": false});
    assert_eq!(answer(ask(NOW + 30).await).status, 401);
    assert_eq!(idp.calls("/introspect"), 2);
    idp.0.lock().unreachable = true;
    assert_eq!(answer(ask(NOW + 60).await).status, 502);
    idp.0.lock().unreachable = false;
    idp.0.lock().introspection = json!({"active": true, "sub": "svc", "aud": "web", "exp": NOW + 65});
    passed(ask(NOW + 61).await);
    idp.0.lock().introspection = json!({"active": false});
    assert_eq!(answer(ask(NOW + 66).await).status, 401, "never past exp");
}

fn refreshing(minutes: u64) -> OAuthPolicy {
    let mut policy = policy();
    policy.cookie_refresh = Some(Duration::from_secs(minutes * 60));
    policy
}

#[tokio::test]
async fn two_processes_refresh_a_session_once_whatever_the_order() {
    let (idp, a) = fresh(refreshing(60));
    let b = relying_party(&refreshing(60), &idp);
    let mut browser = Browser::at("app.example.com");
    browser.log_in(&a, &idp, "/", NOW).await;
    // tokens of 300 s are due at 240 s; a burst goes to both processes
    let due = (NOW + 241) * 1000;
    let before = browser.clone();
    for i in 0..10 {
        let rp = if i % 2 == 0 { &a } else { &b };
        let mut one = before.clone();
        passed(one.send(rp, Method::GET, "/", &[], due + i).await);
        browser.cookies = one.cookies;
    }
    assert_eq!(idp.calls("/token"), 1, "claimed and not yet refreshed");
    idp.0.lock().clock = NOW + 245;
    let claimed = browser.clone();
    for i in 0..10 {
        let rp = if i % 2 == 0 { &a } else { &b };
        let mut one = claimed.clone();
        passed(one.send(rp, Method::GET, "/", &[], due + 4000 + i).await);
        if one.cookies["_tak_oauth2"] != claimed.cookies["_tak_oauth2"] {
            browser.cookies = one.cookies;
        }
    }
    assert_eq!(idp.calls("/token"), 2, "one of them refreshed, once");
    assert!(!idp.0.lock().family_dead);
    passed(browser.get(&b, "/", NOW + 300).await);
    passed(browser.get(&a, "/", NOW + 400).await);
    assert_eq!(idp.calls("/token"), 2);
}

#[tokio::test]
async fn a_late_session_is_refreshed_at_once_and_a_refused_one_ends_with_its_tokens() {
    let (idp, rp) = fresh(refreshing(60));
    let mut browser = Browser::at("app.example.com");
    browser.log_in(&rp, &idp, "/", NOW).await;
    idp.0.lock().clock = NOW + 3000;
    idp.0.lock().claims["groups"] = json!(["new"]);
    let headers = passed(browser.get(&rp, "/", NOW + 3000).await);
    assert_eq!(headers["x-auth-request-groups"], "new");
    idp.0.lock().family_dead = true;
    idp.0.lock().clock = NOW + 3300;
    assert_eq!(answer(browser.get(&rp, "/", NOW + 3301).await).status, 302);
}

#[tokio::test]
async fn a_provider_that_is_away_does_not_end_sessions_at_once() {
    let (idp, rp) = fresh(refreshing(60));
    let mut browser = Browser::at("app.example.com");
    browser.log_in(&rp, &idp, "/", NOW).await;
    idp.0.lock().unreachable = true;
    passed(browser.get(&rp, "/", NOW + 400).await);
    assert_eq!(answer(browser.get(&rp, "/", NOW + 601).await).status, 502);
    idp.0.lock().unreachable = false;
    idp.0.lock().clock = NOW + 700;
    passed(browser.get(&rp, "/", NOW + 700).await);
}

#[tokio::test]
async fn a_refresh_may_not_change_who_it_is() {
    let (idp, rp) = fresh(refreshing(60));
    let mut browser = Browser::at("app.example.com");
    browser.log_in(&rp, &idp, "/", NOW).await;
    idp.0.lock().clock = NOW + 3000;
    idp.0.lock().claims["sub"] = "u-mallory".into();
    assert_eq!(answer(browser.get(&rp, "/", NOW + 3000).await).status, 302);
}
