//! Certificates of clients: what each host asks for, and who is not served where that cannot be had.

use super::backend_tls::authority;
use super::*;
use crate::finding::Finding;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::x509::X509;

fn map(place: &str, ca: &str) -> String {
    let (namespace, name) = place.split_once('/').unwrap();
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "namespace": namespace, "name": name },
            "data": { "ca.crt": ca } })
    .to_string()
}

/// The Secret `tls` of this namespace, good for servers.
pub(super) fn secret(namespace: &str) -> String {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let mut builder = X509::builder().unwrap();
    builder.set_not_before(&openssl::asn1::Asn1Time::from_unix(1).unwrap()).unwrap();
    builder.set_not_after(&openssl::asn1::Asn1Time::from_unix(2_000_000_000).unwrap()).unwrap();
    builder.set_pubkey(&key).unwrap();
    builder.sign(&key, MessageDigest::sha256()).unwrap();
    let encode = openssl::base64::encode_block;
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": { "name": "tls", "namespace": namespace },
        "data": { "tls.crt": encode(&builder.build().to_pem().unwrap()),
                  "tls.key": encode(&key.private_key_to_pem_pkcs8().unwrap()) },
    })
    .to_string()
}

pub(super) fn https(name: &str, port: u16, host: &str) -> String {
    let host = if host.is_empty() { String::new() } else { format!("hostname: '{host}', ") };
    format!(
        "{{name: {name}, port: {port}, protocol: HTTPS, {host}tls: {{certificateRefs: [{{name: tls}}]}}, {ALL}}}"
    )
}

/// A Gateway of 2020 and as many seconds, with this `spec.tls.frontend`.
pub(super) fn asking(name: &str, seconds: u8, listeners: &str, frontend: &str) -> String {
    let mut value: Value = serde_yaml_like(&gateway(listeners));
    value["metadata"]["name"] = name.into();
    value["metadata"]["creationTimestamp"] = format!("2020-01-01T00:00:{seconds:02}Z").into();
    if !frontend.is_empty() {
        value["spec"]["tls"] = json!({ "frontend": serde_yaml_like(frontend) });
    }
    value.to_string()
}

/// A route of the same path for all of them.
pub(super) fn on(name: &str, gateway: &str, seconds: u8, host: &str) -> String {
    let parents = format!("parentRefs: [{{name: {gateway}, namespace: infra}}]");
    let rule = format!("{{matches: [{{path: {{value: /{name}}}}}], {WEB}}}");
    let mut value: Value =
        serde_yaml_like(&route(name, &format!("{{{parents}, hostnames: ['{host}'], rules: [{rule}]}}")));
    value["metadata"]["creationTimestamp"] = format!("2020-01-01T00:00:{seconds:02}Z").into();
    value.to_string()
}

pub(super) fn of_map(name: &str) -> String {
    format!("{{group: '', kind: ConfigMap, name: {name}}}")
}

pub(super) fn default(refs: &str) -> String {
    format!("{{default: {{validation: {{caCertificateRefs: [{refs}]}}}}}}")
}

fn settings() -> Settings {
    Settings { gateway_listener_ports: vec![80, 443, 8443], ..Settings::default() }
}

/// Two namespaces with a certificate, two authorities in `infra`.
pub(super) fn prepared(more: &[&str]) -> Bench {
    let all =
        [secret("infra"), secret("shop"), map("infra/ca", &authority()), map("infra/other", &authority())];
    let all: Vec<&str> = all.iter().map(String::as_str).chain(more.iter().copied()).collect();
    bench_of(settings(), &all)
}

impl Bench {
    /// What clients of a host must show on a port: of how many authorities, and whether they must.
    fn asked(&self, port: u16, host: &str) -> Option<(usize, bool)> {
        let listener = self.last.listeners.get(Scope { address: None, port })?;
        let clients = listener.routes.host(host, "/").ok()?.clients()?;
        assert_eq!(Some(clients), listener.routes.clients(Some(host)), "{host}");
        assert!(listener.asks_clients);
        Some((clients.authorities.len(), clients.required))
    }

    /// Whose routes are served for a host on port 443, in order.
    fn served(&self, host: &str) -> Vec<String> {
        let listener = self.last.listeners.get(Scope { address: None, port: 443 }).unwrap();
        let all = listener.routes.host(host, "/").map(|host| host.routes().to_vec()).unwrap_or_default();
        let mut all: Vec<_> = all.iter().map(|route| route.source.name.to_string()).collect();
        all.sort();
        all
    }

