//! Cross-origin requests: what scripts of other origins are told, and by whom.

mod common;

use common::{HOST, Ingress, join, serve, service};
use ingress_e2e::client::{H2Conn, RawConn, Response};
use ingress_e2e::origin::{Origin, Reply};
use ingress_e2e::pki::{Ca, KeyKind, tls_secret_yaml};
use ingress_e2e::product::Product;
use ingress_e2e::{DEADLINE, eventually};

const A: &str = "https://a.example.com";
const B: &str = "https://b.example.com";
const EVIL: &str = "https://evil.example";

/// [`HOST`] with CORS for `A` and `B`, and this set.
fn ingress(set: &[(&str, &str)]) -> Ingress {
    let ingress = Ingress::new("web")
        .prefix(HOST, "/", "web")
        .set("enable-cors", "true")
        .set("cors-allow-origin", "https://a.example.com, https://b.example.com");
    set.iter().fold(ingress, |ingress, (key, value)| ingress.set(key, value))
}

async fn ask(product: &Product, method: &str, headers: &[(&str, &str)]) -> Response {
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.request(method, HOST, "/", headers, b"").await.unwrap()
}

async fn preflight(product: &Product, origin: &str) -> Response {
    let headers = [("Origin", origin), ("Access-Control-Request-Method", "PUT")];
    ask(product, "OPTIONS", &headers).await
}

/// Names of all `Access-Control-*` fields, sorted.
fn granted(answer: &Response) -> Vec<String> {
    let mut names: Vec<_> = answer.headers.iter().map(|(name, _)| name.to_lowercase()).collect();
    names.retain(|name| name.starts_with("access-control-"));
    names.sort();
    names
}

fn varies(answer: &Response) -> bool {
    let all = answer.header_all("vary").join(",").to_lowercase();
    all.split(',').filter(|name| name.trim() == "origin").count() == 1
}

#[tokio::test]
async fn one_origin_of_a_list_is_echoed_and_never_the_list() {
    let origin = Origin::echo().await;
    let product = serve([ingress(&[]).yaml(), service("web", &[origin.addr()])]).await;
    for (from, allowed) in
        [(A, true), (B, true), (EVIL, false), ("null", false), ("https://a.example.com.evil.example", false)]
    {
        for answer in [ask(&product, "GET", &[("Origin", from)]).await, preflight(&product, from).await] {
            let want = if allowed { vec![from] } else { vec![] };
            assert_eq!(answer.header_all("access-control-allow-origin"), want, "{from}");
            assert!(varies(&answer), "{from}: {:?}", answer.headers);
            assert_eq!(answer.header("access-control-allow-credentials"), None);
        }
    }
    // Caches must learn that the answer depends on the origin also from a request without one.
    let answer = ask(&product, "GET", &[]).await;
    assert!(varies(&answer) && granted(&answer).is_empty(), "{:?}", answer.headers);
    let twice = ask(&product, "GET", &[("Origin", A), ("Origin", EVIL)]).await;
    assert!(granted(&twice).is_empty());
}

