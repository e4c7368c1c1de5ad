//! Limits by client: how many pass, who shares a bucket, and what does not reset it.

mod common;

use std::time::Instant;

use common::{HOST, Ingress, client_from, join, serve, serve_with, service};
use ingress_e2e::client::{H2Conn, RawConn, Response};
use ingress_e2e::origin::{Origin, read_head};
use ingress_e2e::product::Product;
use ingress_e2e::{DEADLINE, eventually};
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;

fn limited(name: &str, host: &str, set: &[(&str, &str)]) -> Ingress {
    set.iter()
        .fold(Ingress::new(name).prefix(host, "/", "web"), |ingress, (key, value)| ingress.set(key, value))
}

/// One token comes in each 1000 s: within a test none does.
const SLOW: (&str, &str) = ("limit-rps", "0.001");

async fn send(product: &Product, from: &str, host: &str, headers: &[(&str, &str)]) -> Response {
    client_from(from, product.http()).await.request("GET", host, "/", headers, b"").await.unwrap()
}

async fn status(product: &Product, from: &str, host: &str) -> u16 {
    send(product, from, host, &[]).await.status
}

#[tokio::test]
async fn fifty_pass_at_once_with_ten_a_second_and_five_bursts() {
    let origin = Origin::echo().await;
    let product =
        serve([limited("web", HOST, &[("limit-rps", "10")]).yaml(), service("web", &[origin.addr()])]).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    let began = Instant::now();
    let mut refused = Vec::new();
    for _ in 0..200 {
        let answer = conn.get(HOST, "/").await.unwrap();
        if answer.status != 200 {
            refused.push(answer);
        }
    }
    let passed = 200 - refused.len();
    // A slow machine earns a token each 100 ms.
    let earned = began.elapsed().as_millis() as usize / 100 + 1;
    assert!((50..=50 + earned).contains(&passed), "{passed} passed, {earned} earned");
    for answer in &refused {
        assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")));
        assert_eq!(answer.text(), "429 Too Many Requests\n");
    }
    assert!(!refused.is_empty(), "200 requests took {:?}", began.elapsed());
    let count = product
        .metric_sum("tak_ingress_rate_limited_requests_total", &[("ingress", "web"), ("host", HOST)])
        .await;
    assert_eq!(count as usize, refused.len());
    // The refused connection serves on, and tokens come back.
    eventually(DEADLINE, async || (conn.get(HOST, "/").await.unwrap().status == 200).then_some(())).await;
}

#[tokio::test]
async fn the_peers_address_is_the_client_whatever_it_says() {
    let origin = Origin::echo().await;
    let product = serve([limited("web", HOST, &[SLOW]).yaml(), service("web", &[origin.addr()])]).await;
    assert_eq!(status(&product, "127.0.0.1", HOST).await, 200);
    for i in 0..20 {
        let address = format!("203.0.113.{i}");
        for name in
            ["X-Forwarded-For", "X-Real-IP", "Forwarded", "X-Client-IP", "True-Client-IP", "X_Forwarded_For"]
        {
            assert_eq!(send(&product, "127.0.0.1", HOST, &[(name, &address)]).await.status, 429, "{name}");
        }
    }
    let h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
    assert_eq!(h2.get(HOST, "/").await.unwrap().status, 429, "the same bucket on the other port");
    let answer = send(&product, "127.0.0.1", HOST, &[]).await;
    let seconds: u32 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((500..=1000).contains(&seconds), "{seconds}");
    assert_eq!(status(&product, "127.0.0.2", HOST).await, 200, "another client");
    assert_eq!(origin.requests(), 2);
}

#[tokio::test]
async fn behind_a_trusted_proxy_the_client_it_names_is_counted() {
    let origin = Origin::echo().await;
    let documents = [limited("web", HOST, &[SLOW]).yaml(), service("web", &[origin.addr()])];
    let product = serve_with(documents, &["--trusted-proxies=127.0.0.2", "--limit-ipv6-prefix=64"]).await;
    for (from, status) in [
        ("203.0.113.1", 200),
        ("203.0.113.1", 429),
        ("198.51.100.1, 203.0.113.1", 429),
        ("203.0.113.2", 200),
        ("2001:db8:0:1::1", 200),
        ("2001:db8:0:1::2", 429),
        ("2001:db8:0:2::1", 200),
    ] {
        let answer = send(&product, "127.0.0.2", HOST, &[("X-Forwarded-For", from)]).await;
        assert_eq!(answer.status, status, "{from}");
    }
}

