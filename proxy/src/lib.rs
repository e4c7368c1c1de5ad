//! The data plane: Pingora hooks over the model of `ingress_core`. Knows nothing of Kubernetes.
//!
//! Pingora types stay in the hook files (`service`, `edge`, `headers`, `respond`, `client_stream`, `tls`, `upstream`).

pub mod access_log;
mod buffer;
mod client_stream;
mod clients;
mod clock;
mod close_notify;
mod ctx;
pub mod dial;
mod edge;
pub mod explain;
mod fetch;
mod filter;
mod frames;
mod framing;
#[doc(hidden)]
pub mod fuzz;
mod guard;
mod handshake;
mod headers;
mod keypair;
mod listeners;
pub mod metrics;
mod mirror;
mod oauth;
mod output;
mod passthrough;
mod places;
mod policy;
mod preface;
mod proxy_protocol;
mod relay;
pub mod resolve;
mod respond;
mod select;
mod service;
mod stall;
mod streams;
mod strict;
mod terminate;
mod tls;
mod trust;
mod tunnel;
mod upstream;
mod via;

pub use access_log::LogSink;
pub use listeners::{BindError, Bound, bind};
pub use metrics::Metrics;

use dial::DialGuard;
use ingress_core::{Ranges, Reader};
use policy::rate_limit::Limiter;
use resolve::Resolver;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// What the data plane is told at start; see the flags of the same names.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address both listeners bind to; `::` serves IPv4 too.
    pub bind_address: IpAddr,
    /// Plain HTTP; 0 = any free port.
    pub http_port: u16,
    /// HTTPS; 0 = any free port.
    pub https_port: u16,
    /// Further ports of Gateway listeners; 80 and 443 are the two above.
    pub gateway_ports: Vec<u16>,
    /// Port in redirects to https; `None` = 443, which is left out.
    pub redirect_port: Option<u16>,
    /// Worker threads.
    pub threads: usize,
    /// Largest request head in bytes (431).
    pub max_header_size: usize,
    /// Largest request body in bytes (413); `None` = no limit.
    pub max_request_body_size: Option<u64>,
    /// Responses up to this size are held until they are whole; 0 = never, `None` = all.
    pub response_buffer_size: Option<usize>,
    /// Bytes held for all responses together.
    pub response_buffer_budget: usize,
    /// Bytes that responses to clients slower than their backends may hold together; `None` = no limit.
    pub response_stream_budget: Option<usize>,
    /// Inactivity while a request is read; `None` = no limit.
    pub client_read_timeout: Option<Duration>,
    /// Idle time of a kept-alive client connection; `None` = no limit.
    pub client_keepalive_timeout: Option<Duration>,
    /// Time for a whole request head, however it trickles; `None` = no limit.
    pub client_header_timeout: Option<Duration>,
    /// Time for a client's whole TLS hello; `None` = the engine's 60 s for the handshake.
    pub tls_handshake_timeout: Option<Duration>,
    /// Inactivity of a client that does not read its response; `None` = no limit.
    pub client_write_timeout: Option<Duration>,
    /// Streams at once on one client connection.
    pub http2_max_concurrent_streams: u32,
    /// Client connections at once, those in their TLS handshake included; `None` = no limit.
    pub max_connections: Option<usize>,
    /// Idle backend connections kept per worker thread.
    pub upstream_keepalive_connections: usize,
    /// How long they are kept; `None` = until the backend closes.
    pub upstream_keepalive_timeout: Option<Duration>,
    /// Threads that check passwords.
    pub auth_hash_workers: usize,
    /// Failed credentials of one client address, after which it gets 429; 0 = no throttle.
    pub auth_throttle_failures: u32,
    /// How long they count; `None` = no throttle.
    pub auth_throttle_window: Option<Duration>,
    /// For one call of an external authentication service; `None` = no limit.
    pub auth_url_timeout: Option<Duration>,
    /// Whether query strings are written to the access log.
    pub access_log_query: bool,
    /// Peers whose word on the client's address counts; empty = nobody's.
    pub trusted_proxies: Ranges,
    /// Whether those peers speak the PROXY protocol.
    pub proxy_protocol: bool,
    /// Clients whose IPv6 addresses agree in this many bits share their limits.
    pub limit_ipv6_prefix: u8,
}

impl Config {
    /// The defaults of the flags, on free loopback ports.
    pub fn for_test() -> Self {
        let minute = Some(Duration::from_secs(60));
        Self {
            bind_address: IpAddr::from([127, 0, 0, 1]),
            http_port: 0,
            https_port: 0,
            gateway_ports: Vec::new(),
            redirect_port: None,
            threads: 1,
            max_header_size: 64 << 10,
            max_request_body_size: Some(100 << 20),
            response_buffer_size: Some(64 << 10),
            response_buffer_budget: 128 << 20,
            response_stream_budget: Some(512 << 20),
            client_read_timeout: minute,
            client_keepalive_timeout: minute,
            client_header_timeout: minute,
            tls_handshake_timeout: Some(Duration::from_secs(10)),
            client_write_timeout: minute,
            http2_max_concurrent_streams: 128,
            max_connections: None,
            upstream_keepalive_connections: 128,
            upstream_keepalive_timeout: minute,
            auth_hash_workers: 2,
            auth_throttle_failures: 10,
            auth_throttle_window: minute,
            auth_url_timeout: Some(Duration::from_secs(5)),
            access_log_query: false,
            trusted_proxies: Ranges::default(),
            proxy_protocol: false,
            limit_ipv6_prefix: 128,
        }
    }
}