    fn on(&self, gateway: &str, at: usize, kind: &str) -> (String, String) {
        self.condition(&format!("Gateway/{gateway}"), &format!("/listeners/{at}"), kind).unwrap_or_default()
    }

    fn fresh(&self) -> Translation {
        let settings = Settings { publish_addresses: vec!["192.0.2.1".into()], ..settings() };
        Translator::with_clock(settings, || 1_000).translate(&self.cluster, &Dirty::everything())
    }

    /// What a fresh translation finds wrong with an object.
    fn wrong(&self, object: &str) -> Vec<Finding> {
        let outcomes = self.fresh().outcomes;
        let of = outcomes.into_iter().filter(|outcome| outcome.source.to_string() == object);
        of.flat_map(|outcome| outcome.findings.into_vec()).collect()
    }
}

#[test]
fn authorities_that_are_missing_are_not_believed_and_without_any_nobody_is_let_in() {
    let grant = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ReferenceGrant",
        "metadata": { "name": "g", "namespace": "granted" },
        "spec": { "from": [{ "group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "infra" }],
                  "to": [{ "group": "", "kind": "ConfigMap", "name": "ca" }] },
    })
    .to_string();
    let maps = ["granted/ca", "granted/more", "closed/ca"].map(|place| map(place, &authority()));
    let damaged = map("infra/damaged", "nothing");
    let in_namespace = |name: &str, namespace: &str| {
        format!("{{group: '', kind: ConfigMap, name: {name}, namespace: {namespace}}}")
    };
    let kind = "{group: '', kind: Service, name: ca}";
    for (refs, resolved, asked) in [
        (of_map("ca"), "ResolvedRefs", Some(1)),
        (format!("{}, {}, {}", of_map("ca"), of_map("other"), of_map("ca")), "ResolvedRefs", Some(2)),
        (in_namespace("ca", "granted"), "ResolvedRefs", Some(1)),
        (of_map("none"), "InvalidCACertificateRef", None),
        (of_map("damaged"), "InvalidCACertificateRef", None),
        (String::new(), "InvalidCACertificateRef", None),
        (kind.to_owned(), "InvalidCACertificateKind", None),
        ("{name: ca}".to_owned(), "InvalidCACertificateKind", None),
        ("{group: x.y, kind: ConfigMap, name: ca}".to_owned(), "InvalidCACertificateKind", None),
        (in_namespace("ca", "closed"), "RefNotPermitted", None),
        (in_namespace("more", "granted"), "RefNotPermitted", None),
        (format!("{}, {kind}", of_map("ca")), "InvalidCACertificateKind", Some(1)),
        (format!("{kind}, {}", of_map("none")), "InvalidCACertificateKind", None),
    ] {
        let bench = prepared(&[
            &grant,
            &maps.join("\n---\n"),
            &damaged,
            &asking("gw", 1, &https("h", 443, ""), &default(&refs)),
            &on("r", "gw", 1, "a.example.com"),
        ]);
        let good = resolved == "ResolvedRefs";
        is(bench.on("gw", 0, "ResolvedRefs"), if good { "True" } else { "False" }, resolved);
        match asked {
            Some(_) => is(bench.on("gw", 0, "Accepted"), "True", "Accepted"),
            None => {
                is(bench.on("gw", 0, "Accepted"), "False", "NoValidCACertificate");
                is(bench.on("gw", 0, "Programmed"), "False", "Invalid");
                assert!(bench.found(443, "a.example.com", "/r").is_none(), "{refs}");
            }
        }
        assert_eq!(bench.asked(443, "a.example.com"), asked.map(|n| (n, true)), "{refs}");
        let wrong = bench.wrong("gateway/infra/gw");
        let of_refs = wrong.iter().filter(|finding| finding.reason == Reason::ClientValidationInvalid);
        assert_eq!(of_refs.count() > 0, !good, "{refs}: {wrong:?}");
    }
}

