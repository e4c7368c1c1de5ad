//! Built-in OAuth2/OIDC against Keycloak, over TLS with a private authority at an IP address. It differs from the
//! provider of `provider_oidc.rs`: access tokens are JWTs with an audience of their own, groups are in the ID token,
//! roles are nested, keys rotate. One Keycloak serves all tests of this file.
//!
//! Keycloak's introspection is not asked: its access tokens are JWTs, which are checked by their signature.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{HOST, NAMESPACE, behind_login, serve_with, service};
use ingress_e2e::browser::Browser;
use ingress_e2e::origin::Origin;
use ingress_e2e::pki::{Ca, KeyKind, tls_secret_yaml};
use ingress_e2e::product::Product;
use ingress_e2e::provider::keycloak::Keycloak;
use ingress_e2e::{RunningProcess, TempDir, eventually};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

const URL: &str = "https://app.example.com/";
const LOGOUT: &str = "https://app.example.com/_tak/oauth2/logout";
const OPS: &str = "ops.example.com";

async fn keycloak() -> &'static Keycloak {
    static SHARED: OnceCell<Keycloak> = OnceCell::const_new();
    SHARED.get_or_init(Keycloak::start).await
}

/// Settings for client "web"; `more` adds and replaces.
fn secret(name: &str, provider: &Keycloak, more: Value) -> String {
    let mut data = json!({
        "oidc_issuer_url": provider.issuer(),
        "provider_ca": provider.ca_pem(),
        "client_id": "web",
        "client_secret": "web-secret/+1",
        "cookie_secret": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
    });
    data.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    common::secret(name, data)
}

/// A client whose tokens live 16 seconds, and whose groups come from the userinfo endpoint alone.
fn short(more: Value) -> Value {
    let mut settings = json!({"client_id": "short", "client_secret": "short-secret", "cookie_refresh": "1h"});
    settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    settings
}

async fn product(ca: &Ca, provider: &Keycloak, origin: &Origin, app: Value) -> Product {
    let documents = [
        secret("app", provider, app),
        secret("ops", provider, json!({"allowed_groups": "ops"})),
        tls_secret_yaml(NAMESPACE, "cert", &ca.leaf(&[HOST, OPS], KeyKind::EcP256Sec1)),
        service("web", &[origin.addr()]),
        behind_login("app", HOST),
        behind_login("ops", OPS),
    ];
    serve_with(documents, &[]).await
}

struct Scene {
    provider: &'static Keycloak,
    origin: Origin,
    product: Product,
}

impl Scene {
    async fn new(app: Value) -> Self {
        let provider = keycloak().await;
        let origin = Origin::echo().await;
        let product = product(&Ca::new(), provider, &origin, app).await;
        Self { provider, origin, product }
    }

    fn browser(&self) -> Browser {
        Browser::new(self.product.https(), self.product.http())
    }
}

#[tokio::test]
async fn tabs_log_in_side_by_side_and_a_logout_is_one_at_keycloak_too() {
    let scene = Scene::new(json!({"post_logout_redirect_uri": URL})).await;
    let mut browser = scene.browser();
    let other_tab = browser.get(&format!("{URL}b")).await;
    let (at, answer) = scene.provider.log_in(&mut browser, &format!("{URL}a?x=1"), "alice").await;
    assert_eq!((at, answer.status), (format!("{URL}a?x=1"), 200));
    assert_eq!(answer.echoed("x-auth-request-email"), ["alice@example.com"]);
    assert_eq!(answer.echoed("x-auth-request-preferred-username"), ["alice"]);
    let mut groups: Vec<_> =
        answer.echoed("x-auth-request-groups")[0].split(',').map(str::to_owned).collect();
    groups.sort();
    assert_eq!(groups, ["ops", "team-a"]);
    let (at, answer) = browser.go(other_tab.header("location").unwrap()).await;
    assert_eq!((at, answer.status), (format!("{URL}b"), 200));
    let told = browser.get(&format!("{URL}_tak/oauth2/userinfo")).await;
    assert_eq!(told.json()["email"], "alice@example.com");
    let (at, page) = browser.go(LOGOUT).await;
    assert!(at.starts_with(&scene.provider.issuer()), "{at}");
    assert!(page.text().contains("id=\"kc-form-login\""), "asks for the password again: {}", page.text());
    assert_eq!(scene.provider.events("LOGOUT", "web"), 1);
}

#[tokio::test]
async fn groups_and_nested_roles_decide() {
    let roles = json!({"oidc_groups_claim": "realm_access.roles", "allowed_groups": "auditor"});
    let scene = Scene::new(roles).await;
    for (user, status) in [("alice", 200), ("bob", 403)] {
        let mut browser = scene.browser();
        let by_role = scene.provider.log_in(&mut browser, URL, user).await.1;
        assert_eq!(by_role.status, status, "{user} by role");
        let by_group = scene.provider.log_in(&mut browser, &format!("https://{OPS}/"), user).await.1;
        assert_eq!(by_group.status, status, "{user} by group");
    }
    assert_eq!(scene.origin.requests(), 2);
}

