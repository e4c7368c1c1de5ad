//! Which headers reach the backend, and which come back.

mod common;

use std::time::Duration;

use common::{HOST, Ingress, everything_to, get, serve, serve_with, service, status_in, status_of};
use ingress_e2e::client::{self, H2Conn, RawConn, Response};
use ingress_e2e::origin::{Origin, Reply};
use ingress_e2e::pki::{Ca, KeyKind, tls_secret_yaml};
use ingress_e2e::product::Product;
use tokio::task::JoinSet;

/// The names of the fields that the backend saw, as a CGI-like backend reads them: `_` and `.` are `-`.
fn seen(answer: &Response) -> Vec<String> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let echo = answer.json();
    let names = echo["headers"].as_array().unwrap().iter().map(|field| field[0].as_str().unwrap());
    names.map(|name| name.to_ascii_lowercase().replace(['_', '.'], "-")).collect()
}

/// A request over HTTP/1.1 in plaintext and one over HTTP/2.
async fn both(product: &Product, headers: &[(&str, &str)]) -> [Response; 2] {
    let mut h1 = RawConn::connect(product.http()).await.unwrap();
    let h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
    [
        h1.request("GET", HOST, "/", headers, b"").await.unwrap(),
        h2.request("GET", HOST, "/", headers, b"").await.unwrap(),
    ]
}

const FORGED: [(&str, &str); 14] = [
    ("X-Forwarded-For", "203.0.113.9"),
    ("X-Forwarded-For", "203.0.113.10"),
    ("X_Forwarded_For", "203.0.113.9"),
    ("X-Real-IP", "203.0.113.9"),
    ("X_Real_IP", "203.0.113.9"),
    ("X-Forwarded-Proto", "ftp"),
    ("X-Forwarded_Proto", "ftp"),
    ("X-Forwarded-Port", "1"),
    ("X-Forwarded-Host", "evil.example"),
    ("X-Forwarded-Server", "evil.example"),
    ("X-Forwarded-Prefix", "/evil"),
    ("X-Forwarded", "for=203.0.113.9"),
    ("Forwarded", "for=203.0.113.9;proto=https"),
    ("FORWARDED", "for=203.0.113.10"),
];

#[tokio::test]
async fn forwarding_headers_are_the_proxys_alone() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let [h1, h2] = both(&product, &FORGED).await;
    for (answer, proto, port) in [(h1, "http", "80"), (h2, "https", "443")] {
        for (name, value) in [
            ("x-forwarded-for", "127.0.0.1"),
            ("x-real-ip", "127.0.0.1"),
            ("x-forwarded-proto", proto),
            ("x-forwarded-port", port),
            ("x-forwarded-host", HOST),
        ] {
            assert_eq!(answer.echoed(name), [value], "{name}");
        }
        let forwarding = |name: &String| name.contains("forwarded") || name == "x-real-ip";
        let mut names: Vec<_> = seen(&answer).into_iter().filter(forwarding).collect();
        names.sort();
        let want =
            ["x-forwarded-for", "x-forwarded-host", "x-forwarded-port", "x-forwarded-proto", "x-real-ip"];
        assert_eq!(names, want, "in one spelling, once");
        assert!(!answer.text().contains("203.0.113.") && !answer.text().contains("evil"));
    }
}

#[tokio::test]
async fn forwarding_headers_follow_connection_and_authority() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    for (tls, host, proto, port) in [
        (false, "app.example.com:8080", "http", "8080"),
        (false, "app.example.com:443", "http", "443"),
        (true, "app.example.com", "https", "443"),
        (true, "app.example.com:8443", "https", "8443"),
        (true, "app.example.com:80", "https", "80"),
    ] {
        let answer = match tls {
            true => client::tls_get(product.https(), HOST, host, "/", None).await,
            false => client::get(product.http(), host, "/").await,
        };
        assert_eq!(answer.echoed("x-forwarded-proto"), [proto], "{host}");
        assert_eq!(answer.echoed("x-forwarded-port"), [port], "{host}");
        assert_eq!(answer.echoed("x-forwarded-host"), [host]);
    }
}

