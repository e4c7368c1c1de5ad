//! The binary under test, run as a process.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use crate::process::RunningProcess;
use crate::temp::TempDir;
use crate::{client, within};

/// How long the product may take to listen or to be ready. Well under a second is usual.
const START: Duration = Duration::from_secs(30);

/// A running product. It is killed when dropped.
///
/// ```no_run
/// # async fn example() {
/// use ingress_e2e::{client, product::Product};
/// let product = Product::builder().manifests_yaml("…").arg("--access-log=false").start().await;
/// product.ready().await;
/// assert_eq!(client::get(product.http(), "shop.example.com", "/").await.status, 200);
/// # }
/// ```
pub struct Product {
    process: Mutex<RunningProcess>,
    pid: u32,
    stdout: Arc<Mutex<Vec<String>>>,
    stderr: Arc<Mutex<String>>,
    listeners: Arc<Mutex<HashMap<String, SocketAddr>>>,
    manifests: Option<TempDir>,
}

/// How to start a [`Product`].
#[derive(Default)]
pub struct Builder {
    manifests: Option<TempDir>,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    binary: Option<PathBuf>,
    listeners: Option<Vec<String>>,
}

impl Builder {
    /// Serves from these manifests (`--manifests=DIR`, a folder with this one file `manifests.yaml`).
    pub fn manifests_yaml(self, yaml: &str) -> Self {
        self.manifest("manifests.yaml", yaml)
    }

    /// Adds one file to the folder of manifests.
    pub fn manifest(mut self, file: &str, yaml: &str) -> Self {
        self.manifests.get_or_insert_with(|| TempDir::new("manifests")).write(&format!("live/{file}"), yaml);
        self
    }

    /// Serves from a cluster (`--kubeconfig=PATH`).
    pub fn kubeconfig(self, path: impl AsRef<Path>) -> Self {
        let mut arg = OsString::from("--kubeconfig=");
        arg.push(path.as_ref());
        self.arg(arg)
    }

    /// Adds a command line argument. It comes after the harness's own, so that it wins.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Sets an environment variable. None of the caller's that the product reads is passed on.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Runs another program than [`binary`] names.
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// [`Builder::start`] waits for these listeners only, instead of `http`, `https` and `metrics`.
    pub fn wait_for(mut self, listeners: &[&str]) -> Self {
        self.listeners = Some(listeners.iter().map(|l| (*l).to_owned()).collect());
        self
    }

    /// Starts the product on free ports of 127.0.0.1 and waits until it listens. Panics, with its output, if it ends
    /// or takes too long.
    pub async fn start(self) -> Product {
        let mut command = command(self.binary.unwrap_or_else(binary));
        command.args(["--http-port=0", "--https-port=0", "--metrics-port=0", "--bind-address=127.0.0.1"]);
        if let Some(dir) = &self.manifests {
            let mut arg = OsString::from("--manifests=");
            arg.push(dir.path().join("live"));
            command.arg(arg);
        }
        command
            .args(&self.args)
            .envs(self.env)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = RunningProcess::spawn("the product", command);
        let stdout = Arc::new(Mutex::new(Vec::new()));
        let stderr = Arc::new(Mutex::new(String::new()));
        let listeners = Arc::new(Mutex::new(HashMap::new()));
        let out = process.child_mut().stdout.take().expect("piped");
        let err = process.child_mut().stderr.take().expect("piped");
        collect_lines(out, {
            let (stdout, listeners) = (stdout.clone(), listeners.clone());
            move |line| {
                if let Some((name, addr)) = listening(&line) {
                    listeners.lock().unwrap().insert(name, addr);
                }
                stdout.lock().unwrap().push(line);
            }
        });
        collect_lines(err, {
            let stderr = stderr.clone();
            move |line| *stderr.lock().unwrap() += &(line + "\n")
        });
        let pid = process.pid();
        let product = Product {
            process: Mutex::new(process),
            pid,
            stdout,
            stderr,
            listeners,
            manifests: self.manifests,
        };
        let wanted = self.listeners.unwrap_or_else(|| ["http", "https", "metrics"].map(Into::into).into());
        let listening = within(START, async || {
            let all = wanted.iter().all(|listener| product.listener(listener).is_some());
            (all || product.exit_status().is_some()).then_some(all)
        })
        .await;
        if listening != Some(true) {
            panic!("the product does not listen on {wanted:?}; {}", product.condition());
        }
        product
    }
}

