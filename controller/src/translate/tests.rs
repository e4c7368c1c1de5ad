use super::*;
use crate::cluster::certificate::{CertificateObject, CertificateSpec, IssuerRef};
use crate::cluster::{
    Annotations, ClassObject, Path, PathBackend, PathType, PortObject, PortRef, Rule, SecretObject,
    ServiceObject, SliceName, SliceObject, Tls,
};
use crate::finding::Reason;
use crate::write::{Change, Target};
use openssl::asn1::Asn1Time;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::x509::X509;
use openssl::x509::extension::SubjectAlternativeName;
use std::collections::BTreeMap;
use std::time::Instant;

/// A small deterministic generator: the same cases on every run.
struct Lcg(u64);

impl Lcg {
    fn next(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }

    fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.next(of.len())]
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.next(n) == 0
    }
}

fn path(text: &str, path_type: PathType, service: &str) -> Path {
    let backend = PathBackend::Service { name: service.into(), port: PortRef::Number(80) };
    Path { path: Some(text.into()), path_type, backend }
}

fn ingress(key: Key, rules: Vec<Rule>) -> IngressObject {
    IngressObject {
        key,
        uid: "u".into(),
        resource_version: "".into(),
        created: 0,
        class: Some("tak-os".into()),
        annotations: Annotations::default(),
        rules: rules.into(),
        tls: [].into(),
        default_backend: false,
    }
}

fn service(key: Key, headless: bool, external: Option<&str>, port: u16) -> ServiceObject {
    let port = PortObject { name: "http".into(), port, app_protocol: None, tcp: true };
    ServiceObject {
        addresses: [].into(),
        key,
        resource_version: "".into(),
        headless,
        external_name: external.map(Into::into),
        ports: [port].into(),
    }
}

fn pair(names: &[&str]) -> (Vec<u8>, Vec<u8>) {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let mut builder = X509::builder().unwrap();
    builder.set_not_before(&Asn1Time::from_unix(1).unwrap()).unwrap();
    builder.set_not_after(&Asn1Time::from_unix(2_000_000_000).unwrap()).unwrap();
    builder.set_pubkey(&key).unwrap();
    if !names.is_empty() {
        let mut all = SubjectAlternativeName::new();
        for name in names {
            all.dns(name);
        }
        let all = all.build(&builder.x509v3_context(None, None)).unwrap();
        builder.append_extension(all).unwrap();
    }
    builder.sign(&key, MessageDigest::sha256()).unwrap();
    (builder.build().to_pem().unwrap(), key.private_key_to_pem_pkcs8().unwrap())
}

fn secret(key: Key, crt: &[u8], private: &[u8]) -> SecretObject {
    SecretObject {
        key,
        uid: "".into(),
        resource_version: "".into(),
        secret_type: "kubernetes.io/tls".into(),
        data: [("tls.crt".into(), crt.into()), ("tls.key".into(), private.into())].into(),
    }
}

const NAMESPACES: [&str; 2] = ["a", "b"];
const NAMES: [&str; 4] = ["w", "x", "y", "z"];
const HOSTS: [&str; 8] = [
    "one.example.com",
    "two.example.com",
    "*.example.com",
    "",
    "ONE.example.com",
    "bad..host",
    "other.test",
    "*.test",
];
const SERVICES: [&str; 3] = ["web", "api", "gone"];

fn random_key(rng: &mut Lcg, names: &[&str]) -> Key {
    Key::new(rng.pick(&NAMESPACES), rng.pick(names))
}

