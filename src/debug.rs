//! `/debug/snapshot` and `/debug/explain`: what is loaded, and why a request gets its answer. For loopback
//! peers only; of Secrets the name and the end of validity, never contents.

use crate::explain::{now, to_json};
use hyper::Method;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use ingress_core::{CertStore, HostPattern, Listener, Reader, Route, RouteTable, Scope, Snapshot};
use ingress_proxy::access_log::rfc3339;
use ingress_proxy::dial::DialGuard;
use ingress_proxy::explain::{Question, Surroundings, explain};
use ingress_proxy::resolve::Resolver;
use serde_json::{Value, json};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// What the debug endpoints look at.
#[derive(Clone)]
pub struct Debug {
    /// What is served.
    pub reader: Reader,
    /// When it was published.
    pub published: Published,
    /// What DNS has said.
    pub resolver: Resolver,
    /// What is never dialled.
    pub guard: DialGuard,
    /// The data plane's settings.
    pub config: Arc<ingress_proxy::Config>,
}

/// The moment of the last publish, in seconds since the epoch; 0 before the first.
#[derive(Clone, Default)]
pub struct Published(Arc<AtomicI64>);

impl Published {
    /// It is now.
    pub fn note(&self) {
        self.0.store(now(), Ordering::Relaxed);
    }
}

/// Whether this peer may ask, and did ask for this very machine: a page in somebody's browser can make it send
/// requests here under a name of its own.
pub fn allowed(peer: IpAddr, host: Option<&HeaderValue>) -> bool {
    let host = host.and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let local = name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    peer.to_canonical().is_loopback() && local
}

impl Debug {
    /// `/debug/explain`: the request is in the query.
    pub fn explain(&self, query: &str) -> Result<Value, String> {
        let question = question(query)?;
        let snapshot = self.reader.load();
        let around = Surroundings {
            config: &self.config,
            guard: &self.guard,
            addresses: &|name| Some(self.resolver.cached(name)?.list().to_vec()),
            now: now(),
        };
        let mut value = to_json(&explain(&snapshot, &question, &around));
        value["generation"] = json!(snapshot.generation);
        Ok(value)
    }

    /// `/debug/snapshot`: everything, or one declared host (`?host=`).
    pub fn snapshot(&self, query: &str) -> Result<Value, String> {
        let mut only = None;
        for (name, value) in pairs(query)? {
            match name.as_str() {
                "host" if value == "*" => only = Some(HostPattern::Any),
                "host" => only = Some(value.parse().map_err(|e| format!("host={value}: {e}"))?),
                _ => return Err(format!("{name}: no such parameter; accepted: host")),
            }
        }
        let published = self.published.0.load(Ordering::Relaxed);
        Ok(snapshot(&self.reader.load(), published, only.as_ref(), now()))
    }
}

fn time(seconds: i64) -> Value {
    if seconds == 0 { Value::Null } else { json!(rfc3339(seconds)) }
}

fn snapshot(snapshot: &Snapshot, published: i64, only: Option<&HostPattern>, now: i64) -> Value {
    let (hosts, certificates) = served(&snapshot.routes, &snapshot.certs, only, now);
    let listener = |(scope, listener): (Scope, &Arc<Listener>)| {
        let (hosts, certificates) = served(&listener.routes, &listener.certs, only, now);
        json!({
            "port": scope.port,
            "address": scope.address,
            "tls": listener.tls,
            "hosts": hosts,
            "certificates": certificates,
        })
    };
    let mut all = json!({
        "generation": snapshot.generation,
        "published": time(published),
        "hosts": hosts,
        "certificates": certificates,
    });
    if !snapshot.listeners.is_empty() {
        all["listeners"] = snapshot.listeners.iter().map(listener).collect();
    }
    all
}

/// Routes and certificates of one table, by host.
fn served(
    routes: &RouteTable,
    certs: &CertStore,
    only: Option<&HostPattern>,
    now: i64,
) -> (Vec<Value>, Vec<Value>) {
    let wanted = |host: &HostPattern| only.is_none_or(|only| only == host);
    let mut hosts: Vec<_> = routes.hosts().filter(|(host, _)| wanted(host)).collect();
    hosts.sort_by(|(a, _), (b, _)| a.cmp(b));
    let hosts: Vec<_> = hosts
        .iter()
        .map(|(host, v)| {
            json!({
                "host": host.to_string(),
                "since": time(v.unchanged_since()),
                "routes": v.routes().iter().map(|r| route(r)).collect::<Vec<_>>(),
                "shadowed": v.shadowed().iter().map(|r| route(r)).collect::<Vec<_>>(),
            })
        })
        .collect();
    let mut certificates: Vec<_> = certs.hosts().filter(|(host, _)| wanted(host)).collect();
    certificates.sort_by(|(a, _), (b, _)| a.cmp(b));
    let certificates: Vec<_> = certificates
        .iter()
        .map(|(host, key)| {
            json!({
                "host": host.to_string(),
                "source": key.source.to_string(),
                "not_after": rfc3339(key.not_after),
                "expired": key.not_after < now,
            })
        })
        .collect();
    (hosts, certificates)
}

fn route(route: &Route) -> Value {
    json!({
        "path": route.path.to_string(),
        "object": route.source.to_string(),
        "rule": route.place().to_string(),
        "created": time(route.created),
        "backend": backends(route),
    })
}

