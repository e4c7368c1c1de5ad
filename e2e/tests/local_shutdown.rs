//! The end of the process: what is in flight ends well, nobody is turned away who was let in, and then it is quick.

mod common;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{HOST, everything_to, join, serve_with};
use ingress_e2e::client::{self, H2Conn, RawConn, Response};
use ingress_e2e::origin::{Origin, read_head};
use ingress_e2e::product::Product;
use ingress_e2e::{DEADLINE, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// A backend that reads a whole request and answers for a permit.
async fn waiting(permits: Arc<Semaphore>) -> Origin {
    Origin::raw(move |mut stream: TcpStream| {
        let permits = permits.clone();
        async move {
            while let Ok(head) = read_head(&mut stream).await {
                if head.starts_with("POST") {
                    let _ = stream.read_exact(&mut [0; 5]).await;
                }
                permits.acquire().await.unwrap().forget();
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone").await;
            }
        }
    })
    .await
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n")
}

async fn in_flight(product: &Product, count: f64) {
    let active = async || product.metric_value("tak_ingress_active_requests").await;
    eventually(DEADLINE, async || (active().await == Some(count)).then_some(())).await;
}

async fn ports_close(product: &Product) {
    for addr in [product.http(), product.https()] {
        eventually(DEADLINE, async || TcpStream::connect(addr).await.is_err().then_some(())).await;
    }
}

#[tokio::test]
async fn requests_in_flight_end_well_and_then_the_process_does() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let permits = Arc::new(Semaphore::new(0));
        let origin = waiting(permits.clone()).await;
        let product = serve_with(everything_to(&origin), &["--shutdown-timeout=300s"]).await;
        let mut h1 = RawConn::connect(product.http()).await.unwrap();
        h1.send(request("/")).await.unwrap();
        let h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
        let (answer, _) = h2.send_head("GET", HOST, "/", &[], true).await.unwrap();
        in_flight(&product, 2.0).await;
        product.signal(signal);
        ports_close(&product).await;
        assert!(product.exit_status().is_none(), "two requests are in flight");
        permits.add_permits(2);
        let (got, mut body) = (h1.read_response().await.unwrap(), answer.await.unwrap().into_body());
        assert_eq!((got.status, got.text().as_str(), got.header("connection")), (200, "done", Some("close")));
        assert_eq!(body.data().await.unwrap().unwrap(), "done");
        assert_eq!(product.wait_exit(DEADLINE).await.code(), Some(0), "not at the end of the window");
    }
}

#[tokio::test]
async fn idle_connections_do_not_hold_the_process_up() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--shutdown-timeout=300s"]).await;
    let mut idle = Vec::new();
    for i in 0..50 {
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        if i % 2 == 0 {
            assert_eq!(conn.get(HOST, "/").await.unwrap().status, 200);
        }
        idle.push(conn);
    }
    let mut h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
    assert_eq!(h2.get(HOST, "/").await.unwrap().status, 200);
    let mut quiet = Frames::open(&product).await;
    product.signal(libc::SIGTERM);
    assert!(quiet.until_goaway().await, "said goodbye to");
    // It does not answer the server's PING, and is not waited for.
    assert_eq!(product.wait_exit(DEADLINE).await.code(), Some(0));
    for mut conn in idle {
        assert!(conn.closed_within(DEADLINE).await);
        assert!(conn.read_some().await.unwrap_or_default().is_empty(), "closed without a word");
    }
    assert!(h2.closed_within(DEADLINE).await);
}

/// An HTTP/2 connection without requests that shows the frames that come.
struct Frames(RawConn);

impl Frames {
    async fn open(product: &Product) -> Self {
        let mut conn = RawConn::connect_tls(product.https(), Some(HOST), &["h2"]).await.unwrap();
        conn.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let mut frames = Self(conn);
        assert_eq!(frames.next().await.map(|(kind, _)| kind), Some(4), "SETTINGS: it is being served");
        frames
    }

    /// The type and the payload of the next frame.
    async fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        let head = self.0.read_exact(9).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        Some((head[3], self.0.read_exact(length).await.ok()?))
    }

    /// Reads frames up to GOAWAY; whether it says that nothing is wrong (RFC 9113 section 6.8).
    async fn until_goaway(&mut self) -> bool {
        while let Some((kind, payload)) = self.next().await {
            if kind == 7 {
                return payload[4..8] == [0; 4];
            }
        }
        false
    }
}

