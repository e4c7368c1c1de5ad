//! What one request carries through the hooks.

use crate::Shared;
use crate::buffer::{Held, Reserved};
use crate::edge::Conn;
use crate::respond::Rejection;
use ingress_core::Route;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Counts the request as active for as long as it lives; a request that ends without its record
/// being written (the task was dropped, or a hook panicked) is recorded from here.
pub struct RequestCtx {
    pub shared: Arc<Shared>,
    pub start: Instant,
    /// The client's connection.
    pub conn: Option<Arc<Conn>>,
    /// The route taken, pinned: one request sees one configuration.
    pub route: Option<Arc<Route>>,
    /// Why the backend did not answer.
    pub rejection: Option<Rejection>,
    /// An answer of ours that is no error (`redirect`).
    pub answered_by: Option<&'static str>,
    /// The client's keep-alive, which the engine forgets with an interim response.
    pub keepalive: Option<u64>,
    /// The address dialled last.
    pub peer: Option<SocketAddr>,
    /// Attempts so far.
    pub tries: u8,
    /// The attempt ended before any byte of the request went out.
    pub nothing_sent: bool,
    /// When the last attempt began.
    pub attempt: Option<Instant>,
    pub connect_time: Option<Duration>,
    pub reused: bool,
    pub connected: Option<Instant>,
    pub response_time: Option<Duration>,
    pub upstream_status: Option<u16>,
    /// A WebSocket handshake was asked for.
    pub upgrade: bool,
    /// 101 was sent: the request is a tunnel now.
    pub tunnel: bool,
    pub recorded: bool,
    /// The response, while it is held.
    pub held: Option<Held>,
    /// What its body takes of the budget until it is written.
    pub reserved: Option<Reserved>,
    /// Bytes of the body that are sent after the engine is done.
    pub sent_later: usize,
}

impl RequestCtx {
    pub fn new(shared: Arc<Shared>) -> Self {
        shared.metrics.request_began();
        Self {
            shared,
            start: Instant::now(),
            conn: None,
            route: None,
            rejection: None,
            answered_by: None,
            keepalive: None,
            peer: None,
            tries: 0,
            nothing_sent: false,
            attempt: None,
            connect_time: None,
            reused: false,
            connected: None,
            response_time: None,
            upstream_status: None,
            upgrade: false,
            tunnel: false,
            recorded: false,
            held: None,
            reserved: None,
            sent_later: 0,
        }
    }
}

impl Drop for RequestCtx {
    fn drop(&mut self) {
        self.shared.metrics.request_ended(self.tunnel);
        if !self.recorded {
            self.shared.metrics.request_lost(self.route.as_deref());
        }
    }
}
