//! Backends: an HTTP/1.1 server that keeps what it received byte by byte, and scripted misbehaviour.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::ssl::{
    AlpnError, Ssl, SslAcceptor, SslAcceptorBuilder, SslMethod, SslRef, SslVerifyMode, select_next_proto,
};
use openssl::x509::X509;
use openssl::x509::store::X509StoreBuilder;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_openssl::SslStream;

use crate::pki::Leaf;

/// A backend. It stops, and its connections break, when it is dropped.
pub struct Origin {
    addr: SocketAddr,
    shared: Arc<Shared>,
    close_idle: watch::Sender<u64>,
    accepting: JoinHandle<()>,
}

struct Shared {
    name: OnceLock<String>,
    addr: SocketAddr,
    accepts: AtomicUsize,
    requests: AtomicUsize,
    open: AtomicUsize,
    heads: Mutex<Vec<Vec<u8>>>,
}

/// One request as it arrived.
#[derive(Clone, Debug)]
pub struct Received {
    /// The head's bytes, the empty line included.
    pub head: Vec<u8>,
    /// The first line.
    pub request_line: String,
    /// The header lines in order, names as they were spelt.
    pub headers: Vec<(String, String)>,
    /// The body, unchunked.
    pub body: Vec<u8>,
    /// The common name of the certificate that the client showed, where it was asked for one.
    pub client: Option<String>,
}

impl Received {
    /// The first value of a header, whatever the case of its name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    /// The request target as it was written.
    pub fn target(&self) -> &str {
        self.request_line.split(' ').nth(1).unwrap_or("")
    }
}

/// What an [`Origin::http`] handler answers; `Content-Length` is added.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// Header lines, written as they are.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Reply {
    /// A reply with a status and a body.
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into() }
    }

    /// Adds a header line.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

type HttpHandler = Arc<dyn Fn(&Received) -> Reply + Send + Sync>;
type RawHandler = Arc<dyn Fn(TcpStream) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

enum Service {
    /// `None` echoes.
    Http(Option<HttpHandler>),
    Tls(Option<HttpHandler>, SslAcceptor),
    Raw(RawHandler),
}

impl Origin {
    /// An echo server on a free port of 127.0.0.1. It answers 200 with JSON:
    /// `{"origin", "request_line", "headers": [[name, value], …], "body_bytes", "body_sha256", "body"}`,
    /// `body` as text and only up to 64 KiB.
    pub async fn echo() -> Self {
        Self::echo_on(([127, 0, 0, 1], 0)).await
    }

    /// [`Origin::echo`] at an address; port 0 is any free one.
    pub async fn echo_on(addr: impl Into<SocketAddr>) -> Self {
        Self::start(addr.into(), Service::Http(None)).await
    }

    /// [`Origin::echo`] over TLS, with a PEM certificate (chain) and key. It negotiates `http/1.1` where ALPN is
    /// offered.
    pub async fn echo_tls(cert_pem: &str, key_pem: &str) -> Self {
        Self::echo_tls_on(([127, 0, 0, 1], 0), cert_pem, key_pem).await
    }

    /// [`Origin::echo_tls`] at an address.
    pub async fn echo_tls_on(addr: impl Into<SocketAddr>, cert_pem: &str, key_pem: &str) -> Self {
        Self::start(addr.into(), Service::Tls(None, acceptor(cert_pem, key_pem).build())).await
    }

