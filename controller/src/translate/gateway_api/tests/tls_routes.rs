//! TLSRoutes: where they attach, which connections they take, and what else may be declared for their hosts.

use super::*;
use crate::cluster::gateway::GatewayApi;
use ingress_core::listener::TlsMode;
use openssl::asn1::Asn1Time;
use openssl::base64::encode_block;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::x509::X509;

/// Passes on what ends in `example.com`.
pub(super) const PASS: &str = "{name: tls, port: 443, protocol: TLS, hostname: '*.example.com', tls: {mode: Passthrough}, \
                    allowedRoutes: {namespaces: {from: All}}}";

/// A TLSRoute of the namespace shop, of 2020 and as many seconds; all connections go to `backends`.
fn tls_route_to(name: &str, seconds: u8, hosts: &str, backends: &str) -> String {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "TLSRoute",
        "metadata": { "name": name, "namespace": "shop", "generation": 1, "resourceVersion": "1",
                      "creationTimestamp": format!("2020-01-01T00:00:{seconds:02}Z") },
        "spec": { "parentRefs": [{ "name": "gw", "namespace": "infra" }],
                  "hostnames": serde_yaml_like(&format!("[{hosts}]")),
                  "rules": [{ "backendRefs": serde_yaml_like(&format!("[{backends}]")) }] },
    })
    .to_string()
}

const BACKEND: &str = "{name: web, port: 80}";

pub(super) fn tls_route(name: &str, seconds: u8, hosts: &str) -> String {
    tls_route_to(name, seconds, hosts, BACKEND)
}

/// Whose route takes a connection: `end` if it ends here, `close` if nobody takes it.
fn taker(bench: &Bench, sni: &str) -> String {
    match bench.last.listeners.get(Scope { address: None, port: 443 }).map(|l| l.mode(sni)) {
        None | Some(TlsMode::Terminate) => "end".into(),
        Some(mode) => mode.route().map_or("close".into(), |route| route.source.name.to_string()),
    }
}

fn of(bench: &Bench, name: &str, kind: &str) -> (String, String) {
    bench.condition(&format!("TLSRoute/{name}"), "/parents/0", kind).unwrap_or_default()
}

/// What was last told of an object.
fn told(bench: &Bench, object: &str) -> Vec<Reason> {
    let outcome = bench.last.outcomes.iter().find(|outcome| outcome.source.to_string() == object);
    outcome.into_iter().flat_map(|outcome| &outcome.findings).map(|finding| finding.reason).collect()
}

#[test]
fn connections_for_the_hosts_of_route_and_listener_are_passed_on_and_others_closed() {
    let bench =
        bench(&[&gateway(PASS), &tls_route("t", 1, "a.example.com, '*.org'"), &tls_route("u", 1, "'*.com'")]);
    for (sni, wanted) in [
        ("a.example.com", "t"),
        ("b.example.com", "u"),
        ("x.y.example.com", "u"),
        ("a.org", "close"),
        ("com", "close"),
    ] {
        assert_eq!(taker(&bench, sni), wanted, "{sni}");
    }
    for name in ["t", "u"] {
        is(of(&bench, name, "Accepted"), "True", "Accepted");
        is(of(&bench, name, "ResolvedRefs"), "True", "ResolvedRefs");
    }
    let status = &bench.statuses["Gateway/gw"]["listeners"][0];
    assert_eq!(status["attachedRoutes"], 2);
    assert_eq!(
        status["supportedKinds"],
        json!([{ "group": "gateway.networking.k8s.io", "kind": "TLSRoute" }])
    );
    is(bench.of_listener(0, "Programmed"), "True", "Programmed");
    assert_eq!(bench.last.gateway_route_counts, [0, 0, 2]);
    let route = bench.last.listeners.get(Scope { address: None, port: 443 }).unwrap();
    let route = route.mode("a.example.com").route().unwrap().clone();
    assert_eq!((&*route.backend.service.name, route.place().to_string()), ("web", "rules[0]".into()));
}

