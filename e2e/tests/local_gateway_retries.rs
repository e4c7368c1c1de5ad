//! What a rule with `retry` tries again, and how often: answers with its codes, and no answer at all.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::gateway::{gateway, http, route, to};
use common::{HOST, NAMESPACE, serve_with, service, service_object, slice};
use ingress_e2e::client::{H2Conn, RawConn};
use ingress_e2e::h2_origin::{H2Origin, answer, read_all};
use ingress_e2e::origin::{Origin, read_head};
use ingress_e2e::product::Product;
use ingress_e2e::{DEADLINE, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

const BODY: &[u8] = b"all of it";

/// A backend's last answer.
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone";

/// A backend that gets whole requests and answers none of the first `bad`, keeping the connection or, where it
/// `breaks`, ending it. The count is that of whole requests with [`BODY`].
async fn failing(bad: usize, breaks: bool) -> (Origin, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let origin = Origin::raw(move |mut stream: TcpStream| {
        let count = count.clone();
        async move {
            while read_head(&mut stream).await.is_ok_and(|head| !head.is_empty()) {
                let mut body = [0; BODY.len()];
                if stream.read_exact(&mut body).await.is_err() || body != BODY {
                    return;
                }
                if count.fetch_add(1, Ordering::SeqCst) >= bad {
                    let _ = stream.write_all(OK.as_bytes()).await;
                } else if breaks {
                    return;
                } else {
                    std::future::pending::<()>().await;
                }
            }
        }
    })
    .await;
    (origin, calls)
}

/// The same for HTTP/2, where a stream is reset instead of a connection.
async fn failing_h2(bad: usize, breaks: bool) -> (H2Origin, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let origin = H2Origin::start(move |request, mut respond| {
        let count = count.clone();
        async move {
            let (body, whole) = read_all(&mut request.into_body()).await;
            if !whole || body != BODY {
                return;
            }
            if count.fetch_add(1, Ordering::SeqCst) >= bad {
                answer(respond, 200, &[], "done");
            } else if breaks {
                respond.send_reset(h2::Reason::INTERNAL_ERROR);
            } else {
                std::future::pending::<()>().await;
            }
        }
    })
    .await;
    (origin, calls)
}

async fn serve(documents: impl IntoIterator<Item = String>) -> Product {
    serve_with(documents.into_iter().chain(gateway(http())), &["--enable-gateway-api=auto"]).await
}

/// All of [`HOST`] with this rule, to the Service `web`.
fn everything(mut rule: Value) -> String {
    rule["backendRefs"] = to("web");
    route("r", HOST, json!([rule]))
}

/// POST with [`BODY`], over HTTP/1 or HTTP/2: the status.
async fn post(product: &Product, http2: bool) -> u16 {
    if http2 {
        let conn = H2Conn::connect(product.http()).await.unwrap();
        let length = BODY.len().to_string();
        return conn.request("POST", HOST, "/", &[("content-length", &length)], BODY).await.unwrap().status;
    }
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    conn.request("POST", HOST, "/", &[], BODY).await.unwrap().status
}

/// Attempts after the first.
async fn retries(product: &Product) -> f64 {
    product.metric_sum("tak_ingress_upstream_retries_total", &[]).await
}

#[tokio::test]
async fn a_request_that_got_no_answer_is_sent_again_whole_as_often_as_the_rule_says() {
    // how many are not answered, whether it is the connection that ends, attempts; status, requests that arrive
    for (bad, breaks, attempts, status, arrive) in [
        (2, false, 2, 200, 3),
        (9, false, 1, 504, 2),
        (2, true, 2, 200, 3),
        (9, true, 1, 502, 2),
        (9, true, 4, 502, 5),
    ] {
        let rule = json!({
            "timeouts": {"backendRequest": "200ms"},
            "retry": {"attempts": attempts, "backoff": "50ms"},
        });
        for http2_client in [false, true] {
            let said = format!("{bad} {breaks} {attempts}, HTTP/2 client: {http2_client}");
            let (origin, calls) = failing(bad, breaks).await;
            let product = serve([everything(rule.clone()), service("web", &[origin.addr()])]).await;
            assert_eq!(post(&product, http2_client).await, status, "{said}");
            assert_eq!(calls.load(Ordering::SeqCst), arrive, "{said}");
            assert_eq!(retries(&product).await, (arrive - 1) as f64, "{said}");

            let (origin, calls) = failing_h2(bad, breaks).await;
            let port = json!([{"name": "http", "port": 80, "appProtocol": "kubernetes.io/h2c"}]);
            let web = service_object(NAMESPACE, "web", port);
            let web = [web, slice(NAMESPACE, "web", 0, &[("http", origin.addr())])];
            let product = serve(web.into_iter().chain([everything(rule.clone())])).await;
            assert_eq!(post(&product, http2_client).await, status, "h2c, {said}");
            assert_eq!(calls.load(Ordering::SeqCst), arrive, "h2c, {said}");
        }
    }
}

#[tokio::test]
async fn all_attempts_are_within_the_time_for_the_request() {
    let (origin, calls) = failing(99, false).await;
    let rule = json!({
        "timeouts": {"request": "500ms", "backendRequest": "200ms"},
        "retry": {"attempts": 10, "backoff": "100ms"},
    });
    let product = serve([everything(rule), service("web", &[origin.addr()])]).await;
    assert_eq!(post(&product, false).await, 504);
    // 200 and 100 ms for one, 200 for the next: the time is over, however fast the machine is.
    assert!((1..=2).contains(&calls.load(Ordering::SeqCst)), "{calls:?}");

    // An answer that is there is not thrown away for an attempt that there is no time for.
    let origin = Origin::http(|_| ingress_e2e::origin::Reply::new(503, "never")).await;
    let rule = json!({
        "timeouts": {"request": "3s"},
        "retry": {"codes": [503], "attempts": 3, "backoff": "1m"},
    });
    let product = serve([everything(rule), service("web", &[origin.addr()])]).await;
    assert_eq!((post(&product, false).await, origin.requests()), (503, 1));
}

#[tokio::test]
async fn without_retry_a_request_is_not_sent_again() {
    for (breaks, status) in [(false, 504), (true, 502)] {
        let (origin, calls) = failing(1, breaks).await;
        let rule = json!({"timeouts": {"backendRequest": "200ms"}});
        let product = serve([everything(rule), service("web", &[origin.addr()])]).await;
        assert_eq!(post(&product, false).await, status);
        assert_eq!((calls.load(Ordering::SeqCst), retries(&product).await), (1, 0.0));
    }
}

#[tokio::test]
async fn a_body_that_is_not_kept_as_a_whole_is_not_sent_again() {
    let origin = Origin::raw(|mut stream: TcpStream| async move {
        let _ = read_head(&mut stream).await;
        let _ = stream.read_exact(&mut vec![0; 1 << 20]).await;
    })
    .await;
    let rule = json!({"retry": {"attempts": 3, "backoff": "10ms"}});
    let product = serve([everything(rule), service("web", &[origin.addr()])]).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    let answer = conn.request("PUT", HOST, "/", &[], &vec![b'x'; 1 << 20]).await.unwrap();
    assert_eq!((answer.status, origin.accepts()), (502, 1));
}

#[tokio::test]
async fn a_connection_that_is_refused_is_tried_again_as_often_as_the_rule_says() {
    // Bound, but not listening.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let dead = socket.local_addr().unwrap();
    for (rule, tries) in [
        (json!({"retry": {"attempts": 1, "backoff": "10ms"}}), 2),
        (json!({"retry": {"attempts": 5, "backoff": "10ms"}}), 6),
        (json!({}), 3),
    ] {
        let product = serve([everything(rule.clone()), service("web", &[dead])]).await;
        assert_eq!(post(&product, false).await, 502, "{rule}");
        assert_eq!(retries(&product).await, f64::from(tries - 1), "{rule}");
    }
}

#[tokio::test]
async fn a_connection_that_does_not_come_about_in_time_is_tried_again() {
    // Nobody accepts, and the queue is full: the kernel does not answer any more.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let full: TcpListener = socket.listen(1).unwrap();
    let addr = full.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(Ok(stream)) =
        tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(addr)).await
    {
        queued.push(stream);
    }
    for (rule, tries) in [
        (json!({"timeouts": {"backendRequest": "200ms"}, "retry": {"attempts": 3, "backoff": "10ms"}}), 4),
        (json!({"timeouts": {"backendRequest": "200ms"}}), 1),
    ] {
        let product = serve([everything(rule.clone()), service("web", &[addr])]).await;
        assert_eq!(post(&product, false).await, 504, "{rule}");
        assert_eq!(retries(&product).await, f64::from(tries - 1), "{rule}");
    }
}

#[tokio::test]
async fn a_mirror_gets_one_copy_however_many_attempts_there_are() {
    let dead = TcpSocket::new_v4().unwrap();
    dead.bind(([127, 0, 0, 2], 0).into()).unwrap();
    let (web, mirror) = (Origin::echo().await, Origin::echo().await);
    let copies =
        json!([{"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "mirror", "port": 80}}}]);
    let rule = json!({"filters": copies, "retry": {"attempts": 10, "backoff": "1ms"}});
    let web_service = service("web", &[dead.local_addr().unwrap(), web.addr()]);
    let product = serve([everything(rule), web_service, service("mirror", &[mirror.addr()])]).await;
    // As many as it takes until one of them met the dead address first.
    for _ in 0..100 {
        assert_eq!(post(&product, false).await, 200);
        if retries(&product).await > 0.0 {
            break;
        }
    }
    assert!(retries(&product).await > 0.0);
    eventually(DEADLINE, async || (mirror.requests() == web.requests()).then_some(())).await;
}