#[tokio::test]
async fn rotation_across_two_processes_does_not_end_the_session() {
    let scene = Scene::new(short(json!({}))).await;
    let second = product(&Ca::new(), scene.provider, &scene.origin, short(json!({}))).await;
    let mut browser = scene.browser();
    let (_, answer) = scene.provider.log_in(&mut browser, URL, "alice").await;
    assert!(answer.echoed("x-auth-request-groups")[0].contains("ops"), "from the userinfo endpoint");
    let before = scene.provider.events("REFRESH_TOKEN", "short");
    eventually(Duration::from_secs(90), async || {
        browser.burst(URL, &[scene.product.https(), second.https()]).await;
        (scene.provider.events("REFRESH_TOKEN", "short") >= before + 2).then_some(())
    })
    .await;
    let failed = scene.provider.events("REFRESH_TOKEN_ERROR", "short");
    assert_eq!(failed, 0, "{:#?}", scene.provider.log());
}

#[tokio::test]
async fn a_new_signing_key_costs_no_login_and_no_token() {
    let scene = Scene::new(json!({"bearer_audiences": "https://api.example.com"})).await;
    scene.provider.log_in(&mut scene.browser(), URL, "alice").await;
    let old = scene.provider.client_token("program", "program-secret").await;
    scene.provider.rotate_key().await;
    let new = scene.provider.client_token("program", "program-secret").await;
    assert_ne!(old.split('.').next(), new.split('.').next(), "another key id");
    for token in [new, old] {
        let bearer = format!("Bearer {token}");
        let answer = scene.browser().send("GET", URL, &[("Authorization", &bearer)], b"").await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!(scene.provider.log_in(&mut scene.browser(), URL, "bob").await.1.status, 200);
}

#[tokio::test]
async fn bearer_tokens_are_for_their_audience() {
    let scene = Scene::new(json!({"pass_access_token": "true"})).await;
    let (_, answer) = scene.provider.log_in(&mut scene.browser(), URL, "alice").await;
    let mine = answer.echoed("x-auth-request-access-token").remove(0);
    let user = answer.echoed("x-auth-request-user");
    let elses = scene.provider.client_token("program", "program-secret").await;
    let mut program = scene.browser();
    let bearer = format!("Bearer {mine}");
    let answer = program.send("GET", URL, &[("Authorization", &bearer)], b"").await;
    assert_eq!((answer.status, answer.echoed("x-auth-request-user")), (200, user));
    let mut broken = mine.into_bytes();
    let signature = broken.len() - 10;
    broken[signature] = if broken[signature] == b'A' { b'B' } else { b'A' };
    for token in [elses, String::from_utf8(broken).unwrap()] {
        let answer = program.send("GET", URL, &[("Authorization", &format!("Bearer {token}"))], b"").await;
        assert_eq!(answer.status, 401);
        assert_eq!(answer.header("www-authenticate"), Some("Bearer error=\"invalid_token\""));
    }
}

/// Screenshots go to `browser` in Cargo's folder for tests. Skipped by `hack/e2e.sh`, with a word, where there is
/// no Chromium.
#[tokio::test]
async fn a_real_browser_logs_in_is_refreshed_logs_out_and_is_refused() {
    let (provider, origin, ca) = (keycloak().await, Origin::echo().await, Ca::new());
    let settings = short(json!({"post_logout_redirect_uri": URL}));
    let product = product(&ca, provider, &origin, settings).await;
    let before = provider.events("REFRESH_TOKEN", "short");
    let files = TempDir::new("browser");
    let screenshots = Path::new(env!("CARGO_TARGET_TMPDIR")).join("browser");
    let mut command = Command::new("node");
    command
        .arg(ingress_e2e::part("browser").join("login.mjs"))
        .arg(product.https().port().to_string())
        .arg(provider.issuer())
        .arg(&screenshots)
        .arg(files.write("ingress.pem", ca.pem()))
        .arg(files.write("provider.pem", provider.ca_pem()))
        .env("TMPDIR", files.path())
        .stdin(Stdio::null());
    let status = RunningProcess::spawn("the browser", command).wait_exit(Duration::from_secs(240)).await;
    assert!(status.success(), "{status}, see above and {}", screenshots.display());
    assert!(provider.events("REFRESH_TOKEN", "short") > before, "{:#?}", provider.log());
    for name in ["login", "app", "logout", "refused"] {
        assert!(screenshots.join(name).with_extension("png").is_file(), "{name}");
    }
}
