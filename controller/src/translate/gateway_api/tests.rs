mod backend_tls;
mod clients;

use super::*;
use crate::cluster::definition::DefinitionObject;
use crate::cluster::{Parsed, parse_documents};
use crate::finding::Reason;
use crate::translate::{Settings, Translation, Translator};
use crate::write::Change;
use ingress_core::{BackendAddress, Route, Scope, Unavailable};
use serde_json::{Value, json};

/// A class, a Gateway with an HTTP listener for all namespaces, and two Services.
const BASE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: tak-os, generation: 1, resourceVersion: '1'}
spec: {controllerName: tak-os.org/gateway-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw, namespace: infra, generation: 1, resourceVersion: '1'}
spec:
  gatewayClassName: tak-os
  listeners: [{name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{port: 80}, {name: h2, port: 81, appProtocol: kubernetes.io/h2c}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: other}
spec: {ports: [{port: 80}]}
";

struct Bench {
    cluster: Cluster,
    translator: Translator,
    last: Translation,
    /// Statuses as the API would have them, by kind and name.
    statuses: BTreeMap<String, Value>,
}

fn bench(documents: &[&str]) -> Bench {
    bench_of(Settings::default(), documents)
}

fn bench_of(settings: Settings, documents: &[&str]) -> Bench {
    let settings = Settings { publish_addresses: vec!["192.0.2.1".into()], ..settings };
    let mut translator = Translator::with_clock(settings, || 1_000);
    let cluster = Cluster::default();
    let last = translator.translate(&cluster, &Dirty::default());
    let mut bench = Bench { cluster, translator, last, statuses: BTreeMap::new() };
    bench.add(BASE);
    for document in documents {
        bench.add(document);
    }
    bench
}

impl Bench {
    fn pass(&mut self, dirty: &Dirty) {
        self.last = self.translator.translate(&self.cluster, dirty);
        for write in &self.last.writes {
            let status =
                self.statuses.entry(format!("{}/{}", write.target.kind, write.target.name)).or_default();
            if let Change::Status { status: Value::Object(fields), .. } = &write.change {
                for (field, value) in fields {
                    status[field] = value.clone();
                }
            }
        }
    }

    fn add(&mut self, text: &str) {
        let mut dirty = Dirty::default();
        for parsed in parse_documents(text) {
            match parsed.unwrap() {
                Parsed::GatewayApi(object) => self.cluster.apply_gateway_api(*object, &mut dirty),
                Parsed::Service(object) => self.cluster.apply_service(object, &mut dirty),
                Parsed::Ingress(object) => self.cluster.apply_ingress(object, &mut dirty),
                Parsed::Namespace(object) => self.cluster.apply_namespace(object, &mut dirty),
                Parsed::Secret(object) => self.cluster.apply_secret(object, &mut dirty),
                Parsed::ConfigMap(object) => self.cluster.apply_config_map(object, &mut dirty),
                other => panic!("{other:?}"),
            }
        }
        self.pass(&dirty);
    }

    /// The definition of these objects says this of itself.
    fn define(&mut self, plural: &str, annotations: Value) {
        let definition = json!({ "metadata": {
            "name": format!("{plural}.gateway.networking.k8s.io"), "annotations": annotations,
        } });
        let definition = DefinitionObject::of(serde_json::from_value(definition).unwrap()).unwrap();
        let mut dirty = Dirty::default();
        self.cluster.apply_definition(definition, &mut dirty);
        self.pass(&dirty);
    }

    fn remove(&mut self, kind: Kind, namespace: &str, name: &str) {
        let mut dirty = Dirty::default();
        match kind {
            Kind::Ingress => self.cluster.remove_ingress(&Key::new(namespace, name), &mut dirty),
            Kind::Service => self.cluster.remove_service(&Key::new(namespace, name), &mut dirty),
            Kind::Secret => self.cluster.remove_secret(&Key::new(namespace, name), &mut dirty),
            Kind::ConfigMap => self.cluster.remove_config_map(&Key::new(namespace, name), &mut dirty),
            kind => self.cluster.remove_gateway_api(kind, &Key::new(namespace, name), &mut dirty),
        }
        self.pass(&dirty);
    }

    /// The API hands back a plain route with the status that was written.
    fn hand_back(&mut self, name: &str, hosts: &str) {
        let mut value: Value = serde_json::from_str(&plain(name, hosts)).unwrap();
        value["status"] = self.statuses[&format!("HTTPRoute/{name}")].clone();
        value["metadata"]["resourceVersion"] = "2".into();
        self.add(&value.to_string());
    }

    fn found(&self, port: u16, host: &str, path: &str) -> Option<Arc<Route>> {
        let listener = self.last.listeners.get(Scope { address: None, port })?;
        listener.routes.find(host, path).ok().cloned()
    }

    /// Which object serves this on port 80, as `kind/name`.
    fn at(&self, host: &str, path: &str) -> Option<String> {
        self.found(80, host, path).map(|route| format!("{}/{}", route.source.kind, route.source.name))
    }

    fn condition(&self, object: &str, pointer: &str, kind: &str) -> Option<(String, String)> {
        let all = self.statuses.get(object)?.pointer(pointer)?["conditions"].as_array()?;
        let condition = all.iter().find(|c| c["type"] == *kind)?;
        let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        Some((text("status"), text("reason")))
    }

    fn of_route(&self, name: &str, kind: &str) -> (String, String) {
        self.condition(&format!("HTTPRoute/{name}"), "/parents/0", kind).unwrap_or_default()
    }

    fn of_listener(&self, at: usize, kind: &str) -> (String, String) {
        self.condition("Gateway/gw", &format!("/listeners/{at}"), kind).unwrap_or_default()
    }
}

fn is(condition: (String, String), status: &str, reason: &str) {
    assert_eq!((&*condition.0, &*condition.1), (status, reason));
}

/// An HTTPRoute of the namespace shop; `spec` holds what is beside the parent.
fn route(name: &str, spec: &str) -> String {
    let mut spec: Value = serde_json::to_value(serde_yaml_like(spec)).unwrap();
    if spec["parentRefs"].is_null() {
        spec["parentRefs"] = json!([{ "name": "gw", "namespace": "infra" }]);
    }
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": { "name": name, "namespace": "shop", "generation": 1, "resourceVersion": "1" },
        "spec": spec,
    })
    .to_string()
}

