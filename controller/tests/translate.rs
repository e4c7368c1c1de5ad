//! Whole objects in, whole tables and findings out: every folder of `tests/cases`.
//!
//! `in.yaml` is the cluster, `in.2.yaml` and so on are the same cluster later; `expect.txt` is what
//! they must be translated to. `UPDATE_CASES=1` writes that file instead of comparing with it: read
//! what changed before it is kept.
//!
//! Comments steer a case: `#! flag ...` sets flags; `#? host path` asks which route takes a request,
//! `#? sni` which certificate a client gets. `'@crt name'` and `'@key name'` stand for a certificate
//! and its key, made at test time; one whose name begins with `old` has expired; words behind the name are the
//! hosts that it is good for. `'@large value'` is
//! longer than any certificate.
#![allow(clippy::unwrap_used, clippy::panic)]

use ingress_controller::cluster::{Cluster, Dirty, Parsed, parse_documents};
use ingress_controller::finding::Outcome;
use ingress_controller::translate::{Settings, Translation, Translator};
use ingress_controller::write::Change;
use ingress_core::route::path::routing_path;
use ingress_core::{
    Access, Auth, Backend, BackendAddress, BackendProtocol, HostPattern, Origins, RateLimit, Route, Timeouts,
};
use openssl::asn1::Asn1Time;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::x509::X509;
use openssl::x509::extension::SubjectAlternativeName;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// What the translator takes for the present: 2030-03-17.
const NOW: i64 = 1_900_000_000;

#[test]
fn cases() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut dirs: Vec<_> = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()).collect();
    dirs.sort();
    assert!(dirs.len() >= 15, "the cases are missing");
    let update = std::env::var_os("UPDATE_CASES").is_some();
    let mut wrong = Vec::new();
    for dir in dirs {
        let (found, file) = (run(&dir), dir.join("expect.txt"));
        let expected = fs::read_to_string(&file).unwrap_or_default();
        if found == expected {
            continue;
        }
        if update {
            fs::write(&file, found).unwrap();
        } else {
            println!("{}:\n{}", file.display(), difference(&expected, &found));
            wrong.push(dir);
        }
    }
    assert!(wrong.is_empty(), "{wrong:?} differ");
}

/// Every step of a case, one after the other through the same translator.
fn run(dir: &Path) -> String {
    let mut out = String::new();
    let mut pairs = HashMap::new();
    let mut state: Option<(Cluster, Translator)> = None;
    for (n, file) in steps(dir).into_iter().enumerate() {
        let text = fill_in(&fs::read_to_string(&file).unwrap(), &mut pairs);
        let (cluster, translator) = state
            .get_or_insert_with(|| (Cluster::default(), Translator::with_clock(settings(&text), || NOW)));
        let mut dirty = Dirty::default();
        replace(cluster, &text, &mut dirty);
        let translation = translator.translate(cluster, &dirty);
        if n > 0 {
            writeln!(out).unwrap();
        }
        writeln!(out, "== {} {}", name(&file), if translation.changed { "changed" } else { "same" }).unwrap();
        dump(&mut out, cluster, &translation, &text);
    }
    out
}

fn steps(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    // in.2.yaml is behind in.yaml
    files.sort_by_key(|file| (file.as_os_str().len(), file.clone()));
    files
}

fn name(file: &Path) -> String {
    file.file_name().unwrap().to_string_lossy().into_owned()
}

/// The text for all that there is, as a list after a reconnect would bring it.
fn replace(cluster: &mut Cluster, text: &str, dirty: &mut Dirty) {
    let (mut ingresses, mut classes, mut services) = (Vec::new(), Vec::new(), Vec::new());
    let (mut slices, mut secrets, mut certificates) = (Vec::new(), Vec::new(), Vec::new());
    for parsed in parse_documents(text) {
        match parsed.unwrap() {
            Parsed::Ingress(o) => ingresses.push(o.into()),
            Parsed::Class(o) => classes.push(o),
            Parsed::Service(o) => services.push(o),
            Parsed::Slice(service, o) => slices.push((service, o)),
            Parsed::Secret(o) => secrets.push(o),
            Parsed::Namespace(object) => cluster.apply_namespace(object, dirty),
            Parsed::GatewayApi(object) => cluster.apply_gateway_api(*object, dirty),
            Parsed::ConfigMap(object) => cluster.apply_config_map(object, dirty),
            Parsed::Certificate(ingress, o) => certificates.push((ingress, o)),
            Parsed::Other => panic!("a kind that is not read"),
        }
    }
    cluster.replace_ingresses(ingresses, dirty);
    cluster.replace_classes(classes, dirty);
    cluster.replace_services(services, dirty);
    cluster.replace_slices(slices, dirty);
    cluster.replace_secrets(secrets, dirty);
    cluster.replace_certificates(certificates, dirty);
    cluster.certificates_readable(None, !text.contains("#! no-cert-manager"), dirty);
}

