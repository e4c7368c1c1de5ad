//! The backend connection of a WebSocket handshake.
//!
//! Pingora ends a tunnel right after 101 when it reads the 101 in the same poll in which the end
//! of the (empty) request body is still waiting to be taken in (cloudflare/pingora#946): a fast
//! backend loses about one handshake in two hundred. Here every read that follows a write yields
//! once, so the end of the body is always taken in first.

use async_trait::async_trait;
use pingora_core::connectors::l4::Connect;
use pingora_core::protocols::l4::socket::SocketAddr;
use pingora_core::protocols::l4::stream::Stream;
use pingora_core::protocols::l4::virt::{VirtualSockOpt, VirtualSocket, VirtualSocketStream};
use pingora_core::{Error, ErrorType, OrErr, Result};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Connects a tunnel's backend.
#[derive(Debug)]
pub struct TunnelConnector {
    /// Bound for the TCP handshake; Pingora applies none to connectors of others.
    pub timeout: Option<Duration>,
}

#[async_trait]
impl Connect for TunnelConnector {
    async fn connect(&self, address: &SocketAddr) -> Result<Stream> {
        let SocketAddr::Inet(address) = address else {
            return Error::e_explain(ErrorType::ConnectError, "not an internet address");
        };
        let connecting = TcpStream::connect(address);
        let connected = match self.timeout {
            Some(limit) => {
                tokio::time::timeout(limit, connecting).await.or_err(ErrorType::ConnectTimedout, "tunnel")?
            }
            None => connecting.await,
        };
        let tcp = connected.map_err(|e| {
            let kind = match e.kind() {
                io::ErrorKind::ConnectionRefused => ErrorType::ConnectRefused,
                io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
                    ErrorType::ConnectNoRoute
                }
                io::ErrorKind::TimedOut => ErrorType::ConnectTimedout,
                _ => ErrorType::ConnectError,
            };
            Error::because(kind, "tunnel", e)
        })?;
        Ok(Stream::from(VirtualSocketStream::new(Box::new(Yielding { tcp, wrote: false }))))
    }
}

#[derive(Debug)]
struct Yielding {
    tcp: TcpStream,
    /// A write happened since the last read.
    wrote: bool,
}

impl VirtualSocket for Yielding {
    fn set_socket_option(&self, option: VirtualSockOpt) -> io::Result<()> {
        let socket = socket2::SockRef::from(&self.tcp);
        match option {
            VirtualSockOpt::NoDelay => self.tcp.set_nodelay(true),
            VirtualSockOpt::KeepAlive(k) => socket.set_tcp_keepalive(
                &socket2::TcpKeepalive::new()
                    .with_time(k.idle)
                    .with_interval(k.interval)
                    .with_retries(u32::try_from(k.count).unwrap_or(3)),
            ),
            _ => Ok(()),
        }
    }
}

impl AsyncRead for Yielding {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.wrote) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Pin::new(&mut self.tcp).poll_read(cx, buf)
    }
}

impl AsyncWrite for Yielding {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.wrote = true;
        Pin::new(&mut self.tcp).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}