impl Product {
    /// How to start one.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The plaintext listener.
    pub fn http(&self) -> SocketAddr {
        self.listener_or_panic("http")
    }

    /// The TLS listener.
    pub fn https(&self) -> SocketAddr {
        self.listener_or_panic("https")
    }

    /// The admin listener: /healthz, /readyz, /metrics, /debug.
    pub fn metrics_addr(&self) -> SocketAddr {
        self.listener_or_panic("metrics")
    }

    /// The address that the log gives for a listener.
    pub fn listener(&self, name: &str) -> Option<SocketAddr> {
        self.listeners.lock().unwrap().get(name).copied()
    }

    /// Waits until /readyz answers 200; panics, with the last answer and the output, if it does not.
    pub async fn ready(&self) {
        let mut last = String::from("none");
        let ready = within(START, async || {
            if self.exit_status().is_some() {
                return Some(false);
            }
            match client::try_get(self.metrics_addr(), "localhost", "/readyz").await {
                Ok(answer) if answer.status == 200 => return Some(true),
                Ok(answer) => last = format!("{} {:?}", answer.status, answer.text()),
                Err(e) => last = format!("{e:#}"),
            }
            None
        })
        .await;
        if ready != Some(true) {
            panic!("the product is not ready; last answer of /readyz: {last}; {}", self.condition());
        }
    }

    /// Writes a file of the folder of manifests, at once: the product never sees it half written.
    pub fn write_manifest(&self, file: &str, yaml: &str) {
        let dir = self.manifests();
        let from = dir.write("next", yaml);
        let to = dir.path().join("live").join(file);
        std::fs::rename(&from, &to).unwrap_or_else(|e| panic!("cannot write {}: {e}", to.display()));
    }

    /// Removes a file of the folder of manifests.
    pub fn remove_manifest(&self, file: &str) {
        let path = self.manifests_dir().join(file);
        std::fs::remove_file(&path).unwrap_or_else(|e| panic!("cannot remove {}: {e}", path.display()));
    }

    /// The folder of manifests.
    pub fn manifests_dir(&self) -> PathBuf {
        self.manifests().path().join("live")
    }

    /// What /metrics says.
    pub async fn metrics(&self) -> String {
        client::get(self.metrics_addr(), "localhost", "/metrics").await.text()
    }

    /// The value of the first series that begins with `series`: a whole name, or a name with the beginning of its
    /// labels as they are printed, like `tak_ingress_requests_total{code="200"`.
    pub async fn metric_value(&self, series: &str) -> Option<f64> {
        metric_lines(&self.metrics().await).find_map(|(line, value)| {
            let rest = line.strip_prefix(series)?;
            let whole = series.contains('{') || rest.is_empty() || rest.starts_with('{');
            whole.then_some(value)
        })
    }

    /// The sum of all series of a name whose labels include these; 0 where there is none.
    pub async fn metric_sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let text = self.metrics().await;
        let matching = metric_lines(&text).filter(|(line, _)| {
            line.strip_prefix(name).is_some_and(|rest| {
                let list = rest.strip_prefix('{').and_then(|r| r.strip_suffix('}'));
                (rest.is_empty() || list.is_some())
                    && labels.iter().all(|(key, value)| {
                        let label = format!("{key}=\"{value}\"");
                        list.unwrap_or("")
                            .match_indices(&label)
                            .any(|(at, _)| at == 0 || rest.as_bytes()[at] == b',')
                    })
            })
        });
        matching.map(|(_, value)| value).sum()
    }

    /// The log so far: the lines of stdout that are JSON.
    pub fn log(&self) -> Vec<Value> {
        self.stdout.lock().unwrap().iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Log entries whose message is this one.
    pub fn log_entries(&self, message: &str) -> Vec<Value> {
        self.log().into_iter().filter(|entry| field(entry, "message").is_some_and(|m| m == message)).collect()
    }

    /// stdout so far.
    pub fn log_text(&self) -> String {
        let lines = self.stdout.lock().unwrap();
        lines.iter().fold(String::new(), |text, line| text + line + "\n")
    }

    /// stderr so far.
    pub fn stderr(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Resident memory in KiB (`Rss` of smaps_rollup).
    pub fn rss_kib(&self) -> u64 {
        self.memory("Rss:")
    }

    /// Resident memory in KiB with shared pages counted in proportion (`Pss` of smaps_rollup).
    pub fn pss_kib(&self) -> u64 {
        self.memory("Pss:")
    }

    /// What the process itself has in memory, without the program's own pages, which are shared with whoever runs it as well.
    pub fn anonymous_kib(&self) -> u64 {
        self.memory("Anonymous:")
    }

    /// Sends a signal, like `libc::SIGTERM`.
    pub fn signal(&self, signal: libc::c_int) {
        self.process.lock().unwrap().signal(signal);
    }

    /// The exit status, if the product has ended.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.process.lock().unwrap().exit_status()
    }

    /// Waits for the product's end; panics, with its output, after `deadline`.
    pub async fn wait_exit(&self, deadline: Duration) -> ExitStatus {
        match within(deadline, async || self.exit_status()).await {
            Some(status) => status,
            None => panic!("the product still runs after {deadline:?}; {}", self.condition()),
        }
    }

    fn manifests(&self) -> &TempDir {
        self.manifests.as_ref().expect("the product was started with manifests")
    }

    fn memory(&self, key: &str) -> u64 {
        let path = format!("/proc/{}/smaps_rollup", self.pid);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        let number = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse().ok());
        number.unwrap_or_else(|| panic!("no {key} in {path}: {text}"))
    }

    fn listener_or_panic(&self, name: &str) -> SocketAddr {
        self.listener(name)
            .unwrap_or_else(|| panic!("the log names no listener {name}; {}", self.condition()))
    }

    fn condition(&self) -> String {
        let status = self.exit_status().map_or("it runs".to_owned(), |s| format!("it ended with {s}"));
        format!("{status}\n--- stdout\n{}--- stderr\n{}", self.log_text(), self.stderr())
    }
}

