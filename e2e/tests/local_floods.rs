//! Many clients at once, and clients that mean harm: what they may take is bounded, and others are served.

mod common;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{HOST, everything_to, h2, serve_with};
use ingress_e2e::client::{self, H2Conn, RawConn, TlsStream};
use ingress_e2e::origin::{Origin, read_head};
use ingress_e2e::product::Product;
use ingress_e2e::{DEADLINE, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

#[tokio::test]
async fn connections_above_the_limit_are_refused_and_counted() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--max-connections=5"]).await;
    let mut idle = Vec::new();
    for _ in 0..2 {
        let mut conn = RawConn::connect(product.http()).await.unwrap();
        assert_eq!(conn.get(HOST, "/").await.unwrap().status, 200);
        idle.push(conn);
    }
    let tls = RawConn::connect_tls(product.https(), Some(HOST), &["http/1.1"]).await.unwrap();
    let h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
    // A handshake that is not finished is a connection too: its first record is whole, its hello is not.
    let mut stalled = RawConn::connect(product.https()).await.unwrap();
    stalled.send(b"\x16\x03\x01\x00\x06\x01\x00\x02\x00\x03\x03").await.unwrap();
    let refused = async || product.metric_value("tak_ingress_client_connections_refused_total").await;
    assert_eq!(refused().await, Some(0.0));

    let full = async |addr| {
        let mut conn = RawConn::connect(addr).await.unwrap();
        conn.closed_within(DEADLINE).await
    };
    assert!(full(product.http()).await && full(product.https()).await);
    assert_eq!(refused().await, Some(2.0));
    // Those that are in are served.
    assert_eq!(h2.get(HOST, "/").await.unwrap().status, 200);
    assert_eq!(idle[0].get(HOST, "/").await.unwrap().status, 200);

    // A place that is given back is taken by the next, whatever the kind of both.
    let get = async || {
        let mut conn = RawConn::connect(product.http()).await.ok()?;
        conn.get(HOST, "/").await.ok().map(|_| conn)
    };
    drop(stalled);
    idle.push(eventually(DEADLINE, get).await);
    assert!(full(product.https()).await);
    drop((tls, h2));
    for _ in 0..2 {
        idle.push(eventually(DEADLINE, get).await);
    }
    assert!(full(product.http()).await);
    drop(idle);
    let conn = eventually(DEADLINE, async || H2Conn::connect_tls(product.https(), HOST).await.ok()).await;
    assert_eq!(conn.get(HOST, "/").await.unwrap().status, 200);
}

#[tokio::test]
async fn a_hello_may_come_in_several_records_and_must_come_in_time() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--tls-handshake-timeout=500ms"]).await;
    // Two records with a part of one hello each, and then nothing.
    let mut conn = RawConn::connect(product.https()).await.unwrap();
    conn.send(b"\x16\x03\x01\x00\x02\x01\x00\x16\x03\x01\x00\x04\x02\x00\x03\x03").await.unwrap();
    assert!(conn.closed_within(DEADLINE).await);
    // One that says it is larger than any.
    let mut conn = RawConn::connect(product.https()).await.unwrap();
    let record = [&b"\x16\x03\x01\x40\x00\x01\xff\xff\xff"[..], &[0; 0x3ffc]].concat();
    conn.send(record.repeat(3)).await.ok();
    assert!(conn.closed_within(Duration::from_secs(5)).await);
    assert_eq!(product.metric_sum("tak_ingress_tls_handshakes_total", &[("result", "failure")]).await, 2.0);
}

/// What docs/memory.md says that one of these takes, in KiB.
fn cost(kind: &str) -> u64 {
    let row = MEMORY.lines().find_map(|line| line.strip_prefix(&format!("| {kind} | ")));
    let number = row.and_then(|rest| rest.split(' ').next()?.parse().ok());
    number.unwrap_or_else(|| panic!("docs/memory.md has no row for {kind:?}"))
}

const MEMORY: &str = include_str!("../../docs/memory.md");

/// What the process may take besides, whatever the crowd: its allocator keeps some blocks ready for each thread.
const BESIDES_KIB: u64 = 16 * 1024;

/// The product's memory before a crowd came.
struct Meter<'a> {
    product: &'a Product,
    before: u64,
}

