//! Programs of others that tests run against the product or beside it; the `build.sh` of `peers` and of
//! `peers/oauth2-proxy` build them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::pki::Leaf;
use crate::process::RunningProcess;
use crate::temp::{ReservedPort, TempDir};

/// A program by its name; panics where it is missing.
pub fn program(name: &str) -> PathBuf {
    let (given, kept, module) = match name {
        "oauth2-proxy" => ("INGRESS_OAUTH2_PROXY", "oauth2-proxy", "peers/oauth2-proxy"),
        _ => ("INGRESS_PEERS", "peers", "peers"),
    };
    let directory = match std::env::var_os(given).filter(|v| !v.is_empty()) {
        Some(peers) => PathBuf::from(peers),
        None => crate::testbed::built(kept, module),
    };
    let path = directory.join(name);
    assert!(path.is_file(), "{} is missing: run e2e/{module}/build.sh", path.display());
    path
}

/// A running oauth2-proxy that serves HTTPS. It is killed when dropped.
pub struct Oauth2Proxy {
    _process: RunningProcess,
    _files: TempDir,
    port: ReservedPort,
}

impl Oauth2Proxy {
    /// Starts one in front of `upstream`, with these options in its environment; `Err`: it has ended instead.
    pub async fn start(
        upstream: SocketAddr,
        leaf: &Leaf,
        options: &[(String, String)],
    ) -> Result<Self, String> {
        let (files, port) = (TempDir::new("oauth2-proxy"), ReservedPort::new());
        let mut command = Command::new(program("oauth2-proxy"));
        command
            .arg("--http-address=-")
            .arg(format!("--https-address=127.0.0.1:{}", port.get()))
            .arg(format!("--tls-cert-file={}", files.write("cert.pem", &leaf.cert_pem).display()))
            .arg(format!("--tls-key-file={}", files.write("key.pem", &leaf.key_pem).display()))
            .arg(format!("--upstream=http://{upstream}/"))
            .args(["--skip-provider-button", "--skip-jwt-bearer-tokens", "--code-challenge-method=S256"])
            .args(["--silence-ping-logging", "--pass-host-header"])
            .env_clear()
            .envs(options.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut process = RunningProcess::spawn("oauth2-proxy", command);
        let addr = SocketAddr::from(([127, 0, 0, 1], port.get()));
        let started = crate::within(Duration::from_secs(30), async || {
            if let Some(status) = process.exit_status() {
                return Some(Err(format!("it ended with {status}")));
            }
            tokio::net::TcpStream::connect(addr).await.is_ok().then_some(Ok(()))
        });
        started.await.unwrap_or_else(|| Err("it does not listen".into()))?;
        Ok(Self { _process: process, _files: files, port })
    }

    /// Where it listens.
    pub fn https(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port.get()))
    }
}