fn settings(text: &str) -> Settings {
    let mut settings = Settings::default();
    for flag in text.lines().filter_map(|line| line.strip_prefix("#! ")).flat_map(str::split_whitespace) {
        match flag.split_once('=') {
            None if flag == "process-without-class" => settings.process_without_class = true,
            None if flag == "allow-external-name-services" => settings.allow_external_name = true,
            None if flag == "no-cert-manager" => {}
            None if flag == "manifests" => settings.backends_from_slices = true,
            Some(("create-certificates", "false")) => settings.create_certificates = false,
            Some(("default-cluster-issuer", value)) => settings.default_cluster_issuer = value.into(),
            Some(("default-tls-secret", value)) => {
                settings.default_tls_secret = value.split_once('/').map(|(a, b)| (a.into(), b.into()));
            }
            _ => panic!("no such flag: {flag}"),
        }
    }
    settings
}

/// Puts certificates and keys in the place of their names.
fn fill_in(text: &str, pairs: &mut HashMap<String, (String, String)>) -> String {
    let mut parts = text.split("'@");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (what, rest) = part.split_once('\'').unwrap();
        let (kind, name) = what.split_once(' ').unwrap();
        if kind == "large" {
            write!(out, "{:?}{rest}", "x".repeat(270_000)).unwrap();
            continue;
        }
        let (crt, key) = pairs.entry(name.to_owned()).or_insert_with(|| pair(name));
        write!(out, "{:?}{rest}", if kind == "crt" { crt } else { key }).unwrap();
    }
    out
}

/// What stands behind the first word are the hosts that it is good for.
fn pair(name: &str) -> (String, String) {
    let expired = name.starts_with("old");
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let mut builder = X509::builder().unwrap();
    builder.set_not_before(&Asn1Time::from_unix(1).unwrap()).unwrap();
    let end = if expired { NOW - 1 } else { NOW + 1 };
    builder.set_not_after(&Asn1Time::from_unix(end).unwrap()).unwrap();
    builder.set_pubkey(&key).unwrap();
    if name.contains(' ') {
        let mut names = SubjectAlternativeName::new();
        for host in name.split(' ').skip(1) {
            names.dns(host);
        }
        let names = names.build(&builder.x509v3_context(None, None)).unwrap();
        builder.append_extension(names).unwrap();
    }
    builder.sign(&key, MessageDigest::sha256()).unwrap();
    let text = |pem: Vec<u8>| String::from_utf8(pem).unwrap();
    (text(builder.build().to_pem().unwrap()), text(key.private_key_to_pem_pkcs8().unwrap()))
}

fn dump(out: &mut String, cluster: &Cluster, translation: &Translation, text: &str) {
    let mut hosts: BTreeMap<&str, Vec<&Route>> = BTreeMap::new();
    for route in translation.routes.routes() {
        hosts.entry(&route.host).or_default().push(route);
    }
    assert_eq!(translation.route_count, hosts.values().map(Vec::len).sum::<usize>());
    for (host, routes) in hosts {
        writeln!(out, "{host}").unwrap();
        for route in routes {
            writeln!(out, "  {}", line(route)).unwrap();
        }
    }
    let declared = cluster.ingresses.values().flat_map(|o| o.tls.iter()).flat_map(|tls| &tls.hosts);
    let patterns: BTreeSet<HostPattern> = declared.filter_map(|host| host.parse().ok()).collect();
    for pattern in patterns.iter().chain([&HostPattern::Any]) {
        if let Some(certificate) = translation.certs.declared(pattern) {
            writeln!(out, "certificate {pattern}: {}", certificate.source).unwrap();
        }
    }
    for question in text.lines().filter_map(|line| line.strip_prefix("#? ")) {
        writeln!(out, "? {question}: {}", answer(translation, question)).unwrap();
    }
    for write in &translation.writes {
        let (verb, body) = match &write.change {
            Change::Create(body) => ("create", body),
            Change::Apply(body) => ("apply", body),
            _ => continue,
        };
        let (spec, owner) = (&body["spec"], &body["metadata"]["ownerReferences"][0]["uid"]);
        let issuer = &spec["issuerRef"];
        writeln!(
            out,
            "> {verb} {} for {} from {} {} to {owner}",
            write.target, spec["dnsNames"], issuer["kind"], issuer["name"]
        )
        .unwrap();
    }
    for outcome in &translation.outcomes {
        tell(out, outcome);
    }
}

