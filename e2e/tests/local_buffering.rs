//! Response buffering: what is held and what streams, and that a slow client costs a backend nothing.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{HOST, Ingress, everything_to, serve_with, service};
use ingress_e2e::client::{H2Conn, RawConn, Tls};
use ingress_e2e::origin::{Origin, read_head};
use ingress_e2e::product::Product;
use ingress_e2e::{DEADLINE, eventually};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;

/// A backend that sends its head and half of its body, and the rest for a permit. The head comes from the target:
/// `/?HEADER: value|HEADER: value`, and the body has `size` bytes.
async fn halting(size: usize, permits: Arc<Semaphore>) -> Origin {
    Origin::raw(move |mut stream: TcpStream| {
        let permits = permits.clone();
        async move {
            while let Ok(request) = read_head(&mut stream).await {
                let target = request.split(' ').nth(1).unwrap_or("");
                let fields = target.split_once('?').map_or("", |(_, f)| f);
                let fields = fields.replace("%20", " ").replace('|', "\r\n");
                let chunked = fields.contains("chunked");
                let half = |size: usize| match chunked {
                    true => [format!("{size:x}\r\n").as_bytes(), &vec![b'x'; size], b"\r\n"].concat(),
                    false => vec![b'x'; size],
                };
                let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n");
                if request.starts_with("HEAD ") {
                    let _ = stream.write_all(head.as_bytes()).await;
                    continue;
                }
                let _ = stream.write_all(&[head.as_bytes(), &half(size / 2)].concat()).await;
                permits.acquire().await.unwrap().forget();
                let _ = stream.write_all(&half(size - size / 2)).await;
                if chunked {
                    let _ = stream.write_all(b"0\r\n\r\n").await;
                }
            }
        }
    })
    .await
}

/// What is held does not come, however long one waits.
const PAUSE: Duration = Duration::from_secs(1);

