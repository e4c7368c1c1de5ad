//! The certificate that a Gateway shows to backends.

use super::*;
use ingress_core::{Backend, Filter};
use openssl::asn1::Asn1Time;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::x509::X509;

/// A Service that is under a policy.
const AROUND: &str = "
apiVersion: v1
kind: Service
metadata: {name: tls, namespace: shop}
spec: {ports: [{port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: p, namespace: shop}
spec:
  targetRefs: [{group: '', kind: Service, name: tls}]
  validation: {wellKnownCACertificates: System, hostname: in.example.com}
";

const TO_TLS: &str = "backendRefs: [{name: tls, port: 80}]";

fn ec() -> PKey<Private> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap()
}

/// A Secret with a new certificate.
fn secret_of(namespace: &str, name: &str, key: &PKey<Private>, not_after: i64) -> String {
    let digest =
        if key.id() == openssl::pkey::Id::ED25519 { MessageDigest::null() } else { MessageDigest::sha256() };
    let mut builder = X509::builder().unwrap();
    builder.set_not_before(&Asn1Time::from_unix(1).unwrap()).unwrap();
    builder.set_not_after(&Asn1Time::from_unix(not_after).unwrap()).unwrap();
    builder.set_pubkey(key).unwrap();
    builder.sign(key, digest).unwrap();
    let base64 = |bytes: &[u8]| openssl::base64::encode_block(bytes);
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": { "namespace": namespace, "name": name },
        "data": {
            "tls.crt": base64(&builder.build().to_pem().unwrap()),
            "tls.key": base64(&key.private_key_to_pem_pkcs8().unwrap()),
        },
    })
    .to_string()
}

fn secret(name: &str) -> String {
    secret_of("infra", name, &ec(), 2_000_000_000)
}

/// A Gateway that shows what this refers to.
fn showing(name: &str, reference: &str) -> String {
    let listeners = "[{name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}]";
    format!(
        "{{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, \
         metadata: {{name: {name}, namespace: infra, generation: 2, resourceVersion: '1'}}, \
         spec: {{gatewayClassName: tak-os, listeners: {listeners}, \
         allowedListeners: {{namespaces: {{from: All}}}}, \
         tls: {{backend: {{clientCertificateRef: {reference}}}}}}}}}"
    )
}

/// A route for a host through these Gateways.
fn through(name: &str, host: &str, gateways: &[&str], rule: &str) -> String {
    let parents: Vec<_> = gateways.iter().map(|name| format!("{{name: {name}, namespace: infra}}")).collect();
    let parents = parents.join(", ");
    route(name, &format!("{{parentRefs: [{parents}], hostnames: [{host}], rules: [{{{rule}}}]}}"))
}

/// The Secret whose certificate a backend is shown.
fn shown(backend: &Backend) -> Option<String> {
    let client = backend.client.as_ref()?;
    assert!(backend.tls.is_some() && backend.protocol.tls());
    Some(client.source.name.to_string())
}

impl Bench {
    /// The Secret whose certificate the only backend of a host is shown.
    fn shown(&self, host: &str) -> Option<String> {
        shown(&self.found(80, host, "/").unwrap().backend)
    }

    fn resolved(&self, gateway: &str) -> (String, String) {
        self.condition(&format!("Gateway/{gateway}"), "", "ResolvedRefs").unwrap()
    }

    fn reasons(&self, gateway: &str) -> Vec<Reason> {
        let of = |o: &&Outcome| o.source.kind == Kind::Gateway && &*o.source.name == gateway;
        let outcomes = self.last.outcomes.iter().filter(of);
        outcomes.flat_map(|o| o.findings.iter().map(|finding| finding.reason)).collect()
    }

    /// What a translation from nothing comes to is served.
    fn is_as_fresh(&self) {
        let settings = Settings { publish_addresses: vec!["192.0.2.1".into()], ..Settings::default() };
        let fresh = Translator::with_clock(settings, || 1_000).translate(&self.cluster, &Dirty::everything());
        assert_eq!(self.last.listeners, fresh.listeners);
    }
}

