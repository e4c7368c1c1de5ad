//! What was typed, and what it means. The only file that knows clap and the environment.

use crate::check::{Check, Output};
use crate::debug;
use crate::explain::Explain;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser};
use ingress_core::Ranges;
use ipnet::IpNet;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Why the process ends before it has begun.
#[derive(Debug)]
pub enum Stop {
    /// Help or version was asked for.
    Help(String),
    /// One line that names flag, value and what is accepted.
    Usage(String),
    /// Only a password is to be hashed, for this user.
    HashPassword(Option<String>),
}

/// Everything that flags and environment decide.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Data plane.
    pub proxy: ingress_proxy::Config,
    /// Port of `/healthz`, `/readyz` and `/metrics`.
    pub metrics_port: u16,
    /// What is to be done.
    pub task: Task,
    /// Where the objects come from.
    pub mode: Mode,
    /// Translation.
    pub translate: ingress_controller::translate::Settings,
    /// Namespaces watched; empty = all.
    pub watch_namespaces: Vec<String>,
    /// Whether one Pod of all writes statuses and Certificates.
    pub leader_election: bool,
    /// DNS servers; empty = the system's.
    pub dns_servers: Vec<SocketAddr>,
    /// Addresses never dialled; `None` = the default of the mode.
    pub deny_backends: Deny,
    /// The window for requests in flight after a signal.
    pub shutdown_timeout: Duration,
    /// How long connections are accepted after a signal.
    pub shutdown_delay: Duration,
    /// Log level.
    pub log_level: tracing::level_filters::LevelFilter,
    /// JSON or text.
    pub log_json: bool,
    /// Whether requests are logged.
    pub access_log: bool,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub enum Task {
    /// Serve.
    Serve,
    /// Validate manifests and end.
    Check(Check),
    /// Explain one request and end.
    Explain(Box<Explain>),
}

/// Where the objects come from.
#[derive(Clone, Debug)]
pub enum Mode {
    /// A cluster: in-cluster credentials, or a kubeconfig and context.
    Cluster { kubeconfig: Option<PathBuf>, context: Option<String> },
    /// A folder of YAML files.
    Manifests(PathBuf),
    /// The bundled example with its own backend.
    Demo,
}

/// `--deny-backend-cidrs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deny {
    /// Nothing given: the default of the mode.
    Default,
    /// `none`.
    Nothing,
    /// A list.
    List(Vec<IpNet>),
}

