//! What Gateways, sets and listeners say of what they cannot do, and certificates of listeners.

use super::clients::{https, prepared, secret};
use super::*;
use crate::finding::Finding;

/// What a fresh start tells of an object.
fn mistakes(bench: &Bench, object: &str) -> Vec<Finding> {
    let settings = bench_settings();
    let outcomes =
        Translator::with_clock(settings, || 1_000).translate(&bench.cluster, &Dirty::everything()).outcomes;
    let of = outcomes.into_iter().filter(|outcome| outcome.source.to_string() == object);
    of.flat_map(|outcome| outcome.findings.into_vec()).collect()
}

fn bench_settings() -> Settings {
    Settings { publish_addresses: vec!["192.0.2.1".into()], ..Settings::default() }
}

fn reasons(bench: &Bench, object: &str) -> Vec<Reason> {
    mistakes(bench, object).iter().map(|finding| finding.reason).collect()
}

#[test]
fn a_gateway_that_is_not_served_says_why() {
    let http = format!("{{name: http, port: 80, protocol: HTTP, {ALL}}}");
    for (more, listeners, reason, findings) in [
        (
            "infrastructure: {parametersRef: {group: '', kind: ConfigMap, name: x}}",
            http.as_str(),
            "InvalidParameters",
            &[Reason::GatewayNotAccepted][..],
        ),
        (
            "addresses: [{type: Hostname, value: a.example.com}]",
            &http,
            "UnsupportedAddress",
            &[Reason::GatewayNotAccepted],
        ),
        (
            "later: true",
            "{name: http, port: 81, protocol: HTTP}",
            "ListenersNotValid",
            &[Reason::ListenerNotAccepted],
        ),
    ] {
        let object = gateway(listeners).replace("spec: {", &format!("spec: {{{more}, "));
        let mut bench = bench(&[&object, &plain("r", "a.example.com")]);
        let of = |bench: &Bench, kind| bench.condition("Gateway/gw", "", kind).unwrap();
        is(of(&bench, "Accepted"), "False", reason);
        is(of(&bench, "Programmed"), "False", "Invalid");
        assert_eq!(reasons(&bench, "gateway/infra/gw"), findings, "{reason}");
        assert_eq!(bench.at("a.example.com", "/"), None, "{reason}");
        bench.add(&gateway(&http));
        is(of(&bench, "Accepted"), "True", "Accepted");
        is(of(&bench, "Programmed"), "True", "Programmed");
        assert!(bench.at("a.example.com", "/").is_some(), "{reason}");
    }
}

#[test]
fn a_gateway_with_some_listeners_and_without_an_address_says_so() {
    let some = format!("{{name: a, port: 80, protocol: HTTP, {ALL}}}, {{name: b, port: 81, protocol: HTTP}}");
    let bench = bench(&[&gateway(&some), &plain("r", "a.example.com")]);
    is(bench.condition("Gateway/gw", "", "Accepted").unwrap(), "True", "ListenersNotValid");
    is(bench.condition("Gateway/gw", "", "Programmed").unwrap(), "True", "Programmed");
    let mut fresh = Translator::with_clock(Settings::default(), || 1_000);
    let writes = fresh.translate(&bench.cluster, &Dirty::everything()).writes;
    let gateway = writes.iter().find(|write| write.target.kind == "Gateway").unwrap();
    let Change::Status { status, .. } = &gateway.change else { panic!("{gateway:?}") };
    let programmed =
        status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Programmed").unwrap();
    assert_eq!(
        (&programmed["status"], &programmed["reason"]),
        (&json!("False"), &json!("AddressNotAssigned"))
    );
}

#[test]
fn of_plain_listeners_of_one_gateway_for_one_host_the_first_is_served() {
    let listener =
        |name: &str| format!("{{name: {name}, port: 80, protocol: HTTP, hostname: a.example.com, {ALL}}}");
    let bench = bench(&[&gateway(&format!("{}, {}", listener("one"), listener("two")))]);
    is(bench.of_listener(0, "Accepted"), "True", "Accepted");
    is(bench.of_listener(0, "Conflicted"), "False", "NoConflicts");
    for kind in ["Accepted", "Programmed"] {
        is(bench.of_listener(1, kind), "False", "HostnameConflict");
    }
    is(bench.of_listener(1, "Conflicted"), "True", "HostnameConflict");
    assert_eq!(reasons(&bench, "gateway/infra/gw"), [Reason::ListenerConflicted]);
}

