use super::super::jwt::tests::Signing;
use super::super::tests::{Fake, NOW, policy};
use super::*;
use ingress_core::OAuthPolicy;
use serde_json::json;

fn provider(policy: &OAuthPolicy) -> (Fake, Arc<Provider>) {
    let idp = Fake::new();
    (idp.clone(), Arc::new(Provider::new(policy, Box::new(idp))))
}

#[tokio::test]
async fn a_rotated_key_is_fetched_once_and_unknown_keys_do_not_flood_the_provider() {
    let (idp, provider) = provider(&policy());
    let old = idp.token(json!({}));
    assert!(provider.verify(&old, NOW).await.is_ok());
    idp.0.lock().signing = Signing::new("ES256", "k2");
    let new = idp.token(json!({}));
    assert!(provider.verify(&new, NOW + 1).await.is_ok());
    assert_eq!(idp.calls("/jwks"), 2);
    let unknown = Signing::new("ES256", "k3");
    for i in 0..1000 {
        let token = unknown.sign_as(&json!({"alg": "ES256", "kid": format!("x{i}")}), &json!({}));
        let refused = provider.verify(&token, NOW + 2 + i % 10).await;
        assert_eq!(refused, Err(ProviderError::Token(InvalidToken::UnknownKey)));
    }
    assert_eq!(idp.calls("/jwks"), 2);
    assert!(provider.verify(&old, NOW + 62).await.is_err(), "the old key is gone");
    assert_eq!(idp.calls("/jwks"), 3, "one more after a minute");
}

#[tokio::test]
async fn known_keys_work_on_while_the_provider_is_away() {
    let (idp, provider) = provider(&policy());
    let token = idp.token(json!({}));
    assert!(provider.verify(&token, NOW).await.is_ok());
    idp.0.lock().unreachable = true;
    for at in [NOW + KEYS_TTL, NOW + KEYS_TTL + 1, NOW + METADATA_TTL * 10] {
        assert!(provider.verify(&token, at).await.is_ok());
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
    }
    assert!(provider.metadata(NOW + METADATA_TTL * 10).await.is_ok());
}

#[tokio::test]
async fn a_provider_that_is_away_is_not_asked_by_every_request_and_comes_back() {
    let (idp, provider) = provider(&policy());
    idp.0.lock().unreachable = true;
    let asks = (0..50).map(|_| {
        let provider = provider.clone();
        tokio::spawn(async move { provider.metadata(NOW).await })
    });
    for ask in asks.collect::<Vec<_>>() {
        assert!(ask.await.unwrap().is_err());
    }
    assert_eq!(idp.0.lock().calls.len(), 1);
    assert_eq!(provider.metadata(NOW).await, Err(ProviderError::Pause));
    idp.0.lock().unreachable = false;
    assert!(provider.metadata(NOW + 1).await.is_ok());
    assert!(provider.metadata(NOW + 1).await.is_ok());
    assert_eq!(idp.0.lock().calls.len(), 2);
}

#[tokio::test]
async fn discovery_must_be_about_the_issuer_and_no_less_secure() {
    let told = |name: &'static str, value: Value| async move {
        let (idp, provider) = provider(&policy());
        idp.0.lock().discovery[name] = value;
        provider.metadata(NOW).await
    };
    assert_eq!(told("issuer", json!("https://evil.example")).await, Err(ProviderError::Issuer));
    assert_eq!(told("issuer", json!("https://idp.example.com/")).await, Err(ProviderError::Issuer));
    assert_eq!(told("issuer", Value::Null).await, Err(ProviderError::Issuer));
    for bad in [Value::Null, json!("http://idp.example.com/x"), json!("/x"), json!(7)] {
        assert!(told("token_endpoint", bad.clone()).await.is_err());
        assert!(told("jwks_uri", bad.clone()).await.is_err());
        assert!(told("authorization_endpoint", bad.clone()).await.is_err());
        assert_eq!(told("end_session_endpoint", bad).await.unwrap().end_session, None);
    }
    let post = told("token_endpoint_auth_methods_supported", json!(["client_secret_post"])).await;
    assert!(post.unwrap().secret_in_form);
    let both = json!(["client_secret_post", "client_secret_basic"]);
    assert!(!told("token_endpoint_auth_methods_supported", both).await.unwrap().secret_in_form);
}

#[tokio::test]
async fn without_discovery_nothing_is_asked_for() {
    let mut fixed = policy();
    fixed.endpoints = ProviderEndpoints::Fixed(Box::new(FixedEndpoints {
        login: "https://idp.example.com/auth".parse().unwrap(),
        redeem: "https://idp.example.com/token".parse().unwrap(),
        jwks: "https://idp.example.com/jwks".parse().unwrap(),
        profile: None,
    }));
    let (idp, provider) = provider(&fixed);
    assert_eq!(provider.metadata(NOW).await.unwrap().end_session, None);
    assert!(idp.0.lock().calls.is_empty());
    assert!(provider.verify(&idp.token(json!({})), NOW).await.is_ok());
}

#[test]
fn client_credentials_are_encoded_before_they_are_joined() {
    let (_, value) = basic("a:b", "c/d+e f");
    let text = STANDARD.decode(value.to_str().unwrap().strip_prefix("Basic ").unwrap()).unwrap();
    assert_eq!(text, b"a%3Ab:c%2Fd%2Be%20f");
    assert!(value.is_sensitive());
}
