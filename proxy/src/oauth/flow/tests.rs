use super::super::tests::{Browser, Fake, NOW, answer, location, passed, policy, relying_party};
use super::*;
use http::header::SET_COOKIE;

const HOST: &str = "app.example.com";

fn fresh() -> (Fake, Arc<RelyingParty>, Browser) {
    let idp = Fake::new();
    let rp = relying_party(&policy(), &idp);
    (idp, rp, Browser::at(HOST))
}

async fn begin(browser: &mut Browser, rp: &Arc<RelyingParty>, idp: &Fake, target: &str) -> String {
    let began = answer(browser.get(rp, target, NOW).await);
    assert_eq!(began.status, 302, "{target}");
    idp.log_in(location(&began))
}

fn sets_session(answer: &Answer) -> bool {
    let session = |value: &HeaderValue| {
        value.to_str().is_ok_and(|v| v.starts_with("_tak_oauth2=") && !v.contains("Max-Age=0"))
    };
    answer.headers.iter().any(|(name, value)| name == SET_COOKIE && session(value))
}

#[tokio::test]
async fn tabs_log_in_side_by_side_in_any_order() {
    let (idp, rp, mut browser) = fresh();
    let a = begin(&mut browser, &rp, &idp, "/a").await;
    let b = begin(&mut browser, &rp, &idp, "/b?x=1").await;
    assert_eq!(browser.cookies.len(), 2);
    let done = browser.come_back(&rp, &b, NOW).await;
    assert_eq!(location(&done), "https://app.example.com/b?x=1");
    let done = browser.come_back(&rp, &a, NOW).await;
    assert_eq!(location(&done), "https://app.example.com/a");
    passed(browser.get(&rp, "/", NOW).await);
}

#[tokio::test]
async fn a_login_that_took_too_long_leads_on_only_with_a_session() {
    let (idp, rp, mut browser) = fresh();
    let a = begin(&mut browser, &rp, &idp, "/a").await;
    let late = NOW + LOGIN_TIME;
    let mut alone = browser.clone();
    let refused = alone.come_back(&rp, &a, late).await;
    assert_eq!((refused.status.as_u16(), sets_session(&refused)), (400, false));
    let b = begin(&mut browser, &rp, &idp, "/b").await;
    browser.come_back(&rp, &b, NOW).await;
    let on = browser.come_back(&rp, &a, late).await;
    assert_eq!((on.status.as_u16(), location(&on)), (302, "https://app.example.com/a"));
    assert_eq!(idp.calls("/token"), 1, "its code was not used");
}

#[tokio::test]
async fn a_callback_needs_the_cookie_of_its_own_login() {
    let (idp, rp, mut browser) = fresh();
    let mine = begin(&mut browser, &rp, &idp, "/a").await;
    let mut attacker = Browser::at(HOST);
    let theirs = begin(&mut attacker, &rp, &idp, "/evil").await;
    let mut victim = Browser::at(HOST);
    let query = |url: &str| url.split_once('?').unwrap().1.to_owned();
    let state = |url: &str| parameter(Some(&query(url)), "state").unwrap().unwrap();
    let mixed = theirs.replace(&state(&theirs), &state(&mine));
    let other_state = mine.replace(&state(&mine), &format!("{}x", state(&mine)));
    for (who, url) in [
        (&mut victim, mine.clone()),
        (&mut attacker.clone(), mine.clone()),
        (&mut browser.clone(), theirs.clone()),
        (&mut browser.clone(), other_state),
        (&mut browser.clone(), "https://app.example.com/_tak/oauth2/callback".into()),
        (&mut browser.clone(), "https://app.example.com/_tak/oauth2/callback?code=x".into()),
        (&mut browser.clone(), format!("{mine}&state=x")),
        (&mut browser.clone(), format!("{mine}&code=x")),
    ] {
        let refused = who.come_back(&rp, &url, NOW).await;
        assert_eq!((refused.status.as_u16(), sets_session(&refused)), (400, false), "{url}");
    }
    let moved = attacker.cookies.iter().next().map(|(name, value)| (name.clone(), value.clone())).unwrap();
    let mut renamed = browser.clone();
    let name = renamed.cookies.keys().next().unwrap().clone();
    renamed.cookies.insert(name, moved.1);
    let refused = renamed.come_back(&rp, &mine, NOW).await;
    assert_eq!(refused.status, 400, "another login's cookie under this one's name");
    assert_eq!(idp.calls("/token"), 0, "no code was redeemed");
    // an attacker's code in the victim's own login fails at the provider: PKCE is another's
    let refused = browser.come_back(&rp, &mixed, NOW).await;
    assert_eq!((refused.status.as_u16(), sets_session(&refused)), (403, false));
}

