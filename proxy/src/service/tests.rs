//! The hooks over a mock stream: each verdict, seen as the client and the backend see it.

use super::*;
use crate::dial::DialGuard;
use crate::edge::EdgeStream;
use crate::resolve::{Resolver, ResolverConfig};
use crate::{Config, Metrics};
use ingress_core::route::RuleIndex;
use ingress_core::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) const HOST: &str = "app.example.com";

pub(crate) fn shared(routes: Vec<Route>) -> Arc<Shared> {
    shared_with(Config::for_test(), routes)
}

fn shared_with(config: Config, routes: Vec<Route>) -> Arc<Shared> {
    let (mut publisher, reader) = channel();
    let mut table = RouteTable::default();
    let (host, _) = VirtualHost::build(routes.into_iter().map(Arc::new).collect());
    table.set(&HOST.parse().unwrap(), host);
    publisher.publish(Arc::new(table), Arc::default());
    let resolver = Resolver::new(
        ResolverConfig {
            servers: vec!["127.0.0.1:1".parse().unwrap()],
            query_timeout: Duration::from_millis(100),
            ..Default::default()
        },
        tokio::runtime::Handle::current(),
    )
    .unwrap();
    Arc::new(Shared {
        auth: crate::policy::auth::State::start(&config).unwrap(),
        config,
        reader,
        client: Arc::new(crate::fetch::Client::new(resolver.clone(), DialGuard::none())),
        providers: Default::default(),
        resolver,
        guard: DialGuard::none(),
        metrics: Metrics::register(&prometheus::Registry::new()).unwrap(),
        log: None,
        draining: false.into(),
        rotation: Default::default(),
        budget: crate::buffer::Budget::new(1 << 20),
        places: crate::places::Places::new(None),
        streams: crate::streams::Streams::new(None, None),
        owing: Default::default(),
        handshakes: Default::default(),
        limiter: crate::policy::rate_limit::Limiter::new(128),
        mirrors: Default::default(),
        ports: Default::default(),
        connector: Default::default(),
    })
}

pub(crate) fn route(path: &str, policy: Policy, https_redirect: bool, address: BackendAddress) -> Route {
    Route {
        path: PathMatch::prefix(path).unwrap(),
        policy: Arc::new(policy),
        https_redirect,
        backend: Arc::new(Backend {
            service: ServicePort { namespace: "ns".into(), name: "web".into(), port: 80 },
            address,
            protocol: Default::default(),
            tls_name: "web.ns.svc".into(),
            verify: true,
            keepalive: true,
            tls: None,
            client: None,
        }),
        source: Arc::new(ResourceRef::new(Kind::Ingress, "ns", "web")),
        host: HOST.into(),
        rule: RuleIndex { rule: 0, path: 0 },
        created: 0,
        conditions: None,
        actions: None,
        state: Slot::new(),
    }
}

pub(crate) fn endpoints(list: &[&str]) -> BackendAddress {
    BackendAddress::Endpoints(list.iter().map(|a| a.parse().unwrap()).collect())
}

fn routes() -> Vec<Route> {
    let open = || endpoints(&["192.0.2.1:80"]);
    vec![
        route("/", Policy::default(), false, open()),
        route("/denied", Policy { access: Access::Denied, ..Policy::default() }, true, open()),
        route("/auth", Policy { auth: Auth::Misconfigured, ..Policy::default() }, false, open()),
        route("/secure", Policy { auth: Auth::Misconfigured, ..Policy::default() }, true, open()),
        route("/gone", Policy::default(), false, BackendAddress::Unavailable(Unavailable::NoService)),
    ]
}

/// What came back, or the request as the backend would get it.
enum Seen {
    Answer(String),
    Forwarded(Box<RequestHeader>),
}

impl Seen {
    fn status(&self) -> u16 {
        match self {
            Seen::Answer(text) => text.split(' ').nth(1).unwrap().parse().unwrap(),
            Seen::Forwarded(_) => 200,
        }
    }
}

/// Sends a raw request through `request_filter`.
async fn send(shared: &Arc<Shared>, raw: &str) -> Seen {
    let (mut client, server) = tokio::io::duplex(1 << 20);
    client.write_all(raw.as_bytes()).await.unwrap();
    let stream = EdgeStream::new(Box::new(server), shared.clone()).unwrap();
    stream.conn().expect_head();
    let mut session = Session::new_h1(Box::new(stream));
    let gateway = Gateway::new(shared.clone());
    assert!(session.as_downstream_mut().read_request().await.unwrap(), "{raw:?}");
    let mut ctx = gateway.new_ctx();
    let done = gateway.request_filter(&mut session, &mut ctx).await.unwrap();
    gateway.logging(&mut session, None, &mut ctx).await;
    if !done {
        return Seen::Forwarded(Box::new(session.req_header().clone()));
    }
    drop(session);
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    Seen::Answer(String::from_utf8(answer).unwrap())
}