#[test]
fn a_name_that_nobody_takes_ends_here_only_where_tls_ends_at_all() {
    let mut bench = bench(&[&gateway(PASS), &tls_route("t", 1, "a.example.com")]);
    let others = |bench: &Bench| ["nobody.org", "a.example.com"].map(|name| taker(bench, name));
    assert_eq!(others(&bench), ["close", "t"]);
    // Ingresses have their fallback certificate
    bench.add(&ingress("i", "2020-01-01T00:00:05Z", "other.example.net"));
    assert_eq!(others(&bench), ["end", "t"]);
    bench.remove(Kind::Ingress, "shop", "i");
    assert_eq!(others(&bench), ["close", "t"]);
    // and so has a listener, of whichever Gateway
    let https = "{name: h, port: 443, protocol: HTTPS, hostname: h.example.net, tls: {certificateRefs: [{name: nope}]}}";
    bench.add(&gateway(https).replace("name: gw", "name: other"));
    assert_eq!(others(&bench), ["end", "t"]);
    bench.remove(Kind::Gateway, "infra", "other");
    assert_eq!(others(&bench), ["close", "t"]);
}

#[test]
fn what_goes_leaves_nothing_behind() {
    let mut bench = bench(&[&gateway(PASS), &tls_route("t", 1, "a.example.com")]);
    bench.remove(Kind::TlsRoute, "shop", "t");
    assert_eq!(taker(&bench, "a.example.com"), "close");
    assert_eq!(bench.last.gateway_route_counts, [0, 0, 0]);
    bench.add(&gateway("{name: http, port: 80, protocol: HTTP}"));
    assert_eq!(taker(&bench, "a.example.com"), "end");
}

#[test]
fn a_route_attaches_only_to_listeners_of_its_kind_and_hosts() {
    let https = "{name: tls, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: nope}]}, \
                 allowedRoutes: {namespaces: {from: All}}}";
    let http = format!("{{name: tls, port: 80, protocol: HTTP, {ALL}}}");
    for (listener, hosts, reason) in [
        (http.as_str(), "a.example.com", "NotAllowedByListeners"),
        (https, "a.example.com", "NotAllowedByListeners"),
        (PASS, "a.example.org, '*.example.org'", "NoMatchingListenerHostname"),
    ] {
        let bench = bench(&[&gateway(listener), &tls_route("t", 1, hosts)]);
        is(of(&bench, "t", "Accepted"), "False", reason);
        assert_eq!(bench.statuses["Gateway/gw"]["listeners"][0]["attachedRoutes"], 0, "{listener}");
        assert_eq!(told(&bench, "tlsroute/shop/t"), [Reason::RouteNotAttached]);
    }
    let elsewhere = tls_route("t", 1, "a.example.com").replace("\"gw\"", "\"gw\",\"sectionName\":\"nope\"");
    let bench1 = bench(&[&gateway(PASS), &elsewhere]);
    is(of(&bench1, "t", "Accepted"), "False", "NoMatchingParent");
    // and no other kind to theirs
    let bench2 = bench(&[&gateway(PASS), &plain("r", "a.example.com")]);
    is(bench2.of_route("r", "Accepted"), "False", "NotAllowedByListeners");
    is(bench2.of_route("r", "ResolvedRefs"), "True", "ResolvedRefs");
    assert_eq!(taker(&bench2, "a.example.com"), "close");
}

#[test]
fn a_route_without_hosts_or_rules_passes_nothing_on() {
    for route in [
        tls_route("t", 1, ""),
        tls_route("t", 1, "a.example.com").replace("\"rules\":[", "\"rules\":[],\"later\":["),
    ] {
        let bench = bench(&[&gateway(PASS), &route]);
        is(of(&bench, "t", "Accepted"), "False", "UnsupportedValue");
        assert_eq!(taker(&bench, "a.example.com"), "close", "{route}");
    }
    let two = tls_route("t", 1, "a.example.com").replace("\"rules\":[", "\"rules\":[{\"backendRefs\":[]},");
    let bench = bench(&[&gateway(PASS), &two]);
    is(of(&bench, "t", "PartiallyInvalid"), "True", "UnsupportedValue");
    assert_eq!(told(&bench, "tlsroute/shop/t"), [Reason::UnsupportedRouteField, Reason::BackendMissing]);
}

