use super::*;
use crate::cluster::Key;
use std::collections::BTreeMap;

const SECRET: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

fn secret(pairs: &[(&str, &str)]) -> SecretObject {
    let least = [
        ("oidc_issuer_url", "https://idp.example.com/realms/shop"),
        ("client_id", "web"),
        ("client_secret", "s3cr3t"),
        ("cookie_secret", SECRET),
    ];
    let mut data: BTreeMap<Box<str>, Box<[u8]>> = BTreeMap::new();
    for (name, value) in least.iter().chain(pairs) {
        if *value == "-" {
            data.remove(*name);
        } else {
            data.insert((*name).into(), value.as_bytes().into());
        }
    }
    SecretObject {
        key: Key::new("shop", "oidc"),
        uid: "u".into(),
        resource_version: "1".into(),
        secret_type: "Opaque".into(),
        data,
    }
}

fn read(pairs: &[(&str, &str)]) -> Result<Arc<OAuthPolicy>, Problem> {
    parse(&secret(pairs))
}

fn problem(pairs: &[(&str, &str)]) -> String {
    let problem = read(pairs).expect_err("it is refused").to_string();
    for (_, value) in pairs {
        assert!(value.len() < 4 || !problem.contains(value), "{problem} repeats {value}");
    }
    problem
}

fn texts(all: &[Box<str>]) -> Vec<&str> {
    all.iter().map(|one| &**one).collect()
}

#[test]
fn four_values_are_enough_and_the_rest_has_defaults() {
    let policy = read(&[]).unwrap();
    assert_eq!(&*policy.issuer, "https://idp.example.com/realms/shop");
    assert_eq!((&*policy.client_id, policy.client_secret.as_deref()), ("web", Some("s3cr3t")));
    assert_eq!(policy.cookie_secret[..3], [0, 1, 2]);
    assert_eq!((&*policy.cookie_name, &*policy.cookie_path), ("_tak_oauth2", "/"));
    assert_eq!((policy.cookie_expire, policy.cookie_refresh), (Duration::from_secs(604_800), None));
    assert_eq!(&*policy.scope, "openid email profile");
    assert_eq!(texts(&policy.bearer_audiences), ["web"]);
    assert!(policy.email_domains.is_none() && policy.allowed_emails.is_empty());
    assert!(!policy.allow_unverified_email && policy.introspection.is_none());
    assert_eq!(policy.endpoints, ProviderEndpoints::Discovery);
    assert!(read(&[("client_secret", "-")]).unwrap().client_secret.is_none(), "a public client");
}

#[test]
fn what_is_missing_is_named() {
    for key in ["oidc_issuer_url", "client_id", "cookie_secret"] {
        assert_eq!(problem(&[(key, "-")]), format!("key {key} is missing or empty"));
        assert_eq!(problem(&[(key, "")]), format!("key {key} is missing or empty"));
        assert_eq!(problem(&[(key, " \n")]), format!("key {key} is missing or empty"));
    }
    let off = ("skip_oidc_discovery", "true");
    let [login, redeem] = [("login_url", "https://a.example/l"), ("redeem_url", "https://a.example/r")];
    assert_eq!(problem(&[off]), "key login_url is missing or empty");
    assert_eq!(problem(&[off, login]), "key redeem_url is missing or empty");
    assert_eq!(problem(&[off, login, redeem]), "key oidc_jwks_url is missing or empty");
    let jwks = ("oidc_jwks_url", "https://a.example/j");
    assert!(matches!(read(&[off, login, redeem, jwks]).unwrap().endpoints, ProviderEndpoints::Fixed(_)));
}

