//! ListenerSets: who may add listeners, what they come to beside those of the Gateway, and what routes get there.

use super::*;
use crate::cluster::gateway::{GatewayApi, GatewayObject, ListenerSetObject};

/// A Gateway `gw` with one listener, for `gw.example.com`, that lets these ListenerSets in.
fn open(allowed: &str) -> String {
    let own = format!("{{name: own, port: 80, protocol: HTTP, hostname: gw.example.com, {ALL}}}");
    let mut value: Value = serde_yaml_like(&gateway(&own));
    value["spec"]["allowedListeners"] = serde_yaml_like(allowed);
    value.to_string()
}

const EVERYWHERE: &str = "{namespaces: {from: All}}";

/// A ListenerSet for `gw`, of 2020 and as many seconds.
fn set(place: &str, seconds: u8, listeners: &str) -> String {
    let (namespace, name) = place.split_once('/').unwrap();
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
        "metadata": { "name": name, "namespace": namespace, "generation": 1, "resourceVersion": "1",
                      "creationTimestamp": format!("2020-01-01T00:00:{seconds:02}Z") },
        "spec": { "parentRef": { "name": "gw", "namespace": "infra" },
                  "listeners": serde_yaml_like(&format!("[{listeners}]")) },
    })
    .to_string()
}

fn http(name: &str, host: &str) -> String {
    format!("{{name: {name}, port: 80, protocol: HTTP, hostname: '{host}', {ALL}}}")
}

/// A route of this name and namespace with these parents; all of the path of its name goes to `web`.
fn child(place: &str, parents: &str) -> String {
    let (namespace, name) = place.split_once('/').unwrap();
    let rule = format!("{{matches: [{{path: {{value: /{name}}}}}], backendRefs: [{{name: web, port: 80}}]}}");
    let mut value: Value =
        serde_yaml_like(&route(name, &format!("{{parentRefs: [{parents}], rules: [{rule}]}}")));
    value["metadata"]["namespace"] = namespace.into();
    value.to_string()
}

fn of_set(name: &str) -> String {
    format!("{{kind: ListenerSet, group: gateway.networking.k8s.io, name: {name}, namespace: shop}}")
}

const GATEWAY: &str = "{name: gw, namespace: infra}";

fn namespace(name: &str, labels: &str) -> String {
    format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}, labels: {{{labels}}}}}}}")
}

impl Bench {
    fn of_set(&self, name: &str, kind: &str) -> (String, String) {
        self.condition(&format!("ListenerSet/{name}"), "", kind).unwrap_or_default()
    }

    fn of_entry(&self, name: &str, at: usize, kind: &str) -> (String, String) {
        self.condition(&format!("ListenerSet/{name}"), &format!("/listeners/{at}"), kind).unwrap_or_default()
    }

    /// How many the Gateway says that it has, once it has seen its own status.
    fn attached_sets(&mut self) -> i64 {
        let known = self.cluster.gateways.get(&Key::new("infra", "gw")).unwrap();
        let mut object = GatewayObject::clone(known);
        object.meta.status = self.statuses["Gateway/gw"].to_string().into();
        let mut dirty = Dirty::default();
        self.cluster.apply_gateway_api(GatewayApi::Gateway(object), &mut dirty);
        self.pass(&dirty);
        self.statuses["Gateway/gw"]["attachedListenerSets"].as_i64().unwrap_or_default()
    }

    /// The API hands back a set of the namespace shop with the status that was written.
    fn hand_back_set(&mut self, name: &str) {
        let known = self.cluster.listener_sets.get(&Key::new("shop", name)).unwrap();
        let mut object = ListenerSetObject::clone(known);
        object.meta.status = self.statuses[&format!("ListenerSet/{name}")].to_string().into();
        let mut dirty = Dirty::default();
        self.cluster.apply_gateway_api(GatewayApi::ListenerSet(object), &mut dirty);
        self.pass(&dirty);
    }

    fn routes_of(&self, set: &str, at: usize) -> i64 {
        self.statuses[&format!("ListenerSet/{set}")]["listeners"][at]["attachedRoutes"].as_i64().unwrap()
    }