/// Whether a part of the body comes before the backend has sent the rest; then the whole body must come.
/// Waits for that no longer than `patience`.
async fn streams(
    product: &Product,
    permits: &Semaphore,
    fields: &str,
    size: usize,
    patience: Duration,
) -> bool {
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    let target = format!("/?{}", fields.replace(' ', "%20"));
    conn.send(format!("GET {target} HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).await.unwrap();
    let early = tokio::time::timeout(patience, async {
        let mut got = Vec::new();
        loop {
            got.extend(conn.read_some().await.unwrap());
            let body = got.windows(4).position(|w| w == b"\r\n\r\n").map_or(0, |end| got.len() - end - 4);
            if body > 0 {
                break got;
            }
        }
    })
    .await;
    permits.add_permits(1);
    let streams = early.is_ok();
    let mut got = early.unwrap_or_default();
    while got.iter().filter(|b| **b == b'x').count() < size {
        let more = conn.read_some().await.unwrap();
        assert!(!more.is_empty(), "{fields}: the response ended early");
        got.extend(more);
    }
    let head = String::from_utf8_lossy(&got).to_lowercase();
    if streams && let Some(length) = fields.to_lowercase().strip_prefix("content-length: ") {
        let line = format!("content-length: {}\r\n", length.split('|').next().unwrap());
        assert!(head.contains(&line), "the length stays: {line:?}");
    }
    streams
}

#[tokio::test]
async fn what_is_held_and_what_streams() {
    // More than the connection's own small buffer; a stream, however, is not kept in that either.
    const SIZE: usize = 20_000;
    const DROPS: usize = 20;
    let length = |size: usize| format!("Content-Length: {size}");
    let unlimited = "--response-buffer-size=unlimited";
    for (arg, fields, size, want) in [
        ("--response-buffer-size=20000", length(SIZE), SIZE, false),
        ("--response-buffer-size=19999", length(SIZE), SIZE, true),
        ("--response-buffer-size=0", length(SIZE), SIZE, true),
        (unlimited, length(SIZE), SIZE, false),
        (unlimited, "Transfer-Encoding: chunked".into(), DROPS, true),
        (unlimited, format!("{}|Content-Type: text/event-stream", length(DROPS)), DROPS, true),
        (unlimited, format!("{}|Content-Type: application/grpc", length(DROPS)), DROPS, true),
        (unlimited, format!("{}|X-Accel-Buffering: no", length(DROPS)), DROPS, true),
        ("--response-buffer-budget=20000", length(SIZE), SIZE, false),
        ("--response-buffer-budget=19999", length(SIZE), SIZE, true),
    ] {
        let permits = Arc::new(Semaphore::new(0));
        let origin = halting(size, permits.clone()).await;
        let product = serve_with(everything_to(&origin), &[arg]).await;
        let patience = if want { DEADLINE } else { PAUSE };
        assert_eq!(streams(&product, &permits, &fields, size, patience).await, want, "{arg} {fields}");
    }
}

#[tokio::test]
async fn the_budget_is_one_for_all_and_given_back() {
    const SIZE: usize = 20_000;
    let permits = [Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0))];
    let first = halting(SIZE, permits[0].clone()).await;
    let second = halting(SIZE, permits[1].clone()).await;
    let documents = [
        Ingress::new("web").prefix(HOST, "/", "second").prefix(HOST, "/first", "first").yaml(),
        service("first", &[first.addr()]),
        service("second", &[second.addr()]),
    ];
    let product = serve_with(documents, &["--response-buffer-budget=30000"]).await;
    let length = format!("Content-Length: {SIZE}");
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    let target = length.replace(' ', "%20");
    conn.send(format!("GET /first?{target} HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).await.unwrap();
    let early = tokio::time::timeout(PAUSE, conn.read_some()).await;
    assert!(early.is_err(), "the first one is held, before anything else asks for room: {early:?}");
    let second = async || streams(&product, &permits[1], &length, SIZE, PAUSE).await;
    for _ in 0..2 {
        assert!(second().await, "there is no room beside the one that is held");
    }
    permits[0].add_permits(1);
    assert_eq!(conn.read_response().await.unwrap().body, vec![b'x'; SIZE]);
    eventually(3 * DEADLINE, async || (!second().await).then_some(())).await;
}

#[tokio::test]
async fn a_response_to_head_waits_for_no_body() {
    let permits = Arc::new(Semaphore::new(0));
    let origin = halting(2000, permits).await;
    let product = serve_with(everything_to(&origin), &["--response-buffer-size=unlimited"]).await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    for _ in 0..2 {
        let answer = conn.request("HEAD", HOST, "/?Content-Length:%202000", &[], b"").await.unwrap();
        assert_eq!((answer.status, answer.header("content-length")), (200, Some("2000")));
    }
}

const BIG: usize = 24 << 20;

/// A backend that answers `/big` with [`BIG`] bytes, of which it counts those that it got rid of, and everything else
/// with `ok`.
async fn generous() -> (Origin, Arc<AtomicUsize>) {
    let gone = Arc::<AtomicUsize>::default();
    let count = gone.clone();
    let origin = Origin::raw(move |mut stream: TcpStream| {
        let count = count.clone();
        async move {
            while let Ok(head) = read_head(&mut stream).await {
                if head.starts_with("GET /big ") {
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BIG}\r\n\r\n");
                    let _ = stream.write_all(head.as_bytes()).await;
                    if stream.write_all(&vec![b'x'; BIG]).await.is_ok() {
                        count.fetch_add(1, Ordering::SeqCst);
                    }
                } else {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
                }
            }
        }
    })
    .await;
    (origin, gone)
}

/// A client connection whose kernel takes little by itself.
async fn small(addr: std::net::SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(256 << 10).unwrap();
    socket.connect(addr).await.unwrap()
}

const ONE_CONNECTION: [&str; 2] = ["--threads=1", "--response-buffer-size=32Mi"];

/// The backend has written `/big`, and its connection serves somebody else, though nobody has read.
async fn assert_free(product: &Product, origin: &Origin, gone: &AtomicUsize) {
    eventually(DEADLINE, async || (gone.load(Ordering::SeqCst) == 1).then_some(())).await;
    // It comes back to the pool a moment after its last byte.
    eventually(DEADLINE, async || {
        let before = origin.accepts();
        let mut other = RawConn::connect(product.http()).await.unwrap();
        assert_eq!(other.get(HOST, "/").await.unwrap().text(), "ok");
        (origin.accepts() == before).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_client_that_does_not_read_keeps_no_backend_connection() {
    for tls in [false, true] {
        let (origin, gone) = generous().await;
        let product = serve_with(everything_to(&origin), &ONE_CONNECTION).await;
        let mut slow = if tls {
            let stream = small(product.https()).await;
            let tls = Tls::new().sni(HOST).alpn(&["http/1.1"]);
            RawConn::from_stream(tls.handshake(stream).await.unwrap())
        } else {
            RawConn::from_tcp(small(product.http()).await).unwrap()
        };
        slow.send(format!("GET /big HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).await.unwrap();
        assert_free(&product, &origin, &gone).await;
        let answer = slow.read_response().await.unwrap();
        assert!(answer.status == 200 && answer.body.len() == BIG && answer.body.iter().all(|b| *b == b'x'));
        assert_eq!(slow.get(HOST, "/").await.unwrap().text(), "ok", "its connection goes on");
    }
}

#[tokio::test]
async fn what_a_client_has_not_read_still_comes_when_its_connection_ends() {
    let (origin, gone) = generous().await;
    let product = serve_with(everything_to(&origin), &ONE_CONNECTION).await;
    let mut slow = RawConn::from_tcp(small(product.http()).await).unwrap();
    let last = format!("GET /big HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n");
    slow.send(last).await.unwrap();
    assert_free(&product, &origin, &gone).await;
    assert_eq!(slow.read_response().await.unwrap().body.len(), BIG);
    assert!(slow.closed_within(DEADLINE).await);
}

#[tokio::test]
async fn the_process_does_not_end_before_a_slow_client_has_its_response() {
    let (origin, gone) = generous().await;
    let product = serve_with(everything_to(&origin), &ONE_CONNECTION).await;
    let mut slow = RawConn::from_tcp(small(product.http()).await).unwrap();
    slow.send(format!("GET /big HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).await.unwrap();
    assert_free(&product, &origin, &gone).await;
    product.signal(libc::SIGTERM);
    eventually(DEADLINE, async || TcpStream::connect(product.http()).await.is_err().then_some(())).await;
    assert_eq!(slow.read_response().await.unwrap().body.len(), BIG);
    assert_eq!(product.wait_exit(DEADLINE).await.code(), Some(0));
}

#[tokio::test]
async fn a_client_that_never_reads_is_let_go_and_its_memory_with_it() {
    let (origin, gone) = generous().await;
    let args = [&ONE_CONNECTION[..], &["--client-write-timeout=500ms"]].concat();
    let product = serve_with(everything_to(&origin), &args).await;
    let stream = small(product.http()).await;
    let mut never = RawConn::from_tcp(stream).unwrap();
    never.send(format!("GET /big HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).await.unwrap();
    eventually(DEADLINE, async || (gone.load(Ordering::SeqCst) == 1).then_some(())).await;
    let connections = async || product.metric_value("tak_ingress_client_connections").await;
    eventually(DEADLINE, async || (connections().await == Some(0.0)).then_some(())).await;
    let whole = never.read_to_end().await.map(|got| got.len() >= BIG);
    assert!(!whole.unwrap_or(false), "it was cut");
}

#[tokio::test]
async fn pipelined_answers_wait_for_what_is_owed() {
    let (origin, gone) = generous().await;
    let product = serve_with(everything_to(&origin), &ONE_CONNECTION).await;
    let mut slow = RawConn::from_tcp(small(product.http()).await).unwrap();
    let next = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    slow.send(next("/big") + &next("/") + &next("/big")).await.unwrap();
    eventually(DEADLINE, async || (gone.load(Ordering::SeqCst) == 1).then_some(())).await;
    for want in [BIG, 2, BIG] {
        assert_eq!(slow.read_response().await.unwrap().body.len(), want);
    }
}

#[tokio::test]
async fn an_http2_client_that_does_not_read_keeps_no_backend_connection() {
    let (origin, gone) = generous().await;
    let product = serve_with(everything_to(&origin), &ONE_CONNECTION).await;
    let h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
    let mut bodies = Vec::new();
    for (path, size) in [("/big", BIG), ("/", 2), ("/", 2)] {
        let (response, _) = h2.send_head("GET", HOST, path, &[], true).await.unwrap();
        bodies.push((response.await.unwrap().into_body(), size));
        // The first has shut the connection's window: not one byte of the others is allowed.
        eventually(DEADLINE, async || {
            let active = product.metric_value("tak_ingress_active_requests").await;
            (gone.load(Ordering::SeqCst) == 1 && active == Some(0.0)).then_some(())
        })
        .await;
    }
    assert_free(&product, &origin, &gone).await;
    assert_eq!(origin.accepts(), 1);
    for (mut body, size) in bodies {
        let mut got = 0;
        while let Some(data) = body.data().await {
            let data = data.unwrap();
            got += data.len();
            body.flow_control().release_capacity(data.len()).unwrap();
        }
        assert_eq!(got, size);
    }
    assert_eq!(h2.get(HOST, "/").await.unwrap().text(), "ok");
}

#[tokio::test]
async fn an_http2_client_that_never_reads_is_let_go_stream_by_stream() {
    let (origin, gone) = generous().await;
    let args = [&ONE_CONNECTION[..], &["--client-write-timeout=500ms"]].concat();
    let product = serve_with(everything_to(&origin), &args).await;
    let h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
    let (response, _) = h2.send_head("GET", HOST, "/big", &[], true).await.unwrap();
    let mut body = response.await.unwrap().into_body();
    eventually(DEADLINE, async || (gone.load(Ordering::SeqCst) == 1).then_some(())).await;
    let mut last = Ok(());
    while last.is_ok()
        && let Some(data) = body.data().await
    {
        last = data.map(drop);
    }
    assert_eq!(last.unwrap_err().reason(), Some(h2::Reason::CANCEL));
    product.signal(libc::SIGTERM);
    assert_eq!(product.wait_exit(DEADLINE).await.code(), Some(0), "nothing is owed any more");
}