#[test]
fn a_port_has_its_own_word_and_plain_http_none() {
    let listeners = [
        https("https", 443, ""),
        https("port", 8443, ""),
        format!("{{name: http, port: 80, protocol: HTTP, {ALL}}}"),
    ]
    .join(", ");
    let of = |per_port: &str| {
        let default = format!("default: {{validation: {{caCertificateRefs: [{}]}}}}", of_map("ca"));
        let gateway = asking("gw", 1, &listeners, &format!("{{{default}, perPort: [{per_port}]}}"));
        prepared(&[&gateway, &on("r", "gw", 1, "a.example.com")])
    };
    let all = |bench: &Bench| [443, 8443, 80].map(|port| bench.asked(port, "a.example.com"));
    let insecure = |bench: &Bench| bench.condition("Gateway/gw", "", "InsecureFrontendValidationMode");
    let two = format!("{}, {}", of_map("ca"), of_map("other"));
    let validation =
        |mode: &str| format!("tls: {{validation: {{mode: {mode}, caCertificateRefs: [{two}]}}}}");

    let bench = of("");
    assert_eq!((all(&bench), insecure(&bench)), ([Some((1, true)), Some((1, true)), None], None));
    let bench = of(&format!("{{port: 8443, {}}}", validation("AllowValidOnly")));
    assert_eq!((all(&bench), insecure(&bench)), ([Some((1, true)), Some((2, true)), None], None));
    let bench = of(&format!("{{port: 8443, {}}}", validation("AllowInsecureFallback")));
    assert_eq!(all(&bench), [Some((1, true)), Some((2, false)), None]);
    is(insecure(&bench).unwrap(), "True", "ConfigurationChanged");
    // one that says nothing asks for nothing
    let bench = of("{port: 8443, tls: {}}, {port: 80, tls: {}}");
    assert_eq!(all(&bench), [Some((1, true)), None, None]);
    assert!(bench.found(8443, "a.example.com", "/r").is_some());
    for mode in ["allowValidOnly", "Later"] {
        let bench = of(&format!("{{port: 8443, {}}}", validation(mode)));
        is(bench.on("gw", 1, "Accepted"), "False", "UnsupportedValue");
        is(bench.on("gw", 0, "Accepted"), "True", "Accepted");
        is(bench.on("gw", 2, "Accepted"), "True", "Accepted");
        assert!(bench.found(8443, "a.example.com", "/r").is_none() && insecure(&bench).is_none());
    }
}

#[test]
fn a_config_map_counts_as_soon_as_it_changes_and_leaves_nothing_behind() {
    let mut bench = prepared(&[
        &asking("gw", 1, &https("h", 443, ""), &default(&of_map("late"))),
        &on("r", "gw", 1, "a.example.com"),
    ]);
    is(bench.on("gw", 0, "Accepted"), "False", "NoValidCACertificate");
    let (first, second) = (authority(), authority());
    bench.add(&map("infra/late", &first));
    assert_eq!(bench.asked(443, "a.example.com"), Some((1, true)));
    is(bench.on("gw", 0, "ResolvedRefs"), "True", "ResolvedRefs");
    let kept = |bench: &Bench| {
        let listener = bench.last.listeners.get(Scope { address: None, port: 443 }).unwrap();
        listener.routes.clients(None).or(listener.routes.clients(Some("a.example.com"))).unwrap().clone()
    };
    let before = kept(&bench);
    bench.add(&map("infra/late", &format!("{second}{first}")));
    assert_eq!(bench.asked(443, "a.example.com"), Some((2, true)));
    assert_ne!(before, kept(&bench));
    // the same authorities in another order are the same, down to what is derived from them
    let before = kept(&bench);
    bench.add(&map("infra/late", &format!("{first}{second}")));
    assert!(Arc::ptr_eq(&before, &kept(&bench)));
    bench.remove(Kind::ConfigMap, "infra", "late");
    assert!(bench.found(443, "a.example.com", "/r").is_none());
    bench.add(&map("infra/late", &first));
    bench.remove(Kind::Gateway, "infra", "gw");
    assert!(bench.translator.gateway_api.authorities.is_empty());
}

