//! The numbers of one route, kept as plain atomics: ten thousand routes with a dozen histograms of
//! the metrics library would take sixty megabytes. The library's registry gets them as a collector.

use super::PREFIX;
use http::{Method, StatusCode};
use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, Counter, Histogram, LabelPair, Metric, MetricFamily, MetricType};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// `namespace`, `ingress`, `host`.
pub type Labels = (Arc<str>, Arc<str>, Arc<str>);

/// Bounds in microseconds.
const TIMES: [u64; 14] = [
    1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000, 30_000_000,
];

/// Bounds in bytes.
const SIZES: [u64; 8] = [256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576, 16_777_216];

const METHODS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "other"];
const CODES: [u16; 20] =
    [200, 101, 201, 202, 204, 206, 301, 302, 304, 308, 400, 401, 403, 404, 429, 499, 500, 502, 503, 504];

/// A histogram over fixed bounds; the last count is for what is beyond them.
struct Buckets<const N: usize> {
    counts: [AtomicU64; N],
    sum: AtomicU64,
}

impl<const N: usize> Default for Buckets<N> {
    fn default() -> Self {
        Self { counts: std::array::from_fn(|_| AtomicU64::new(0)), sum: AtomicU64::new(0) }
    }
}

impl<const N: usize> Buckets<N> {
    fn observe(&self, bounds: &[u64], value: u64) {
        let i = bounds.iter().position(|bound| value <= *bound).unwrap_or(N - 1);
        self.counts[i].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    /// `None` before the first observation. `unit`: how many steps make one of the unit shown.
    fn show(&self, bounds: &[u64], unit: f64) -> Option<Histogram> {
        let mut total = 0;
        let mut buckets = Vec::with_capacity(bounds.len());
        for (count, bound) in self.counts.iter().zip(bounds) {
            total += count.load(Relaxed);
            let mut bucket = Bucket::default();
            bucket.set_cumulative_count(total);
            bucket.set_upper_bound(*bound as f64 / unit);
            buckets.push(bucket);
        }
        total += self.counts[N - 1].load(Relaxed);
        let mut histogram = Histogram::default();
        histogram.set_sample_count(total);
        histogram.set_sample_sum(self.sum.load(Relaxed) as f64 / unit);
        histogram.set_bucket(buckets);
        (total > 0).then_some(histogram)
    }
}

/// The numbers of one `namespace, ingress, host`.
pub struct RouteMetrics {
    labels: Labels,
    requests: [OnceLock<Box<[AtomicU64; CODES.len()]>>; METHODS.len()],
    /// Codes outside the table.
    rare: Mutex<BTreeMap<(usize, u16), u64>>,
    duration: Buckets<15>,
    /// From the first new connection on: many routes share their backends' connections.
    connect: OnceLock<Box<Buckets<15>>>,
    response: Buckets<15>,
    request_size: Buckets<9>,
    response_size: Buckets<9>,
    limited: AtomicU64,
    preflights: AtomicU64,
}

impl RouteMetrics {
    fn new(labels: Labels) -> Self {
        Self {
            labels,
            requests: Default::default(),
            rare: Mutex::default(),
            duration: Buckets::default(),
            connect: OnceLock::new(),
            response: Buckets::default(),
            request_size: Buckets::default(),
            response_size: Buckets::default(),
            limited: AtomicU64::new(0),
            preflights: AtomicU64::new(0),
        }
    }

    /// One request, by method and status.
    pub fn count(&self, method: &Method, status: StatusCode) {
        let method = METHODS.iter().position(|m| *m == method.as_str()).unwrap_or(METHODS.len() - 1);
        let code = status.as_u16();
        match CODES.iter().position(|c| *c == code) {
            Some(i) => drop(self.requests[method].get_or_init(Default::default)[i].fetch_add(1, Relaxed)),
            None => *self.rare.lock().entry((method, code)).or_default() += 1,
        }
    }

    /// One request was refused by the route's limits.
    pub fn limited(&self) {
        self.limited.fetch_add(1, Relaxed);
    }

    /// One preflight was answered.
    pub fn preflight(&self) {
        self.preflights.fetch_add(1, Relaxed);
    }

    /// Sizes and times of one finished request.
    pub fn observe(&self, total: Duration, bytes_in: usize, bytes_out: usize) {
        self.duration.observe(&TIMES, micros(total));
        self.request_size.observe(&SIZES, bytes_in as u64);
        self.response_size.observe(&SIZES, bytes_out as u64);
    }