#[test]
fn a_backend_that_does_not_resolve_closes_its_share() {
    for (backend, reason) in [
        ("{name: nope, port: 80}", "BackendNotFound"),
        ("{name: web, port: 9}", "BackendNotFound"),
        ("{name: web, namespace: other, port: 80}", "RefNotPermitted"),
        ("{group: unknown.example.com, kind: NonExistent, name: web, port: 80}", "InvalidKind"),
    ] {
        let mut bench = bench(&[&gateway(PASS), &tls_route_to("t", 1, "a.example.com", backend)]);
        is(of(&bench, "t", "Accepted"), "True", "Accepted");
        is(of(&bench, "t", "ResolvedRefs"), "False", reason);
        let found = |bench: &Bench| {
            let listener = bench.last.listeners.get(Scope { address: None, port: 443 }).unwrap();
            listener.mode("a.example.com").route().unwrap().backend.address.clone()
        };
        assert_eq!(found(&bench), BackendAddress::Unavailable(Unavailable::Broken), "{backend}");
        assert_eq!(told(&bench, "tlsroute/shop/t"), [Reason::BackendRefInvalid]);
        bench.add(
            "{apiVersion: gateway.networking.k8s.io/v1, kind: ReferenceGrant, metadata: {name: g, namespace: other}, \
             spec: {from: [{group: gateway.networking.k8s.io, kind: TLSRoute, namespace: shop}], \
             to: [{group: '', kind: Service}]}}",
        );
        let permitted = reason == "RefNotPermitted";
        assert_eq!(of(&bench, "t", "ResolvedRefs").0, if permitted { "True" } else { "False" }, "{backend}");
        assert_eq!(found(&bench) != BackendAddress::Unavailable(Unavailable::Broken), permitted, "{backend}");
    }
    let backends = "{name: web, port: 80, weight: 3}, {name: nope, port: 80, weight: 1}";
    let bench = bench(&[&gateway(PASS), &tls_route_to("t", 1, "a.example.com", backends)]);
    let listener = bench.last.listeners.get(Scope { address: None, port: 443 }).unwrap();
    let route = listener.mode("a.example.com").route().unwrap();
    let shares = route.actions.as_ref().unwrap().backends.as_ref().unwrap();
    assert_eq!(shares.entries().iter().map(|e| e.weight).collect::<Vec<_>>(), [3, 1]);
}

#[test]
fn what_a_service_is_said_to_speak_does_not_matter() {
    let service = "{apiVersion: v1, kind: Service, metadata: {name: tls, namespace: shop}, \
                   spec: {ports: [{port: 443, appProtocol: https}]}}";
    let route = tls_route_to("t", 1, "a.example.com", "{name: tls, port: 443}");
    let bench = bench(&[&gateway(PASS), service, &route]);
    is(of(&bench, "t", "ResolvedRefs"), "True", "ResolvedRefs");
}

#[test]
fn of_two_routes_for_a_host_the_older_one_has_it() {
    let mut bench = bench(&[&gateway(PASS), &tls_route("a", 2, "a.example.com, b.example.com")]);
    bench.add(&tls_route("b", 1, "a.example.com"));
    assert_eq!(taker(&bench, "a.example.com"), "b");
    assert_eq!(taker(&bench, "b.example.com"), "a");
    assert_eq!(told(&bench, "tlsroute/shop/a"), [Reason::PassedHostTaken]);
    bench.remove(Kind::TlsRoute, "shop", "b");
    assert_eq!(taker(&bench, "a.example.com"), "a");
    assert_eq!(told(&bench, "tlsroute/shop/a"), []);
}