#[tokio::test]
async fn addresses_of_both_families_are_written_plainly() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        eprintln!("this machine has no IPv6 loopback: not tested");
        return;
    }
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--bind-address=::"]).await;
    for (listener, tls) in [(product.http(), false), (product.https(), true)] {
        for (local, want) in [("::1", "::1"), ("127.0.0.1", "127.0.0.1")] {
            let at = (local.parse::<std::net::IpAddr>().unwrap(), listener.port()).into();
            let answer = match tls {
                true => client::tls_get(at, HOST, HOST, "/", None).await,
                false => client::get(at, HOST, "/").await,
            };
            assert_eq!(answer.echoed("x-forwarded-for"), [want]);
            assert_eq!(answer.echoed("x-real-ip"), [want]);
        }
    }
}

#[tokio::test]
async fn identity_headers_of_the_client_are_dropped_in_every_spelling() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let spellings = [
        "X-Auth-Request-User",
        "x-auth-request-user",
        "X-AUTH-REQUEST-EMAIL",
        "X_Auth_Request_User",
        "X-Auth_Request-Groups",
        "X_AUTH-Request_Preferred_Username",
        "X-Auth-Request-Access-Token",
        "X.Auth.Request.User",
        "X-Auth-Request-Anything",
    ];
    let headers: Vec<_> = spellings.iter().map(|name| (*name, "root")).collect();
    for answer in both(&product, &headers).await {
        let names = seen(&answer);
        assert!(!names.iter().any(|name| name.starts_with("x-auth-request")), "{names:?}");
        assert!(!answer.text().contains("root"), "{}", answer.text());
    }
    // What merely resembles them is the application's.
    for answer in both(&product, &[("X-Auth-Requested", "kept"), ("X-Auth-User", "kept")]).await {
        assert_eq!(
            (answer.echoed("x-auth-requested"), answer.echoed("x-auth-user")),
            (vec!["kept".into()], vec!["kept".into()])
        );
    }
}

#[tokio::test]
async fn connection_cannot_name_the_proxys_headers_away() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    for connection in [
        "close, X-Auth-Request-User, x-forwarded-for, X-Real-IP, X-Forwarded-Host, X-Forwarded-Proto",
        "X-FORWARDED-FOR,x-real-ip,X-Forwarded-Port,Host,Content-Length,Transfer-Encoding",
        "keep-alive, , x-real-ip ,x-forwarded-for",
    ] {
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        let headers =
            [("Connection", connection), ("X-Real-IP", "203.0.113.9"), ("X-Auth-Request-User", "root")];
        let answer = conn.request("POST", HOST, "/", &headers, b"hello").await.unwrap();
        assert_eq!(answer.status, 200, "{connection}");
        assert_eq!(answer.json()["body"], "hello", "{connection}");
        assert_eq!(answer.echoed("host"), [HOST]);
        for (name, value) in [
            ("x-forwarded-for", "127.0.0.1"),
            ("x-real-ip", "127.0.0.1"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-port", "80"),
            ("x-forwarded-host", HOST),
        ] {
            assert_eq!(answer.echoed(name), [value], "{connection}");
        }
        assert!(answer.echoed("x-auth-request-user").is_empty());
    }
}

#[tokio::test]
async fn connection_takes_the_clients_own_headers_with_it() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    let headers = [
        ("X-Hop", "1"),
        ("Connection", "x-HOP"),
        ("Connection", "X-Other"),
        ("x-other", "2"),
        ("X-Stays", "3"),
    ];
    let names = seen(&conn.request("GET", HOST, "/", &headers, b"").await.unwrap());
    assert!(!names.contains(&"x-hop".into()) && !names.contains(&"x-other".into()), "{names:?}");
    assert!(names.contains(&"x-stays".into()) && !names.contains(&"connection".into()), "{names:?}");
}