#[tokio::test]
async fn a_preflight_is_answered_before_authentication_and_limits() {
    let origin = Origin::echo().await;
    let guarded = ingress(&[("auth-type", "basic"), ("limit-rps", "1"), ("limit-burst-multiplier", "1")]);
    let ca = Ca::new();
    let product = serve([
        guarded.yaml(),
        Ingress::new("tls")
            .prefix("tls.example.com", "/", "web")
            .tls(&["tls.example.com"], "tls")
            .set("enable-cors", "true")
            .yaml(),
        tls_secret_yaml(common::NAMESPACE, "tls", &ca.leaf(&["tls.example.com"], KeyKind::EcP256Sec1)),
        service("web", &[origin.addr()]),
    ])
    .await;
    for _ in 0..5 {
        let answer = preflight(&product, A).await;
        assert_eq!((answer.status, answer.body.len()), (204, 0));
        assert_eq!(answer.header("access-control-allow-origin"), Some(A));
        assert_eq!(
            answer.header("access-control-allow-methods"),
            Some("GET, PUT, POST, DELETE, PATCH, OPTIONS")
        );
        assert!(answer.header("access-control-allow-headers").unwrap().contains("Authorization"));
        assert_eq!(answer.header("access-control-max-age"), Some("1728000"));
        assert_eq!(answer.header("content-length"), None, "204 has none");
    }
    // From a stranger too, and it tells nothing.
    let answer = preflight(&product, EVIL).await;
    assert_eq!((answer.status, granted(&answer)), (204, vec![]));
    // Anything less than a preflight goes the way of all requests.
    assert_eq!(ask(&product, "OPTIONS", &[("Origin", A)]).await.status, 501);
    assert_eq!(ask(&product, "OPTIONS", &[("Access-Control-Request-Method", "PUT")]).await.status, 501);
    assert_eq!(
        ask(&product, "GET", &[("Origin", A), ("Access-Control-Request-Method", "PUT")]).await.status,
        501
    );
    assert_eq!(origin.requests(), 0);
    // The redirect comes first, and is itself readable for the script that follows it.
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    let asks = [("Origin", A), ("Access-Control-Request-Method", "PUT")];
    let answer = conn.request("OPTIONS", "tls.example.com", "/", &asks, b"").await.unwrap();
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (308, Some("*")));
    let h2 = H2Conn::connect_tls(product.https(), "tls.example.com").await.unwrap();
    assert_eq!(h2.request("OPTIONS", "tls.example.com", "/", &asks, b"").await.unwrap().status, 204);
    let count = async || {
        let sum =
            product.metric_sum("tak_ingress_cors_preflights_total", &[("ingress", "web"), ("host", HOST)]);
        (sum.await as u64 == 6).then_some(())
    };
    eventually(DEADLINE, count).await;
}

#[tokio::test]
async fn credentials_go_with_named_origins_and_never_with_a_wildcard() {
    let origin = Origin::echo().await;
    let credentials = ("cors-allow-credentials", "true");
    let product = serve([ingress(&[credentials]).yaml(), service("web", &[origin.addr()])]).await;
    assert_eq!(
        ask(&product, "GET", &[("Origin", A)]).await.header("access-control-allow-credentials"),
        Some("true")
    );
    assert_eq!(preflight(&product, A).await.header("access-control-allow-credentials"), Some("true"));
    let stranger = ask(&product, "GET", &[("Origin", EVIL)]).await;
    assert!(granted(&stranger).is_empty(), "{:?}", stranger.headers);

    for list in ["*", "https://a.example.com,*"] {
        let wildcard = ingress(&[credentials, ("cors-allow-origin", list)]);
        let product = serve([wildcard.yaml(), service("web", &[origin.addr()])]).await;
        for from in [A, EVIL, "null"] {
            for answer in [ask(&product, "GET", &[("Origin", from)]).await, preflight(&product, from).await] {
                assert_eq!(answer.header_all("access-control-allow-origin"), ["*"]);
                assert_eq!(answer.header("access-control-allow-credentials"), None);
            }
        }
        let warned =
            || product.log().into_iter().find(|line| line.to_string().contains("cors-allow-credentials"));
        let line = eventually(DEADLINE, async || warned()).await;
        assert!(line.to_string().contains("InvalidAnnotation"), "{line}");
    }
}