#[test]
fn between_a_passed_and_a_served_host_the_older_object_decides() {
    let own = ingress("i", "2020-01-01T00:00:05Z", "a.example.com");
    let mut bench = bench(&[&gateway(PASS), &own, &tls_route("t", 9, "a.example.com")]);
    assert_eq!(taker(&bench, "a.example.com"), "end");
    assert!(bench.found(443, "a.example.com", "/").is_some());
    assert_eq!(told(&bench, "tlsroute/shop/t"), [Reason::PassedHostTaken]);
    bench.add(&tls_route("u", 1, "a.example.com"));
    assert_eq!(taker(&bench, "a.example.com"), "u");
    assert_eq!(told(&bench, "ingress/shop/i"), [Reason::PassedHostTaken]);
    bench.remove(Kind::TlsRoute, "shop", "u");
    assert_eq!(taker(&bench, "a.example.com"), "end");
    assert_eq!(told(&bench, "ingress/shop/i"), []);
    bench.remove(Kind::Ingress, "shop", "i");
    assert_eq!(taker(&bench, "a.example.com"), "t");
}

/// The star of an Ingress stands for one label, that of a TLSRoute for one or more: they meet at one.
#[test]
fn of_two_wildcards_the_older_one_has_the_names_that_both_take() {
    let own = ingress("i", "2020-01-01T00:00:05Z", "*.example.com");
    let mut bench = bench(&[&gateway(PASS), &own, &tls_route("t", 9, "'*.example.com'")]);
    assert_eq!(
        (taker(&bench, "a.example.com"), taker(&bench, "x.y.example.com")),
        ("end".into(), "t".into())
    );
    assert_eq!(told(&bench, "tlsroute/shop/t"), [Reason::PassedHostTaken]);
    bench.add(&tls_route("u", 1, "'*.example.com'"));
    for sni in ["a.example.com", "x.y.example.com"] {
        assert_eq!(taker(&bench, sni), "u", "{sni}");
    }
    assert_eq!(told(&bench, "ingress/shop/i"), [Reason::PassedHostTaken]);
    bench.remove(Kind::TlsRoute, "shop", "u");
    assert_eq!(taker(&bench, "a.example.com"), "end");
    assert_eq!(told(&bench, "ingress/shop/i"), []);
    // where an empty listener stands in for what others serve there, it is the same
    let empty = gateway(&PASS.replace("*.example.com", "a.example.com")).replace("name: gw", "name: empty");
    bench.add(&empty);
    assert_eq!(taker(&bench, "a.example.com"), "end");
    bench.remove(Kind::Ingress, "shop", "i");
    assert_eq!(taker(&bench, "a.example.com"), "t");
    assert_eq!(told(&bench, "tlsroute/shop/t"), []);
    let younger = ingress("j", "2020-01-01T00:00:50Z", "*.example.com");
    bench.add(&younger);
    assert_eq!(taker(&bench, "a.example.com"), "t");
}

#[test]
fn a_listener_without_routes_takes_nothing_from_others() {
    let own = ingress("i", "2020-01-01T00:00:05Z", "a.example.com");
    let mut bench = bench(&[&gateway(&PASS.replace("*.example.com", "a.example.com")), &own]);
    assert_eq!(taker(&bench, "a.example.com"), "end");
    bench.remove(Kind::Ingress, "shop", "i");
    assert_eq!(taker(&bench, "a.example.com"), "close");
    // a less specific listener of another Gateway
    let other = gateway(PASS).replace("name: gw", "name: other");
    let through = tls_route("t", 1, "'*.example.com'").replace("\"gw\"", "\"other\"");
    bench.add(&other);
    bench.add(&through);
    assert_eq!(taker(&bench, "a.example.com"), "t");
    // but none of its own
    bench.add(&gateway(&format!(
        "{PASS}, {}",
        PASS.replace("*.example", "a.example").replace("name: tls", "name: a")
    )));
    let own = tls_route("t", 1, "'*.example.com'").replace("\"gw\"", "\"gw\",\"sectionName\":\"tls\"");
    bench.add(&own);
    bench.remove(Kind::Gateway, "infra", "other");
    assert_eq!(
        (taker(&bench, "b.example.com"), taker(&bench, "a.example.com")),
        ("t".into(), "close".into())
    );
}