fn serde_yaml_like(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

const WEB: &str = "backendRefs: [{name: web, port: 80}]";

/// A route for these hosts with one rule, all of which goes to `web`.
fn plain(name: &str, hosts: &str) -> String {
    route(name, &format!("{{hostnames: [{hosts}], rules: [{{{WEB}}}]}}"))
}

#[test]
fn a_route_is_served_where_its_listener_listens_and_nowhere_else() {
    let bench = bench(&[&plain("r", "a.example.com")]);
    assert_eq!(bench.at("a.example.com", "/x").as_deref(), Some("httproute/r"));
    assert_eq!(bench.at("b.example.com", "/x"), None);
    assert!(bench.found(443, "a.example.com", "/x").is_none());
    assert!(bench.last.routes.is_empty());
    is(bench.of_route("r", "Accepted"), "True", "Accepted");
    is(bench.of_route("r", "ResolvedRefs"), "True", "ResolvedRefs");
    is(bench.of_listener(0, "Programmed"), "True", "Programmed");
    is(bench.condition("Gateway/gw", "", "Programmed").unwrap(), "True", "Programmed");
    let gateway = &bench.statuses["Gateway/gw"];
    assert_eq!(gateway["listeners"][0]["attachedRoutes"], 1);
    assert_eq!(gateway["addresses"], json!([{ "type": "IPAddress", "value": "192.0.2.1" }]));
    assert_eq!(bench.last.gateway_route_counts, [1, 0, 0]);
}

#[test]
fn what_goes_is_gone_and_leaves_nothing_behind() {
    let mut bench = bench(&[&plain("r", "a.example.com")]);
    bench.remove(Kind::HttpRoute, "shop", "r");
    assert_eq!(bench.at("a.example.com", "/x"), None);
    assert_eq!(bench.statuses["Gateway/gw"]["listeners"][0]["attachedRoutes"], 0);
    assert_eq!(bench.last.gateway_route_counts, [0, 0, 0]);
    bench.add(&plain("r", "a.example.com"));
    bench.hand_back("r", "a.example.com");
    bench.remove(Kind::Gateway, "infra", "gw");
    assert!(bench.last.listeners.is_empty());
    assert_eq!(bench.statuses["HTTPRoute/r"]["parents"], json!([]));
    bench.add(BASE);
    assert_eq!(bench.at("a.example.com", "/x").as_deref(), Some("httproute/r"));
    bench.remove(Kind::GatewayClass, "", "tak-os");
    assert!(bench.last.listeners.is_empty());
    let api = &bench.translator.gateway_api;
    assert!(api.by_service.is_empty() && api.attached.is_empty() && api.composed.is_empty());
    assert!(api.rivals.is_empty());
}

#[test]
fn a_backend_that_does_not_resolve_fails_its_share_and_says_so() {
    for (name, reference, reason) in [
        ("missing", "{name: nobody, port: 80}", "BackendNotFound"),
        ("port", "{name: web, port: 99}", "BackendNotFound"),
        ("portless", "{name: web}", "BackendNotFound"),
        ("kind", "{name: web, kind: Bucket, group: x.y, port: 80}", "InvalidKind"),
        ("grant", "{name: web, namespace: other, port: 80}", "RefNotPermitted"),
    ] {
        let refs = format!("rules: [{{backendRefs: [{{name: web, port: 80}}, {reference}]}}]");
        let bench = bench(&[&route(name, &refs)]);
        let found = bench.found(80, "any.example.com", "/").unwrap();
        let backends = found.actions.as_ref().unwrap().backends.as_ref().unwrap();
        let broken = |at: usize| {
            backends.entries()[at].backend.address == BackendAddress::Unavailable(Unavailable::Broken)
        };
        assert!(!broken(0) && broken(1), "{name}");
        is(bench.of_route(name, "ResolvedRefs"), "False", reason);
        is(bench.of_route(name, "Accepted"), "True", "Accepted");
    }
    let bench = bench(&[&route("none", "rules: [{}]")]);
    let found = bench.found(80, "any.example.com", "/").unwrap();
    assert_eq!(found.backend.address, BackendAddress::Unavailable(Unavailable::Broken));
}

#[test]
fn a_service_that_comes_later_and_a_grant_are_taken_up() {
    let refs = "rules: [{backendRefs: [{name: late, namespace: other, port: 80}]}]";
    let mut bench = bench(&[&route("r", refs)]);
    is(bench.of_route("r", "ResolvedRefs"), "False", "RefNotPermitted");
    bench.add(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: g, namespace: other}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}]
  to: [{group: '', kind: Service}]",
    );
    is(bench.of_route("r", "ResolvedRefs"), "False", "BackendNotFound");
    bench.add("{apiVersion: v1, kind: Service, metadata: {name: late, namespace: other}, spec: {ports: [{port: 80}]}}");
    is(bench.of_route("r", "ResolvedRefs"), "True", "ResolvedRefs");
    let address = |bench: &Bench| bench.found(80, "x.example.com", "/").unwrap().backend.address.clone();
    assert!(
        matches!(address(&bench), BackendAddress::Name(name, 80) if &*name == "late.other.svc.cluster.local.")
    );
    bench.remove(Kind::ReferenceGrant, "other", "g");
    assert_eq!(address(&bench), BackendAddress::Unavailable(Unavailable::Broken));
}

