//! `/healthz`, `/readyz`, `/metrics` and `/debug` on a port of their own, off the data plane's threads.

use crate::debug::{self, Debug};
use crate::readiness::Readiness;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HOST};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus::{Encoder, Registry, TextEncoder};
use serde_json::Value;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Connections at once; more wait in the kernel.
const MAX_CONNECTIONS: usize = 64;

const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves until the process ends.
pub async fn serve(listener: TcpListener, registry: Registry, readiness: Readiness, debug: Debug) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        let (stream, peer) = match listener.accept().await {
            Ok((stream, peer)) => (stream, peer.ip()),
            Err(error) => {
                tracing::warn!(%error, "accept on the metrics port failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (registry, readiness, debug) = (registry.clone(), readiness.clone(), debug.clone());
        tokio::spawn(async move {
            let answer = service_fn(|request| {
                let (registry, readiness, debug) = (registry.clone(), readiness.clone(), debug.clone());
                async move { Ok::<_, Infallible>(answer(request, registry, &readiness, debug, peer).await) }
            });
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .max_buf_size(32 << 10)
                .serve_connection(TokioIo::new(stream), answer)
                .await;
            drop((served, slot));
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    registry: Registry,
    readiness: &Readiness,
    debug: Debug,
    peer: IpAddr,
) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n");
        response.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/healthz" => text(StatusCode::OK, "OK"),
        "/readyz" => match readiness.pending() {
            pending if pending.is_empty() => text(StatusCode::OK, "OK"),
            pending => text(StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", pending.join(", "))),
        },
        "/metrics" => {
            let open = request
                .headers()
                .get(ACCEPT)
                .and_then(|v| v.to_str().ok())
                .is_some_and(|v| v.contains("application/openmetrics-text"));
            // Ten thousand hosts take a tenth of a second to encode.
            let encoded =
                tokio::task::spawn_blocking(
                    move || if open { openmetrics(&registry) } else { plain(&registry) },
                );
            match encoded.await {
                Ok(Ok((kind, body))) => {
                    let mut response = Response::new(Full::from(body));
                    response
                        .headers_mut()
                        .insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
                    response
                }
                _ => text(StatusCode::INTERNAL_SERVER_ERROR, "metrics could not be encoded\n"),
            }
        }
        path @ ("/debug/snapshot" | "/debug/explain") => {
            if !debug::allowed(peer, request.headers().get(HOST)) {
                let why = "only from this machine, under its name localhost: through a port-forward\n";
                return text(StatusCode::FORBIDDEN, why);
            }
            let explain = path == "/debug/explain";
            let query = request.uri().query().unwrap_or_default().to_owned();
            let found = tokio::task::spawn_blocking(move || {
                if explain { debug.explain(&query) } else { debug.snapshot(&query) }
            });
            match found.await {
                Ok(Ok(value)) => json(&value),
                Ok(Err(why)) => text(StatusCode::BAD_REQUEST, why + "\n"),
                Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "it could not be told\n"),
            }
        }
        _ => text(
            StatusCode::NOT_FOUND,
            "not found; here are /healthz, /readyz, /metrics, /debug/snapshot and /debug/explain\n",
        ),
    }
}

fn json(value: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(value.to_string() + "\n"));
    let kind = hyper::header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let plain = hyper::header::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

type Encoded = Result<(&'static str, Vec<u8>), prometheus::Error>;

fn plain(registry: &Registry) -> Encoded {
    let mut out = Vec::new();
    TextEncoder::new().encode(&registry.gather(), &mut out)?;
    Ok((prometheus::TEXT_FORMAT, out))
}

/// OpenMetrics 1.0: a counter's family is named without its `_total`, and the text ends in `# EOF`.
fn openmetrics(registry: &Registry) -> Encoded {
    let (_, text) = plain(registry)?;
    let text = String::from_utf8_lossy(&text);
    let mut counters = std::collections::HashSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ")
            && let Some(name) = rest.strip_suffix(" counter")
        {
            counters.insert(name.to_owned());
        }
    }
    let mut out = String::with_capacity(text.len() + 16);
    for line in text.lines() {
        let header = line
            .strip_prefix("# HELP ")
            .map(|r| ("# HELP ", r))
            .or(line.strip_prefix("# TYPE ").map(|r| ("# TYPE ", r)));
        match header {
            Some((mark, rest)) => {
                let (name, tail) = rest.split_once(' ').unwrap_or((rest, ""));
                let family =
                    if counters.contains(name) { name.strip_suffix("_total").unwrap_or(name) } else { name };
                out.push_str(&format!("{mark}{family} {tail}\n"));
            }
            None => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out.push_str("# EOF\n");
    Ok(("application/openmetrics-text; version=1.0.0; charset=utf-8", out.into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::{IntCounter, IntGauge};

    #[test]
    fn openmetrics_names_counter_families_without_total_and_ends_in_eof() {
        let registry = Registry::new();
        let counter = IntCounter::new("x_requests_total", "Requests.").unwrap();
        counter.inc();
        registry.register(Box::new(counter)).unwrap();
        registry.register(Box::new(IntGauge::new("x_open", "Open.").unwrap())).unwrap();
        let (kind, body) = openmetrics(&registry).unwrap();
        assert!(kind.starts_with("application/openmetrics-text; version=1.0.0"));
        let want = "# HELP x_open Open.\n# TYPE x_open gauge\nx_open 0\n# HELP x_requests Requests.\n\
                    # TYPE x_requests counter\nx_requests_total 1\n# EOF\n";
        assert_eq!(String::from_utf8(body).unwrap(), want);
    }
}
