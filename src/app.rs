//! The composition root: makes the parts, starts them in order, ends them in order.

use crate::admin;
use crate::allocator;
use crate::args::{Deny, Mode, Settings};
use crate::debug::{Debug, Published};
use crate::demo;
use crate::readiness::Readiness;
use crate::telemetry;
use anyhow::Context;
use ingress_controller::{Source, SyncStatus};
use ingress_core::{BackendAddress, Reader};
use ingress_proxy::dial::DialGuard;
use ingress_proxy::resolve::{Resolver, ResolverConfig};
use ingress_proxy::{BindError, Bound, LogSink, Parts, Proxy, bind};
use prometheus::{IntGaugeVec, Opts, Registry};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

/// The set of backend names is brought up to date with the snapshot at most this often.
const NAMES_PAUSE: Duration = Duration::from_millis(200);

/// How often series of deleted routes are looked for.
const SWEEP_TICK: Duration = Duration::from_secs(30);

/// How long connections without a request in flight are waited for at the end.
const LAST_BYTES: Duration = Duration::from_secs(2);

/// Why the process ends with an error.
pub enum Failure {
    /// The configuration is at fault; nothing was started. Status 2.
    Usage(String),
    /// Anything else. Status 1.
    Run(anyhow::Error),
}

impl From<BindError> for Failure {
    fn from(e: BindError) -> Self {
        Failure::Usage(e.to_string())
    }
}

impl From<anyhow::Error> for Failure {
    fn from(e: anyhow::Error) -> Self {
        Failure::Run(e)
    }
}

