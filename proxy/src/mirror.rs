//! Copies of requests for other backends. Nobody waits for them and nobody reads their answers; what
//! they may take of memory and connections is bounded, and beyond that there are none.

use crate::Shared;
use crate::ctx::RequestCtx;
use crate::{filter, trust, upstream};
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING};
use http::{HeaderValue, Version};
use ingress_core::{Backend, Filter, Timeouts};
use pingora_core::connectors::ConnectorOptions;
use pingora_core::connectors::http::Connector;
use pingora_http::RequestHeader;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Copies on their way at once.
const MOST: usize = 128;

/// A longer body is not copied, and neither is its request.
const MAX_BODY: usize = 256 << 10;

/// For a whole copy, its answer included.
const LIMIT: Duration = Duration::from_secs(30);

/// Idle connections kept for copies.
const POOL: usize = 32;

/// Sends copies.
pub struct Mirrors {
    connector: Connector,
    under_way: Arc<AtomicUsize>,
}

impl Default for Mirrors {
    fn default() -> Self {
        Self { connector: Connector::new(Some(ConnectorOptions::new(POOL))), under_way: Arc::default() }
    }
}

/// Counts a copy for as long as it lives.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The copies of one request, until its body is whole.
pub struct Copies {
    head: RequestHeader,
    body: BytesMut,
    to: Vec<(Arc<Backend>, Place)>,
}

impl Mirrors {
    fn place(&self) -> Option<Place> {
        let place = Place(self.under_way.clone());
        (self.under_way.fetch_add(1, Ordering::Relaxed) < MOST).then_some(place)
    }
}

/// Decides which copies there will be of a request, whose head stands here as its backend gets it.
/// `random` gives numbers.
pub fn begin(ctx: &RequestCtx, head: &RequestHeader, random: impl Fn() -> u64) -> Option<Box<Copies>> {
    ctx.route.as_ref()?.actions.as_ref()?;
    let mirrors = filter::all(ctx).filter_map(|filter| match filter {
        Filter::Mirror(mirror) => Some(mirror),
        _ => None,
    });
    let to: Vec<_> = mirrors
        .filter(|m| random().checked_rem(u64::from(m.denominator)).is_some_and(|n| n < m.numerator.into()))
        .filter_map(|m| Some((m.backend.clone(), ctx.shared.mirrors.place()?)))
        .collect();
    (!to.is_empty()).then(|| Box::new(Copies { head: head.clone(), body: BytesMut::new(), to }))
}

impl Copies {
    /// The body comes once more from its beginning.
    pub fn restart(&mut self) {
        self.body.clear();
    }

    /// A piece of the body. False: it is too long, there will be no copy.
    pub fn take(&mut self, piece: &Bytes) -> bool {
        let fits = self.body.len() + piece.len() <= MAX_BODY;
        if fits {
            self.body.extend_from_slice(piece);
        }
        fits
    }

    /// The body is whole: the copies are sent.
    pub fn send(self, shared: &Arc<Shared>) {
        let Self { mut head, body, to } = self;
        head.remove_header(&TRANSFER_ENCODING);
        head.remove_header(&EXPECT);
        let body = body.freeze();
        if !body.is_empty() {
            let _ = head.insert_header(CONTENT_LENGTH, HeaderValue::from(body.len()));
        }
        for (backend, place) in to {
            let (shared, head, body) = (shared.clone(), head.clone(), body.clone());
            tokio::spawn(async move {
                let sent = tokio::time::timeout(LIMIT, copy(&shared, &backend, head, body)).await;
                if !matches!(sent, Ok(Some(()))) {
                    tracing::debug!(service = %backend.service, "a mirrored request was not answered");
                }
                drop(place);
            });
        }
    }
}

async fn copy(shared: &Shared, backend: &Backend, mut head: RequestHeader, body: Bytes) -> Option<()> {
    let timeouts = Timeouts { connect: Some(LIMIT), read: Some(LIMIT), send: Some(LIMIT) };
    let address = upstream::address(shared, backend, 0, timeouts.connect).await.ok()?;
    shared.guard.check(address.ip()).ok()?;
    let mut peer = upstream::bare_peer(shared, backend, address, &timeouts);
    if backend.protocol.http2() {
        upstream::http2(&mut peer.options);
        head.set_version(Version::HTTP_2);
    } else {
        head.set_version(Version::HTTP_11);
    }
    let connector = &shared.mirrors.connector;
    let (mut session, _) = connector.get_http_session(&peer).await.ok()?;
    if trust::refused(session.digest()) {
        return None;
    }
    session.set_read_timeout(Some(LIMIT));
    head.set_send_end_stream(body.is_empty());
    session.write_request_header(Box::new(head)).await.ok()?;
    if !body.is_empty() {
        session.write_request_body(body, true).await.ok()?;
    }
    session.finish_request_body().await.ok()?;
    session.read_response_header().await.ok()?;
    while session.read_response_body().await.ok()?.is_some() {}
    if session.response_done() {
        connector.release_http_session(session, &peer, peer.options.idle_timeout).await;
    }
    Some(())
}