#[test]
fn of_two_gateways_with_one_host_the_older_one_says_what_clients_must_show() {
    let ca = default(&of_map("ca"));
    for (older, younger, asked) in [
        (ca.as_str(), "", Some((1, true))),
        ("", ca.as_str(), None),
        (ca.as_str(), &*default(&of_map("other")), Some((1, true))),
    ] {
        let mut bench = prepared(&[
            &asking("b", 1, &https("h", 443, "a.example.com"), older),
            &asking("a", 2, &https("h", 443, "a.example.com"), younger),
            &on("old", "b", 2, "a.example.com"),
            &on("new", "a", 1, "a.example.com"),
        ]);
        is(bench.on("a", 0, "Accepted"), "False", "HostnameConflict");
        is(bench.on("a", 0, "Conflicted"), "True", "HostnameConflict");
        is(bench.on("b", 0, "Accepted"), "True", "Accepted");
        assert_eq!(
            (bench.served("a.example.com"), bench.asked(443, "a.example.com")),
            (vec!["old".into()], asked)
        );
        bench.remove(Kind::Gateway, "infra", "b");
        is(bench.on("a", 0, "Accepted"), "True", "Accepted");
        assert_eq!(bench.served("a.example.com"), ["new"]);
        assert_eq!(bench.asked(443, "a.example.com").is_some(), !younger.is_empty());
    }
    // who asks the same goes together
    let bench = prepared(&[
        &asking("b", 1, &https("h", 443, "a.example.com"), &ca),
        &asking("a", 2, &https("h", 443, "a.example.com"), &ca),
        &on("old", "b", 2, "a.example.com"),
        &on("new", "a", 1, "a.example.com"),
    ]);
    assert_eq!(bench.served("a.example.com"), ["new", "old"]);
}

#[test]
fn of_two_gateways_the_more_specific_listener_decides_and_nothing_protected_is_served_otherwise() {
    let ca = default(&of_map("ca"));
    let listeners = |wide: &str, narrow: &str| {
        prepared(&[
            &asking("wide", 1, &https("h", 443, "*.example.com"), wide),
            &asking("narrow", 2, &https("h", 443, "a.example.com"), narrow),
            &on("w", "wide", 1, "a.example.com"),
            &on("all", "wide", 1, "*.example.com"),
        ])
    };
    // without routes the narrow one takes nothing away, and nothing falls open
    let mut bench = listeners(&ca, "");
    assert_eq!(
        (bench.served("a.example.com"), bench.asked(443, "a.example.com")),
        (vec!["w".into()], Some((1, true)))
    );
    bench.add(&on("n", "narrow", 2, "a.example.com"));
    assert_eq!((bench.served("a.example.com"), bench.asked(443, "a.example.com")), (vec!["n".into()], None));
    assert_eq!(
        (bench.served("b.example.com"), bench.asked(443, "b.example.com")),
        (vec!["all".into()], Some((1, true)))
    );
    assert!(bench.wrong("httproute/shop/w").iter().any(|f| f.reason == Reason::ProtectedHostTaken));
    bench.remove(Kind::HttpRoute, "shop", "w");
    bench.remove(Kind::HttpRoute, "shop", "n");
    assert_eq!(
        (bench.served("a.example.com"), bench.asked(443, "a.example.com")),
        (vec!["all".into()], Some((1, true)))
    );
    // what asks for nothing may be asked for more
    let mut bench = listeners("", &ca);
    assert_eq!((bench.served("a.example.com"), bench.asked(443, "a.example.com")), (vec!["w".into()], None));
    bench.add(&on("n", "narrow", 2, "a.example.com"));
    assert_eq!(
        (bench.served("a.example.com"), bench.asked(443, "a.example.com")),
        (vec!["n".into(), "w".into()], Some((1, true)))
    );
}