/// Runs until SIGTERM or SIGINT.
pub fn run(mut settings: Settings) -> Result<(), Failure> {
    raise_open_files();
    // Sockets first: a busy port must be known before anything else exists.
    let bound = Bound::new(&settings.proxy)?;
    let metrics_listener = bind(settings.proxy.bind_address, settings.metrics_port, "--metrics-port")?;

    if matches!(settings.mode, Mode::Demo) {
        // The demo is asked at the very port it listens on, which may have been any free one.
        settings.proxy.http_port = port(&bound.http)?;
        settings.proxy.https_port = port(&bound.https)?;
        settings.proxy.redirect_port = Some(settings.proxy.https_port);
    }

    let registry = Registry::new();
    let metrics = ingress_proxy::Metrics::register(&registry).context("cannot register metrics")?;
    let controller_metrics =
        ingress_controller::Metrics::register(&registry).context("cannot register metrics")?;
    process_metrics(&registry).context("cannot register metrics")?;
    let sink =
        LogSink::new(std::io::stdout(), metrics.log_dropped()).context("cannot start the log writer")?;
    let _flush = FlushAtExit(sink.clone());

    let control = runtime("control", 2).context("cannot start the control-plane runtime")?;
    let data = runtime("proxy", settings.proxy.threads).context("cannot start the data-plane runtime")?;

    let (source, demo) = source(&settings, &control)?;
    telemetry::start(sink.clone(), settings.log_level, settings.log_json);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), threads = settings.proxy.threads, "starting");

    let resolver = Resolver::new(
        ResolverConfig { servers: settings.dns_servers.clone(), ..Default::default() },
        control.handle().clone(),
    )
    .map_err(|e| Failure::Usage(format!("--dns-servers: {e}")))?;
    let guard = match (&settings.deny_backends, &settings.mode) {
        (Deny::List(list), _) => DialGuard::from_cidrs(list.clone()),
        (Deny::Nothing, _) | (Deny::Default, Mode::Manifests(_) | Mode::Demo) => DialGuard::none(),
        (Deny::Default, Mode::Cluster { .. }) => DialGuard::default_deny(
            ingress_proxy::dial::own_addresses().context("cannot list this host's addresses")?,
        ),
    };

    let (mut publisher, reader) = ingress_core::channel();
    let published = Arc::new(Notify::new());
    let moment = Published::default();
    publisher.observe({
        let (published, moment) = (published.clone(), moment.clone());
        move |_| {
            moment.note();
            published.notify_one();
        }
    });
    let debug = Debug {
        reader: reader.clone(),
        published: moment,
        resolver: resolver.clone(),
        guard: guard.clone(),
        config: Arc::new(settings.proxy.clone()),
    };
    let sockets = [("http", &bound.http), ("https", &bound.https), ("metrics", &metrics_listener)];
    let further = bound.gateway.iter().map(|(_, socket)| ("gateway", socket));
    for (listener, socket) in sockets.into_iter().chain(further) {
        let address = socket.local_addr().context("a bound socket has no address")?;
        tracing::info!(listener, %address, "listening");
    }
    let proxy = {
        let _data = data.enter();
        let parts = Parts {
            reader: reader.clone(),
            resolver: resolver.clone(),
            guard,
            metrics: metrics.clone(),
            log: settings.access_log.then(|| sink.clone()),
        };
        Proxy::start(settings.proxy.clone(), bound, parts).context("cannot start the proxy")?
    };

    let sync = Arc::new(SyncStatus::default());
    let readiness = Readiness::new(sync.clone());
    let ended = control.block_on(async {
        // Before anything can be waited for, so that a signal is never missed.
        let mut signals = Signals::new().context("cannot listen for signals")?;
        let listener = tokio::net::TcpListener::from_std(metrics_listener).context("metrics port")?;
        tokio::spawn(prepare(reader.clone(), resolver, metrics.clone(), published));
        tokio::spawn(admin::serve(listener, registry, readiness.clone(), debug));
        tokio::spawn(sweep(reader, metrics));
        let controller = ingress_controller::Config {
            settings: settings.translate.clone(),
            source,
            watch_namespaces: settings.watch_namespaces.clone(),
            reporter_instance: host_name(),
            leader_election: settings.leader_election,
        };
        tokio::spawn(async move {
            ingress_controller::run(controller, publisher, controller_metrics, sync).await;
            tracing::error!("the controller ended; the last snapshot is served on");
        });
        if let Some(demo) = &demo {
            let ready = readiness.clone();
            let text = demo.text.clone();
            tokio::spawn(async move { demo::announce(&ready, &text).await });
        }
        supervise(&proxy, &readiness, &settings, &mut signals).await
    });
    data.shutdown_background();
    control.shutdown_background();
    Ok(ended?)
}

/// Waits for a signal, then lets requests in flight end within the one window.
async fn supervise(
    proxy: &Proxy,
    readiness: &Readiness,
    settings: &Settings,
    signals: &mut Signals,
) -> anyhow::Result<()> {
    let mut alive = tokio::time::interval(Duration::from_secs(1));
    let name = loop {
        tokio::select! {
            name = signals.next() => break name,
            _ = alive.tick() => anyhow::ensure!(!proxy.finished(), "the accept loops ended"),
        }
    };
    let deadline = Instant::now() + settings.shutdown_timeout.max(settings.shutdown_delay);
    tracing::info!(signal = name, in_flight = proxy.in_flight(), "shutting down");
    readiness.end();
    proxy.drain();
    let drained = async {
        tokio::time::sleep(settings.shutdown_delay).await;
        proxy.stop_accepting();
        let mut quiet = Instant::now();
        while proxy.in_flight() > 0
            || !proxy.finished()
            // Half a request is still read, and the last frames are still written; a client that only
            // stays connected is not waited for.
            || proxy.connections() > 0 && quiet.elapsed() < LAST_BYTES
        {
            if proxy.in_flight() > 0 {
                quiet = Instant::now();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        _ = drained => tracing::info!("all requests ended"),
        _ = tokio::time::sleep_until(deadline.into()) => {
            tracing::warn!(in_flight = proxy.in_flight(), "the shutdown window is over; what is left is cut");
        }
        name = signals.next() => tracing::warn!(signal = name, "second signal; ending at once"),
    }
    Ok(())
}

struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
        }
    }
}

