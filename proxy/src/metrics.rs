//! The data plane's metric families. Code calls verbs; label values are small sets and the
//! configured objects, never text from the wire.

use http::{Method, StatusCode};
use ingress_core::{Route, Snapshot};
use parking_lot::Mutex;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const PREFIX: &str = "tak_ingress_";
const SECONDS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
const BYTES: &[f64] = &[256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 16777216.0];
const ROUTE: [&str; 3] = ["namespace", "ingress", "host"];

/// How long the series of a route that is gone stay readable.
const KEEP_SERIES: Duration = Duration::from_secs(300);

/// All families of the data plane; cheap to clone.
#[derive(Clone)]
pub struct Metrics(Arc<Families>);

struct Families {
    requests: IntCounterVec,
    duration: HistogramVec,
    connect: HistogramVec,
    response: HistogramVec,
    request_size: HistogramVec,
    response_size: HistogramVec,
    upstream_errors: IntCounterVec,
    retries: IntCounterVec,
    unmatched: IntCounterVec,
    connections: IntGauge,
    active: IntGauge,
    tunnels: IntGauge,
    handshakes: IntCounterVec,
    fallback: IntCounter,
    panics: IntCounter,
    log_dropped: IntCounter,
    routes: Mutex<HashMap<Labels, Entry>>,
}

type Labels = (Arc<str>, Arc<str>, Arc<str>);

struct Entry {
    handles: Arc<RouteMetrics>,
    gone_since: Option<Instant>,
}

/// Held handles of one `namespace, ingress, host`.
pub struct RouteMetrics {
    labels: Labels,
    requests: [OnceLock<Box<[OnceLock<IntCounter>; CODES.len()]>>; METHODS.len()],
    /// Codes outside the table, to find their series again.
    rare: Mutex<HashSet<(&'static str, u16)>>,
    duration: Histogram,
    connect: Histogram,
    response: Histogram,
    request_size: Histogram,
    response_size: Histogram,
}

const METHODS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "other"];
const CODES: [u16; 20] =
    [200, 101, 201, 202, 204, 206, 301, 302, 304, 308, 400, 401, 403, 404, 429, 499, 500, 502, 503, 504];

fn method_index(method: &Method) -> usize {
    METHODS.iter().position(|m| *m == method.as_str()).unwrap_or(METHODS.len() - 1)
}