/// One backend, or several with their weights.
fn backends(route: &Route) -> Value {
    match route.actions.as_ref().and_then(|actions| actions.backends.as_ref()) {
        None => json!(route.backend.service.to_string()),
        Some(several) => several
            .entries()
            .iter()
            .map(|one| json!({"service": one.backend.service.to_string(), "weight": one.weight}))
            .collect(),
    }
}

/// The request that a query describes.
fn question(query: &str) -> Result<Question, String> {
    let mut question = Question {
        tls: false,
        host: String::new(),
        path: "/".into(),
        method: Method::GET,
        headers: HeaderMap::new(),
        sni: None,
        client: None,
        port: None,
        address: None,
    };
    let mut scheme = None;
    for (name, value) in pairs(query)? {
        match name.as_str() {
            "host" => question.host = value,
            "path" => question.path = value,
            "method" => {
                question.method = value.parse().map_err(|_| format!("method={value}: accepted: a method"))?;
            }
            "header" => {
                let (name, value) =
                    header(&value).ok_or_else(|| format!("header={value}: accepted: Name: value"))?;
                question.headers.append(name, value);
            }
            "sni" => question.sni = Some(value),
            "client_ip" => {
                let ip = value.parse().map_err(|_| format!("client_ip={value}: accepted: an IP address"))?;
                question.client = Some(ip);
            }
            "port" => {
                let port = value.parse().ok().filter(|port| *port > 0);
                let port =
                    port.ok_or_else(|| format!("port={value}: accepted: a port number, 1 to 65535"))?;
                question.port = Some(port);
            }
            "address" => {
                let ip = value.parse().map_err(|_| format!("address={value}: accepted: an IP address"))?;
                question.address = Some(ip);
            }
            "scheme" if value == "http" || value == "https" => scheme = Some(value == "https"),
            "scheme" => return Err(format!("scheme={value}: accepted: http, https")),
            _ => {
                let accepted = "host, path, method, header, scheme, sni, client_ip, port, address";
                return Err(format!("{name}: no such parameter; accepted: {accepted}"));
            }
        }
    }
    if question.host.is_empty() {
        return Err("host is missing: /debug/explain?host=app.example.com&path=/".into());
    }
    question.tls = scheme.unwrap_or(question.sni.is_some());
    Ok(question)
}

/// `Name: value`.
pub fn header(text: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = text.split_once(':')?;
    Some((name.trim().parse().ok()?, value.trim().parse().ok()?))
}

/// The pairs of a query, decoded (URL Standard, application/x-www-form-urlencoded).
fn pairs(query: &str) -> Result<Vec<(String, String)>, String> {
    let pair = |part: &str| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        Some((decoded(name)?, decoded(value)?))
    };
    let parts = query.split('&').filter(|part| !part.is_empty());
    parts.map(|part| pair(part).ok_or_else(|| format!("{part}: not percent-encoded UTF-8"))).collect()
}

fn decoded(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        out.push(match b {
            b'+' => b' ',
            b'%' => {
                let high = char::from(bytes.next()?).to_digit(16)?;
                let low = char::from(bytes.next()?).to_digit(16)?;
                u8::try_from(high * 16 + low).ok()?
            }
            b => b,
        });
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_may_ask_and_only_under_a_name_of_this_machine() {
        let ask = |peer: &str, host: &str| {
            allowed(peer.parse().unwrap(), HeaderValue::from_str(host).ok().as_ref())
        };
        for (peer, host, may) in [
            ("127.0.0.1", "localhost:9090", true),
            ("127.9.0.1", "127.0.0.1", true),
            ("::1", "[::1]:9090", true),
            ("::ffff:127.0.0.1", "LOCALHOST", true),
            ("10.0.0.1", "localhost", false),
            ("::ffff:10.0.0.1", "localhost", false),
            ("127.0.0.1", "rebound.example.com:9090", false),
            ("127.0.0.1", "10.0.0.1:9090", false),
            ("127.0.0.1", "", false),
        ] {
            assert_eq!(ask(peer, host), may, "{peer} {host}");
        }
        assert!(!allowed("127.0.0.1".parse().unwrap(), None));
    }

    #[test]
    fn a_query_describes_a_request() {
        let q = question(
            "host=app.example.com&path=%2Fa%20b%3Fx&method=POST&header=Origin:+https://a.x&sni=b.x&client_ip=10.0.0.1",
        )
        .unwrap();
        assert_eq!(
            (q.host.as_str(), q.path.as_str(), q.method.as_str()),
            ("app.example.com", "/a b?x", "POST")
        );
        assert_eq!(q.headers["origin"], "https://a.x");
        assert_eq!((q.tls, q.sni.as_deref(), q.client), (true, Some("b.x"), "10.0.0.1".parse().ok()));
        assert!(question("host=a&scheme=https").is_ok_and(|q| q.tls && q.path == "/"));
        assert!(question("host=a&sni=b&scheme=http").is_ok_and(|q| !q.tls));
        for bad in [
            "",
            "path=/",
            "host=a&hots=b",
            "host=%zz",
            "host=%ff",
            "host=a&method=%20",
            "host=a&header=x",
            "host=a&client_ip=x",
            "host=a&scheme=ftp",
        ] {
            assert!(question(bad).is_err(), "{bad}");
        }
    }
}