#[tokio::test]
async fn each_verdict_has_its_answer_and_our_name_on_it() {
    let shared = shared(routes());
    let get = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    for (raw, status, text) in [
        (get("/denied"), 403, "403 Forbidden"),
        (get("/auth"), 501, "Authentication required but not configured"),
        (get("/a/../b"), 400, "400 Bad Request"),
        (get("/%2e%2e/"), 400, ""),
        (get("/x#y"), 400, ""),
        (get("/a b"), 400, ""),
        (get("/a\x01b"), 400, ""),
        (get("admin"), 400, ""),
        (get("?x=1"), 400, ""),
        (get("*"), 400, ""),
        (
            format!(
                "POST / HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n\r\nhello\r\n0\r\n\r\n"
            ),
            400,
            "",
        ),
        ("GET / HTTP/1.1\r\nHost: other.example\r\n\r\n".into(), 404, "404 Not Found"),
        ("GET / HTTP/1.1\r\n\r\n".into(), 400, ""),
        (format!("GET / HTTP/1.1\r\nHost: {HOST}:99999\r\n\r\n"), 400, ""),
        (format!("GET / HTTP/1.1\nHost: {HOST}\r\n\r\n"), 400, ""),
        (format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nX: {}\r\n\r\n", "x".repeat(70_000)), 431, "431 "),
        (
            format!(
                "POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
            ),
            400,
            "",
        ),
    ] {
        match send(&shared, &raw).await {
            Seen::Answer(answer) => {
                assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{raw:?}: {answer}");
                assert!(answer.to_lowercase().contains("server: tak-os-ingress\r\n"), "{answer}");
                assert!(answer.contains(text), "{answer}");
            }
            Seen::Forwarded(_) => panic!("{raw:?} was forwarded"),
        }
    }
    assert_eq!(shared.metrics.active_requests(), 0);
    assert_eq!(shared.metrics.lost_requests(), 0);
}

#[tokio::test]
async fn the_redirect_comes_after_the_address_list_and_before_authentication() {
    let shared = shared(routes());
    let raw =
        format!("POST /secure/a%20b?x=1&y=%2F HTTP/1.1\r\nHost: {HOST}:80\r\nContent-Length: 0\r\n\r\n");
    match send(&shared, &raw).await {
        Seen::Answer(answer) => {
            assert!(answer.starts_with("HTTP/1.1 308 "), "{answer}");
            let location = format!("location: https://{HOST}/secure/a%20b?x=1&y=%2F\r\n");
            assert!(answer.to_lowercase().contains(&location.to_lowercase()), "{answer}");
        }
        Seen::Forwarded(_) => panic!("forwarded"),
    }
    // The list is asked first, so a refused client learns nothing from a redirect.
    assert_eq!(send(&shared, &format!("GET /denied HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).await.status(), 403);
}

#[tokio::test]
async fn what_is_forwarded_has_our_headers_and_the_clients_bytes() {
    let shared = shared(routes());
    let raw = format!("GET //a%2Fb/./%41?q=/../ HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    assert_eq!(send(&shared, &raw).await.status(), 400, "a dot segment behind an empty one");
    let raw = format!("GET http://{HOST}/x//y%2Fz?q=/../#  HTTP/1.1\r\nHost: {HOST}\r\n\r\n",);
    assert_eq!(send(&shared, &raw.replace("#  ", " ")).await.status(), 200);
    let raw = format!(
        "POST / HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: Chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\n\r\n"
    );
    assert_eq!(send(&shared, &raw).await.status(), 200, "a body that came with its head");
    let raw = format!(
        "GET http://{HOST}/x//y%2Fz?q=/../ HTTP/1.1\r\nHost: {HOST}\r\nX-Forwarded-For: 1.1.1.1\r\n\r\n"
    );
    match send(&shared, &raw).await {
        Seen::Forwarded(request) => {
            assert_eq!(request.raw_path(), b"/x//y%2Fz?q=/../", "origin form, bytes unchanged");
            assert_eq!(request.headers["host"], HOST);
            assert_eq!(request.headers["x-forwarded-proto"], "http");
            assert_eq!(request.headers.get_all("x-forwarded-for").iter().count(), 1);
        }
        Seen::Answer(answer) => panic!("{answer}"),
    }
}

#[tokio::test]
async fn a_backend_that_is_not_there_is_502_and_an_address_that_must_not_be_dialled_too() {
    let shared = shared(vec![
        route("/gone", Policy::default(), false, BackendAddress::Unavailable(Unavailable::NoService)),
        route("/none", Policy::default(), false, endpoints(&[])),
        route("/dns", Policy::default(), false, BackendAddress::Name("no.such.".into(), 80)),
    ]);
    for path in ["/gone", "/none", "/dns"] {
        let mut ctx = RequestCtx::new(shared.clone());
        ctx.recorded = true;
        ctx.route = Some(shared.reader.load().routes.find(HOST, path).unwrap().clone());
        let rejection = upstream::peer(&shared, &mut ctx, false).await.unwrap_err();
        assert_eq!(rejection.status(), 502, "{path}");
        assert!(rejection.upstream_error().is_some());
    }
}

/// A connection on which the client's bytes never make a whole head: what the client reads.
async fn unfinished(shared: Arc<Shared>, sent: &[u8]) -> String {
    let (mut client, server) = tokio::io::duplex(1 << 20);
    client.write_all(sent).await.unwrap();
    let stream = EdgeStream::new(Box::new(server), shared).unwrap();
    stream.conn().expect_head();
    let mut session = Session::new_h1(Box::new(stream));
    assert!(!session.as_downstream_mut().read_request().await.unwrap_or(false));
    drop(session);
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_head_that_trickles_gets_408_and_one_without_end_431() {
    let config = Config { client_read_timeout: Some(Duration::from_millis(50)), ..Config::for_test() };
    let shared = shared_with(config, routes());
    let answer = unfinished(shared.clone(), b"GET / HTTP/1.1\r\nHost: app").await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    let endless = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(200_000));
    let answer = unfinished(shared, endless.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[test]
fn each_engine_error_has_one_reading() {
    use ErrorType::*;
    use pingora_core::ErrorSource::{Downstream, Internal, Upstream};
    for (source, etype, body_done, want) in [
        (Upstream, ConnectRefused, true, 502),
        (Upstream, ConnectNoRoute, true, 502),
        (Upstream, ConnectTimedout, true, 504),
        (Upstream, TLSHandshakeTimedout, true, 504),
        (Upstream, TLSHandshakeFailure, true, 502),
        (Upstream, InvalidCert, true, 502),
        (Upstream, ReadTimedout, true, 504),
        (Upstream, ReadTimedout, false, 408),
        (Upstream, WriteTimedout, true, 504),
        (Upstream, ConnectionClosed, true, 502),
        (Upstream, ReadError, true, 502),
        (Upstream, InvalidHTTPHeader, true, 502),
        (Downstream, ReadTimedout, false, 408),
        (Downstream, ConnectionClosed, false, 499),
        (Downstream, WriteError, true, 499),
        (Downstream, InvalidHTTPHeader, true, 400),
        (Internal, InternalError, true, 500),
    ] {
        let text = format!("{source:?} {etype:?}");
        let mut error = Error::new(etype);
        error.esource = source;
        assert_eq!(upstream::cause(&error, body_done).status(), want, "{text}");
    }
}

#[test]
fn a_stream_of_ours_or_the_kernel_that_gave_up_is_a_timeout() {
    use std::io::{Error as IoError, ErrorKind};
    for (kind, want) in [(ErrorKind::TimedOut, 504), (ErrorKind::ConnectionReset, 502)] {
        for etype in [ErrorType::WriteError, ErrorType::ReadError] {
            let error = Error::because(etype, "while sending", IoError::from(kind)).into_up();
            assert_eq!(upstream::cause(&error, false).status(), want, "{kind:?}");
        }
    }
}

#[test]
fn an_answer_that_has_begun_is_known_by_the_engines_words() {
    for (context, begun) in [
        ("while reading response headers, bytes already read: 0", false),
        ("while reading response headers, bytes already read: 16", true),
        ("while writing", false),
    ] {
        let error = Error::explain(ErrorType::ConnectionClosed, context);
        assert_eq!(upstream::answer_begun(&error), begun, "{context}");
    }
}

#[tokio::test]
async fn no_timeout_of_a_route_leaves_an_exchange_without_any() {
    let second = |n: u64| (n > 0).then(|| Duration::from_secs(n));
    // connect, read, send; then what the engine is told: connect, read, write, and whether the stream is ours.
    for ((connect, read, send), (total, reading, writing, ours)) in [
        ((60, 300, 300), (60, 300, 300, false)),
        ((0, 300, 300), (600, 300, 300, false)),
        ((60, 0, 300), (60, 0, 0, true)),
        ((60, 300, 0), (60, 300, 300, false)),
        ((60, 300, 5), (60, 300, 0, true)),
        ((60, 0, 0), (60, 0, 0, false)),
    ] {
        let timeouts = Timeouts { connect: second(connect), read: second(read), send: second(send) };
        let policy = Policy { timeouts, ..Policy::default() };
        let shared = shared(vec![route("/", policy, false, endpoints(&["192.0.2.1:80"]))]);
        let mut ctx = RequestCtx::new(shared.clone());
        ctx.recorded = true;
        ctx.route = Some(shared.reader.load().routes.find(HOST, "/").unwrap().clone());
        let peer = upstream::peer(&shared, &mut ctx, false).await.unwrap();
        let options = &peer.options;
        let case = format!("connect {connect}, read {read}, send {send}");
        let left = options.total_connection_timeout.unwrap();
        assert!(
            left <= Duration::from_secs(total) && left > Duration::from_secs(total - 1),
            "{case}: {left:?}"
        );
        assert_eq!(
            (options.read_timeout, options.write_timeout),
            (second(reading), second(writing)),
            "{case}"
        );
        assert_eq!(options.custom_l4.is_some(), ours, "{case}");
    }
}