    /// A translation from nothing comes to the same.
    fn agrees(&self) {
        let settings = Settings { publish_addresses: vec!["192.0.2.1".into()], ..Settings::default() };
        let mut fresh = Translator::with_clock(settings, || 1_000);
        let fresh = fresh.translate(&self.cluster, &Dirty::everything());
        assert_eq!(fresh.listeners, self.last.listeners);
        for write in &fresh.writes {
            let Change::Status { status: Value::Object(fields), .. } = &write.change else { continue };
            let known = &self.statuses[&format!("{}/{}", write.target.kind, write.target.name)];
            for (field, value) in fields {
                assert_eq!(known[field], *value, "{} of {}", field, write.target);
            }
        }
    }
}

#[test]
fn a_gateway_says_from_where_listeners_may_be_added() {
    let selector = "{namespaces: {from: Selector, selector: {matchLabels: {open: 'yes'}}}}";
    for (allowed, place, admitted) in [
        ("null", "infra/s", false),
        ("{}", "infra/s", false),
        ("{namespaces: {}}", "infra/s", false),
        ("{namespaces: {from: None}}", "infra/s", false),
        ("{namespaces: {from: Same}}", "infra/s", true),
        ("{namespaces: {from: Same}}", "shop/s", false),
        (selector, "shop/s", true),
        (selector, "other/s", false),
        (selector, "unlabelled/s", false),
        ("{namespaces: {from: Selector}}", "shop/s", false),
        ("{namespaces: {from: Later}}", "infra/s", false),
        (EVERYWHERE, "shop/s", true),
    ] {
        let (of, _) = place.split_once('/').unwrap();
        let parent = format!("{{kind: ListenerSet, name: s, namespace: {of}}}");
        let mut bench = bench(&[
            &namespace("shop", "open: 'yes'"),
            &namespace("other", "open: 'no'"),
            &open(allowed),
            &set(place, 0, &http("l", "s.example.com")),
            &child("shop/r", &parent),
        ]);
        let told = bench.last.outcomes.iter().any(|o| o.source.kind == Kind::HttpRoute);
        if admitted {
            is(bench.of_set("s", "Accepted"), "True", "Accepted");
            is(bench.of_set("s", "Programmed"), "True", "Programmed");
            for kind in ["Accepted", "ResolvedRefs", "Programmed"] {
                is(bench.of_entry("s", 0, kind), "True", kind);
            }
            is(bench.of_route("r", "Accepted"), "True", "Accepted");
        } else {
            is(bench.of_set("s", "Accepted"), "False", "NotAllowed");
            is(bench.of_set("s", "Programmed"), "False", "NotAllowed");
            is(bench.of_route("r", "Accepted"), "False", "NoMatchingParent");
        }
        assert_eq!(told, !admitted, "{allowed} {place}");
        assert_eq!(bench.attached_sets(), i64::from(admitted), "{allowed} {place}");
        assert_eq!(bench.at("s.example.com", "/r").is_some(), admitted, "{allowed} {place}");
        is(bench.condition("Gateway/gw", "", "Accepted").unwrap(), "True", "Accepted");
        bench.agrees();
    }
}

#[test]
fn sets_come_and_go_with_the_labels_of_their_namespace() {
    let selector = "{namespaces: {from: Selector, selector: {matchLabels: {open: 'yes'}}}}";
    let mut bench = bench(&[
        &open(selector),
        &set("shop/s", 0, &http("l", "s.example.com")),
        &child("shop/r", &of_set("s")),
    ]);
    for (labels, admitted) in [("open: 'yes'", true), ("open: 'no'", false), ("open: 'yes'", true)] {
        bench.add(&namespace("shop", labels));
        assert_eq!(bench.at("s.example.com", "/r").is_some(), admitted);
        assert_eq!(bench.attached_sets(), i64::from(admitted));
        bench.agrees();
    }
}