fn line(route: &Route) -> String {
    let source = &route.source;
    let mut line = format!("{} -> {}", route.path, address(&route.backend));
    write!(line, " [{}/{} {}]", source.namespace, source.name, route.rule).unwrap();
    let backend = &route.backend;
    line.push_str(match backend.protocol {
        BackendProtocol::Http => "",
        BackendProtocol::Https => " https",
        BackendProtocol::H2c => " h2c",
        BackendProtocol::H2 => " h2",
        BackendProtocol::Grpc => " grpc",
        BackendProtocol::Grpcs => " grpcs",
    });
    if backend.protocol.tls() {
        write!(line, " as {}", backend.tls_name).unwrap();
    }
    if !backend.verify {
        line.push_str(" unverified");
    }
    if !backend.keepalive {
        line.push_str(" fresh");
    }
    if route.https_redirect {
        line.push_str(" redirect");
    }
    match &route.policy.auth {
        Auth::Open => {}
        Auth::Basic(basic) => {
            let users: Vec<_> = basic.file.users.keys().map(|user| String::from_utf8_lossy(user)).collect();
            let (source, challenge) =
                (&basic.file.source, String::from_utf8_lossy(basic.challenge.as_bytes()));
            write!(line, " auth=[{challenge}] of {source} for {}", users.join(",")).unwrap();
        }
        Auth::External(external) => {
            write!(line, " auth=[{}]", external.url).unwrap();
            if let Some(signin) = &external.signin {
                write!(line, " signin=[{signin}]").unwrap();
            }
            if !external.response_headers.is_empty() {
                write!(line, " copies={:?}", external.response_headers).unwrap();
            }
        }
        Auth::OAuth(oauth) => {
            write!(line, " auth=[{} at {}] of {}", oauth.client_id, oauth.issuer, oauth.source).unwrap();
            if !oauth.allowed_groups.is_empty() {
                write!(line, " groups={:?}", oauth.allowed_groups).unwrap();
            }
        }
        auth => write!(line, " auth={auth:?}").unwrap(),
    }
    match &route.policy.access {
        Access::Open => {}
        Access::Denied => line.push_str(" access=Denied"),
        Access::Listed { allow, deny } => {
            if let Some(allow) = allow {
                write!(line, " allow={allow}").unwrap();
            }
            if !deny.is_empty() {
                write!(line, " deny={deny}").unwrap();
            }
        }
    }
    if let Some(cors) = &route.policy.cors {
        match &cors.origins {
            Origins::Any | Origins::AnyWithCredentials => line.push_str(" cors=*"),
            Origins::Listed { origins, credentials } => {
                let all: Vec<_> = origins.iter().map(ToString::to_string).collect();
                write!(line, " cors={}{}", all.join(","), if *credentials { "+credentials" } else { "" })
                    .unwrap();
            }
        }
        let text = |value: &http::HeaderValue| value.to_str().unwrap().to_owned();
        let expose = cors.expose.as_ref().map_or("nothing".into(), text);
        write!(
            line,
            " ({}; {}; {expose}; {})",
            text(&cors.methods),
            text(&cors.headers),
            text(&cors.max_age)
        )
        .unwrap();
    }
    let RateLimit { second, minute, connections } = route.policy.rate_limit;
    for (name, bucket) in [("rps", second), ("rpm", minute)] {
        if let Some(bucket) = bucket {
            let (interval, burst) = (bucket.interval() / 1_000_000, bucket.depth() / bucket.interval());
            write!(line, " {name}={burst} at once, one each {interval} ms").unwrap();
        }
    }
    if let Some(connections) = connections {
        write!(line, " connections={connections}").unwrap();
    }
    if route.policy.timeouts != Timeouts::default() {
        let Timeouts { connect, read, send } = route.policy.timeouts;
        let shown =
            [connect, read, send].map(|t| t.map_or_else(|| "none".into(), |t| t.as_secs().to_string()));
        write!(line, " timeouts={}", shown.join("/")).unwrap();
    }
    line
}

fn address(backend: &Backend) -> String {
    match &backend.address {
        BackendAddress::Name(name, port) => format!("{name}:{port}"),
        BackendAddress::Endpoints(all) => all.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        BackendAddress::Unavailable(why) => format!("{why:?}({})", backend.service),
    }
}

fn answer(translation: &Translation, question: &str) -> String {
    let Some((host, path)) = question.split_once(' ') else {
        let found = translation.certs.find(Some(question));
        return found.map_or_else(|| "fallback".into(), |certificate| certificate.source.to_string());
    };
    match routing_path(path) {
        Ok(path) => match translation.routes.find(host, &path) {
            Ok(route) => route.backend.service.to_string(),
            Err(none) => format!("no {none:?}"),
        },
        Err(problem) => problem.to_string(),
    }
}

fn tell(out: &mut String, outcome: &Outcome) {
    if outcome.findings.is_empty() {
        writeln!(out, "! {}: all is well", outcome.source).unwrap();
    }
    for finding in &outcome.findings {
        writeln!(out, "! {} {} {}: {}", outcome.source, finding.reason, finding.field, finding.message)
            .unwrap();
    }
}

fn difference(expected: &str, found: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (expected.lines().collect(), found.lines().collect());
    let missing = old.iter().filter(|line| !new.contains(line)).map(|line| format!("  - {line}\n"));
    let extra = new.iter().filter(|line| !old.contains(line)).map(|line| format!("  + {line}\n"));
    let text: String = missing.chain(extra).collect();
    if text.is_empty() { "  the same lines in another order\n".into() } else { text }
}