#[test]
fn listeners_that_pass_on_share_a_port_with_others_when_their_hosts_differ() {
    let https = |name: &str, host: &str| {
        format!(
            "{{name: {name}, port: 443, protocol: HTTPS, hostname: {host}, tls: {{certificateRefs: [{{name: nope}}]}}}}"
        )
    };
    let tls = |host: &str, tls: &str| {
        format!("{{name: tls, port: 443, protocol: TLS, hostname: {host}, tls: {{{tls}}}, {ALL}}}")
    };
    let apart = format!("{}, {}", https("h", "a.example.com"), tls("b.example.com", "mode: Passthrough"));
    let bench1 = bench(&[&gateway(&apart), &tls_route("t", 1, "b.example.com")]);
    is(bench1.of_listener(1, "Accepted"), "True", "Accepted");
    is(bench1.of_listener(0, "Conflicted"), "False", "NoConflicts");
    assert_eq!(
        (taker(&bench1, "b.example.com"), taker(&bench1, "a.example.com")),
        ("t".into(), "end".into())
    );

    let same = format!(
        "{}, {}, {}",
        https("h", "a.example.com"),
        tls("a.example.com", "mode: Passthrough"),
        https("other", "c.example.com")
    );
    let bench2 = bench(&[&gateway(&same), &tls_route("t", 1, "a.example.com")]);
    for at in [0, 1] {
        is(bench2.of_listener(at, "Conflicted"), "True", "HostnameConflict");
        is(bench2.of_listener(at, "Accepted"), "False", "HostnameConflict");
    }
    is(bench2.of_listener(2, "Accepted"), "True", "Accepted");
    assert_eq!(taker(&bench2, "a.example.com"), "end");
    // one that is not supported takes nothing from another
    let unsupported = format!("{}, {}", https("h", "a.example.com"), tls("a.example.com", "mode: Other"));
    let bench3 = bench(&[&gateway(&unsupported)]);
    is(bench3.of_listener(0, "Accepted"), "True", "Accepted");
    is(bench3.of_listener(1, "Conflicted"), "False", "NoConflicts");

    for (spec, condition, reason) in [
        (
            tls("a.example.com", "mode: Terminate, certificateRefs: [{name: nope}]"),
            "ResolvedRefs",
            "InvalidCertificateRef",
        ),
        // whether the port is open or not
        (tls("a.example.com", "mode: Other").replace("443", "8443"), "Accepted", "UnsupportedValue"),
        (
            tls("a.example.com", "mode: Passthrough")
                .replace("allowedRoutes: {", "allowedRoutes: {kinds: [{kind: TCPRoute}, {kind: TLSRoute}], "),
            "ResolvedRefs",
            "InvalidRouteKinds",
        ),
        (tls("a.example.com", "mode: Passthrough").replace("443", "80"), "Accepted", "PortUnavailable"),
    ] {
        let bench = bench(&[&gateway(&spec)]);
        is(bench.of_listener(0, condition), "False", reason);
        let kinds = &bench.statuses["Gateway/gw"]["listeners"][0]["supportedKinds"];
        let known = usize::from(!spec.contains("Other"));
        assert_eq!(kinds.as_array().unwrap().len(), known, "{kinds}");
    }
}

/// Ends TLS for TLSRoutes at these hosts, with the certificate of `own`.
fn ending(hosts: &str) -> String {
    format!(
        "{{name: tls, port: 443, protocol: TLS, hostname: '{hosts}', tls: {{certificateRefs: [{{name: own}}]}}, {ALL}}}"
    )
}

/// The certificate `own` of the Gateways.
fn own_certificate() -> String {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let mut builder = X509::builder().unwrap();
    builder.set_not_before(&Asn1Time::from_unix(1).unwrap()).unwrap();
    builder.set_not_after(&Asn1Time::from_unix(2_000_000_000).unwrap()).unwrap();
    builder.set_pubkey(&key).unwrap();
    builder.sign(&key, MessageDigest::sha256()).unwrap();
    let pem = |bytes: Vec<u8>| encode_block(&bytes);
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": { "name": "own", "namespace": "infra" },
        "data": { "tls.crt": pem(builder.build().to_pem().unwrap()),
                  "tls.key": pem(key.private_key_to_pem_pkcs8().unwrap()) },
    })
    .to_string()
}