#[test]
fn of_listeners_for_one_host_the_gateways_is_served_then_the_one_of_the_older_set() {
    let mut bench = bench(&[
        &open(EVERYWHERE),
        &set("shop/first", 1, &[http("a", "a.example.com"), http("gw", "gw.example.com")].join(", ")),
        &set("shop/only-gw", 2, &http("gw", "gw.example.com")),
        &set("shop/second", 3, &[http("b", "b.example.com"), http("a", "a.example.com")].join(", ")),
        // as old as `second`: the name decides
        &set("shop/third", 3, &http("b", "b.example.com")),
        &child("shop/r1", &of_set("first")),
        &child("shop/r2", &of_set("second")),
        &child("shop/r3", &of_set("third")),
    ]);
    let conflicted = |bench: &Bench, set: &str, at: usize| {
        is(bench.of_entry(set, at, "Accepted"), "False", "HostnameConflict");
        is(bench.of_entry(set, at, "Programmed"), "False", "HostnameConflict");
        is(bench.of_entry(set, at, "Conflicted"), "True", "HostnameConflict");
    };
    for (name, at) in [("first", 1), ("only-gw", 0), ("second", 1), ("third", 0)] {
        conflicted(&bench, name, at);
    }
    for name in ["first", "second"] {
        is(bench.of_set(name, "Accepted"), "True", "ListenersNotValid");
        is(bench.of_set(name, "Programmed"), "True", "Programmed");
        is(bench.of_entry(name, 0, "Programmed"), "True", "Programmed");
        is(bench.of_entry(name, 0, "Conflicted"), "False", "NoConflicts");
    }
    for name in ["only-gw", "third"] {
        is(bench.of_set(name, "Accepted"), "False", "ListenersNotValid");
        is(bench.of_set(name, "Programmed"), "False", "ListenersNotValid");
    }
    assert_eq!(bench.attached_sets(), 2);
    is(bench.of_listener(0, "Programmed"), "True", "Programmed");
    assert_eq!(bench.at("gw.example.com", "/r1"), None);
    assert!(bench.at("a.example.com", "/r1").is_some() && bench.at("a.example.com", "/r2").is_none());
    assert!(bench.at("b.example.com", "/r2").is_some() && bench.at("b.example.com", "/r3").is_none());
    bench.agrees();
    // what was first goes, and the next one has it
    bench.remove(Kind::ListenerSet, "shop", "first");
    assert!(bench.at("a.example.com", "/r2").is_some() && bench.at("a.example.com", "/r1").is_none());
    is(bench.of_set("second", "Accepted"), "True", "Accepted");
    bench.remove(Kind::ListenerSet, "shop", "second");
    assert!(bench.at("b.example.com", "/r3").is_some() && bench.at("b.example.com", "/r2").is_none());
    assert_eq!(bench.attached_sets(), 1);
    bench.agrees();
}

#[test]
fn a_port_has_the_protocol_of_who_came_first() {
    let tcp = "{name: tcp, port: 80, protocol: TCP}";
    let mut bench = bench(&[
        &open(EVERYWHERE),
        &set("shop/part", 1, &format!("{}, {tcp}", http("a", "a.example.com"))),
        &set("shop/none", 2, tcp),
        &set("shop/udp", 3, "{name: udp, port: 80, protocol: UDP}"),
        &set("shop/closed", 4, "{name: l, port: 8080, protocol: HTTP}"),
    ]);
    for (name, at) in [("part", 1), ("none", 0)] {
        is(bench.of_entry(name, at, "Accepted"), "False", "ProtocolConflict");
        is(bench.of_entry(name, at, "Programmed"), "False", "ProtocolConflict");
        is(bench.of_entry(name, at, "Conflicted"), "True", "ProtocolConflict");
    }
    is(bench.of_set("part", "Accepted"), "True", "ListenersNotValid");
    is(bench.of_set("part", "Programmed"), "True", "Programmed");
    is(bench.of_set("none", "Accepted"), "False", "ListenersNotValid");
    is(bench.of_set("none", "Programmed"), "False", "ListenersNotValid");
    is(bench.of_entry("udp", 0, "Accepted"), "False", "UnsupportedProtocol");
    is(bench.of_entry("udp", 0, "Conflicted"), "False", "NoConflicts");
    is(bench.of_entry("closed", 0, "Accepted"), "False", "PortUnavailable");
    assert_eq!(bench.attached_sets(), 1);
    bench.agrees();
    // each owner hears of it
    let mut fresh = Translator::with_clock(Settings::default(), || 1_000);
    let outcomes = fresh.translate(&bench.cluster, &Dirty::everything()).outcomes;
    let told = |name: &str, reason| {
        let of = |o: &&Outcome| o.source.kind == Kind::ListenerSet && &*o.source.name == name;
        outcomes.iter().filter(of).flat_map(|o| &o.findings).any(|f| f.reason == reason)
    };
    assert!(told("none", Reason::ListenerConflicted) && told("closed", Reason::ListenerNotAccepted));
}

