//! What one request carries through the hooks.

use crate::Shared;
use crate::buffer::{Held, Reserved};
use crate::clock::Clock;
use crate::edge::Conn;
use crate::mirror::Copies;
use crate::policy::auth::Identity;
use crate::policy::rate_limit::InFlight;
use crate::respond::Rejection;
use crate::streams::Stream;
use crate::upstream::MOST_TRIES;
use crate::via::Via;
use http::{HeaderName, HeaderValue};
use ingress_core::{Backend, OAuthRoutes, Retry, Route, WeightedBackend};
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
    /// Which of the route's backends was chosen, where it has several.
    pub chosen: Option<usize>,
    /// When the whole request must be done.
    pub deadline: Option<Instant>,
    /// The backend's answer counts as a failure: the request is sent again.
    pub again: bool,
    /// The next attempt waits for a moment.
    pub paused: bool,
    /// What is to be copied for mirrors was decided.
    pub mirrored: bool,
    /// The request's copies for mirrors, while its body comes in.
    pub copies: Option<Box<Copies>>,
    /// The routes of the host that have built-in OAuth.
    pub oauth: Option<OAuthRoutes>,
    /// What authentication found; `None` on open routes.
    pub identity: Option<Box<Identity>>,
    /// The request counts against a limit of requests at the same time.
    pub in_flight: Option<InFlight>,
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
    /// Those among them that a kept connection cost which turned out to be closed.
    pub stale: u8,
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
    /// The clock of an HTTP/2 client's stream.
    pub clock: Option<Arc<Clock>>,
    /// The client can take trailers, which the backend is told.
    pub trailers: bool,
    /// 101 was sent: the request is a tunnel now.
    pub tunnel: bool,
    pub recorded: bool,
    /// The response, while it is held.
    pub held: Option<Held>,
    /// Bytes of the response's body that were passed on.
    pub passed: usize,
    /// The response, once it streams.
    pub stream: Option<Stream>,
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
            via: None,
            route: None,
            chosen: None,
            deadline: None,
            again: false,
            paused: false,
            mirrored: false,
            copies: None,
            oauth: None,
            identity: None,
            in_flight: None,
            rejection: None,
            answered_by: None,
            keepalive: None,
            peer: None,
            tries: 0,
            stale: 0,
            nothing_sent: false,
            attempt: None,
            connect_time: None,
            reused: false,
            connected: None,
            response_time: None,
            upstream_status: None,
            upgrade: false,
            clock: None,
            trailers: false,
            tunnel: false,
            recorded: false,
            held: None,
            passed: 0,
            stream: None,
            reserved: None,
            sent_later: 0,
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

    /// Something came from the backend.
    pub fn moved(&self) {
        match (&self.clock, &self.conn) {
            (Some(clock), _) => clock.moved(),
            (None, Some(conn)) => conn.clock().moved(),
            (None, None) => {}
        }
    }

    /// Nobody is waited for before the next attempt.
    pub fn release_clock(&self) {
        match (&self.clock, &self.conn) {
            (Some(clock), _) => clock.release(),
            (None, Some(conn)) => conn.clock().release(),
            (None, None) => {}
        }
    }

    /// Whether client and backend have both been silent for too long.
    pub fn silent(&self) -> bool {
        self.clock.as_ref().is_some_and(|clock| clock.expired())
            || self.conn.as_ref().is_some_and(|conn| conn.clock().expired())
    }

    /// Takes a route, and of its backends one.
    pub fn take(&mut self, route: Arc<Route>, random: impl FnOnce() -> u64) {
        if let Some(actions) = &route.actions {
            self.deadline = actions.request_timeout.map(|limit| self.start + limit);
            if let Some(backends) = &actions.backends {
                self.chosen = backends.pick(random());
            }
        }
        self.route = Some(route);
    }

    /// The entry that was chosen of a route with several backends.
    pub fn picked(&self) -> Option<&WeightedBackend> {
        let backends = self.route.as_ref()?.actions.as_ref()?.backends.as_ref()?;
        backends.entries().get(self.chosen?)
    }

    /// Where the request goes; `None` where the weights leave nobody.
    pub fn backend(&self) -> Option<&Arc<Backend>> {
        let route = self.route.as_ref()?;
        match &route.actions {
            Some(actions) if actions.backends.is_some() => self.picked().map(|entry| &entry.backend),
            _ => Some(&route.backend),
        }
    }

    /// What the route's rule says of further attempts.
    pub fn retry(&self) -> Option<&Retry> {
        self.route.as_ref()?.actions.as_ref()?.retry.as_ref()
    }

    /// Whether the route's `retry` leaves another attempt, and the time for the whole request the pause
    /// before it.
    pub fn another_try(&self) -> bool {
        self.retry().is_some_and(|retry| {
            u32::from(self.tries.saturating_sub(self.stale)) <= retry.attempts
                && self.tries < MOST_TRIES
                && self.left().is_none_or(|left| left > retry.backoff)
        })
    }

    /// What is left of the time for the whole request.
    pub fn left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Whether the whole request has taken too long.
    pub fn overdue(&self) -> bool {
        !self.tunnel && self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Whether the route's backend speaks HTTP/2.
    pub fn http2_backend(&self) -> bool {
        self.backend().is_some_and(|backend| backend.protocol.http2())
    }

    /// Whether the route's backend is called by gRPC.
    pub fn grpc_backend(&self) -> bool {
        self.backend().is_some_and(|backend| backend.protocol.grpc())
    }

    /// Fields that authentication adds to whatever answer the client gets.
    pub fn response_headers(&self) -> &[(HeaderName, HeaderValue)] {
        self.identity.as_ref().map_or(&[], |identity| &identity.response)
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
