//! Basic authentication: who gets in, what the backend is told, and what guessing costs.

mod common;

use common::{HOST, Ingress, NAMESPACE, serve, serve_with, service};
use ingress_e2e::client::{RawConn, Response};
use ingress_e2e::origin::{Origin, read_head};
use ingress_e2e::product::{Product, run_product_with_input};
use ingress_e2e::{DEADLINE, eventually};
use serde_json::json;
use std::process::Command;
use tokio::io::AsyncWriteExt;

/// The password of every user whose hash is here.
const PASSWORD: &str = "pa:ss word";
/// Made by other programs: bcrypt, Apache's MD5, SHA-crypt and SHA-1.
const USERS: &str = "\u{feff}# staff\r\n\
    alice:$2b$05$cxt/LnrBRHx5OHnjGHc/zOcsnw2NNPoNBqS9mPrIFOirmvrbluHOi\r\n\
    ally:$2y$05$cxt/LnrBRHx5OHnjGHc/zOcsnw2NNPoNBqS9mPrIFOirmvrbluHOi\r\n\
    alex:$2a$05$cxt/LnrBRHx5OHnjGHc/zOcsnw2NNPoNBqS9mPrIFOirmvrbluHOi \r\n\
    \r\n\
    bob:$apr1$abcdefgh$tZCjPu7axu9jp1Xjq4cw21\n\
    carol:$5$saltstring$EX.D7ZKn7uBuimojVC560PqHl/rBSAN0kIsIJmP/G/2\n\
    dave:$6$saltstring$4viJBC7HqBHiSHzWRCJV/dIYsK/tPJedu28vcGjQqQ8eZ0zAQR6MiblS49vZ.bU6en/hlYM75Jn6ujUYxtqLU/\n\
    mallory:pa:ss word\n\
    erin:{SHA}wLRj6V1KMJOvfvMeovciA0CKWSg=";

fn secret(name: &str, file: &str) -> String {
    secret_in(NAMESPACE, name, file)
}

fn secret_in(namespace: &str, name: &str, file: &str) -> String {
    common::secret_in(namespace, name, json!({"auth": file}))
}

fn guarded(name: &str) -> Ingress {
    Ingress::new(name).set("auth-type", "basic").set("auth-secret", "users")
}

fn basic(user: &str, password: &str) -> String {
    format!(
        "Basic {}",
        openssl::base64::encode_block(format!("{user}:{password}").as_bytes()).replace('\n', "")
    )
}

async fn ask(product: &Product, headers: &[(&str, &str)]) -> Response {
    RawConn::connect(product.http()).await.unwrap().request("GET", HOST, "/", headers, b"").await.unwrap()
}

async fn log_in(product: &Product, user: &str, password: &str) -> Response {
    ask(product, &[("Authorization", &basic(user, password))]).await
}

async fn staff(origin: &Origin, args: &[&str]) -> Product {
    let documents = [
        guarded("web").prefix(HOST, "/", "web").set("auth-realm", "My \"App\"").yaml(),
        service("web", &[origin.addr()]),
        secret("users", USERS),
    ];
    serve_with(documents, args).await
}

#[tokio::test]
async fn every_kind_of_hash_lets_its_user_in_and_nobody_else() {
    let origin = Origin::echo().await;
    let product = staff(&origin, &["--auth-throttle-failures=0"]).await;
    for user in ["alice", "ally", "alex", "bob", "carol", "dave", "erin"] {
        let answer = log_in(&product, user, PASSWORD).await;
        assert_eq!(answer.status, 200, "{user}");
        assert_eq!(answer.echoed("x-auth-request-user"), [user]);
        assert_eq!(log_in(&product, user, "wrong").await.status, 401, "{user}");
    }
    for (user, password) in [("mallory", PASSWORD), ("nobody", PASSWORD), ("Alice", PASSWORD), ("alice", "")]
    {
        assert_eq!(log_in(&product, user, password).await.status, 401, "{user}");
    }
    assert_eq!(origin.requests(), 7);
}

#[tokio::test]
async fn the_backend_is_told_who_it_is_and_not_the_password() {
    let origin = Origin::echo().await;
    let product = staff(&origin, &[]).await;
    let credentials = basic("alice", PASSWORD);
    let answer = ask(
        &product,
        &[
            ("X-Auth-Request-User", "root"),
            ("x_auth_request_user", "root"),
            ("X-Auth-Request-User", "admin"),
            ("Connection", "X-Auth-Request-User, close"),
            ("Authorization", &credentials),
        ],
    )
    .await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.echoed("x-auth-request-user"), ["alice"]);
    assert_eq!(answer.echoed("x_auth_request_user"), [""; 0]);
    assert_eq!(answer.echoed("authorization"), [""; 0]);
    let log = eventually(DEADLINE, async || {
        product.log().into_iter().find(|line| line["status"] == 200 && line["host"] == HOST)
    })
    .await;
    assert_eq!(log["user"], "alice");
    for text in [PASSWORD, &credentials[6..]] {
        assert!(!product.log_text().contains(text) && !product.stderr().contains(text));
    }
}