#[test]
fn every_backend_under_a_policy_is_shown_it_and_no_other() {
    let rule = |path: &str, rest: &str| format!("{{matches: [{{path: {{value: {path}}}}}], {rest}}}");
    let mirror = "filters: [{type: RequestMirror, requestMirror: {backendRef: {name: tls, port: 80}}}]";
    let rules = [
        rule("/only", TO_TLS),
        rule("/plain", WEB),
        rule("/split", &format!("backendRefs: [{{name: web, port: 80}}, {{name: tls, port: 80, {mirror}}}]")),
        rule("/mirror", &format!("{WEB}, {mirror}")),
    ];
    let everything = route("r", &format!("{{hostnames: [a.example.com], rules: [{}]}}", rules.join(", ")));
    let calls = route("g", &format!("{{hostnames: [g.example.com], rules: [{{{TO_TLS}}}]}}"))
        .replace("HTTPRoute", "GRPCRoute");
    let ingress = "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: i, namespace: shop, \
                   annotations: {ingress.tak-os.org/backend-protocol: https}}, spec: {ingressClassName: tak-os, \
                   rules: [{host: i.example.com, http: {paths: [{path: /, pathType: Prefix, \
                   backend: {service: {name: tls, port: {number: 80}}}}]}}]}}";
    let gateway = showing("gw", "{name: one}");
    let bench = bench(&[AROUND, &gateway, &secret("one"), &everything, &calls, ingress]);
    is(bench.resolved("gw"), "True", "ResolvedRefs");
    let one = Some("one".to_owned());
    let found = |path: &str| bench.found(80, "a.example.com", path).unwrap();
    assert_eq!((shown(&found("/only").backend), shown(&found("/plain").backend)), (one.clone(), None));
    let mirrored = |filters: &[Filter]| match filters {
        [Filter::Mirror(mirror)] => shown(&mirror.backend),
        other => panic!("{other:?}"),
    };
    let split = found("/split");
    let entries = split.actions.as_ref().unwrap().backends.as_ref().unwrap().entries();
    assert_eq!((shown(&entries[0].backend), shown(&entries[1].backend)), (None, one.clone()));
    assert_eq!(mirrored(&entries[1].filters), one);
    assert_eq!(mirrored(&found("/mirror").actions.as_ref().unwrap().filters), one);
    assert_eq!(bench.shown("g.example.com"), one);
    // of an Ingress no policy and no Gateway is asked
    let of_ingress = bench.last.routes.find("i.example.com", "/").ok().unwrap().backend.clone();
    assert!(of_ingress.protocol.tls() && of_ingress.client.is_none());
    assert_eq!(bench.found(80, "i.example.com", "/").unwrap().backend, of_ingress);
    bench.is_as_fresh();
}

#[test]
fn what_cannot_be_shown_is_told_and_backends_are_reached_without() {
    let ed25519 = PKey::generate_ed25519().unwrap();
    for (reference, document, reason) in [
        ("{name: none}", secret("one"), "InvalidClientCertificateRef"),
        ("{name: one, group: x.y}", secret("one"), "InvalidClientCertificateRef"),
        ("{name: one, kind: Bucket}", secret("one"), "InvalidClientCertificateRef"),
        ("{name: one}", secret("one").replace("kubernetes.io/tls", "Opaque"), "InvalidClientCertificateRef"),
        ("{name: one}", secret("one").replace("tls.key", "other"), "InvalidClientCertificateRef"),
        ("{name: one}", secret_of("infra", "one", &ed25519, 2_000_000_000), "InvalidClientCertificateRef"),
        ("{name: one, namespace: certs}", secret_of("certs", "one", &ec(), 2_000_000_000), "RefNotPermitted"),
    ] {
        let gateway = showing("gw", reference);
        let to_tls = through("r", "a.example.com", &["gw"], TO_TLS);
        let bench = bench(&[AROUND, &document, &to_tls, &gateway]);
        is(bench.resolved("gw"), "False", reason);
        assert_eq!(bench.reasons("gw"), [Reason::BackendClientCertificateInvalid], "{reference} {document}");
        let finding = &bench.last.outcomes.iter().find(|o| &*o.source.name == "gw").unwrap().findings[0];
        assert_eq!(&*finding.field, "spec.tls.backend.clientCertificateRef");
        assert!(finding.message.contains("without a client certificate"), "{}", finding.message);
        for condition in ["Accepted", "Programmed"] {
            is(bench.condition("Gateway/gw", "", condition).unwrap(), "True", condition);
        }
        let backend = bench.found(80, "a.example.com", "/").unwrap().backend.clone();
        assert!(backend.protocol.tls() && backend.tls.is_some() && backend.client.is_none());
    }
}

#[test]
fn a_reference_may_be_absent_and_a_certificate_expired() {
    let absent = showing("gw", "null");
    let to_tls = through("r", "a.example.com", &["gw"], TO_TLS);
    let mut bench = bench(&[AROUND, &absent, &to_tls]);
    is(bench.resolved("gw"), "True", "ResolvedRefs");
    assert_eq!(bench.shown("a.example.com"), None);
    // the clock stands at 1000
    bench.add(&secret_of("infra", "one", &ec(), 999));
    bench.add(&showing("gw", "{name: one}"));
    is(bench.resolved("gw"), "True", "ResolvedRefs");
    assert_eq!(bench.reasons("gw"), [Reason::CertificateExpired]);
    assert_eq!(bench.shown("a.example.com").as_deref(), Some("one"));
}

#[test]
fn the_condition_sums_up_what_listeners_refer_to() {
    let listeners =
        "listeners: [{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: none}]}}, ";
    let gateway = showing("gw", "{name: one}").replace("listeners: [", listeners);
    let mut bench = bench(&[AROUND, &gateway]);
    is(bench.resolved("gw"), "False", "InvalidClientCertificateRef");
    bench.add(&secret("one"));
    is(bench.resolved("gw"), "False", "ListenersNotResolved");
    bench.add(&secret("none"));
    is(bench.resolved("gw"), "True", "ResolvedRefs");
}

