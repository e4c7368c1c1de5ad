//! Built-in OAuth2/OIDC, the whole binary against a provider in this process.

mod common;

use std::time::Duration;

use common::{HOST, Ingress, NAMESPACE, join, serve_with, service};
use ingress_e2e::browser::Browser;
use ingress_e2e::client::{H2Conn, RawConn, Response};
use ingress_e2e::dns::DnsServer;
use ingress_e2e::oidc::{CLIENT, Provider, base64url, fields, now};
use ingress_e2e::origin::{Origin, Reply};
use ingress_e2e::pki::{Ca, KeyKind, tls_secret_yaml};
use ingress_e2e::product::Product;
use ingress_e2e::{DEADLINE, eventually};
use serde_json::{Value, json};

const URL: &str = "https://app.example.com";
const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const OTHER_KEY: &str = "HxAREhMUFRYXGBkaGxwdHh8AAQIDBAUGBwgJCgsMDQ4=";
const LOGOUT: &str = "https://app.example.com/_tak/oauth2/logout";
const USERINFO: &str = "https://app.example.com/_tak/oauth2/userinfo";

/// A Secret of settings for this provider; `more` adds, replaces and (null) removes.
fn secret(name: &str, provider: &Provider, more: Value) -> String {
    let mut data = json!({
        "oidc-issuer-url": provider.issuer(),
        "client-id": CLIENT.0,
        "client-secret": CLIENT.1,
        "cookie-secret": KEY,
    });
    for (key, value) in more.as_object().unwrap() {
        data[key] = value.clone();
        if value.is_null() {
            data.as_object_mut().unwrap().remove(key);
        }
    }
    common::secret(name, data)
}

fn protected(name: &str, host: &str, path: &str) -> Ingress {
    Ingress::new(name)
        .prefix(host, path, "web")
        .tls(&[host], "cert")
        .annotation("k8s.tak-os.com/oauth2-secret", "oidc")
}

fn certificate() -> String {
    let names = [HOST, "other.example.com", "*.example.com"];
    tls_secret_yaml(NAMESPACE, "cert", &Ca::new().leaf(&names, KeyKind::EcP256Sec1))
}

struct Scene {
    provider: Provider,
    origin: Origin,
    product: Product,
    browser: Browser,
}

impl Scene {
    async fn new(settings: Value) -> Self {
        let provider = Provider::start().await;
        Self::with(provider, settings, [protected("web", HOST, "/").yaml()].into(), &[]).await
    }

    async fn with(provider: Provider, settings: Value, ingresses: Vec<String>, args: &[&str]) -> Self {
        let origin = Origin::echo().await;
        let product = start(&provider, &origin, &settings, &ingresses, args).await;
        let browser = Browser::new(product.https(), product.http());
        Self { provider, origin, product, browser }
    }

    async fn log_in(&mut self, url: &str) -> Response {
        let (at, answer) = self.browser.go(url).await;
        assert_eq!((at.as_str(), answer.status), (url, 200), "{}", answer.text());
        answer
    }

    fn nothing_secret_is_logged(&self) {
        let log = self.product.log_text() + &self.product.stderr();
        for secret in [CLIENT.1, KEY, "refresh-", "access-", "code-", "eyJ", "_tak_oauth2="] {
            assert!(!log.contains(secret), "{secret} is in the log:\n{log}");
        }
    }
}

async fn start(
    provider: &Provider,
    origin: &Origin,
    settings: &Value,
    ingresses: &[String],
    args: &[&str],
) -> Product {
    let documents =
        [secret("oidc", provider, settings.clone()), certificate(), service("web", &[origin.addr()])];
    serve_with(documents.into_iter().chain(ingresses.iter().cloned()), args).await
}

/// The session's cookies of a browser.
fn session(browser: &Browser) -> Vec<String> {
    let mut all = browser.cookies(URL);
    all.retain(|cookie| cookie.starts_with("_tak_oauth2"));
    all
}