#[tokio::test]
async fn hop_by_hop_headers_stay_and_the_backends_connection_is_reused() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--threads=1"]).await;
    let hop = "Connection: close\r\nKeep-Alive: timeout=1\r\nProxy-Connection: close\r\nTE: gzip\r\n\
               Proxy-Authorization: Basic eA==\r\nTrailer: X-Sum\r\n";
    for _ in 0..100 {
        let answer =
            client::raw(product.http(), format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n{hop}\r\n")).await;
        assert_eq!(status_in(&answer), 200);
    }
    assert_eq!((origin.requests(), origin.accepts()), (100, 1));
    for head in origin.heads() {
        let head = head.to_ascii_lowercase();
        for name in ["connection", "keep-alive", "proxy-connection", "te", "proxy-authorization", "trailer"] {
            assert!(!head.contains(&format!("\r\n{name}:")), "{head}");
        }
    }
}

#[tokio::test]
async fn a_backends_hop_by_hop_headers_stay_on_its_side() {
    let origin = Origin::http(|_| {
        let reply = Reply::new(200, "hi").header("Connection", "keep-alive, X-Hop").header("X-Hop", "1");
        reply
            .header("Keep-Alive", "timeout=5")
            .header("Proxy-Connection", "keep-alive")
            .header("Upgrade", "h2c")
    })
    .await;
    let product = serve(everything_to(&origin)).await;
    for answer in both(&product, &[]).await {
        assert_eq!((answer.status, answer.text().as_str()), (200, "hi"));
        for name in ["x-hop", "keep-alive", "proxy-connection", "upgrade"] {
            assert_eq!(answer.header(name), None, "{name}");
        }
    }
}

#[tokio::test]
async fn heads_below_the_limit_pass() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let cookie = format!("session={}", "x".repeat(60 * 1024));
    for answer in both(&product, &[("Cookie", &cookie)]).await {
        assert_eq!(answer.status, 200);
        assert_eq!(answer.echoed("cookie"), [cookie.as_str()]);
    }
    let target = format!("/{}", "p".repeat(30 * 1024));
    assert_eq!(client::get(product.http(), HOST, &target).await.status, 200);
    let many: Vec<_> = (0..100).map(|i| format!("x-{i}")).collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), "1")).collect();
    for answer in both(&product, &many).await {
        assert_eq!(answer.echoed("x-99"), ["1"]);
    }
}

#[tokio::test]
async fn heads_above_the_limit_are_refused() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let with = |fields: &str| format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n{fields}\r\n");
    for size in [65 * 1024, 128 * 1024, 1_258_291] {
        let head = with(&format!("X-Big: {}\r\n", "x".repeat(size)));
        assert_eq!(status_of(product.http(), head).await, 431, "one field of {size} bytes");
    }
    let fields: String = (0..200).map(|i| format!("X-{i}: {}\r\n", "x".repeat(1000))).collect();
    assert_eq!(status_of(product.http(), with(&fields)).await, 431, "200 fields, 200 KiB together");
    let target = format!("GET /{} HTTP/1.1\r\nHost: {HOST}\r\n\r\n", "p".repeat(100 * 1024));
    let status = status_of(product.http(), target).await;
    assert!([400, 414, 431].contains(&status), "a long target: {status}");
    for count in [300, 2000] {
        let fields: String = (0..count).map(|i| format!("X-{i}: 1\r\n")).collect();
        let status = status_of(product.http(), with(&fields)).await;
        assert!([400, 431].contains(&status), "{count} fields: {status}");
    }

    // HTTP/2: 431, or a stream or connection error; never the backend.
    let h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
    let big = "x".repeat(100 * 1024);
    let answer = h2.request("GET", HOST, "/", &[("x-big", &big)], b"").await;
    assert!(answer.as_ref().map_or(true, |a| a.status == 431), "{answer:?}");
    assert_eq!(origin.accepts(), 0, "nothing was forwarded");
}

