//! Around Pingora's HTTP engine: the accept loops and the requests of each connection.

mod conn;
mod stream;

pub use conn::Conn;
pub(crate) use conn::local;
pub(crate) use stream::EdgeStream;

use crate::client_stream::ClientStream;
use crate::guard::Guarded;
use crate::respond::SERVER_NAME;
use crate::service::Gateway;
use crate::tls::{self, HelloDeadline};
use crate::{Bound, Shared, StartError, proxy_protocol, terminate};
use async_trait::async_trait;
use futures::FutureExt;
use futures::future::FusedFuture;
use http::header::{CONTENT_LENGTH, SERVER};
use http::{HeaderValue, Method};
use parking_lot::Mutex;
use pingora_core::apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp};
use pingora_core::listeners::{L4BufferSettings, ListenerConfig};
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server::{H2Options, default_h2_options};
use pingora_core::server::configuration::ServerConf;
use pingora_core::server::{Fds, ShutdownWatch};
use pingora_core::services::Service as _;
use pingora_core::services::listening::Service;
use pingora_http::ResponseHeader;
use pingora_proxy::{HttpProxy, http_proxy};
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::IntoRawFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;

/// Receive windows of HTTP/2 clients: large enough for fast uploads, bounded per connection.
const H2_STREAM_WINDOW: u32 = 256 << 10;
const H2_CONNECTION_WINDOW: u32 = 1 << 20;

/// What one stream may have waiting for a client that does not read, whatever window it granted.
const H2_SEND_BUFFER: usize = 64 << 10;

/// Read buffer of a client connection; a larger one is touched whole by each idle connection.
const READ_BUFFER: usize = 4096;
const WRITE_BUFFER: usize = 1460;

/// One app for all listeners.
pub(crate) struct Edge {
    shared: Arc<Shared>,
    engine: Arc<HttpProxy<Guarded<Gateway>>>,
    http2: Arc<Http2>,
    /// Turns true when draining begins, before the ports close.
    drain: ShutdownWatch,
}

/// HTTP/2 connections: the engine's loop, with streams of ours.
struct Http2 {
    shared: Arc<Shared>,
    engine: Arc<HttpProxy<Guarded<Gateway>>>,
}

#[async_trait]
impl HttpServerApp for Http2 {
    async fn process_new_http(
        self: &Arc<Self>,
        session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        let mut stream = match session {
            ServerSession::H2(stream) => stream,
            other => return self.engine.process_new_http(other, shutdown).await,
        };
        if stream.req_header().method == Method::CONNECT {
            // No hook sees it, and the engine's answer is not ours.
            self.shared.metrics.unmatched("malformed");
            let mut refusal = ResponseHeader::build_no_case(405, Some(2)).ok()?;
            refusal.insert_header(SERVER, SERVER_NAME).ok()?;
            refusal.insert_header(CONTENT_LENGTH, HeaderValue::from_static("0")).ok()?;
            let _ = stream.write_response_header(Box::new(refusal), true);
            return None;
        }
        let stream = ClientStream::new(stream);
        let clock = stream.clock();
        let session = ServerSession::new_custom(Box::new(stream));
        tokio::select! {
            biased;
            done = self.engine.process_new_http(session, shutdown) => done,
            () = clock.stuck() => None,
        }
    }

    fn h2_options(&self) -> Option<H2Options> {
        self.engine.h2_options()
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        HttpServerApp::server_options(&*self.engine)
    }
}

#[async_trait]
impl ServerApp for Edge {
    async fn process_new(self: &Arc<Self>, mut stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let plain = stream.get_ssl_digest().is_none();
        let place = plain.then(|| self.shared.places.take());
        if let Some(None) = place {
            self.shared.metrics.connection_refused();
            return None;
        }
        let config = &self.shared.config;
        // In front of TLS it was read before the handshake.
        if config.proxy_protocol && plain {
            let limit = config.client_header_timeout;
            if let Err(error) = proxy_protocol::expect(&mut *stream, &config.trusted_proxies, limit).await {
                if error.kind() != io::ErrorKind::UnexpectedEof {
                    self.shared.metrics.unmatched("proxy_protocol");
                }
                return None;
            }
        }
        let mut stream = EdgeStream::new(stream, self.shared.clone()).ok()?;
        stream.place = place.flatten();
        // Without TLS nobody is asked for a certificate, and so nobody sent away for one, now or later.
        let conn = (!plain).then(|| stream.conn.clone());
        let stream: Stream = if stream.frames.is_some() {
            Box::new(stream)
        } else {
            let conn = stream.conn.clone();
            self.http1(Box::new(stream), &conn, shutdown).await;
            let http2 = conn.http2.lock().take();
            http2?
        };
        // Clients are sent away (GOAWAY) while there is still time to go elsewhere. One that comes after
        // that is served until the ports close.
        let away = if *self.drain.borrow() { shutdown } else { &self.drain };
        let Some(conn) = conn else { return ServerApp::process_new(&self.http2, stream, away).await };
        let (send_away, sent_away) = watch::channel(false);
        let mut all = away.clone();
        let serving = ServerApp::process_new(&self.http2, stream, &sent_away);
        let watching = async {
            tokio::select! {
                // An error means that nobody is left to stop us.
                _ = all.wait_for(|away| *away) => {}
                () = conn.sent_away() => {}
            }
            send_away.send_replace(true);
            std::future::pending::<()>().await
        };
        tokio::select! {
            biased;
            done = serving => done,
            () = watching => None,
        }
    }