fn random_ingress(rng: &mut Lcg) -> IngressObject {
    let rules = (0..rng.next(4)).map(|_| {
        let paths = (0..rng.next(4)).map(|_| {
            let text = rng.pick(&["/", "/a", "/a/", "/a/b", "/(x)", "nope"]);
            let path_type =
                [PathType::Exact, PathType::Prefix, PathType::ImplementationSpecific][rng.next(3)];
            path(text, path_type, rng.pick(&SERVICES))
        });
        let paths = paths.collect();
        Rule { host: rng.pick(&HOSTS).into(), paths }
    });
    let mut object = ingress(Key::new("", ""), rules.collect());
    object.key = random_key(rng, &NAMES);
    object.created = rng.next(3) as i64;
    object.class = (!rng.one_in(8)).then(|| rng.pick(&["tak-os", "tak-os", "tak-os", "other"]).into());
    let known = if rng.one_in(3) { HOSTS.len() } else { 3 };
    let tls = (0..rng.next(3)).map(|_| Tls {
        hosts: (0..rng.next(3)).map(|_| rng.pick(&HOSTS[..known]).into()).collect(),
        secret: (!rng.one_in(3)).then(|| rng.pick(&["s1", "s2"]).into()),
    });
    object.tls = tls.collect();
    let mut annotations = Vec::new();
    for (key, values) in [
        ("ingress.tak-os.org/ssl-redirect", ["true", "false", "odd"]),
        ("ingress.tak-os.org/backend-protocol", ["https", "grpc", "http"]),
        ("ingress.tak-os.org/proxy-read-timeout", ["1", "x", "0"]),
        ("ingress.tak-os.org/auth-url", ["http://x", "", "y"]),
        ("ingress.tak-os.org/auth-type", ["basic", "basic", "x"]),
        ("ingress.tak-os.org/auth-secret", ["s1", "s2", "w-tls-0"]),
    ] {
        if rng.one_in(4) {
            annotations.push((key, rng.pick(&values)));
        }
    }
    object.annotations = annotations.into_iter().collect();
    object
}

fn random_service(rng: &mut Lcg) -> ServiceObject {
    let key = random_key(rng, &SERVICES);
    let external = rng.one_in(5).then_some("x.test");
    service(key, rng.one_in(3), external, if rng.one_in(4) { 81 } else { 80 })
}

fn random_slice(rng: &mut Lcg) -> (Key, SliceObject) {
    let slice = SliceObject {
        name: SliceName { name: format!("slice-{}", rng.next(3)).into(), foreign: rng.one_in(2) },
        ports: [("http".into(), 8080)].into(),
        addresses: (0..rng.next(3)).map(|i| format!("10.0.0.{i}").parse().unwrap()).collect(),
    };
    (random_key(rng, &SERVICES), slice)
}

const SECRETS: [&str; 7] = ["s1", "s2", "w-tls-0", "w-tls-5", "x-tls-0", "x-tls-1", "x-tls-2"];

fn random_secret(rng: &mut Lcg, pairs: &[(Vec<u8>, Vec<u8>)]) -> SecretObject {
    if rng.one_in(8) {
        let key = random_key(rng, &SECRETS);
        let file = rng.pick(&["alice:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", "bob:plain", ""]);
        return SecretObject {
            secret_type: "Opaque".into(),
            data: [("auth".into(), file.as_bytes().into())].into(),
            ..secret(key, b"", b"")
        };
    }
    let (n, wrong) = (rng.next(pairs.len()), rng.one_in(4));
    let other = if wrong { (n + 1) % pairs.len() } else { n };
    secret(random_key(rng, &SECRETS), &pairs[n].0, &pairs[other].1)
}

fn random_certificate(rng: &mut Lcg) -> (Key, CertificateObject) {
    let issuer_ref = IssuerRef {
        name: rng.pick(&["letsencrypt-staging", "other"]).into(),
        kind: "ClusterIssuer".into(),
        group: "cert-manager.io".into(),
    };
    let (ingress, block) = (random_key(rng, &NAMES), rng.next(3));
    let spec = CertificateSpec {
        dns_names: vec![rng.pick(&["two.example.com", "one.example.com"]).into()],
        secret_name: format!("{}-tls-{block}", ingress.name),
        issuer_ref,
    };
    let made_for = [Some("u"), Some("u"), Some("gone"), None][rng.next(4)].map(Into::into);
    (ingress, CertificateObject { block, uid: "c".into(), made_for, spec })
}