#[test]
fn weights_are_kept_as_they_are_written() {
    let refs =
        "rules: [{backendRefs: [{name: web, port: 80, weight: 0}, {name: web, port: 81, weight: 1000000}]}]";
    let bench = bench(&[&route("w", refs)]);
    let found = bench.found(80, "x.example.com", "/").unwrap();
    let weighted = found.actions.as_ref().unwrap().backends.as_ref().unwrap();
    assert_eq!(weighted.entries().iter().map(|e| e.weight).collect::<Vec<_>>(), [0, 1_000_000]);
    assert_eq!(weighted.entries()[1].backend.protocol, ingress_core::BackendProtocol::H2c);
    let only = bench_with("rules: [{backendRefs: [{name: web, port: 80, weight: 0}]}]");
    let found = only.found(80, "x.example.com", "/").unwrap();
    assert!(found.actions.as_ref().unwrap().backends.as_ref().unwrap().pick(7).is_none());
}

fn bench_with(spec: &str) -> Bench {
    bench(&[&route("r", spec)])
}

#[test]
fn a_match_that_cannot_be_honoured_installs_nothing() {
    let unsupported = "{path: {type: Glob, value: /a*}}";
    let none = bench_with(&format!("rules: [{{matches: [{unsupported}], {WEB}}}]"));
    assert_eq!(none.at("x.example.com", "/"), None);
    is(none.of_route("r", "Accepted"), "False", "UnsupportedValue");
    let part = bench_with(&format!("rules: [{{matches: [{unsupported}, {{path: {{value: /b}}}}], {WEB}}}]"));
    assert_eq!(part.at("x.example.com", "/"), None);
    assert!(part.at("x.example.com", "/b").is_some());
    is(part.of_route("r", "Accepted"), "True", "Accepted");
    is(part.of_route("r", "PartiallyInvalid"), "True", "UnsupportedValue");
    for bad in [
        "{headers: [{name: 'a b', value: x}]}",
        "{headers: [{type: RegularExpression, name: a, value: '('}]}",
        "{queryParams: [{type: Glob, name: a, value: x}]}",
        "{method: 'A B'}",
        "{header: [{name: a, value: x}]}",
        "{path: {value: /, typ: Exact}}",
        "{headers: [{name: a, value: x, kind: Exact}]}",
        "{queryParams: [{name: a, value: x, later: y}]}",
    ] {
        let bench = bench_with(&format!("rules: [{{matches: [{bad}], {WEB}}}]"));
        assert_eq!(bench.at("x.example.com", "/"), None, "{bad}");
        assert!(
            bench
                .last
                .outcomes
                .iter()
                .any(|o| o.findings.iter().any(|f| f.reason == Reason::UnsupportedMatch))
        );
    }
}

