//! TLS that does not end here: a connection whose server name a TLSRoute takes is passed to a backend
//! byte by byte, from the client's hello on.

use crate::Shared;
use crate::access_log::Record;
use crate::clients::Hello;
use crate::edge;
use crate::places::Place;
use crate::proxy_protocol;
use crate::respond::Rejection;
use crate::service::random;
use crate::stall::Stall;
use crate::upstream;
use ingress_core::route::host::normal_name;
use ingress_core::{Backend, Route, Unavailable};
use pingora_core::protocols::l4::stream::Stream as L4Stream;
use pingora_core::protocols::{GetProxyDigest, GetSocketDigest};
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

/// What is done with a connection before its handshake.
pub enum Choice {
    /// It ends here.
    Terminate(Hello),
    /// It is passed on.
    Pass(Arc<Route>),
    /// Nobody takes it.
    Close,
}

/// Decides by the client's hello.
pub fn choose(shared: &Shared, stream: &L4Stream, records: &[u8]) -> Choice {
    let snapshot = shared.reader.peek();
    if snapshot.listeners.is_empty() {
        return Choice::Terminate(Hello::default());
    }
    let local = stream.get_socket_digest().and_then(|digest| edge::local(&digest, &shared.ports));
    let ended = |clients| Choice::Terminate(Hello { local, clients });
    let Some(listener) = local.and_then(|local| snapshot.listeners.at(local)) else { return ended(None) };
    if listener.names.is_empty() {
        return ended(None);
    }
    let name = server_name(records);
    match name.as_ref().and_then(|name| listener.passthrough(name)) {
        None => {
            let asked = listener.asks_clients.then(|| listener.routes.clients(name.as_deref())).flatten();
            ended(asked.cloned())
        }
        Some(Some(route)) => Choice::Pass(route.clone()),
        Some(None) => Choice::Close,
    }
}

/// The server name of a hello in TLS records, in lower case and without a trailing dot (RFC 8446
/// section 4.1.2, RFC 6066 section 3).
pub fn server_name(records: &[u8]) -> Option<String> {
    let mut message = Vec::with_capacity(records.len());
    let mut rest = Reader(records);
    while !rest.0.is_empty() {
        rest.skip(3)?;
        message.extend_from_slice(rest.block::<2>()?);
    }
    let mut hello = Reader(&message);
    if hello.take(1)? != [1] {
        return None;
    }
    let mut hello = Reader(hello.block::<3>()?);
    hello.skip(2 + 32)?; // version, random
    hello.block::<1>()?; // session
    hello.block::<2>()?; // cipher suites
    hello.block::<1>()?; // compression
    let mut extensions = Reader(hello.block::<2>()?);
    while !extensions.0.is_empty() {
        let kind = extensions.take(2)?;
        let body = extensions.block::<2>()?;
        if kind != [0, 0] {
            continue;
        }
        let mut names = Reader(Reader(body).block::<2>()?);
        while !names.0.is_empty() {
            let kind = names.take(1)?;
            let name = names.block::<2>()?;
            if kind == [0] {
                let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty())?;
                return Some(normal_name(name));
            }
        }
    }
    None
}

/// Reads what has its length in front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    fn skip(&mut self, n: usize) -> Option<()> {
        self.take(n).map(|_| ())
    }

    /// A block behind a length of `N` octets.
    fn block<const N: usize>(&mut self) -> Option<&'a [u8]> {
        let length = self.take(N)?.iter().fold(0, |n, b| n << 8 | usize::from(*b));
        self.take(length)
    }
}

/// Counts a tunnel for as long as it lives.
struct Tunnel(Arc<Shared>);

impl Tunnel {
    fn begin(shared: &Arc<Shared>) -> Self {
        shared.metrics.connection_opened();
        shared.metrics.request_began();
        shared.metrics.tunnel_began();
        Self(shared.clone())
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.0.metrics.request_ended(true);
        self.0.metrics.connection_closed();
    }
}