/// A Kubernetes ingress controller and proxy in one process.
#[derive(Parser, Debug)]
#[command(name = "tak-os-ingress", version, args_override_self = true, disable_help_subcommand = true)]
struct Args {
    /// Class served: compared with spec.ingressClassName, or with the legacy annotation where that is absent
    #[arg(long, global = true, default_value = "tak-os", value_parser = text("a class name"))]
    ingress_class: String,
    /// Also serve Ingresses that name no class
    #[arg(long, global = true, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set, value_parser = boolean())]
    process_without_class: bool,
    /// Port for HTTP; 0 = any free port
    #[arg(long, global = true, default_value = "80", value_parser = port)]
    http_port: u16,
    /// Port for HTTPS; 0 = any free port
    #[arg(long, global = true, default_value = "443", value_parser = port)]
    https_port: u16,
    /// Port for /healthz, /readyz and /metrics; 0 = any free port
    #[arg(long, global = true, default_value = "9090", value_parser = port)]
    metrics_port: u16,
    /// Address of all listeners; :: serves IPv4 as well
    #[arg(long, global = true, default_value = "::", value_parser = address)]
    bind_address: IpAddr,
    /// Largest request head; a larger one gets 431
    #[arg(long, global = true, default_value = "64Ki", value_parser = size)]
    max_header_size: u64,
    /// Largest request body; a larger one gets 413; 0 = no limit
    #[arg(long, global = true, default_value = "100Mi", value_parser = size)]
    max_request_body_size: u64,
    /// Responses up to this size are read whole from the backend; 0 = never, unlimited = all
    #[arg(long, global = true, default_value = "64Ki", value_parser = threshold)]
    response_buffer_size: Threshold,
    /// Bytes held for all responses together; above it new responses stream
    #[arg(long, global = true, default_value = "128Mi", value_parser = size)]
    response_buffer_budget: u64,
    /// Bytes that responses to clients slower than their backends may hold together; beyond it the slowest of them is
    /// cut off; 0 = no limit
    #[arg(long, global = true, default_value = "512Mi", value_parser = size)]
    response_stream_budget: u64,
    /// Inactivity while a request is read
    #[arg(long, global = true, default_value = "60s", value_parser = duration)]
    client_read_timeout: Time,
    /// Idle time after which a kept-alive client connection is closed
    #[arg(long, global = true, default_value = "60s", value_parser = duration)]
    client_keepalive_timeout: Time,
    /// Time for a whole request head, however it trickles
    #[arg(long, global = true, default_value = "60s", value_parser = duration)]
    client_header_timeout: Time,
    /// Time for a client's whole TLS hello
    #[arg(long, global = true, default_value = "10s", value_parser = duration)]
    tls_handshake_timeout: Time,
    /// Inactivity of a client that does not read its response
    #[arg(long, global = true, default_value = "60s", value_parser = duration)]
    client_write_timeout: Time,
    /// Streams at once on one HTTP/2 client connection
    #[arg(long, global = true, default_value = "128", value_parser = count)]
    http2_max_concurrent_streams: u32,
    /// Client connections at once; further ones are closed as they come; 0 = no limit
    #[arg(long, global = true, default_value = "0", value_parser = limit)]
    max_connections: usize,
    /// The window for requests in flight after SIGTERM or SIGINT
    #[arg(long, global = true, default_value = "30s", value_parser = duration)]
    shutdown_timeout: Time,
    /// Keep accepting this long after the signal, while /readyz already fails
    #[arg(long, global = true, default_value = "0s", value_parser = duration)]
    shutdown_delay: Time,
    /// ClusterIssuer for TLS blocks without secretName whose Ingress names no issuer
    #[arg(long, global = true, default_value = "letsencrypt-staging", value_parser = object_name)]
    default_cluster_issuer: String,
    /// Request Certificates from cert-manager for TLS blocks without secretName
    #[arg(long, global = true, default_value = "true", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set, value_parser = boolean())]
    create_certificates: bool,
    /// namespace/name of a TLS Secret that replaces the self-signed fallback
    #[arg(long, global = true, default_value = "", value_parser = secret_name)]
    default_tls_secret: Name,
    /// Suffix of Service DNS names
    #[arg(long, global = true, default_value = "cluster.local", value_parser = text("a DNS suffix"))]
    cluster_domain: String,
    /// DNS servers, ip or ip:port, separated by commas; empty = /etc/resolv.conf
    #[arg(long, global = true, default_value = "", value_parser = servers)]
    dns_servers: Servers,
    /// Address ranges never dialled for backends: CIDRs separated by commas, or none
    #[arg(long, global = true, default_value = "", value_parser = cidrs)]
    deny_backend_cidrs: Deny,
    /// Peers whose X-Forwarded-* headers are believed: addresses and CIDRs separated by commas; empty = nobody
    #[arg(long, global = true, default_value = "", value_parser = proxies)]
    trusted_proxies: Ranges,
    /// Read PROXY protocol headers (v1, v2) from the trusted proxies, who must then send one
    #[arg(long, global = true, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set, value_parser = boolean())]
    proxy_protocol: bool,
    /// Clients whose IPv6 addresses agree in this many bits share their limits
    #[arg(long, global = true, default_value = "128", value_parser = prefix)]
    limit_ipv6_prefix: u8,
    /// Idle backend connections kept per worker thread
    #[arg(long, global = true, default_value = "128", value_parser = count)]
    upstream_keepalive_connections: u32,
    /// How long an idle backend connection is kept
    #[arg(long, global = true, default_value = "60s", value_parser = duration)]
    upstream_keepalive_timeout: Time,
    /// Allow Services of type ExternalName as backends
    #[arg(long, global = true, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set, value_parser = boolean())]
    allow_external_name_services: bool,
    /// Threads that check passwords; beyond a bounded queue requests get 503
    #[arg(long, global = true, default_value = "2", value_parser = hash_workers)]
    auth_hash_workers: usize,
    /// Failed credentials of one client address, after which it gets 429; 0 = no limit
    #[arg(long, global = true, default_value = "10", value_parser = failures)]
    auth_throttle_failures: u32,
    /// How long failed credentials count
    #[arg(long, global = true, default_value = "60s", value_parser = duration)]
    auth_throttle_window: Time,
    /// Time for one call of an external authentication service
    #[arg(long, global = true, default_value = "5s", value_parser = duration)]
    auth_url_timeout: Time,
    /// Limit to these namespaces, separated by commas; empty = all
    #[arg(long, global = true, default_value = "")]
    watch_namespace: String,
    /// Read Gateway API objects: auto or true, as soon as their CRDs are there; false, never
    #[arg(long, global = true, default_value = "auto", value_parser = PossibleValuesParser::new(["auto", "true", "false"]))]
    enable_gateway_api: String,
    /// Ports that Gateway listeners may have, separated by commas; those beside 80 and 443 are bound
    #[arg(long, global = true, default_value = "80,443", value_parser = ports)]
    gateway_listener_ports: Ports,
    /// IP addresses of this host, separated by commas, that Gateways get one each; empty = all share all
    #[arg(long, global = true, default_value = "", value_parser = addresses)]
    gateway_addresses: Addresses,
    /// namespace/name of the Service whose addresses Gateways tell
    #[arg(long, global = true, default_value = "tak-os-ingress/tak-os-ingress", value_parser = secret_name)]
    publish_service: Name,
    /// Addresses that Gateways tell instead: IP addresses and host names separated by commas
    #[arg(long, global = true, default_value = "", value_parser = places)]
    publish_address: Places,
    /// One Pod of all writes statuses and Certificates: the one that holds the Lease tak-os-ingress-leader
    #[arg(long, global = true, default_value = "true", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set, value_parser = boolean())]
    leader_election: bool,
    /// Proxy worker threads; 0 = the CPUs that the cgroup allows
    #[arg(long, global = true, default_value = "0", value_parser = threads)]
    threads: usize,
    /// off, error, warn, info, debug or trace
    #[arg(long, global = true, default_value = "info", value_parser = PossibleValuesParser::new(["off", "error", "warn", "info", "debug", "trace"]))]
    log_level: String,
    /// json or text
    #[arg(long, global = true, default_value = "json", value_parser = PossibleValuesParser::new(["json", "text"]))]
    log_format: String,
    /// One JSON object a request on stdout
    #[arg(long, global = true, default_value = "true", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set, value_parser = boolean())]
    access_log: bool,
    /// Write query strings to the access log
    #[arg(long, global = true, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set, value_parser = boolean())]
    access_log_query: bool,
    /// A kubeconfig file, for use outside a cluster
    #[arg(long, global = true)]
    kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig
    #[arg(long, global = true)]
    context: Option<String>,
    /// No cluster: Kubernetes YAML files in this folder are the source
    #[arg(long, global = true)]
    manifests: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Serve a bundled example with its own backend on 8080, 8443 and 9090
    Demo,
    /// Read a password and print its bcrypt hash, a line for an htpasswd file
    HashPassword {
        /// The user that the line is for; without, only the hash is printed
        #[arg(long, value_parser = user)]
        user: Option<String>,
    },
    /// Validate manifests without a cluster; ends with status 1 on errors
    Check {
        /// Folders and files of YAML; - is stdin
        #[arg(required = true, value_name = "DIR|-")]
        paths: Vec<PathBuf>,
        /// text, json or sarif
        #[arg(long, default_value = "text", value_parser = PossibleValuesParser::new(["text", "json", "sarif"]))]
        output: String,
        /// End with status 1 on warnings too
        #[arg(long)]
        strict: bool,
    },
    /// Tell which rule of which object takes a request, why, and what happens to it
    Explain {
        /// The Host of the request
        #[arg(long)]
        host: String,
        /// Its path
        #[arg(long, default_value = "/")]
        path: String,
        /// Its method
        #[arg(long, default_value = "GET", value_parser = method)]
        method: http::Method,
        /// A header field, "Name: value"; may be repeated
        #[arg(long, value_parser = header, action = ArgAction::Append)]
        header: Vec<(http::HeaderName, http::HeaderValue)>,
        /// The server name of its TLS handshake; implies --https
        #[arg(long)]
        sni: Option<String>,
        /// It comes over TLS
        #[arg(long)]
        https: bool,
        /// The address of the client
        #[arg(long, value_parser = address)]
        client_ip: Option<IpAddr>,
        /// The listener port that it comes to; without it 443 with TLS and 80 without
        #[arg(long, value_parser = listener_port)]
        port: Option<u16>,
        /// The address that it comes to, where Gateways have one each
        #[arg(long, value_parser = address)]
        address: Option<IpAddr>,
        /// text or json
        #[arg(long, default_value = "text", value_parser = PossibleValuesParser::new(["text", "json"]))]
        output: String,
    },
}

