//! Which address is dialled, and when an attempt may be repeated.

use crate::Shared;
use crate::ctx::RequestCtx;
use crate::resolve::ResolveError;
use crate::respond::Rejection;
use crate::tunnel::TunnelConnector;
use crate::{keypair, trust};
use ingress_core::{Backend, BackendAddress, Route, Timeouts, Unavailable};
use pingora_core::protocols::{ALPN, TcpKeepalive};
use pingora_core::upstreams::peer::{HttpPeer, HttpUpstreamRequestPolicy, PeerOptions};
use pingora_core::{Error, ErrorSource, ErrorType};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Attempts for one request of a route without `retry`, the first included.
pub const MAX_TRIES: u8 = 3;

/// Attempts for any request.
pub const MOST_TRIES: u8 = 11;

/// Bound for a name look-up where the route has no connect timeout.
const DNS_BUDGET: Duration = Duration::from_secs(60);

/// Where the route has no connect timeout, the kernel gives up on TCP after some two minutes; this is
/// for a backend that accepts and never shakes hands.
const CONNECT_CEILING: Duration = Duration::from_secs(600);

/// Connections older than a bucket of this many seconds are not picked for new requests, so that a
/// Service's new Pods get their share although connections are kept.
const ROTATE_SECONDS: u64 = 120;

/// Builds the peer for the next attempt of a request.
pub async fn peer(shared: &Shared, ctx: &mut RequestCtx, upgrade: bool) -> Result<Box<HttpPeer>, Rejection> {
    let route = ctx.route.clone().ok_or(Rejection::Internal)?;
    let backend = ctx.backend().cloned().ok_or(Rejection::Unavailable(Unavailable::Broken))?;
    let began = Instant::now();
    let timeouts = &limits(ctx, &route);
    if ctx.overdue() {
        return Err(Rejection::BackendTimeout);
    }
    let address = address(shared, &backend, ctx.tries, timeouts.connect).await?;
    if let Err(denied) = shared.guard.check(address.ip()) {
        tracing::warn!(route = %route.source, service = %backend.service, %denied, "backend address refused");
        return Err(Rejection::DialDenied);
    }
    let connect = match timeouts.connect {
        Some(budget) => Some(budget.checked_sub(began.elapsed()).ok_or(Rejection::ConnectTimeout)?),
        None => None,
    };
    ctx.tries += 1;
    ctx.peer = Some(address);
    ctx.attempt = Some(began);
    ctx.connected = None;
    ctx.upstream_status = None;
    ctx.response_time = None;

    let timeouts = &Timeouts { connect, ..*timeouts };
    let mut peer = Box::new(bare_peer(shared, &backend, address, timeouts));
    let trust = peer.group_key;
    let options = &mut peer.options;
    if backend.protocol.http2() {
        http2(options);
        // The engine's limit does not see that the client is sending; these see both sides.
        options.read_timeout = None;
        let stuck = timeouts.send.map(|send| send.max(shared.config.client_write_timeout.unwrap_or(send)));
        match (&ctx.clock, &ctx.conn) {
            (Some(clock), _) => clock.bound(timeouts.read, stuck),
            // Without a limit of silence a long one cannot be told from a write that went nowhere.
            (None, Some(conn)) => {
                conn.clock().bound(timeouts.read, stuck.filter(|_| timeouts.read.is_some()))
            }
            (None, None) => options.read_timeout = timeouts.read,
        }
    }
    let watched = !backend.protocol.http2() && watched(timeouts);
    if upgrade {
        options.tcp_keepalive = Some(tunnel_keepalive());
    }
    if upgrade || watched {
        options.custom_l4 = Some(Arc::new(TunnelConnector { timeout: connect, send: timeouts.send }));
        options.write_timeout = None; // the connector's
    }
    // `headers` has done this already.
    options.http_upstream_request_policy = HttpUpstreamRequestPolicy::preserve();
    if !backend.keepalive && backend.protocol.http2() {
        // HTTP/2 knows no `Connection: close`: the connection is not kept when its one stream ends.
        options.idle_timeout = Some(Duration::ZERO);
    }
    peer.group_key = match timeouts.send {
        _ if !backend.keepalive || upgrade => unique(),
        // A kept connection of this kind has its send timeout in it.
        Some(send) if watched => (bucket(ctx.start) << 32) ^ (send.as_millis() as u64) ^ (1 << 62),
        _ => bucket(ctx.start),
    };
    // The engine's own key knows no authorities.
    peer.group_key ^= trust;
    Ok(peer)
}

