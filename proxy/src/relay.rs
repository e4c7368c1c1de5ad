//! Connections whose octets go to a backend as they come, and back: TLS that is passed on unread, and what is in TLS that
//! ends here for a TLSRoute.

use crate::Shared;
use crate::access_log::Record;
use crate::close_notify::CloseNotify;
use crate::passthrough::Taken;
use crate::places::Place;
use crate::proxy_protocol;
use crate::respond::Rejection;
use crate::service::random;
use crate::stall::Stall;
use crate::trust;
use crate::upstream;
use ingress_core::{Backend, Route, Timeouts, Unavailable};
use pingora_core::connectors::TransportConnector;
use pingora_core::protocols::l4::socket::SocketAddr;
use pingora_core::protocols::l4::stream::Stream as L4Stream;
use pingora_core::protocols::tls::SslStream;
use pingora_core::protocols::{ALPN, GetProxyDigest, GetSocketDigest};
use pingora_core::upstreams::peer::{HttpPeer, Peer, PeerOptions};
use pingora_core::utils::tls::CertKey;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf, copy_bidirectional};
use tokio::net::TcpStream;

/// Counts a tunnel for as long as it lives, and holds its place among `--max-connections`.
pub struct Tunnel {
    shared: Arc<Shared>,
    _place: Place,
}

impl Tunnel {
    /// A tunnel begins.
    pub fn begin(shared: &Arc<Shared>, place: Place) -> Self {
        shared.metrics.connection_opened();
        shared.metrics.request_began();
        shared.metrics.tunnel_began();
        Self { shared: shared.clone(), _place: place }
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.shared.metrics.request_ended(true);
        self.shared.metrics.connection_closed();
    }
}

/// A connection that is carried.
pub struct Carried {
    /// Whose it is, and the server name.
    pub taken: Taken,
    /// Where it comes from.
    pub client: Option<IpAddr>,
    /// What ended here; `None`: TLS is passed on unread.
    pub tls_version: Option<&'static str>,
}

/// The address of the client, or the one that it named by the PROXY protocol.
pub fn client(stream: &L4Stream) -> Option<IpAddr> {
    let announced = stream.get_proxy_digest().and_then(|digest| proxy_protocol::announced(&digest));
    announced.or_else(|| Some(stream.get_socket_digest()?.peer_addr()?.as_inet()?.ip()))
}

/// Carries a connection until both sides are done, or both are silent for too long. `opening` is what was read of the
/// client already.
pub async fn run<C>(shared: Arc<Shared>, tunnel: Tunnel, client: C, opening: Vec<u8>, carried: Carried)
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    let began = Instant::now();
    let mut passed = (0, 0);
    let route = &carried.taken.route;
    let ended = pass(&shared, client, opening, route, &mut passed).await;
    if let Err(rejection) = ended
        && let Some(reason) = rejection.upstream_error()
    {
        shared.metrics.upstream_error(route, reason);
    }
    if let Some(log) = &shared.log {
        log.line(|line| record(line, &carried, passed, began, ended.err()));
    }
    drop(tunnel);
}

fn record(
    line: &mut Vec<u8>,
    carried: &Carried,
    (bytes_in, bytes_out): (u64, u64),
    began: Instant,
    rejection: Option<Rejection>,
) {
    let Carried { taken: Taken { route, name }, client, tls_version, .. } = carried;
    let mut record = Record::new(line);
    record.now("time");
    if let Some(client) = client {
        record.display("client", client.to_canonical());
    }
    record.text("protocol", if tls_version.is_some() { b"TCP" } else { b"TLS" });
    record.int("bytes_in", bytes_in);
    record.int("bytes_out", bytes_out);
    record.millis("duration_ms", began.elapsed());
    record.display("route", &route.source);
    record.display("rule", route.place());
    record.opt("rejected_by", rejection.map(Rejection::label).map(str::as_bytes));
    record.opt("tls_version", tls_version.map(str::as_bytes));
    record.text("sni", name.as_bytes());
    record.end();
}