#[tokio::test]
async fn a_browser_logs_in_and_the_backend_learns_who_it_is() {
    let mut scene = Scene::new(json!({})).await;
    let began = scene.browser.get(&format!("{URL}/a?x=1")).await;
    assert_eq!((began.status, began.header("cache-control")), (302, Some("no-store")));
    let to = began.header("location").unwrap();
    assert!(
        to.starts_with(&format!("{}/auth?theme=dark&response_type=code&", scene.provider.issuer())),
        "{to}"
    );
    let asked = fields(to.split_once('?').unwrap().1);
    assert_eq!(asked["redirect_uri"], "https://app.example.com/_tak/oauth2/callback");
    let cookie = began.header("set-cookie").unwrap();
    for attribute in ["; Path=/_tak/oauth2/", "; HttpOnly", "; Secure", "; SameSite=Lax", "; Max-Age="] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    scene.browser.set(HOST, "a", "1");
    let first = scene.log_in(&format!("{URL}/a?x=1")).await;
    scene.browser.set(HOST, "b", "2");
    let again = scene.log_in(&format!("{URL}/b")).await;
    for (answer, cookies) in [(first, "a=1"), (again, "a=1; b=2")] {
        assert_eq!(answer.echoed("x-auth-request-user"), ["u-alice"]);
        assert_eq!(answer.echoed("x-auth-request-email"), ["alice@example.com"]);
        assert_eq!(answer.echoed("x-auth-request-groups"), ["team-a,ops"]);
        assert_eq!(answer.echoed("x-auth-request-preferred-username"), ["alice"]);
        assert_eq!(answer.echoed("cookie"), [cookies]);
        assert!(answer.echoed("authorization").is_empty());
    }
    let headers = [
        ("X-Auth-Request-User", "root"),
        ("X_Auth_Request_Groups", "admin"),
        ("X-Auth-Request-Access-Token", "x"),
        ("Connection", "X-Auth-Request-User, close"),
    ];
    let forged = scene.browser.send("GET", &format!("{URL}/"), &headers, b"").await;
    assert_eq!(forged.echoed("x-auth-request-user"), ["u-alice"]);
    assert!(forged.echoed("x_auth_request_groups").is_empty());
    assert!(forged.echoed("x-auth-request-access-token").is_empty());
    let told = scene.browser.get(USERINFO).await;
    assert_eq!(told.json()["email"], "alice@example.com");
    assert_eq!(scene.provider.calls("/token"), 1);
    let user = eventually(DEADLINE, async || {
        scene.product.log().iter().find_map(|l| l.get("user")?.as_str().map(str::to_owned))
    });
    assert_eq!(user.await, "u-alice");
    scene.nothing_secret_is_logged();
}

#[tokio::test]
async fn cookies_of_the_backend_and_of_the_session_stay_apart() {
    let backends = ["a=1; Path=/; Expires=Wed, 21 Oct 2099 07:28:00 GMT", "b=2", "a=3; HttpOnly"];
    let origin = Origin::http(move |_| {
        backends.iter().fold(Reply::new(200, "hi"), |reply, cookie| reply.header("Set-Cookie", cookie))
    })
    .await;
    let provider = Provider::start().await;
    let ingress = [protected("web", HOST, "/").yaml()];
    let old = start(&provider, &origin, &json!({}), &ingress, &[]).await;
    let mut browser = Browser::new(old.https(), old.http());
    browser.go(&format!("{URL}/")).await;
    // sealed with the key of before: the answer brings the session sealed anew
    let keys = json!({"cookie-secret": OTHER_KEY, "cookie-secret-previous": KEY});
    let new = start(&provider, &origin, &keys, &ingress, &[]).await;
    let cookies = browser.cookies(URL).join("; ");
    let mut h1 = RawConn::connect_tls(new.https(), Some(HOST), &["http/1.1"]).await.unwrap();
    let h2 = H2Conn::connect_tls(new.https(), HOST).await.unwrap();
    let fields = [("Cookie", cookies.as_str())];
    for answer in [
        h1.request("GET", HOST, "/", &fields, b"").await.unwrap(),
        h2.request("GET", HOST, "/", &fields, b"").await.unwrap(),
    ] {
        let all = answer.header_all("set-cookie");
        let (ours, theirs): (Vec<&str>, Vec<&str>) = all.iter().partition(|c| c.starts_with("_tak_oauth2"));
        assert_eq!((ours.len(), theirs.as_slice()), (1, &backends[..]), "{all:?}");
    }
}

#[tokio::test]
async fn tabs_log_in_side_by_side() {
    let mut scene = Scene::new(json!({})).await;
    let browser = &mut scene.browser;
    let mut back = Vec::new();
    for path in ["/a", "/b", "/c"] {
        let began = browser.get(&format!("{URL}{path}")).await;
        let sent = browser.get(began.header("location").unwrap()).await;
        back.push((path, sent.header("location").unwrap().to_owned()));
    }
    for (path, url) in back.into_iter().rev() {
        let (at, answer) = browser.go(&url).await;
        assert_eq!((at, answer.status), (format!("{URL}{path}"), 200));
    }
}