impl<'a> Meter<'a> {
    async fn new(product: &'a Product) -> Self {
        // Whatever is made once is there now.
        let h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
        for _ in 0..10 {
            assert_eq!(client::get(product.http(), HOST, "/").await.status, 200);
            assert_eq!(h2.get(HOST, "/").await.unwrap().status, 200);
        }
        Self { product, before: product.rss_kib() }
    }

    /// Holds the product to the documented cost of so many of a kind, and reports the figures.
    fn check(&self, kind: &str, count: usize) {
        let grown = self.product.rss_kib().saturating_sub(self.before);
        let bound = cost(kind) * count as u64 + BESIDES_KIB;
        println!(
            "{count} x {kind}: {grown} KiB, {:.1} KiB each, bound {bound} KiB",
            grown as f64 / count as f64
        );
        assert!(grown <= bound, "{count} x {kind} take {grown} KiB and not {bound} KiB");
    }
}

/// So many clients, or FLOOD_CLIENTS of them, or as many as files may be open: each takes one here and `files` there.
fn crowd(usual: usize, files: usize) -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls only read or write the struct that they are given.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
    let wanted = std::env::var("FLOOD_CLIENTS").ok().and_then(|n| n.parse().ok()).unwrap_or(usual);
    wanted.min((usize::try_from(limit.rlim_max).unwrap_or(usize::MAX) - 500) / files)
}

/// Makes many of a thing, some at a time.
async fn gather<T, F, Fut>(count: usize, make: F) -> Vec<T>
where
    T: Send + 'static,
    F: Fn() -> Fut,
    Fut: Future<Output = T> + Send + 'static,
{
    let mut all = Vec::with_capacity(count);
    let mut running = JoinSet::new();
    for _ in 0..count {
        if running.len() == 16 {
            all.push(running.join_next().await.unwrap().unwrap());
        }
        running.spawn(make());
    }
    all.extend(running.join_all().await);
    all
}

/// Others are served while the crowd is there.
async fn others_are_served(product: &Product) {
    assert_eq!(client::get(product.http(), HOST, "/").await.status, 200);
    let h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
    assert_eq!(h2.get(HOST, "/").await.unwrap().status, 200);
}

const QUIET: [&str; 1] = ["--access-log=false"];

