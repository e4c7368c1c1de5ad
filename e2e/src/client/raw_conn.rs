//! One connection on which a test writes bytes and reads HTTP/1 responses.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Response, Served, Tls, TlsStream, bounded, connect_tcp};

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A client connection, plaintext or TLS. Reading is bounded by [`DEADLINE`](crate::DEADLINE).
pub struct RawConn {
    stream: Box<dyn Stream>,
    local: SocketAddr,
    served: Option<Served>,
    buffer: Vec<u8>,
}

impl RawConn {
    /// A plaintext connection.
    pub async fn connect(addr: SocketAddr) -> anyhow::Result<Self> {
        Self::from_tcp(connect_tcp(addr).await?)
    }

    /// A plaintext connection from a TCP stream that the test made (from a certain address, with certain options).
    pub fn from_tcp(stream: TcpStream) -> anyhow::Result<Self> {
        let local = stream.local_addr()?;
        Ok(Self { stream: Box::new(stream), local, served: None, buffer: Vec::new() })
    }

    /// A TLS connection over a TCP stream that the test made.
    pub fn from_stream(stream: TlsStream) -> Self {
        let local = stream.get_ref().local_addr().expect("a connected socket has an address");
        let served = Served::of(&stream).ok();
        Self { stream: Box::new(stream), local, served, buffer: Vec::new() }
    }

    /// A TLS connection that accepts any certificate.
    pub async fn connect_tls(addr: SocketAddr, sni: Option<&str>, alpn: &[&str]) -> anyhow::Result<Self> {
        let mut tls = Tls::new().alpn(alpn);
        if let Some(name) = sni {
            tls = tls.sni(name);
        }
        Self::connect_with(addr, &tls).await
    }

    /// A TLS connection.
    pub async fn connect_with(addr: SocketAddr, tls: &Tls) -> anyhow::Result<Self> {
        Self::from_tls(tls.connect(addr).await?)
    }

    /// A TLS connection over a stream that the test made; see [`Tls::handshake`].
    pub fn from_tls(stream: TlsStream) -> anyhow::Result<Self> {
        let local = stream.get_ref().local_addr()?;
        let served = Some(Served::of(&stream)?);
        Ok(Self { stream: Box::new(stream), local, served, buffer: Vec::new() })
    }

    /// This side's address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// What the server chose in the handshake; `None` on a plaintext connection.
    pub fn served(&self) -> Option<&Served> {
        self.served.as_ref()
    }