impl Command {
    fn task(self) -> Task {
        match self {
            // `parse` has taken the latter out.
            Command::Demo | Command::HashPassword { .. } => Task::Serve,
            Command::Check { paths, output, strict } => {
                let output = match output.as_str() {
                    "json" => Output::Json,
                    "sarif" => Output::Sarif,
                    _ => Output::Text,
                };
                Task::Check(Check { paths, output, strict })
            }
            Command::Explain { host, path, method, header, sni, https, client_ip, port, address, output } => {
                let question = ingress_proxy::explain::Question {
                    tls: https || sni.is_some(),
                    host,
                    path,
                    method,
                    headers: header.into_iter().collect(),
                    sni,
                    client: client_ip,
                    port,
                    address,
                };
                Task::Explain(Box::new(Explain { question, json: output == "json" }))
            }
        }
    }
}

fn method(s: &str) -> Result<http::Method, String> {
    s.parse().map_err(|_| "accepted: a method".into())
}

fn header(s: &str) -> Result<(http::HeaderName, http::HeaderValue), String> {
    debug::header(s).ok_or_else(|| "accepted: Name: value".into())
}

/// A duration flag: `None` is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Time(Option<Duration>);

/// A size flag that knows `unlimited`: `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Threshold(Option<usize>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Name(Option<(String, String)>);

/// `--publish-address`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Places(Vec<String>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Servers(Vec<SocketAddr>);

/// `--gateway-listener-ports`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ports(Vec<u16>);

/// `--gateway-addresses`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Addresses(Vec<IpAddr>);

fn boolean() -> impl TypedValueParser<Value = bool> {
    PossibleValuesParser::new(["true", "false"]).map(|v| v == "true")
}