async fn pass<C>(
    shared: &Shared,
    client: C,
    opening: Vec<u8>,
    route: &Route,
    passed: &mut (u64, u64),
) -> Result<(), Rejection>
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    let backend = backend(route).ok_or(Rejection::Unavailable(Unavailable::Broken))?;
    let timeouts = &route.policy.timeouts;
    // Inactivity of both sides together, as of every tunnel.
    let limit = timeouts.read.into_iter().chain(timeouts.send).max().filter(|_| timeouts.read.is_some());
    match connect(shared, backend, timeouts).await? {
        Server::Plain(mut server) => {
            if !relay(client, &mut server, opening, limit, passed).await {
                // A backend that speaks no TLS could not tell what broke off from what has ended.
                let _ = server.set_zero_linger();
            }
        }
        // Without `close_notify` it is seen to be broken off.
        Server::Tls(server) => {
            relay(client, server, opening, limit, passed).await;
        }
    }
    Ok(())
}

/// Copies until both sides are done, or silent for too long: tells whether the client has ended as it should, and the server was
/// told. `passed` gets how much came from the client, `opening` included, and from the server.
async fn relay<C, S>(
    client: C,
    server: S,
    opening: Vec<u8>,
    limit: Option<Duration>,
    passed: &mut (u64, u64),
) -> bool
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let moved = Arc::new(AtomicBool::new(false));
    let mut client =
        Watched { inner: client, moved: moved.clone(), read: opening.len() as u64, ended: false };
    let mut server = Watched { inner: server, moved: moved.clone(), read: 0, ended: false };
    let work = async {
        server.write_all(&opening).await?;
        drop(opening);
        copy_bidirectional(&mut client, &mut server).await
    };
    until_silent(work, &moved, limit).await;
    *passed = (client.read, server.read);
    server.ended
}

/// Works until it is done, or until nothing has `moved` for so long (`None`); without a limit, until it is done.
async fn until_silent<T>(
    work: impl Future<Output = T>,
    moved: &AtomicBool,
    limit: Option<Duration>,
) -> Option<T> {
    let mut work = pin!(work);
    let mut stall = Stall::default();
    poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        if moved.swap(false, Ordering::Relaxed) {
            stall.progress();
        }
        stall.poll(cx, limit).map(|_| None)
    })
    .await
}

fn backend(route: &Route) -> Option<&Arc<Backend>> {
    match route.actions.as_ref().and_then(|actions| actions.backends.as_ref()) {
        Some(several) => Some(&several.entries().get(several.pick(random())?)?.backend),
        None => Some(&route.backend),
    }
}

/// The connection to a backend.
enum Server {
    Plain(TcpStream),
    Tls(CloseNotify),
}

async fn connect(shared: &Shared, backend: &Backend, timeouts: &Timeouts) -> Result<Server, Rejection> {
    let connecting = async {
        let address = upstream::address(shared, backend, 0, timeouts.connect).await?;
        if let Err(denied) = shared.guard.check(address.ip()) {
            tracing::warn!(service = %backend.service, %denied, "backend address refused");
            return Err(Rejection::DialDenied);
        }
        if backend.protocol.tls() {
            let peer = upstream::bare_peer(shared, backend, address, timeouts);
            return over_tls(shared, Octets(peer)).await.map(Server::Tls);
        }
        let tcp = TcpStream::connect(address).await.map_err(|_| Rejection::Connect)?;
        let _ = tcp.set_nodelay(true);
        Ok(Server::Plain(tcp))
    };
    match timeouts.connect {
        Some(limit) => {
            tokio::time::timeout(limit, connecting).await.unwrap_or(Err(Rejection::ConnectTimeout))
        }
        None => connecting.await,
    }
}

/// A connection to a backend of which a BackendTLSPolicy says that TLS is spoken, and whom to believe.
async fn over_tls(shared: &Shared, peer: Octets) -> Result<CloseNotify, Rejection> {
    let connector = shared.connector.get_or_init(|| TransportConnector::new(None));
    let stream =
        connector.new_stream(&peer).await.map_err(|error| upstream::cause(&error.into_up(), true))?;
    if trust::refuses(stream.get_ssl_digest().as_deref()) {
        return Err(Rejection::Tls);
    }
    let stream = stream.into_any().downcast::<SslStream<L4Stream>>().map_err(|_| Rejection::Internal)?;
    Ok(CloseNotify::new(*stream))
}

/// A backend of which nobody knows what it speaks inside: no protocol is asked for (ALPN).
#[derive(Clone, Debug)]
struct Octets(HttpPeer);

impl fmt::Display for Octets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Peer for Octets {
    fn address(&self) -> &SocketAddr {
        self.0.address()
    }

    fn tls(&self) -> bool {
        self.0.tls()
    }

    fn sni(&self) -> &str {
        self.0.sni()
    }

    fn reuse_hash(&self) -> u64 {
        self.0.reuse_hash()
    }

