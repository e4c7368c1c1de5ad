//! Clients that hide nothing: bytes in, bytes out, over TCP, TLS and HTTP/2.
//!
//! [`get`] and [`tls_get`] are for the common case and panic where no answer comes; their `try_` twins, [`RawConn`]
//! and [`H2Conn`] return errors, for tests of exactly that.

mod h2_conn;
mod raw_conn;
mod tls;

pub use h2_conn::H2Conn;
pub use raw_conn::RawConn;
pub use tls::{Served, Tls, TlsStream, served_certificate};

use std::net::SocketAddr;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::DEADLINE;

/// An HTTP response of any version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The first line as it came; empty for HTTP/2.
    pub status_line: String,
    /// The headers in order, names as they were spelt.
    pub headers: Vec<(String, String)>,
    /// The body, unchunked but not decompressed.
    pub body: Vec<u8>,
    /// Fields after the body.
    pub trailers: Vec<(String, String)>,
    /// Status codes of interim responses (1xx) before this one.
    pub interim: Vec<u16>,
}

impl Response {
    /// The first value of a header, whatever the case of its name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    /// All values of a header in order.
    pub fn header_all(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str()).collect()
    }

    /// The first value of a trailer.
    pub fn trailer(&self, name: &str) -> Option<&str> {
        self.trailers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; panics, showing the response, where it is none.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        match serde_json::from_slice(&self.body) {
            Ok(value) => value,
            Err(e) => panic!("the body is no JSON: {e}; status {}, body {:?}", self.status, self.text()),
        }
    }

    /// From an echo [`Origin`](crate::origin::Origin): the values of one header as the backend saw it.
    #[track_caller]
    pub fn echoed(&self, name: &str) -> Vec<String> {
        let echo = self.json();
        let headers = echo["headers"].as_array().unwrap_or_else(|| panic!("not an echo: {echo}"));
        headers
            .iter()
            .filter(|pair| pair[0].as_str().is_some_and(|n| n.eq_ignore_ascii_case(name)))
            .map(|pair| pair[1].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    /// From an echo origin: its name.
    #[track_caller]
    pub fn origin(&self) -> String {
        let echo = self.json();
        echo["origin"].as_str().unwrap_or_else(|| panic!("not an echo: {echo}")).to_owned()
    }
}

/// Sends bytes over a new connection and reads until the peer closes. Panics if it does not within the deadline.
pub async fn raw(addr: SocketAddr, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let exchange = async {
        let mut stream =
            TcpStream::connect(addr).await.unwrap_or_else(|e| panic!("cannot connect to {addr}: {e}"));
        // The peer may refuse before it has read everything: what it said still counts.
        let _ = stream.write_all(bytes.as_ref()).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        answer
    };
    match tokio::time::timeout(DEADLINE, exchange).await {
        Ok(answer) => answer,
        Err(_) => panic!("{addr} did not close the connection within {DEADLINE:?}"),
    }
}

/// GET over plaintext HTTP/1.1 on a new connection.
pub async fn get(addr: SocketAddr, host: &str, path: &str) -> Response {
    try_get(addr, host, path).await.unwrap_or_else(|e| panic!("GET http://{host}{path} at {addr}: {e:#}"))
}

/// [`get`] that returns its failure.
pub async fn try_get(addr: SocketAddr, host: &str, path: &str) -> anyhow::Result<Response> {
    RawConn::connect(addr).await?.get(host, path).await
}

/// GET over TLS on a new connection. With `ca_pem` the server's certificate must lead to it and name `sni`; without,
/// any certificate will do.
pub async fn tls_get(addr: SocketAddr, sni: &str, host: &str, path: &str, ca_pem: Option<&str>) -> Response {
    try_tls_get(addr, sni, host, path, ca_pem)
        .await
        .unwrap_or_else(|e| panic!("GET https://{host}{path} at {addr} (SNI {sni}): {e:#}"))
}

/// [`tls_get`] that returns its failure.
pub async fn try_tls_get(
    addr: SocketAddr,
    sni: &str,
    host: &str,
    path: &str,
    ca_pem: Option<&str>,
) -> anyhow::Result<Response> {
    let mut tls = Tls::new().sni(sni);
    if let Some(pem) = ca_pem {
        tls = tls.ca(pem);
    }
    RawConn::connect_with(addr, &tls).await?.get(host, path).await
}

async fn connect_tcp(addr: SocketAddr) -> anyhow::Result<TcpStream> {
    let stream = bounded("connecting", async { Ok(TcpStream::connect(addr).await?) })
        .await
        .with_context(|| format!("cannot connect to {addr}"))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn bounded<T>(what: &str, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    match tokio::time::timeout(DEADLINE, work).await {
        Ok(result) => result,
        Err(_) => anyhow::bail!("{what}: nothing within {DEADLINE:?}"),
    }
}
