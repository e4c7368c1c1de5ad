//! Routes that others leave nothing, or a part, of what they ask for: their conditions say so as long as it holds.

use super::clients::{asking, default, https, of_map, on, prepared};
use super::tls_routes::{PASS, tls_route};
use super::*;

/// The conditions of a route at one of its parents.
fn of(bench: &Bench, object: &str, at: usize, kind: &str) -> (String, String) {
    bench.condition(object, &format!("/parents/{at}"), kind).unwrap_or_default()
}

/// What `Accepted` says in words.
fn words(bench: &Bench, object: &str, at: usize) -> String {
    let conditions = &bench.statuses[object]["parents"][at]["conditions"];
    let accepted = conditions.as_array().unwrap().iter().find(|c| c["type"] == "Accepted").unwrap();
    accepted["message"].as_str().unwrap().to_owned()
}

/// All orders in which three things can come.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

#[test]
fn a_route_whose_hosts_are_all_passed_on_for_another_is_not_accepted_until_that_goes() {
    let objects =
        [gateway(PASS), tls_route("old", 1, "a.example.com"), tls_route("late", 2, "a.example.com")];
    for order in ORDERS {
        let mut bench = bench(&order.map(|at| objects[at].as_str()));
        is(of(&bench, "TLSRoute/old", 0, "Accepted"), "True", "Accepted");
        is(of(&bench, "TLSRoute/late", 0, "Accepted"), "False", "HostnameConflict");
        let said = words(&bench, "TLSRoute/late", 0);
        assert!(said.contains("a.example.com") && said.contains("tlsroute/shop/old"), "{order:?}: {said}");
        // nothing that was written is a reason to write again
        let before = bench.statuses.clone();
        bench.pass(&Dirty::everything());
        assert_eq!(bench.statuses, before);
        bench.remove(Kind::TlsRoute, "shop", "old");
        is(of(&bench, "TLSRoute/late", 0, "Accepted"), "True", "Accepted");
        assert_eq!(words(&bench, "TLSRoute/late", 0), "");
    }
}

#[test]
fn a_route_that_keeps_a_host_is_accepted_and_says_what_it_lost() {
    let mut bench = bench(&[
        &gateway(PASS),
        &tls_route("t", 9, "a.example.com, b.example.com"),
        &ingress("i", "2020-01-01T00:00:05Z", "a.example.com"),
    ]);
    is(of(&bench, "TLSRoute/t", 0, "Accepted"), "True", "Accepted");
    let said = words(&bench, "TLSRoute/t", 0);
    assert!(said.contains("a.example.com") && said.contains("ingress/shop/i"), "{said}");
    bench.add(&ingress("j", "2020-01-01T00:00:05Z", "b.example.com"));
    is(of(&bench, "TLSRoute/t", 0, "Accepted"), "False", "HostnameConflict");
    assert!(words(&bench, "TLSRoute/t", 0).ends_with("; and 1 more"));
    bench.remove(Kind::Ingress, "shop", "i");
    is(of(&bench, "TLSRoute/t", 0, "Accepted"), "True", "Accepted");
}

/// The star of an Ingress takes one label, that of a route more.
#[test]
fn of_a_wildcard_what_is_left_counts() {
    let mut bench = bench(&[
        &gateway(PASS),
        &tls_route("t", 9, "'*.example.com'"),
        &ingress("i", "2020-01-01T00:00:05Z", "*.example.com"),
    ]);
    is(of(&bench, "TLSRoute/t", 0, "Accepted"), "True", "Accepted");
    assert!(words(&bench, "TLSRoute/t", 0).contains("one label"));
    bench.add(&tls_route("u", 7, "'*.example.com'"));
    is(of(&bench, "TLSRoute/t", 0, "Accepted"), "False", "HostnameConflict");
    is(of(&bench, "TLSRoute/u", 0, "Accepted"), "True", "Accepted");
    bench.remove(Kind::TlsRoute, "shop", "u");
    is(of(&bench, "TLSRoute/t", 0, "Accepted"), "True", "Accepted");
}

/// Where an Ingress that is older still has names of one label, the route is served at these beside it.
#[test]
fn what_an_older_ingress_leaves_of_a_wildcard_counts_as_it_comes_and_goes() {
    let passing = gateway(PASS).replace("name: gw", "name: passing");
    let mut passed: Value = serde_json::from_str(&tls_route("t", 3, "'*.example.com'")).unwrap();
    passed["spec"]["parentRefs"][0]["name"] = "passing".into();
    let mut bench = prepared(&[
        &asking("one", 1, &https("h", 443, "*.example.com"), ""),
        &passing,
        &passed.to_string(),
        &on("r", "one", 5, "*.example.com"),
    ]);
    for _ in 0..2 {
        is(of(&bench, "HTTPRoute/r", 0, "Accepted"), "False", "HostnameConflict");
        bench.add(&ingress("i", "2020-01-01T00:00:01Z", "*.example.com"));
        assert!(bench.found(443, "a.example.com", "/r").is_some_and(|route| &*route.source.name == "r"));
        is(of(&bench, "HTTPRoute/r", 0, "Accepted"), "True", "Accepted");
        bench.remove(Kind::Ingress, "shop", "i");
    }
}

