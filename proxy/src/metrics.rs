//! The data plane's metric families. Code calls verbs; label values are small sets and the
//! configured objects, never text from the wire.

mod route;

pub use route::RouteMetrics;

use crate::policy::auth::Outcome;
use ingress_core::{Route, Snapshot};
use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry};
use route::Routes;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PREFIX: &str = "tak_ingress_";
const ROUTE: [&str; 3] = ["namespace", "ingress", "host"];

/// How long the series of a route that is gone stay readable.
const KEEP_SERIES: Duration = Duration::from_secs(300);

/// All families of the data plane; cheap to clone.
#[derive(Clone)]
pub struct Metrics(Arc<Families>);

struct Families {
    routes: Routes,
    upstream_errors: IntCounterVec,
    retries: IntCounterVec,
    unmatched: IntCounterVec,
    connections: IntGauge,
    refused: IntCounter,
    slow_clients: IntCounter,
    active: IntGauge,
    tunnels: IntGauge,
    handshakes: IntCounterVec,
    fallback: IntCounter,
    panics: IntCounter,
    log_dropped: IntCounter,
    auth: IntCounterVec,
    auth_duration: HistogramVec,
    auth_throttled: IntCounterVec,
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
        let auth_duration = HistogramVec::new(
            HistogramOpts::new(
                format!("{PREFIX}auth_duration_seconds"),
                "Time that authentication took, by type: basic, external, oauth.",
            )
            .buckets(vec![
                0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
            ]),
            &["type"],
        )?;
        r.register(Box::new(auth_duration.clone()))?;
        let routes = Routes::new()?;
        r.register(Box::new(routes.clone()))?;
        Ok(Self(Arc::new(Families {
            routes,
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
                "Requests answered without a route: no_host, no_path, malformed, head_too_large, client_timeout, proxy_protocol, misdirected, client_certificate.",
                &["reason"],
            )?,
            connections: gauge(r, "client_connections", "Open client connections.")?,
            refused: counter(
                r,
                "client_connections_refused_total",
                "Client connections closed at once because --max-connections were open.",
            )?,
            slow_clients: counter(
                r,
                "slow_clients_cut_total",
                "Clients cut off, or refused, because --response-stream-budget was used up.",
            )?,
            active: gauge(r, "active_requests", "Requests in flight, tunnels included.")?,
            tunnels: gauge(r, "upgraded_tunnels", "Open tunnels: WebSocket, and connections of TLSRoutes.")?,
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
                "Requests in which a hook panicked, or that were dropped without a record.",
            )?,
            log_dropped: counter(
                r,
                "access_log_dropped_total",
                "Access log lines dropped because the output is slow.",
            )?,
            auth: counters(
                r,
                "auth_requests_total",
                "Requests to routes with authentication, by type and result: allowed, missing, denied, \
                 redirected, throttled, error.",
                &["namespace", "ingress", "host", "type", "result"],
            )?,
            auth_duration,
            auth_throttled: counters(
                r,
                "auth_throttled_requests_total",
                "Requests answered 429 because too many credentials of their client address were wrong.",
                &ROUTE,
            )?,
        })))
    }

    /// The numbers of a route, found once and then kept in the route's slot.
    pub fn route<'a>(&self, route: &'a Route) -> Option<&'a Arc<RouteMetrics>> {
        route.state.get_or_init(|| self.numbers(route))
    }

    /// Makes the numbers of all routes, so that no request does it. Called off the request path.
    pub fn prepare(&self, snapshot: &Snapshot) {
        for route in snapshot.all_routes() {
            self.route(route);
        }
    }

    fn numbers(&self, route: &Route) -> Arc<RouteMetrics> {
        self.0.routes.of((route.source.namespace.clone(), route.source.name.clone(), route.host.clone()))
    }

    /// Drops the series of routes that have been gone for a while. Called off the request path.
    pub fn sweep(&self, snapshot: &Snapshot, now: Instant) {
        if self.0.routes.is_empty() {
            return;
        }
        let live: HashSet<(&str, &str, &str)> =
            snapshot.all_routes().map(|r| (&*r.source.namespace, &*r.source.name, &*r.host)).collect();
        let gone = self.0.routes.sweep(|(n, i, h)| live.contains(&(&**n, &**i, &**h)), now, KEEP_SERIES);
        for (namespace, ingress, host) in gone {
            let labels: [&str; 3] = [&namespace, &ingress, &host];
            let _ = self.0.retries.remove_label_values(&labels);
            let _ = self.0.auth_throttled.remove_label_values(&labels);
            for kind in crate::policy::auth::TYPES {
                for outcome in Outcome::ALL {
                    let all = [labels[0], labels[1], labels[2], kind, outcome.as_str()];
                    let _ = self.0.auth.remove_label_values(&all);
                }
            }
            for reason in ["dns", "connect", "tls", "timeout", "reset", "protocol"] {
                let _ =
                    self.0.upstream_errors.remove_label_values(&[labels[0], labels[1], labels[2], reason]);
            }
        }
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
            handles.count(&http::Method::GET, http::StatusCode::INTERNAL_SERVER_ERROR);
        }
    }

    /// A hook panicked; its request is recorded like others.
    pub fn panicked(&self) {
        self.0.panics.inc();
    }

    /// Requests that ended without their record.
    pub fn lost_requests(&self) -> u64 {
        self.0.panics.get()
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

    /// The mechanism of a route has decided about a request.
    pub(crate) fn authenticated(&self, route: &Route, kind: &str, outcome: Outcome, took: Duration) {
        let source = &route.source;
        let labels = [&*source.namespace, &*source.name, &*route.host];
        let all = [labels[0], labels[1], labels[2], kind, outcome.as_str()];
        self.0.auth.with_label_values(&all).inc();
        self.0.auth_duration.with_label_values(&[kind]).observe(took.as_secs_f64());
        if outcome == Outcome::Throttled {
            self.0.auth_throttled.with_label_values(&labels).inc();
        }
    }

    /// A client connection was accepted (after its TLS handshake).
    pub fn connection_opened(&self) {
        self.0.connections.inc();
    }

    /// A client connection was closed at once: there are as many as there may be.
    pub fn connection_refused(&self) {
        self.0.refused.inc();
    }

    /// A client that does not take its response was cut off, since the room was needed.
    pub fn slow_client_cut(&self) {
        self.0.slow_clients.inc();
    }

    /// A client connection ended.
    pub fn connection_closed(&self) {
        self.0.connections.dec();
    }

    /// Open client connections.
    pub fn connections(&self) -> i64 {
        self.0.connections.get()
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use http::{Method, StatusCode};
    use ingress_core::route::RuleIndex;
    use ingress_core::*;

    pub(crate) fn route(name: &str) -> Route {
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
                tls: None,
                client: None,
            }),
            source: Arc::new(ResourceRef::new(Kind::Ingress, "ns", name)),
            host: "h.example".into(),
            rule: RuleIndex { rule: 0, path: 0 },
            created: 0,
            conditions: None,
            actions: None,
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
            handles.count(&Method::GET, StatusCode::OK);
            handles.count(&Method::from_bytes(b"BREW").unwrap(), StatusCode::IM_A_TEAPOT);
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
    fn numbers_of_a_snapshot_are_made_before_requests_come() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).unwrap();
        let prepared = Arc::new(route("early"));
        let mut table = RouteTable::default();
        table.set(&"h.example".parse().unwrap(), VirtualHost::build(vec![prepared.clone()]).0);
        metrics.prepare(&Snapshot { routes: Arc::new(table), ..Default::default() });
        let made = prepared.state.get_or_init(|| -> Arc<RouteMetrics> { panic!("made by a request") });
        assert!(Arc::ptr_eq(made.unwrap(), metrics.route(&prepared).unwrap()));
    }

    #[test]
    fn two_routes_of_one_ingress_and_host_share_their_series() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).unwrap();
        let (a, b) = (route("same"), route("same"));
        metrics.route(&a).unwrap().count(&Method::GET, StatusCode::OK);
        metrics.route(&b).unwrap().count(&Method::GET, StatusCode::OK);
        assert!(text(&registry).contains(r#"method="GET",namespace="ns"} 2"#));
    }
}