    /// Sends bytes.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> anyhow::Result<()> {
        bounded("sending", async {
            self.stream.write_all(bytes.as_ref()).await?;
            Ok(self.stream.flush().await?)
        })
        .await
    }

    /// Ends this side's half of the connection.
    pub async fn finish(&mut self) -> anyhow::Result<()> {
        bounded("closing", async { Ok(self.stream.shutdown().await?) }).await
    }

    /// Sends a GET and reads the response; the connection stays open.
    pub async fn get(&mut self, host: &str, path: &str) -> anyhow::Result<Response> {
        self.request("GET", host, path, &[], b"").await
    }

    /// Sends a request, with `Content-Length` where there is a body, and reads the response.
    pub async fn request(
        &mut self,
        method: &str,
        host: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> anyhow::Result<Response> {
        let mut message = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n");
        for (name, value) in headers {
            message += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            message += &format!("Content-Length: {}\r\n", body.len());
        }
        let mut message = message.into_bytes();
        message.extend(b"\r\n");
        message.extend(body);
        // The server may answer and close before it has read a large body: the answer is what counts.
        let sent = self.send(&message).await;
        let answer =
            if method == "HEAD" { self.read_response_to_head().await } else { self.read_response().await };
        match (answer, sent) {
            (Err(answer), Err(sent)) => Err(answer.context(format!("sending failed too: {sent:#}"))),
            (answer, _) => answer,
        }
    }

    /// Reads a response with its body; interim responses are passed over and noted.
    pub async fn read_response(&mut self) -> anyhow::Result<Response> {
        self.read(false).await
    }

    /// Reads the response to a HEAD request, which has no body whatever its headers say.
    pub async fn read_response_to_head(&mut self) -> anyhow::Result<Response> {
        self.read(true).await
    }

    /// Reads a response's head, an interim one too, and leaves the body to [`RawConn::read_some`].
    pub async fn read_head(&mut self) -> anyhow::Result<Response> {
        let end = loop {
            match self.buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                Some(end) => break end,
                None => self.fill().await.context("reading a response head")?,
            }
        };
        let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
        parse_head(&head)
    }

    /// Reads whatever comes next; empty at the end of the stream.
    pub async fn read_some(&mut self) -> anyhow::Result<Vec<u8>> {
        if self.buffer.is_empty() {
            let Self { stream, buffer, .. } = self;
            buffer.reserve(16 * 1024);
            bounded("reading", async { Ok(stream.read_buf(buffer).await?) }).await?;
        }
        Ok(std::mem::take(&mut self.buffer))
    }

    /// Reads exactly this many bytes.
    pub async fn read_exact(&mut self, length: usize) -> anyhow::Result<Vec<u8>> {
        while self.buffer.len() < length {
            let have = self.buffer.len();
            self.fill().await.with_context(|| format!("have {have} of {length} bytes"))?;
        }
        let rest = self.buffer.split_off(length);
        Ok(std::mem::replace(&mut self.buffer, rest))
    }

    /// Reads until the peer closes.
    pub async fn read_to_end(&mut self) -> anyhow::Result<Vec<u8>> {
        let Self { stream, buffer, .. } = self;
        bounded("reading to the end", async { Ok(stream.read_to_end(buffer).await?) }).await?;
        Ok(std::mem::take(buffer))
    }

    /// Whether the peer has closed (or broken) the connection. Bytes that came before stay readable.
    pub async fn is_closed(&mut self) -> bool {
        self.closed_within(Duration::from_millis(20)).await
    }

    /// Whether the peer closes (or breaks) the connection within a time.
    pub async fn closed_within(&mut self, time: Duration) -> bool {
        let Self { stream, buffer, .. } = self;
        let closed = async {
            loop {
                buffer.reserve(1024);
                match stream.read_buf(buffer).await {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                }
            }
        };
        tokio::time::timeout(time, closed).await.is_ok()
    }

    async fn read(&mut self, to_head: bool) -> anyhow::Result<Response> {
        let mut interim = Vec::new();
        let mut response = loop {
            let response = self.read_head().await?;
            if response.status >= 200 || response.status == 101 {
                break response;
            }
            interim.push(response.status);
        };
        response.interim = interim;
        if to_head || matches!(response.status, 101 | 204 | 304) {
            return Ok(response);
        }
        let body = self.read_body(&mut response).await;
        body.with_context(|| format!("body of {:?} with {:?}", response.status_line, response.headers))?;
        Ok(response)
    }

    async fn read_body(&mut self, response: &mut Response) -> anyhow::Result<()> {
        let chunked = response.header("transfer-encoding").is_some_and(|v| v.eq_ignore_ascii_case("chunked"));
        if chunked {
            loop {
                let line = self.read_line().await?;
                let size = line.split(';').next().unwrap_or("").trim();
                let size = usize::from_str_radix(size, 16).with_context(|| format!("chunk size {line:?}"))?;
                if size == 0 {
                    break;
                }
                response.body.extend(self.read_exact(size).await?);
                let end = self.read_line().await?;
                if !end.is_empty() {
                    bail!("{end:?} after a chunk");
                }
            }
            loop {
                let line = self.read_line().await?;
                if line.is_empty() {
                    return Ok(());
                }
                response.trailers.push(parse_field(&line)?);
            }
        }
        response.body = match response.header("content-length") {
            Some(length) => {
                let length = length.parse().with_context(|| format!("Content-Length {length:?}"))?;
                self.read_exact(length).await?
            }
            None => self.read_to_end().await?,
        };
        Ok(())
    }

    async fn read_line(&mut self) -> anyhow::Result<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|w| w == b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> anyhow::Result<()> {
        let Self { stream, buffer, .. } = self;
        buffer.reserve(16 * 1024);
        match bounded("reading", async { Ok(stream.read_buf(buffer).await?) }).await? {
            0 => bail!("the peer closed; unread: {:?}", String::from_utf8_lossy(&self.buffer)),
            _ => Ok(()),
        }
    }
}

fn parse_head(head: &[u8]) -> anyhow::Result<Response> {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.trim_end_matches("\r\n").split("\r\n");
    let status_line = lines.next().unwrap_or("").to_owned();
    let status = status_line
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1)?.parse().ok())
        .with_context(|| format!("no status line: {status_line:?}"))?;
    let headers = lines.map(parse_field).collect::<anyhow::Result<_>>()?;
    Ok(Response { status, status_line, headers, ..Response::default() })
}

fn parse_field(line: &str) -> anyhow::Result<(String, String)> {
    let (name, value) = line.split_once(':').with_context(|| format!("no field line: {line:?}"))?;
    Ok((name.to_owned(), value.trim().to_owned()))
}
