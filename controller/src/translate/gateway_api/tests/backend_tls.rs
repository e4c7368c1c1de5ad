//! BackendTLSPolicies beside routes.

use super::*;
use crate::cluster::MAX_SECRET_VALUE;
use ingress_core::{Backend, BackendProtocol, SubjectName};
use openssl::asn1::Asn1Time;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::x509::X509;

/// A Service with two ports, both of which may speak TLS, and a route to each.
const TLS: &str = "
apiVersion: v1
kind: Service
metadata: {name: tls, namespace: shop}
spec: {ports: [{name: one, port: 443}, {name: two, port: 8443, appProtocol: https}]}
";

fn to_tls() -> String {
    let rule = |path: &str, port: u16| {
        format!("{{matches: [{{path: {{value: {path}}}}}], backendRefs: [{{name: tls, port: {port}}}]}}")
    };
    route("r", &format!("rules: [{}, {}]", rule("/one", 443), rule("/two", 8443)))
}

pub(super) fn authority() -> String {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let mut builder = X509::builder().unwrap();
    builder.set_not_before(&Asn1Time::from_unix(1).unwrap()).unwrap();
    builder.set_not_after(&Asn1Time::from_unix(2_000_000_000).unwrap()).unwrap();
    builder.set_pubkey(&key).unwrap();
    builder.sign(&key, MessageDigest::sha256()).unwrap();
    String::from_utf8(builder.build().to_pem().unwrap()).unwrap()
}

fn config_map(name: &str, ca: &str) -> String {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "namespace": "shop", "name": name },
            "data": { "ca.crt": ca } })
    .to_string()
}

/// A policy of this age; `spec` holds what is beside the target.
fn policy(name: &str, created: u8, port: &str, validation: &str) -> String {
    let mut target = json!({ "group": "", "kind": "Service", "name": "tls" });
    if !port.is_empty() {
        target["sectionName"] = port.into();
    }
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "BackendTLSPolicy",
        "metadata": {
            "name": name, "namespace": "shop", "generation": 3, "resourceVersion": "1",
            "creationTimestamp": format!("2026-01-{created:02}T00:00:00Z"),
        },
        "spec": { "targetRefs": [target], "validation": serde_yaml_like(validation) },
    })
    .to_string()
}

/// `ca` of the ConfigMap `ca`, for this name.
fn of_map(hostname: &str) -> String {
    format!("{{caCertificateRefs: [{{group: '', kind: ConfigMap, name: ca}}], hostname: {hostname}}}")
}

impl Bench {
    fn backend(&self, path: &str) -> Arc<Backend> {
        self.found(80, "x.example.com", path).unwrap().backend.clone()
    }

    fn of_policy(&self, name: &str, kind: &str) -> (String, String) {
        self.condition(&format!("BackendTLSPolicy/{name}"), "/ancestors/0", kind).unwrap_or_default()
    }

    fn told(&self, name: &str) -> Vec<Reason> {
        let of = |o: &&Outcome| o.source.kind == Kind::BackendTlsPolicy && &*o.source.name == name;
        let outcomes = self.last.outcomes.iter().filter(of);
        outcomes.flat_map(|o| o.findings.iter().map(|finding| finding.reason)).collect()
    }
}

fn broken(backend: &Backend) -> bool {
    backend.address == BackendAddress::Unavailable(Unavailable::Broken)
}

/// Whom a backend is trusted as, and by how many authorities. It must be verified.
fn trusted(backend: &Backend) -> (String, usize) {
    assert!(backend.protocol.tls() && backend.verify);
    let tls = backend.tls.as_ref().expect("a policy holds");
    (backend.tls_name.to_string(), tls.roots.len())
}