#[tokio::test]
async fn a_callback_is_for_the_browser_that_began_and_once() {
    let mut scene = Scene::new(json!({})).await;
    let began = scene.browser.get(&format!("{URL}/a")).await;
    let sent = scene.browser.get(began.header("location").unwrap()).await;
    let callback = sent.header("location").unwrap().to_owned();
    let mut victim = Browser::new(scene.product.https(), scene.product.http());
    let refused = victim.get(&callback).await;
    assert_eq!((refused.status, refused.header("set-cookie")), (400, None));
    let mut replay = scene.browser.clone();
    assert_eq!(scene.browser.get(&callback).await.status, 302);
    for browser in [&mut scene.browser, &mut replay, &mut victim] {
        let refused = browser.get(&callback).await;
        assert_eq!((refused.status, refused.header("set-cookie")), (400, None));
    }
    assert_eq!(scene.provider.calls("/token"), 1, "the code was redeemed once");
    for junk in ["", "?state=x", "?code=y", "?state=aaaaaaaaaaaa.x&code=y", "?state=%ff&code=y", "?%&=&state"]
    {
        let refused = scene.browser.get(&format!("{URL}/_tak/oauth2/callback{junk}")).await;
        assert_eq!(refused.status, 400, "{junk}");
    }
    scene.provider.state().nonce = Some("of-another-login".into());
    scene.browser.clear();
    let (at, refused) = scene.browser.go(&format!("{URL}/a")).await;
    assert!(at.starts_with("https://app.example.com/_tak/oauth2/callback?"), "{at}");
    assert_eq!(refused.status, 403);
    assert!(session(&scene.browser).is_empty());
    scene.nothing_secret_is_logged();
}

#[tokio::test]
async fn forged_cookies_are_no_session() {
    let mut scene = Scene::new(json!({})).await;
    scene.log_in(&format!("{URL}/")).await;
    let good = session(&scene.browser)[0].split_once('=').unwrap().1.to_owned();
    let mut flipped = good.clone().into_bytes();
    flipped[30] = if flipped[30] == b'A' { b'B' } else { b'A' };
    let forged = [
        String::from_utf8(flipped).unwrap(),
        good[..good.len() - 5].to_owned(),
        String::new(),
        "x".into(),
        "A".repeat(3500),
        base64url(json!({"user": "root"}).to_string()),
    ];
    for value in forged {
        let mut other = Browser::new(scene.product.https(), scene.product.http());
        other.set(HOST, "_tak_oauth2", &value);
        let answer = other.get(&format!("{URL}/")).await;
        assert_eq!(answer.status, 302, "{value}");
        let cleared = answer.header_all("set-cookie").iter().any(|c| c.starts_with("_tak_oauth2=; "));
        assert!(cleared, "{answer:?}");
    }
    assert_eq!(scene.origin.requests(), 1);
    assert_eq!(scene.browser.get(&format!("{URL}/")).await.status, 200);
}

#[tokio::test]
async fn no_return_address_leads_elsewhere() {
    let mut scene = Scene::new(json!({})).await;
    for evil in [
        "%2F%2Fevil.example%2F",
        "%2F%5Cevil.example",
        "%2F%2509%2Fevil.example",
        "%2F%255cevil.example",
        "https%3A%2F%2Fevil.example",
        "%2F..%2F%2Fevil.example",
        "https%3A%2F%2Fapp.example.com%40evil.example%2F",
    ] {
        for endpoint in ["start", "logout"] {
            let answer = scene.browser.get(&format!("{URL}/_tak/oauth2/{endpoint}?rd={evil}")).await;
            assert_eq!((answer.status, answer.header("location")), (400, None), "{endpoint} {evil}");
        }
    }
    let start = format!("{URL}/_tak/oauth2/start?rd=%2Fr%3Fu%3Dhttps%3A%2F%2Fx.example%2Fy");
    let (at, _) = scene.browser.go(&start).await;
    assert_eq!(at, "https://app.example.com/r?u=https://x.example/y");
    for path in ["//evil.example/", "//evil.example/%2e"] {
        scene.browser.clear();
        let (at, answer) = scene.browser.go(&format!("{URL}{path}")).await;
        assert!(at.starts_with("https://app.example.com/"), "{path} leads to {at}: {}", answer.status);
    }
}