#[tokio::test]
async fn clients_are_sent_away_while_the_ports_are_still_open() {
    let origin = Origin::echo().await;
    let args = ["--shutdown-delay=300s", "--shutdown-timeout=300s"];
    let product = serve_with(everything_to(&origin), &args).await;
    let mut h1 = RawConn::connect(product.http()).await.unwrap();
    assert_eq!(h1.get(HOST, "/").await.unwrap().header("connection"), Some("keep-alive"));
    let mut h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
    assert_eq!(h2.get(HOST, "/").await.unwrap().status, 200);
    let mut quiet = Frames::open(&product).await;
    product.signal(libc::SIGTERM);
    assert!(quiet.until_goaway().await);
    assert!(h2.closed_within(DEADLINE).await);
    // HTTP/1 knows no way to say it but an answer: each kind of them does.
    let answer = h1.get(HOST, "/").await.unwrap();
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    assert!(h1.closed_within(DEADLINE).await);
    let answer = client::get(product.http(), "other.example.com", "/").await;
    assert_eq!((answer.status, answer.header("connection")), (404, Some("close")));
    // Who comes now is served: the news of our end may not have reached everybody.
    let late = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
    for _ in 0..3 {
        assert_eq!(late.get(HOST, "/").await.unwrap().status, 200);
    }
    product.signal(libc::SIGTERM);
    assert_eq!(product.wait_exit(DEADLINE).await.code(), Some(0), "a second signal ends it at once");
}

#[tokio::test]
async fn half_a_head_is_still_read_and_answered() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--shutdown-timeout=300s"]).await;
    // With a request before, and as the first of its connection.
    for before in [true, false] {
        let product = match before {
            true => &product,
            false => &serve_with(everything_to(&origin), &["--shutdown-timeout=300s"]).await,
        };
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        if before {
            assert_eq!(conn.get(HOST, "/").await.unwrap().status, 200);
        }
        conn.send("GET / HTTP/1.1\r\nHo").await.unwrap();
        // One that is still in the kernel's queue goes with the port.
        let accepted = async || product.metric_value("tak_ingress_client_connections").await;
        eventually(DEADLINE, async || (accepted().await == Some(1.0)).then_some(())).await;
        product.signal(libc::SIGTERM);
        ports_close(product).await;
        conn.send(format!("st: {HOST}\r\n\r\n")).await.unwrap();
        let answer = conn.read_response().await.unwrap();
        assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
        assert_eq!(product.wait_exit(DEADLINE).await.code(), Some(0));
    }
}

#[tokio::test]
async fn the_window_is_the_end_of_what_does_not_end() {
    let origin = waiting(Arc::new(Semaphore::new(0))).await;
    let product = serve_with(everything_to(&origin), &["--shutdown-timeout=1s"]).await;
    let mut stuck = RawConn::connect(product.http()).await.unwrap();
    stuck.send(request("/")).await.unwrap();
    in_flight(&product, 1.0).await;
    product.signal(libc::SIGTERM);
    assert_eq!(product.wait_exit(DEADLINE).await.code(), Some(0));
    assert!(stuck.read_response().await.is_err());
}

#[tokio::test]
async fn a_second_signal_ends_the_process_at_once() {
    for second in [libc::SIGTERM, libc::SIGINT] {
        let origin = waiting(Arc::new(Semaphore::new(0))).await;
        let product = serve_with(everything_to(&origin), &["--shutdown-timeout=300s"]).await;
        let mut stuck = RawConn::connect(product.http()).await.unwrap();
        stuck.send(request("/")).await.unwrap();
        in_flight(&product, 1.0).await;
        product.signal(libc::SIGTERM);
        ports_close(&product).await;
        assert!(product.exit_status().is_none());
        product.signal(second);
        assert_eq!(product.wait_exit(DEADLINE).await.code(), Some(0));
    }
}

// ------------------------------------------------------------------ rolling replacements