/// Many clients that ask once, over what `connect` makes, and then do nothing.
async fn idle<C: Send + 'static, Fut>(kind: &str, usual: usize, connect: fn(SocketAddr, SocketAddr) -> Fut)
where
    Fut: Future<Output = C> + Send + 'static,
{
    let origin = Origin::echo().await;
    // A process of its own: what one crowd leaves free, the next would take.
    let product = serve_with(everything_to(&origin), &QUIET).await;
    let (http, https) = (product.http(), product.https());
    let meter = Meter::new(&product).await;
    let count = crowd(usual, 1);
    let crowd = gather(count, move || connect(http, https)).await;
    meter.check(kind, count);
    others_are_served(&product).await;
    drop(crowd);
    let open = async || product.metric_value("tak_ingress_client_connections").await;
    eventually(DEADLINE, async || open().await.filter(|n| *n <= 4.0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_are_cheap() {
    idle("idle HTTP connection", 3_000, |http, _| async move {
        let mut conn = RawConn::connect(http).await.unwrap();
        assert_eq!(conn.get(HOST, "/").await.unwrap().status, 200);
        conn
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_tls_connections_are_cheap() {
    idle("idle HTTPS connection", 500, |_, https| async move {
        let mut conn = RawConn::connect_tls(https, Some(HOST), &["http/1.1"]).await.unwrap();
        assert_eq!(conn.get(HOST, "/").await.unwrap().status, 200);
        conn
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_http2_connections_are_cheap() {
    idle("idle HTTP/2 connection", 500, |_, https| async move {
        let conn = H2Conn::connect_tls(https, HOST).await.unwrap();
        assert_eq!(conn.get(HOST, "/").await.unwrap().status, 200);
        conn
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_that_trickle_are_cheap() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &QUIET).await;
    let addr = product.http();
    let meter = Meter::new(&product).await;
    let count = crowd(3_000, 1);
    let mut slow = gather(count, move || async move {
        let mut conn = RawConn::connect(addr).await.unwrap();
        conn.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nX-Slow: ")).await.unwrap();
        conn
    })
    .await;
    for _ in 0..3 {
        for conn in &mut slow {
            conn.send("x").await.unwrap();
        }
    }
    others_are_served(&product).await;
    meter.check("trickling head", count);
    // They were heard: each is one request in the end.
    for conn in slow.iter_mut().take(10) {
        conn.send("\r\n\r\n").await.unwrap();
        assert_eq!(conn.read_response().await.unwrap().status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_heads_are_bounded() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &QUIET).await;
    let addr = product.http();
    let meter = Meter::new(&product).await;
    let count = crowd(500, 1);
    let head = Arc::new(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nX-Big: {}", "x".repeat(60 * 1024)));
    let slow = gather(count, move || {
        let head = head.clone();
        async move {
            let mut conn = RawConn::connect(addr).await.unwrap();
            conn.send(head.as_bytes()).await.unwrap();
            conn
        }
    })
    .await;
    others_are_served(&product).await;
    meter.check("unfinished head", count);
    drop(slow);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_wait_for_their_backend_are_bounded() {
    let origin = Origin::raw(async |mut stream: TcpStream| {
        while let Ok(head) = read_head(&mut stream).await {
            if head.contains("/wait") {
                std::future::pending::<()>().await;
            }
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await;
        }
    })
    .await;
    let product = serve_with(everything_to(&origin), &QUIET).await;
    let addr = product.http();
    let meter = Meter::new(&product).await;
    let count = crowd(1_000, 2);
    let waiting = gather(count, move || async move {
        let mut conn = RawConn::connect(addr).await.unwrap();
        conn.send(format!("GET /wait HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).await.unwrap();
        conn
    })
    .await;
    eventually(DEADLINE, async || (origin.open_connections() >= count).then_some(())).await;
    meter.check("request in flight", count);
    others_are_served(&product).await;
    drop(waiting);
    let active = async || product.metric_value("tak_ingress_active_requests").await;
    eventually(DEADLINE, async || (active().await == Some(0.0)).then_some(())).await;
}

/// A backend whose `/large` never ends, and how many bytes it got rid of.
async fn firehose() -> (Origin, Arc<AtomicU64>) {
    let sent = Arc::new(AtomicU64::new(0));
    let counter = sent.clone();
    let origin = Origin::raw(move |mut stream: TcpStream| {
        let sent = counter.clone();
        async move {
            let block = vec![b'x'; 256 * 1024];
            while let Ok(head) = read_head(&mut stream).await {
                if head.contains("/mib") {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\n\r\n").await;
                    let _ = stream.write_all(&block.repeat(4)).await;
                    continue;
                }
                if !head.contains("/large") {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await;
                    continue;
                }
                let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\n";
                let _ = stream.write_all(head).await;
                while let Ok(n @ 1..) = stream.write(&block).await {
                    sent.fetch_add(n as u64, Ordering::Relaxed);
                }
                return;
            }
        }
    })
    .await;
    (origin, sent)
}

/// Waits until nothing moves any more: every buffer on the way is full.
async fn until_stalled(sent: &AtomicU64) {
    let mut before = (0, 0);
    eventually(Duration::from_secs(60), async || {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = sent.load(Ordering::Relaxed);
        before = if now > 0 && now == before.0 { (now, before.1 + 1) } else { (now, 0) };
        (before.1 == 10).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_to_clients_that_do_not_read_are_bounded() {
    let (origin, sent) = firehose().await;
    let product = serve_with(everything_to(&origin), &QUIET).await;
    let addr = product.http();
    let meter = Meter::new(&product).await;
    let count = crowd(200, 2);
    let deaf = gather(count, move || async move {
        let mut conn = RawConn::connect(addr).await.unwrap();
        conn.send(format!("GET /large HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).await.unwrap();
        conn
    })
    .await;
    until_stalled(&sent).await;
    meter.check("response in flight", count);
    others_are_served(&product).await;
    drop(deaf);
    let active = async || product.metric_value("tak_ingress_active_requests").await;
    eventually(DEADLINE, async || (active().await == Some(0.0)).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_clients_that_do_not_read_are_bounded() {
    const STREAMS: usize = 64;
    const HUGE_WINDOW: [(u16, u32); 1] = [(4, 0x7fff_ffff)];
    let (origin, sent) = firehose().await;
    let product = serve_with(everything_to(&origin), &QUIET).await;
    let addr = product.https();
    let meter = Meter::new(&product).await;
    let count = crowd(4, 1 + STREAMS);
    // A window as large as can be, so that nothing but the product's own bound holds the data back; and one that is closed.
    for settings in [HUGE_WINDOW, [(4, 0)]] {
        sent.store(0, Ordering::Relaxed);
        let deaf = gather(count / 2, move || async move {
            let mut stream = h2::connect(addr, HOST, &settings).await;
            for i in 0..STREAMS as u32 {
                let fields = h2::get(HOST, "/large");
                let flags = h2::END_HEADERS | h2::END_STREAM;
                stream.write_all(&h2::frame(h2::HEADERS, flags, 2 * i + 1, &fields)).await.unwrap();
            }
            stream.write_all(&h2::frame(8, 0, 0, &0x7fff_0000_u32.to_be_bytes())).await.unwrap();
            stream
        })
        .await;
        until_stalled(&sent).await;
        meter.check("HTTP/2 stream in flight", count / 2 * STREAMS);
        others_are_served(&product).await;
        drop(deaf);
        let active = async || product.metric_value("tak_ingress_active_requests").await;
        eventually(DEADLINE, async || (active().await == Some(0.0)).then_some(())).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_slowest_readers_make_room_for_others() {
    const ROOM: usize = 8;
    let (origin, sent) = firehose().await;
    let args = [QUIET[0], "--response-stream-budget=6Mi"];
    let product = serve_with(everything_to(&origin), &args).await;
    let addr = product.http();
    let meter = Meter::new(&product).await;
    let deaf = gather(100, move || async move {
        let mut conn = RawConn::connect(addr).await.unwrap();
        conn.send(format!("GET /large HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).await.unwrap();
        conn
    })
    .await;
    until_stalled(&sent).await;
    meter.check("response in flight", ROOM);
    let cut = async || product.metric_value("tak_ingress_slow_clients_cut_total").await.unwrap();
    assert_eq!(cut().await, (100 - ROOM) as f64);
    assert!(product.metric_sum("tak_ingress_requests_total", &[("code", "503")]).await > 0.0);
    assert_eq!(product.metric_value("tak_ingress_active_requests").await, Some(ROOM as f64));
    // One that reads is served whole, though all the room was taken.
    let mut conn = RawConn::connect(addr).await.unwrap();
    assert_eq!(conn.get(HOST, "/mib").await.unwrap().body.len(), 1 << 20);
    let h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
    assert_eq!(h2.get(HOST, "/mib").await.unwrap().body.len(), 1 << 20);
    assert!(cut().await > (100 - ROOM) as f64);
    drop(deaf);
}

/// Sends what `next` makes until the server ends the connection; how many it took. What it answers is thrown away.
async fn until_cut(stream: TlsStream, limit: u32, pause: bool, next: impl Fn(u32) -> Vec<u8>) -> Option<u32> {
    let (mut read, mut write) = tokio::io::split(stream);
    let reading = tokio::spawn(async move {
        let mut goaway = false;
        while let Ok((kind, ..)) = h2::read_frame(&mut read).await {
            goaway |= kind == h2::GOAWAY;
        }
        goaway
    });
    for i in 0..limit {
        if reading.is_finished() || write.write_all(&next(i)).await.is_err() {
            return Some(i);
        }
        if pause {
            tokio::task::yield_now().await;
        }
    }
    let _ = write.flush().await;
    tokio::time::timeout(DEADLINE, reading).await.ok().map(|_| limit)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_resets_ends_its_connection() {
    const RESETS: u32 = 20_000;
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &QUIET).await;
    let meter = Meter::new(&product).await;
    let before = origin.requests();
    let pair = |i: u32| {
        let id = 2 * i + 1;
        let fields = h2::get(HOST, "/reset");
        let mut bytes = h2::frame(h2::HEADERS, h2::END_HEADERS | h2::END_STREAM, id, &fields);
        bytes.extend(h2::frame(h2::RST_STREAM, 0, id, &[0, 0, 0, 8]));
        bytes
    };
    // Many in one write, then each in a write of its own, so that each is taken up before it is reset.
    let bulk = |i: u32| (i * 100..i * 100 + 100).flat_map(pair).collect::<Vec<_>>();
    let stream = h2::connect(product.https(), HOST, &[]).await;
    let cut = until_cut(stream, RESETS / 100, false, bulk).await;
    assert!(cut.is_some(), "it went on after {RESETS} resets");
    let stream = h2::connect(product.https(), HOST, &[]).await;
    let cut = until_cut(stream, RESETS, true, pair).await;
    println!("cut after {cut:?}, requests at the backend: {}", origin.requests() - before);
    assert!(cut.is_some(), "it went on after {RESETS} resets");
    others_are_served(&product).await;
    let active = async || product.metric_value("tak_ingress_active_requests").await;
    eventually(DEADLINE, async || (active().await == Some(0.0)).then_some(())).await;
    meter.check("HTTP/2 stream in flight", 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resets_of_requests_that_reached_the_backend_end_their_connection() {
    const RESETS: u64 = 2_000;
    let taken = Arc::new(AtomicU64::new(0));
    let counter = taken.clone();
    let origin = Origin::raw(move |mut stream: TcpStream| {
        let taken = counter.clone();
        async move {
            while let Ok(head) = read_head(&mut stream).await {
                if head.contains("/reset") {
                    taken.fetch_add(1, Ordering::Relaxed);
                    let _ = stream.read_u8().await; // until the proxy lets go of it
                    return;
                }
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await;
            }
        }
    })
    .await;
    let product = serve_with(everything_to(&origin), &QUIET).await;
    let stream = h2::connect(product.https(), HOST, &[]).await;
    let (mut read, mut write) = tokio::io::split(stream);
    let reading = tokio::spawn(async move { while h2::read_frame(&mut read).await.is_ok() {} });
    let mut sent = 0;
    while sent < RESETS && !reading.is_finished() {
        let id = 2 * sent as u32 + 1;
        let fields = h2::get(HOST, "/reset");
        let head = h2::frame(h2::HEADERS, h2::END_HEADERS | h2::END_STREAM, id, &fields);
        if write.write_all(&head).await.is_err() {
            break;
        }
        sent += 1;
        // Reset only once the backend has it, so that nothing but the count of such resets can end this.
        let there = async || (taken.load(Ordering::Relaxed) >= sent || reading.is_finished()).then_some(());
        eventually(DEADLINE, there).await;
        if write.write_all(&h2::frame(h2::RST_STREAM, 0, id, &[0, 0, 0, 8])).await.is_err() {
            break;
        }
    }
    assert!((500..RESETS).contains(&sent), "cut after {sent} resets");
    let ended = product.metric_sum("tak_ingress_unmatched_requests_total", &[("reason", "reset_flood")]);
    assert_eq!(ended.await, 1.0);
    others_are_served(&product).await;
    let active = async || product.metric_value("tak_ingress_active_requests").await;
    eventually(DEADLINE, async || (active().await == Some(0.0)).then_some(())).await;
    eventually(DEADLINE, async || (origin.open_connections() <= 4).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_never_ends_ends_its_connection() {
    const FRAMES: u32 = 10_000;
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &QUIET).await;
    let meter = Meter::new(&product).await;
    let fields = |i: u32| h2::literal_fields(&[(&format!("x-{i}"), &"y".repeat(100))]).repeat(100);
    for empty in [false, true] {
        let stream = h2::connect(product.https(), HOST, &[]).await;
        let cut = until_cut(stream, FRAMES, false, |i| match i {
            0 => h2::frame(h2::HEADERS, h2::END_STREAM, 1, &h2::get(HOST, "/")),
            _ if empty => h2::frame(h2::CONTINUATION, 0, 1, &[]),
            i => h2::frame(h2::CONTINUATION, 0, 1, &fields(i)),
        })
        .await;
        assert!(cut.is_some(), "it went on after {FRAMES} frames, empty: {empty}");
    }
    assert_eq!(origin.requests(), 20, "nothing of it reached the backend");
    others_are_served(&product).await;
    meter.check("HTTP/2 stream in flight", 0);
}