#[test]
fn between_an_ingress_and_a_protected_route_the_older_one_has_the_host() {
    let gateway = asking("gw", 1, &https("h", 443, "*.example.com"), &default(&of_map("ca")));
    let mut bench = prepared(&[&gateway, &on("r", "gw", 5, "a.example.com")]);
    assert_eq!(bench.asked(443, "a.example.com"), Some((1, true)));
    // what Ingresses declare alone is theirs
    bench.add(&ingress("i", "2020-01-01T00:00:09Z", "b.example.com"));
    assert_eq!((bench.served("b.example.com"), bench.asked(443, "b.example.com")), (vec!["i".into()], None));
    bench.add(&ingress("i", "2020-01-01T00:00:09Z", "a.example.com"));
    assert_eq!(
        (bench.served("a.example.com"), bench.asked(443, "a.example.com")),
        (vec!["r".into()], Some((1, true)))
    );
    assert!(bench.wrong("ingress/shop/i").iter().any(|f| f.reason == Reason::ProtectedHostTaken));
    bench.add(&ingress("i", "2020-01-01T00:00:02Z", "a.example.com"));
    assert_eq!((bench.served("a.example.com"), bench.asked(443, "a.example.com")), (vec!["i".into()], None));
    assert!(bench.wrong("httproute/shop/r").iter().any(|f| f.reason == Reason::ProtectedHostTaken));
    bench.remove(Kind::Ingress, "shop", "i");
    assert_eq!(
        (bench.served("a.example.com"), bench.asked(443, "a.example.com")),
        (vec!["r".into()], Some((1, true)))
    );
    // one label of an Ingress's wildcard, and more labels
    bench.add(&on("r", "gw", 5, "*.example.com"));
    bench.add(&ingress("i", "2020-01-01T00:00:02Z", "*.example.com"));
    assert_eq!((bench.served("x.example.com"), bench.asked(443, "x.example.com")), (vec!["i".into()], None));
    assert_eq!(
        (bench.served("x.y.example.com"), bench.asked(443, "x.y.example.com")),
        (vec!["r".into()], Some((1, true)))
    );
    bench.add(&ingress("i", "2020-01-01T00:00:09Z", "*.example.com"));
    assert_eq!(
        (bench.served("x.example.com"), bench.asked(443, "x.example.com")),
        (vec!["r".into()], Some((1, true)))
    );
    // a solver's Ingress takes no host, whatever its age
    let solver = ingress("i", "2020-01-01T00:00:02Z", "a.example.com")
        .replace(r#""path":"/""#, r#""path":"/.well-known/acme-challenge/x""#)
        .replace("Prefix", "Exact");
    bench.add(&solver);
    bench.add(&on("r", "gw", 5, "a.example.com"));
    assert_eq!(
        (bench.served("a.example.com"), bench.asked(443, "a.example.com")),
        (vec!["i".into(), "r".into()], Some((1, true)))
    );
}

#[test]
fn listeners_of_sets_ask_what_their_gateway_asks() {
    let mut gateway: Value =
        serde_yaml_like(&asking("gw", 1, &https("h", 443, "gw.example.com"), &default(&of_map("ca"))));
    gateway["spec"]["allowedListeners"] = json!({ "namespaces": { "from": "All" } });
    let set = |host: &str| {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
            "metadata": { "name": "set", "namespace": "shop", "generation": 1, "resourceVersion": "1" },
            "spec": { "parentRef": { "name": "gw", "namespace": "infra" },
                      "listeners": [serde_yaml_like(&https("s", 443, host))] },
        })
        .to_string()
    };
    let route = on("r", "gw", 1, "set.example.com")
        .replace(r#"{"name":"gw","namespace":"infra"}"#, r#"{"kind":"ListenerSet","name":"set"}"#);
    let mut bench = prepared(&[&gateway.to_string(), &set("set.example.com"), &route]);
    assert_eq!(bench.served("set.example.com"), ["r"]);
    assert_eq!(bench.asked(443, "set.example.com"), Some((1, true)));
    bench.remove(Kind::ConfigMap, "infra", "ca");
    assert!(bench.found(443, "set.example.com", "/r").is_none());
    let accepted = bench.condition("ListenerSet/set", "/listeners/0", "Accepted").unwrap();
    is(accepted, "False", "NoValidCACertificate");
}

#[test]
fn any_sequence_of_changes_ends_where_a_fresh_translation_does_and_serves_nothing_unprotected() {
    let hosts = ["a.example.com", "*.example.com", "b.example.com", ""];
    let frontends = [String::new(), default(&of_map("ca")), default(&of_map("other"))];
    let authorities = [authority(), authority()];
    let mut seen = BTreeSet::new();
    for seed in 0..12_u64 {
        let mut state = seed;
        let mut pick = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from((state >> 33) % n).unwrap()
        };
        let mut bench = prepared(&[]);
        for step in 0..40 {
            let gateway = ["one", "two"][pick(2)];
            let age = u8::try_from(pick(5)).unwrap();
            match pick(9) {
                0..=2 => {
                    bench.add(&asking(gateway, age, &https("h", 443, hosts[pick(4)]), &frontends[pick(3)]))
                }
                3 | 4 => bench.add(&on(&format!("of-{gateway}"), gateway, age, hosts[pick(3)])),
                5 => bench.add(&ingress("i", &format!("2020-01-01T00:00:{age:02}Z"), hosts[pick(3)])),
                6 => bench.remove(Kind::HttpRoute, "shop", &format!("of-{gateway}")),
                7 => bench.remove(Kind::Ingress, "shop", "i"),
                _ => bench.add(&map(["infra/ca", "infra/other"][pick(2)], &authorities[pick(2)])),
            }
            let fresh = bench.fresh();
            assert_eq!(bench.last.listeners, fresh.listeners, "seed {seed} step {step}");
            let api = &bench.translator.gateway_api;
            let Some(listener) = bench.last.listeners.get(Scope { address: None, port: 443 }) else {
                continue;
            };
            for (host, virtual_host) in listener.routes.hosts() {
                for route in virtual_host.routes().iter().filter(|route| route.source.kind == Kind::HttpRoute)
                {
                    let own = route.source.name.strip_prefix("of-").unwrap();
                    let own = &api.gateways.all[&Key::new("infra", own)].listeners[0].clients;
                    assert!(
                        own.is_none() || virtual_host.clients() == own.as_ref(),
                        "seed {seed} step {step}: {host} is served without what its Gateway asks"
                    );
                    seen.insert((own.is_some(), virtual_host.clients().is_some()));
                }
                let of_ingress = virtual_host.routes().iter().any(|route| route.source.kind == Kind::Ingress);
                assert!(!of_ingress || virtual_host.clients().is_none(), "seed {seed} step {step}: {host}");
            }
        }
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
}

