//! The end of what a peer says over TLS: without its `close_notify` the connection has broken off (RFC 8446 section 6.1), or
//! somebody has cut it. The streams below read such an end like any other.

use foreign_types_shared::ForeignTypeRef;
use openssl::ssl::{ErrorCode, SslRef};
use pingora_core::protocols::l4::stream::Stream as L4Stream;
use pingora_core::protocols::tls::SslStream;
use std::ffi::c_int;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A TLS connection that ends as its peer says, or with an error.
#[derive(Debug)]
pub struct CloseNotify {
    stream: SslStream<L4Stream>,
    /// We have said that we end.
    said: bool,
}

impl CloseNotify {
    /// A connection whose handshake is done.
    pub fn new(stream: SslStream<L4Stream>) -> Self {
        Self { stream, said: false }
    }
}

impl AsyncRead for CloseNotify {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if buf.filled().len() > before || buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        // Looked at once more, it tells why there is nothing.
        match Pin::new(&mut *self.stream).poll_peek(cx, &mut [0]) {
            Poll::Ready(Err(error)) if error.code() == ErrorCode::ZERO_RETURN => Poll::Ready(Ok(())),
            _ => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

impl AsyncWrite for CloseNotify {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.said {
            let step = Pin::new(&mut self.stream).poll_shutdown(cx);
            self.said = !wants_to_write(self.stream.ssl());
            return step;
        }
        // What is pending is the socket's end alone. OpenSSL, asked again, would wait for the peer's word.
        Pin::new(&mut *self.stream).get_pin_mut().poll_shutdown(cx)
    }
}

/// Whether OpenSSL's last call has something left that the socket did not take.
fn wants_to_write(ssl: &SslRef) -> bool {
    /// `SSL_WRITING`
    const WRITING: c_int = 2;
    unsafe extern "C" {
        fn SSL_want(ssl: *const openssl_sys::SSL) -> c_int;
    }
    // SAFETY: it is the pointer of a live connection, of which the call reads a field.
    unsafe { SSL_want(ssl.as_ptr()) == WRITING }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openssl::ssl::{Ssl, SslConnector, SslMethod, SslVerifyMode};
    use pingora_core::protocols::l4::virt::{VirtualSockOpt, VirtualSocket, VirtualSocketStream};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    /// A socket that lets one write, or its end, wait for a turn.
    #[derive(Debug)]
    struct Socket {
        inner: DuplexStream,
        full: Arc<AtomicBool>,
        slow: Arc<AtomicBool>,
    }

    fn waits(flag: &AtomicBool, cx: &Context<'_>) -> bool {
        let waits = flag.swap(false, Ordering::Relaxed);
        if waits {
            cx.waker().wake_by_ref();
        }
        waits
    }

    impl AsyncRead for Socket {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.inner).poll_read(cx, buf)
        }
    }

    impl AsyncWrite for Socket {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            if waits(&self.full, cx) { Poll::Pending } else { Pin::new(&mut self.inner).poll_write(cx, buf) }
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.inner).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            if waits(&self.slow, cx) { Poll::Pending } else { Pin::new(&mut self.inner).poll_shutdown(cx) }
        }
    }

    impl VirtualSocket for Socket {
        fn set_socket_option(&self, _: VirtualSockOpt) -> io::Result<()> {
            Ok(())
        }
    }

    fn stream(
        ssl: Ssl,
        inner: DuplexStream,
        full: &Arc<AtomicBool>,
        slow: &Arc<AtomicBool>,
    ) -> SslStream<L4Stream> {
        let socket = Socket { inner, full: full.clone(), slow: slow.clone() };
        SslStream::new(ssl, L4Stream::from(VirtualSocketStream::new(Box::new(socket)))).unwrap()
    }

    #[tokio::test]
    async fn an_end_that_has_to_wait_is_said_once_and_waits_for_no_peer() {
        let acceptor = {
            let mut builder = crate::tls::silent_context().unwrap();
            let pair = crate::tls::self_signed().unwrap();
            builder.set_certificate(pair.leaf()).unwrap();
            builder.set_private_key(pair.key()).unwrap();
            builder.build()
        };
        let mut connector = SslConnector::builder(SslMethod::tls_client()).unwrap();
        connector.set_verify(SslVerifyMode::NONE);
        let connector = connector.build();
        for (no_room, no_end) in [(false, false), (true, false), (false, true), (true, true)] {
            let (near, far) = tokio::io::duplex(1 << 16);
            let [full, slow, never] = [(); 3].map(|()| Arc::<AtomicBool>::default());
            let ssl = connector.configure().unwrap().verify_hostname(false).into_ssl("a").unwrap();
            let mut client = stream(ssl, far, &never, &never);
            let mut server = stream(Ssl::new(acceptor.context()).unwrap(), near, &full, &slow);
            let (connected, accepted) = tokio::join!(client.connect(), server.accept());
            connected.unwrap();
            accepted.unwrap();
            let (mut client, mut server) = (CloseNotify::new(client), CloseNotify::new(server));
            full.store(no_room, Ordering::Relaxed);
            slow.store(no_end, Ordering::Relaxed);
            let ended = tokio::time::timeout(Duration::from_secs(10), server.shutdown()).await;
            ended.expect("it waits for nobody").unwrap();
            assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "an end that was said");
            // What still comes is read.
            client.write_all(b"more").await.unwrap();
            client.flush().await.unwrap();
            let mut more = [0; 4];
            server.read_exact(&mut more).await.unwrap();
            assert_eq!(&more, b"more");
            drop(client);
            let broken = server.read(&mut [0]).await.unwrap_err();
            assert_eq!(broken.kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