fn random_change_of_certificates(rng: &mut Lcg, cluster: &mut Cluster, dirty: &mut Dirty) {
    match rng.next(5) {
        0 => cluster.remove_certificate(&random_key(rng, &NAMES), rng.next(3), dirty),
        1 => cluster.certificates_readable(None, rng.one_in(2), dirty),
        _ => {
            let (ingress, object) = random_certificate(rng);
            cluster.apply_certificate(ingress, object, dirty);
        }
    }
}

/// The Certificates that wait to be written after these.
fn queue(waiting: &mut BTreeMap<Target, Change>, writes: Vec<Write>) {
    for write in writes.into_iter().filter(|write| write.target.kind == "Certificate") {
        waiting.insert(write.target, write.change);
    }
    waiting.retain(|_, change| *change != Change::Nothing);
}

/// One to four changes, each as news of one object or as a whole list.
fn random_changes(rng: &mut Lcg, cluster: &mut Cluster, pairs: &[(Vec<u8>, Vec<u8>)]) -> Dirty {
    let mut dirty = Dirty::default();
    for _ in 0..1 + rng.next(4) {
        match rng.next(16) {
            14 | 15 => random_change_of_certificates(rng, cluster, &mut dirty),
            0..=3 => cluster.apply_ingress(random_ingress(rng), &mut dirty),
            4 => cluster.remove_ingress(&random_key(rng, &NAMES), &mut dirty),
            5 => cluster.apply_service(random_service(rng), &mut dirty),
            6 => cluster.remove_service(&random_key(rng, &SERVICES), &mut dirty),
            7 => {
                let (service, slice) = random_slice(rng);
                cluster.apply_slice(service, slice, &mut dirty);
            }
            8 | 12 | 13 => cluster.apply_secret(random_secret(rng, pairs), &mut dirty),
            9 => cluster.remove_secret(&random_key(rng, &SECRETS), &mut dirty),
            10 => {
                let controller = rng.pick(&[class::CONTROLLER, class::CONTROLLER, "else/where"]).into();
                let (name, none) = ("tak-os".into(), Arc::<str>::from(""));
                let class = ClassObject { name, uid: none.clone(), resource_version: none, controller };
                if rng.one_in(3) {
                    cluster.remove_class(&class.name, &mut dirty);
                } else {
                    cluster.apply_class(class, &mut dirty);
                }
            }
            _ => {
                let mut left: Vec<_> = cluster.ingresses.values().cloned().collect();
                left.sort_by(|a, b| a.key.cmp(&b.key));
                left.retain(|_| !rng.one_in(4));
                cluster.replace_ingresses(left, &mut dirty);
                let mut left: Vec<_> = cluster.secrets.values().map(|o| (**o).clone()).collect();
                left.sort_by(|a, b| a.key.cmp(&b.key));
                left.retain(|_| !rng.one_in(4));
                cluster.replace_secrets(left, &mut dirty);
            }
        }
    }
    dirty
}

/// What stands after these outcomes; deleted Ingresses are forgotten.
fn take_in(standing: &mut BTreeMap<ResourceRef, Box<[Finding]>>, outcomes: Vec<Outcome>, cluster: &Cluster) {
    for outcome in outcomes {
        let before = standing.insert(outcome.source.clone(), outcome.findings.clone());
        assert_ne!(before.unwrap_or_default(), outcome.findings, "told twice: {}", outcome.source);
    }
    standing.retain(|source, findings| {
        let key = Key { namespace: source.namespace.clone(), name: source.name.clone() };
        !findings.is_empty() && (source.kind != Kind::Ingress || cluster.ingresses.contains_key(&key))
    });
}