#[test]
fn secrets_and_grants_come_change_and_go() {
    let grant = "{apiVersion: gateway.networking.k8s.io/v1, kind: ReferenceGrant, metadata: {name: g, namespace: certs}, \
                 spec: {from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: infra}], \
                 to: [{group: '', kind: Secret, name: one}]}}";
    let foreign = || secret_of("certs", "one", &ec(), 2_000_000_000);
    let other = through("other", "b.example.com", &["gw2"], TO_TLS);
    let mut bench = bench(&[
        AROUND,
        &showing("gw", "{name: one, namespace: certs}"),
        &showing("gw2", "{name: two}"),
        &secret("two"),
        &through("r", "a.example.com", &["gw"], TO_TLS),
        &other,
        grant,
    ]);
    is(bench.resolved("gw"), "False", "InvalidClientCertificateRef");
    assert_eq!(bench.shown("a.example.com"), None);
    let fingerprint = |bench: &Bench| {
        let client = bench.found(80, "a.example.com", "/").unwrap().backend.client.clone();
        client.map(|client| client.fingerprint)
    };
    bench.add(&foreign());
    is(bench.resolved("gw"), "True", "ResolvedRefs");
    assert!(bench.reasons("gw").is_empty());
    let first = fingerprint(&bench);
    let of_other = bench.found(80, "b.example.com", "/").unwrap();
    bench.add(&foreign());
    assert!(bench.last.changed && fingerprint(&bench).is_some() && fingerprint(&bench) != first);
    assert!(Arc::ptr_eq(&of_other, &bench.found(80, "b.example.com", "/").unwrap()), "of another Gateway");
    bench.is_as_fresh();
    // a Secret that nobody shows
    bench.add(&secret("three"));
    assert!(!bench.last.changed);

    bench.remove(Kind::ReferenceGrant, "certs", "g");
    is(bench.resolved("gw"), "False", "RefNotPermitted");
    assert_eq!(bench.shown("a.example.com"), None);
    bench.add(grant);
    assert_eq!(bench.shown("a.example.com").as_deref(), Some("one"));
    bench.remove(Kind::Secret, "certs", "one");
    is(bench.resolved("gw"), "False", "InvalidClientCertificateRef");
    assert_eq!((bench.shown("a.example.com"), bench.shown("b.example.com")), (None, Some("two".into())));
    bench.is_as_fresh();
    // nor is there anything to show without a policy
    bench.add(&foreign());
    bench.remove(Kind::BackendTlsPolicy, "shop", "p");
    let backend = bench.found(80, "b.example.com", "/").unwrap().backend.clone();
    assert!(!backend.protocol.tls() && backend.client.is_none());
}

#[test]
fn each_gateway_shows_its_own_and_of_two_for_one_host_the_first() {
    let set = "{apiVersion: gateway.networking.k8s.io/v1, kind: ListenerSet, metadata: {name: s, namespace: shop}, \
               spec: {parentRef: {name: b, namespace: infra}, \
               listeners: [{name: l, port: 80, protocol: HTTP, hostname: set.example.com}]}}";
    let of_set = route(
        "set",
        &format!(
            "{{parentRefs: [{{kind: ListenerSet, group: gateway.networking.k8s.io, name: s}}], rules: [{{{TO_TLS}}}]}}"
        ),
    );
    let mut both = serde_yaml_like(&showing("b", "{name: b}"));
    let further = json!({ "name": "only", "port": 8080, "protocol": "HTTP", "allowedRoutes": { "namespaces": { "from": "All" } } });
    both["spec"]["listeners"].as_array_mut().unwrap().push(further);
    let settings = Settings { gateway_listener_ports: vec![80, 443, 8080], ..Settings::default() };
    let mut bench = bench_of(
        settings,
        &[
            AROUND,
            &showing("a", "{name: a}"),
            &both.to_string(),
            &secret("a"),
            &secret("b"),
            set,
            &of_set,
            &through("ra", "a.example.com", &["a"], TO_TLS),
            &through("rb", "b.example.com", &["b"], TO_TLS),
            &through("none", "none.example.com", &["gw"], TO_TLS),
            &through("both", "both.example.com", &["b", "a"], TO_TLS),
        ],
    );
    let name = |bench: &Bench, host: &str| bench.shown(&format!("{host}.example.com")).unwrap_or_default();
    assert_eq!(
        ["a", "b", "set", "none", "both"].map(|host| name(&bench, host)),
        ["a", "b", "b", "", "a"].map(str::to_owned)
    );
    // where the second one listens alone it is that one's
    let there = bench.found(8080, "both.example.com", "/").unwrap();
    assert_eq!(shown(&there.backend).as_deref(), Some("b"));
    bench.remove(Kind::Gateway, "infra", "a");
    assert_eq!(name(&bench, "both"), "b");
}