#[test]
fn further_ports_of_sets_take_none_from_a_gateway() {
    let settings = Settings { gateway_listener_ports: vec![80, 443, 8080], ..Settings::default() };
    let mut bench = bench(&[]);
    bench.translator = Translator::with_clock(settings, || 1_000);
    let other = "{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: young, namespace: infra, \
                 creationTimestamp: '2021-01-01T00:00:00Z'}, spec: {gatewayClassName: tak-os, \
                 listeners: [{name: l, port: 8080, protocol: HTTP}]}}";
    let tls = "{name: l, port: 8080, protocol: HTTPS, tls: {certificateRefs: [{name: nope}]}}";
    for object in [&open(EVERYWHERE), &set("shop/s", 0, tls), other] {
        bench.add(object);
    }
    is(bench.condition("Gateway/young", "/listeners/0", "Accepted").unwrap(), "True", "Accepted");
    is(bench.of_entry("s", 0, "Conflicted"), "True", "ProtocolConflict");
}

#[test]
fn routes_attach_to_the_parent_that_they_name_and_to_no_other() {
    let two = |set: &str| {
        [http("l1", &format!("{set}-1.example.com")), http("l2", &format!("{set}-2.example.com"))]
    };
    let section = of_set("a").replace('}', ", sectionName: l1}");
    let port = of_set("b").replace('}', ", port: 80}");
    let no_port = of_set("b").replace('}', ", port: 443}");
    let mut bench = bench(&[
        &open(EVERYWHERE),
        &set("shop/a", 1, &two("a").join(", ")),
        &set("shop/b", 2, &two("b").join(", ")),
        &child("shop/all", &[GATEWAY.to_owned(), of_set("a"), of_set("b")].join(", ")),
        &child("shop/gateway", GATEWAY),
        &child("shop/set", &of_set("a")),
        &child("shop/section", &section),
        &child("shop/port", &port),
        &child("shop/closed", &no_port),
        // the name of a set's listener means nothing at the Gateway
        &child("shop/wrong", "{name: gw, namespace: infra, sectionName: l1}"),
    ]);
    let hosts =
        ["gw.example.com", "a-1.example.com", "a-2.example.com", "b-1.example.com", "b-2.example.com"];
    for (path, served) in [
        ("all", [true, true, true, true, true]),
        ("gateway", [true, false, false, false, false]),
        ("set", [false, true, true, false, false]),
        ("section", [false, true, false, false, false]),
        ("port", [false, false, false, true, true]),
        ("closed", [false; 5]),
        ("wrong", [false; 5]),
    ] {
        for (host, served) in hosts.iter().zip(served) {
            assert_eq!(bench.at(host, &format!("/{path}")).is_some(), served, "{host}/{path}");
        }
    }
    assert_eq!(bench.attached_sets(), 2);
    assert_eq!((bench.routes_of("a", 0), bench.routes_of("a", 1)), (3, 2));
    assert_eq!((bench.routes_of("b", 0), bench.routes_of("b", 1)), (2, 2));
    assert_eq!(bench.statuses["Gateway/gw"]["listeners"][0]["attachedRoutes"], 2);
    for name in ["wrong", "closed"] {
        is(bench.of_route(name, "Accepted"), "False", "NoMatchingParent");
    }
    let kinds = &bench.statuses["ListenerSet/a"]["listeners"][0]["supportedKinds"];
    assert!(kinds.as_array().unwrap().iter().any(|kind| kind["kind"] == "HTTPRoute"));
    // one entry for each parent, and as the route writes it
    let parents = bench.statuses["HTTPRoute/set"]["parents"].as_array().unwrap();
    assert_eq!(parents.len(), 1);
    assert_eq!(parents[0]["parentRef"], serde_yaml_like(&of_set("a")));
    assert_eq!(bench.statuses["HTTPRoute/gateway"]["parents"].as_array().unwrap().len(), 1);
    assert_eq!(bench.statuses["HTTPRoute/all"]["parents"].as_array().unwrap().len(), 3);
    bench.agrees();
}

