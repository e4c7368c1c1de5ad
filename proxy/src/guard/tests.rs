//! Hooks that panic, in the engine itself.

use super::*;
use crate::Shared;
use crate::edge::EdgeStream;
use crate::service::Gateway;
use crate::service::tests::{HOST, endpoints, route, shared};
use ingress_core::Policy;
use pingora_core::apps::HttpServerApp;
use pingora_core::protocols::GetProxyDigest;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server::{H2Accept, HttpSession, handshake};
use pingora_core::server::configuration::ServerConf;
use pingora_proxy::{HttpProxy, http_proxy};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::watch;

/// The gateway, but the hook that is named in the path of a request panics.
struct Panicking(Gateway);

fn at(hook: &str, session: &Session) {
    assert!(session.req_header().uri.path().trim_start_matches('/') != hook, "{hook} panics, as asked");
}

impl Hooks for Panicking {
    fn new_ctx(&self) -> RequestCtx {
        self.0.new_ctx()
    }

    async fn request_filter(&self, s: &mut Session, c: &mut RequestCtx) -> Result<bool> {
        at("early", s);
        let done = self.0.request_filter(s, c).await;
        at("request", s);
        done
    }

    async fn upstream_peer(&self, s: &mut Session, c: &mut RequestCtx) -> Result<Box<HttpPeer>> {
        at("peer", s);
        self.0.upstream_peer(s, c).await
    }

    async fn connected_to_upstream(
        &self,
        s: &mut Session,
        reused: bool,
        peer: &HttpPeer,
        fd: std::os::unix::io::RawFd,
        digest: Option<&Digest>,
        c: &mut RequestCtx,
    ) -> Result<()> {
        at("connected", s);
        self.0.connected_to_upstream(s, reused, peer, fd, digest, c).await
    }

    async fn upstream_request_filter(
        &self,
        s: &mut Session,
        request: &mut RequestHeader,
        c: &mut RequestCtx,
    ) -> Result<()> {
        at("send", s);
        self.0.upstream_request_filter(s, request, c).await
    }

    async fn request_body_filter(
        &self,
        s: &mut Session,
        body: &mut Option<Bytes>,
        end: bool,
        c: &mut RequestCtx,
    ) -> Result<()> {
        at("body", s);
        self.0.request_body_filter(s, body, end, c).await
    }

    async fn response_filter(
        &self,
        s: &mut Session,
        response: &mut ResponseHeader,
        c: &mut RequestCtx,
    ) -> Result<()> {
        at("response", s);
        self.0.response_filter(s, response, c).await
    }

    fn response_body_filter(
        &self,
        s: &mut Session,
        body: &mut Option<Bytes>,
        end: bool,
        c: &mut RequestCtx,
    ) -> Result<Option<Duration>> {
        at("response-body", s);
        self.0.response_body_filter(s, body, end, c)
    }

    fn fail_to_connect(
        &self,
        s: &mut Session,
        peer: &HttpPeer,
        c: &mut RequestCtx,
        e: Box<Error>,
    ) -> Box<Error> {
        self.0.fail_to_connect(s, peer, c, e)
    }

    fn error_while_proxy(
        &self,
        peer: &HttpPeer,
        s: &mut Session,
        e: Box<Error>,
        c: &mut RequestCtx,
        reused: bool,
    ) -> Box<Error> {
        self.0.error_while_proxy(peer, s, e, c, reused)
    }

    async fn fail_to_proxy(&self, s: &mut Session, e: &Error, c: &mut RequestCtx) -> FailToProxy {
        self.0.fail_to_proxy(s, e, c).await
    }

    async fn logging(&self, s: &mut Session, e: Option<&Error>, c: &mut RequestCtx) {
        self.0.logging(s, e, c).await;
        at("logging", s);
    }
}

type Engine = Arc<HttpProxy<Guarded<Panicking>>>;

/// The engine over a backend that answers `hi` to every request.
async fn engine() -> (Arc<Shared>, Engine) {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let addr: SocketAddr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut seen = Vec::new();
                while stream.read_buf(&mut seen).await.is_ok_and(|n| n > 0) {
                    if seen.windows(4).any(|w| w == b"\r\n\r\n") {
                        seen.clear();
                        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
                        stream.write_all(answer).await.unwrap();
                    }
                }
            });
        }
    });
    let shared = shared(vec![route("/", Policy::default(), false, endpoints(&[&addr.to_string()]))]);
    let conf = Arc::new(ServerConf { max_retries: 3, ..ServerConf::default() });
    let engine = http_proxy(&conf, Guarded(Panicking(Gateway::new(shared.clone()))));
    (shared, Arc::new(engine))
}