    fn get_peer_options(&self) -> Option<&PeerOptions> {
        self.0.get_peer_options()
    }

    fn get_mut_peer_options(&mut self) -> Option<&mut PeerOptions> {
        self.0.get_mut_peer_options()
    }

    fn get_client_cert_key(&self) -> Option<&Arc<CertKey>> {
        self.0.get_client_cert_key()
    }

    fn get_alpn(&self) -> Option<&ALPN> {
        None
    }
}

/// A stream that notes when it moves, how much was read of it, and that it was told the end.
struct Watched<S> {
    inner: S,
    moved: Arc<AtomicBool>,
    read: u64,
    ended: bool,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let step = Pin::new(&mut self.inner).poll_read(cx, buf);
        if step.is_ready() {
            self.read += (buf.filled().len() - before) as u64;
            self.moved.store(true, Ordering::Relaxed);
        }
        step
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let step = Pin::new(&mut self.inner).poll_write(cx, buf);
        if step.is_ready() {
            self.moved.store(true, Ordering::Relaxed);
        }
        step
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let step = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.ended |= matches!(step, Poll::Ready(Ok(())));
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    #[tokio::test(start_paused = true)]
    async fn what_was_passed_is_counted_also_when_silence_ends_it() {
        let (client, mut far_client) = tokio::io::duplex(64);
        let (server, mut far_server) = tokio::io::duplex(64);
        far_client.write_all(b"more").await.unwrap();
        far_server.write_all(b"answer!").await.unwrap();
        let mut counts = (0, 0);
        let limit = Some(Duration::from_millis(40));
        assert!(!relay(client, server, b"hello".to_vec(), limit, &mut counts).await, "nobody has ended it");
        assert_eq!(counts, (9, 7));
    }

    #[tokio::test]
    async fn what_the_client_has_ended_stays_ended_whatever_becomes_of_the_answer() {
        let (client, mut far_client) = tokio::io::duplex(64);
        let (server, mut far_server) = tokio::io::duplex(64);
        let passing = tokio::spawn(async move {
            let mut counts = (0, 0);
            (relay(client, server, Vec::new(), None, &mut counts).await, counts)
        });
        far_client.write_all(b"bye").await.unwrap();
        far_client.shutdown().await.unwrap();
        let mut all = Vec::new();
        far_server.read_to_end(&mut all).await.unwrap();
        // It is gone, and the answer has nowhere to go.
        drop(far_client);
        let _ = far_server.write_all(b"thanks").await;
        drop(far_server);
        assert_eq!((all, passing.await.unwrap()), (b"bye".to_vec(), (true, (3, 6))));

        let (client, far_client) = tokio::io::duplex(64);
        let (server, mut far_server) = tokio::io::duplex(64);
        let passing = tokio::spawn(async move {
            let mut counts = (0, 0);
            relay(Broken(client), server, Vec::new(), None, &mut counts).await
        });
        let mut all = Vec::new();
        far_server.read_to_end(&mut all).await.unwrap();
        assert!(!passing.await.unwrap(), "nobody has ended it");
        drop(far_client);
    }

    /// A client that breaks off.
    struct Broken(tokio::io::DuplexStream);

    impl AsyncRead for Broken {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
        }
    }

    impl AsyncWrite for Broken {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.0).poll_write(cx, buf)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(cx)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_and_movement_puts_it_off() {
        let limit = Duration::from_secs(40);
        let (client, mut far_client) = tokio::io::duplex(64);
        let (server, mut far_server) = tokio::io::duplex(64);
        let began = tokio::time::Instant::now();
        let passing = tokio::spawn(async move {
            let mut counts = (0, 0);
            relay(client, server, Vec::new(), Some(limit), &mut counts).await;
            counts
        });
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_secs(30)).await;
            far_client.write_all(b"x").await.unwrap();
            tokio::time::sleep(Duration::from_secs(30)).await;
            far_server.write_all(b"y").await.unwrap();
        }
        assert_eq!(passing.await.unwrap(), (3, 3));
        assert_eq!(began.elapsed().as_secs(), 6 * 30 + 40);

        let (client, _far_client) = tokio::io::duplex(64);
        let (server, _far_server) = tokio::io::duplex(64);
        let mut counts = (0, 0);
        let forever = relay(client, server, Vec::new(), None, &mut counts);
        assert!(tokio::time::timeout(Duration::from_secs(99_999), forever).await.is_err(), "no limit");
    }
}