#[test]
fn without_a_policy_tls_is_refused_and_with_one_it_is_verified() {
    let mut bench = bench(&[TLS, &to_tls(), &config_map("ca", &authority())]);
    assert_eq!(bench.backend("/one").protocol, BackendProtocol::Http);
    assert!(broken(&bench.backend("/two")));
    is(bench.of_route("r", "ResolvedRefs"), "False", "UnsupportedProtocol");

    bench.add(&policy("p", 1, "", &of_map("a.example.com")));
    for path in ["/one", "/two"] {
        let backend = bench.backend(path);
        assert_eq!(backend.protocol, BackendProtocol::Https);
        assert_eq!(trusted(&backend), ("a.example.com".to_owned(), 1));
    }
    is(bench.of_route("r", "ResolvedRefs"), "True", "ResolvedRefs");
    is(bench.of_policy("p", "Accepted"), "True", "Accepted");
    is(bench.of_policy("p", "ResolvedRefs"), "True", "ResolvedRefs");
    let ancestors = &bench.statuses["BackendTLSPolicy/p"]["ancestors"];
    let gateway = json!({ "group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "infra", "name": "gw" });
    assert_eq!(ancestors[0]["ancestorRef"], gateway);
    assert_eq!(ancestors[0]["controllerName"], "tak-os.org/gateway-controller");
    assert_eq!(ancestors[0]["conditions"][1]["observedGeneration"], 3);
    assert_eq!(ancestors.as_array().unwrap().len(), 1);

    bench.remove(Kind::BackendTlsPolicy, "shop", "p");
    assert_eq!(bench.backend("/one").protocol, BackendProtocol::Http);
    assert!(broken(&bench.backend("/two")));
    bench.remove(Kind::ConfigMap, "shop", "ca");
    assert!(bench.translator.gateway_api.policies.is_empty());
}

#[test]
fn authorities_come_and_go_with_their_config_map_and_without_any_nothing_is_sent() {
    let (first, second) = (authority(), authority());
    let mut bench = bench(&[TLS, &to_tls(), &policy("p", 1, "", &of_map("a.example.com"))]);
    let refused = |bench: &Bench| {
        assert!(broken(&bench.backend("/one")) && broken(&bench.backend("/two")));
        is(bench.of_policy("p", "Accepted"), "False", "NoValidCACertificate");
        is(bench.of_policy("p", "ResolvedRefs"), "False", "InvalidCACertificateRef");
        is(bench.of_route("r", "ResolvedRefs"), "False", "InvalidBackendTLSPolicy");
        assert_eq!(bench.told("p"), [Reason::BackendTlsPolicyInvalid]);
    };
    refused(&bench);
    bench.add(&config_map("ca", &first));
    let before = bench.backend("/one");
    assert_eq!(trusted(&before).1, 1);
    is(bench.of_policy("p", "Accepted"), "True", "Accepted");
    is(bench.of_route("r", "ResolvedRefs"), "True", "ResolvedRefs");
    assert!(bench.told("p").is_empty());

    bench.add(&config_map("ca", &format!("{first}{second}{first}")));
    assert!(bench.last.changed);
    let after = bench.backend("/one");
    assert_eq!(trusted(&after).1, 2);
    assert_ne!(before, after);
    // other words around the same certificates are no change
    bench.add(&config_map("ca", &format!("# words\n{first}{second}")));
    assert!(!bench.last.changed);
    assert!(Arc::ptr_eq(&after, &bench.backend("/one")));

    let damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let large = first + &"#".repeat(MAX_SECRET_VALUE);
    for bad in ["", "nonsense", damaged, &large] {
        bench.add(&config_map("ca", bad));
        refused(&bench);
        bench.add(&config_map("ca", &second));
        assert_eq!(trusted(&bench.backend("/two")).1, 1);
    }
    bench.remove(Kind::ConfigMap, "shop", "ca");
    refused(&bench);
}

#[test]
fn what_cannot_be_honoured_is_never_sent_in_plain_text() {
    let ca = "{group: '', kind: ConfigMap, name: ca}";
    for (validation, accepted, resolved) in [
        (
            "{caCertificateRefs: [{group: x.y, kind: Kind, name: other}], hostname: a.b}",
            "NoValidCACertificate",
            "InvalidKind",
        ),
        (
            "{caCertificateRefs: [{group: '', kind: Secret, name: ca}], hostname: a.b}",
            "NoValidCACertificate",
            "InvalidKind",
        ),
        ("{wellKnownCACertificates: example.com/ours, hostname: a.b}", "Invalid", ""),
        ("{hostname: a.b}", "Invalid", ""),
        (
            &format!("{{caCertificateRefs: [{ca}], wellKnownCACertificates: System, hostname: a.b}}"),
            "Invalid",
            "",
        ),
        ("{wellKnownCACertificates: System}", "Invalid", ""),
        ("{wellKnownCACertificates: System, hostname: '*.a.b'}", "Invalid", ""),
        (
            "{wellKnownCACertificates: System, hostname: a.b, subjectAltNames: [{type: Later, hostname: a.b}]}",
            "Invalid",
            "",
        ),
        (
            "{wellKnownCACertificates: System, hostname: a.b, subjectAltNames: [{type: Hostname}]}",
            "Invalid",
            "",
        ),
        (
            "{wellKnownCACertificates: System, hostname: a.b, subjectAltNames: [{type: URI, uri: none}]}",
            "Invalid",
            "",
        ),
    ] {
        let bench =
            bench(&[TLS, &to_tls(), &config_map("ca", &authority()), &policy("p", 1, "", validation)]);
        assert!(broken(&bench.backend("/one")) && broken(&bench.backend("/two")), "{validation}");
        is(bench.of_policy("p", "Accepted"), "False", accepted);
        let resolved = if resolved.is_empty() { ("True", "ResolvedRefs") } else { ("False", resolved) };
        is(bench.of_policy("p", "ResolvedRefs"), resolved.0, resolved.1);
        assert!(bench.told("p").contains(&Reason::BackendTlsPolicyInvalid), "{validation}");
    }
}

#[test]
fn of_several_references_the_good_ones_are_trusted_and_the_others_told() {
    let refs = "{caCertificateRefs: [{group: '', kind: ConfigMap, name: none}, \
                {group: '', kind: ConfigMap, name: ca}], hostname: a.example.com}";
    let bench = bench(&[TLS, &to_tls(), &config_map("ca", &authority()), &policy("p", 1, "", refs)]);
    assert_eq!(trusted(&bench.backend("/one")).1, 1);
    is(bench.of_policy("p", "Accepted"), "True", "Accepted");
    is(bench.of_policy("p", "ResolvedRefs"), "False", "InvalidCACertificateRef");
    assert_eq!(bench.told("p"), [Reason::BackendTlsPolicyInvalid]);
}

#[test]
fn names_are_those_of_the_policy_and_equal_policies_share_them() {
    let names =
        "subjectAltNames: [{type: Hostname, hostname: b.example.com}, {type: URI, uri: 'spiffe://a/b'}]";
    let system = format!("{{wellKnownCACertificates: System, hostname: A.example.com, {names}}}");
    let bench = bench(&[TLS, &to_tls(), &policy("p", 1, "one", &system), &policy("q", 1, "two", &system)]);
    let (one, two) = (bench.backend("/one"), bench.backend("/two"));
    assert_eq!(trusted(&one), ("a.example.com".to_owned(), 0));
    let tls = one.tls.as_ref().unwrap();
    assert_eq!(
        *tls.names,
        [SubjectName::Dns("b.example.com".parse().unwrap()), SubjectName::Uri("spiffe://a/b".into())]
    );
    assert!(Arc::ptr_eq(tls, two.tls.as_ref().unwrap()));
}

#[test]
fn the_older_policy_wins_and_one_for_a_port_comes_before_one_for_all() {
    let system = |host: &str| format!("{{wellKnownCACertificates: System, hostname: {host}.example.com}}");
    let name = |bench: &Bench, path: &str| trusted(&bench.backend(path)).0.replace(".example.com", "");
    let mut bench = bench(&[TLS, &to_tls(), &policy("young", 5, "", &system("young"))]);
    is(bench.of_policy("young", "Accepted"), "True", "Accepted");
    bench.add(&policy("old", 2, "", &system("old")));
    assert_eq!((name(&bench, "/one"), name(&bench, "/two")), ("old".into(), "old".into()));
    is(bench.of_policy("old", "Accepted"), "True", "Accepted");
    is(bench.of_policy("young", "Accepted"), "False", "Conflicted");
    is(bench.of_policy("young", "ResolvedRefs"), "True", "ResolvedRefs");
    assert_eq!(bench.told("young"), [Reason::BackendTlsPolicyConflicted]);
    // of the same age, the smaller name
    bench.add(&policy("a", 2, "", &system("a")));
    assert_eq!(name(&bench, "/one"), "a");
    is(bench.of_policy("old", "Accepted"), "False", "Conflicted");
    bench.add(&policy("port", 9, "two", &system("port")));
    assert_eq!((name(&bench, "/one"), name(&bench, "/two")), ("a".into(), "port".into()));
    is(bench.of_policy("port", "Accepted"), "True", "Accepted");
    is(bench.of_policy("a", "Accepted"), "True", "Accepted");
    bench.add(&policy("port-late", 9, "two", &system("late")));
    is(bench.of_policy("port-late", "Accepted"), "False", "Conflicted");
    // an invalid one that comes first is no reason to take the next
    bench.add(&policy("first", 1, "", "{wellKnownCACertificates: None, hostname: a.b}"));
    assert!(broken(&bench.backend("/one")));
    bench.remove(Kind::BackendTlsPolicy, "shop", "first");
    bench.remove(Kind::BackendTlsPolicy, "shop", "a");
    bench.remove(Kind::BackendTlsPolicy, "shop", "old");
    assert_eq!(name(&bench, "/one"), "young");
    is(bench.of_policy("young", "Accepted"), "True", "Accepted");
    assert!(bench.last.outcomes.iter().any(|o| &*o.source.name == "young" && o.findings.is_empty()));
}

#[test]
fn a_port_or_service_that_is_not_there_is_not_covered_and_says_so() {
    let system = "{wellKnownCACertificates: System, hostname: a.example.com}";
    let mut bench = bench(&[TLS, &to_tls(), &policy("p", 1, "three", system)]);
    assert_eq!(bench.backend("/one").protocol, BackendProtocol::Http);
    is(bench.of_policy("p", "Accepted"), "False", "TargetNotFound");
    assert_eq!(bench.told("p"), [Reason::BackendTlsPolicyInvalid]);
    // the Service's ports get other names
    bench.add(&TLS.replace("name: one", "name: three"));
    assert_eq!(bench.backend("/one").protocol, BackendProtocol::Https);
    is(bench.of_policy("p", "Accepted"), "True", "Accepted");
    bench.remove(Kind::Service, "shop", "tls");
    is(bench.of_policy("p", "Accepted"), "False", "TargetNotFound");
    assert!(broken(&bench.backend("/one")));
}

#[test]
fn what_is_spoken_inside_of_tls_is_what_the_service_says() {
    let system = "{wellKnownCACertificates: System, hostname: a.example.com}";
    for (app, protocol) in [
        ("http", BackendProtocol::Https),
        ("https", BackendProtocol::Https),
        ("HTTPS", BackendProtocol::Https),
        ("kubernetes.io/ws", BackendProtocol::Https),
        ("kubernetes.io/wss", BackendProtocol::Https),
        ("kubernetes.io/h2c", BackendProtocol::H2),
        ("grpc", BackendProtocol::Grpcs),
    ] {
        let service = TLS.replace("appProtocol: https", &format!("appProtocol: {app}"));
        let bench = bench(&[&service, &to_tls(), &policy("p", 1, "", system)]);
        assert_eq!(bench.backend("/two").protocol, protocol, "{app}");
    }
    let mut calls: Value = serde_json::from_str(&to_tls()).unwrap();
    calls["kind"] = "GRPCRoute".into();
    for rule in calls["spec"]["rules"].as_array_mut().unwrap() {
        rule["matches"] = json!([]);
    }
    let bench = bench(&[TLS, &policy("p", 1, "", system), &calls.to_string()]);
    assert_eq!(bench.backend("/any").protocol, BackendProtocol::Grpcs);
}

#[test]
fn only_routes_of_ours_make_a_policy_ours() {
    let bad = "{wellKnownCACertificates: None, hostname: a.example.com}";
    let mut bench = bench(&[TLS, &policy("p", 1, "", bad)]);
    assert!(!bench.statuses.contains_key("BackendTLSPolicy/p"));
    assert!(bench.told("p").is_empty());
    bench.add(&to_tls());
    is(bench.of_policy("p", "Accepted"), "False", "Invalid");
    assert_eq!(bench.told("p"), [Reason::BackendTlsPolicyInvalid]);
    // a second Gateway
    let second = BASE.replace("name: gw,", "name: gw2,").replace("name: tak-os,", "name: tak-os2,");
    bench.add(&second);
    bench.add(&to_tls().replace("\"r\"", "\"r2\"").replace("\"gw\"", "\"gw2\""));
    assert_eq!(bench.statuses["BackendTLSPolicy/p"]["ancestors"].as_array().unwrap().len(), 2);
    // the API hands the status back, and the routes go
    let mut object: Value = serde_json::from_str(&policy("p", 1, "", bad)).unwrap();
    object["status"] = bench.statuses["BackendTLSPolicy/p"].clone();
    object["metadata"]["resourceVersion"] = "2".into();
    bench.add(&object.to_string());
    assert!(bench.last.writes.iter().all(|write| write.change == Change::Nothing));
    bench.remove(Kind::HttpRoute, "shop", "r");
    assert_eq!(bench.statuses["BackendTLSPolicy/p"]["ancestors"].as_array().unwrap().len(), 1);
    object["status"] = bench.statuses["BackendTLSPolicy/p"].clone();
    bench.add(&object.to_string());
    bench.remove(Kind::HttpRoute, "shop", "r2");
    assert_eq!(bench.statuses["BackendTLSPolicy/p"]["ancestors"], json!([]));
}

#[test]
fn routes_of_other_namespaces_are_bound_and_ingresses_are_not() {
    let system = "{wellKnownCACertificates: System, hostname: a.example.com}";
    let grant = "
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: g, namespace: shop}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: other}]
  to: [{group: '', kind: Service}]";
    let foreign = route("f", "rules: [{backendRefs: [{name: tls, namespace: shop, port: 443}]}]")
        .replace("\"namespace\":\"shop\",\"resourceVersion\"", "\"namespace\":\"other\",\"resourceVersion\"");
    let ingress = ingress("i", "2026-01-01T00:00:00Z", "own.example.com");
    let ingress = ingress.replace("\"web\"", "\"tls\"").replace("\"number\":80", "\"number\":443");
    let bench = bench(&[TLS, grant, &foreign, &ingress, &policy("p", 1, "", system)]);
    assert_eq!(trusted(&bench.backend("/")).0, "a.example.com");
    let own = bench.last.routes.find("own.example.com", "/").unwrap();
    assert_eq!((own.backend.protocol, &own.backend.tls), (BackendProtocol::Http, &None));
    assert!(matches!(own.backend.address, BackendAddress::Name(..)));
}