#[test]
fn a_match_of_calls_that_cannot_be_honoured_installs_nothing() {
    for (bad, at) in [
        ("{method: {type: Glob, service: a}}", ".method"),
        ("{method: {service: a, name: B}}", ".method"),
        ("{method: {method: 'a/b'}}", ".method"),
        ("{header: [{name: a, value: x}]}", ""),
        ("{headers: [{name: 'a b', value: x}]}", ".headers"),
        ("{headers: [{name: a, value: x, kind: Exact}]}", ".headers"),
    ] {
        let of = |matches: &str| {
            let rules = format!("rules: [{{matches: [{matches}], {WEB}}}]");
            bench(&[&route("g", &rules).replace("HTTPRoute", "GRPCRoute")])
        };
        let condition = |bench: &Bench, kind| bench.condition("GRPCRoute/g", "/parents/0", kind);
        let none = of(bad);
        assert_eq!(none.at("x.example.com", "/a/B"), None, "{bad}");
        is(condition(&none, "Accepted").unwrap(), "False", "UnsupportedValue");
        let findings: Vec<_> = none.last.outcomes.iter().flat_map(|o| o.findings.iter()).collect();
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(findings[0].reason, Reason::UnsupportedMatch);
        assert_eq!(*findings[0].field, *format!("spec.rules[0].matches[0]{at}"));
        let part = of(&format!("{bad}, {{method: {{service: good}}}}"));
        assert_eq!(part.at("x.example.com", "/a/B"), None, "{bad}");
        assert!(part.at("x.example.com", "/good/Any").is_some());
        is(condition(&part, "PartiallyInvalid").unwrap(), "True", "UnsupportedValue");
    }
}

#[test]
fn a_filter_or_limit_that_cannot_be_honoured_answers_500() {
    for bad in [
        "filters: [{type: ExtensionRef}]",
        "timeouts: {request: soon}",
        "filters: [{type: RequestRedirect, requestRedirect: {scheme: ftp}}]",
    ] {
        let bench = bench_with(&format!("rules: [{{{bad}, {WEB}}}]"));
        let found = bench.found(80, "x.example.com", "/").unwrap();
        assert!(found.actions.as_ref().unwrap().filters.contains(&ingress_core::Filter::Fail), "{bad}");
        is(bench.of_route("r", "Accepted"), "False", "UnsupportedValue");
    }
}

#[test]
fn wildcards_of_a_gateway_stand_for_one_label_or_more() {
    let bench = bench(&[&plain("r", "'*.example.com'")]);
    assert!(bench.at("a.example.com", "/").is_some() && bench.at("a.b.example.com", "/").is_some());
    assert!(bench.at("example.com", "/").is_none());
}

/// A Gateway `gw` with these listeners.
fn gateway(listeners: &str) -> String {
    format!(
        "{{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, \
         metadata: {{name: gw, namespace: infra, generation: 2, resourceVersion: '2'}}, \
         spec: {{gatewayClassName: tak-os, listeners: [{listeners}]}}}}"
    )
}

const ALL: &str = "allowedRoutes: {namespaces: {from: All}}";

#[test]
fn the_most_specific_listener_alone_takes_a_host() {
    let listeners = format!(
        "{{name: any, port: 80, protocol: HTTP, {ALL}}}, \
         {{name: wild, port: 80, protocol: HTTP, hostname: '*.example.com', {ALL}}}, \
         {{name: deep, port: 80, protocol: HTTP, hostname: '*.foo.example.com', {ALL}}}, \
         {{name: one, port: 80, protocol: HTTP, hostname: abc.foo.example.com, {ALL}}}"
    );
    let of = |section: &str| {
        let parent = format!("parentRefs: [{{name: gw, namespace: infra, sectionName: {section}}}]");
        route(
            section,
            &format!("{{{parent}, rules: [{{matches: [{{path: {{value: /{section}}}}}], {WEB}}}]}}"),
        )
    };
    let mut bench = bench(&[&gateway(&listeners), &of("any"), &of("wild"), &of("deep"), &of("one")]);
    for (host, section) in [
        ("bar.com", "any"),
        ("bar.example.com", "wild"),
        ("bar.foo.example.com", "deep"),
        ("abc.foo.example.com", "one"),
    ] {
        for path in ["any", "wild", "deep", "one"] {
            let found = bench.at(host, &format!("/{path}"));
            assert_eq!(found.is_some(), path == section, "{host}/{path}: {found:?}");
        }
    }
    // a listener without routes keeps its hosts to itself
    bench.remove(Kind::HttpRoute, "shop", "deep");
    assert_eq!(bench.at("bar.foo.example.com", "/wild"), None);
    assert!(bench.at("bar.example.com", "/wild").is_some());
}