/// Passes a connection on until both sides are done, or both are silent for too long. `hello` is what
/// was read of it.
pub async fn run(shared: Arc<Shared>, stream: L4Stream, hello: Vec<u8>, route: Arc<Route>, place: Place) {
    let _tunnel = Tunnel::begin(&shared);
    let began = Instant::now();
    let announced = stream.get_proxy_digest().and_then(|digest| proxy_protocol::announced(&digest));
    let peer = || Some(stream.get_socket_digest()?.peer_addr()?.as_inet()?.ip());
    let peer = announced.or_else(peer);
    let mut passed = (0, 0);
    let ended = pass(&shared, stream, &hello, &route, &mut passed).await;
    if let Err(rejection) = ended
        && let Some(reason) = rejection.upstream_error()
    {
        shared.metrics.upstream_error(&route, reason);
    }
    if let Some(log) = &shared.log {
        log.line(|line| record(line, &hello, &route, peer, passed, began, ended.err()));
    }
    drop(place);
}

fn record(
    line: &mut Vec<u8>,
    hello: &[u8],
    route: &Route,
    peer: Option<IpAddr>,
    (bytes_in, bytes_out): (u64, u64),
    began: Instant,
    rejection: Option<Rejection>,
) {
    let mut record = Record::new(line);
    record.now("time");
    if let Some(peer) = peer {
        record.display("client", peer.to_canonical());
    }
    record.text("protocol", b"TLS");
    record.int("bytes_in", bytes_in);
    record.int("bytes_out", bytes_out);
    record.millis("duration_ms", began.elapsed());
    record.display("route", &route.source);
    record.display("rule", route.place());
    record.opt("rejected_by", rejection.map(Rejection::label).map(str::as_bytes));
    record.opt("sni", server_name(hello).as_deref().map(str::as_bytes));
    record.end();
}

async fn pass(
    shared: &Shared,
    client: L4Stream,
    hello: &[u8],
    route: &Route,
    passed: &mut (u64, u64),
) -> Result<(), Rejection> {
    let backend = backend(route).ok_or(Rejection::Unavailable(Unavailable::Broken))?;
    let timeouts = &route.policy.timeouts;
    let server = connect(shared, backend, timeouts.connect).await?;
    // Inactivity of both sides together, as of every tunnel.
    let limit = timeouts.read.into_iter().chain(timeouts.send).max().filter(|_| timeouts.read.is_some());
    *passed = relay(client, server, hello, limit).await;
    Ok(())
}

/// Copies until both sides are done, or silent for too long: how much came from the client, `hello` included, and from
/// the server.
async fn relay<C, S>(client: C, server: S, hello: &[u8], limit: Option<Duration>) -> (u64, u64)
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let moved = Arc::new(AtomicBool::new(false));
    let mut client = Watched { inner: client, moved: moved.clone(), read: hello.len() as u64 };
    let mut server = Watched { inner: server, moved: moved.clone(), read: 0 };
    let work = async {
        server.write_all(hello).await?;
        copy_bidirectional(&mut client, &mut server).await
    };
    until_silent(work, &moved, limit).await;
    (client.read, server.read)
}

/// Works until it is done, or until nothing has `moved` for so long; without a limit, until it is done.
async fn until_silent<T>(work: impl Future<Output = T>, moved: &AtomicBool, limit: Option<Duration>) {
    let mut work = pin!(work);
    let mut stall = Stall::default();
    poll_fn(|cx| {
        if work.as_mut().poll(cx).is_ready() {
            return Poll::Ready(()); // either side may end as it likes
        }
        if moved.swap(false, Ordering::Relaxed) {
            stall.progress();
        }
        stall.poll(cx, limit).map(drop)
    })
    .await;
}

fn backend(route: &Route) -> Option<&Arc<Backend>> {
    match route.actions.as_ref().and_then(|actions| actions.backends.as_ref()) {
        Some(several) => Some(&several.entries().get(several.pick(random())?)?.backend),
        None => Some(&route.backend),
    }
}