#[tokio::test]
async fn logout_ends_the_session_here_and_at_the_provider_if_asked() {
    let mut scene = Scene::new(json!({})).await;
    scene.log_in(&format!("{URL}/")).await;
    let done = scene.browser.get(LOGOUT).await;
    assert_eq!((done.status, session(&scene.browser)), (200, vec![]));
    assert_eq!(scene.browser.get(&format!("{URL}/")).await.status, 302);
    assert_eq!(scene.browser.get(USERINFO).await.status, 401);

    let settings = json!({"post_logout_redirect_uri": "https://app.example.com/_tak/oauth2/userinfo"});
    scene.product.write_manifest("manifests.yaml", &{
        let documents = [secret("oidc", &scene.provider, settings), certificate()];
        let rest = [service("web", &[scene.origin.addr()]), protected("web", HOST, "/").yaml()];
        join(documents.into_iter().chain(rest))
    });
    scene.log_in(&format!("{URL}/")).await;
    eventually(DEADLINE, async || {
        scene.browser.go(&format!("{URL}/")).await;
        let (at, _) = scene.browser.go(LOGOUT).await;
        at.ends_with("/userinfo").then_some(())
    })
    .await;
    assert!(scene.provider.calls("/end") > 0);
    assert!(session(&scene.browser).is_empty());
}

#[tokio::test]
async fn rules_decide_and_a_changed_rule_decides_at_once() {
    let mut scene = Scene::new(json!({"allowed-groups": "admins"})).await;
    let (_, refused) = scene.browser.go(&format!("{URL}/")).await;
    assert_eq!((refused.status, session(&scene.browser)), (403, vec![]));
    let rewrite = |scene: &Scene, settings: Value| {
        let documents = [secret("oidc", &scene.provider, settings), certificate()];
        let rest = [service("web", &[scene.origin.addr()]), protected("web", HOST, "/").yaml()];
        scene.product.write_manifest("manifests.yaml", &join(documents.into_iter().chain(rest)));
    };
    rewrite(&scene, json!({"allowed-groups": "admins,ops"}));
    let url = format!("{URL}/");
    eventually(DEADLINE, async || (scene.browser.go(&url).await.1.status == 200).then_some(())).await;
    rewrite(&scene, json!({"email-domains": "other.example"}));
    eventually(DEADLINE, async || (scene.browser.get(&url).await.status == 403).then_some(())).await;
    rewrite(&scene, json!({"email-domains": "example.com"}));
    eventually(DEADLINE, async || (scene.browser.get(&url).await.status == 200).then_some(())).await;
    // S77: another key ends the sessions of the old one, and the previous one keeps them
    rewrite(&scene, json!({"cookie-secret": OTHER_KEY, "cookie-secret-previous": KEY}));
    let before = session(&scene.browser);
    eventually(DEADLINE, async || {
        let answer = scene.browser.get(&url).await;
        assert_eq!(answer.status, 200);
        (session(&scene.browser) != before).then_some(())
    })
    .await;
    rewrite(&scene, json!({"cookie-secret": OTHER_KEY}));
    assert_eq!(scene.browser.get(&url).await.status, 200);
    rewrite(&scene, json!({}));
    eventually(DEADLINE, async || (scene.browser.get(&url).await.status == 302).then_some(())).await;
}

#[tokio::test]
async fn half_a_secret_closes_the_route_and_says_what_is_missing() {
    let mut scene = Scene::new(json!({})).await;
    let url = format!("{URL}/");
    scene.log_in(&url).await;
    let mut wrong = vec![
        (json!({"cookie-secret": "AAAA"}), "key cookie_secret is not exactly 32 bytes in base64"),
        (json!({"cookie-secret": null}), "key cookie_secret is missing or empty"),
        (json!({"oidc-issuer-url": null}), "key oidc_issuer_url is missing or empty"),
        (json!({"allowed-group": "admins"}), "the nearest is allowed_groups"),
        (json!({"cookie-expire": "soon"}), "key cookie_expire is not a duration"),
    ];
    wrong.push((json!({"email-domains": ""}), "key email_domains is not"));
    for (settings, said) in wrong {
        let documents = [secret("oidc", &scene.provider, settings), certificate()];
        let rest = [service("web", &[scene.origin.addr()]), protected("web", HOST, "/").yaml()];
        scene.product.write_manifest("manifests.yaml", &join(documents.into_iter().chain(rest)));
        let logged = async || scene.product.log_text().contains(said).then_some(());
        eventually(DEADLINE, logged).await;
        let answer = scene.browser.get(&url).await;
        assert_eq!(
            (answer.status, answer.text().trim()),
            (501, "Authentication required but not configured"),
            "{said}"
        );
    }
    assert!(!scene.product.log_text().contains("AAAA"));
}