    /// Backend times of one finished request.
    pub fn observe_upstream(&self, connect: Option<Duration>, response: Option<Duration>) {
        if let Some(connect) = connect {
            self.connect.get_or_init(Default::default).observe(&TIMES, micros(connect));
        }
        if let Some(response) = response {
            self.response.observe(&TIMES, micros(response));
        }
    }

    fn pairs(&self) -> Vec<LabelPair> {
        let (namespace, ingress, host) = &self.labels;
        vec![pair("host", host), pair("ingress", ingress), pair("namespace", namespace)]
    }

    /// The counters that are not zero.
    fn counters(&self, out: &mut Vec<Metric>) {
        let mut add = |method: usize, code: u16, count: u64| {
            // In the order of names, as the registry's own families have them.
            let mut labels = vec![pair("code", &code.to_string())];
            labels.extend(self.pairs());
            labels.insert(3, pair("method", METHODS[method]));
            let mut counter = Counter::default();
            counter.set_value(count as f64);
            let mut metric = Metric::from_label(labels);
            metric.set_counter(counter);
            out.push(metric);
        };
        for (method, row) in self.requests.iter().enumerate() {
            for (code, count) in CODES.iter().zip(row.get().into_iter().flat_map(|row| row.iter())) {
                match count.load(Relaxed) {
                    0 => {}
                    n => add(method, *code, n),
                }
            }
        }
        for ((method, code), count) in self.rare.lock().iter() {
            add(*method, *code, *count);
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn pair(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.into());
    pair.set_value(value.into());
    pair
}

struct Entry {
    numbers: Arc<RouteMetrics>,
    gone_since: Option<Instant>,
}

/// The numbers of all routes; cheap to clone.
#[derive(Clone)]
pub struct Routes {
    all: Arc<Mutex<HashMap<Labels, Entry>>>,
    families: Arc<[Family]>,
}

/// One family: how it is called and how a route's part of it is shown.
struct Family {
    desc: Desc,
    name: String,
    help: &'static str,
    show: Show,
}

enum Show {
    Counters,
    Counter(fn(&RouteMetrics) -> &AtomicU64),
    Histogram(fn(&RouteMetrics) -> Option<Histogram>),
}

impl Routes {
    /// No routes yet.
    pub fn new() -> Result<Self, prometheus::Error> {
        const SECOND: f64 = 1e6;
        let families: [(&str, &str, Show); 8] = [
            ("requests_total", "Requests that matched a route, by method and status.", Show::Counters),
            (
                "request_duration_seconds",
                "From request head to end of response.",
                Show::Histogram(|r| r.duration.show(&TIMES, SECOND)),
            ),
            (
                "upstream_connect_duration_seconds",
                "Time to a new backend connection, DNS, TCP and TLS together.",
                Show::Histogram(|r| r.connect.get()?.show(&TIMES, SECOND)),
            ),
            (
                "upstream_response_duration_seconds",
                "From a ready backend connection to the response head.",
                Show::Histogram(|r| r.response.show(&TIMES, SECOND)),
            ),
            (
                "request_size_bytes",
                "Request body bytes read from clients.",
                Show::Histogram(|r| r.request_size.show(&SIZES, 1.0)),
            ),
            (
                "response_size_bytes",
                "Response body bytes sent to clients.",
                Show::Histogram(|r| r.response_size.show(&SIZES, 1.0)),
            ),
            (
                "rate_limited_requests_total",
                "Requests refused by the limits of their route.",
                Show::Counter(|r| &r.limited),
            ),
            (
                "cors_preflights_total",
                "CORS preflights that the proxy answered.",
                Show::Counter(|r| &r.preflights),
            ),
        ];
        let families = families.into_iter().map(|(name, help, show)| {
            let name = format!("{PREFIX}{name}");
            let mut labels = vec!["namespace".into(), "ingress".into(), "host".into()];
            if matches!(show, Show::Counters) {
                labels.extend(["method".into(), "code".into()]);
            }
            let desc = Desc::new(name.clone(), help.into(), labels, HashMap::new())?;
            Ok(Family { desc, name, help, show })
        });
        Ok(Self { all: Arc::default(), families: families.collect::<Result<_, prometheus::Error>>()? })
    }

    /// The numbers under these labels, made on first use.
    pub fn of(&self, labels: Labels) -> Arc<RouteMetrics> {
        let mut all = self.all.lock();
        let entry = all.entry(labels).or_insert_with_key(|labels| Entry {
            numbers: Arc::new(RouteMetrics::new(labels.clone())),
            gone_since: None,
        });
        entry.gone_since = None;
        entry.numbers.clone()
    }

    /// Forgets labels that have not been live for `keep`; returns what was forgotten.
    pub fn sweep(&self, live: impl Fn(&Labels) -> bool, now: Instant, keep: Duration) -> Vec<Labels> {
        let mut gone = Vec::new();
        self.all.lock().retain(|labels, entry| {
            if live(labels) {
                entry.gone_since = None;
                return true;
            }
            let since = *entry.gone_since.get_or_insert(now);
            let stays = now.saturating_duration_since(since) < keep;
            if !stays {
                gone.push(labels.clone());
            }
            stays
        });
        gone
    }

    /// Whether there is any.
    pub fn is_empty(&self) -> bool {
        self.all.lock().is_empty()
    }
}

impl Collector for Routes {
    fn desc(&self) -> Vec<&Desc> {
        self.families.iter().map(|f| &f.desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // Not under the lock: a request that is the first of its route may be waiting for it.
        let all: Vec<_> = self.all.lock().values().map(|entry| entry.numbers.clone()).collect();
        self.families
            .iter()
            .map(|family| {
                let mut metrics = Vec::with_capacity(all.len());
                for route in &all {
                    match family.show {
                        Show::Counters => route.counters(&mut metrics),
                        Show::Counter(of) => match of(route).load(Relaxed) {
                            0 => {}
                            n => {
                                let mut metric = Metric::from_label(route.pairs());
                                let mut counter = Counter::default();
                                counter.set_value(n as f64);
                                metric.set_counter(counter);
                                metrics.push(metric);
                            }
                        },
                        Show::Histogram(show) => metrics.extend(show(route).map(|histogram| {
                            let mut metric = Metric::from_label(route.pairs());
                            metric.set_histogram(histogram);
                            metric
                        })),
                    }
                }
                let mut shown = MetricFamily::default();
                shown.set_name(family.name.clone());
                shown.set_help(family.help.into());
                shown.set_field_type(match family.show {
                    Show::Counters | Show::Counter(_) => MetricType::COUNTER,
                    Show::Histogram(_) => MetricType::HISTOGRAM,
                });
                shown.set_metric(metrics);
                shown
            })
            .filter(|family| !family.get_metric().is_empty())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::{Registry, TextEncoder};

    #[test]
    fn numbers_are_shown_as_the_library_would() {
        let registry = Registry::new();
        let routes = Routes::new().unwrap();
        registry.register(Box::new(routes.clone())).unwrap();
        let route = routes.of(("ns".into(), "web".into(), "a.example".into()));
        route.count(&Method::GET, StatusCode::OK);
        route.count(&Method::GET, StatusCode::OK);
        route.count(&Method::from_bytes(b"BREW").unwrap(), StatusCode::IM_A_TEAPOT);
        route.observe(Duration::from_millis(3), 0, 70_000);
        route.observe(Duration::from_secs(99), 300, 1 << 30);
        let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        let labels = r#"host="a.example",ingress="web",namespace="ns""#;
        for line in [
            r#"tak_ingress_requests_total{code="200",host="a.example",ingress="web",method="GET",namespace="ns"} 2"#.into(),
            r#"tak_ingress_requests_total{code="418",host="a.example",ingress="web",method="other",namespace="ns"} 1"#.into(),
            format!(r#"tak_ingress_request_duration_seconds_bucket{{{labels},le="0.0025"}} 0"#),
            format!(r#"tak_ingress_request_duration_seconds_bucket{{{labels},le="0.005"}} 1"#),
            format!(r#"tak_ingress_request_duration_seconds_bucket{{{labels},le="30"}} 1"#),
            format!(r#"tak_ingress_request_duration_seconds_bucket{{{labels},le="+Inf"}} 2"#),
            format!("tak_ingress_request_duration_seconds_sum{{{labels}}} 99.003"),
            format!("tak_ingress_request_duration_seconds_count{{{labels}}} 2"),
            format!(r#"tak_ingress_request_size_bytes_bucket{{{labels},le="256"}} 1"#),
            format!(r#"tak_ingress_response_size_bytes_bucket{{{labels},le="262144"}} 1"#),
            "# TYPE tak_ingress_response_size_bytes histogram".into(),
            "# TYPE tak_ingress_requests_total counter".into(),
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        assert!(!text.contains("upstream_connect"), "nothing seen, nothing shown");
    }

    #[test]
    fn a_route_takes_less_than_a_kilobyte() {
        assert!(size_of::<RouteMetrics>() + size_of::<[AtomicU64; CODES.len()]>() < 1024);
    }
}