#[tokio::test]
async fn a_login_ends_once() {
    let (idp, rp, mut browser) = fresh();
    let back = begin(&mut browser, &rp, &idp, "/a").await;
    let mut replay = browser.clone();
    browser.come_back(&rp, &back, NOW).await;
    for who in [&mut browser, &mut replay] {
        let refused = who.come_back(&rp, &back, NOW).await;
        assert_eq!((refused.status.as_u16(), sets_session(&refused)), (400, false));
    }
    assert_eq!(idp.calls("/token"), 1);
}

#[tokio::test]
async fn another_nonce_or_none_ends_the_login() {
    for nonce in ["", "another"] {
        let (idp, rp, mut browser) = fresh();
        idp.0.lock().nonce = Some(nonce.into());
        let refused = browser.log_in(&rp, &idp, "/a", NOW).await;
        assert_eq!((refused.status.as_u16(), sets_session(&refused)), (403, false), "{nonce:?}");
        assert!(browser.cookies.is_empty());
    }
}

#[tokio::test]
async fn the_id_token_must_be_for_this_client_by_this_provider() {
    for (name, value) in [
        ("azp", serde_json::json!("other")),
        ("sub", serde_json::json!(null)),
        ("nbf", serde_json::json!(NOW + 100)),
    ] {
        let (idp, rp, mut browser) = fresh();
        idp.0.lock().claims[name] = value;
        let refused = browser.log_in(&rp, &idp, "/", NOW).await;
        assert_eq!((refused.status.as_u16(), sets_session(&refused)), (403, false), "{name}");
    }
    let (idp, rp, mut browser) = fresh();
    let back = begin(&mut browser, &rp, &idp, "/").await;
    let refused = browser.come_back(&rp, &format!("{back}&iss=https%3A%2F%2Fevil.example"), NOW).await;
    assert_eq!(refused.status, 400);
    assert_eq!(idp.calls("/token"), 0);
}

#[tokio::test]
async fn the_provider_may_say_no() {
    let (idp, rp, mut browser) = fresh();
    let back = begin(&mut browser, &rp, &idp, "/a").await;
    let state = back.split_once("&state=").unwrap().1;
    let url = format!("https://app.example.com/_tak/oauth2/callback?error=access_denied%0d%0a&state={state}");
    let told = browser.come_back(&rp, &url, NOW).await;
    assert_eq!(told.status, 403);
    assert!(told.body.contains("(access_denied)"));
    assert!(browser.cookies.is_empty());
}

#[tokio::test]
async fn no_spelling_of_a_return_address_leads_elsewhere() {
    let (idp, rp, mut browser) = fresh();
    for evil in [
        "//evil.example/",
        "/\\evil.example",
        "/%2509/evil.example",
        "https://evil.example",
        "/..//evil.example",
    ] {
        let mut rd = String::new();
        super::super::request::encode(&mut rd, evil);
        for endpoint in ["start", "logout"] {
            let told = answer(browser.get(&rp, &format!("/_tak/oauth2/{endpoint}?rd={rd}"), NOW).await);
            assert_eq!((told.status.as_u16(), location(&told)), (400, ""), "{endpoint} {evil}");
        }
    }
    let back =
        begin(&mut browser, &rp, &idp, "/_tak/oauth2/start?rd=%2Fr%3Fu%3Dhttps%3A%2F%2Fx.example%2Fy").await;
    let done = browser.come_back(&rp, &back, NOW).await;
    assert_eq!(location(&done), "https://app.example.com/r?u=https://x.example/y");
    // a return address is none of the callback's business
    let back = begin(&mut browser, &rp, &idp, "/_tak/oauth2/start").await;
    let done = browser.come_back(&rp, &format!("{back}&rd=https://evil.example"), NOW).await;
    assert_eq!(location(&done), "https://app.example.com/");
    let back = {
        browser.cookies.clear();
        begin(&mut browser, &rp, &idp, "//evil.example/x").await
    };
    let done = browser.come_back(&rp, &back, NOW).await;
    assert_eq!(location(&done), "https://app.example.com/");
}

