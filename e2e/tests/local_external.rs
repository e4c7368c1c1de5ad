//! External authentication: what the service is asked, and what its answer does.

mod common;

use common::{HOST, Ingress, serve, serve_with, service};
use ingress_e2e::client::{RawConn, Response};
use ingress_e2e::origin::{Origin, Received, Reply, read_head};
use ingress_e2e::pki::{Ca, KeyKind, LeafOptions};
use ingress_e2e::product::Product;
use ingress_e2e::{DEADLINE, TempDir, eventually};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A service that lets in whoever has the cookie `session=alice`.
async fn provider() -> Origin {
    Origin::http(decide).await
}

fn decide(request: &Received) -> Reply {
    match request.header("cookie") {
        Some(cookies) if cookies.contains("session=alice") => Reply::new(202, "ignored")
            .header("X-Auth-Request-User", "alice")
            .header("X-Tenant", "blue")
            .header("X-Secret", "not for the backend")
            .header("Set-Cookie", "session=alice; renewed")
            .header("Set-Cookie", "second=1"),
        Some("status=403") => Reply::new(403, "not you").header("Content-Type", "text/html"),
        Some("status=302") => Reply::new(302, "").header("Location", "https://evil.example/"),
        Some("status=500") => Reply::new(500, "broken"),
        Some("status=204") => Reply { status: 204, headers: Vec::new(), body: Vec::new() },
        Some("large") => Reply::new(200, "x".repeat(1 << 20)),
        _ => Reply::new(401, "log in")
            .header("WWW-Authenticate", "Bearer realm=\"a\"")
            .header("WWW-Authenticate", "Basic realm=\"b\"")
            .header("Set-Cookie", "csrf=1"),
    }
}

fn guarded(name: &str, provider: &Origin) -> Ingress {
    Ingress::new(name).set("auth-url", &format!("http://{}/auth?x=a%40b%2Cc", provider.addr()))
}

async fn ask(product: &Product, target: &str, headers: &[(&str, &str)]) -> Response {
    RawConn::connect(product.http()).await.unwrap().request("GET", HOST, target, headers, b"").await.unwrap()
}

#[tokio::test]
async fn whom_the_service_lets_in_the_backend_hears_about() {
    let (origin, provider) = (Origin::echo().await, provider().await);
    let product = serve([
        guarded("web", &provider)
            .prefix(HOST, "/", "web")
            .set("auth-response-headers", "X-Tenant, X-Role")
            .yaml(),
        service("web", &[origin.addr()]),
    ])
    .await;
    let answer = ask(
        &product,
        "/a%20b?x=1&y=2",
        &[
            ("Cookie", "a=1; session=alice"),
            ("Authorization", "Bearer mine"),
            ("X-Auth-Request-Email", "root@example.com"),
            ("X-Auth-Request-Groups", "admin"),
            ("X-Role", "admin"),
            ("x_role", "admin"),
            ("X-Forwarded-Uri", "/public"),
            ("X-Original-URL", "/public"),
            ("Accept", "text/html"),
        ],
    )
    .await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.echoed("x-auth-request-user"), ["alice"]);
    assert_eq!(answer.echoed("x-tenant"), ["blue"]);
    assert_eq!(answer.echoed("authorization"), ["Bearer mine"], "the service named no other");
    for name in
        ["x-auth-request-email", "x-auth-request-groups", "x-role", "x_role", "x-secret", "x-original-url"]
    {
        assert_eq!(answer.echoed(name), [""; 0], "{name}");
    }
    assert_eq!(answer.header_all("set-cookie"), ["session=alice; renewed", "second=1"]);

    let question = provider.last_head();
    let mut lines: Vec<_> = question.trim_end().lines().map(str::to_ascii_lowercase).collect();
    lines[1..].sort();
    let host = format!("host: {}", provider.addr());
    assert_eq!(
        lines,
        [
            "get /auth?x=a%40b%2cc http/1.1",
            "authorization: bearer mine",
            "cookie: a=1; session=alice",
            &host,
            "x-forwarded-for: 127.0.0.1",
            "x-forwarded-host: app.example.com",
            "x-forwarded-method: get",
            "x-forwarded-proto: http",
            "x-forwarded-uri: /a%20b?x=1&y=2",
            "x-original-method: get",
            "x-original-url: http://app.example.com/a%20b?x=1&y=2",
        ]
    );
    assert!(question.starts_with("GET /auth?x=a%40b%2Cc HTTP/1.1\r\n"), "byte for byte: {question}");
    let log =
        eventually(DEADLINE, async || product.log().into_iter().find(|line| line["status"] == 200)).await;
    assert_eq!(log["user"], "alice");
}