fn text(what: &'static str) -> impl Fn(&str) -> Result<String, String> + Clone + Send + Sync + 'static {
    move |s| if s.is_empty() { Err(format!("accepted: {what}")) } else { Ok(s.to_owned()) }
}

fn port(s: &str) -> Result<u16, String> {
    digits(s).ok_or_else(|| "accepted: a port number, 0 to 65535".into())
}

/// A port that a Gateway's listener can have.
fn listener_port(s: &str) -> Result<u16, String> {
    digits(s).filter(|port| *port > 0).ok_or_else(|| "accepted: a port number, 1 to 65535".into())
}

fn ports(s: &str) -> Result<Ports, String> {
    let one = |port: &str| {
        listener_port(port).map_err(|_| "accepted: port numbers, 1 to 65535, separated by commas".to_owned())
    };
    let mut ports = s.split(',').map(str::trim).map(one).collect::<Result<Vec<_>, _>>()?;
    ports.sort_unstable();
    ports.dedup();
    Ok(Ports(ports))
}

fn addresses(s: &str) -> Result<Addresses, String> {
    let all = s.split(',').map(str::trim).filter(|one| !one.is_empty());
    let all = all.map(|one| {
        one.parse::<IpAddr>().map_err(|_| "accepted: IP addresses, separated by commas".to_owned())
    });
    all.collect::<Result<_, _>>().map(Addresses)
}

fn count(s: &str) -> Result<u32, String> {
    digits(s).filter(|n| *n > 0).ok_or_else(|| "accepted: a whole number, 1 to 4294967295".into())
}

fn limit(s: &str) -> Result<usize, String> {
    digits::<u32>(s)
        .and_then(|n| usize::try_from(n).ok())
        .ok_or_else(|| "accepted: a whole number, 0 to 4294967295".into())
}

fn failures(s: &str) -> Result<u32, String> {
    digits(s).ok_or_else(|| "accepted: a whole number, 0 to 4294967295".into())
}

fn hash_workers(s: &str) -> Result<usize, String> {
    digits::<u16>(s)
        .filter(|n| (1..=256).contains(n))
        .map(usize::from)
        .ok_or_else(|| "accepted: a whole number, 1 to 256".into())
}

fn user(s: &str) -> Result<String, String> {
    if s.is_empty() || s.starts_with('#') || s.chars().any(|c| c == ':' || c.is_control()) {
        return Err("accepted: a user name without colon, not beginning with #".into());
    }
    Ok(s.to_owned())
}

fn object_name(s: &str) -> Result<String, String> {
    if ingress_controller::certificate::is_name(s) {
        Ok(s.to_owned())
    } else {
        Err("accepted: the name of an object: lower-case letters, digits, '-' and '.'".into())
    }
}

fn threads(s: &str) -> Result<usize, String> {
    digits::<u16>(s)
        .filter(|n| *n <= 1024)
        .map(usize::from)
        .ok_or_else(|| "accepted: a whole number, 0 to 1024".into())
}

fn places(s: &str) -> Result<Places, String> {
    let all = s.split(',').map(str::trim).filter(|place| !place.is_empty()).map(|place| {
        let host = matches!(place.parse(), Ok(ingress_core::HostPattern::Exact(_)));
        if host || place.parse::<IpAddr>().is_ok() {
            Ok(place.to_owned())
        } else {
            Err("accepted: IP addresses and host names, separated by commas".to_owned())
        }
    });
    all.collect::<Result<_, _>>().map(Places)
}

fn digits<T: std::str::FromStr>(s: &str) -> Option<T> {
    s.bytes().all(|b| b.is_ascii_digit()).then(|| s.parse().ok()).flatten()
}

fn address(s: &str) -> Result<IpAddr, String> {
    s.trim_start_matches('[').trim_end_matches(']').parse().map_err(|_| "accepted: an IP address".into())
}

fn size(s: &str) -> Result<u64, String> {
    let (number, unit) = match s.find(|c: char| !c.is_ascii_digit()) {
        Some(at) => s.split_at(at),
        None => (s, ""),
    };
    let shift = match unit {
        "" => Some(0),
        "Ki" => Some(10),
        "Mi" => Some(20),
        "Gi" => Some(30),
        _ => None,
    };
    shift
        .and_then(|shift| digits::<u64>(number)?.checked_mul(1 << shift))
        .ok_or_else(|| "accepted: bytes, or a number with Ki, Mi or Gi".into())
}

fn threshold(s: &str) -> Result<Threshold, String> {
    if s == "unlimited" {
        return Ok(Threshold(None));
    }
    match size(s).map(usize::try_from) {
        Ok(Ok(bytes)) => Ok(Threshold(Some(bytes))),
        _ => Err("accepted: bytes, or a number with Ki, Mi or Gi, or unlimited".into()),
    }
}

fn duration(s: &str) -> Result<Time, String> {
    let (number, unit) = match s.find(|c: char| !c.is_ascii_digit()) {
        Some(at) => s.split_at(at),
        None => (s, ""),
    };
    let millis = match unit {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        "" if number == "0" => Some(0),
        _ => None,
    };
    millis
        .and_then(|unit| digits::<u64>(number)?.checked_mul(unit))
        .filter(|ms| *ms <= 31 * 86_400_000)
        .map(|ms| Time((ms > 0).then(|| Duration::from_millis(ms))))
        .ok_or_else(|| "accepted: a number with ms, s, m or h (31 days at most), or 0 for off".into())
}

fn secret_name(s: &str) -> Result<Name, String> {
    if s.is_empty() {
        return Ok(Name(None));
    }
    match s.split_once('/') {
        Some((ns, name)) if !ns.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok(Name(Some((ns.into(), name.into()))))
        }
        _ => Err("accepted: namespace/name".into()),
    }
}