/// TLS that does not end here is between client and backend.
#[test]
fn what_is_passed_on_is_not_touched() {
    let passing =
        BASE.replace("port: 80, protocol: HTTP,", "port: 443, protocol: TLS, tls: {mode: Passthrough},");
    let connections = "
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: t, namespace: shop}
spec:
  parentRefs: [{name: gw, namespace: infra}]
  hostnames: [x.example.com]
  rules: [{backendRefs: [{name: tls, port: 443}]}]";
    for validation in
        ["{wellKnownCACertificates: System, hostname: a.example.com}", "{hostname: broken.example.com}"]
    {
        let bench = bench(&[&passing, TLS, connections, &policy("p", 1, "", validation)]);
        let listener = bench.last.listeners.get(Scope { address: None, port: 443 }).unwrap();
        let backend = &listener.mode("x.example.com").route().unwrap().backend;
        assert_eq!((backend.protocol, &backend.tls, broken(backend)), (BackendProtocol::Http, &None, false));
        is(bench.condition("TLSRoute/t", "/parents/0", "ResolvedRefs").unwrap(), "True", "ResolvedRefs");
        assert!(!bench.statuses.contains_key("BackendTLSPolicy/p"), "it counts for no route of ours");
        assert!(bench.told("p").is_empty());
    }
}

