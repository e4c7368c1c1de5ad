//! What one request carries through the hooks.

use crate::Shared;
use crate::buffer::Held;
use crate::edge::Conn;
use crate::policy::rate_limit::InFlight;
use crate::respond::Rejection;
use crate::via::Via;
use http::HeaderValue;
use ingress_core::Route;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Counts the request as active for as long as it lives; a request that ends without its record
/// being written (the task was dropped, or a hook panicked) is recorded from here.
pub struct RequestCtx {
    pub shared: Arc<Shared>,
    pub start: Instant,
    /// The client's connection.
    pub conn: Option<Arc<Conn>>,
    /// What a trusted proxy says of the client behind it.
    pub via: Option<Box<Via>>,
    /// The route taken, pinned: one request sees one configuration.
    pub route: Option<Arc<Route>>,
    /// The request counts against a limit of requests at the same time.
    pub in_flight: Option<InFlight>,
    /// Why the backend did not answer.
    pub rejection: Option<Rejection>,
    /// An answer of ours that is no error (`redirect`).
    pub answered_by: Option<&'static str>,
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
}

impl RequestCtx {
    pub fn new(shared: Arc<Shared>) -> Self {
        shared.metrics.request_began();
        Self {
            shared,
            start: Instant::now(),
            conn: None,
            via: None,
            route: None,
            in_flight: None,
            rejection: None,
            answered_by: None,
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
        }
    }

    /// The client's address.
    pub fn client_ip(&self) -> Option<IpAddr> {
        match (&self.via, &self.conn) {
            (Some(via), _) => Some(via.ip),
            (None, conn) => conn.as_ref().map(|conn| conn.ip),
        }
    }

    /// The client's address as a header value.
    pub fn client(&self) -> Option<&HeaderValue> {
        match (&self.via, &self.conn) {
            (Some(via), _) => Some(&via.client),
            (None, conn) => conn.as_ref().map(|conn| &conn.client),
        }
    }

    /// Whether the client speaks TLS.
    pub fn https(&self) -> bool {
        let said = self.via.as_ref().and_then(|via| via.https);
        said.unwrap_or_else(|| self.conn.as_ref().is_some_and(|conn| conn.tls))
    }
}

impl Drop for RequestCtx {
    fn drop(&mut self) {
        self.shared.metrics.request_ended(self.tunnel);
        if let Some(in_flight) = self.in_flight.take() {
            self.shared.limiter.leave(in_flight);
        }
        if !self.recorded {
            self.shared.metrics.request_lost(self.route.as_deref());
        }
    }
}
