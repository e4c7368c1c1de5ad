//! The streams of an HTTP/2 client, and what its windows do not let through yet. A response that was
//! held is whole, so the engine need not wait for the client with the backend's connection in its
//! hand: the stream goes on by itself (`edge.rs` does the same for HTTP/1).

use crate::Shared;
use crate::buffer::Reserved;
use crate::guard::Guarded;
use crate::output::Owing;
use crate::service::Gateway;
use async_trait::async_trait;
use bytes::Bytes;
use h2::{Reason, SendStream};
use pingora_core::Result;
use pingora_core::apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream};
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server::H2Options;
use pingora_core::server::ShutdownWatch;
use pingora_http::ResponseHeader;
use pingora_proxy::{HttpProxy, Session};
use std::cell::Cell;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

tokio::task_local! {
    /// What this task's stream has still to send when the engine is done with it.
    static OWED: Cell<Option<Owed>>;
}

/// The engine, and then the rest of the response.
pub struct Streams(pub Arc<HttpProxy<Guarded<Gateway>>>);

#[async_trait]
impl HttpServerApp for Streams {
    async fn process_new_http(
        self: &Arc<Self>,
        session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        let serving = async {
            self.0.process_new_http(session, shutdown).await;
            OWED.with(Cell::take)
        };
        if let Some(owed) = OWED.scope(Cell::new(None), serving).await {
            owed.send().await;
        }
        None // HTTP/2 has nothing to reuse
    }

    async fn http_cleanup(&self) {}

    fn server_options(&self) -> Option<&HttpServerOptions> {
        self.0.server_options.as_ref()
    }

    fn h2_options(&self) -> Option<H2Options> {
        self.0.h2_options.clone()
    }
}

/// The end of a response that the engine believes to be sent.
struct Owed {
    stream: SendStream<Bytes>,
    rest: Bytes,
    limit: Option<Duration>,
    _owing: Owing,
}

impl Owed {
    /// Sends on as the client allows, unless it allows nothing for too long.
    async fn send(mut self) {
        while !self.rest.is_empty() {
            self.stream.reserve_capacity(self.rest.len());
            let capacity = poll_fn(|cx| self.stream.poll_capacity(cx));
            let capacity = match self.limit {
                Some(limit) => tokio::time::timeout(limit, capacity).await,
                None => Ok(capacity.await),
            };
            let sent = match capacity {
                Ok(Some(Ok(n))) => {
                    let piece = self.rest.split_to(n.min(self.rest.len()));
                    self.stream.send_data(piece, self.rest.is_empty()).is_ok()
                }
                Ok(_) => false,
                Err(_) => {
                    self.stream.send_reset(Reason::CANCEL);
                    false
                }
            };
            if !sent {
                return;
            }
        }
    }
}

/// Sends the head of a held response ahead of the engine, which would send it together with the body:
/// only a stream with a head can be taken over. What is left in its place the engine drops.
pub fn send_head(session: &mut Session, response: &mut ResponseHeader) -> Result<()> {
    if let ServerSession::H2(stream) = session.as_downstream_mut()
        && stream.is_body_done()
        && OWED.try_with(|_| ()).is_ok()
    {
        let mut left = ResponseHeader::build_no_case(response.status, Some(0))?;
        left.set_version(response.version);
        stream.write_response_header(Box::new(std::mem::replace(response, left)), false)?;
    }
    Ok(())
}

/// Takes the body of a held response over, if it is one of HTTP/2 whose head was sent. Gives back how
/// many bytes those are, else the part of the budget.
pub fn take_over(
    session: &mut Session,
    body: &mut Option<Bytes>,
    shared: &Arc<Shared>,
    reserved: Option<Reserved>,
) -> std::result::Result<usize, Option<Reserved>> {
    let ServerSession::H2(stream) = session.as_downstream_mut() else { return Err(reserved) };
    if body.is_none() || !stream.is_body_done() || OWED.try_with(|_| ()).is_err() {
        return Err(reserved);
    }
    let (Some(stream), Some(rest)) = (stream.take_response_body_writer(), body.take()) else {
        return Err(reserved);
    };
    let bytes = rest.len();
    let _owing = Owing::new(shared.clone(), reserved);
    let owed = Owed { stream, rest, limit: shared.config.client_write_timeout, _owing };
    OWED.with(|cell| cell.set(Some(owed)));
    Ok(bytes)
}
