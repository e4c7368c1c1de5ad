//! Real identity providers, as processes: see `testbed/providers`.

pub mod keycloak;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::browser::{Browser, absolute};
use crate::client::Response;
use crate::process::RunningProcess;

/// How long it may take to listen.
const START: Duration = Duration::from_secs(30);

/// A running node-oidc-provider. It is killed when dropped.
pub struct NodeOidc {
    _process: RunningProcess,
    port: u16,
    log: Arc<Mutex<Vec<String>>>,
}

impl NodeOidc {
    /// Starts one whose client may return to these URIs and whose access tokens live this many seconds.
    pub async fn start(redirect_uris: &[&str], post_logout: &[&str], access_ttl: u32) -> Self {
        let mut command = Command::new("node");
        command
            .arg(crate::testbed::part("providers/node-oidc").join("op.mjs"))
            .env("REDIRECT_URIS", redirect_uris.join(","))
            .env("POST_LOGOUT_REDIRECT_URIS", post_logout.join(","))
            .env("ACCESS_TTL", access_ttl.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut process = RunningProcess::spawn("the identity provider", command);
        let log = follow(&mut process);
        let port = crate::within(START, async || {
            log.lock().unwrap().iter().find_map(|line| line.strip_prefix("listening ")?.parse().ok())
        });
        let port =
            port.await.unwrap_or_else(|| panic!("the provider does not listen: {:?}", log.lock().unwrap()));
        Self { _process: process, port, log }
    }

    /// `iss`
    pub fn issuer(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// What it has logged, line by line.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// How many lines of its log begin so.
    pub fn logged(&self, begin: &str) -> usize {
        self.log().iter().filter(|line| line.starts_with(begin)).count()
    }

    /// Opens `url`, logs in as `user` and agrees wherever the provider asks, until the browser is at another place:
    /// its address and the answer there.
    pub async fn log_in(&self, browser: &mut Browser, url: &str, user: &str) -> (String, Response) {
        let (mut at, mut page) = browser.go(url).await;
        for _ in 0..5 {
            if !at.starts_with(&self.issuer()) {
                return (at, page);
            }
            assert!(at.contains("/interaction/"), "{at}: {} {}", page.status, page.text());
            let form = if page.text().contains("value=\"login\"") {
                format!("prompt=login&login={user}&password=any")
            } else {
                "prompt=consent".to_owned()
            };
            let headers = [("Content-Type", "application/x-www-form-urlencoded")];
            let answer = browser.send("POST", &at, &headers, form.as_bytes()).await;
            let next =
                answer.header("location").unwrap_or_else(|| panic!("{at}: {}", answer.text())).to_owned();
            (at, page) = browser.go(&absolute(&at, &next)).await;
        }
        panic!("the provider asks and asks, at last at {at}")
    }
}

/// The lines of a process's stdout, as they come.
fn follow(process: &mut RunningProcess) -> Arc<Mutex<Vec<String>>> {
    let out = process.child_mut().stdout.take().expect("piped");
    let log = Arc::new(Mutex::new(Vec::new()));
    let lines = log.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            lines.lock().unwrap().push(line);
        }
    });
    log
}