#[tokio::test]
async fn two_processes_refresh_a_session_without_using_a_token_twice() {
    let provider = Provider::start().await;
    provider.state().expires_in = 16;
    let settings = json!({"cookie-refresh": "1h"});
    let ingress = vec![protected("web", HOST, "/").yaml()];
    let mut scene = Scene::with(provider, settings.clone(), ingress.clone(), &[]).await;
    let second = start(&scene.provider, &scene.origin, &settings, &ingress, &[]).await;
    let url = format!("{URL}/");
    scene.log_in(&url).await;
    let before = session(&scene.browser);
    // bursts to both processes, as a page's requests, until two refreshes are done
    eventually(Duration::from_secs(60), async || {
        let mut burst = tokio::task::JoinSet::new();
        for at in [scene.product.https(), second.https()].repeat(3) {
            let (mut one, url) = (scene.browser.at(at), url.clone());
            burst.spawn(async move {
                let answer = one.get(&url).await;
                assert_eq!(answer.status, 200, "{}", answer.text());
                answer
            });
        }
        for answer in burst.join_all().await {
            scene.browser.take(&url, &answer);
        }
        (scene.provider.calls("/token") >= 3).then_some(())
    })
    .await;
    assert!(!scene.provider.state().reused, "a refresh token was used twice");
    assert_ne!(session(&scene.browser), before);
    scene.nothing_secret_is_logged();
}

#[tokio::test]
async fn the_provider_may_go_and_come_back() {
    let mut scene = Scene::new(json!({})).await;
    let url = format!("{URL}/");
    scene.log_in(&url).await;
    scene.provider.stop().await;
    assert_eq!(scene.browser.get(&url).await.status, 200, "a session needs no provider");

    // a process that starts while the provider is away
    let ingress = [
        protected("web", HOST, "/").yaml(),
        Ingress::new("open").prefix("open.example.com", "/", "web").yaml(),
    ];
    let late = start(&scene.provider, &scene.origin, &json!({}), &ingress, &[]).await;
    let mut browser = Browser::new(late.https(), late.http());
    let down = browser.get(&url).await;
    assert_eq!((down.status, down.header("server")), (502, Some("tak-os-ingress")));
    assert_eq!(browser.get("http://open.example.com/").await.status, 200, "other routes serve");
    assert_eq!(scene.browser.at(late.https()).get(&url).await.status, 200, "sessions of others, too");
    scene.provider.restart().await;
    eventually(DEADLINE, async || (browser.go(&url).await.1.status == 200).then_some(())).await;
}