impl Metrics {
    /// Creates the families and registers them.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        fn counters(
            r: &Registry,
            name: &str,
            help: &str,
            labels: &[&str],
        ) -> Result<IntCounterVec, prometheus::Error> {
            let family = IntCounterVec::new(Opts::new(format!("{PREFIX}{name}"), help), labels)?;
            r.register(Box::new(family.clone()))?;
            Ok(family)
        }
        fn histograms(
            r: &Registry,
            name: &str,
            help: &str,
            buckets: &[f64],
        ) -> Result<HistogramVec, prometheus::Error> {
            let opts = HistogramOpts::new(format!("{PREFIX}{name}"), help).buckets(buckets.to_vec());
            let family = HistogramVec::new(opts, &ROUTE)?;
            r.register(Box::new(family.clone()))?;
            Ok(family)
        }
        fn gauge(r: &Registry, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
            let family = IntGauge::new(format!("{PREFIX}{name}"), help)?;
            r.register(Box::new(family.clone()))?;
            Ok(family)
        }
        fn counter(r: &Registry, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
            let family = IntCounter::new(format!("{PREFIX}{name}"), help)?;
            r.register(Box::new(family.clone()))?;
            Ok(family)
        }
        let r = registry;
        Ok(Self(Arc::new(Families {
            requests: counters(
                r,
                "requests_total",
                "Requests that matched a route, by method and status.",
                &["namespace", "ingress", "host", "method", "code"],
            )?,
            duration: histograms(
                r,
                "request_duration_seconds",
                "From request head to end of response.",
                SECONDS,
            )?,
            connect: histograms(
                r,
                "upstream_connect_duration_seconds",
                "Time to a new backend connection, DNS, TCP and TLS together.",
                SECONDS,
            )?,
            response: histograms(
                r,
                "upstream_response_duration_seconds",
                "From a ready backend connection to the response head.",
                SECONDS,
            )?,
            request_size: histograms(
                r,
                "request_size_bytes",
                "Request body bytes read from clients.",
                BYTES,
            )?,
            response_size: histograms(
                r,
                "response_size_bytes",
                "Response body bytes sent to clients.",
                BYTES,
            )?,
            upstream_errors: counters(
                r,
                "upstream_errors_total",
                "Requests that a backend failed: dns, connect, tls, timeout, reset, protocol.",
                &["namespace", "ingress", "host", "reason"],
            )?,
            retries: counters(r, "upstream_retries_total", "Attempts after the first.", &ROUTE)?,
            unmatched: counters(
                r,
                "unmatched_requests_total",
                "Requests answered without a route: no_host, no_path, malformed, head_too_large.",
                &["reason"],
            )?,
            connections: gauge(r, "client_connections", "Open client connections.")?,
            active: gauge(r, "active_requests", "Requests in flight, tunnels included.")?,
            tunnels: gauge(r, "upgraded_tunnels", "Open WebSocket tunnels.")?,
            handshakes: counters(
                r,
                "tls_handshakes_total",
                "TLS handshakes with clients that reached the server name, by version and result.",
                &["version", "result"],
            )?,
            fallback: counter(
                r,
                "tls_fallback_certificate_total",
                "Handshakes answered with the self-signed fallback certificate.",
            )?,
            panics: counter(
                r,
                "request_panics_total",
                "Requests that ended without a record: dropped or panicked.",
            )?,
            log_dropped: counter(
                r,
                "access_log_dropped_total",
                "Access log lines dropped because the output is slow.",
            )?,
            routes: Mutex::default(),
        })))
    }

    /// The handles of a route, found once and then kept in the route's slot.
    pub fn route<'a>(&self, route: &'a Route) -> Option<&'a Arc<RouteMetrics>> {
        route.state.get_or_init(|| self.handles(route))
    }

    fn handles(&self, route: &Route) -> Arc<RouteMetrics> {
        let labels: Labels = (route.source.namespace.clone(), route.source.name.clone(), route.host.clone());
        let mut all = self.0.routes.lock();
        let entry = all.entry(labels.clone()).or_insert_with(|| {
            let values: [&str; 3] = [&labels.0, &labels.1, &labels.2];
            let f = &self.0;
            let handles = Arc::new(RouteMetrics {
                duration: f.duration.with_label_values(&values),
                connect: f.connect.with_label_values(&values),
                response: f.response.with_label_values(&values),
                request_size: f.request_size.with_label_values(&values),
                response_size: f.response_size.with_label_values(&values),
                requests: Default::default(),
                rare: Mutex::default(),
                labels,
            });
            Entry { handles, gone_since: None }
        });
        entry.gone_since = None;
        entry.handles.clone()
    }

    /// Drops the series of routes that have been gone for a while. Called off the request path.
    pub fn sweep(&self, snapshot: &Snapshot, now: Instant) {
        let mut all = self.0.routes.lock();
        if all.is_empty() {
            return;
        }
        let live: HashSet<(&str, &str, &str)> =
            snapshot.routes.routes().map(|r| (&*r.source.namespace, &*r.source.name, &*r.host)).collect();
        all.retain(|(namespace, ingress, host), entry| {
            if live.contains(&(&**namespace, &**ingress, &**host)) {
                entry.gone_since = None;
                return true;
            }
            let since = *entry.gone_since.get_or_insert(now);
            let keep = now.saturating_duration_since(since) < KEEP_SERIES;
            if !keep {
                self.0.remove(&entry.handles);
            }
            keep
        });
    }

    /// A request was read.
    pub fn request_began(&self) {
        self.0.active.inc();
    }

    /// A request ended; `tunnel` says that it had become one.
    pub fn request_ended(&self, tunnel: bool) {
        self.0.active.dec();
        if tunnel {
            self.0.tunnels.dec();
        }
    }

    /// A request became a tunnel.
    pub fn tunnel_began(&self) {
        self.0.tunnels.inc();
    }

    /// Requests in flight.
    pub fn active_requests(&self) -> i64 {
        self.0.active.get()
    }

    /// A request ended without its record: its task was dropped or panicked.
    pub fn request_lost(&self, route: Option<&Route>) {
        self.0.panics.inc();
        if let Some(handles) = route.and_then(|r| self.route(r)) {
            self.count(handles, &Method::GET, StatusCode::INTERNAL_SERVER_ERROR);
        }
    }

    /// Requests that ended without their record.
    pub fn lost_requests(&self) -> u64 {
        self.0.panics.get()
    }

    /// One request of a route, by method and status.
    pub fn count(&self, route: &RouteMetrics, method: &Method, status: StatusCode) {
        let method = method_index(method);
        let code = status.as_u16();
        match CODES.iter().position(|c| *c == code) {
            Some(i) => route.requests[method].get_or_init(Default::default)[i]
                .get_or_init(|| self.series(route, METHODS[method], code))
                .inc(),
            None => {
                route.rare.lock().insert((METHODS[method], code));
                self.series(route, METHODS[method], code).inc();
            }
        }
    }

    fn series(&self, route: &RouteMetrics, method: &str, code: u16) -> IntCounter {
        let (namespace, ingress, host) = &route.labels;
        let mut digits = itoa::Buffer::new();
        self.0.requests.with_label_values(&[namespace, ingress, host, method, digits.format(code)])
    }

    /// A request that no route took.
    pub fn unmatched(&self, reason: &str) {
        self.0.unmatched.with_label_values(&[reason]).inc();
    }

    /// A backend failed a request.
    pub fn upstream_error(&self, route: &Route, reason: &str) {
        let source = &route.source;
        self.0
            .upstream_errors
            .with_label_values(&[&*source.namespace, &*source.name, &*route.host, reason])
            .inc();
    }

    /// An attempt after the first.
    pub fn retried(&self, route: &Route) {
        let source = &route.source;
        self.0.retries.with_label_values(&[&*source.namespace, &*source.name, &*route.host]).inc();
    }

    /// A client connection was accepted (after its TLS handshake).
    pub fn connection_opened(&self) {
        self.0.connections.inc();
    }

    /// A client connection ended.
    pub fn connection_closed(&self) {
        self.0.connections.dec();
    }

    /// A TLS handshake with a client ended.
    pub fn handshake(&self, version: &str, ok: bool) {
        self.0.handshakes.with_label_values(&[version, if ok { "success" } else { "failure" }]).inc();
    }

    /// The fallback certificate was served.
    pub fn fallback_certificate(&self) {
        self.0.fallback.inc();
    }

    /// Log lines were dropped because the output is slow.
    pub fn log_dropped(&self) -> IntCounter {
        self.0.log_dropped.clone()
    }
}