/// What becomes of a connection, in a word, and by whose route.
fn fate(bench: &Bench, sni: &str) -> (&'static str, String) {
    let word = match bench.last.listeners.get(Scope { address: None, port: 443 }).map(|l| l.mode(sni)) {
        None | Some(TlsMode::Terminate) => "http",
        Some(TlsMode::TerminateTcp { .. }) => "tcp",
        Some(TlsMode::Passthrough(_)) => "unread",
    };
    (word, taker(bench, sni))
}

#[test]
fn where_a_listener_ends_tls_what_is_inside_goes_to_the_route() {
    let pass = PASS.replace("*.example.com", "*.pass.example.com").replace("name: tls", "name: pass");
    let listeners = format!("{}, {pass}", ending("*.example.com"));
    let mut bench = bench(&[&own_certificate(), &gateway(&listeners)]);
    for at in [0, 1] {
        is(bench.of_listener(at, "Accepted"), "True", "Accepted");
        is(bench.of_listener(at, "Programmed"), "True", "Programmed");
    }
    assert_eq!(fate(&bench, "a.example.com"), ("tcp", "close".into()));
    assert_eq!(fate(&bench, "a.pass.example.com"), ("unread", "close".into()));
    bench.add(&tls_route("t", 1, "a.example.com, a.pass.example.com"));
    is(of(&bench, "t", "Accepted"), "True", "Accepted");
    assert_eq!(fate(&bench, "a.example.com"), ("tcp", "t".into()));
    assert_eq!(fate(&bench, "a.pass.example.com"), ("unread", "t".into()));
    assert_eq!(bench.statuses["Gateway/gw"]["listeners"][0]["supportedKinds"][0]["kind"], "TLSRoute");
    let listener = bench.last.listeners.get(Scope { address: None, port: 443 }).unwrap();
    assert!(listener.certs.find(Some("a.example.com")).is_some());
    // the mode alone is another now
    bench.add(&gateway(&format!("{}, {pass}", PASS.replace("name: pass", "name: tls"))));
    assert_eq!(fate(&bench, "a.example.com"), ("unread", "t".into()));
    bench.add(&gateway(&listeners));
    assert_eq!(fate(&bench, "a.example.com"), ("tcp", "t".into()));
    // a certificate that is gone takes all of it away
    bench.add(&gateway(&ending("*.example.com").replace("name: own", "name: nope")));
    is(bench.of_listener(0, "ResolvedRefs"), "False", "InvalidCertificateRef");
    assert_eq!(taker(&bench, "a.example.com"), "close");
}

/// Also when neither its mode nor its name is the first one.
#[test]
fn of_two_gateways_with_one_host_the_older_ones_mode_counts() {
    let of_age = |listeners: &str, name: &str, seconds: u8| {
        let mut value = serde_yaml_like(&gateway(listeners));
        value["metadata"]["name"] = name.into();
        value["metadata"]["creationTimestamp"] = format!("2020-01-01T00:00:{seconds:02}Z").into();
        value.to_string()
    };
    let mut route: Value = serde_json::from_str(&tls_route("t", 1, "a.example.com")).unwrap();
    let parent = |name: &str| json!({ "name": name, "namespace": "infra" });
    route["spec"]["parentRefs"] = json!([parent("gw"), parent("second")]);
    let mut bench = bench(&[
        &own_certificate(),
        &of_age(PASS, "gw", 5),
        &of_age(&ending("*.example.com"), "second", 9),
        &route.to_string(),
    ]);
    assert_eq!(fate(&bench, "a.example.com"), ("unread", "t".into()));
    bench.add(&of_age(&ending("*.example.com"), "second", 1));
    assert_eq!(fate(&bench, "a.example.com"), ("tcp", "t".into()));
    assert_eq!(told(&bench, "tlsroute/shop/t"), []);
}

