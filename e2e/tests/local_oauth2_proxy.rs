//! oauth2-proxy itself beside us: the same Secret, the same provider, the same requests. Both decide alike, or the
//! difference stands in `docs/from-oauth2-proxy.md` with its reason.

mod common;

use common::{HOST, NAMESPACE, behind_login, secret, serve_with, service};
use ingress_e2e::browser::Browser;
use ingress_e2e::client::Response;
use ingress_e2e::oidc::{CLIENT, Provider, fields, now};
use ingress_e2e::origin::Origin;
use ingress_e2e::peers::Oauth2Proxy;
use ingress_e2e::pki::{Ca, KeyKind, tls_secret_yaml};
use ingress_e2e::product::Product;
use serde_json::{Value, json};

const URL: &str = "https://app.example.com";
const DOCUMENT: &str = include_str!("../../docs/from-oauth2-proxy.md");

/// The two, with what they share.
struct Both {
    provider: Provider,
    _origin: Origin,
    product: Product,
    peer: Oauth2Proxy,
}

impl Both {
    /// `more`: options on top of those that are always needed, by the names of oauth2-proxy's environment without
    /// their prefix.
    async fn new(more: Value) -> Self {
        let (provider, origin) = (Provider::start().await, Origin::echo().await);
        let mut options = json!({
            "PROVIDER": "oidc",
            "OIDC_ISSUER_URL": provider.issuer(),
            "CLIENT_ID": CLIENT.0,
            "CLIENT_SECRET": CLIENT.1,
            "COOKIE_SECRET": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
            "EMAIL_DOMAINS": "*",
            // what is always so here, and not there
            "INSECURE_OIDC_SKIP_NONCE": "false",
        });
        options.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let named = |(name, value): (&String, &Value)| {
            (format!("OAUTH2_PROXY_{name}"), value.as_str().unwrap().to_owned())
        };
        let options: Vec<(String, String)> = options.as_object().unwrap().iter().map(named).collect();
        let leaf = Ca::new().leaf(&[HOST], KeyKind::EcP256Sec1);
        let peer = Oauth2Proxy::start(origin.addr(), &leaf, &options).await.expect("oauth2-proxy");
        let data: serde_json::Map<_, _> = options.into_iter().map(|(k, v)| (k, v.into())).collect();
        let documents = [
            secret("oidc", data.into()),
            tls_secret_yaml(NAMESPACE, "cert", &leaf),
            service("web", &[origin.addr()]),
            behind_login("oidc", HOST),
        ];
        Self { product: serve_with(documents, &[]).await, provider, _origin: origin, peer }
    }

    fn browsers(&self) -> [Browser; 2] {
        [self.product.https(), self.peer.https()].map(|https| Browser::new(https, self.product.http()))
    }

    fn claims(&self, more: &Value) {
        let mut state = self.provider.state();
        for (name, value) in more.as_object().unwrap() {
            state.claims[name] = value.clone();
            if value.is_null() {
                state.claims.as_object_mut().unwrap().remove(name);
            }
        }
    }

    /// What a request meets, in one word.
    fn decision(&self, answer: &Response) -> String {
        match (answer.status, answer.header("location")) {
            (200, _) => "backend".into(),
            (302, Some(to)) if to.starts_with(&format!("{}/auth", self.provider.issuer())) => "login".into(),
            (302, Some(to)) => format!("302 {to}"),
            (status, _) => status.to_string(),
        }
    }
}

/// Alike, or apart as a line of the document says, which begins so.
fn compare(
    name: &str,
    (ours, theirs): (&str, &str),
    apart: Option<&str>,
    got: [String; 2],
) -> Option<String> {
    if let Some(line) = apart {
        assert_ne!(ours, theirs, "{name}");
        assert!(DOCUMENT.contains(&format!("\n| {line} |")), "{line:?} is not in docs/from-oauth2-proxy.md");
    } else {
        assert_eq!(ours, theirs, "{name}: a difference needs a line in docs/from-oauth2-proxy.md");
    }
    (got != [ours, theirs]).then(|| format!("{name}: {got:?}, and not {:?}", [ours, theirs]))
}

/// Of whom a request comes.
#[derive(Clone, Copy)]
enum Who {
    Nobody,
    User,
    Program,
}
use Who::{Nobody, Program, User};

/// Name, of whom, token or endpoint, both decisions, line of the document.
type Short<'a> = (&'a str, Who, &'a str, (&'a str, &'a str), Option<&'a str>);

