//! One HTTP/2 connection.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{Response, Served, Tls, TlsStream, bounded, connect_tcp};

/// A client connection that speaks HTTP/2. It closes when dropped.
pub struct H2Conn {
    sender: SendRequest<Bytes>,
    scheme: &'static str,
    served: Option<Served>,
    end: watch::Receiver<Option<Result<(), String>>>,
    driver: JoinHandle<()>,
}

impl H2Conn {
    /// Plaintext with prior knowledge.
    pub async fn connect(addr: SocketAddr) -> anyhow::Result<Self> {
        Self::over(connect_tcp(addr).await?, "http", None).await
    }

    /// Over TLS with any certificate; an error where the server does not choose `h2`.
    pub async fn connect_tls(addr: SocketAddr, sni: &str) -> anyhow::Result<Self> {
        Self::connect_with(addr, &Tls::new().sni(sni)).await
    }

    /// Over TLS; `h2` is offered whatever `tls` offers.
    pub async fn connect_with(addr: SocketAddr, tls: &Tls) -> anyhow::Result<Self> {
        let stream = tls.clone().alpn(&["h2"]).connect(addr).await?;
        Self::from_tls(stream).await.with_context(|| format!("HTTP/2 with {addr}"))
    }

    /// Over a stream that the test made; see [`Tls::handshake`].
    pub async fn from_tls(stream: TlsStream) -> anyhow::Result<Self> {
        let served = Served::of(&stream)?;
        if served.alpn.as_deref() != Some("h2") {
            bail!("the server chose {:?} instead of h2", served.alpn);
        }
        Self::over(stream, "https", Some(served)).await
    }

    async fn over<S>(stream: S, scheme: &'static str, served: Option<Served>) -> anyhow::Result<Self>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let handshake = async { Ok(h2::client::Builder::new().handshake(stream).await?) };
        let (sender, connection) = bounded("HTTP/2 handshake", handshake).await?;
        let (ended, end) = watch::channel(None);
        let driver = tokio::spawn(async move {
            let result = connection.await.map_err(|e| e.to_string());
            ended.send_replace(Some(result));
        });
        Ok(Self { sender, scheme, served, end, driver })
    }

    /// What the server chose in the TLS handshake; `None` on a plaintext connection.
    pub fn served(&self) -> Option<&Served> {
        self.served.as_ref()
    }

    /// The sender under this connection, for requests of an odd shape.
    pub fn sender(&self) -> SendRequest<Bytes> {
        self.sender.clone()
    }

    /// GET without further headers.
    pub async fn get(&self, authority: &str, path: &str) -> anyhow::Result<Response> {
        self.request("GET", authority, path, &[], b"").await
    }

    /// Sends a request and reads its whole response. Many may run at once on one connection.
    pub async fn request(
        &self,
        method: &str,
        authority: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> anyhow::Result<Response> {
        let (response, stream) = self.send_head(method, authority, path, headers, body.is_empty()).await?;
        let body = Bytes::copy_from_slice(body);
        let sending = async {
            if !body.is_empty() {
                let _ = send_body(stream, body).await;
            }
            // A server may answer without reading on: only the response ends this exchange.
            std::future::pending::<anyhow::Result<Response>>().await
        };
        bounded("HTTP/2 response", async {
            tokio::select! {
                response = read_response(response) => response,
                never = sending => never,
            }
        })
        .await
    }

    /// Sends a request's head alone and returns the two halves of its stream.
    pub async fn send_head(
        &self,
        method: &str,
        authority: &str,
        path: &str,
        headers: &[(&str, &str)],
        end_of_stream: bool,
    ) -> anyhow::Result<(ResponseFuture, SendStream<Bytes>)> {
        let mut builder =
            Request::builder().method(method).uri(format!("{}://{authority}{path}", self.scheme));
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        let request = builder.body(()).context("request")?;
        let sender = self.sender.clone();
        let mut sender = bounded("HTTP/2 connection ready", async { Ok(sender.ready().await?) }).await?;
        Ok(sender.send_request(request, end_of_stream)?)
    }

    /// Whether the server ends the connection within a time. A GOAWAY ends it once its last stream is done.
    pub async fn closed_within(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.end.wait_for(Option::is_some)).await.is_ok()
    }

    /// How the connection ended: `None` while it lives, else what h2 said of it.
    pub fn ended(&self) -> Option<Result<(), String>> {
        self.end.borrow().clone()
    }
}

impl Drop for H2Conn {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Sends a body as flow control allows, and ends the stream.
async fn send_body(mut stream: SendStream<Bytes>, mut body: Bytes) -> anyhow::Result<()> {
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let capacity = std::future::poll_fn(|context| stream.poll_capacity(context)).await;
        let allowed = capacity.context("stream closed")??.min(body.len());
        stream.send_data(body.split_to(allowed), body.is_empty())?;
    }
    Ok(())
}

/// Awaits a response and reads its body and trailers.
async fn read_response(response: ResponseFuture) -> anyhow::Result<Response> {
    let (head, mut body) = response.await?.into_parts();
    let mut out =
        Response { status: head.status.as_u16(), headers: fields(&head.headers), ..Response::default() };
    read_body(&mut body, &mut out)
        .await
        .with_context(|| format!("body of a {} with {:?}", out.status, out.headers))?;
    Ok(out)
}

async fn read_body(body: &mut RecvStream, out: &mut Response) -> anyhow::Result<()> {
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        out.body.extend(data);
    }
    out.trailers = body.trailers().await?.as_ref().map(fields).unwrap_or_default();
    Ok(())
}

fn fields(map: &HeaderMap) -> Vec<(String, String)> {
    map.iter().map(|(n, v)| (n.to_string(), String::from_utf8_lossy(v.as_bytes()).into_owned())).collect()
}