/// A peer with what belongs to the backend, and nothing of a request. Its group key tells apart what
/// certificates are believed and what certificate is shown.
pub fn bare_peer(shared: &Shared, backend: &Backend, address: SocketAddr, timeouts: &Timeouts) -> HttpPeer {
    let tls = backend.protocol.tls();
    let name = if tls { backend.tls_name.to_string() } else { String::new() };
    let mut peer = HttpPeer::new(address, tls, name);
    let options = &mut peer.options;
    options.connection_timeout = timeouts.connect;
    options.total_connection_timeout = Some(timeouts.connect.unwrap_or(CONNECT_CEILING));
    options.read_timeout = timeouts.read;
    // While the engine writes it does not look at the read timeout, so that takes over where there is
    // no send timeout: a backend that neither takes nor gives is silent.
    options.write_timeout = timeouts.send.or(timeouts.read);
    options.idle_timeout = shared.config.upstream_keepalive_timeout;
    if backend.verify {
        trust::verify(options);
    } else {
        options.verify_cert = false;
        options.verify_hostname = false;
    }
    if !backend.protocol.http2() {
        options.alpn = ALPN::H1;
    }
    if let Some(policy) = &backend.tls {
        peer.group_key = trust::apply(policy, options);
    }
    if let Some(client) = &backend.client {
        // The engine tells certificates apart by their serial numbers alone, which two authorities can
        // give out both.
        let [a, b, c, d, e, f, g, h, ..] = client.fingerprint;
        peer.group_key ^= u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        peer.client_cert_key = keypair::of(client).cloned();
    }
    peer
}

/// The route's limits, and what is left of those for the whole request and for one attempt.
fn limits(ctx: &RequestCtx, route: &Route) -> Timeouts {
    let Timeouts { connect, read, send } = route.policy.timeouts;
    let attempt = route.actions.as_ref().and_then(|actions| actions.backend_request_timeout);
    let bound = match (attempt, ctx.left()) {
        (Some(attempt), Some(left)) => Some(attempt.min(left)),
        (attempt, left) => attempt.or(left),
    };
    let Some(bound) = bound else { return route.policy.timeouts };
    let within = |limit: Option<Duration>| Some(limit.map_or(bound, |limit| limit.min(bound)));
    // How long a tunnel may last is no matter of a request's time.
    let read = if ctx.upgrade { read } else { within(read) };
    Timeouts { connect: within(connect), read, send }
}

/// Receive windows of HTTP/2 backends. What a slow client leaves unread waits here, up to the window
/// of its stream; the window of the connection bounds that for the streams together.
const H2_STREAM_WINDOW: u32 = 256 << 10;
const H2_CONNECTION_WINDOW: u32 = 1 << 20;

/// Streams at once on one backend connection. A Service balances connections, not streams, so a few
/// wide ones would load a few Pods.
const H2_STREAMS: usize = 16;

pub fn http2(options: &mut PeerOptions) {
    options.set_http_version(2, 2);
    options.max_h2_streams = H2_STREAMS;
    options.h2_stream_window_size = Some(H2_STREAM_WINDOW);
    options.h2_connection_window_size = Some(H2_CONNECTION_WINDOW);
    // Not `h2_ping_interval`: servers that follow gRPC's advice end a connection that pings more
    // often than every five minutes. The kernel asks instead, which nobody counts.
    options.tcp_keepalive = Some(tunnel_keepalive());
}

/// Where an attempt goes.
pub async fn address(
    shared: &Shared,
    backend: &Backend,
    tries: u8,
    budget: Option<Duration>,
) -> Result<SocketAddr, Rejection> {
    match &backend.address {
        BackendAddress::Name(name, port) => {
            let addresses = match shared.resolver.cached(name) {
                Some(addresses) => addresses,
                None => {
                    let began = Instant::now();
                    shared.resolver.resolve(name, budget.unwrap_or(DNS_BUDGET)).await.map_err(
                        |e| match e {
                            // The whole connect budget went into the look-up.
                            ResolveError::Timeout if budget.is_some_and(|b| began.elapsed() >= b) => {
                                Rejection::ConnectTimeout
                            }
                            _ => Rejection::Dns,
                        },
                    )?
                }
            };
            let ip = if tries == 0 { addresses.pick() } else { addresses.pick_nth(tries.into()) };
            Ok(SocketAddr::new(ip, *port))
        }
        BackendAddress::Endpoints(list) => {
            let n = if list.len() > 1 { shared.rotation.fetch_add(1, Ordering::Relaxed) } else { 0 };
            list.get(n % list.len().max(1)).copied().ok_or(Rejection::Unavailable(Unavailable::NoEndpoints))
        }
        BackendAddress::Unavailable(why) => Err(Rejection::Unavailable(*why)),
    }
}