fn servers(s: &str) -> Result<Servers, String> {
    s.split(',')
        .map(str::trim)
        .filter(|s| !s.is_empty())
        .map(|s| s.parse().or_else(|_| address(s).map(|ip| SocketAddr::new(ip, 53))))
        .collect::<Result<_, _>>()
        .map(Servers)
        .map_err(|_| "accepted: ip or ip:port, separated by commas".into())
}

fn cidrs(s: &str) -> Result<Deny, String> {
    match ingress_proxy::dial::parse(s) {
        Ok(None) => Ok(Deny::Default),
        Ok(Some(list)) if list.is_empty() => Ok(Deny::Nothing),
        Ok(Some(list)) => Ok(Deny::List(list)),
        Err(_) => Err("accepted: CIDRs separated by commas, or none".into()),
    }
}

fn prefix(s: &str) -> Result<u8, String> {
    let bits = digits(s).filter(|bits| (1..=128).contains(bits));
    bits.ok_or_else(|| "accepted: a number of bits, 1 to 128".into())
}

fn proxies(s: &str) -> Result<Ranges, String> {
    if s.trim().is_empty() {
        return Ok(Ranges::default());
    }
    s.parse().map_err(|_| "accepted: addresses and CIDRs separated by commas".into())
}

/// The command with an environment variable for every flag (`--http-port`: `TAK_INGRESS_HTTP_PORT`).
pub(crate) fn command() -> clap::Command {
    Args::command().mut_args(|arg| match arg.get_long() {
        Some(long) if !matches!(long, "help" | "version") => {
            let name = format!("TAK_INGRESS_{}", long.replace('-', "_").to_uppercase());
            // clap wants names that live as long as the process, which these do.
            arg.env(&*Box::leak(name.into_boxed_str())).hide_env_values(true)
        }
        _ => arg,
    })
}

/// Parses flags and environment.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Settings, Stop> {
    let matches = command().try_get_matches_from(args).map_err(stop)?;
    let mut args = Args::from_arg_matches(&matches).map_err(stop)?;
    if let Some(Command::HashPassword { user }) = &mut args.command {
        return Err(Stop::HashPassword(user.take()));
    }
    // The demo serves where no privilege is needed, unless ports were asked for.
    let given = |id: &str| {
        let source = |m: &clap::ArgMatches| {
            m.value_source(id).is_some_and(|s| s != clap::parser::ValueSource::DefaultValue)
        };
        source(&matches) || matches.subcommand().is_some_and(|(_, m)| source(m))
    };
    let demo = matches!(args.command, Some(Command::Demo));
    let http_port = if demo && !given("http_port") { 8080 } else { args.http_port };
    let https_port = if demo && !given("https_port") { 8443 } else { args.https_port };
    args.resolve(http_port, https_port)
}

impl Args {
    fn resolve(self, http_port: u16, https_port: u16) -> Result<Settings, Stop> {
        let demo = matches!(self.command, Some(Command::Demo));
        let mode = match (demo, self.manifests) {
            (true, _) => Mode::Demo,
            (false, Some(dir)) => Mode::Manifests(dir),
            (false, None) => Mode::Cluster { kubeconfig: self.kubeconfig, context: self.context },
        };
        let max_header_size = usize::try_from(self.max_header_size).unwrap_or(usize::MAX);
        if !(1024..=1 << 20).contains(&max_header_size) {
            let value = self.max_header_size;
            return Err(Stop::Usage(format!("--max-header-size={value}: accepted: 1Ki to 1Mi")));
        }
        if self.proxy_protocol && self.trusted_proxies.is_empty() {
            let line =
                "--proxy-protocol=true: accepted: only with --trusted-proxies, the peers it is read from";
            return Err(Stop::Usage(line.into()));
        }
        let threads = match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        Ok(Settings {
            proxy: ingress_proxy::Config {
                bind_address: self.bind_address,
                http_port,
                https_port,
                gateway_ports: self
                    .gateway_listener_ports
                    .0
                    .iter()
                    .copied()
                    .filter(|p| !matches!(p, 80 | 443))
                    .collect(),
                redirect_port: None,
                threads,
                max_header_size,
                max_request_body_size: (self.max_request_body_size > 0).then_some(self.max_request_body_size),
                response_buffer_size: self.response_buffer_size.0,
                response_buffer_budget: usize::try_from(self.response_buffer_budget).unwrap_or(usize::MAX),
                response_stream_budget: (self.response_stream_budget > 0)
                    .then(|| usize::try_from(self.response_stream_budget).unwrap_or(usize::MAX)),
                client_read_timeout: self.client_read_timeout.0,
                client_keepalive_timeout: self.client_keepalive_timeout.0,
                client_header_timeout: self.client_header_timeout.0,
                tls_handshake_timeout: self.tls_handshake_timeout.0,
                client_write_timeout: self.client_write_timeout.0,
                http2_max_concurrent_streams: self.http2_max_concurrent_streams,
                max_connections: (self.max_connections > 0).then_some(self.max_connections),
                upstream_keepalive_connections: self.upstream_keepalive_connections as usize,
                upstream_keepalive_timeout: self.upstream_keepalive_timeout.0,
                auth_hash_workers: self.auth_hash_workers,
                auth_throttle_failures: self.auth_throttle_failures,
                auth_throttle_window: self.auth_throttle_window.0,
                auth_url_timeout: self.auth_url_timeout.0,
                access_log_query: self.access_log_query,
                trusted_proxies: self.trusted_proxies,
                proxy_protocol: self.proxy_protocol,
                limit_ipv6_prefix: self.limit_ipv6_prefix,
            },
            task: self.command.map_or(Task::Serve, Command::task),
            metrics_port: self.metrics_port,
            translate: ingress_controller::translate::Settings {
                ingress_class: self.ingress_class,
                process_without_class: self.process_without_class,
                cluster_domain: self.cluster_domain.trim_matches('.').to_owned(),
                allow_external_name: self.allow_external_name_services,
                backends_from_slices: !matches!(mode, Mode::Cluster { .. }),
                create_certificates: self.create_certificates,
                default_cluster_issuer: self.default_cluster_issuer,
                default_tls_secret: self.default_tls_secret.0,
                gateway_api: self.enable_gateway_api != "false",
                gateway_listener_ports: self.gateway_listener_ports.0.clone(),
                gateway_addresses: self.gateway_addresses.0,
                publish_service: self.publish_service.0.unwrap_or_default(),
                publish_addresses: self.publish_address.0,
            },
            mode,
            leader_election: self.leader_election,
            watch_namespaces: self
                .watch_namespace
                .split(',')
                .map(str::trim)
                .filter(|n| !n.is_empty())
                .map(Into::into)
                .collect(),
            dns_servers: self.dns_servers.0,
            deny_backends: self.deny_backend_cidrs,
            shutdown_timeout: self.shutdown_timeout.0.unwrap_or_default(),
            shutdown_delay: self.shutdown_delay.0.unwrap_or_default(),
            log_level: self.log_level.parse().unwrap_or(tracing::level_filters::LevelFilter::INFO),
            log_json: self.log_format == "json",
            access_log: self.access_log,
        })
    }
}