#[tokio::test]
async fn bearer_tokens_are_checked_by_signature_and_by_introspection() {
    let provider = Provider::start().await;
    let url = format!("{}/introspect", provider.issuer());
    let settings = json!({"introspection-url": url, "bearer-audiences": "web,api"});
    let mut scene = Scene::with(provider, settings, [protected("web", HOST, "/").yaml()].into(), &[]).await;
    scene.log_in(&format!("{URL}/")).await;
    let ask = async |token: &str| {
        let field = format!("Bearer {token}");
        let mut browser = scene.browser.clone();
        browser.send("GET", &format!("{URL}/"), &[("Authorization", &field)], b"").await
    };
    let good = scene.provider.token(&json!({"sub": "svc", "aud": ["x", "api"]}));
    let answer = ask(&good).await;
    assert_eq!((answer.status, answer.echoed("x-auth-request-user")), (200, vec!["svc".into()]));
    assert_eq!(answer.echoed("authorization"), [format!("Bearer {good}")]);
    let claims = json!({"sub": "root", "iss": scene.provider.issuer(), "aud": "web", "exp": now() + 300});
    let none = format!("{}.{}.", base64url("{\"alg\":\"none\"}"), base64url(claims.to_string()));
    let hmac = scene.provider.state().sign(&json!({"alg": "HS256", "kid": "k1"}), &claims);
    for bad in [
        scene.provider.token(&json!({"exp": now() - 60})),
        scene.provider.token(&json!({"aud": "other"})),
        scene.provider.token(&json!({"iss": "https://evil.example"})),
        none,
        hmac,
        "opaque-and-unknown".into(),
        "x".repeat(20_000),
    ] {
        let answer = ask(&bad).await;
        assert_eq!((answer.status, answer.header("location")), (401, None), "{bad}");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer error=\"invalid_token\""));
    }
    let live = json!({"active": true, "sub": "svc-2", "client_id": "api", "exp": now() + 300});
    scene.provider.state().introspection.insert("opaque".into(), live);
    let before = scene.provider.calls("/introspect");
    for _ in 0..3 {
        let answer = ask("opaque").await;
        assert_eq!((answer.status, answer.echoed("x-auth-request-user")), (200, vec!["svc-2".into()]));
    }
    assert_eq!(scene.provider.calls("/introspect"), before + 1);
    // C136: keys that nobody knows do not flood the provider, and a rotated one is found
    scene.provider.rotate_key();
    let rotated = scene.provider.token(&json!({}));
    assert_eq!(ask(&rotated).await.status, 200);
    let fetched = scene.provider.calls("/jwks");
    for i in 0..50 {
        let unknown = scene.provider.state().sign(&json!({"alg": "RS256", "kid": format!("x{i}")}), &claims);
        assert_eq!(ask(&unknown).await.status, 401);
    }
    assert_eq!(scene.provider.calls("/jwks"), fetched);
    let two = [("Authorization", "Bearer a"), ("Authorization", "Bearer b")];
    assert_eq!(scene.browser.send("GET", &format!("{URL}/"), &two, b"").await.status, 400);
    scene.nothing_secret_is_logged();
}