#[tokio::test]
async fn the_backends_own_words_are_replaced_and_never_doubled() {
    let origin = Origin::http(|_| {
        Reply::new(200, "x")
            .header("Access-Control-Allow-Origin", "*")
            .header("Access-Control-Allow-Origin", "https://evil.example")
            .header("Access-Control-Allow-Credentials", "true")
            .header("Access-Control-Expose-Headers", "X-Secret")
            .header("Access-Control-Allow-Methods", "*")
            .header("Access-Control-Allow-Headers", "*")
            .header("Access-Control-Max-Age", "9")
            .header("Vary", "Accept-Encoding")
    })
    .await;
    let exposed = ingress(&[("cors-expose-headers", "X-Mine")]);
    let plain = Ingress::new("plain").prefix("plain.example.com", "/", "web");
    let product = serve([exposed.yaml(), plain.yaml(), service("web", &[origin.addr()])]).await;
    let answer = ask(&product, "GET", &[("Origin", A)]).await;
    assert_eq!(granted(&answer), ["access-control-allow-origin", "access-control-expose-headers"]);
    assert_eq!(answer.header("access-control-allow-origin"), Some(A));
    assert_eq!(answer.header("access-control-expose-headers"), Some("X-Mine"));
    let vary = answer.header_all("vary").join(", ");
    assert!(varies(&answer) && vary.contains("Accept-Encoding"), "{vary}");
    let stranger = ask(&product, "GET", &[("Origin", EVIL)]).await;
    assert!(granted(&stranger).is_empty(), "{:?}", stranger.headers);
    // Where CORS is not ours, it is the backend's.
    let answer = RawConn::connect(product.http()).await.unwrap().get("plain.example.com", "/").await.unwrap();
    assert_eq!(answer.header_all("access-control-allow-origin"), ["*", EVIL]);
    assert_eq!(answer.header_all("vary"), ["Accept-Encoding"]);
}

#[tokio::test]
async fn errors_that_we_make_are_readable_for_the_script() {
    let origin = Origin::echo().await;
    let on = |name: &str, path: &str, service: &str, key: &str, value: &str| {
        Ingress::new(name)
            .prefix(HOST, path, service)
            .set("enable-cors", "true")
            .set("cors-allow-origin", A)
            .set(key, value)
            .yaml()
    };
    let product = serve([
        on("auth", "/auth", "web", "auth-type", "basic"),
        on("list", "/list", "web", "denylist-source-range", "127.0.0.0/8"),
        on("limit", "/limit", "web", "limit-connections", "1000000"),
        on("rate", "/rate", "web", "limit-rps", "0.001"),
        on("gone", "/gone", "nowhere", "ssl-redirect", "true"),
        service("web", &[origin.addr()]),
    ])
    .await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    assert_eq!(conn.get(HOST, "/rate").await.unwrap().status, 200);
    for (path, status) in [("/auth", 501), ("/list", 403), ("/rate", 429), ("/gone", 502)] {
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        let answer = conn.request("GET", HOST, path, &[("Origin", A)], b"").await.unwrap();
        assert_eq!(
            (answer.status, answer.header("access-control-allow-origin")),
            (status, Some(A)),
            "{path}"
        );
        assert!(varies(&answer), "{path}");
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        let answer = conn.request("GET", HOST, path, &[("Origin", EVIL)], b"").await.unwrap();
        assert_eq!((answer.status, granted(&answer)), (status, vec![]), "{path}");
    }
    let large = format!(
        "POST /limit HTTP/1.1\r\nHost: {HOST}\r\nOrigin: {A}\r\nContent-Length: 999999999999\r\n\r\n"
    );
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(large).await.unwrap();
    let answer = conn.read_response().await.unwrap();
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (413, Some(A)));
}

#[tokio::test]
async fn a_change_of_the_list_is_live_and_wildcards_stand_for_one_label() {
    let origin = Origin::echo().await;
    let product = serve([ingress(&[]).yaml(), service("web", &[origin.addr()])]).await;
    let changed = ingress(&[("cors-allow-origin", "https://*.example.com")]);
    product.write_manifest("manifests.yaml", &join([changed.yaml(), service("web", &[origin.addr()])]));
    let new = "https://new.example.com";
    eventually(DEADLINE, async || {
        let answer = ask(&product, "GET", &[("Origin", new)]).await;
        (answer.header("access-control-allow-origin") == Some(new)).then_some(())
    })
    .await;
    for (from, allowed) in [
        ("https://example.com", false),
        ("https://x.y.example.com", false),
        ("http://new.example.com", false),
        (A, true),
    ] {
        let answer = ask(&product, "GET", &[("Origin", from)]).await;
        assert_eq!(answer.header("access-control-allow-origin").is_some(), allowed, "{from}");
    }
}
