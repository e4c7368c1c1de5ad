//! Process log: `tracing` events to the same writer as the access log.

use ingress_proxy::LogSink;
use std::io;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

/// Installs the subscriber. Pingora logs through another crate that has no subscriber at all: its
/// messages quote raw request bytes.
pub fn start(sink: LogSink, level: LevelFilter, json: bool) {
    let others = level.min(LevelFilter::WARN);
    let targets = Targets::new()
        .with_default(level)
        .with_target("hyper", others)
        // Both log every retry; the controller says once that a watch is interrupted.
        .with_target("kube_client", LevelFilter::OFF)
        .with_target("kube_runtime", LevelFilter::OFF)
        .with_target("tower", others)
        .with_target("hickory", LevelFilter::OFF);
    let layer = fmt::layer().with_writer(Lines(sink)).with_target(false);
    let layer = if json { layer.json().flatten_event(true).boxed() } else { layer.with_ansi(false).boxed() };
    tracing_subscriber::registry().with(layer.with_filter(targets)).init();
}

struct Lines(LogSink);

struct Line(LogSink);

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line(self.0.clone())
    }
}

impl io::Write for Line {
    /// The formatter hands over whole events, newline included.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.0.push(event);
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
