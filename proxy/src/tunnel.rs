//! The backend connection of a WebSocket handshake, and of requests whose send timeout the engine
//! cannot keep.
//!
//! Pingora ends a tunnel right after 101 when it reads the 101 in the same poll in which the end
//! of the (empty) request body is still waiting to be taken in (cloudflare/pingora#946): a fast
//! backend loses about one handshake in two hundred. Here every read that follows a write yields
//! once, so the end of the body is always taken in first.
//!
//! The send timeout is kept here too: the engine's own counts a whole piece of up to 64 KiB and sees
//! no progress within it, and after it the engine goes on waiting for the backend, for ever where
//! the route has no read timeout. Here it counts from the last byte taken, and ends the tunnel.

use crate::stall::Stall;
use async_trait::async_trait;
use pingora_core::connectors::l4::Connect;
use pingora_core::protocols::l4::socket::SocketAddr;
use pingora_core::protocols::l4::stream::Stream;
use pingora_core::protocols::l4::virt::{VirtualSockOpt, VirtualSocket, VirtualSocketStream};
use pingora_core::{Error, ErrorType, OrErr, Result};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Connects a tunnel's backend.
#[derive(Debug)]
pub struct TunnelConnector {
    /// Bound for the TCP handshake; Pingora applies none to connectors of others.
    pub timeout: Option<Duration>,
    /// How long the backend may take no byte while there are some for it; `None` = no limit.
    pub send: Option<Duration>,
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
        Ok(Stream::from(VirtualSocketStream::new(Box::new(Yielding::new(tcp, self.send)))))
    }
}

#[derive(Debug)]
struct Yielding {
    tcp: TcpStream,
    /// A write happened since the last read.
    wrote: bool,
    send: Option<Duration>,
    /// Counts while a write waits.
    stall: Stall,
    /// The backend took nothing for too long: nothing is waited for any more either.
    given_up: bool,
}

impl Yielding {
    fn new(tcp: TcpStream, send: Option<Duration>) -> Self {
        Self { tcp, wrote: false, send, stall: Stall::default(), given_up: false }
    }
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
        if self.given_up {
            // What it has said already still counts.
            let read = Pin::new(&mut self.tcp).poll_read(cx, buf);
            return if read.is_ready() { read } else { Poll::Ready(Err(io::ErrorKind::TimedOut.into())) };
        }
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
        if let Poll::Ready(written) = Pin::new(&mut self.tcp).poll_write(cx, buf) {
            self.stall.progress();
            return Poll::Ready(written);
        }
        let limit = self.send;
        let error = ready!(self.stall.poll(cx, limit));
        self.given_up = true;
        Poll::Ready(Err(error))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    async fn pair(send: Option<Duration>) -> (Yielding, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (Yielding::new(near, send), listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn a_read_after_a_write_yields_once() {
        let (mut near, mut far) = pair(None).await;
        far.write_all(b"hello").await.unwrap();
        near.tcp.readable().await.unwrap();
        near.write_all(b"x").await.unwrap();
        let mut bytes = [0; 5];
        let mut reading = Box::pin(near.read_exact(&mut bytes));
        assert!(futures::poll!(&mut reading).is_pending(), "the bytes are there, and yet");
        reading.await.unwrap();
        assert_eq!(&bytes, b"hello");
    }

    #[tokio::test]
    async fn a_backend_that_takes_nothing_ends_both_ways() {
        let (mut near, far) = pair(Some(Duration::from_millis(100))).await;
        let block = vec![0; 1 << 20];
        let error = loop {
            if let Err(error) = near.write_all(&block).await {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(near.read_u8().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(far);
    }
}