#[tokio::test]
async fn the_limit_can_be_set() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--max-header-size=4Ki"]).await;
    let with = |size| {
        format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\nX: {}\r\n\r\n", "x".repeat(size))
    };
    assert_eq!(status_of(product.http(), with(3 * 1024)).await, 200);
    assert_eq!(status_of(product.http(), with(5 * 1024)).await, 431);
}

#[tokio::test]
async fn unfinished_heads_take_no_memory() {
    const CLIENTS: usize = 200;
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    assert_eq!(client::get(product.http(), HOST, "/").await.status, 200);
    let before = product.rss_kib();
    let head =
        std::sync::Arc::new(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nX-Big: {}", "x".repeat(900 * 1024)));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (head, addr) = (head.clone(), product.http());
        clients.spawn(async move {
            let mut conn = RawConn::connect(addr).await.unwrap();
            // The proxy may stop reading once it has answered.
            let _ = conn.send(head.as_bytes()).await;
            (conn.read_response().await.map(|answer| answer.status), conn)
        });
    }
    // All are kept open until all are answered.
    let answered = clients.join_all().await;
    let grown = product.rss_kib().saturating_sub(before);
    for (status, _) in &answered {
        assert_eq!(status.as_ref().ok(), Some(&431), "{status:?}");
    }
    // Kept whole they would take 176 MiB.
    assert!(grown < 100 * 1024, "{CLIENTS} unfinished heads of 900 KiB took {grown} KiB");
    assert_eq!(client::get(product.http(), HOST, "/").await.status, 200);
}

#[tokio::test]
async fn the_connection_of_a_refused_head_ends() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nX-Big: {}", "x".repeat(100 * 1024))).await.unwrap();
    let answer = conn.read_response().await.unwrap();
    assert_eq!((answer.status, answer.header("connection")), (431, Some("close")));
    assert!(conn.closed_within(Duration::from_secs(5)).await, "the proxy said that it closes");
}

#[tokio::test]
async fn folded_and_badly_named_fields_are_refused() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    for fields in [
        "Host: app.example.com\r\nX-A: 1\r\n X-Auth-Request-User: root\r\n",
        "Host: app.example.com\r\nX-A: 1\r\n\tfolded\r\n",
        " Host: app.example.com\r\nHost: app.example.com\r\n",
        "\tX-A: 1\r\nHost: app.example.com\r\n",
        "Host : app.example.com\r\n",
        "Host: app.example.com\r\nTransfer-Encoding : chunked\r\n",
        "Host: app.example.com\r\nX-A\t: 1\r\n",
        "Host: app.example.com\r\n: nameless\r\n",
        "Host: app.example.com\r\nno colon\r\n",
        "Host: app.example.com\r\nX(A): 1\r\n",
        "Host: app.example.com\r\nX\0A: 1\r\n",
        "Host: app.example.com\r\nX-A: a\0b\r\n",
        "Host: app.example.com\r\nX-A: a\rb\r\n",
    ] {
        let status = status_of(product.http(), format!("GET / HTTP/1.1\r\n{fields}\r\n")).await;
        assert_eq!(status, 400, "{fields:?}");
    }
    assert_eq!(origin.accepts(), 0, "nothing was forwarded");
}

#[tokio::test]
async fn set_cookie_lines_stay_apart_and_in_order() {
    let cookies = ["a=1; Path=/; Expires=Wed, 21 Oct 2026 07:28:00 GMT", "b=2", "a=3; HttpOnly"];
    let origin = Origin::http(move |_| {
        cookies.iter().fold(Reply::new(200, "hi"), |reply, cookie| reply.header("Set-Cookie", cookie))
    })
    .await;
    let product = serve(everything_to(&origin)).await;
    for answer in both(&product, &[]).await {
        assert_eq!(answer.header_all("set-cookie"), cookies);
    }
}

#[tokio::test]
async fn cookie_crumbs_of_http2_become_one_cookie() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
    let crumbs = [("cookie", "a=1"), ("cookie", "b=2"), ("x-between", "1"), ("cookie", "_session=x; c=3")];
    let answer = h2.request("GET", HOST, "/", &crumbs, b"").await.unwrap();
    assert_eq!(answer.echoed("cookie"), ["a=1; b=2; _session=x; c=3"]);
}