#[test]
fn any_sequence_of_changes_ends_where_a_fresh_translation_does() {
    let pairs: Vec<_> =
        [&[][..], &["one.example.com", "two.example.com", "other.test"], &["*.example.com"]].map(pair).into();
    let (mut routes_seen, mut certs_seen, mut written, mut reasons) = (0, 0, 0, BTreeSet::new());
    for seed in 0..40 {
        let mut rng = Lcg(seed);
        let settings = Settings {
            process_without_class: seed % 2 == 0,
            backends_from_slices: seed % 5 == 4,
            allow_external_name: seed % 3 == 0,
            default_tls_secret: (seed % 4 == 0).then(|| ("a".into(), "s1".into())),
            create_certificates: seed % 7 != 6,
            ..Settings::default()
        };
        let new = || Translator::with_clock(settings.clone(), || 1_900_000_000);
        let (mut cluster, mut translator, mut standing) = (Cluster::default(), new(), BTreeMap::new());
        let mut waiting = BTreeMap::new();
        cluster.certificates_readable(None, seed % 3 != 2, &mut Dirty::default());
        let mut last = translator.translate(&cluster, &Dirty::everything());
        assert!(last.changed);
        take_in(&mut standing, last.outcomes.clone(), &cluster);
        for step in 0..60 {
            let dirty = random_changes(&mut rng, &mut cluster, &pairs);
            let now = translator.translate(&cluster, &dirty);
            let fresh = new().translate(&cluster, &Dirty::everything());
            assert_eq!(now.routes, fresh.routes, "seed {seed} step {step}");
            assert_eq!(now.certs, fresh.certs, "seed {seed} step {step}");
            assert_eq!(now.route_count, fresh.route_count, "seed {seed} step {step}");
            assert_eq!(now.route_count, now.routes.routes().count(), "seed {seed} step {step}");
            let differs = now.routes != last.routes || now.certs != last.certs;
            assert_eq!(now.changed, differs, "seed {seed} step {step}");
            if !differs {
                assert!(Arc::ptr_eq(&now.routes, &last.routes) && Arc::ptr_eq(&now.certs, &last.certs));
            }
            let mut wanted = BTreeMap::new();
            take_in(&mut wanted, fresh.outcomes, &cluster);
            take_in(&mut standing, now.outcomes.clone(), &cluster);
            assert_eq!(standing, wanted, "seed {seed} step {step}");
            let mut writes = BTreeMap::new();
            queue(&mut writes, fresh.writes);
            queue(&mut waiting, now.writes.clone());
            assert_eq!(waiting, writes, "seed {seed} step {step}");
            written += writes.len();
            routes_seen += now.route_count;
            certs_seen += now.certs.len();
            reasons.extend(standing.values().flatten().map(|finding| finding.reason));
            last = now;
        }
        let again = translator.translate(&cluster, &Dirty::everything());
        assert!(!again.changed && again.outcomes.is_empty(), "everything anew is the same");
    }
    assert!(routes_seen > 5_000 && certs_seen > 250 && written > 500, "{routes_seen} {certs_seen} {written}");
    for reason in [
        Reason::HostPathTaken,
        Reason::TlsHostTaken,
        Reason::InvalidTlsSecret,
        Reason::SecretNotFound,
        Reason::CertificateNotRequested,
        Reason::CertificateTaken,
    ] {
        assert!(reasons.contains(&reason), "{reason} in {reasons:?}");
    }
}

fn many(n: usize) -> (Cluster, Translator) {
    let (mut cluster, mut dirty) = (Cluster::default(), Dirty::default());
    cluster.apply_service(service(Key::new("ns", "web"), false, None, 80), &mut dirty);
    for i in 0..n {
        cluster.apply_ingress(own_host(i, "/"), &mut dirty);
    }
    (cluster, Translator::new(Settings::default()))
}

fn own_host(i: usize, text: &str) -> IngressObject {
    let host = format!("app-{i}.example.com").into();
    let paths = [path(text, PathType::Prefix, "web")].into();
    ingress(Key::new("ns", format!("app-{i}")), vec![Rule { host, paths }])
}