    async fn cleanup(&self) {
        // The engine would drop each connection that waits for a request, also where half of one has
        // come in. `http1` looks closer.
    }
}

impl Edge {
    /// The requests of one HTTP/1 connection, one after the other.
    async fn http1(&self, stream: Stream, conn: &Conn, shutdown: &ShutdownWatch) {
        let fd = stream.id();
        let mut session = ServerSession::new_http1(stream);
        // Seconds; 0 is the engine's word for no limit.
        let idle = self.shared.config.client_read_timeout.map_or(0, |d| d.as_secs().max(1));
        session.set_keepalive(if *shutdown.borrow() { None } else { Some(idle) });
        let mut stop = shutdown.clone();
        let stopped = async move {
            // An error means that nobody is left to stop us.
            let _ = stop.wait_for(|stop| *stop).await;
        };
        let mut stopped = pin!(stopped.fuse());
        loop {
            conn.expect_head();
            let serving = async {
                tokio::select! {
                    biased;
                    done = self.engine.process_new_http(session, shutdown) => done,
                    () = conn.clock.stuck() => None,
                }
            };
            let reused =
                match until(serving, stopped.as_mut(), || conn.reading_head(), || conn.idle(fd)).await {
                    Some(Some(reused)) => reused,
                    _ => return,
                };
            let (mut stream, settings) = reused.consume();
            conn.response_is_written();
            if conn.owed.load(Ordering::Relaxed) && stream.flush().await.is_err() {
                return;
            }
            session = ServerSession::new_http1(stream);
            if let Some(settings) = settings {
                settings.apply_to_session(&mut session);
            }
        }
    }
}

/// Serves one request to its end, unless the process stops while the connection is idle: `None`.
/// The stop is looked for only while a head is `awaited`, so that a request pays nothing for it.
async fn until<T>(
    serving: impl Future<Output = T>,
    mut stopped: Pin<&mut (impl FusedFuture<Output = ()> + Send)>,
    awaited: impl Fn() -> bool,
    idle: impl Fn() -> bool,
) -> Option<T> {
    let mut serving = pin!(serving);
    poll_fn(move |cx| {
        if let Poll::Ready(done) = serving.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        let stopped = awaited() && (stopped.is_terminated() || stopped.as_mut().poll(cx).is_ready());
        if stopped && idle() { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

/// Starts the accept loops of both listeners on the current runtime.
pub fn serve(
    shared: Arc<Shared>,
    bound: Bound,
    drain: ShutdownWatch,
    stopped: ShutdownWatch,
) -> Result<tokio::task::JoinHandle<()>, StartError> {
    let config = &shared.config;
    let conf = Arc::new(ServerConf {
        threads: config.threads,
        upstream_keepalive_pool_size: config.upstream_keepalive_connections,
        // The hooks say for each request how often; this is the bound of what they can say.
        max_retries: usize::from(crate::upstream::MOST_TRIES),
        ..ServerConf::default()
    });
    let mut engine = http_proxy(&conf, Guarded(Gateway::new(shared.clone())));
    let mut options = HttpServerOptions::default();
    options.h2_idle_timeout = config.client_keepalive_timeout;
    engine.server_options = Some(options);
    let mut h2 = default_h2_options();
    h2.max_concurrent_streams(config.http2_max_concurrent_streams)
        .max_header_list_size(u32::try_from(config.max_header_size).unwrap_or(u32::MAX))
        .initial_window_size(H2_STREAM_WINDOW)
        .initial_connection_window_size(H2_CONNECTION_WINDOW)
        .max_send_buffer_size(H2_SEND_BUFFER);
    engine.h2_options = Some(h2);

    let engine = Arc::new(engine);
    let http2 = Arc::new(Http2 { shared: shared.clone(), engine: engine.clone() });
    let edge = || Edge {
        shared: shared.clone(),
        engine: engine.clone(),
        http2: http2.clone(),
        drain: drain.clone(),
    };
    let tls = || tls::settings(shared.reader.clone(), shared.metrics.clone(), shared.places.clone());
    let mut service = Service::new("edge".into(), edge());
    let mut fds = Fds::new();
    service.add_listener(endpoint(&mut fds, bound.http)?);
    service.add_listener(endpoint(&mut fds, bound.https)?.tls(tls()?));
    // Whether clients speak TLS on these is for the Gateways to say; `HelloDeadline` asks.
    for (_, socket) in bound.gateway {
        service.add_listener(endpoint(&mut fds, socket)?.tls(tls()?));
    }
    let hello = HelloDeadline {
        limit: config.tls_handshake_timeout,
        proxies: config.proxy_protocol.then(|| config.trusted_proxies.clone()),
        shared: shared.clone(),
        edge: Arc::new(edge()),
        acceptor: Arc::new(terminate::acceptor()?),
        stopped: stopped.clone(),
    };
    service.endpoints().set_pre_tls_callback(Arc::new(hello));
    let fds = Arc::new(Mutex::new(fds));
    Ok(tokio::spawn(async move { service.start_service(Some(fds), stopped, 1).await }))
}

/// Hands a bound socket to the engine, which finds it by its address and never binds anything itself.
fn endpoint(fds: &mut Fds, listener: std::net::TcpListener) -> Result<ListenerConfig, StartError> {
    let address = listener.local_addr().map_err(|e| StartError::Settings(e.to_string()))?.to_string();
    fds.add(address.clone(), listener.into_raw_fd());
    Ok(ListenerConfig::tcp(address).l4_buffer(L4BufferSettings::new(READ_BUFFER, WRITE_BUFFER)))
}
