//! The end of what a peer says over TLS: without its `close_notify` the connection has broken off (RFC 8446 section 6.1), or
//! somebody has cut it. The streams below read such an end like any other.

use openssl::ssl::ErrorCode;
use pingora_core::protocols::l4::stream::Stream as L4Stream;
use pingora_core::protocols::tls::SslStream;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A TLS connection that ends as its peer says, or with an error.
#[derive(Debug)]
pub struct CloseNotify(pub SslStream<L4Stream>);

impl AsyncRead for CloseNotify {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.0).poll_read(cx, buf))?;
        if buf.filled().len() > before || buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        // Looked at once more, it tells why there is nothing.
        match Pin::new(&mut *self.0).poll_peek(cx, &mut [0]) {
            Poll::Ready(Err(error)) if error.code() == ErrorCode::ZERO_RETURN => Poll::Ready(Ok(())),
            _ => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

impl AsyncWrite for CloseNotify {
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