/// Runs the product with these arguments to its end; panics if that takes longer than ten seconds.
/// Returns exit status, stdout and stderr.
pub async fn run_product(args: &[&str]) -> (ExitStatus, String, String) {
    run_product_with_input(args, "").await
}

/// [`run_product`] with text on stdin.
pub async fn run_product_with_input(args: &[&str], input: &str) -> (ExitStatus, String, String) {
    let mut command = command(binary());
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = RunningProcess::spawn("the product", command);
    let child = process.child_mut();
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_owned();
    std::thread::spawn(move || {
        // The product need not read its input.
        let _ = stdin.write_all(input.as_bytes());
    });
    let stdout = read_all(child.stdout.take().expect("piped"));
    let stderr = read_all(child.stderr.take().expect("piped"));
    let status = process.wait_exit(Duration::from_secs(10)).await;
    (status, stdout.join().unwrap(), stderr.join().unwrap())
}

/// The binary under test: TAK_INGRESS_BIN, else `tak-os-ingress` of the same target directory and profile.
pub fn binary() -> PathBuf {
    let path = match std::env::var_os("TAK_INGRESS_BIN") {
        Some(path) => PathBuf::from(path),
        None => {
            let test = std::env::current_exe().expect("the path of a running test is known");
            let profile = test.ancestors().nth(2).expect("tests lie in PROFILE/deps");
            profile.join("tak-os-ingress")
        }
    };
    assert!(path.is_file(), "{} is missing: run `cargo build`, or set TAK_INGRESS_BIN", path.display());
    path
}

fn command(binary: PathBuf) -> Command {
    let mut command = Command::new(binary);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("TAK_INGRESS_") || text.starts_with("KUBERNETES_") || text == "KUBECONFIG" {
            command.env_remove(&name);
        }
    }
    command
}

/// A field of a log line, at top level or under `fields`.
fn field<'a>(entry: &'a Value, name: &str) -> Option<&'a Value> {
    entry.get(name).or_else(|| entry.get("fields")?.get(name))
}

/// Name and address from a log line that says where the product listens.
fn listening(line: &str) -> Option<(String, SocketAddr)> {
    if !line.contains("listening") {
        return None;
    }
    let entry: Value = serde_json::from_str(line).ok()?;
    if field(&entry, "message")? != "listening" {
        return None;
    }
    let name = field(&entry, "listener")?.as_str()?.to_owned();
    Some((name, field(&entry, "address")?.as_str()?.parse().ok()?))
}

fn metric_lines(text: &str) -> impl Iterator<Item = (&str, f64)> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        // A label's value may hold a space; a timestamp is never written.
        let (series, value) = line.rsplit_once(' ')?;
        Some((series, value.parse().ok()?))
    })
}

fn collect_lines(from: impl Read + Send + 'static, mut each: impl FnMut(String) + Send + 'static) {
    std::thread::spawn(move || {
        let mut reader = BufReader::new(from);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            each(String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned());
            line.clear();
        }
    });
}

fn read_all(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