#[test]
fn a_route_attaches_where_its_parent_ref_says() {
    let listeners = format!(
        "{{name: a, port: 80, protocol: HTTP, hostname: a.example.com, {ALL}}}, \
         {{name: b, port: 80, protocol: HTTP, hostname: b.example.com}}"
    );
    for (parent, hosts, status, reason) in [
        ("sectionName: a", "", "True", "Accepted"),
        ("sectionName: c", "", "False", "NoMatchingParent"),
        ("port: 81", "", "False", "NoMatchingParent"),
        ("sectionName: a, port: 443", "", "False", "NoMatchingParent"),
        ("sectionName: b", "", "False", "NotAllowedByListeners"),
        ("sectionName: a", "b.example.com", "False", "NoMatchingListenerHostname"),
    ] {
        let spec = format!(
            "{{parentRefs: [{{name: gw, namespace: infra, {parent}}}], hostnames: [{hosts}], rules: [{{{WEB}}}]}}"
        );
        let bench = bench(&[&gateway(&listeners), &route("r", &spec)]);
        is(bench.of_route("r", "Accepted"), status, reason);
        assert_eq!(bench.at("a.example.com", "/").is_some(), status == "True", "{parent}");
        assert_eq!(bench.at("b.example.com", "/"), None);
        let attached = bench.statuses["Gateway/gw"]["listeners"][0]["attachedRoutes"].as_i64();
        assert_eq!(attached, Some(i64::from(status == "True")), "{parent}");
    }
}

#[test]
fn namespaces_attach_by_their_labels_as_these_change() {
    let selector = "allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {open: 'yes'}}}}";
    let listener = format!("{{name: a, port: 80, protocol: HTTP, {selector}}}");
    let mut bench = bench(&[&gateway(&listener), &plain("r", "a.example.com")]);
    is(bench.of_route("r", "Accepted"), "False", "NotAllowedByListeners");
    bench.add("{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {open: 'yes'}}}");
    is(bench.of_route("r", "Accepted"), "True", "Accepted");
    assert!(bench.at("a.example.com", "/").is_some());
    bench.add("{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {open: 'no'}}}");
    assert_eq!(bench.at("a.example.com", "/"), None);
}

#[test]
fn listeners_that_are_not_supported_say_why_and_others_go_on() {
    for (listener, condition, reason) in [
        ("port: 8080, protocol: HTTP", "Accepted", "PortUnavailable"),
        ("port: 443, protocol: HTTP", "Accepted", "PortUnavailable"),
        ("port: 80, protocol: HTTPS", "Accepted", "PortUnavailable"),
        ("port: 81, protocol: TCP", "Accepted", "UnsupportedProtocol"),
        ("port: 80, protocol: TCP", "Accepted", "ProtocolConflict"),
        ("port: 443, protocol: HTTPS, tls: {mode: Passthrough}", "Accepted", "UnsupportedValue"),
        ("port: 443, protocol: HTTPS", "ResolvedRefs", "InvalidCertificateRef"),
        (
            "port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: nope}]}",
            "ResolvedRefs",
            "InvalidCertificateRef",
        ),
        (
            "port: 443, protocol: HTTPS, tls: {certificateRefs: [{kind: ConfigMap, name: nope}]}",
            "ResolvedRefs",
            "InvalidCertificateRef",
        ),
        (
            "port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: nope, namespace: other}]}",
            "ResolvedRefs",
            "RefNotPermitted",
        ),
        (
            "port: 80, protocol: HTTP, hostname: h.example.com, allowedRoutes: {kinds: [{kind: TCPRoute}]}",
            "ResolvedRefs",
            "InvalidRouteKinds",
        ),
    ] {
        // whoever wants may attach to it, and somebody does
        let all = if listener.contains("allowedRoutes") { "" } else { ALL };
        let listeners = format!(
            "{{name: good, port: 80, protocol: HTTP, hostname: a.example.com, {ALL}}}, {{name: bad, {listener}, {all}}}"
        );
        let spec =
            format!("{{parentRefs: [{{name: gw, namespace: infra, sectionName: bad}}], rules: [{{{WEB}}}]}}");
        let listeners = listeners.replace(", }", "}");
        let bench = bench(&[&gateway(&listeners), &plain("r", "a.example.com"), &route("to-bad", &spec)]);
        is(bench.of_listener(1, condition), "False", reason);
        let programmed = if reason == "ProtocolConflict" { reason } else { "Invalid" };
        is(bench.of_listener(1, "Programmed"), "False", programmed);
        is(bench.of_listener(0, "Programmed"), "True", "Programmed");
        assert_eq!(bench.at("a.example.com", "/").as_deref(), Some("httproute/r"), "{listener}");
        for port in [80, 81, 443, 8080] {
            assert!(bench.found(port, "h.example.com", "/").is_none(), "{listener} on {port}");
        }
        assert_eq!(bench.last.gateway_route_counts, [1, 0, 0], "{listener}");
    }
}

