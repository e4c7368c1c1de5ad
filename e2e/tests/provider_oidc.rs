//! Built-in OAuth2/OIDC against a real provider, node-oidc-provider, which is strict: PKCE is a must, refresh tokens
//! rotate, one that comes twice ends the grant, access tokens are opaque, and claims come from the userinfo endpoint.

mod common;

use std::time::Duration;

use common::{HOST, NAMESPACE, behind_login, secret, serve_with, service};
use ingress_e2e::browser::Browser;
use ingress_e2e::eventually;
use ingress_e2e::origin::Origin;
use ingress_e2e::pki::{Ca, KeyKind, tls_secret_yaml};
use ingress_e2e::product::Product;
use ingress_e2e::provider::NodeOidc;
use serde_json::{Value, json};

const URL: &str = "https://app.example.com/";
const CALLBACK: &str = "https://app.example.com/_tak/oauth2/callback";
const BYE: &str = "https://app.example.com/_tak/oauth2/userinfo";

async fn product(provider: &NodeOidc, origin: &Origin, more: Value) -> Product {
    let mut data = json!({
        "oidc_issuer_url": provider.issuer(),
        "client_id": "web",
        "client_secret": "web-secret/+1",
        "cookie_secret": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
    });
    data.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let secret = secret("oidc", data);
    let leaf = Ca::new().leaf(&[HOST], KeyKind::EcP256Sec1);
    let cert = tls_secret_yaml(NAMESPACE, "cert", &leaf);
    serve_with([secret, cert, service("web", &[origin.addr()]), behind_login("oidc", HOST)], &[]).await
}

#[tokio::test]
async fn a_login_with_two_tabs_and_a_logout_at_the_provider() {
    let provider = NodeOidc::start(&[CALLBACK], &[BYE], 300).await;
    let origin = Origin::echo().await;
    let product = product(&provider, &origin, json!({"post_logout_redirect_uri": BYE})).await;
    let mut browser = Browser::new(product.https(), product.http());
    let other_tab = browser.get(&format!("{URL}b")).await;
    let (at, answer) = provider.log_in(&mut browser, &format!("{URL}a?x=1"), "alice").await;
    assert_eq!((at, answer.status), (format!("{URL}a?x=1"), 200));
    assert_eq!(answer.echoed("x-auth-request-user"), ["alice"]);
    assert_eq!(answer.echoed("x-auth-request-email"), ["alice@example.com"]);
    assert_eq!(answer.echoed("x-auth-request-groups"), ["team-a,ops"]);
    let (at, answer) = provider.log_in(&mut browser, other_tab.header("location").unwrap(), "alice").await;
    assert_eq!((at, answer.status), (format!("{URL}b"), 200));
    let (at, page) = browser.go("https://app.example.com/_tak/oauth2/logout").await;
    assert!(at.starts_with(&format!("{}/session/end?id_token_hint=", provider.issuer())), "{at}");
    assert_eq!(page.status, 200);
    assert_eq!(browser.get(URL).await.status, 302, "logged out here");
}

#[tokio::test]
async fn who_is_in_no_allowed_group_is_refused() {
    let provider = NodeOidc::start(&[CALLBACK], &[], 300).await;
    let origin = Origin::echo().await;
    let product = product(&provider, &origin, json!({"allowed_groups": "ops"})).await;
    let mut bob = Browser::new(product.https(), product.http());
    assert_eq!(provider.log_in(&mut bob, URL, "bob").await.1.status, 403);
    let mut alice = Browser::new(product.https(), product.http());
    assert_eq!(provider.log_in(&mut alice, URL, "alice").await.1.status, 200);
    assert_eq!(origin.requests(), 1);
}

#[tokio::test]
async fn rotation_across_two_processes_does_not_end_the_grant() {
    let provider = NodeOidc::start(&[CALLBACK], &[], 16).await;
    let origin = Origin::echo().await;
    let settings = json!({"cookie_refresh": "1h"});
    let first = product(&provider, &origin, settings.clone()).await;
    let second = product(&provider, &origin, settings).await;
    let mut browser = Browser::new(first.https(), first.http());
    provider.log_in(&mut browser, URL, "alice").await;
    eventually(Duration::from_secs(60), async || {
        browser.burst(URL, &[first.https(), second.https()]).await;
        (provider.logged("grant refresh_token") >= 2).then_some(())
    })
    .await;
    assert_eq!(
        (provider.logged("grant error"), provider.logged("grant revoked")),
        (0, 0),
        "{:?}",
        provider.log()
    );
}

#[tokio::test]
async fn opaque_tokens_are_introspected() {
    let provider = NodeOidc::start(&[CALLBACK], &[], 300).await;
    let origin = Origin::echo().await;
    let url = format!("{}/token/introspection", provider.issuer());
    let product =
        product(&provider, &origin, json!({"introspection_url": url, "pass_access_token": "true"})).await;
    let mut browser = Browser::new(product.https(), product.http());
    let (_, answer) = provider.log_in(&mut browser, URL, "alice").await;
    let token = answer.echoed("x-auth-request-access-token").remove(0);
    let mut program = Browser::new(product.https(), product.http());
    let bearer = format!("Bearer {token}");
    let answer = program.send("GET", URL, &[("Authorization", &bearer)], b"").await;
    assert_eq!((answer.status, answer.echoed("x-auth-request-user")), (200, vec!["alice".into()]));
    let answer = program.send("GET", URL, &[("Authorization", "Bearer another")], b"").await;
    assert_eq!(answer.status, 401);
}