/// Whether the send timeout must be kept by a stream of ours. The engine's own bounds each piece of up
/// to 64 KiB, which a slow backend feels if the time is short; and when it has run out, the engine
/// waits on for the backend, for ever if there is no read timeout.
fn watched(timeouts: &Timeouts) -> bool {
    timeouts.send.is_some_and(|send| send < Duration::from_secs(60) || timeouts.read.is_none())
}

fn tunnel_keepalive() -> TcpKeepalive {
    TcpKeepalive {
        idle: Duration::from_secs(60),
        interval: Duration::from_secs(10),
        count: 3,
        #[cfg(target_os = "linux")]
        user_timeout: Duration::from_secs(0),
    }
}

/// A pool of its own: the connection is neither taken from others nor given to them.
fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 63);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn bucket(now: Instant) -> u64 {
    static EPOCH: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    now.saturating_duration_since(*EPOCH.get_or_init(|| now)).as_secs() / ROTATE_SECONDS
}

/// Whether the backend has ended a kept connection. Asks the kernel: the runtime may not have heard
/// of it yet.
pub fn closed_by_backend(fd: std::os::unix::io::RawFd) -> bool {
    let mut byte = [0u8; 1];
    // SAFETY: the buffer is as long as stated; a descriptor that is none gives an error.
    let n = unsafe { libc::recv(fd, byte.as_mut_ptr().cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
    n == 0
}

/// Whether an HTTP/2 backend has said that it did not look at the request (RFC 9113 section 8.7).
pub fn unprocessed(error: &Error) -> bool {
    error.root_cause().downcast_ref::<h2::Error>().is_some_and(|e| {
        e.is_remote()
            && (e.is_reset() && e.reason() == Some(h2::Reason::REFUSED_STREAM)
                || e.is_go_away() && e.reason() == Some(h2::Reason::NO_ERROR))
    })
}

/// Whether a response head had begun when the connection broke; the engine says so in words alone.
pub fn answer_begun(error: &Error) -> bool {
    let read = error.context.as_ref().and_then(|c| c.as_str().rsplit_once("bytes already read: "));
    read.is_some_and(|(_, bytes)| bytes != "0")
}

/// Whether the connection broke, or the backend was silent for too long. A stream that an HTTP/2 backend
/// has ended counts as a connection.
pub fn broken(error: &Error) -> bool {
    let reset = || error.root_cause().downcast_ref::<h2::Error>().is_some_and(h2::Error::is_remote);
    match cause(error, true) {
        Rejection::Reset | Rejection::BackendTimeout => true,
        _ => *error.esource() == ErrorSource::Upstream && *error.etype() == ErrorType::H2Error && reset(),
    }
}

/// Whether a stream of ours, or the kernel, gave up waiting for the peer.
fn timed_out(error: &Error) -> bool {
    let root = error.root_cause().downcast_ref::<io::Error>();
    root.is_some_and(|e| e.kind() == io::ErrorKind::TimedOut)
}

/// The one reading of a Pingora error.
pub fn cause(error: &Error, body_done: bool) -> Rejection {
    use ErrorType::*;
    match (error.esource(), error.etype()) {
        (ErrorSource::Upstream, ConnectTimedout | TLSHandshakeTimedout) => Rejection::ConnectTimeout,
        (ErrorSource::Upstream, TLSHandshakeFailure | InvalidCert | HandshakeError | TLSWantX509Lookup) => {
            Rejection::Tls
        }
        (
            ErrorSource::Upstream,
            ConnectRefused | ConnectNoRoute | ConnectError | BindError | SocketError | AcceptError
            | ConnectProxyFailure,
        ) => Rejection::Connect,
        // A client that stalls its upload starves the backend, which is not the backend's fault.
        (ErrorSource::Upstream, ReadTimedout) if !body_done => Rejection::ClientTimeout,
        (ErrorSource::Upstream, ReadTimedout | WriteTimedout) => Rejection::BackendTimeout,
        (ErrorSource::Upstream, ReadError | WriteError) if timed_out(error) => Rejection::BackendTimeout,
        (ErrorSource::Upstream, InvalidHTTPHeader | H1Error | H2Error | InvalidH2 | H2Downgrade) => {
            Rejection::Protocol
        }
        (ErrorSource::Upstream, _) => Rejection::Reset,
        (ErrorSource::Downstream, ReadTimedout) => Rejection::ClientTimeout,
        (ErrorSource::Downstream, InvalidHTTPHeader | ConnectError) => Rejection::Malformed,
        (ErrorSource::Downstream, _) => Rejection::ClientGone,
        _ => Rejection::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn a_connection_that_the_backend_ended_is_known_at_once() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let kept = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (backend, _) = listener.accept().unwrap();
        assert!(!closed_by_backend(kept.as_raw_fd()));
        drop(backend);
        assert!(closed_by_backend(kept.as_raw_fd()));
    }
}