#[test]
fn a_listener_never_asks_for_a_certificate() {
    let listeners = "{name: a, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: nope}]}}";
    let annotated = gateway(listeners)
        .replace("generation: 2", "annotations: {cert-manager.io/cluster-issuer: le}, generation: 2");
    let bench = bench(&[&annotated]);
    assert!(!bench.last.writes.is_empty());
    assert!(bench.last.writes.iter().all(|write| write.target.kind == "Gateway"), "{:?}", bench.last.writes);
}

#[test]
fn a_foreign_class_is_left_alone() {
    let class = BASE.replace("tak-os.org/gateway-controller", "example.com/other");
    let bench = bench(&[&class, &plain("r", "a.example.com")]);
    assert!(bench.last.listeners.is_empty());
    let mut fresh = Translator::with_clock(Settings::default(), || 0);
    let writes = fresh.translate(&bench.cluster, &Dirty::everything()).writes;
    assert!(writes.is_empty(), "{writes:?}");
}

fn ingress(name: &str, created: &str, host: &str) -> String {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": { "name": name, "namespace": "shop", "creationTimestamp": created },
        "spec": { "ingressClassName": "tak-os", "rules": [{ "host": host, "http": { "paths": [
            { "path": "/", "pathType": "Prefix", "backend": { "service": { "name": "web", "port": { "number": 80 } } } }
        ] } }] },
    })
    .to_string()
}

#[test]
fn of_an_ingress_and_a_route_the_older_one_serves_and_the_other_takes_over() {
    let dated = |created: &str| {
        let mut value: Value = serde_json::from_str(&plain("r", "a.example.com")).unwrap();
        value["metadata"]["creationTimestamp"] = created.into();
        value.to_string()
    };
    let (early, late) = ("2020-01-01T00:00:00Z", "2021-01-01T00:00:00Z");
    for (of_ingress, of_route, winner, loser) in
        [(early, late, "ingress/i", "httproute/r"), (late, early, "httproute/r", "ingress/i")]
    {
        for ingress_first in [true, false] {
            let mut objects = [ingress("i", of_ingress, "a.example.com"), dated(of_route)];
            if !ingress_first {
                objects.reverse();
            }
            let mut bench = bench(&[]);
            let mut told = Vec::new();
            for object in &objects {
                bench.add(object);
                told.extend(
                    bench
                        .last
                        .outcomes
                        .iter()
                        .flat_map(|o| o.findings.iter().map(|f| (o.source.to_string(), f.reason))),
                );
            }
            assert_eq!(bench.at("a.example.com", "/").as_deref(), Some(winner));
            assert!(
                told.iter()
                    .any(|(o, r)| *r == Reason::HostPathTaken
                        && o.starts_with(loser.split_once('/').unwrap().0)),
                "{told:?}"
            );
            if winner.starts_with("ingress") {
                bench.remove(Kind::Ingress, "shop", "i");
            } else {
                bench.remove(Kind::HttpRoute, "shop", "r");
            }
            assert_eq!(bench.at("a.example.com", "/").as_deref(), Some(loser));
        }
    }
}

