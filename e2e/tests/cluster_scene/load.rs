//! Steady traffic that notes everything but a 200.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ingress_e2e::client::{RawConn, Response, Tls};
use ingress_e2e::eventually;
use ingress_e2e::product::Product;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Between two rounds of requests.
const PAUSE: Duration = Duration::from_millis(5);
/// Every so many rounds on a new connection.
const RENEW: usize = 8;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Target {
    addr: SocketAddr,
    host: String,
    path: String,
    tls: Option<Tls>,
}

impl Target {
    /// Over plain HTTP.
    pub fn http(product: &Product, host: &str) -> Self {
        Self { addr: product.http(), host: host.into(), path: "/".into(), tls: None }
    }

    /// Over TLS, with a certificate from this authority.
    pub fn https(product: &Product, host: &str, ca_pem: &str) -> Self {
        let tls = Some(Tls::new().sni(host).ca(ca_pem));
        Self { addr: product.https(), host: host.into(), path: "/".into(), tls }
    }
}

/// Traffic under way: each target is asked again and again, over kept and over new connections.
pub struct Load {
    requests: Arc<AtomicUsize>,
    stop: watch::Sender<bool>,
    task: JoinHandle<Report>,
}

/// What came of it.
#[derive(Debug)]
pub struct Report {
    pub requests: usize,
    pub failures: Vec<String>,
    pub slowest: Duration,
}

impl Load {
    pub fn start(targets: impl IntoIterator<Item = Target>) -> Self {
        let requests = Arc::new(AtomicUsize::new(0));
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(run(targets.into_iter().collect(), requests.clone(), stopped));
        Self { requests, stop, task }
    }

    /// Waits until this many more requests were answered.
    pub async fn more(&self, count: usize) {
        let until = self.requests.load(Ordering::SeqCst) + count;
        eventually(Duration::from_secs(30), async || {
            (self.requests.load(Ordering::SeqCst) >= until).then_some(())
        })
        .await;
    }

    /// Ends the traffic.
    pub async fn stop(self) -> Report {
        self.stop.send_replace(true);
        self.task.await.expect("the traffic does not panic")
    }

    /// Ends the traffic and panics if any of it failed.
    pub async fn all_well(self) -> Report {
        let report = self.stop().await;
        assert!(report.requests > 0, "there was no traffic");
        let shown = &report.failures[..report.failures.len().min(10)];
        let failed = report.failures.len();
        assert!(failed == 0, "{failed} of {} requests failed, first {shown:#?}", report.requests);
        report
    }
}

async fn run(targets: Vec<Target>, requests: Arc<AtomicUsize>, stopped: watch::Receiver<bool>) -> Report {
    let begin = Instant::now();
    let mut report = Report { requests: 0, failures: Vec::new(), slowest: Duration::ZERO };
    let mut kept: Vec<Option<RawConn>> = targets.iter().map(|_| None).collect();
    for round in 0.. {
        for (target, conn) in targets.iter().zip(&mut kept) {
            if round % RENEW == 0 {
                *conn = None;
            }
            let sent = Instant::now();
            let failure = match ask(target, conn).await {
                Ok(answer) if answer.status == 200 => None,
                Ok(answer) => Some(format!("{} {}", answer.status, answer.text())),
                Err(e) => {
                    *conn = None;
                    Some(format!("{e:#}"))
                }
            };
            report.slowest = report.slowest.max(sent.elapsed());
            report.requests += 1;
            requests.fetch_add(1, Ordering::SeqCst);
            if let Some(failure) = failure {
                report.failures.push(format!("{} after {:?}: {failure}", target.host, begin.elapsed()));
            }
            if *stopped.borrow() {
                return report;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    unreachable!("rounds do not end")
}

async fn ask(target: &Target, conn: &mut Option<RawConn>) -> anyhow::Result<Response> {
    let conn = match conn {
        Some(conn) => conn,
        None => {
            let new = match &target.tls {
                Some(tls) => RawConn::connect_with(target.addr, tls).await?,
                None => RawConn::connect(target.addr).await?,
            };
            conn.insert(new)
        }
    };
    conn.get(&target.host, &target.path).await
}