/// Does what kube-proxy does for a Service: a new connection goes to one of the ready Pods, and stays there.
struct Balancer {
    http: SocketAddr,
    https: SocketAddr,
    pods: Arc<Mutex<Vec<Pod>>>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Clone)]
struct Pod {
    http: SocketAddr,
    https: SocketAddr,
    admin: SocketAddr,
    ready: bool,
}

impl Balancer {
    async fn start() -> Self {
        let pods = Arc::<Mutex<Vec<Pod>>>::default();
        let (http, accept_http) = Self::port(pods.clone(), |pod| pod.http).await;
        let (https, accept_https) = Self::port(pods.clone(), |pod| pod.https).await;
        let probed = pods.clone();
        let probe = tokio::spawn(async move {
            loop {
                let all = probed.lock().unwrap().clone();
                for pod in all {
                    let answer = client::try_get(pod.admin, "localhost", "/readyz").await;
                    let ready = answer.is_ok_and(|a| a.status == 200);
                    let mut pods = probed.lock().unwrap();
                    pods.iter_mut().filter(|p| p.admin == pod.admin).for_each(|p| p.ready = ready);
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        Self { http, https, pods, tasks: vec![accept_http, accept_https, probe] }
    }

    async fn port(pods: Arc<Mutex<Vec<Pod>>>, of: fn(&Pod) -> SocketAddr) -> (SocketAddr, JoinHandle<()>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let accepting = tokio::spawn(async move {
            for turn in 0.. {
                let Ok((mut client, _)) = listener.accept().await else { return };
                let ready: Vec<_> = pods.lock().unwrap().iter().filter(|p| p.ready).map(of).collect();
                let Some(pod) = ready.get(turn % ready.len().max(1)).copied() else { continue };
                tokio::spawn(async move {
                    if let Ok(mut server) = TcpStream::connect(pod).await {
                        let _ = client.set_nodelay(true);
                        let _ = server.set_nodelay(true);
                        let _ = copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
        });
        (addr, accepting)
    }

    fn add(&self, product: &Product) {
        let (http, https, admin) = (product.http(), product.https(), product.metrics_addr());
        self.pods.lock().unwrap().push(Pod { http, https, admin, ready: true });
    }

    fn remove(&self, admin: SocketAddr) {
        self.pods.lock().unwrap().retain(|pod| pod.admin != admin);
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// What the clients of the test have seen.
#[derive(Default)]
struct Tally {
    over: AtomicBool,
    answered: Mutex<BTreeMap<&'static str, usize>>,
    /// Requests repeated as the protocol allows, because a connection ended before they were looked at.
    repeated: AtomicUsize,
    failed: Mutex<Vec<String>>,
}

impl Tally {
    fn goes_on(&self) -> bool {
        !self.over.load(Ordering::SeqCst)
    }

    fn note(&self, client: &'static str, outcome: anyhow::Result<Response>) {
        match outcome {
            Ok(answer) if answer.status == 200 && answer.body == b"done" => {
                *self.answered.lock().unwrap().entry(client).or_default() += 1;
            }
            Ok(answer) => {
                self.failed.lock().unwrap().push(format!("{client}: {} {}", answer.status, answer.text()))
            }
            Err(e) => self.failed.lock().unwrap().push(format!("{client}: {e:#}")),
        }
    }
}

/// A new connection for each request.
async fn fresh_client(addr: SocketAddr, tally: Arc<Tally>) {
    while tally.goes_on() {
        let outcome = async { RawConn::connect(addr).await?.get(HOST, "/").await };
        tally.note("new connections", outcome.await);
    }
}

/// One connection for as long as the server keeps it. `POST` is never sent twice; a GET is where the connection that
/// was kept turns out to be closed without a byte of an answer (RFC 9110 section 9.2.2).
async fn kept_client(addr: SocketAddr, method: &'static str, pause: Duration, tally: Arc<Tally>) {
    let mut kept: Option<RawConn> = None;
    let body = if method == "POST" { &b"hello"[..] } else { b"" };
    while tally.goes_on() {
        let reused = kept.is_some();
        let mut conn = match kept.take() {
            Some(conn) => conn,
            None => match RawConn::connect(addr).await {
                Ok(conn) => conn,
                Err(e) => {
                    tally.note(method, Err(e));
                    continue;
                }
            },
        };
        let outcome = conn.request(method, HOST, "/", &[], body).await;
        let unanswered = outcome.is_err() && conn.read_some().await.unwrap_or_default().is_empty();
        if reused && method == "GET" && unanswered {
            tally.repeated.fetch_add(1, Ordering::SeqCst);
            continue;
        }
        if outcome.as_ref().is_ok_and(|a| a.header("connection") != Some("close")) {
            kept = Some(conn);
        }
        tally.note(method, outcome);
        tokio::time::sleep(pause).await;
    }
}

/// One HTTP/2 connection until it says GOAWAY. What was refused, or never sent, is sent again elsewhere.
async fn h2_client(addr: SocketAddr, tally: Arc<Tally>) {
    let mut kept: Option<H2Conn> = None;
    while tally.goes_on() {
        let conn = match kept.take() {
            Some(conn) => conn,
            None => match H2Conn::connect_tls(addr, HOST).await {
                Ok(conn) => conn,
                Err(e) => {
                    tally.note("HTTP/2", Err(e));
                    continue;
                }
            },
        };
        let outcome = conn.get(HOST, "/").await;
        let refused = outcome.as_ref().err().and_then(|e| e.root_cause().downcast_ref::<h2::Error>());
        if refused.is_some_and(|e| {
            e.is_go_away() && e.reason() == Some(h2::Reason::NO_ERROR)
                || e.reason() == Some(h2::Reason::REFUSED_STREAM)
        }) {
            tally.repeated.fetch_add(1, Ordering::SeqCst);
            continue;
        }
        if outcome.is_ok() && conn.ended().is_none() {
            kept = Some(conn);
        }
        tally.note("HTTP/2", outcome);
    }
}

const REPLACEMENTS: usize = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_fails_through_fifty_rolling_replacements() {
    let origin = Origin::raw(async |mut stream: TcpStream| {
        while let Ok(head) = read_head(&mut stream).await {
            if head.starts_with("POST") {
                let _ = stream.read_exact(&mut [0; 5]).await;
            }
            // Long enough to be in flight when something happens.
            tokio::time::sleep(Duration::from_millis(10)).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone").await;
        }
    })
    .await;
    let yaml = join(everything_to(&origin));
    let pod = async || {
        let args = ["--threads=1", "--access-log=false", "--shutdown-delay=400ms"];
        let builder = args.iter().fold(Product::builder().manifests_yaml(&yaml), |b, arg| b.arg(*arg));
        let product = builder.start().await;
        product.ready().await;
        product
    };
    let balancer = Balancer::start().await;
    let mut running = std::collections::VecDeque::new();
    for _ in 0..2 {
        let product = pod().await;
        balancer.add(&product);
        running.push_back(product);
    }
    let tally = Arc::<Tally>::default();
    let short = Duration::ZERO;
    let mut clients = vec![
        tokio::spawn(kept_client(balancer.http, "GET", Duration::from_millis(30), tally.clone())),
        tokio::spawn(fresh_client(balancer.http, tally.clone())),
    ];
    for method in ["GET", "POST"] {
        for _ in 0..2 {
            clients.push(tokio::spawn(kept_client(balancer.http, method, short, tally.clone())));
        }
        clients.push(tokio::spawn(h2_client(balancer.https, tally.clone())));
    }
    for _ in 0..REPLACEMENTS {
        let next = pod().await;
        balancer.add(&next);
        running.push_back(next);
        let oldest = running.pop_front().unwrap();
        oldest.signal(libc::SIGTERM);
        assert_eq!(oldest.wait_exit(DEADLINE).await.code(), Some(0));
        balancer.remove(oldest.metrics_addr());
    }
    tally.over.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    let failed = tally.failed.lock().unwrap().clone();
    let answered = tally.answered.lock().unwrap().clone();
    assert!(
        failed.is_empty(),
        "{} failed of {answered:?}: {:#?}",
        failed.len(),
        &failed[..failed.len().min(10)]
    );
    for client in ["new connections", "GET", "POST", "HTTP/2"] {
        assert!(answered.get(client).is_some_and(|n| *n > REPLACEMENTS), "{answered:?}");
    }
}