#[test]
fn what_an_ingress_serves_stays_as_it_is_when_gateways_appear() {
    let ingresses = [
        ingress("one", "2020-01-01T00:00:00Z", "one.example.com"),
        ingress("wild", "2020-01-01T00:00:00Z", "*.wild.example.com"),
        ingress("any", "2020-01-01T00:00:00Z", ""),
    ];
    let mut bench = bench(&[]);
    bench.remove(Kind::Gateway, "infra", "gw");
    for object in &ingresses {
        bench.add(object);
    }
    let hosts = ["one.example.com", "a.wild.example.com", "x.y"];
    let own: Vec<_> = hosts.iter().map(|h| bench.last.routes.find(h, "/").ok().cloned()).collect();
    // a listener, also for a host of the wildcard, without any route
    let listeners = format!(
        "{{name: a, port: 80, protocol: HTTP, {ALL}}}, \
         {{name: b, port: 80, protocol: HTTP, hostname: a.wild.example.com, {ALL}}}"
    );
    bench.add(&gateway(&listeners));
    for (host, own) in hosts.iter().zip(&own) {
        assert_eq!(bench.found(80, host, "/"), *own, "{host}");
    }
    // of a wildcard, one label is the older Ingress's too, and more are the Gateway's alone
    let mut younger: Value = serde_json::from_str(&plain("r", "'*.wild.example.com'")).unwrap();
    younger["metadata"]["creationTimestamp"] = "2021-01-01T00:00:00Z".into();
    bench.add(&younger.to_string());
    assert_eq!(bench.at("z.wild.example.com", "/").as_deref(), Some("ingress/wild"));
    assert_eq!(bench.at("y.z.wild.example.com", "/").as_deref(), Some("httproute/r"));
    // and what changes later on shows there too
    bench.remove(Kind::Ingress, "shop", "wild");
    assert_eq!(bench.at("z.wild.example.com", "/").as_deref(), Some("httproute/r"));
}

#[test]
fn nothing_is_written_when_nothing_changes() {
    let mut bench = bench(&[&plain("r", "a.example.com")]);
    bench.hand_back("r", "a.example.com");
    assert!(bench.last.writes.iter().all(|w| w.change == Change::Nothing), "{:?}", bench.last.writes);
    assert!(!bench.last.changed);
    let before = bench.last.listeners.clone();
    bench.pass(&Dirty::default());
    assert!(bench.last.writes.is_empty() && !bench.last.changed);
    assert!(Arc::ptr_eq(&before, &bench.last.listeners));
}

#[test]
fn every_condition_carries_the_generation_that_was_looked_at() {
    let mut bench = bench(&[&plain("r", "a.example.com")]);
    for generation in [2, 3, 4] {
        let mut value: Value = serde_json::from_str(&plain("r", "a.example.com")).unwrap();
        value["metadata"]["generation"] = generation.into();
        value["metadata"]["resourceVersion"] = generation.to_string().into();
        value["status"] = bench.statuses["HTTPRoute/r"].clone();
        bench.add(&value.to_string());
        let parents = &bench.statuses["HTTPRoute/r"]["parents"];
        for condition in parents[0]["conditions"].as_array().unwrap() {
            assert_eq!(condition["observedGeneration"], generation);
        }
    }
}

#[test]
fn calls_go_by_service_and_method() {
    let grpc = "
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: g, namespace: shop}
spec:
  parentRefs: [{name: gw, namespace: infra}]
  hostnames: [g.example.com]
  rules:
  - matches: [{method: {service: pkg.Svc, method: Get}}, {method: {method: Ping}}, {method: {service: pkg.All}}]
    backendRefs: [{name: web, port: 80}]
";
    let bench = bench(&[grpc]);
    for (path, found) in [
        ("/pkg.Svc/Get", true),
        ("/pkg.Svc/Put", false),
        ("/any.Thing/Ping", true),
        ("/any.Thing/Ping/x", false),
        ("/pkg.All/Whatever", true),
    ] {
        assert_eq!(bench.at("g.example.com", path).is_some(), found, "{path}");
    }
    let route = bench.found(80, "g.example.com", "/pkg.Svc/Get").unwrap();
    assert_eq!(route.backend.protocol, ingress_core::BackendProtocol::Grpc);
}