async fn connect(
    shared: &Shared,
    backend: &Backend,
    limit: Option<Duration>,
) -> Result<TcpStream, Rejection> {
    let connecting = async {
        let address = upstream::address(shared, backend, 0, limit).await?;
        if let Err(denied) = shared.guard.check(address.ip()) {
            tracing::warn!(service = %backend.service, %denied, "backend address refused");
            return Err(Rejection::DialDenied);
        }
        let tcp = TcpStream::connect(address).await.map_err(|_| Rejection::Connect)?;
        let _ = tcp.set_nodelay(true);
        Ok(tcp)
    };
    match limit {
        Some(limit) => {
            tokio::time::timeout(limit, connecting).await.unwrap_or(Err(Rejection::ConnectTimeout))
        }
        None => connecting.await,
    }
}

/// A stream that notes when it moves, and how much was read of it.
struct Watched<S> {
    inner: S,
    moved: Arc<AtomicBool>,
    read: u64,
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
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openssl::ssl::{Ssl, SslContext, SslMethod, SslStream};
    use std::io::{Read, Write};

    /// Keeps what is written to it.
    #[derive(Debug, Default)]
    struct Sink(Vec<u8>);

    impl Read for Sink {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }
    }

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn hello(name: Option<&str>) -> Vec<u8> {
        let context = SslContext::builder(SslMethod::tls_client()).unwrap().build();
        let mut ssl = Ssl::new(&context).unwrap();
        if let Some(name) = name {
            ssl.set_hostname(name).unwrap();
        }
        let mut stream = SslStream::new(ssl, Sink::default()).unwrap();
        let _ = stream.connect();
        stream.get_ref().0.clone()
    }

    #[test]
    fn the_server_name_is_read_from_a_clients_hello() {
        assert_eq!(server_name(&hello(Some("A.Example.com"))).as_deref(), Some("a.example.com"));
        assert_eq!(server_name(&hello(Some("a.example.com."))).as_deref(), Some("a.example.com"));
        assert_eq!(server_name(&hello(None)), None);
    }

    #[test]
    fn a_hello_in_several_records_is_one() {
        let whole = hello(Some("a.example.com"));
        let mut split = Vec::new();
        for piece in whole[5..].chunks(40) {
            split.extend_from_slice(&whole[..3]);
            split.extend_from_slice(&(piece.len() as u16).to_be_bytes());
            split.extend_from_slice(piece);
        }
        assert_eq!(server_name(&split).as_deref(), Some("a.example.com"));
    }

    #[test]
    fn a_broken_hello_names_nobody() {
        let whole = hello(Some("a.example.com"));
        for end in 0..whole.len() {
            let _ = server_name(&whole[..end]);
            assert_eq!(server_name(&whole[..end]).filter(|name| name != "a.example.com"), None);
        }
        let mut random = 7u64;
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (random >> 33) as usize % bytes.len();
            bytes[at] = (random >> 20) as u8;
            let _ = server_name(&bytes);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_passed_is_counted_also_when_silence_ends_it() {
        let (client, mut far_client) = tokio::io::duplex(64);
        let (server, mut far_server) = tokio::io::duplex(64);
        far_client.write_all(b"more").await.unwrap();
        far_server.write_all(b"answer!").await.unwrap();
        let counts = relay(client, server, b"hello", Some(Duration::from_millis(40))).await;
        assert_eq!(counts, (9, 7));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_and_movement_puts_it_off() {
        let limit = Duration::from_secs(40);
        let (client, mut far_client) = tokio::io::duplex(64);
        let (server, mut far_server) = tokio::io::duplex(64);
        let began = tokio::time::Instant::now();
        let passing = tokio::spawn(relay(client, server, b"", Some(limit)));
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
        let forever = tokio::time::timeout(Duration::from_secs(99_999), relay(client, server, b"", None));
        assert!(forever.await.is_err(), "no limit");
    }
}