/// [`HOST`] with TLS, and the same without the redirect on `open.example.com`.
async fn with_tls(origin: &Origin) -> Product {
    let leaf = Ca::new().leaf(&[HOST, "open.example.com"], KeyKind::EcP256Sec1);
    let open = Ingress::new("open").prefix("open.example.com", "/", "web").tls(&["open.example.com"], "tls");
    serve([
        Ingress::new("web").prefix(HOST, "/", "web").tls(&[HOST], "tls").yaml(),
        open.set("ssl-redirect", "false").yaml(),
        service("web", &[origin.addr()]),
        tls_secret_yaml("shop", "tls", &leaf),
    ])
    .await
}

#[tokio::test]
async fn plain_http_to_a_host_with_tls_is_redirected() {
    let origin = Origin::echo().await;
    let product = with_tls(&origin).await;
    for (method, host, path, body, location) in [
        ("GET", HOST, "/", "", "https://app.example.com/"),
        ("GET", HOST, "/a%2Fb//c?x=1&y=%20", "", "https://app.example.com/a%2Fb//c?x=1&y=%20"),
        ("POST", HOST, "/form?x=1", "a=b", "https://app.example.com/form?x=1"),
        ("HEAD", HOST, "/h", "", "https://app.example.com/h"),
        ("GET", "app.example.com:80", "/", "", "https://app.example.com/"),
        ("GET", HOST, "//evil.example/", "", "https://app.example.com//evil.example/"),
    ] {
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        let answer = conn.request(method, host, path, &[], body.as_bytes()).await.unwrap();
        assert_eq!((answer.status, answer.header("location")), (308, Some(location)), "{method} {path}");
        assert_eq!(answer.header("server"), Some("tak-os-ingress"));
    }
    assert_eq!(origin.accepts(), 0);
    let answer = client::tls_get(product.https(), HOST, HOST, "/", None).await;
    assert_eq!(answer.status, 200, "no redirect over TLS");
}

#[tokio::test]
async fn a_redirect_trusts_the_connection_and_not_a_header() {
    let origin = Origin::echo().await;
    let product = with_tls(&origin).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    let headers =
        [("X-Forwarded-Proto", "https"), ("X-Forwarded-Host", "evil.example"), ("Forwarded", "proto=https")];
    let answer = conn.request("GET", HOST, "/x", &headers, b"").await.unwrap();
    assert_eq!((answer.status, answer.header("location")), (308, Some("https://app.example.com/x")));
}

#[tokio::test]
async fn the_redirect_can_be_turned_off() {
    let origin = Origin::echo().await;
    let product = with_tls(&origin).await;
    assert_eq!(client::get(product.http(), "open.example.com", "/").await.status, 200);
    let answer = client::tls_get(product.https(), "open.example.com", "open.example.com", "/", None).await;
    assert_eq!((answer.status, answer.echoed("x-forwarded-proto")), (200, vec!["https".into()]));
}

#[tokio::test]
async fn the_backend_gets_ordinary_headers_as_they_were() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let headers = [
        ("Accept", "text/html;q=0.9, */*"),
        ("Authorization", "Bearer x.y.z"),
        ("X-Twice", "1"),
        ("X-Twice", "2"),
        ("X-Utf8", "gr\u{fc}n"),
        ("If-None-Match", "W/\"1\""),
    ];
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    let answer = conn.request("GET", HOST, "/", &headers, b"").await.unwrap();
    assert_eq!(answer.echoed("x-twice"), ["1", "2"]);
    for (name, value) in headers.iter().filter(|(name, _)| *name != "X-Twice") {
        assert_eq!(answer.echoed(name), [*value], "{name}");
    }
    assert_eq!(status_of(product.http(), get(HOST, "/")).await, 200);
    assert!(!origin.last_head().to_ascii_lowercase().contains("\r\nuser-agent:"), "none is made up");
}