#[tokio::test]
async fn each_ingress_has_its_own_buckets_and_a_new_snapshot_does_not_fill_them() {
    let origin = Origin::echo().await;
    let documents = |note: &str| {
        let both =
            Ingress::new("both").prefix(HOST, "/", "web").prefix(HOST, "/x", "web").set("limit-rps", "0.001");
        join([
            both.annotation("example.com/note", note).yaml(),
            limited("other", "other.example.com", &[SLOW]).yaml(),
            limited("free", &format!("{note}.example.com"), &[]).yaml(),
            service("web", &[origin.addr()]),
        ])
    };
    let product = serve([documents("one")]).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    assert_eq!(conn.get(HOST, "/").await.unwrap().status, 200);
    assert_eq!(conn.get(HOST, "/x").await.unwrap().status, 429, "the routes of an Ingress share a bucket");
    assert_eq!(conn.get("other.example.com", "/").await.unwrap().status, 200);
    assert_eq!(conn.get("one.example.com", "/").await.unwrap().status, 200);
    product.write_manifest("manifests.yaml", &documents("two"));
    eventually(DEADLINE, async || {
        (conn.get("two.example.com", "/").await.unwrap().status == 200).then_some(())
    })
    .await;
    assert_eq!(conn.get(HOST, "/").await.unwrap().status, 429);
    assert_eq!(conn.get("other.example.com", "/").await.unwrap().status, 429);
}

#[tokio::test]
async fn bad_values_limit_nothing_and_block_nobody() {
    let origin = Origin::echo().await;
    for (key, value) in [
        ("limit-rps", "0"),
        ("limit-rps", "-1"),
        ("limit-rps", "abc"),
        ("limit-rpm", "1e12"),
        ("limit-connections", "0"),
    ] {
        let product =
            serve([limited("web", HOST, &[(key, value)]).yaml(), service("web", &[origin.addr()])]).await;
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        for _ in 0..30 {
            assert_eq!(conn.get(HOST, "/").await.unwrap().status, 200, "{key}={value}");
        }
        let warned = async || {
            let line = product.log().into_iter().find(|line| line.to_string().contains(key))?;
            line.to_string().contains("InvalidAnnotation").then_some(())
        };
        eventually(DEADLINE, warned).await;
    }
}

#[tokio::test]
async fn what_is_refused_earlier_takes_no_token() {
    let origin = Origin::echo().await;
    let product = serve([
        limited("auth", "auth.example.com", &[SLOW, ("auth-type", "basic")]).yaml(),
        limited("list", "list.example.com", &[SLOW, ("denylist-source-range", "127.0.0.1")]).yaml(),
        service("web", &[origin.addr()]),
    ])
    .await;
    for _ in 0..3 {
        assert_eq!(
            status(&product, "127.0.0.1", "auth.example.com").await,
            501,
            "authentication comes first"
        );
        assert_eq!(status(&product, "127.0.0.1", "list.example.com").await, 403);
    }
    assert_eq!(product.metric_sum("tak_ingress_rate_limited_requests_total", &[]).await, 0.0);
}

#[tokio::test]
async fn requests_at_the_same_time_are_counted_until_they_end() {
    let (open, gate) = watch::channel(false);
    let origin = Origin::raw(move |mut stream| {
        let mut gate = gate.clone();
        async move {
            while read_head(&mut stream).await.is_ok_and(|head| !head.is_empty()) {
                let _ = gate.wait_for(|open| *open).await;
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
            }
        }
    })
    .await;
    let product =
        serve([limited("web", HOST, &[("limit-connections", "2")]).yaml(), service("web", &[origin.addr()])])
            .await;
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        conn.send(common::get(HOST, "/")).await.unwrap();
        waiting.push(conn);
    }
    // Both are with the backend, and are in flight.
    eventually(DEADLINE, async || (origin.accepts() == 2).then_some(())).await;
    let third = send(&product, "127.0.0.1", HOST, &[]).await;
    assert_eq!((third.status, third.header("retry-after")), (429, Some("1")));
    // A client that leaves gives its place back; so does one that is answered.
    drop(waiting.pop());
    let mut again = eventually(DEADLINE, async || {
        let before = origin.accepts();
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        conn.send(common::get(HOST, "/")).await.unwrap();
        // Refused, or with the backend on a connection of its own.
        let admitted = eventually(DEADLINE, async || {
            let admitted = origin.accepts() > before;
            (admitted || conn.is_closed().await).then_some(admitted)
        });
        admitted.await.then_some(conn)
    })
    .await;
    open.send_replace(true);
    for conn in waiting.iter_mut().chain([&mut again]) {
        assert_eq!(conn.read_response().await.unwrap().status, 200);
    }
    for _ in 0..5 {
        eventually(DEADLINE, async || (status(&product, "127.0.0.1", HOST).await == 200).then_some(())).await;
    }
}