#[test]
fn each_parent_of_a_route_is_answered_for_itself() {
    let section = |parent: &str| parent.replace('}', ", sectionName: l}");
    let bench = bench(&[
        &open(EVERYWHERE),
        &set("shop/s", 1, &http("l", "s.example.com")),
        &child("shop/r", &[section(GATEWAY), section(&of_set("s"))].join(", ")),
    ]);
    is(bench.of_route("r", "Accepted"), "False", "NoMatchingParent");
    is(bench.condition("HTTPRoute/r", "/parents/1", "Accepted").unwrap(), "True", "Accepted");
    assert!(bench.at("s.example.com", "/r").is_some() && bench.at("gw.example.com", "/r").is_none());
}

#[test]
fn allowed_routes_go_by_the_namespace_of_the_set() {
    let from = |name: &str, from: &str| http(name, &format!("{name}.example.com")).replace("from: All", from);
    let listeners = [
        from("all", "from: All"),
        from("same", "from: Same"),
        from("selector", "from: Selector, selector: {matchLabels: {open: 'yes'}}"),
    ];
    let bench = bench(&[
        &namespace("other", "open: 'yes'"),
        &open(EVERYWHERE),
        &set("shop/s", 0, &listeners.join(", ")),
        &set("shop/only-same", 0, &from("only", "from: Same")),
        &child("shop/own", &of_set("s")),
        &child("other/chosen", &of_set("s")),
        &child("infra/gateways", &of_set("s")),
        &child("infra/refused", &of_set("only-same")),
    ]);
    for (path, served) in
        [("own", [true, true, false]), ("chosen", [true, false, true]), ("gateways", [true, false, false])]
    {
        for (host, served) in ["all", "same", "selector"].iter().zip(served) {
            let found = bench.at(&format!("{host}.example.com"), &format!("/{path}"));
            assert_eq!(found.is_some(), served, "{host}/{path}");
        }
    }
    assert_eq!([0, 1, 2].map(|at| bench.routes_of("s", at)), [3, 1, 1]);
    is(bench.of_route("refused", "Accepted"), "False", "NotAllowedByListeners");
    assert_eq!(bench.routes_of("only-same", 0), 0);
}

#[test]
fn kinds_that_cannot_attach_are_told() {
    let kinds =
        http("l", "s.example.com").replace("allowedRoutes: {", "allowedRoutes: {kinds: [{kind: TCPRoute}], ");
    let bench = bench(&[&open(EVERYWHERE), &set("shop/s", 0, &kinds)]);
    is(bench.of_entry("s", 0, "ResolvedRefs"), "False", "InvalidRouteKinds");
    assert_eq!(bench.statuses["ListenerSet/s"]["listeners"][0]["supportedKinds"], json!([]));
}