/// What the data plane works with, made by the composition root.
pub struct Parts {
    /// The published configuration.
    pub reader: Reader,
    /// Backend names to addresses.
    pub resolver: Resolver,
    /// Addresses that are never dialled.
    pub guard: DialGuard,
    /// Metric families.
    pub metrics: Metrics,
    /// Where access log lines go; `None` = no access log.
    pub log: Option<LogSink>,
}

/// Shared by every request.
struct Shared {
    config: Config,
    reader: Reader,
    resolver: Resolver,
    guard: DialGuard,
    metrics: Metrics,
    log: Option<LogSink>,
    draining: AtomicBool,
    rotation: std::sync::atomic::AtomicUsize,
    budget: Arc<buffer::Budget>,
    /// Asks authentication providers.
    client: Arc<fetch::Client>,
    /// Identity providers in use.
    providers: oauth::Providers,
    places: Arc<places::Places>,
    streams: Arc<streams::Streams>,
    auth: policy::auth::State,
    /// Responses that clients have not taken whole yet, though their requests are done.
    owing: std::sync::atomic::AtomicI64,
    /// TLS handshakes that have begun.
    handshakes: Arc<std::sync::atomic::AtomicI64>,
    limiter: Limiter,
    mirrors: mirror::Mirrors,
    ports: listeners::Ports,
    /// Connects over TLS to the backends of TLSRoutes; made when the first one is.
    connector: std::sync::OnceLock<pingora_core::connectors::TransportConnector>,
}

/// The running data plane.
pub struct Proxy {
    shared: Arc<Shared>,
    drain: watch::Sender<bool>,
    /// Kept alive for as long as the listeners run: dropping it would stop them.
    stop: watch::Sender<bool>,
    service: tokio::task::JoinHandle<()>,
}

/// The data plane could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The fallback certificate or the TLS context could not be made.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] openssl::error::ErrorStack),
    /// No thread for checking passwords.
    #[error("cannot start the password checks: {0}")]
    Auth(#[from] std::io::Error),
    /// Pingora refused the TLS settings.
    #[error("cannot set up TLS: {0}")]
    Settings(String),
}

impl Proxy {
    /// Starts serving on sockets that are already bound. Must run on the data-plane runtime.
    pub fn start(config: Config, bound: Bound, parts: Parts) -> Result<Self, StartError> {
        let Parts { reader, resolver, guard, metrics, log } = parts;
        let budget = buffer::Budget::new(config.response_buffer_budget);
        let client = Arc::new(fetch::Client::new(resolver.clone(), guard.clone()));
        let streams = streams::Streams::new(config.response_stream_budget, config.client_write_timeout);
        let places = places::Places::new(config.max_connections);
        let limiter = Limiter::new(config.limit_ipv6_prefix);
        let shared = Arc::new(Shared {
            auth: policy::auth::State::start(&config)?,
            client,
            providers: Default::default(),
            config,
            reader,
            resolver,
            guard,
            metrics,
            log,
            draining: AtomicBool::new(false),
            rotation: Default::default(),
            budget,
            places,
            streams,
            owing: Default::default(),
            handshakes: Default::default(),
            limiter,
            mirrors: Default::default(),
            ports: bound.ports(),
            connector: Default::default(),
        });
        let (drain, draining) = watch::channel(false);
        let (stop, stopped) = watch::channel(false);
        let service = edge::serve(shared.clone(), bound, draining, stopped)?;
        Ok(Self { shared, drain, stop, service })
    }

    /// From now on responses ask clients to close their connections, and HTTP/2 clients are told to
    /// open no further streams.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::Relaxed);
        let _ = self.drain.send(true);
    }

    /// Stops accepting and ends idle connections; requests in flight go on.
    pub fn stop_accepting(&self) {
        let _ = self.stop.send(true);
    }

    /// Requests in flight, tunnels included, and responses that clients have not taken whole.
    pub fn in_flight(&self) -> i64 {
        self.shared.metrics.active_requests() + self.shared.owing.load(Ordering::Relaxed)
    }

    /// Client connections, those in their TLS handshake included. After `stop_accepting` they go as
    /// their requests end; those without a request at once.
    pub fn connections(&self) -> i64 {
        self.shared.metrics.connections() + self.shared.handshakes.load(Ordering::Relaxed)
    }

    /// Whether the accept loops have ended: after `stop_accepting`, or because they died.
    pub fn finished(&self) -> bool {
        self.service.is_finished()
    }
}
