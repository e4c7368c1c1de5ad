//! Backends that speak HTTP/2.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response};
use openssl::ssl::{AlpnError, Ssl, SslAcceptor, SslRef, select_next_proto};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_openssl::SslStream;

use crate::origin::{acceptor, ask, client_of};
use crate::pki::Leaf;

type Handler = Arc<
    dyn Fn(Request<RecvStream>, SendResponse<Bytes>) -> Pin<Box<dyn Future<Output = ()> + Send>>
        + Send
        + Sync,
>;

/// An HTTP/2 server on a free port of 127.0.0.1. It stops, and its connections break, when it is dropped.
pub struct H2Origin {
    addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    accepts: AtomicUsize,
    open: AtomicUsize,
    heads: Mutex<Vec<Request<()>>>,
}

impl H2Origin {
    /// In plain text, with prior knowledge. Each request goes to the closure, in a task of its own.
    pub async fn start<F, Fut>(handler: F) -> Self
    where
        F: Fn(Request<RecvStream>, SendResponse<Bytes>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        Self::listen(None, Arc::new(move |request, respond| Box::pin(handler(request, respond)))).await
    }

    /// Over TLS; `h2` is the one protocol that it negotiates.
    pub async fn start_tls<F, Fut>(cert_pem: &str, key_pem: &str, handler: F) -> Self
    where
        F: Fn(Request<RecvStream>, SendResponse<Bytes>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let mut builder = acceptor(cert_pem, key_pem);
        builder.set_alpn_select_callback(only_h2);
        let handler: Handler = Arc::new(move |request, respond| Box::pin(handler(request, respond)));
        Self::listen(Some(builder.build()), handler).await
    }

    /// [`H2Origin::start_tls`] that speaks to nobody without a certificate of the authorities of this PEM. Requests have
    /// its [`ClientName`] among their extensions.
    pub async fn start_tls_demanding<F, Fut>(leaf: &Leaf, authorities: &str, handler: F) -> Self
    where
        F: Fn(Request<RecvStream>, SendResponse<Bytes>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let mut builder = acceptor(&leaf.cert_pem, &leaf.key_pem);
        ask(&mut builder, authorities, true);
        builder.set_alpn_select_callback(only_h2);
        let handler: Handler = Arc::new(move |request, respond| Box::pin(handler(request, respond)));
        Self::listen(Some(builder.build()), handler).await
    }

    async fn listen(tls: Option<SslAcceptor>, handler: Handler) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let accepting = tokio::spawn(accept(listener, tls, handler, shared.clone()));
        Self { addr, shared, accepting }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Connections accepted so far.
    pub fn accepts(&self) -> usize {
        self.shared.accepts.load(Ordering::SeqCst)
    }

    /// Connections open now.
    pub fn open_connections(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// Requests so far.
    pub fn requests(&self) -> usize {
        self.shared.heads.lock().unwrap().len()
    }

    /// The header fields of the last request; panics if there was none.
    pub fn last_headers(&self) -> HeaderMap {
        let heads = self.shared.heads.lock().unwrap();
        heads.last().expect("the origin has received no request").headers().clone()
    }
}

/// The common name of the certificate that a client showed.
#[derive(Clone, Debug)]
pub struct ClientName(pub String);

fn only_h2<'a>(_: &mut SslRef, offered: &'a [u8]) -> Result<&'a [u8], AlpnError> {
    select_next_proto(b"\x02h2", offered).ok_or(AlpnError::ALERT_FATAL)
}

impl Drop for H2Origin {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, tls: Option<SslAcceptor>, handler: Handler, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let _ = stream.set_nodelay(true);
        shared.accepts.fetch_add(1, Ordering::SeqCst);
        shared.open.fetch_add(1, Ordering::SeqCst);
        let (tls, handler, shared) = (tls.clone(), handler.clone(), shared.clone());
        connections.spawn(async move {
            match tls {
                None => serve(stream, None, handler, &shared).await,
                Some(tls) => {
                    let mut stream = SslStream::new(Ssl::new(tls.context()).unwrap(), stream).unwrap();
                    if Pin::new(&mut stream).accept().await.is_ok() {
                        let client = client_of(stream.ssl()).map(ClientName);
                        serve(stream, client, handler, &shared).await;
                    }
                }
            }
            shared.open.fetch_sub(1, Ordering::SeqCst);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    client: Option<ClientName>,
    handler: Handler,
    shared: &Shared,
) {
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    let mut requests = JoinSet::new();
    while let Some(Ok((mut request, respond))) = connection.accept().await {
        if let Some(client) = &client {
            request.extensions_mut().insert(client.clone());
        }
        let mut head = Request::new(());
        (*head.method_mut(), *head.uri_mut()) = (request.method().clone(), request.uri().clone());
        *head.headers_mut() = request.headers().clone();
        shared.heads.lock().unwrap().push(head);
        requests.spawn(handler(request, respond));
        while requests.try_join_next().is_some() {}
    }
}

/// Reads a body to its end, or to where the client gives up; gives back what came and whether it is whole.
pub async fn read_all(body: &mut RecvStream) -> (Vec<u8>, bool) {
    let mut all = Vec::new();
    while let Some(data) = body.data().await {
        let Ok(data) = data else { return (all, false) };
        let _ = body.flow_control().release_capacity(data.len());
        all.extend_from_slice(&data);
    }
    (all, true)
}

/// Answers with a status, fields and a body.
pub fn answer(mut respond: SendResponse<Bytes>, status: u16, fields: &[(&str, &str)], body: &str) {
    let mut head = Response::builder().status(status);
    for (name, value) in fields {
        head = head.header(*name, *value);
    }
    let head = head.body(()).unwrap();
    if let Ok(mut stream) = respond.send_response(head, body.is_empty())
        && !body.is_empty()
    {
        let _ = stream.send_data(Bytes::copy_from_slice(body.as_bytes()), true);
    }
}
