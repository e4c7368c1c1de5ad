//! A real Keycloak. Its access tokens are JWTs, refresh tokens rotate, and one that comes twice ends the session.

use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::browser::{Browser, absolute};
use crate::client::Response;
use crate::oidc::encode;
use crate::pki::{Ca, KeyKind};
use crate::process::RunningProcess;
use crate::temp::{ReservedPort, TempDir};

/// How long it may take to listen: half a minute on an idle machine.
const START: Duration = Duration::from_secs(240);

/// A running Keycloak with the realm of `testbed/providers/keycloak/realm.json`, over TLS at an IP address, with a
/// database of its own. It is killed when dropped.
pub struct Keycloak {
    _process: RunningProcess,
    _home: TempDir,
    port: ReservedPort,
    ca: Ca,
    log: Arc<Mutex<Vec<String>>>,
}

impl Keycloak {
    /// Starts one.
    pub async fn start() -> Self {
        let part = crate::testbed::part("providers/keycloak").join("keycloak");
        let home = TempDir::new("keycloak");
        for name in ["bin", "conf", "lib", "providers", "themes"] {
            std::os::unix::fs::symlink(part.join(name), home.path().join(name)).expect("a new folder");
        }
        let database = "data/h2/keycloakdb.mv.db";
        home.write(database, std::fs::read(part.join(database)).expect("parts.sh has made a database"));
        let ca = Ca::new();
        let leaf = ca.leaf(&["127.0.0.1"], KeyKind::Rsa2048Pkcs8);
        let cert = home.write("cert.pem", &leaf.cert_pem);
        let key = home.write("key.pem", &leaf.key_pem);
        let port = ReservedPort::new();
        let mut command = Command::new("java");
        // what bin/kc.sh would say, which leaves its own child behind when it is killed
        command
            .args(["-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .args(["java.util", "java.util.concurrent", "java.security", "java.lang"].map(|package| {
                format!("--add-opens=java.base/{package}=ALL-UNNAMED")
            }))
            .arg("-Djava.util.concurrent.ForkJoinPool.common.threadFactory=io.quarkus.bootstrap.forkjoin.QuarkusForkJoinWorkerThreadFactory")
            .args(["-Djava.util.logging.manager=org.jboss.logmanager.LogManager", "-Dpicocli.disable.closures=true"])
            .args(["-Duser.language=en", "-Dkc.script.pid=1"])
            .arg(format!("-Dkc.home.dir={}", home.path().display()))
            .arg(format!("-Djboss.server.config.dir={}", home.path().join("conf").display()))
            .arg("-cp")
            .arg(home.path().join("lib/quarkus-run.jar"))
            .args(["io.quarkus.bootstrap.runner.QuarkusEntryPoint", "start", "--optimized"])
            .args(["--cache=local", "--http-enabled=false", "--http-host=127.0.0.1"])
            .arg(format!("--https-port={}", port.get()))
            .arg(format!("--hostname=https://127.0.0.1:{}", port.get()))
            .arg(format!("--https-certificate-file={}", cert.display()))
            .arg(format!("--https-certificate-key-file={}", key.display()))
            .arg("--log-level=INFO,org.keycloak.events:debug")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut process = RunningProcess::spawn("Keycloak", command);
        let log = super::follow(&mut process);
        let started = crate::within(START, async || {
            let listens = log.lock().unwrap().iter().any(|line| line.contains("Listening on:"));
            (listens || process.exit_status().is_some()).then_some(listens)
        });
        assert_eq!(started.await, Some(true), "Keycloak does not listen: {:#?}", log.lock().unwrap());
        Self { _process: process, _home: home, port, ca, log }
    }

    /// `iss`
    pub fn issuer(&self) -> String {
        format!("{}/realms/e2e", self.base())
    }

    /// The authority of its certificate.
    pub fn ca_pem(&self) -> String {
        self.ca.pem()
    }

    /// How many of its events of this type it has logged, for this client.
    pub fn events(&self, kind: &str, client: &str) -> usize {
        let (kind, client) = (format!("type=\"{kind}\""), format!("clientId=\"{client}\""));
        let log = self.log.lock().unwrap();
        log.iter().filter(|line| line.contains(&kind) && line.contains(&client)).count()
    }

    /// What it has logged, line by line.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Opens `url` and logs in where the provider asks for it: the address at which the browser arrives, and the
    /// answer there.
    pub async fn log_in(&self, browser: &mut Browser, url: &str, user: &str) -> (String, Response) {
        let (at, page) = browser.go(url).await;
        if !at.starts_with(&self.base()) {
            return (at, page);
        }
        let text = page.text();
        let action = text.split_once("action=\"").and_then(|(_, rest)| rest.split('"').next());
        let action = action.unwrap_or_else(|| panic!("no form at {at}: {text}")).replace("&amp;", "&");
        let form = format!("username={user}&password={user}-pw&credentialId=");
        let headers = [("Content-Type", "application/x-www-form-urlencoded")];
        let answer = browser.send("POST", &action, &headers, form.as_bytes()).await;
        let next = answer.header("location").unwrap_or_else(|| panic!("{at}: {}", answer.text())).to_owned();
        browser.go(&absolute(&action, &next)).await
    }

    /// An access token of a client for itself.
    pub async fn client_token(&self, client: &str, secret: &str) -> String {
        let url = format!("{}/protocol/openid-connect/token", self.issuer());
        let form =
            format!("grant_type=client_credentials&client_id={client}&client_secret={}", encode(secret));
        let headers = [("Content-Type", "application/x-www-form-urlencoded")];
        let answer = self.browser().send("POST", &url, &headers, form.as_bytes()).await;
        answer.json()["access_token"].as_str().unwrap_or_else(|| panic!("{}", answer.text())).to_owned()
    }

    /// Signs with a new key from now on. The old ones are still published.
    pub async fn rotate_key(&self) {
        let token = self.client_token("keys", "keys-secret").await;
        let bearer = format!("Bearer {token}");
        let admin = format!("{}/admin/realms/e2e", self.base());
        let realm = self.browser().send("GET", &admin, &[("Authorization", &bearer)], b"").await;
        let config =
            json!({"priority": ["1000"], "enabled": ["true"], "active": ["true"], "algorithm": ["RS256"]});
        let key: Value = json!({"name": "newer", "providerId": "rsa-generated", "parentId": realm.json()["id"],
            "providerType": "org.keycloak.keys.KeyProvider", "config": config});
        let mut browser = self.browser();
        // it answers when it has made a key, which may take longer than a client of ours waits
        tokio::spawn(async move {
            let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
            let url = format!("{admin}/components");
            let answer = browser.send("POST", &url, &headers, key.to_string().as_bytes()).await;
            assert_eq!(answer.status, 201, "{}", answer.text());
        });
        let header = |token: &str| token.split('.').next().map(str::to_owned);
        crate::eventually(START, async || {
            let newer = self.client_token("keys", "keys-secret").await;
            (header(&newer) != header(&token)).then_some(())
        })
        .await;
    }

    fn base(&self) -> String {
        format!("https://127.0.0.1:{}", self.port.get())
    }

    /// One that knows nobody but this.
    fn browser(&self) -> Browser {
        let here = std::net::SocketAddr::from(([127, 0, 0, 1], self.port.get()));
        Browser::new(here, here)
    }
}