#[test]
fn each_gateway_has_an_address_and_keeps_it() {
    let addresses = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|a| a.parse().unwrap());
    let mut bench = bench_of(Settings { gateway_addresses: addresses.into(), ..Settings::default() }, &[]);
    let gateway = |name: &str, created: u32, asked: &str, status: Value| {
        let metadata = json!({
            "name": name, "namespace": "infra", "generation": 1, "resourceVersion": status.to_string(),
            "creationTimestamp": format!("2026-01-01T00:00:{created:02}Z"),
        });
        let addresses = Vec::from_iter((!asked.is_empty()).then(|| json!({ "value": asked })));
        let listeners = json!([{ "name": "http", "port": 80, "protocol": "HTTP" }]);
        let spec = json!({ "gatewayClassName": "tak-os", "addresses": addresses, "listeners": listeners });
        let api = "gateway.networking.k8s.io/v1";
        json!({ "apiVersion": api, "kind": "Gateway", "metadata": metadata, "spec": spec, "status": status })
            .to_string()
    };
    let of = |bench: &Bench, name: &str| {
        bench.statuses[&format!("Gateway/{name}")]["addresses"][0]["value"].as_str().unwrap().to_owned()
    };
    let all = |bench: &Bench| ["a", "b", "c"].map(|name| of(bench, name)[8..].to_owned());
    // gw of the base, without a time, is the oldest
    for (name, created) in [("a", 1), ("b", 2), ("c", 3)] {
        bench.add(&gateway(name, created, "", Value::Null));
    }
    assert_eq!(of(&bench, "gw"), "192.0.2.1");
    assert_eq!(all(&bench), ["2", "3", "1"], "the fourth shares with the first");
    bench.add(&gateway("f", 0, "", Value::Null));
    assert_eq!(all(&bench), ["2", "3", "1"], "also before the API has told what was written");
    bench.remove(Kind::Gateway, "infra", "f");
    // who asks has it, and who is told stays although an older one is gone
    for (name, created) in [("a", 1), ("b", 2), ("c", 3)] {
        let status = bench.statuses[&format!("Gateway/{name}")].clone();
        bench.add(&gateway(name, created, "", status));
    }
    bench.remove(Kind::Gateway, "infra", "gw");
    bench.add(&gateway("d", 0, "192.0.2.2", Value::Null));
    assert_eq!((all(&bench), of(&bench, "d")), (["2", "3", "1"].map(String::from), "192.0.2.2".into()));
    bench.remove(Kind::Gateway, "infra", "a");
    bench.add(&gateway("e", 9, "", Value::Null));
    assert_eq!(of(&bench, "e"), "192.0.2.1", "each has one other by now");
    // what another Pod wrote counts, else the Pods would serve it at two addresses
    bench.add(&gateway("e", 9, "", json!({ "addresses": [{ "type": "IPAddress", "value": "192.0.2.3" }] })));
    let write = bench.last.writes.iter().find(|write| &*write.target.name == "e").unwrap();
    assert!(
        matches!(&write.change, Change::Status { status, .. } if status["addresses"].is_null()),
        "{write:?}"
    );
    bench.add(&gateway("b", 2, "192.0.2.9", Value::Null));
    let (status, reason) = bench.condition("Gateway/b", "", "Programmed").unwrap();
    assert_eq!((&*status, &*reason), ("False", "AddressNotUsable"));
}
mod client_certificates;
mod conditions;
mod gateways;
mod listener_sets;
mod losses;
mod order;
mod rivals;
mod tls_routes;

#[test]
fn a_class_says_whether_the_installed_release_is_the_supported_one() {
    let mut bench = bench(&[]);
    let says = |bench: &Bench| bench.condition("GatewayClass/tak-os", "", "SupportedVersion");
    let standard = |bundle: &str| {
        json!({
            "gateway.networking.k8s.io/bundle-version": bundle, "gateway.networking.k8s.io/channel": "standard",
        })
    };
    assert_eq!(says(&bench), None, "of definitions that nobody lets us read nothing is said");
    bench.define("gateways", standard("v1.6.3"));
    bench.define("httproutes", standard("v1.6.0-rc.1"));
    is(says(&bench).unwrap(), "True", "SupportedVersion");
    let others = [standard("v1.7.0"), standard("v1.60.0"), standard("v1.5.1"), standard("main"), json!({})];
    for other in others {
        bench.define("gateways", other.clone());
        is(says(&bench).unwrap(), "False", "UnsupportedVersion");
        is(bench.condition("GatewayClass/tak-os", "", "Accepted").unwrap(), "True", "Accepted");
        bench.define("gateways", standard("v1.6.3"));
        is(says(&bench).unwrap(), "True", "SupportedVersion");
    }
    // the same again is no news
    bench.define("gateways", standard("v1.6.3"));
    assert!(bench.last.writes.is_empty());
}

#[test]
fn retries_are_promised_where_routes_can_ask_for_them() {
    let mut bench = bench(&[]);
    let promised = |bench: &Bench| {
        let all = bench.statuses["GatewayClass/tak-os"]["supportedFeatures"].as_array().unwrap().clone();
        all.iter().filter(|f| f["name"].as_str().unwrap().starts_with("HTTPRouteRetry")).count()
    };
    let channel = |channel: &str| json!({ "gateway.networking.k8s.io/channel": channel });
    bench.define("gateways", channel("experimental"));
    assert_eq!(promised(&bench), 0);
    bench.define("httproutes", channel("experimental"));
    assert_eq!(promised(&bench), 3);
    bench.define("httproutes", channel("standard"));
    assert_eq!(promised(&bench), 0);
}
