//! The end of a TLS handshake that does not end: the engine gives it a minute of its own, which the
//! process cannot set, so the connection is shut from here when its time is over.

use parking_lot::Mutex;
use pingora_core::protocols::l4::stream::Stream as L4Stream;
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::{GetProxyDigest, IO};
use pingora_http::ResponseHeader;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A handshake that has begun; it ends when this is dropped.
pub struct Handshake {
    count: Arc<AtomicI64>,
    /// Its end tells the watch that there is nothing left to do.
    watched: Option<oneshot::Sender<()>>,
}

/// What travels with the stream from before the handshake to after it.
struct InStream {
    handshake: Mutex<Option<Handshake>>,
    /// The digest that stood in this place.
    before: Option<Arc<ProxyDigest>>,
}

impl Handshake {
    /// Counts a handshake.
    pub fn begin(count: &Arc<AtomicI64>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self { count: count.clone(), watched: None }
    }

    /// Gives the handshake to its stream, and ends both when `limit` has passed since `began`.
    pub fn watch(mut self, stream: &mut L4Stream, limit: Option<Duration>, began: Instant) {
        if let (Some(limit), Some(socket)) = (limit, duplicate(stream)) {
            let (end, ended) = oneshot::channel();
            self.watched = Some(end);
            let left = limit.saturating_sub(began.elapsed());
            tokio::spawn(async move {
                if tokio::time::timeout(left, ended).await.is_err() {
                    let _ = socket2::SockRef::from(&socket).shutdown(Shutdown::Both);
                }
            });
        }
        // The digest is the one place of a stream that is free. See `EdgeStream::new`.
        if let Ok(response) = ResponseHeader::build_no_case(200, Some(0)) {
            let before = stream.get_proxy_digest();
            let kept = InStream { handshake: Mutex::new(Some(self)), before };
            stream.set_proxy_digest(ProxyDigest::new(Box::new(response), Some(Box::new(kept))));
        }
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The handshake of this stream is done, if it had one. Gives the digest back that the stream had
/// before it.
pub fn end(stream: &dyn IO) -> Option<Arc<ProxyDigest>> {
    let digest = stream.get_proxy_digest()?;
    let Some(kept) = digest.user_data.as_ref().and_then(|data| data.downcast_ref::<InStream>()) else {
        return Some(digest);
    };
    *kept.handshake.lock() = None;
    kept.before.clone()
}

/// A descriptor of our own: the stream may be gone, and its number in other use, when time is over.
fn duplicate(stream: &L4Stream) -> Option<OwnedFd> {
    // SAFETY: the stream is borrowed, so its descriptor is open.
    unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) }.try_clone_to_owned().ok()
}