/// TLS that ends here must not go on in plain text where TLS is asked for; what is passed on unread is not touched.
#[test]
fn where_tls_ends_a_service_that_asks_for_tls_gets_it_or_nothing() {
    let service = "{apiVersion: v1, kind: Service, metadata: {name: tls, namespace: shop}, \
                   spec: {ports: [{port: 443, appProtocol: https}]}}";
    let policy = "{apiVersion: gateway.networking.k8s.io/v1, kind: BackendTLSPolicy, \
                  metadata: {name: p, namespace: shop}, spec: {targetRefs: [{group: '', kind: Service, name: tls}], \
                  validation: {wellKnownCACertificates: System, hostname: in.example.com}}}";
    let route = tls_route_to("t", 1, "a.example.com", "{name: tls, port: 443}");
    let mut bench = bench(&[&own_certificate(), &gateway(&ending("*.example.com")), service, &route]);
    let backend = |bench: &Bench| {
        let listener = bench.last.listeners.get(Scope { address: None, port: 443 }).unwrap();
        listener.mode("a.example.com").route().unwrap().backend.clone()
    };
    is(of(&bench, "t", "ResolvedRefs"), "False", "UnsupportedProtocol");
    assert_eq!(backend(&bench).address, BackendAddress::Unavailable(Unavailable::Broken));
    bench.add(policy);
    is(of(&bench, "t", "ResolvedRefs"), "True", "ResolvedRefs");
    assert!(backend(&bench).protocol.tls() && backend(&bench).verify && backend(&bench).tls.is_some());
    assert!(bench.statuses.contains_key("BackendTLSPolicy/p"));
    bench.add(&policy.replace("System", "Other"));
    is(of(&bench, "t", "ResolvedRefs"), "False", "InvalidBackendTLSPolicy");
    assert_eq!(backend(&bench).address, BackendAddress::Unavailable(Unavailable::Broken));
    bench.add(&gateway(PASS));
    is(of(&bench, "t", "ResolvedRefs"), "True", "ResolvedRefs");
    assert!(!backend(&bench).protocol.tls());
}