    /// An HTTP/1.1 server that answers what the closure says.
    pub async fn http(handler: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Self {
        Self::http_on(([127, 0, 0, 1], 0), handler).await
    }

    /// [`Origin::http`] at an address.
    pub async fn http_on(
        addr: impl Into<SocketAddr>,
        handler: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::start(addr.into(), Service::Http(Some(Arc::new(handler)))).await
    }

    /// [`Origin::http`] over TLS.
    pub async fn https(
        cert_pem: &str,
        key_pem: &str,
        handler: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let service = Service::Tls(Some(Arc::new(handler)), acceptor(cert_pem, key_pem).build());
        Self::start(([127, 0, 0, 1], 0).into(), service).await
    }

    /// [`Origin::https`] that asks clients for certificates of the authorities of this PEM, and, where they are
    /// `demanded`, speaks to nobody without.
    pub async fn https_asking(
        leaf: &Leaf,
        authorities: &str,
        demanded: bool,
        handler: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let mut acceptor = acceptor(&leaf.cert_pem, &leaf.key_pem);
        ask(&mut acceptor, authorities, demanded);
        let service = Service::Tls(Some(Arc::new(handler)), acceptor.build());
        Self::start(([127, 0, 0, 1], 0).into(), service).await
    }

    /// Gives each accepted connection to the closure; the connection closes when the future drops it.
    /// [`read_head`] helps such a script to read the request.
    pub async fn raw<F, Fut>(handler: F) -> Self
    where
        F: Fn(TcpStream) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        Self::raw_on(([127, 0, 0, 1], 0), handler).await
    }