#[tokio::test]
async fn api_like_requests_get_401_and_no_cookie() {
    let mut scene = Scene::new(json!({"api-routes": "/api"})).await;
    type Fields = &'static [(&'static str, &'static str)];
    let cases: [(&str, &str, Fields); 7] = [
        ("POST", "/", &[]),
        ("GET", "/api/x", &[("Accept", "text/html")]),
        ("GET", "/", &[("Accept", "application/json")]),
        ("GET", "/", &[("X-Requested-With", "XMLHttpRequest")]),
        ("GET", "/", &[("Sec-Fetch-Mode", "cors"), ("Sec-Fetch-Dest", "empty")]),
        ("GET", "/", &[("Sec-Fetch-Mode", "no-cors"), ("Sec-Fetch-Dest", "image")]),
        ("DELETE", "/", &[("Accept", "text/html")]),
    ];
    for (method, path, headers) in cases {
        let answer = scene.browser.send(method, &format!("{URL}{path}"), headers, b"").await;
        assert_eq!((answer.status, answer.header("location")), (401, None), "{method} {path} {headers:?}");
        assert!(answer.header("set-cookie").is_none() && answer.header("www-authenticate").is_some());
    }
    let navigation =
        [("Accept", "text/html"), ("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "document")];
    let answer = scene.browser.send("GET", &format!("{URL}/"), &navigation, b"").await;
    assert_eq!(answer.status, 302);
    assert_eq!(scene.origin.requests(), 0);
}

#[tokio::test]
async fn an_upgrade_is_authenticated_like_any_request() {
    let mut scene = Scene::new(json!({})).await;
    let handshake = async |cookies: &str| {
        let mut conn = RawConn::connect_tls(scene.product.https(), Some(HOST), &["http/1.1"]).await.unwrap();
        let head = format!(
            "GET / HTTP/1.1\r\nHost: {HOST}\r\n{cookies}Connection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        conn.send(head).await.unwrap();
        conn.read_response().await.unwrap()
    };
    let refused = handshake("").await;
    assert_eq!((refused.status, refused.header("location")), (401, None));
    assert_eq!(scene.origin.requests(), 0);
    let mut browser = scene.browser.clone();
    browser.go(&format!("{URL}/")).await;
    let answer = handshake(&format!("Cookie: {}\r\n", session(&browser).join("; "))).await;
    assert_eq!(answer.status, 200, "the echo origin takes the handshake for a request");
    assert_eq!(answer.echoed("upgrade"), ["websocket"]);
    assert_eq!(answer.echoed("x-auth-request-user"), ["u-alice"]);
    assert!(answer.echoed("cookie").is_empty());
    scene.browser.clear();
}

#[tokio::test]
async fn large_group_claims_are_cut_and_do_not_break() {
    let mut scene = Scene::new(json!({"allowed-groups": "group-01499"})).await;
    let groups: Vec<_> = (0..1500).map(|i| format!("group-{i:05}")).collect();
    scene.provider.state().claims["groups"] = json!(groups);
    let answer = scene.log_in(&format!("{URL}/")).await;
    let told = answer.echoed("x-auth-request-groups");
    assert!(told[0].starts_with("group-01499,group-00000,") && told[0].len() <= 8192, "{}", told[0].len());
    assert!(session(&scene.browser).len() > 1);
    eventually(DEADLINE, async || {
        scene.product.log_text().contains("more groups than a session holds").then_some(())
    })
    .await;
    // over HTTP/2 browsers send each cookie as a field of its own
    let conn = H2Conn::connect_tls(scene.product.https(), HOST).await.unwrap();
    let cookies = session(&scene.browser);
    let fields: Vec<_> = cookies.iter().map(|cookie| ("cookie", cookie.as_str())).collect();
    let answer = conn.request("GET", HOST, "/", &fields, b"").await.unwrap();
    assert_eq!((answer.status, answer.echoed("x-auth-request-user")), (200, vec!["u-alice".into()]));
    assert!(answer.echoed("cookie").is_empty());
    // a smaller session later takes the place of all parts
    scene.provider.state().claims["groups"] = json!(["group-01499"]);
    scene.browser.go(&format!("{URL}/_tak/oauth2/start")).await;
    assert_eq!(session(&scene.browser).len(), 1);
}

#[tokio::test]
async fn clients_share_a_host_and_its_endpoints() {
    let provider = Provider::start().await;
    let other = provider.issuer();
    let second = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": NAMESPACE, "name": "second"},
    "data": {
        "OAUTH2_PROXY_OIDC_ISSUER_URL": openssl::base64::encode_block(other.as_bytes()),
        "OAUTH2_PROXY_CLIENT_ID": openssl::base64::encode_block(CLIENT.0.as_bytes()),
        "OAUTH2_PROXY_CLIENT_SECRET": openssl::base64::encode_block(CLIENT.1.as_bytes()),
        "OAUTH2_PROXY_COOKIE_SECRET": openssl::base64::encode_block(OTHER_KEY.as_bytes()),
        "OAUTH2_PROXY_COOKIE_NAME": openssl::base64::encode_block(b"second"),
    }});
    let ingresses = vec![
        second.to_string(),
        protected("a", HOST, "/a").yaml(),
        Ingress::new("b")
            .prefix(HOST, "/b", "web")
            .tls(&[HOST], "cert")
            .set("oauth2-secret", "second")
            .yaml(),
        Ingress::new("open").prefix(HOST, "/open", "web").yaml(),
    ];
    let mut scene = Scene::with(provider, json!({}), ingresses, &[]).await;
    scene.log_in(&format!("{URL}/a/x")).await;
    let answer = scene.log_in(&format!("{URL}/b/y")).await;
    assert!(answer.echoed("cookie").is_empty(), "neither session is the backend's business");
    let open = scene.browser.get(&format!("{URL}/open")).await;
    assert_eq!((open.status, open.echoed("cookie").len()), (200, 0), "nor that of an open route");
    assert_eq!(open.echoed("x-auth-request-user").len(), 0);
    assert_eq!(scene.browser.get(&format!("{URL}/_tak/oauth2/other")).await.status, 404);
    scene.browser.get(LOGOUT).await;
    for path in ["/a", "/b"] {
        assert_eq!(scene.browser.get(&format!("{URL}{path}")).await.status, 302, "{path}");
    }
    let plain = Ingress::new("plain").prefix("plain.example.com", "/", "web").yaml();
    scene.product.write_manifest("plain.yaml", &plain);
    eventually(DEADLINE, async || {
        let answer = scene.browser.get("http://plain.example.com/_tak/oauth2/logout").await;
        (answer.status == 200).then_some(())
    })
    .await; // there the path is the backend's
}

#[tokio::test]
async fn hosts_share_a_session_only_by_name_domain_and_provider() {
    let provider = Provider::start().await;
    let ingresses =
        vec![protected("web", HOST, "/").yaml(), protected("other", "other.example.com", "/").yaml()];
    let mut scene = Scene::with(provider, json!({}), ingresses.clone(), &[]).await;
    scene.log_in(&format!("{URL}/")).await;
    assert_eq!(scene.browser.get("https://other.example.com/").await.status, 302);
    let stolen = session(&scene.browser)[0].split_once('=').unwrap().1.to_owned();
    scene.browser.set("other.example.com", "_tak_oauth2", &stolen);
    assert_eq!(scene.browser.get("https://other.example.com/").await.status, 302, "one key is not enough");

    let shared = json!({"cookie-domain": ".example.com"});
    let product = start(&scene.provider, &scene.origin, &shared, &ingresses, &[]).await;
    let mut browser = Browser::new(product.https(), product.http());
    browser.go(&format!("{URL}/")).await;
    assert_eq!(browser.get("https://other.example.com/").await.status, 200);
}

#[tokio::test]
async fn what_is_secure_follows_the_connection_and_no_header() {
    let provider = Provider::start().await;
    let plain = Ingress::new("plain")
        .prefix("plain.example.com", "/", "web")
        .annotation("k8s.tak-os.com/oauth2-secret", "oidc")
        .yaml();
    let mut scene =
        Scene::with(provider, json!({}), vec![plain, protected("web", HOST, "/").yaml()], &[]).await;
    let headers =
        [("X-Forwarded-Proto", "https"), ("Forwarded", "proto=https"), ("X-Forwarded-Host", "evil.example")];
    let answer = scene.browser.send("GET", "http://plain.example.com/", &headers, b"").await;
    let asked = fields(answer.header("location").unwrap().split_once('?').unwrap().1);
    assert_eq!(asked["redirect_uri"], "http://plain.example.com/_tak/oauth2/callback");
    assert!(!answer.header("set-cookie").unwrap().contains("Secure"));
    let headers = [("X-Forwarded-Proto", "http"), ("X-Forwarded-Host", "evil.example")];
    let answer = scene.browser.send("GET", &format!("{URL}/"), &headers, b"").await;
    let asked = fields(answer.header("location").unwrap().split_once('?').unwrap().1);
    assert_eq!(asked["redirect_uri"], "https://app.example.com/_tak/oauth2/callback");
    assert!(answer.header("set-cookie").unwrap().contains("; Secure"));
    // the endpoints, too, are redirected to https first
    let answer = scene.browser.get("http://app.example.com/_tak/oauth2/start").await;
    assert_eq!(answer.status, 308);
    let (at, answer) = scene.browser.go("http://plain.example.com/x").await;
    assert_eq!((at.as_str(), answer.status), ("http://plain.example.com/x", 200));
}

#[tokio::test]
async fn a_private_authority_is_trusted_where_it_is_named() {
    let ca = Ca::new();
    let dns = DnsServer::start().await;
    dns.set("idp.corp.test", vec![std::net::Ipv4Addr::LOCALHOST.into()]);
    let provider =
        Provider::start_tls("idp.corp.test", &ca.leaf(&["idp.corp.test"], KeyKind::EcP256Sec1)).await;
    let servers = format!("--dns-servers={}", dns.addr());
    let ingress = vec![protected("web", HOST, "/").yaml()];
    let mut scene = Scene::with(provider, json!({}), ingress.clone(), &[&servers]).await;
    assert_eq!(scene.browser.get(&format!("{URL}/")).await.status, 502, "an unknown authority");
    let settings = json!({"provider-ca": ca.pem()});
    let product = start(&scene.provider, &scene.origin, &settings, &ingress, &[&servers]).await;
    let began = Browser::new(product.https(), product.http()).get(&format!("{URL}/")).await;
    assert_eq!(began.status, 302, "{}", began.text());
    let guarded = start(
        &scene.provider,
        &scene.origin,
        &settings,
        &ingress,
        &[&servers, "--deny-backend-cidrs=127.0.0.1/32"],
    )
    .await;
    let began = Browser::new(guarded.https(), guarded.http()).get(&format!("{URL}/")).await;
    assert_eq!(began.status, 502, "an address that is never dialled");
}

#[tokio::test]
async fn without_discovery_the_endpoints_are_those_of_the_secret() {
    let provider = Provider::start().await;
    let issuer = provider.issuer();
    let settings = json!({
        "skip_oidc_discovery": "true",
        "login_url": format!("{issuer}/auth?theme=dark"),
        "redeem_url": format!("{issuer}/token"),
        "oidc_jwks_url": format!("{issuer}/jwks"),
    });
    let mut scene = Scene::with(provider, settings, [protected("web", HOST, "/").yaml()].into(), &[]).await;
    scene.log_in(&format!("{URL}/")).await;
    assert_eq!(scene.provider.calls("/.well-known/openid-configuration"), 0);
}