/// Objects come, change and go in any order: what is served, written and told is what a fresh start comes to.
#[test]
fn any_sequence_of_changes_ends_where_a_fresh_translation_does() {
    let any = PASS.replace("hostname: '*.example.com', ", "");
    let https = "{name: h, port: 443, protocol: HTTPS, hostname: '*.example.com', \
                 tls: {certificateRefs: [{name: nope}]}, allowedRoutes: {namespaces: {from: All}}}";
    let exact = PASS.replace("*.example.com", "a.example.com");
    let second = |listeners: &str| gateway(listeners).replace("name: gw", "name: second");
    let open = |listeners: &str| {
        let mut value = serde_yaml_like(&gateway(listeners));
        value["spec"]["allowedListeners"] = json!({ "namespaces": { "from": "All" } });
        value.to_string()
    };
    let set = |listeners: &str| {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
            "metadata": { "name": "set", "namespace": "shop", "generation": 1, "resourceVersion": "1" },
            "spec": { "parentRef": { "name": "gw", "namespace": "infra" },
                      "listeners": serde_yaml_like(&format!("[{listeners}]")) },
        })
        .to_string()
    };
    let mut of_set: Value = serde_json::from_str(&tls_route("e", 5, "b.example.com")).unwrap();
    of_set["spec"]["parentRefs"] =
        json!([{ "group": "gateway.networking.k8s.io", "kind": "ListenerSet", "name": "set" }]);
    let service = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {ports: [{port: 80}]}}";
    let objects = [
        gateway(PASS),
        gateway(&any),
        gateway(https),
        gateway(&exact),
        gateway(&format!("{PASS}, {}", exact.replace("name: tls", "name: a"))),
        open(PASS),
        open(&exact),
        set(&PASS.replace("*.example.com", "b.example.com")),
        set(&exact),
        of_set.to_string(),
        second(PASS),
        second(https),
        second(&exact),
        own_certificate(),
        gateway(&ending("*.example.com")),
        gateway(&format!("{PASS}, {}", ending("a.example.com").replace("name: tls", "name: a"))),
        second(&ending("a.example.com")),
        tls_route("a", 1, "a.example.com"),
        tls_route("a", 1, "a.example.com, '*.example.com'"),
        tls_route("b", 2, "'*.com'"),
        tls_route("c", 3, "a.example.com").replace("\"gw\"", "\"second\""),
        tls_route("d", 4, "'*.example.com'").replace("\"gw\"", "\"second\""),
        plain("h", "a.example.com"),
        plain("h", "'*.example.com'"),
        ingress("i", "2020-01-01T00:00:02Z", "a.example.com"),
        ingress("j", "2020-01-01T00:00:00Z", "*.example.com"),
        ingress("j", "2020-01-01T00:00:09Z", "*.example.com"),
        service.to_owned(),
    ];
    let gone = [
        (Kind::Gateway, "infra", "gw"),
        (Kind::Gateway, "infra", "second"),
        (Kind::ListenerSet, "shop", "set"),
        (Kind::TlsRoute, "shop", "e"),
        (Kind::TlsRoute, "shop", "a"),
        (Kind::TlsRoute, "shop", "b"),
        (Kind::TlsRoute, "shop", "c"),
        (Kind::TlsRoute, "shop", "d"),
        (Kind::HttpRoute, "shop", "h"),
        (Kind::Ingress, "shop", "i"),
        (Kind::Ingress, "shop", "j"),
        (Kind::Service, "shop", "web"),
    ];
    let mut bench = bench(&[]);
    let (mut told, mut takers) = (BTreeMap::new(), BTreeSet::new());
    let mut random = 7u64;
    for step in 0..1500 {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let at = (random >> 33) as usize % (objects.len() + gone.len());
        match at.checked_sub(objects.len()) {
            None => bench.add(&objects[at]),
            Some(at) => bench.remove(gone[at].0, gone[at].1, gone[at].2),
        }
        for outcome in &bench.last.outcomes {
            told.insert(outcome.source.clone(), outcome.findings.clone());
        }
        let settings = Settings { publish_addresses: vec!["192.0.2.1".into()], ..Settings::default() };
        let fresh =
            Translator::with_clock(settings, || 1_000).translate(&bench.cluster, &Dirty::everything());
        assert_eq!(bench.last.listeners, fresh.listeners, "step {step}");
        assert_eq!(bench.last.gateway_route_counts, fresh.gateway_route_counts, "step {step}");
        for write in &fresh.writes {
            let Change::Status { status, .. } = &write.change else { continue };
            let ours = &bench.statuses[&format!("{}/{}", write.target.kind, write.target.name)];
            for field in ["parents", "listeners"].into_iter().filter(|field| !status[*field].is_null()) {
                assert_eq!(ours[field], status[field], "step {step}: {:?}", write.target);
            }
        }
        for outcome in &fresh.outcomes {
            let ours = told.get(&outcome.source).cloned().unwrap_or_default();
            assert_eq!(ours, outcome.findings, "step {step}: {}", outcome.source);
        }
        takers.extend(["a.example.com", "b.example.com", "x.y.example.com"].map(|sni| taker(&bench, sni)));
    }
    let all: BTreeSet<_> = ["a", "b", "c", "d", "e", "end", "close"].map(String::from).into();
    assert_eq!(takers, all, "every end was come to");
}

#[test]
fn a_status_is_handed_to_the_right_kind() {
    let bench = bench(&[&gateway(PASS), &tls_route("t", 1, "a.example.com")]);
    assert!(GatewayApi::KINDS.contains(&Kind::TlsRoute));
    let write = bench.last.writes.iter().find(|write| write.target.kind == "TLSRoute").unwrap();
    assert_eq!((write.target.plural, &*write.target.name), ("tlsroutes", "t"));
}