fn port(socket: &std::net::TcpListener) -> anyhow::Result<u16> {
    Ok(socket.local_addr().context("a bound socket has no address")?.port())
}

fn source(settings: &Settings, control: &Runtime) -> Result<(Source, Option<demo::Demo>), Failure> {
    match &settings.mode {
        Mode::Cluster { kubeconfig, context } => {
            let client = control
                .block_on(ingress_controller::client(kubeconfig.as_deref(), context.as_deref()))
                .map_err(|e| Failure::Usage(OneLine(&e).to_string()))?;
            Ok((Source::Cluster(client), None))
        }
        Mode::Manifests(dir) if dir.is_dir() => Ok((Source::Manifests(dir.clone()), None)),
        Mode::Manifests(dir) => {
            Err(Failure::Usage(format!("--manifests={}: accepted: a folder of YAML files", dir.display())))
        }
        Mode::Demo => {
            let demo =
                control.block_on(demo::Demo::new(&settings.proxy)).context("cannot set up the demo")?;
            Ok((Source::Manifests(demo.dir.clone()), Some(demo)))
        }
    }
}

/// An error and its causes on one line.
struct OneLine<'a>(&'a dyn std::error::Error);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.to_string();
        let mut cause = self.0.source();
        while let Some(c) = cause {
            let more = c.to_string();
            if !text.contains(&more) {
                text.push_str(": ");
                text.push_str(&more);
            }
            cause = c.source();
        }
        f.write_str(&text.replace('\n', " "))
    }
}

/// What requests to a new snapshot's routes need and need not wait for: the routes' numbers, and the
/// addresses of their backends. The resolver's names are kept to those that routes use.
async fn prepare(
    reader: Reader,
    resolver: Resolver,
    metrics: ingress_proxy::Metrics,
    published: Arc<Notify>,
) {
    let mut settled = false;
    loop {
        published.notified().await;
        let snapshot = reader.load();
        metrics.prepare(&snapshot);
        let names: std::collections::HashSet<&Arc<str>> = snapshot
            .all_routes()
            .flat_map(|route| route.backends())
            .filter_map(|backend| match &backend.address {
                BackendAddress::Name(name, _) => Some(name),
                _ => None,
            })
            .collect();
        resolver.retain(names.into_iter().cloned());
        // A burst of changes is taken together.
        tokio::time::sleep(NAMES_PAUSE).await;
        if !std::mem::replace(&mut settled, true) {
            allocator::give_back();
        }
    }
}

async fn sweep(reader: Reader, metrics: ingress_proxy::Metrics) {
    let mut tick = tokio::time::interval(SWEEP_TICK);
    loop {
        tick.tick().await;
        metrics.sweep(&reader.load(), Instant::now());
    }
}

fn runtime(name: &'static str, threads: usize) -> std::io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(threads).thread_name(name).enable_all().build()
}

pub(crate) fn process_metrics(registry: &Registry) -> Result<(), prometheus::Error> {
    let info = IntGaugeVec::new(
        Opts::new("tak_ingress_build_info", "Always 1; the build is in the labels."),
        &["version"],
    )?;
    info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    registry.register(Box::new(info))?;
    registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))
}

fn host_name() -> String {
    std::env::var("POD_NAME")
        .or_else(|_| std::env::var("HOSTNAME"))
        .ok()
        .or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok())
        .map(|n| n.trim().to_owned())
        .filter(|n| !n.is_empty())
        .unwrap_or_else(|| "tak-os-ingress".into())
}

/// Each connection takes a descriptor or two; the soft limit is often 1024.
fn raise_open_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls only read or write the struct that they are given.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// The last lines are written however `run` ends.
struct FlushAtExit(LogSink);

impl Drop for FlushAtExit {
    fn drop(&mut self) {
        self.0.flush(Duration::from_secs(1));
    }
}