#[tokio::test]
async fn each_request_asks_over_a_kept_connection() {
    let (origin, provider) = (Origin::echo().await, provider().await);
    let product = serve_with(
        [guarded("web", &provider).prefix(HOST, "/", "web").yaml(), service("web", &[origin.addr()])],
        &["--threads=1"],
    )
    .await;
    for _ in 0..5 {
        assert_eq!(ask(&product, "/", &[("Cookie", "session=alice")]).await.status, 200);
    }
    assert_eq!((provider.requests(), provider.accepts()), (5, 1));
    // One that the service has closed meanwhile costs a new one and no request.
    provider.close_idle();
    assert_eq!(ask(&product, "/", &[("Cookie", "session=alice")]).await.status, 200);
    assert_eq!(provider.requests(), 6);
}

#[tokio::test]
async fn the_body_goes_to_the_backend_alone() {
    let (origin, provider) = (Origin::echo().await, provider().await);
    let product =
        serve([guarded("web", &provider).prefix(HOST, "/", "web").yaml(), service("web", &[origin.addr()])])
            .await;
    let body = vec![b'x'; 1 << 20];
    for extra in [&[][..], &[("Expect", "100-continue")]] {
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        let fields = [&[("Cookie", "session=alice")], extra].concat();
        let answer = conn.request("POST", HOST, "/", &fields, &body).await.unwrap();
        assert_eq!((answer.status, answer.json()["body_bytes"].as_u64()), (200, Some(1 << 20)));
        let question = provider.last_head().to_ascii_lowercase();
        assert!(question.starts_with("get /auth"), "{question}");
        for name in ["content-length", "transfer-encoding", "expect", "connection", "upgrade"] {
            assert!(!question.contains(&format!("\n{name}:")), "{question}");
        }
    }
}

#[tokio::test]
async fn denials_are_passed_on_or_lead_to_the_login() {
    let (origin, provider) = (Origin::echo().await, provider().await);
    let signin = "signin.example.com";
    let product = serve([
        guarded("web", &provider).prefix(HOST, "/", "web").yaml(),
        guarded("signin", &provider)
            .prefix(signin, "/", "web")
            .set("auth-signin", "https://auth.example.com/start?app=1")
            .yaml(),
        service("web", &[origin.addr()]),
    ])
    .await;
    let denied = ask(&product, "/", &[]).await;
    assert_eq!((denied.status, denied.text().as_str()), (401, "log in"));
    assert_eq!(denied.header_all("www-authenticate"), ["Bearer realm=\"a\"", "Basic realm=\"b\""]);
    assert_eq!(denied.header("set-cookie"), Some("csrf=1"));
    let denied = ask(&product, "/", &[("Cookie", "status=403")]).await;
    assert_eq!(
        (denied.status, denied.text().as_str(), denied.header("content-type")),
        (403, "not you", Some("text/html"))
    );
    for (method, cookie) in [("GET", ""), ("POST", ""), ("GET", "status=403")] {
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        let answer =
            conn.request(method, signin, "/a%20b?x=1&y=2", &[("Cookie", cookie)], b"").await.unwrap();
        assert_eq!(answer.status, 302);
        assert_eq!(
            answer.header("location"),
            Some(
                "https://auth.example.com/start?app=1&rd=http%3A%2F%2Fsignin.example.com%2Fa%2520b%3Fx%3D1%26y%3D2"
            )
        );
    }
    assert_eq!(origin.accepts(), 0);
}

#[tokio::test]
async fn any_other_answer_is_no_entrance() {
    let (origin, provider) = (Origin::echo().await, provider().await);
    let product =
        serve([guarded("web", &provider).prefix(HOST, "/", "web").yaml(), service("web", &[origin.addr()])])
            .await;
    for cookie in ["status=302", "status=500"] {
        let answer = ask(&product, "/", &[("Cookie", cookie)]).await;
        assert_eq!((answer.status, answer.header("location")), (502, None), "{cookie}");
    }
    assert_eq!(origin.accepts(), 0);
    for cookie in ["status=204", "large"] {
        assert_eq!(ask(&product, "/", &[("Cookie", cookie)]).await.status, 200, "{cookie}");
    }
    let twice = ask(&product, "/", &[("Authorization", "Bearer a"), ("Authorization", "Bearer b")]).await;
    assert_eq!(twice.status, 400);
}