#[test]
fn a_change_leaves_all_that_it_does_not_touch_as_it_is() {
    let (mut cluster, mut translator) = many(100);
    let before = translator.translate(&cluster, &Dirty::everything());
    before.routes.find("app-7.example.com", "/").unwrap().state.get_or_init(|| 7u8);
    let mut dirty = Dirty::default();
    cluster.apply_ingress(own_host(3, "/changed"), &mut dirty);
    let after = translator.translate(&cluster, &dirty);
    assert!(after.changed && after.outcomes.is_empty() && after.route_count == 100);
    for i in 0..100 {
        let host: HostPattern = format!("app-{i}.example.com").parse().unwrap();
        let (old, new) = (before.routes.get(&host).unwrap(), after.routes.get(&host).unwrap());
        assert_eq!(Arc::ptr_eq(old, new), i != 3, "{host}");
    }
    // the Service's port goes away and comes back: new backends, and nothing lost on the way
    for (port, address) in [(81, false), (80, true)] {
        let mut dirty = Dirty::default();
        cluster.apply_service(service(Key::new("ns", "web"), false, None, port), &mut dirty);
        let after = translator.translate(&cluster, &dirty);
        assert_eq!((after.route_count, after.outcomes.len()), (100, 100));
        let route = after.routes.find("app-7.example.com", "/").unwrap();
        assert_eq!(matches!(route.backend.address, ingress_core::BackendAddress::Name(..)), address);
    }
    // one host of two changes: the other one's route keeps what the data plane put beside it
    let two = |text: &str| {
        let rule = |host: &str, text: &str| Rule {
            host: host.into(),
            paths: [path(text, PathType::Prefix, "web")].into(),
        };
        ingress(Key::new("ns", "two"), vec![rule("stays.test", "/"), rule("moves.test", text)])
    };
    let mut dirty = Dirty::default();
    cluster.apply_ingress(two("/a"), &mut dirty);
    let before = translator.translate(&cluster, &std::mem::take(&mut dirty));
    cluster.apply_ingress(two("/b"), &mut dirty);
    let after = translator.translate(&cluster, &dirty);
    let of = |t: &Translation, host: &str, path: &str| t.routes.find(host, path).ok().cloned();
    assert!(Arc::ptr_eq(&of(&before, "stays.test", "/").unwrap(), &of(&after, "stays.test", "/").unwrap()));
    assert!(of(&after, "moves.test", "/a").is_none() && of(&after, "moves.test", "/b").is_some());
}

#[test]
fn equal_policies_and_backends_are_one_in_memory() {
    let (cluster, mut translator) = many(50);
    let translation = translator.translate(&cluster, &Dirty::everything());
    let mut routes = translation.routes.routes();
    let first = routes.next().unwrap();
    for route in routes {
        assert!(Arc::ptr_eq(&first.policy, &route.policy) && Arc::ptr_eq(&first.backend, &route.backend));
    }
}

#[test]
fn outcomes_come_in_a_fixed_order_and_only_when_they_change() {
    let (mut cluster, mut dirty) = (Cluster::default(), Dirty::default());
    let mut translator = Translator::new(Settings::default());
    for i in [3, 1, 2] {
        cluster.apply_ingress(own_host(i, "/"), &mut dirty);
    }
    let names = |outcomes: &[Outcome]| {
        outcomes.iter().map(|o| format!("{} {}", o.source.name, o.findings.len())).collect::<Vec<_>>()
    };
    let told = translator.translate(&cluster, &std::mem::take(&mut dirty)).outcomes;
    assert_eq!(names(&told), ["app-1 1", "app-2 1", "app-3 1"]);
    assert_eq!((told[0].findings[0].reason, &*told[0].uid), (Reason::ServiceNotFound, "u"));
    cluster.apply_ingress(own_host(2, "/x"), &mut dirty);
    assert!(translator.translate(&cluster, &std::mem::take(&mut dirty)).outcomes.is_empty());
    // leaves our class: all is well; is deleted: there is nothing to say it of
    let left = IngressObject { class: Some("other".into()), ..own_host(2, "/x") };
    cluster.apply_ingress(left, &mut dirty);
    cluster.remove_ingress(&Key::new("ns", "app-3"), &mut dirty);
    let left = translator.translate(&cluster, &std::mem::take(&mut dirty));
    assert_eq!((names(&left.outcomes), left.route_count), (vec!["app-2 0".to_owned()], 1));
    cluster.apply_service(service(Key::new("ns", "web"), false, None, 80), &mut dirty);
    assert_eq!(names(&translator.translate(&cluster, &dirty).outcomes), ["app-1 0"]);
}