#[test]
fn a_signing_key_is_exactly_32_bytes() {
    let url = "-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_8";
    for good in [SECRET, &format!("{SECRET}\n"), SECRET.trim_end_matches('='), url] {
        assert!(read(&[("cookie_secret", good)]).is_ok(), "{good}");
    }
    let engine = base64(&alphabet::STANDARD);
    for bytes in [1, 16, 24, 31, 33, 64] {
        let text = engine.encode(vec![7; bytes]);
        let accepted =
            "key cookie_secret is not exactly 32 bytes in base64, as openssl rand -base64 32 gives";
        assert_eq!(problem(&[("cookie_secret", &text)]), accepted, "{bytes}");
    }
    for bad in ["0123456789abcdef0123456789abcdef", "not base64 at all, but text here", "====", "Ä"] {
        assert!(problem(&[("cookie_secret", bad)]).contains("32 bytes"), "{bad}");
    }
    assert!(problem(&[("cookie_secret_previous", "AAAA")]).starts_with("key cookie_secret_previous is not"));
    let both = read(&[("cookie_secret_previous", SECRET)]).unwrap();
    assert_eq!(both.cookie_secret_previous, Some(both.cookie_secret));
}

#[test]
fn values_that_do_not_parse_name_their_key_and_what_is_accepted() {
    for (key, value) in [
        ("oidc_issuer_url", "idp.example.com"),
        ("oidc_issuer_url", "ftp://idp.example.com"),
        ("oidc_issuer_url", "https://idp.example.com/?tenant=1"),
        ("skip_oidc_discovery", "yes"),
        ("insecure_oidc_allow_unverified_email", "1"),
        ("pass_access_token", "on"),
        ("cookie_samesite", "relaxed"),
        ("cookie_name", "a b"),
        ("cookie_name", "a;b"),
        ("cookie_name", "__Host-sid"),
        ("cookie_domain", "example.com:443"),
        ("cookie_domain", "a.example,b.example"),
        ("cookie_path", "app"),
        ("cookie_path", "/a;b"),
        ("cookie_expire", "0"),
        ("cookie_expire", "1 day"),
        ("cookie_expire", "99999999999h"),
        ("cookie_refresh", "168h"),
        ("cookie_refresh", "-1m"),
        ("scope", "email profile"),
        ("email_domains", ""),
        ("email_domains", " , "),
        ("email_domains", "[\"example.com\""),
        ("email_domains", "user@example.com"),
        ("allowed_emails", "example.com"),
        ("allowed_emails", ""),
        ("allowed_groups", ""),
        ("allowed_groups", "[]"),
        ("bearer_audiences", ""),
        ("introspection_url", "/introspect"),
        ("api_routes", "^/api/(v1|v2)"),
        ("api_routes", "api"),
        ("post_logout_redirect_uri", "/bye"),
        ("provider_ca", "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----"),
        ("provider", "github"),
    ] {
        let said = problem(&[(key, value)]);
        assert!(said.starts_with(&format!("key {key} is not ")), "{key} {value:?}: {said}");
    }
    assert!(problem(&[("prompt", "a\u{0}b")]).contains("control characters"));
}

#[test]
fn a_name_that_might_be_a_rule_closes_the_routes() {
    assert_eq!(
        problem(&[("allowed_group", "ops")]),
        "key \"allowed_group\" is no setting; the nearest is allowed_groups"
    );
    for rule in ["github_org", "google_groups", "authenticated_emails_file", "allowed_roles", "email_domain"]
    {
        assert!(problem(&[(rule, "")]).starts_with(&format!("key \"{rule}\" is no setting")), "{rule}");
    }
    for harmless in
        ["redis_connection_url", "upstreams", "cookie_secure", "set_xauthrequest", "skip_auth_routes"]
    {
        assert!(read(&[(harmless, "")]).is_ok(), "{harmless}");
    }
    for name in WITHOUT_EFFECT {
        assert!(!crate::cluster::AUTH_KEYS.contains(name), "{name} is read");
    }
}