#[test]
fn any_sequence_of_changes_ends_where_a_fresh_translation_does() {
    let authorities = [authority(), authority(), "damaged".to_owned()];
    let validations = [
        of_map("a.example.com"),
        of_map("b.example.com"),
        "{caCertificateRefs: [{group: '', kind: ConfigMap, name: other}], hostname: a.example.com}"
            .to_owned(),
        "{wellKnownCACertificates: System, hostname: c.example.com}".to_owned(),
        "{hostname: broken.example.com}".to_owned(),
    ];
    let mut seen = BTreeSet::new();
    for seed in 0..20_u64 {
        let mut state = seed;
        let mut pick = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from((state >> 33) % n).unwrap()
        };
        let mut bench = bench(&[TLS, &to_tls()]);
        for step in 0..40 {
            let name = ["p", "q", "r"][pick(3)];
            match pick(8) {
                0..=2 => {
                    let port = ["", "one", "two"][pick(3)];
                    bench.add(&policy(name, u8::try_from(pick(3)).unwrap() + 1, port, &validations[pick(5)]));
                }
                3 => bench.remove(Kind::BackendTlsPolicy, "shop", name),
                4 | 5 => bench.add(&config_map(["ca", "other"][pick(2)], &authorities[pick(3)])),
                6 => bench.remove(Kind::ConfigMap, "shop", ["ca", "other"][pick(2)]),
                _ => bench.add(&TLS.replace("name: one", ["name: one", "name: three"][pick(2)])),
            }
            let settings = Settings { publish_addresses: vec!["192.0.2.1".into()], ..Settings::default() };
            let mut fresh = Translator::with_clock(settings, || 1_000);
            let fresh = fresh.translate(&bench.cluster, &Dirty::everything());
            assert_eq!(bench.last.listeners, fresh.listeners, "seed {seed} step {step}");
            let written = fresh.writes.iter().filter(|write| write.target.kind == "BackendTLSPolicy");
            for write in written {
                let Change::Status { status, .. } = &write.change else { continue };
                let ours = &bench.statuses[&format!("BackendTLSPolicy/{}", write.target.name)];
                assert_eq!(ours["ancestors"], status["ancestors"], "seed {seed} step {step}");
            }
            let backend = bench.backend("/one");
            seen.insert((broken(&backend), backend.protocol.tls(), backend.tls.is_some()));
        }
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
}