#[test]
fn what_is_wrong_with_sets_certificates_and_filters_is_told() {
    let set = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
        "metadata": { "name": "s", "namespace": "shop" },
        "spec": { "parentRef": { "name": "gw", "namespace": "infra" }, "listeners": [] },
    });
    let filter = route("f", &format!("rules: [{{filters: [{{type: ExtensionRef}}], {WEB}}}]"));
    let bench = bench(&[&gateway(&https("h", 443, "a.example.com")), &set.to_string(), &filter]);
    assert_eq!(reasons(&bench, "gateway/infra/gw"), [Reason::ListenerCertificateInvalid]);
    assert_eq!(reasons(&bench, "listenerset/shop/s"), [Reason::ListenerSetNotAccepted]);
    assert!(reasons(&bench, "httproute/shop/f").contains(&Reason::UnsupportedFilter));
}

/// Whether the listener's certificate and its route are there.
fn serves(bench: &Bench) -> (bool, bool) {
    let listener = bench.last.listeners.get(Scope { address: None, port: 443 });
    let certified = listener.is_some_and(|l| l.certs.declared(&"a.example.com".parse().unwrap()).is_some());
    (certified, bench.found(443, "a.example.com", "/").is_some())
}

#[test]
fn a_certificate_of_another_namespace_serves_as_long_as_it_is_granted() {
    let reference = "certificateRefs: [{name: tls, namespace: shop}]";
    let listener = https("h", 443, "a.example.com").replace("certificateRefs: [{name: tls}]", reference);
    let mut bench = prepared(&[&gateway(&listener), &plain("r", "a.example.com")]);
    let resolved = |bench: &Bench| bench.of_listener(0, "ResolvedRefs");
    is(resolved(&bench), "False", "RefNotPermitted");
    assert_eq!(serves(&bench), (false, false));
    let grant = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ReferenceGrant",
        "metadata": { "name": "g", "namespace": "shop" },
        "spec": { "from": [{ "group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "infra" }],
                  "to": [{ "group": "", "kind": "Secret" }] },
    });
    bench.add(&grant.to_string());
    is(resolved(&bench), "True", "ResolvedRefs");
    is(bench.of_listener(0, "Programmed"), "True", "Programmed");
    assert_eq!(serves(&bench), (true, true));
    bench.remove(Kind::ReferenceGrant, "shop", "g");
    is(resolved(&bench), "False", "RefNotPermitted");
    is(bench.of_listener(0, "Programmed"), "False", "Invalid");
    assert_eq!(serves(&bench), (false, false));
}

#[test]
fn a_damaged_certificate_serves_nothing_until_it_is_mended() {
    let good = secret("infra");
    let mut damaged: Value = serde_json::from_str(&good).unwrap();
    damaged["data"]["tls.crt"] = openssl::base64::encode_block(b"-----BEGIN CERTIFICATE-----\nAAAA\n").into();
    let listener = https("h", 443, "a.example.com");
    let mut bench = bench(&[&damaged.to_string(), &gateway(&listener), &plain("r", "a.example.com")]);
    is(bench.of_listener(0, "ResolvedRefs"), "False", "InvalidCertificateRef");
    is(bench.of_listener(0, "Programmed"), "False", "Invalid");
    assert_eq!(serves(&bench), (false, false));
    bench.add(&good);
    is(bench.of_listener(0, "ResolvedRefs"), "True", "ResolvedRefs");
    assert_eq!(serves(&bench), (true, true));
}

#[test]
fn a_listeners_certificate_that_has_expired_is_served_and_told() {
    let bench = prepared(&[&gateway(&https("h", 443, "a.example.com")), &plain("r", "a.example.com")]);
    assert_eq!(mistakes(&bench, "gateway/infra/gw"), []);
    let mut late = Translator::with_clock(bench_settings(), || 2_000_000_001);
    let late = late.translate(&bench.cluster, &Dirty::everything());
    let outcome = late.outcomes.iter().find(|o| o.source.to_string() == "gateway/infra/gw").unwrap();
    let found: Vec<_> = outcome.findings.iter().map(|f| (f.reason, &*f.field)).collect();
    assert_eq!(found, [(Reason::CertificateExpired, "spec.listeners[0].tls.certificateRefs[0]")]);
    assert_eq!(late.listeners, bench.last.listeners);
}