#[test]
fn each_parent_has_its_own_answer() {
    // a route of all hosts at port 443, where its host is passed on for an older one, and at port 80
    let wild = format!(
        "{{name: h, port: 443, protocol: HTTPS, hostname: a.example.com, \
         tls: {{certificateRefs: [{{name: tls}}]}}, {ALL}}}, {{name: web, port: 80, protocol: HTTP, {ALL}}}"
    );
    let spec = format!(
        "{{parentRefs: [{{name: gw, namespace: infra, sectionName: h}}, {{name: gw, namespace: infra, \
         sectionName: web}}], hostnames: [a.example.com], rules: [{{{WEB}}}]}}"
    );
    let passing = gateway(PASS).replace("name: gw", "name: passing");
    let mut passed: Value = serde_json::from_str(&tls_route("t", 1, "a.example.com")).unwrap();
    passed["spec"]["parentRefs"][0]["name"] = "passing".into();
    let mut late: Value = serde_json::from_str(&route("r", &spec)).unwrap();
    late["metadata"]["creationTimestamp"] = "2021-01-01T00:00:00Z".into();
    let mut bench = prepared(&[&gateway(&wild), &passing, &late.to_string()]);
    is(of(&bench, "HTTPRoute/r", 0, "Accepted"), "True", "Accepted");
    bench.add(&passed.to_string());
    is(of(&bench, "HTTPRoute/r", 0, "Accepted"), "False", "HostnameConflict");
    is(of(&bench, "HTTPRoute/r", 1, "Accepted"), "True", "Accepted");
    assert_eq!(words(&bench, "HTTPRoute/r", 1), "");
    assert_eq!(bench.at("a.example.com", "/").as_deref(), Some("httproute/r"));
    bench.remove(Kind::TlsRoute, "shop", "t");
    is(of(&bench, "HTTPRoute/r", 0, "Accepted"), "True", "Accepted");
}

#[test]
fn a_route_that_is_left_out_since_clients_are_asked_for_something_else_is_not_accepted() {
    let ca = default(&of_map("ca"));
    let objects = [
        asking("wide", 1, &https("h", 443, "*.example.com"), &ca),
        asking("narrow", 2, &https("h", 443, "a.example.com"), ""),
        on("w", "wide", 1, "a.example.com"),
    ];
    for order in ORDERS {
        let mut bench = prepared(&order.map(|at| objects[at].as_str()));
        is(of(&bench, "HTTPRoute/w", 0, "Accepted"), "True", "Accepted");
        bench.add(&on("n", "narrow", 2, "a.example.com"));
        is(of(&bench, "HTTPRoute/n", 0, "Accepted"), "True", "Accepted");
        is(of(&bench, "HTTPRoute/w", 0, "Accepted"), "False", "HostnameConflict");
        assert!(words(&bench, "HTTPRoute/w", 0).contains("httproute/shop/n"));
        bench.remove(Kind::HttpRoute, "shop", "n");
        is(of(&bench, "HTTPRoute/w", 0, "Accepted"), "True", "Accepted");
    }
}

#[test]
fn a_route_that_comes_second_everywhere_is_accepted_and_says_to_whom() {
    let mut bench = bench(&[&plain("b", "a.example.com"), &plain("a", "a.example.com")]);
    assert_eq!(bench.at("a.example.com", "/").as_deref(), Some("httproute/a"));
    is(bench.of_route("b", "Accepted"), "True", "Accepted");
    assert_eq!(bench.of_route("b", "PartiallyInvalid"), Default::default(), "its rules are valid");
    let said = words(&bench, "HTTPRoute/b", 0);
    assert!(said.starts_with("spec.rules[0]") && said.contains("httproute/shop/a"), "{said}");
    assert_eq!(words(&bench, "HTTPRoute/a", 0), "");
    bench.remove(Kind::HttpRoute, "shop", "a");
    assert_eq!(words(&bench, "HTTPRoute/b", 0), "");
}

#[test]
fn a_route_without_any_host_that_can_be_read_is_not_accepted() {
    for route in [plain("r", "'a..b', '*.*.x'"), plain("r", "''")] {
        let bench = bench(&[&route]);
        is(bench.of_route("r", "Accepted"), "False", "UnsupportedValue");
        assert_eq!(bench.at("anything.example.com", "/"), None);
    }
    let half = bench(&[&plain("r", "'a..b', a.example.com")]);
    is(half.of_route("r", "Accepted"), "True", "Accepted");
    let bench = bench(&[&gateway(PASS), &tls_route("t", 1, "'a..b'")]);
    is(of(&bench, "TLSRoute/t", 0, "Accepted"), "False", "UnsupportedValue");
}

#[test]
fn what_is_partly_invalid_begins_as_the_api_says_and_needs_a_parent() {
    let matches = "{path: {type: Glob, value: /a*}}, {path: {value: /b}}";
    let of = |section: &str| {
        let spec = format!(
            "{{parentRefs: [{{name: gw, namespace: infra, {section}}}], rules: [{{matches: [{matches}], {WEB}}}]}}"
        );
        bench(&[&route("r", &spec)])
    };
    let bench = of("sectionName: http");
    let conditions = bench.statuses["HTTPRoute/r"]["parents"][0]["conditions"].as_array().unwrap().clone();
    let partly = conditions.iter().find(|c| c["type"] == "PartiallyInvalid").unwrap();
    let said = partly["message"].as_str().unwrap();
    assert!(said.starts_with("Dropped Rule") && said.contains("spec.rules[0].matches[0]"), "{said}");
    let bench = of("sectionName: nope");
    is(bench.of_route("r", "Accepted"), "False", "NoMatchingParent");
    assert_eq!(bench.of_route("r", "PartiallyInvalid"), Default::default());
}