#[test]
fn what_is_refused_takes_neither_port_nor_certificate_from_others() {
    let first = secret("infra").replace("\"name\":\"tls\"", "\"name\":\"first\"");
    let second = secret("infra").replace("\"name\":\"tls\"", "\"name\":\"second\"");
    let of = |secret: &str, more: &str| {
        let https =
            https("https", 443, "a.example.com").replace("{name: tls}", &format!("{{name: {secret}}}"));
        format!("{https}{more}")
    };
    let plain = format!(", {{name: plain, port: 8443, protocol: HTTP, {ALL}}}");
    let mut old: Value = serde_yaml_like(&asking("old", 1, &of("first", &plain), ""));
    old["spec"]["infrastructure"] = json!({"parametersRef": {"group": "", "kind": "ConfigMap", "name": "x"}});
    let young = asking("young", 2, &of("second", &format!(", {}", https("more", 8443, "b.example.com"))), "");
    let route = on("r", "young", 3, "a.example.com");
    for refused_first in [true, false] {
        let mut bench = bench_of(settings(), &[&first, &second, &secret("infra")]);
        let old = old.to_string();
        for gateway in if refused_first { [&old, &young] } else { [&young, &old] } {
            bench.add(gateway);
        }
        bench.add(&route);
        is(bench.condition("Gateway/old", "", "Accepted").unwrap(), "False", "InvalidParameters");
        let shown = |bench: &Bench, host: &str| {
            let listener = bench.last.listeners.get(Scope { address: None, port: 443 }).unwrap();
            listener.certs.find(Some(host)).map(|certificate| certificate.source.name.to_string())
        };
        assert_eq!(shown(&bench, "a.example.com").as_deref(), Some("second"));
        is(bench.condition("Gateway/young", "/listeners/1", "Accepted").unwrap(), "True", "Accepted");
        assert!(bench.last.listeners.get(Scope { address: None, port: 8443 }).unwrap().tls);
        // Once it is accepted the older one comes first again.
        let mut fine: Value = serde_json::from_str(&old).unwrap();
        fine["spec"].as_object_mut().unwrap().remove("infrastructure");
        fine["metadata"]["resourceVersion"] = "2".into();
        bench.add(&fine.to_string());
        assert_eq!(shown(&bench, "a.example.com").as_deref(), Some("first"));
        is(
            bench.condition("Gateway/young", "/listeners/1", "Accepted").unwrap(),
            "False",
            "ProtocolConflict",
        );
    }

    // Nor does a listener that is refused keep its port's protocol.
    let nobody = asking("nobody", 1, &https("one", 8443, "x.example.com"), &default(&of_map("missing")));
    let other = asking("other", 2, &format!("{{name: plain, port: 8443, protocol: HTTP, {ALL}}}"), "");
    let bench = bench_of(settings(), &[&secret("infra"), &nobody, &other]);
    is(
        bench.condition("Gateway/nobody", "/listeners/0", "Accepted").unwrap(),
        "False",
        "NoValidCACertificate",
    );
    is(bench.condition("Gateway/other", "/listeners/0", "Accepted").unwrap(), "True", "Accepted");
}