#[tokio::test]
async fn requests_meet_the_same_decision_or_a_documented_other() {
    let both = Both::new(json!({"API_ROUTES": "^/api"})).await;
    let mut users = both.browsers();
    for user in &mut users {
        let (at, answer) = user.go(&format!("{URL}/a?x=1&y=2")).await;
        assert_eq!((at, answer.status), (format!("{URL}/a?x=1&y=2"), 200), "{}", answer.text());
    }
    let good = both.provider.token(&json!({}));
    let expired = both.provider.token(&json!({"exp": now() - 3600}));
    let foreign = both.provider.token(&json!({"aud": "another"}));
    let post = Some("POST, XHR, image, `Authorization: Basic` without session");
    let bad = Some("bad bearer token, no session");
    let json = &[("Accept", "application/json")][..];
    let xhr = &[("X-Requested-With", "XMLHttpRequest")][..];
    let image =
        &[("Accept", "image/avif,*/*"), ("Sec-Fetch-Mode", "no-cors"), ("Sec-Fetch-Dest", "image")][..];
    let upgrade = &[("Upgrade", "websocket"), ("Connection", "Upgrade")][..];
    let forged =
        &[("Cookie", "_tak_oauth2=AAAA; _tak_oauth2_0=AAAA; _oauth2_proxy=AAAA; _oauth2_proxy_0=AAAA")][..];
    let bearer = |token: &str| [("Authorization", format!("Bearer {token}"))];
    type Row<'a> =
        (&'a str, Who, &'a str, &'a str, &'a [(&'a str, &'a str)], (&'a str, &'a str), Option<&'a str>);
    let rows: &[Row<'_>] = &[
        ("a page", Nobody, "GET", "/a", &[], ("login", "login"), None),
        ("a form", Nobody, "POST", "/a", &[], ("401", "login"), post),
        ("data", Nobody, "GET", "/a", json, ("401", "401"), None),
        ("a script", Nobody, "GET", "/a", xhr, ("401", "login"), post),
        ("an image", Nobody, "GET", "/a", image, ("401", "login"), post),
        ("a handshake", Nobody, "GET", "/a", upgrade, ("401", "login"), post),
        ("an API", Nobody, "GET", "/api/x", &[], ("401", "401"), None),
        ("beside the API", Nobody, "GET", "/a/api", &[], ("login", "login"), None),
        ("a forged session", Nobody, "GET", "/a", forged, ("login", "login"), None),
        ("a password", Nobody, "GET", "/a", &[("Authorization", "Basic YTpi")], ("401", "login"), post),
        ("a page of a user", User, "GET", "/a", &[], ("backend", "backend"), None),
        ("a form of a user", User, "POST", "/a", &[], ("backend", "backend"), None),
        ("an API of a user", User, "GET", "/api/x", json, ("backend", "backend"), None),
    ];
    let mut wrong = Vec::new();
    for (name, who, method, path, headers, expected, apart) in rows {
        let mut got = Vec::new();
        let browsers = if matches!(who, User) { users.clone() } else { both.browsers() };
        for mut browser in browsers {
            got.push(both.decision(&browser.send(method, &format!("{URL}{path}"), headers, b"").await));
        }
        wrong.extend(compare(name, *expected, *apart, got.try_into().unwrap()));
    }
    let tokens: &[Short<'_>] = &[
        ("a good token", Program, &good, ("backend", "backend"), None),
        ("an expired token", Program, &expired, ("401", "login"), bad),
        ("a token for somebody else", Program, &foreign, ("401", "login"), bad),
        ("no token", Program, "x.y.z", ("401", "login"), bad),
        ("a bad token of a user", User, &expired, ("401", "backend"), Some("bad bearer token, good cookie")),
    ];
    for (name, who, token, expected, apart) in tokens {
        let header = bearer(token);
        let headers = [(header[0].0, header[0].1.as_str())];
        let mut got = Vec::new();
        let browsers = if matches!(who, User) { users.clone() } else { both.browsers() };
        for mut browser in browsers {
            got.push(both.decision(&browser.send("GET", &format!("{URL}/a"), &headers, b"").await));
        }
        wrong.extend(compare(name, *expected, *apart, got.try_into().unwrap()));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn the_same_users_are_let_in() {
    let (domain, groups) = (json!({"EMAIL_DOMAINS": "example.com"}), json!({"ALLOWED_GROUPS": "ops,admins"}));
    let below = json!({"EMAIL_DOMAINS": ".example.com"});
    let roles = json!({"OIDC_GROUPS_CLAIM": "roles", "ALLOWED_GROUPS": "auditor"});
    type Row<'a> = (&'a str, Value, (&'a str, &'a str), Option<&'a str>);
    let tables: &[(&Value, &[Row<'_>])] = &[
        (
            &domain,
            &[
                ("of the domain", json!({}), ("backend", "backend"), None),
                ("in capitals", json!({"email": "Alice@Example.COM"}), ("backend", "backend"), None),
                ("of another", json!({"email": "a@evil.example"}), ("403", "403"), None),
                ("below it", json!({"email": "a@x.example.com"}), ("403", "403"), None),
                ("ending alike", json!({"email": "a@notexample.com"}), ("403", "403"), None),
                ("two at signs", json!({"email": "x@evil.example@example.com"}), ("403", "403"), None),
                (
                    "not verified",
                    json!({"email": "alice@example.com", "email_verified": false}),
                    ("403", "403"),
                    None,
                ),
                (
                    "perhaps verified",
                    json!({"email_verified": null}),
                    ("403", "backend"),
                    Some("`email_verified` absent"),
                ),
            ],
        ),
        (
            &below,
            &[
                ("below the domain", json!({"email": "a@x.example.com"}), ("backend", "backend"), None),
                ("of the domain itself", json!({"email": "a@example.com"}), ("403", "403"), None),
            ],
        ),
        (
            &groups,
            &[
                ("in one group", json!({"groups": ["team-a", "ops"]}), ("backend", "backend"), None),
                ("in none of them", json!({"groups": ["team-a"]}), ("403", "403"), None),
                ("in a longer one", json!({"groups": ["ops-2"]}), ("403", "403"), None),
                ("in no group", json!({"groups": []}), ("403", "403"), None),
            ],
        ),
        (
            &roles,
            &[
                ("with the role", json!({"roles": ["auditor"]}), ("backend", "backend"), None),
                (
                    "with a group of that name",
                    json!({"roles": [], "groups": ["auditor"]}),
                    ("403", "403"),
                    None,
                ),
            ],
        ),
    ];
    let mut wrong = Vec::new();
    for (settings, rows) in tables {
        let both = Both::new((*settings).clone()).await;
        for (name, claims, expected, apart) in *rows {
            both.claims(claims);
            let mut got = Vec::new();
            for mut browser in both.browsers() {
                got.push(both.decision(&browser.go(&format!("{URL}/a")).await.1));
            }
            wrong.extend(compare(name, *expected, *apart, got.try_into().unwrap()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn the_provider_is_asked_the_same() {
    let both = Both::new(json!({"SCOPE": "openid email", "PROMPT": "consent", "ACR_VALUES": "silver"})).await;
    let mut asked = Vec::new();
    for mut browser in both.browsers() {
        let began = browser.get(&format!("{URL}/a")).await;
        let mut query = fields(began.header("location").unwrap().split_once('?').unwrap().1);
        for name in ["state", "nonce", "code_challenge"] {
            let length = query.remove(name).map(|value| value.len());
            assert!(length >= Some(43), "{name} of {length:?}");
        }
        // from the time before `prompt`
        query.remove("approval_prompt");
        query.entry("redirect_uri".into()).and_modify(|uri| *uri = uri.replace("/_tak/", "/"));
        asked.push(query);
    }
    assert_eq!(asked[0], asked[1]);
}

#[tokio::test]
async fn endpoints_answer_alike_or_as_documented() {
    let both = Both::new(json!({})).await;
    let mut users = both.browsers();
    let mut wrong = Vec::new();
    for user in &mut users {
        user.go(&format!("{URL}/")).await;
    }
    let rows: &[Short<'_>] = &[
        ("who is it", Nobody, "userinfo", ("401", "401"), None),
        ("who is the user", User, "userinfo", ("backend", "backend"), None),
        ("a login", Nobody, "start?rd=%2Fa", ("login", "login"), None),
        (
            "a login that leads away",
            Nobody,
            "start?rd=%2F%2Fevil.example",
            ("400", "login"),
            Some("`rd` to another host"),
        ),
        (
            "an end without beginning",
            Nobody,
            "callback?state=x%3A%2F&code=y",
            ("400", "403"),
            Some("a callback that nobody here began"),
        ),
    ];
    for (name, who, endpoint, expected, apart) in rows {
        let mut got = Vec::new();
        let browsers = if matches!(who, User) { users.clone() } else { both.browsers() };
        for (mut browser, at) in browsers.into_iter().zip(["/_tak/oauth2/", "/oauth2/"]) {
            got.push(both.decision(&browser.get(&format!("{URL}{at}{endpoint}")).await));
        }
        wrong.extend(compare(name, *expected, *apart, got.try_into().unwrap()));
    }
    for (user, logout) in users.iter_mut().zip(["/_tak/oauth2/logout", "/oauth2/sign_out"]) {
        user.get(&format!("{URL}{logout}")).await;
        let after = user.get(&format!("{URL}/")).await;
        assert_eq!(both.decision(&after), "login", "logged out");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