#[test]
fn certificates_of_other_namespaces_need_a_grant_for_the_set_itself() {
    let grant = |name: &str, kind: &str, namespace: &str| {
        format!(
            "{{apiVersion: gateway.networking.k8s.io/v1, kind: ReferenceGrant, metadata: {{name: {name}, namespace: certs}}, \
             spec: {{from: [{{group: gateway.networking.k8s.io, kind: {kind}, namespace: {namespace}}}], \
             to: [{{group: '', kind: Secret}}]}}}}"
        )
    };
    let tls = "{name: l, port: 443, protocol: HTTPS, hostname: s.example.com, \
               tls: {certificateRefs: [{name: tls, namespace: certs}]}}";
    let mut bench = bench(&[
        &open(EVERYWHERE),
        // neither what the Gateway may use, nor sets of other namespaces
        &grant("gateway", "Gateway", "infra"),
        &grant("gateway-here", "Gateway", "shop"),
        &grant("other", "ListenerSet", "infra"),
        &set("shop/s", 0, tls),
    ]);
    is(bench.of_entry("s", 0, "ResolvedRefs"), "False", "RefNotPermitted");
    is(bench.of_set("s", "Accepted"), "False", "ListenersNotValid");
    is(bench.of_set("s", "Programmed"), "False", "ListenersNotValid");
    assert_eq!(bench.attached_sets(), 0);
    bench.add(&grant("set", "ListenerSet", "shop"));
    is(bench.of_entry("s", 0, "ResolvedRefs"), "False", "InvalidCertificateRef");
    bench.agrees();
}

#[test]
fn the_most_specific_listener_of_gateway_and_sets_alone_takes_a_host() {
    let mut bench = bench(&[
        &open(EVERYWHERE),
        &set("shop/wild", 0, &http("l", "*.example.com")),
        &set("shop/one", 1, &http("l", "one.example.com")),
        &child("shop/w", &of_set("wild")),
        &child("shop/o", &of_set("one")),
    ]);
    for (host, path, served) in [
        ("x.example.com", "/w", true),
        ("one.example.com", "/w", false),
        ("one.example.com", "/o", true),
        ("gw.example.com", "/w", false),
    ] {
        assert_eq!(bench.at(host, path).is_some(), served, "{host}{path}");
    }
    // also for a route that names the host itself, and for as long as the other set is there
    let mut named = serde_yaml_like(&child("shop/w", &of_set("wild")));
    named["spec"]["hostnames"] = json!(["one.example.com"]);
    named["metadata"]["resourceVersion"] = "2".into();
    bench.add(&named.to_string());
    assert_eq!(bench.at("one.example.com", "/w"), None);
    bench.remove(Kind::ListenerSet, "shop", "one");
    assert!(bench.at("one.example.com", "/w").is_some());
    bench.agrees();
}

#[test]
fn a_set_follows_what_becomes_of_its_gateway() {
    let mut bench = bench(&[
        &open(EVERYWHERE),
        &set("shop/s", 0, &http("l", "s.example.com")),
        &child("shop/r", &of_set("s")),
    ]);
    assert!(bench.at("s.example.com", "/r").is_some());
    bench.add(
        &open(EVERYWHERE)
            .replace("\"spec\":{", "\"spec\":{\"infrastructure\":{\"parametersRef\":{\"name\":\"x\"}},"),
    );
    is(bench.of_set("s", "Accepted"), "False", "ParentNotAccepted");
    is(bench.of_set("s", "Programmed"), "False", "ParentNotProgrammed");
    assert_eq!(bench.at("s.example.com", "/r"), None);
    assert_eq!(bench.attached_sets(), 0);
    bench.agrees();
    bench.add(&open(EVERYWHERE));
    is(bench.of_set("s", "Accepted"), "True", "Accepted");
    assert!(bench.at("s.example.com", "/r").is_some());
    // gone, and nobody else will say so
    bench.hand_back_set("s");
    bench.remove(Kind::Gateway, "infra", "gw");
    is(bench.of_set("s", "Accepted"), "False", "ParentNotAccepted");
    assert_eq!(bench.statuses["ListenerSet/s"]["listeners"], json!([]));
    bench.hand_back_set("s");
    assert!(bench.last.listeners.is_empty());
    bench.add(&open(EVERYWHERE));
    is(bench.of_set("s", "Programmed"), "True", "Programmed");
    bench.remove(Kind::ListenerSet, "shop", "s");
    assert_eq!(bench.at("s.example.com", "/r"), None);
    assert_eq!(bench.attached_sets(), 0);
    bench.remove(Kind::HttpRoute, "shop", "r");
    bench.remove(Kind::Gateway, "infra", "gw");
    let api = &bench.translator.gateway_api;
    assert!(api.attached.is_empty() && api.composed.is_empty() && api.orphans.is_empty());
}