    /// [`Origin::raw`] at an address.
    pub async fn raw_on<F, Fut>(addr: impl Into<SocketAddr>, handler: F) -> Self
    where
        F: Fn(TcpStream) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let handler: RawHandler = Arc::new(move |stream| Box::pin(handler(stream)));
        Self::start(addr.into(), Service::Raw(handler)).await
    }

    async fn start(addr: SocketAddr, service: Service) -> Self {
        let listener =
            TcpListener::bind(addr).await.unwrap_or_else(|e| panic!("origin cannot listen on {addr}: {e}"));
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            name: OnceLock::new(),
            addr,
            accepts: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            heads: Mutex::new(Vec::new()),
        });
        let (close_idle, closing) = watch::channel(0);
        let accepting = tokio::spawn(accept(listener, Arc::new(service), shared.clone(), closing));
        Self { addr, shared, close_idle, accepting }
    }

    /// Gives the name that echoes carry as `origin`, until now the address. Once only.
    pub fn named(self, name: &str) -> Self {
        assert!(self.shared.name.set(name.to_owned()).is_ok(), "the origin has a name");
        self
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// Connections accepted so far.
    pub fn accepts(&self) -> usize {
        self.shared.accepts.load(Ordering::SeqCst)
    }

    /// Connections open now.
    pub fn open_connections(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// Requests received in full so far (not counted for [`Origin::raw`]).
    pub fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// The last request head, byte by byte as received; panics if there was none.
    pub fn last_head(&self) -> String {
        self.heads().pop().unwrap_or_else(|| panic!("the origin at {} has received no request", self.addr))
    }

    /// All request heads in order of arrival; octets that are not UTF-8 replaced.
    pub fn heads(&self) -> Vec<String> {
        self.raw_heads().iter().map(|head| String::from_utf8_lossy(head).into_owned()).collect()
    }

    /// All request heads as bytes.
    pub fn raw_heads(&self) -> Vec<Vec<u8>> {
        self.shared.heads.lock().unwrap().clone()
    }

    /// Closes the connections that wait for a next request; the others close after theirs.
    pub fn close_idle(&self) {
        self.close_idle.send_modify(|n| *n += 1);
    }

    /// Stops now; when this returns, new connections are refused and the old ones are broken.
    pub async fn stop(mut self) {
        self.accepting.abort();
        let _ = (&mut self.accepting).await;
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

pub(crate) fn acceptor(cert_pem: &str, key_pem: &str) -> SslAcceptorBuilder {
    let mut builder = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls()).unwrap();
    let mut chain = X509::stack_from_pem(cert_pem.as_bytes()).unwrap().into_iter();
    builder.set_certificate(&chain.next().expect("a certificate in the PEM")).unwrap();
    for certificate in chain {
        builder.add_extra_chain_cert(certificate).unwrap();
    }
    builder.set_private_key(&PKey::private_key_from_pem(key_pem.as_bytes()).unwrap()).unwrap();
    builder.set_alpn_select_callback(|_, offered| {
        select_next_proto(b"\x08http/1.1", offered).ok_or(AlpnError::NOACK)
    });
    builder
}

/// Has a server ask its clients for certificates of these authorities.
pub(crate) fn ask(acceptor: &mut SslAcceptorBuilder, authorities: &str, demanded: bool) {
    let mut store = X509StoreBuilder::new().unwrap();
    for authority in X509::stack_from_pem(authorities.as_bytes()).unwrap() {
        store.add_cert(authority).unwrap();
    }
    acceptor.set_verify_cert_store(store.build()).unwrap();
    let mut mode = SslVerifyMode::PEER;
    if demanded {
        mode |= SslVerifyMode::FAIL_IF_NO_PEER_CERT;
    }
    acceptor.set_verify(mode);
}

/// The common name of the client's certificate.
pub(crate) fn client_of(ssl: &SslRef) -> Option<String> {
    let certificate = ssl.peer_certificate()?;
    let name = certificate.subject_name().entries_by_nid(Nid::COMMONNAME).next()?;
    Some(String::from_utf8_lossy(name.data().as_slice()).into_owned())
}

async fn accept(
    listener: TcpListener,
    service: Arc<Service>,
    shared: Arc<Shared>,
    closing: watch::Receiver<u64>,
) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let _ = stream.set_nodelay(true);
        shared.accepts.fetch_add(1, Ordering::SeqCst);
        let (service, shared, mut closing) = (service.clone(), shared.clone(), closing.clone());
        // What was asked of earlier connections does not concern this one.
        closing.mark_unchanged();
        let open = Open::new(shared.clone());
        connections.spawn(async move {
            let _open = open;
            match &*service {
                Service::Http(handler) => drop(serve(stream, None, handler.as_ref(), &shared, closing).await),
                Service::Tls(handler, acceptor) => {
                    let mut stream = SslStream::new(Ssl::new(acceptor.context()).unwrap(), stream).unwrap();
                    if Pin::new(&mut stream).accept().await.is_ok() {
                        let client = client_of(stream.ssl());
                        let _ = serve(stream, client, handler.as_ref(), &shared, closing).await;
                    }
                }
                Service::Raw(handler) => handler(stream).await,
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Counts a connection as open while it lives.
struct Open(Arc<Shared>);

impl Open {
    fn new(shared: Arc<Shared>) -> Self {
        shared.open.fetch_add(1, Ordering::SeqCst);
        Self(shared)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn serve(
    mut stream: impl Stream,
    client: Option<String>,
    handler: Option<&HttpHandler>,
    shared: &Shared,
    mut closing: watch::Receiver<u64>,
) -> io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        while buffer.is_empty() {
            tokio::select! {
                n = stream.read_buf(&mut buffer) => if n? == 0 { return Ok(()) },
                _ = closing.changed() => return stream.shutdown().await,
            }
        }
        let Some(head) = head_from(&mut stream, &mut buffer).await? else { return Ok(()) };
        shared.heads.lock().unwrap().push(head.clone());
        let mut received = parse(head);
        received.client.clone_from(&client);
        if received.header("expect").is_some_and(|v| v.eq_ignore_ascii_case("100-continue")) {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        received.body = read_body(&mut stream, &mut buffer, &received).await?;
        shared.requests.fetch_add(1, Ordering::SeqCst);
        let reply = match handler {
            Some(handler) => handler(&received),
            None => echo(&received, shared),
        };
        let last = received.request_line.ends_with("HTTP/1.0")
            || received.header("connection").is_some_and(|v| v.eq_ignore_ascii_case("close"))
            || closing.has_changed().unwrap_or(true);
        stream.write_all(&encode(&reply, &received, last)).await?;
        if last {
            return stream.shutdown().await;
        }
    }
}

/// Reads one request (or response) head, the empty line included, and not a byte of what follows.
pub async fn read_head(stream: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

async fn head_from(stream: &mut impl Stream, buffer: &mut Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    loop {
        if let Some(end) = find(buffer, b"\r\n\r\n") {
            return Ok(Some(buffer.drain(..end + 4).collect()));
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

fn parse(head: Vec<u8>) -> Received {
    let text = String::from_utf8_lossy(&head).into_owned();
    let mut lines = text.trim_end_matches("\r\n").split("\r\n");
    let request_line = lines.next().unwrap_or("").to_owned();
    let headers = lines
        .map(|line| {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            (name.to_owned(), value.trim().to_owned())
        })
        .collect();
    Received { head, request_line, headers, body: Vec::new(), client: None }
}

async fn read_body(
    stream: &mut impl Stream,
    buffer: &mut Vec<u8>,
    request: &Received,
) -> io::Result<Vec<u8>> {
    if request.header("transfer-encoding").is_some_and(|v| v.to_ascii_lowercase().contains("chunked")) {
        let mut body = Vec::new();
        loop {
            let line = take_line(stream, buffer).await?;
            let size = line.split(';').next().unwrap_or("").trim();
            let size =
                usize::from_str_radix(size, 16).map_err(|e| invalid(format!("chunk size {line:?}: {e}")))?;
            if size == 0 {
                while !take_line(stream, buffer).await?.is_empty() {}
                return Ok(body);
            }
            body.extend(take(stream, buffer, size).await?);
            let end = take_line(stream, buffer).await?;
            if !end.is_empty() {
                return Err(invalid(format!("{end:?} after a chunk")));
            }
        }
    }
    match request.header("content-length") {
        Some(length) => {
            let length = length.parse().map_err(|e| invalid(format!("Content-Length {length:?}: {e}")))?;
            take(stream, buffer, length).await
        }
        None => Ok(Vec::new()),
    }
}

async fn take_line(stream: &mut impl Stream, buffer: &mut Vec<u8>) -> io::Result<String> {
    loop {
        if let Some(end) = find(buffer, b"\r\n") {
            let line: Vec<u8> = buffer.drain(..end + 2).collect();
            return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
        }
        fill(stream, buffer).await?;
    }
}

async fn take(stream: &mut impl Stream, buffer: &mut Vec<u8>, length: usize) -> io::Result<Vec<u8>> {
    while buffer.len() < length {
        fill(stream, buffer).await?;
    }
    let rest = buffer.split_off(length);
    Ok(std::mem::replace(buffer, rest))
}

async fn fill(stream: &mut impl Stream, buffer: &mut Vec<u8>) -> io::Result<()> {
    buffer.reserve(16 * 1024);
    match stream.read_buf(buffer).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

fn echo(request: &Received, shared: &Shared) -> Reply {
    let digest = openssl::sha::sha256(&request.body);
    let mut answer = json!({
        "origin": shared.name.get().cloned().unwrap_or_else(|| shared.addr.to_string()),
        "request_line": request.request_line,
        "headers": request.headers,
        "body_bytes": request.body.len(),
        "body_sha256": digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
    });
    if request.body.len() <= 64 * 1024 {
        answer["body"] = String::from_utf8_lossy(&request.body).into();
    }
    Reply::new(200, answer.to_string()).header("Content-Type", "application/json")
}

fn encode(reply: &Reply, request: &Received, last: bool) -> Vec<u8> {
    let mut out = format!("HTTP/1.1 {} \r\n", reply.status);
    for (name, value) in &reply.headers {
        out += &format!("{name}: {value}\r\n");
    }
    let bodiless = matches!(reply.status, 101 | 204 | 304);
    if !bodiless {
        out += &format!("Content-Length: {}\r\n", reply.body.len());
    }
    out += if last { "Connection: close\r\n\r\n" } else { "\r\n" };
    let mut out = out.into_bytes();
    if !bodiless && !request.request_line.starts_with("HEAD ") {
        out.extend(&reply.body);
    }
    out
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