#[test]
fn nothing_is_remembered_of_what_is_gone() {
    let pairs = [pair(&[]), pair(&[]), pair(&["one.example.com"])];
    let mut rng = Lcg(99);
    let (mut cluster, mut translator) = (Cluster::default(), Translator::new(Settings::default()));
    for _ in 0..50 {
        let dirty = random_changes(&mut rng, &mut cluster, &pairs);
        translator.translate(&cluster, &dirty);
    }
    let mut dirty = Dirty::default();
    cluster.replace_ingresses(Vec::new(), &mut dirty);
    let last = translator.translate(&cluster, &dirty);
    assert!(last.routes.is_empty() && last.certs.is_empty() && last.route_count == 0);
    assert!(
        translator.ingresses.is_empty()
            && translator.by_service.is_empty()
            && translator.by_secret.is_empty()
    );
    assert!(translator.hosts.is_empty() && translator.tls_hosts.is_empty());
    assert!(translator.shared.certificates.is_empty());
    assert!(translator.shared.auth.is_empty());
}

/// Not a test of what is right but of how long it takes; run it in a release build.
#[test]
#[ignore = "measures time and memory: cargo test --release -p tak-os-ingress-controller one_change -- --ignored --nocapture"]
fn one_change_among_ten_thousand() {
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/statm").unwrap();
        status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4
    };
    let before = resident();
    let (mut cluster, mut translator) = many(10_000);
    let read = resident();
    let start = Instant::now();
    let first = translator.translate(&cluster, &Dirty::everything());
    println!(
        "all: {:?}; cluster {} KiB, translated {} KiB",
        start.elapsed(),
        read - before,
        resident() - read
    );
    drop(first);
    let mut published = translator.translate(&cluster, &Dirty::default());
    let mut times = Vec::new();
    for i in 0..200 {
        let mut dirty = Dirty::default();
        cluster.apply_ingress(own_host(i * 37, "/changed"), &mut dirty);
        let start = Instant::now();
        let next = translator.translate(&cluster, &dirty);
        times.push(start.elapsed());
        assert!(next.changed);
        published = next;
    }
    times.sort();
    println!("one: median {:?}, longest {:?}; {} KiB in all", times[100], times[199], resident() - before);
    assert_eq!(published.route_count, 10_000);
}

#[test]
fn a_gateway_never_asks_for_a_certificate() {
    let cluster = |kind: &str| {
        let text = format!(
            "apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {{name: tak-os, uid: c}}
spec: {{controllerName: tak-os.org/gateway-controller}}
---
{kind}"
        );
        let (mut cluster, mut dirty) = (Cluster::from_yaml(&text).unwrap(), Dirty::default());
        cluster.certificates_readable(None, true, &mut dirty);
        cluster
    };
    let asked = |cluster: &Cluster| {
        let translation = Translator::new(Settings::default()).translate(cluster, &Dirty::everything());
        translation.writes.iter().filter(|write| write.target.kind == "Certificate").count()
    };
    let gateway = "apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw, namespace: ns, uid: g, annotations: {cert-manager.io/cluster-issuer: prod}}
spec:
  gatewayClassName: tak-os
  listeners:
  - {name: https, port: 443, protocol: HTTPS, hostname: a.test, tls: {certificateRefs: [{name: missing}]}}
  - {name: bare, port: 443, protocol: HTTPS, hostname: b.test, tls: {mode: Terminate}}
";
    assert_eq!(asked(&cluster(gateway)), 0);
    // what would be asked for is seen here
    let ingress = "apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: app, namespace: ns, uid: i}
spec: {ingressClassName: tak-os, tls: [{hosts: [a.test]}]}
";
    assert_eq!(asked(&cluster(ingress)), 1);
}