#[test]
fn a_gateway_without_an_address_is_served_and_its_sets_say_so() {
    let mut bench = bench(&[]);
    bench.translator = Translator::with_clock(Settings::default(), || 1_000);
    bench.add(&open(EVERYWHERE));
    bench.add(&set("shop/s", 0, &http("l", "s.example.com")));
    is(bench.of_set("s", "Accepted"), "True", "Accepted");
    is(bench.of_set("s", "Programmed"), "False", "ParentNotProgrammed");
    is(bench.of_entry("s", 0, "Programmed"), "True", "Programmed");
}

#[test]
fn sets_of_other_gateways_are_left_alone() {
    for parent in [
        json!({ "name": "theirs", "namespace": "infra" }),
        json!({ "name": "nobody" }),
        json!({ "name": "gw", "namespace": "infra", "kind": "Service", "group": "" }),
    ] {
        let mut object: Value = serde_yaml_like(&set("shop/s", 0, &http("l", "s.example.com")));
        object["spec"]["parentRef"] = parent;
        let theirs = open(EVERYWHERE).replace("\"gw\"", "\"theirs\"").replace("\"tak-os\"", "\"theirs\"");
        let mut bench =
            bench(&[&open(EVERYWHERE), &theirs, &object.to_string(), &child("shop/r", &of_set("s"))]);
        bench.pass(&Dirty::everything());
        assert!(!bench.statuses.contains_key("ListenerSet/s"));
        assert!(bench.last.writes.iter().all(|write| write.target.kind != "HTTPRoute"));
        assert_eq!(bench.at("s.example.com", "/r"), None);
    }
}

#[test]
fn what_is_written_of_a_set_is_written_once_and_for_its_generation() {
    let mut bench = bench(&[&open(EVERYWHERE), &set("shop/s", 0, &http("l", "s.example.com"))]);
    for generation in [1, 2] {
        let mut object: Value = serde_yaml_like(&set("shop/s", 0, &http("l", "s.example.com")));
        object["metadata"]["generation"] = generation.into();
        object["metadata"]["resourceVersion"] = format!("{generation}0").into();
        object["status"] = bench.statuses["ListenerSet/s"].clone();
        bench.add(&object.to_string());
        let status = &bench.statuses["ListenerSet/s"];
        for condition in [&status["conditions"], &status["listeners"][0]["conditions"]] {
            let all = condition.as_array().unwrap();
            assert!(all.len() >= 2 && all.iter().all(|c| c["observedGeneration"] == generation), "{status}");
        }
        object["metadata"]["resourceVersion"] = format!("{generation}1").into();
        object["status"] = status.clone();
        bench.add(&object.to_string());
        let of_set = |w: &&Write| w.target.kind == "ListenerSet" && w.change != Change::Nothing;
        assert!(!bench.last.writes.iter().any(|w| of_set(&w)), "{:?}", bench.last.writes);
        assert!(!bench.last.changed);
    }
}

#[test]
fn a_change_of_a_set_costs_the_routes_of_its_gateway_alone() {
    let other = "{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: far, namespace: infra}, \
                 spec: {gatewayClassName: tak-os, listeners: [{name: l, port: 80, protocol: HTTP, \
                 allowedRoutes: {namespaces: {from: All}}}]}}";
    let mut bench = bench(&[
        &open(EVERYWHERE),
        other,
        &set("shop/s", 0, &http("l", "s.example.com")),
        &child("shop/r", &of_set("s")),
        &child("shop/near", GATEWAY),
        &child("shop/far", "{name: far, namespace: infra}"),
    ]);
    bench.add(&set("shop/s", 0, &http("l", "new.example.com")));
    assert!(bench.at("new.example.com", "/r").is_some() && bench.at("s.example.com", "/r").is_none());
    let written: BTreeSet<_> = bench
        .last
        .writes
        .iter()
        .filter(|w| w.target.kind == "HTTPRoute")
        .map(|w| w.target.name.to_string())
        .collect();
    assert_eq!(written, ["near", "r"].map(str::to_owned).into());
    bench.agrees();
}