#[tokio::test]
async fn whoever_is_not_known_gets_a_challenge_with_the_realm() {
    let origin = Origin::echo().await;
    let product = staff(&origin, &[]).await;
    let long = basic(&"a".repeat(10 << 10), PASSWORD);
    let nul = format!("Basic {}", openssl::base64::encode_block(b"alice\0:x"));
    let no_user = basic("", PASSWORD);
    let no_colon = format!("Basic {}", openssl::base64::encode_block(b"alice"));
    for field in ["", "Bearer x", "Basic", "Basic !", &long, &nul, &no_user, &no_colon] {
        let fields = [("Authorization", field)];
        let answer = ask(&product, if field.is_empty() { &[] } else { &fields }).await;
        assert_eq!(answer.status, 401, "{field}");
        assert_eq!(answer.header_all("www-authenticate"), [r#"Basic realm="My \"App\"""#]);
    }
    let right = basic("alice", PASSWORD);
    let twice = ask(&product, &[("Authorization", &right), ("Authorization", &right)]).await;
    assert_eq!(twice.status, 400);
    assert_eq!(origin.accepts(), 0);
}

#[tokio::test]
async fn guessing_ends_in_429_and_a_success_starts_anew() {
    let origin = Origin::echo().await;
    let product = staff(&origin, &["--auth-throttle-failures=3", "--auth-throttle-window=1h"]).await;
    for _ in 0..2 {
        assert_eq!(log_in(&product, "alice", "wrong").await.status, 401);
    }
    assert_eq!(log_in(&product, "alice", PASSWORD).await.status, 200);
    for i in 0..3 {
        assert_eq!(log_in(&product, "alice", &format!("wrong {i}")).await.status, 401);
    }
    for password in ["wrong", PASSWORD] {
        let answer = log_in(&product, "alice", password).await;
        assert_eq!(answer.status, 429);
        let wait: u32 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!((3000..=3600).contains(&wait), "{wait}");
    }
    assert_eq!(product.metric_sum("tak_ingress_auth_throttled_requests_total", &[]).await, 2.0);
    assert_eq!(
        product.metric_sum("tak_ingress_rate_limited_requests_total", &[]).await,
        0.0,
        "not the limiter"
    );
    let results = [("allowed", 1.0), ("denied", 5.0), ("throttled", 2.0)];
    for (result, count) in results {
        let labels = [("type", "basic"), ("result", result), ("ingress", "web")];
        assert_eq!(product.metric_sum("tak_ingress_auth_requests_total", &labels).await, count, "{result}");
    }
    let timed = product.metric_value("tak_ingress_auth_duration_seconds_count{type=\"basic\"}").await;
    assert_eq!(timed, Some(8.0));
    let limited = product.metric_sum("tak_ingress_rate_limited_requests_total", &[]).await;
    assert_eq!(limited, 0.0, "not the limiter's");
    let another = staff(&origin, &["--auth-throttle-failures=3"]).await;
    assert_eq!(log_in(&another, "alice", "wrong").await.status, 401, "each process counts for itself");
    assert_eq!(another.metric_sum("tak_ingress_auth_throttled_requests_total", &[]).await, 0.0);
}

#[tokio::test]
async fn a_changed_secret_changes_all_its_routes_and_its_loss_closes_them() {
    let origin = Origin::echo().await;
    let other = "other.example.com";
    let documents = [
        guarded("web").prefix(HOST, "/", "web").yaml(),
        guarded("other").prefix(other, "/", "web").yaml(),
        service("web", &[origin.addr()]),
    ];
    let product = serve_with(documents, &["--auth-throttle-failures=0"]).await;
    let both = async |user: &str| {
        let mut statuses = Vec::new();
        for host in [HOST, other] {
            let mut conn = RawConn::connect(product.http()).await.unwrap();
            let fields = [("Authorization", basic(user, PASSWORD))];
            let fields = fields.each_ref().map(|(n, v)| (*n, v.as_str()));
            let answer = conn.request("GET", host, "/", &fields, b"").await.unwrap();
            if answer.status == 501 {
                assert_eq!(answer.text().trim_end(), "Authentication required but not configured");
            }
            statuses.push(answer.status);
        }
        statuses
    };
    assert_eq!(both("alice").await, [501, 501], "there is no Secret yet");
    let until = async |user: &str, want: u16| {
        eventually(DEADLINE, async || (both(user).await == [want, want]).then_some(())).await;
    };
    product.write_manifest("secret.yaml", &secret("users", USERS));
    until("alice", 200).await;
    // Also for those whose password was verified a moment ago.
    let line = USERS.lines().find(|line| line.starts_with("bob:")).unwrap();
    product.write_manifest("secret.yaml", &secret("users", line));
    until("alice", 401).await;
    until("bob", 200).await;
    product.write_manifest("secret.yaml", &secret("users", "bob:plain"));
    until("bob", 501).await;
    product.write_manifest("secret.yaml", &secret_in("elsewhere", "users", USERS));
    until("bob", 501).await;
}

#[tokio::test]
async fn a_websocket_handshake_is_authenticated_like_any_request() {
    let origin = Origin::raw(async |mut stream| {
        let Ok(head) = read_head(&mut stream).await else { return };
        let told = head.lines().filter(|line| line.to_ascii_lowercase().starts_with("x-auth-request-user"));
        let told = told.collect::<Vec<_>>().join(";");
        let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n";
        let _ = stream.write_all(format!("{switch}X-Told: {told}\r\n\r\n").as_bytes()).await;
    })
    .await;
    let product = staff(&origin, &[]).await;
    let handshake = |credentials: &str| {
        format!(
            "GET /chat HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{credentials}\r\n"
        )
    };
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(handshake("")).await.unwrap();
    assert_eq!((conn.read_response().await.unwrap().status, origin.accepts()), (401, 0));
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.send(handshake(&format!("Authorization: {}\r\n", basic("alice", PASSWORD)))).await.unwrap();
    let answer = conn.read_head().await.unwrap();
    assert_eq!(answer.status, 101);
    assert!(
        answer.header("x-told").unwrap().eq_ignore_ascii_case("x-auth-request-user: alice"),
        "{answer:?}"
    );
}

#[tokio::test]
async fn wrong_passwords_leave_the_other_routes_alone() {
    let origin = Origin::echo().await;
    let costly = "alice:$2y$12$L6Bc/AlTQHyd9liGgGEZyOFLPHNgyxeEPfgYfBCVxJ7JIlwxyVU3u";
    let product = serve_with(
        [
            guarded("web").prefix(HOST, "/", "web").yaml(),
            Ingress::new("open").prefix("open.example.com", "/", "web").yaml(),
            service("web", &[origin.addr()]),
            secret("users", costly),
        ],
        &["--auth-throttle-failures=0", "--auth-hash-workers=1"],
    )
    .await;
    // Far more than the queue of one thread holds.
    let guesses: Vec<_> = (0..60)
        .map(|i| {
            let addr = product.http();
            tokio::spawn(async move {
                let mut conn = RawConn::connect(addr).await.unwrap();
                let field = basic("alice", &format!("guess {i}"));
                conn.request("GET", HOST, "/", &[("Authorization", &field)], b"").await.unwrap()
            })
        })
        .collect();
    // The hashes take seconds; the open route does not wait for them.
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    for _ in 0..50 {
        assert_eq!(conn.get("open.example.com", "/").await.unwrap().status, 200);
    }
    assert!(guesses.iter().any(|guess| !guess.is_finished()), "the open route waited for the hashes");
    let mut busy = 0;
    for guess in guesses {
        // The harness waits ten seconds for an answer, as long as the product lets a check take.
        let Ok(answer) = guess.await else { continue };
        match answer.status {
            401 => {}
            503 => {
                assert_eq!(answer.header("retry-after"), Some("1"));
                busy += 1;
            }
            other => panic!("{other}"),
        }
    }
    assert!(busy >= 30, "{busy} of 60 were refused; the queue has no end");
}

#[tokio::test]
async fn curl_logs_in_over_https() {
    let origin = Origin::echo().await;
    let product = staff(&origin, &[]).await;
    let port = product.https().port();
    // Not on this thread, which serves the backend.
    let curl = async |credentials: String| {
        let run = tokio::task::spawn_blocking(move || {
            Command::new("curl")
                .args(["-sk", "-o", "/dev/null", "-w", "%{http_code}", "-u", &credentials])
                .args(["--resolve", &format!("{HOST}:{port}:127.0.0.1"), &format!("https://{HOST}:{port}/")])
                .output()
                .expect("curl is there")
        });
        String::from_utf8_lossy(&run.await.unwrap().stdout).into_owned()
    };
    assert_eq!(curl(format!("alice:{PASSWORD}")).await, "200");
    assert_eq!(curl("alice:wrong".into()).await, "401");
}

#[tokio::test]
async fn hash_password_writes_the_line_that_lets_the_user_in() {
    let (status, line, errors) =
        run_product_with_input(&["hash-password", "--user", "zoe"], "s\u{e4}cret\n").await;
    assert!(status.success(), "{errors}");
    assert!(line.starts_with("zoe:$2y$12$") && line.ends_with('\n') && line.lines().count() == 1, "{line}");
    let (status, hash, _) = run_product_with_input(&["hash-password"], "x").await;
    assert!(status.success() && hash.starts_with("$2y$12$"), "{hash}");
    for input in ["", "\n", &"x".repeat(73)] {
        let (status, out, errors) = run_product_with_input(&["hash-password"], input).await;
        assert_eq!((status.code(), out.as_str(), errors.lines().count()), (Some(1), "", 1), "{errors}");
    }
    let origin = Origin::echo().await;
    let product = serve([
        guarded("web").prefix(HOST, "/", "web").yaml(),
        service("web", &[origin.addr()]),
        secret("users", &line),
    ])
    .await;
    assert_eq!(log_in(&product, "zoe", "s\u{e4}cret").await.status, 200);
}