#[test]
fn lists_are_read_as_people_write_them() {
    let policy = read(&[
        ("email_domains", "Example.com, .corp.example\n*.dept.example"),
        ("allowed_emails", "[\"Guest@Other.example\"]"),
        ("allowed_groups", "Domain Admins, ops\nteam-a,"),
        ("bearer_audiences", "web api://default"),
        ("api_routes", "/api,^/v2/"),
    ])
    .unwrap();
    let domains = policy.email_domains.as_deref().unwrap();
    assert_eq!(texts(domains), ["example.com", ".corp.example", "*.dept.example"]);
    assert_eq!(texts(&policy.allowed_emails), ["guest@other.example"]);
    assert_eq!(texts(&policy.allowed_groups), ["Domain Admins", "ops", "team-a"]);
    assert_eq!(texts(&policy.bearer_audiences), ["web", "api://default"]);
    assert_eq!(texts(&policy.api_routes), ["/api", "/v2/"]);
    let any = read(&[("email_domains", "*"), ("allowed_emails", "a@b.example")]).unwrap();
    assert_eq!((any.email_domains.as_deref(), texts(&any.allowed_emails)), (None, vec!["a@b.example"]));
    let star = read(&[("allowed_groups", "*")]).unwrap();
    assert!(star.allowed_groups.is_empty());
    let more = read(&[("oidc_extra_audiences", "api")]).unwrap();
    assert_eq!(texts(&more.bearer_audiences), ["web", "api"]);
}

#[test]
fn durations_are_those_of_oauth2_proxy() {
    for (text, seconds) in
        [("168h", 604_800), ("168h0m0s", 604_800), ("1h30m", 5400), ("45s", 45), ("0", 0), ("0s", 0)]
    {
        assert_eq!(go_duration(text), Some(Duration::from_secs(seconds)), "{text}");
    }
    for bad in ["", "1", "h", "1d", "1h2", "-1h", "1.5h", "1h h", "99999999999999999999h"] {
        assert_eq!(go_duration(bad), None, "{bad}");
    }
    assert_eq!(read(&[("cookie_refresh", "0s")]).unwrap().cookie_refresh, None);
}

#[test]
fn introspection_uses_its_own_client_or_this_one() {
    let url = ("introspection_url", "https://idp.example.com/introspect");
    let same = read(&[url]).unwrap().introspection.clone().unwrap();
    assert_eq!((&*same.client_id, same.client_secret.as_deref()), ("web", Some("s3cr3t")));
    let other = read(&[url, ("introspection_client_id", "api")]).unwrap().introspection.clone().unwrap();
    assert_eq!((&*other.client_id, other.client_secret.as_deref()), ("api", None));
}

/// What stands between backticks.
fn names(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn the_documents_say_of_each_key_what_becomes_of_it() {
    let read: Vec<&str> = crate::cluster::AUTH_KEYS.into_iter().filter(|key| *key != "auth").collect();
    let keys = include_str!("../../../../../docs/oauth.md");
    let missing: Vec<_> = read.iter().filter(|key| !keys.contains(&format!("`{key}`"))).collect();
    let moved = include_str!("../../../../../docs/from-oauth2-proxy.md");
    let elsewhere: Vec<_> =
        missing.into_iter().filter(|key| !moved.contains(&format!("\n| `{key}` |"))).collect();
    assert!(elsewhere.is_empty(), "in no table: {elsewhere:?}");

    let options = moved.split("\n## ").find(|part| part.starts_with("Options\n")).unwrap();
    let rows = options.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" | "));
    let mut passed_over = Vec::new();
    for (cell, verdict) in rows {
        let cell = format!("`{cell}");
        for name in names(&cell) {
            let (known, ignored) = (read.contains(&name), WITHOUT_EFFECT.contains(&name));
            if verdict.starts_with("passed over") {
                assert!(ignored && !known, "{name}: {verdict}");
                passed_over.push(name.to_owned());
            } else if verdict.starts_with("closes the route") {
                assert!(!ignored && !known, "{name}: {verdict}");
            } else {
                assert!(known && !ignored, "{name}: {verdict}");
            }
        }
    }
    let untold: Vec<_> =
        WITHOUT_EFFECT.iter().filter(|name| !passed_over.iter().any(|told| told == *name)).collect();
    assert!(untold.is_empty(), "passed over, and not in the table: {untold:?}");
}