/// One line from clap's error: flag, value, what is accepted.
fn stop(error: clap::Error) -> Stop {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return Stop::Help(error.to_string());
    }
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(s)) => Some(s.clone()),
        Some(ContextValue::Strings(all)) => Some(all.join(", ")),
        _ => None,
    };
    let flag = context(ContextKind::InvalidArg);
    let name = flag.as_deref().map(|f| f.split([' ', '=', '[']).next().unwrap_or(f).to_owned());
    let line = match (error.kind(), name) {
        (ErrorKind::UnknownArgument, Some(name)) => match context(ContextKind::SuggestedArg) {
            Some(near) => format!("{name}: no such flag; did you mean {near}?"),
            None => format!("{name}: no such flag; --help lists them"),
        },
        (ErrorKind::InvalidSubcommand, _) => {
            let given = context(ContextKind::InvalidSubcommand).unwrap_or_default();
            format!("{given}: no such subcommand; accepted: check, demo, explain, hash-password")
        }
        (ErrorKind::InvalidValue | ErrorKind::ValueValidation, Some(name)) => {
            let value = context(ContextKind::InvalidValue).unwrap_or_default();
            let accepted = match context(ContextKind::ValidValue) {
                Some(values) if !values.is_empty() => format!("accepted: {values}"),
                _ => std::error::Error::source(&error)
                    .map(ToString::to_string)
                    .unwrap_or("accepted: a value".into()),
            };
            format!("{name}={value}: {accepted}")
        }
        _ => error.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned(),
    };
    Stop::Usage(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Settings, String> {
        let all = std::iter::once("tak-os-ingress").chain(args.iter().copied()).map(OsString::from);
        parse(all).map_err(|stop| match stop {
            Stop::Usage(line) => line,
            Stop::Help(text) => text,
            Stop::HashPassword(user) => format!("hash-password {user:?}"),
        })
    }

    #[test]
    fn the_command_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn defaults_are_those_of_the_reference() {
        let s = parsed(&[]).unwrap();
        assert_eq!((s.proxy.http_port, s.proxy.https_port, s.metrics_port), (80, 443, 9090));
        assert_eq!(s.proxy.bind_address, "::".parse::<IpAddr>().unwrap());
        assert_eq!(s.proxy.max_header_size, 65_536);
        assert_eq!(s.proxy.max_request_body_size, Some(100 << 20));
        assert_eq!(s.proxy.client_read_timeout, Some(Duration::from_secs(60)));
        assert_eq!(s.proxy.client_keepalive_timeout, Some(Duration::from_secs(60)));
        assert_eq!(s.proxy.max_connections, None);
        assert_eq!(s.shutdown_timeout, Duration::from_secs(30));
        assert_eq!((s.proxy.auth_hash_workers, s.proxy.auth_throttle_failures), (2, 10));
        assert_eq!(s.proxy.auth_throttle_window, Some(Duration::from_secs(60)));
        assert_eq!(s.proxy.auth_url_timeout, Some(Duration::from_secs(5)));
        assert_eq!(
            (s.translate.ingress_class.as_str(), s.translate.process_without_class),
            ("tak-os", false)
        );
        assert_eq!(s.translate.cluster_domain, "cluster.local");
        assert!(s.access_log && s.log_json && matches!(s.mode, Mode::Cluster { .. }));
        assert_eq!(s.deny_backends, Deny::Default);
        assert!(s.proxy.trusted_proxies.is_empty() && !s.proxy.proxy_protocol);
        assert_eq!(s.proxy.limit_ipv6_prefix, 128);
    }

    #[test]
    fn both_spellings_booleans_and_the_last_one_count() {
        let s = parsed(&[
            "--http-port=81",
            "--http-port",
            "82",
            "--process-without-class",
            "--access-log=false",
            "--access-log=true",
            "--dns-servers=127.0.0.1:5353,10.0.0.10",
            "--deny-backend-cidrs=none",
            "--default-tls-secret=a/b",
            "--client-read-timeout=300ms",
            "--upstream-keepalive-timeout=0",
            "--watch-namespace=a, b",
            "--trusted-proxies=10.0.0.0/8, 192.0.2.1",
            "--proxy-protocol",
            "--limit-ipv6-prefix=64",
        ])
        .unwrap();
        assert_eq!(s.proxy.http_port, 82);
        assert!(s.translate.process_without_class && s.access_log);
        assert_eq!(s.dns_servers, ["127.0.0.1:5353".parse().unwrap(), "10.0.0.10:53".parse().unwrap()]);
        assert_eq!(s.deny_backends, Deny::Nothing);
        assert_eq!(s.translate.default_tls_secret, Some(("a".into(), "b".into())));
        assert_eq!(s.proxy.client_read_timeout, Some(Duration::from_millis(300)));
        assert_eq!(s.proxy.upstream_keepalive_timeout, None);
        assert_eq!(s.watch_namespaces, ["a", "b"]);
        assert_eq!(s.proxy.trusted_proxies.to_string(), "10.0.0.0/8,192.0.2.1/32");
        assert!(s.proxy.proxy_protocol);
        assert_eq!(s.proxy.limit_ipv6_prefix, 64);
        assert!(parsed(&["--process-without-class=false"]).is_ok_and(|s| !s.translate.process_without_class));
    }

    #[test]
    fn gateways_are_served_as_the_flags_say() {
        let s = parsed(&[]).unwrap();
        assert!(s.translate.gateway_api && s.translate.gateway_addresses.is_empty());
        assert_eq!(s.translate.gateway_listener_ports, [80, 443]);
        assert!(s.proxy.gateway_ports.is_empty());
        // What the process itself listens to opens no listener.
        let s = parsed(&["--http-port=8080", "--https-port=8443", "--metrics-port=9091"]).unwrap();
        assert_eq!(s.translate.gateway_listener_ports, [80, 443]);
        assert!(s.proxy.gateway_ports.is_empty());
        let s =
            parsed(&["--gateway-listener-ports=8443, 80,8080,8080", "--gateway-addresses=192.0.2.1, ::1"])
                .unwrap();
        assert_eq!(s.translate.gateway_listener_ports, [80, 8080, 8443]);
        assert_eq!(s.proxy.gateway_ports, [8080, 8443]);
        let addresses = ["192.0.2.1", "::1"].map(|ip| ip.parse::<IpAddr>().unwrap());
        assert_eq!(s.translate.gateway_addresses, addresses);
        assert!(parsed(&["--enable-gateway-api=false"]).is_ok_and(|s| !s.translate.gateway_api));
    }

    #[test]
    fn a_bad_value_is_one_line_with_flag_value_and_what_is_accepted() {
        for (arg, want) in [
            ("--http-port=abc", "--http-port=abc: accepted: a port number, 0 to 65535"),
            ("--http-port=65536", "--http-port=65536: accepted: a port number, 0 to 65535"),
            ("--https-port=-1", "--https-port=-1: accepted: a port number, 0 to 65535"),
            ("--bind-address=host", "--bind-address=host: accepted: an IP address"),
            (
                "--max-header-size=64k",
                "--max-header-size=64k: accepted: bytes, or a number with Ki, Mi or Gi",
            ),
            (
                "--response-buffer-size=all",
                "--response-buffer-size=all: accepted: bytes, or a number with Ki, Mi or Gi, or unlimited",
            ),
            ("--max-header-size=1", "--max-header-size=1: accepted: 1Ki to 1Mi"),
            (
                "--client-read-timeout=60",
                "--client-read-timeout=60: accepted: a number with ms, s, m or h (31 days at most), or 0 for off",
            ),
            ("--access-log=maybe", "--access-log=maybe: accepted: true, false"),
            ("--log-level=loud", "--log-level=loud: accepted: off, error, warn, info, debug, trace"),
            ("--default-tls-secret=x", "--default-tls-secret=x: accepted: namespace/name"),
            ("--dns-servers=x", "--dns-servers=x: accepted: ip or ip:port, separated by commas"),
            (
                "--deny-backend-cidrs=10/8",
                "--deny-backend-cidrs=10/8: accepted: CIDRs separated by commas, or none",
            ),
            (
                "--trusted-proxies=10.0.0.0/8,lb",
                "--trusted-proxies=10.0.0.0/8,lb: accepted: addresses and CIDRs separated by commas",
            ),
            (
                "--proxy-protocol",
                "--proxy-protocol=true: accepted: only with --trusted-proxies, the peers it is read from",
            ),
            ("--limit-ipv6-prefix=0", "--limit-ipv6-prefix=0: accepted: a number of bits, 1 to 128"),
            ("--enable-gateway-api=on", "--enable-gateway-api=on: accepted: auto, true, false"),
            (
                "--gateway-listener-ports=80,0",
                "--gateway-listener-ports=80,0: accepted: port numbers, 1 to 65535, separated by commas",
            ),
            (
                "--gateway-addresses=10.0.0.1,lb",
                "--gateway-addresses=10.0.0.1,lb: accepted: IP addresses, separated by commas",
            ),
            ("--ingress-class=", "--ingress-class=: accepted: a class name"),
            ("--threads=x", "--threads=x: accepted: a whole number, 0 to 1024"),
            ("--auth-hash-workers=0", "--auth-hash-workers=0: accepted: a whole number, 1 to 256"),
            (
                "--auth-url-timeout=x",
                "--auth-url-timeout=x: accepted: a number with ms, s, m or h (31 days at most), or 0 for off",
            ),
            ("--http-prot=1", "--http-prot: no such flag; did you mean --http-port?"),
            ("serve", "serve: no such subcommand; accepted: check, demo, explain, hash-password"),
        ] {
            assert_eq!(parsed(&[arg]).unwrap_err(), want);
        }
    }

    #[test]
    fn the_demo_needs_no_privileged_port_unless_asked() {
        let s = parsed(&["demo"]).unwrap();
        assert_eq!((s.proxy.http_port, s.proxy.https_port, s.metrics_port), (8080, 8443, 9090));
        assert!(matches!(s.mode, Mode::Demo) && s.translate.backends_from_slices);
        assert_eq!(parsed(&["demo", "--http-port=0"]).unwrap().proxy.http_port, 0);
        assert_eq!(parsed(&["--https-port=1", "demo"]).unwrap().proxy.https_port, 1);
    }

    #[test]
    fn the_shipped_arguments_parse() {
        let template = include_str!("../default/020-daemonset.yaml");
        let args: Vec<&str> = template.lines().filter_map(|l| l.trim().strip_prefix("- --")).collect();
        let args: Vec<String> = args.iter().map(|a| format!("--{a}")).collect();
        let s = parsed(&args.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        assert_eq!(s.translate.ingress_class, "tak-os");
        assert_eq!((s.proxy.http_port, s.proxy.https_port, s.metrics_port), (80, 443, 9090));
        // Kubernetes waits a minute for the end of a Pod.
        assert!(s.shutdown_delay < s.shutdown_timeout && s.shutdown_timeout < Duration::from_secs(60));
    }

    #[test]
    fn hash_password_takes_a_user() {
        for (args, want) in [
            (&["hash-password"][..], "hash-password None"),
            (&["hash-password", "--user", "alice"], "hash-password Some(\"alice\")"),
            (
                &["hash-password", "--user=a:b"],
                "--user=a:b: accepted: a user name without colon, not beginning with #",
            ),
        ] {
            assert_eq!(parsed(args).unwrap_err(), want);
        }
    }

    #[test]
    fn check_takes_folders_and_explain_a_request() {
        let s = parsed(&["check", "a", "-", "--output=sarif", "--ingress-class=x"]).unwrap();
        let Task::Check(check) = s.task else { panic!("{:?}", s.task) };
        assert_eq!((check.paths.len(), check.output, check.strict), (2, Output::Sarif, false));
        assert_eq!(s.translate.ingress_class, "x");
        let s = parsed(&[
            "explain",
            "--host=a.x",
            "--path=/p",
            "--header=A: b: c",
            "--header=A:d",
            "--sni=b.x",
            "--client-ip=::1",
            "--manifests=m",
        ])
        .unwrap();
        assert!(matches!(s.mode, Mode::Manifests(_)) && s.translate.backends_from_slices);
        let Task::Explain(ask) = s.task else { panic!("{:?}", s.task) };
        let Explain { question, json } = *ask;
        assert_eq!((question.host.as_str(), question.path.as_str(), json), ("a.x", "/p", false));
        assert!(question.tls && question.headers.get_all("a").iter().eq(["b: c", "d"]));
        for (args, want) in [
            (&["check"][..], "the following required arguments were not provided"),
            (&["check", "a", "--output=xml"], "--output=xml: accepted: text, json, sarif"),
            (&["explain", "--host=a", "--client-ip=x"], "--client-ip=x: accepted: an IP address"),
            (&["explain", "--host=a", "--header=x"], "--header=x: accepted: Name: value"),
            (&["explain", "--host=a", "--method= "], "--method= : accepted: a method"),
        ] {
            let line = parsed(args).unwrap_err();
            assert!(line.starts_with(want), "{line}");
        }
        assert!(matches!(parsed(&["demo"]).unwrap().task, Task::Serve));
    }

    #[test]
    fn every_flag_has_its_environment_variable() {
        for arg in command().get_arguments() {
            let long = arg.get_long().unwrap();
            if !matches!(long, "help" | "version") {
                let env = arg.get_env().unwrap().to_str().unwrap();
                assert_eq!(env, format!("TAK_INGRESS_{}", long.replace('-', "_").to_uppercase()));
            }
        }
    }
}