#[tokio::test]
async fn logout_is_local_unless_the_provider_is_to_know() {
    let (idp, rp, mut browser) = fresh();
    browser.log_in(&rp, &idp, "/", NOW).await;
    let done = answer(browser.get(&rp, "/_tak/oauth2/logout", NOW).await);
    assert_eq!((done.status.as_u16(), browser.cookies.len()), (200, 0));
    let done = answer(browser.get(&rp, "/_tak/oauth2/logout?rd=/bye", NOW).await);
    assert_eq!(location(&done), "https://app.example.com/bye");

    let mut told = policy();
    told.post_logout_redirect_uri = Some(HeaderValue::from_static("https://www.example.com/bye"));
    let rp = relying_party(&told, &idp);
    browser.log_in(&rp, &idp, "/", NOW).await;
    let done = answer(browser.send(&rp, Method::POST, "/_tak/oauth2/logout", &[], NOW * 1000).await);
    assert!(browser.cookies.is_empty());
    let to = location(&done);
    assert!(to.starts_with("https://idp.example.com/logout?id_token_hint=ey"), "{to}");
    assert!(to.ends_with("&client_id=web&post_logout_redirect_uri=https%3A%2F%2Fwww.example.com%2Fbye"));
}

#[tokio::test]
async fn userinfo_tells_who_it_is_and_401_to_others() {
    let (idp, rp, mut browser) = fresh();
    assert_eq!(answer(browser.get(&rp, "/_tak/oauth2/userinfo", NOW).await).status, 401);
    browser.log_in(&rp, &idp, "/", NOW).await;
    let told = answer(browser.get(&rp, "/_tak/oauth2/userinfo", NOW).await);
    let body: serde_json::Value = serde_json::from_str(&told.body).unwrap();
    let all = json!({"user": "u-alice", "email": "alice@example.com", "preferredUsername": "alice",
        "groups": ["team-a", "ops"]});
    assert_eq!(body, all);
    for (method, path) in [(Method::POST, "userinfo"), (Method::POST, "callback"), (Method::PUT, "logout")] {
        let told = answer(browser.send(&rp, method, &format!("/_tak/oauth2/{path}"), &[], NOW * 1000).await);
        assert_eq!(told.status, 405);
    }
}

#[tokio::test]
async fn a_strict_session_begins_on_a_page_of_this_site() {
    let mut strict = policy();
    strict.cookie_samesite = SameSite::Strict;
    let idp = Fake::new();
    let rp = relying_party(&strict, &idp);
    let mut browser = Browser::at(HOST);
    let done = browser.log_in(&rp, &idp, "/a?b=\"<c>&d", NOW).await;
    assert_eq!(done.status, 200);
    assert!(done.body.contains("0;url=https://app.example.com/a?b=&quot;&lt;c&gt;&amp;d\""), "{}", done.body);
    passed(browser.get(&rp, "/", NOW).await);
}

#[tokio::test]
async fn what_the_id_token_lacks_comes_from_userinfo_about_the_same_user() {
    let (idp, rp, mut browser) = fresh();
    idp.0.lock().claims = json!({"sub": "u-alice"});
    idp.0.lock().userinfo =
        Some(json!({"sub": "u-alice", "email": "alice@example.com", "email_verified": true}));
    browser.log_in(&rp, &idp, "/", NOW).await;
    assert_eq!(passed(browser.get(&rp, "/", NOW).await)["x-auth-request-email"], "alice@example.com");
    idp.0.lock().userinfo = Some(json!({"sub": "u-mallory", "email": "root@example.com"}));
    browser.cookies.clear();
    assert_eq!(browser.log_in(&rp, &idp, "/", NOW).await.status, 403);
    // groups are for the backend too, whether or not a rule is about them
    idp.0.lock().claims = json!({"sub": "u-alice", "email": "alice@example.com", "email_verified": true});
    idp.0.lock().userinfo = Some(json!({"sub": "u-alice", "groups": ["ops"]}));
    browser.log_in(&rp, &idp, "/", NOW).await;
    assert_eq!(passed(browser.get(&rp, "/", NOW).await)["x-auth-request-groups"], "ops");
    // and what no rule needs keeps nobody out
    idp.0.lock().userinfo = Some(json!("broken"));
    browser.cookies.clear();
    browser.log_in(&rp, &idp, "/", NOW).await;
    assert_eq!(passed(browser.get(&rp, "/", NOW).await)["x-auth-request-email"], "alice@example.com");
}

#[tokio::test]
async fn plain_http_makes_no_secure_cookies_and_no_https_callback() {
    let (_, rp, _) = fresh();
    let mut browser = Browser { http: true, ..Browser::at("app.example.com:8080") };
    let began = answer(browser.get(&rp, "/", NOW).await);
    assert!(
        location(&began)
            .contains("redirect_uri=http%3A%2F%2Fapp.example.com%3A8080%2F_tak%2Foauth2%2Fcallback")
    );
}