/// Serves a connection as `edge.rs` does.
fn http1(shared: &Arc<Shared>, engine: &Engine) -> DuplexStream {
    let (client, server) = tokio::io::duplex(1 << 16);
    let stream = EdgeStream::new(Box::new(server), shared.clone()).unwrap();
    let (engine, conn) = (engine.clone(), stream.conn());
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        let _stop = stop;
        let mut session = ServerSession::new_http1(Box::new(stream));
        loop {
            conn.expect_head();
            let Some(reused) = engine.process_new_http(session, &stopped).await else { return };
            session = ServerSession::new_http1(reused.consume().0);
        }
    });
    client
}

/// The head of the answer, and whether the connection is said to stay; `None` if it ended without one.
async fn ask(client: &mut DuplexStream, path: &str) -> Option<(u16, bool)> {
    client.write_all(format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n").as_bytes()).await.ok()?;
    let mut got = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&got).to_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.split("content-length: ").nth(1)?.lines().next()?.parse::<usize>().ok()?;
            if body.len() == length {
                let status = head.split(' ').nth(1)?.parse().ok()?;
                return Some((status, !head.contains("connection: close")));
            }
        }
        if client.read_buf(&mut got).await.ok()? == 0 {
            return None;
        }
    }
}

fn assert_calm(shared: &Shared, panics: u64) {
    assert_eq!((shared.metrics.active_requests(), shared.metrics.lost_requests()), (0, panics));
    let route = shared.reader.load().routes.find(HOST, "/").unwrap().clone();
    assert!(shared.metrics.route(&route).is_some(), "the numbers of the route are there");
}

#[tokio::test]
async fn a_panic_is_500_and_the_connection_serves_the_next_request() {
    let (shared, engine) = engine().await;
    let mut client = http1(&shared, &engine);
    for panics in 0..3 {
        assert_eq!(ask(&mut client, "/").await, Some((200, true)));
        assert_eq!(ask(&mut client, "/early").await, Some((500, true)));
        assert_eq!(shared.metrics.lost_requests(), panics + 1);
    }
    assert_eq!(ask(&mut client, "/request").await, Some((500, true)));
    assert_eq!(ask(&mut client, "/logging").await, Some((200, true)), "the answer was out already");
    assert_eq!(ask(&mut client, "/").await, Some((200, true)));
    assert_calm(&shared, 5);
}

#[tokio::test]
async fn a_panic_on_the_way_to_the_backend_or_back_is_500() {
    let (shared, engine) = engine().await;
    for (panics, hook) in ["peer", "connected", "send", "body", "response"].iter().enumerate() {
        let mut client = http1(&shared, &engine);
        assert_eq!(ask(&mut client, "/").await, Some((200, true)));
        // The engine ends the connection after a failure, and the answer says so.
        assert_eq!(ask(&mut client, &format!("/{hook}")).await, Some((500, false)), "{hook}");
        assert_eq!(client.read_u8().await.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
        assert_calm(&shared, panics as u64 + 1);
    }
    let mut client = http1(&shared, &engine);
    let broken = ask(&mut client, "/response-body").await;
    assert!(broken.is_none_or(|(status, _)| status == 500), "no whole answer: {broken:?}");
    drop(client);
    assert_eq!(ask(&mut http1(&shared, &engine), "/").await, Some((200, true)));
}

#[tokio::test]
async fn a_panic_leaves_the_other_streams_alone() {
    let (shared, engine) = engine().await;
    let (client, server) = tokio::io::duplex(1 << 16);
    let stream = EdgeStream::new(Box::new(server), shared.clone()).unwrap();
    let digest = Arc::new(Digest { proxy_digest: stream.get_proxy_digest(), ..Digest::default() });
    tokio::spawn(async move {
        let mut connection = handshake(Box::new(stream), None).await.unwrap();
        let (stop, stopped) = watch::channel(false);
        while let Ok(Some(H2Accept::Session(session))) =
            HttpSession::from_h2_conn(&mut connection, digest.clone()).await
        {
            let (engine, stopped) = (engine.clone(), stopped.clone());
            tokio::spawn(async move {
                engine.process_new_http(ServerSession::new_http2(session), &stopped).await
            });
        }
        drop(stop);
    });
    let (send, connection) = h2::client::handshake(client).await.unwrap();
    tokio::spawn(connection);
    let ask = async |path: &str| {
        let request = http::Request::get(format!("http://{HOST}{path}")).body(()).unwrap();
        let (answer, _) = send.clone().ready().await.unwrap().send_request(request, true).unwrap();
        answer.await.unwrap().status().as_u16()
    };
    for round in 0..3 {
        let got = futures::join!(ask("/"), ask("/early"), ask("/peer"), ask("/response"), ask("/"));
        assert_eq!(got, (200, 500, 500, 500, 200), "round {round}");
    }
    assert_eq!(shared.metrics.lost_requests(), 9);
}