impl RouteMetrics {
    /// Sizes and times of one finished request.
    pub fn observe(&self, total: Duration, bytes_in: usize, bytes_out: usize) {
        self.duration.observe(total.as_secs_f64());
        self.request_size.observe(bytes_in as f64);
        self.response_size.observe(bytes_out as f64);
    }

    /// Backend times of one finished request.
    pub fn observe_upstream(&self, connect: Option<Duration>, response: Option<Duration>) {
        if let Some(connect) = connect {
            self.connect.observe(connect.as_secs_f64());
        }
        if let Some(response) = response {
            self.response.observe(response.as_secs_f64());
        }
    }
}

impl Families {
    fn remove(&self, route: &RouteMetrics) {
        let (namespace, ingress, host) = &route.labels;
        let labels: [&str; 3] = [namespace, ingress, host];
        for family in [&self.duration, &self.connect, &self.response, &self.request_size, &self.response_size]
        {
            let _ = family.remove_label_values(&labels);
        }
        let _ = self.retries.remove_label_values(&labels);
        for reason in ["dns", "connect", "tls", "timeout", "reset", "protocol"] {
            let _ = self.upstream_errors.remove_label_values(&[namespace, ingress, host, reason]);
        }
        let mut digits = itoa::Buffer::new();
        for (m, method) in METHODS.iter().enumerate() {
            for code in CODES.iter().filter(|_| route.requests[m].get().is_some()) {
                let _ = self.requests.remove_label_values(&[
                    &**namespace,
                    &**ingress,
                    &**host,
                    method,
                    digits.format(*code),
                ]);
            }
        }
        for (method, code) in route.rare.lock().iter() {
            let _ = self.requests.remove_label_values(&[
                &**namespace,
                &**ingress,
                &**host,
                method,
                digits.format(*code),
            ]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ingress_core::route::RuleIndex;
    use ingress_core::*;

    fn route(name: &str) -> Route {
        Route {
            path: PathMatch::prefix("/").unwrap(),
            policy: Arc::default(),
            https_redirect: false,
            backend: Arc::new(Backend {
                service: ServicePort { namespace: "ns".into(), name: "s".into(), port: 80 },
                address: BackendAddress::Unavailable(Unavailable::NoService),
                protocol: Default::default(),
                tls_name: "s.ns.svc".into(),
                verify: true,
                keepalive: true,
            }),
            source: Arc::new(ResourceRef::new(Kind::Ingress, "ns", name)),
            host: "h.example".into(),
            rule: RuleIndex { rule: 0, path: 0 },
            created: 0,
            state: Slot::new(),
        }
    }

    fn text(registry: &Registry) -> String {
        prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap()
    }

    #[test]
    fn series_of_a_deleted_route_go_after_a_while_and_others_stay() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).unwrap();
        let (gone, stays) = (route("gone"), route("stays"));
        for r in [&gone, &stays] {
            let handles = metrics.route(r).unwrap();
            metrics.count(handles, &Method::GET, StatusCode::OK);
            metrics.count(handles, &Method::from_bytes(b"BREW").unwrap(), StatusCode::IM_A_TEAPOT);
            metrics.upstream_error(r, "dns");
        }
        let mut table = RouteTable::default();
        table.set(&"h.example".parse().unwrap(), VirtualHost::build(vec![Arc::new(stays)]).0);
        let snapshot = Snapshot { routes: Arc::new(table), ..Default::default() };
        let t0 = Instant::now();
        metrics.sweep(&snapshot, t0);
        assert!(text(&registry).contains("ingress=\"gone\""), "kept for a while");
        metrics.sweep(&snapshot, t0 + KEEP_SERIES);
        let text = text(&registry);
        assert!(!text.contains("ingress=\"gone\""), "{text}");
        assert!(text.contains(
            r#"requests_total{code="418",host="h.example",ingress="stays",method="other",namespace="ns"} 1"#
        ));
    }

    #[test]
    fn two_routes_of_one_ingress_and_host_share_their_series() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).unwrap();
        let (a, b) = (route("same"), route("same"));
        metrics.count(metrics.route(&a).unwrap(), &Method::GET, StatusCode::OK);
        metrics.count(metrics.route(&b).unwrap(), &Method::GET, StatusCode::OK);
        assert!(text(&registry).contains(r#"method="GET",namespace="ns"} 2"#));
    }
}