#[tokio::test]
async fn a_service_that_is_down_or_silent_costs_its_own_routes() {
    let origin = Origin::echo().await;
    let silent = Origin::raw(async |mut stream| {
        let _ = read_head(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let garbage = Origin::raw(async |mut stream| {
        let _ = read_head(&mut stream).await;
        let _ = stream.write_all(b"not http at all\r\n\r\n").await;
    })
    .await;
    let gone = Origin::echo().await;
    let gone_addr = gone.addr();
    gone.stop().await;
    let ingress = |name: &str, url: &str| {
        Ingress::new(name).prefix(&format!("{name}.example.com"), "/", "web").set("auth-url", url).yaml()
    };
    let product = serve_with(
        [
            ingress("silent", &format!("http://{}/", silent.addr())),
            ingress("garbage", &format!("http://{}/", garbage.addr())),
            ingress("gone", &format!("http://{gone_addr}/")),
            ingress("unknown", "http://no-such-name.invalid/"),
            Ingress::new("open").prefix(HOST, "/", "web").yaml(),
            service("web", &[origin.addr()]),
        ],
        &["--auth-url-timeout=500ms"],
    )
    .await;
    for name in ["silent", "garbage", "gone", "unknown"] {
        let host = format!("{name}.example.com");
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        let waiting = tokio::spawn(async move { conn.get(&host, "/").await.unwrap().status });
        assert_eq!(ask(&product, "/", &[]).await.status, 200, "{name}");
        assert_eq!(waiting.await.unwrap(), 502, "{name}");
    }
    let labels = [("type", "external"), ("result", "error")];
    assert_eq!(product.metric_sum("tak_ingress_auth_requests_total", &labels).await, 4.0);
    // Nothing was tried again: one connection for one request.
    assert_eq!((silent.accepts(), garbage.accepts()), (1, 1));
}

#[tokio::test]
async fn the_dial_guard_holds_for_the_service_as_well() {
    let (origin, provider) = (Origin::echo().await, provider().await);
    let product = serve_with(
        [guarded("web", &provider).prefix(HOST, "/", "web").yaml(), service("web", &[origin.addr()])],
        &["--deny-backend-cidrs=127.0.0.0/8"],
    )
    .await;
    assert_eq!(ask(&product, "/", &[("Cookie", "session=alice")]).await.status, 502);
    assert_eq!(provider.accepts(), 0);
}

#[tokio::test]
async fn a_service_with_a_certificate_that_nobody_trusts_is_not_asked() {
    let origin = Origin::echo().await;
    let leaf = Ca::new().leaf(&["127.0.0.1", "localhost"], KeyKind::EcP256Sec1);
    let provider = Origin::https(&leaf.cert_pem, &leaf.key_pem, decide).await;
    let url = format!("https://{}/auth", provider.addr());
    let product = serve([
        Ingress::new("web").prefix(HOST, "/", "web").set("auth-url", &url).yaml(),
        service("web", &[origin.addr()]),
    ])
    .await;
    assert_eq!(ask(&product, "/", &[("Cookie", "session=alice")]).await.status, 502);
    assert_eq!((provider.requests(), origin.accepts()), (0, 0));
}

/// A URL with an address is verified against the addresses of the certificate (RFC 6125 leaves those out, RFC 9525 section 6.2 not).
#[tokio::test]
async fn a_service_at_an_address_shows_a_certificate_for_that_address() {
    let origin = Origin::echo().await;
    let ca = Ca::new();
    let dir = TempDir::new("auth-ca");
    let bundle = dir.write("ca.pem", ca.pem());
    for (names, status) in [(vec!["127.0.0.1"], 200), (vec!["127.0.0.2", "localhost"], 502)] {
        let leaf = ca.leaf(&names, KeyKind::EcP256Sec1);
        let provider = Origin::https(&leaf.cert_pem, &leaf.key_pem, decide).await;
        let url = format!("https://{}/auth", provider.addr());
        let documents = [
            Ingress::new("web").prefix(HOST, "/", "web").set("auth-url", &url).yaml(),
            service("web", &[origin.addr()]),
        ];
        let yaml = common::join(documents);
        let product = Product::builder().manifests_yaml(&yaml).env("SSL_CERT_FILE", &bundle).start().await;
        product.ready().await;
        let answer = ask(&product, "/", &[("Cookie", "session=alice")]).await;
        assert_eq!(answer.status, status, "{names:?}");
        assert_eq!(provider.requests(), usize::from(status == 200), "{names:?}");
    }
}

#[tokio::test]
async fn a_common_name_is_no_name_of_the_service() {
    let origin = Origin::echo().await;
    let ca = Ca::new();
    let dir = TempDir::new("auth-ca");
    let bundle = dir.write("ca.pem", ca.pem());
    let options = LeafOptions { common_name: "localhost".into(), ..LeafOptions::default() };
    for (names, status) in [(&["localhost"][..], 200), (&[], 502)] {
        let leaf = ca.leaf_with(names, KeyKind::EcP256Sec1, &options);
        let provider = Origin::https(&leaf.cert_pem, &leaf.key_pem, decide).await;
        let url = format!("https://localhost:{}/auth", provider.port());
        let documents = [
            Ingress::new("web").prefix(HOST, "/", "web").set("auth-url", &url).yaml(),
            service("web", &[origin.addr()]),
        ];
        let yaml = common::join(documents);
        let product = Product::builder().manifests_yaml(&yaml).env("SSL_CERT_FILE", &bundle).start().await;
        product.ready().await;
        let answer = ask(&product, "/", &[("Cookie", "session=alice")]).await;
        assert_eq!(answer.status, status, "{names:?}");
        assert_eq!(provider.requests(), usize::from(status == 200), "{names:?}");
    }
}

#[tokio::test]
async fn a_websocket_handshake_asks_without_its_upgrade() {
    let origin = Origin::raw(async |mut stream| {
        let Ok(head) = read_head(&mut stream).await else { return };
        let told = head.lines().filter(|line| line.to_ascii_lowercase().starts_with("x-auth-request-user"));
        let told = told.collect::<Vec<_>>().join(";");
        let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n";
        let _ = stream.write_all(format!("{switch}X-Told: {told}\r\n\r\n").as_bytes()).await;
    })
    .await;
    let provider = provider().await;
    let product =
        serve([guarded("web", &provider).prefix(HOST, "/", "web").yaml(), service("web", &[origin.addr()])])
            .await;
    let handshake = |cookie: &str| {
        format!(
            "GET /chat HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nCookie: {cookie}\r\n\r\n"
        )
    };
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(handshake("none=1")).await.unwrap();
    assert_eq!((conn.read_response().await.unwrap().status, origin.accepts()), (401, 0));
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(handshake("session=alice")).await.unwrap();
    let answer = conn.read_head().await.unwrap();
    assert_eq!(answer.status, 101);
    assert!(
        answer.header("x-told").unwrap().eq_ignore_ascii_case("x-auth-request-user: alice"),
        "{answer:?}"
    );
    for question in provider.heads() {
        let question = question.to_ascii_lowercase();
        for name in ["upgrade", "connection", "sec-websocket-key", "sec-websocket-version"] {
            assert!(!question.contains(&format!("\n{name}:")), "{question}");
        }
    }
}

#[tokio::test]
async fn an_exempt_path_keeps_clear_of_its_neighbour() {
    let (origin, provider) = (Origin::echo().await, provider().await);
    for days in [(1, 2), (2, 1)] {
        let product = serve([
            guarded("app", &provider).prefix(HOST, "/", "web").created(days.0).yaml(),
            Ingress::new("login").prefix(HOST, "/oauth2", "web").created(days.1).yaml(),
            service("web", &[origin.addr()]),
        ])
        .await;
        assert_eq!(ask(&product, "/oauth2/start", &[]).await.status, 200);
        for path in ["/", "/oauth2x", "//oauth", "/app"] {
            assert_eq!(ask(&product, path, &[]).await.status, 401, "{path}");
        }
    }
}

#[tokio::test]
async fn many_requests_to_a_silent_service_end_in_time() {
    let origin = Origin::echo().await;
    let silent = Origin::raw(async |mut stream| {
        let _ = read_head(&mut stream).await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
    })
    .await;
    let product = serve_with(
        [guarded("web", &silent).prefix(HOST, "/", "web").yaml(), service("web", &[origin.addr()])],
        &["--auth-url-timeout=1s"],
    )
    .await;
    let waiting: Vec<_> = (0..200)
        .map(|_| {
            let addr = product.http();
            tokio::spawn(
                async move { RawConn::connect(addr).await.unwrap().get(HOST, "/").await.unwrap().status },
            )
        })
        .collect();
    for request in waiting {
        let status = tokio::time::timeout(Duration::from_secs(30), request).await.unwrap().unwrap();
        assert_eq!(status, 502);
    }
    eventually(DEADLINE, async || (silent.open_connections() == 0).then_some(())).await;
}
