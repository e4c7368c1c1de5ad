//! HTTPRoutes and GRPCRoutes that ask one listener for the same host.

use super::*;

/// A route of shop for these hosts, of 2026 and so many seconds.
fn aged(kind: &str, name: &str, seconds: u8, hosts: &str) -> String {
    let mut value: Value = serde_yaml_like(&plain(name, hosts));
    value["kind"] = kind.into();
    value["metadata"]["creationTimestamp"] = format!("2026-01-01T00:00:{seconds:02}Z").into();
    value.to_string()
}

fn accepted(bench: &Bench, object: &str) -> bool {
    let (status, reason) = bench.condition(object, "/parents/0", "Accepted").unwrap();
    match &*status {
        "True" => assert_eq!(reason, "Accepted"),
        _ => assert_eq!(reason, "HostnameConflict"),
    }
    status == "True"
}

fn attached(bench: &Bench, at: usize) -> u64 {
    bench.statuses["Gateway/gw"]["listeners"][at]["attachedRoutes"].as_u64().unwrap()
}

#[test]
fn the_older_kind_has_a_host_and_the_other_gets_it_when_that_goes() {
    let mut bench = bench(&[
        &aged("GRPCRoute", "g", 2, "a.example.com"),
        &aged("HTTPRoute", "h", 3, "a.example.com, b.example.com"),
        &aged("HTTPRoute", "free", 3, "c.example.com"),
    ]);
    assert!(accepted(&bench, "GRPCRoute/g") && accepted(&bench, "HTTPRoute/free"));
    assert!(!accepted(&bench, "HTTPRoute/h"));
    assert_eq!(bench.at("a.example.com", "/").as_deref(), Some("grpcroute/g"));
    // it is refused as a whole
    assert_eq!((bench.at("b.example.com", "/"), attached(&bench, 0)), (None, 2));

    // an older HTTPRoute takes it from the GRPCRoute, and the younger one is free with it
    bench.add(&aged("HTTPRoute", "oldest", 1, "a.example.com"));
    assert!(accepted(&bench, "HTTPRoute/oldest") && accepted(&bench, "HTTPRoute/h"));
    assert!(!accepted(&bench, "GRPCRoute/g"));
    assert_eq!(bench.at("b.example.com", "/").as_deref(), Some("httproute/h"));
    bench.remove(Kind::HttpRoute, "shop", "oldest");
    assert!(accepted(&bench, "GRPCRoute/g") && !accepted(&bench, "HTTPRoute/h"));
    let told = bench.last.outcomes.iter().find(|outcome| &*outcome.source.name == "h").unwrap();
    assert_eq!(told.findings.iter().map(|f| f.reason).collect::<Vec<_>>(), [Reason::RouteNotAttached]);

    bench.remove(Kind::GrpcRoute, "shop", "g");
    assert!(accepted(&bench, "HTTPRoute/h"));
    assert_eq!(bench.at("a.example.com", "/").as_deref(), Some("httproute/h"));
    assert_eq!(attached(&bench, 0), 2);
    bench.remove(Kind::HttpRoute, "shop", "h");
    assert!(bench.translator.gateway_api.rivals.is_empty());
}

#[test]
fn hosts_meet_where_one_name_is_of_both() {
    for (http, grpc, meet) in [
        ("a.example.com", "a.example.com", true),
        ("a.example.com", "b.example.com", false),
        ("'*.example.com'", "a.example.com", true),
        ("'*.example.com'", "'*.b.example.com'", true),
        ("'*.example.com'", "example.com", false),
        ("", "a.example.com", true),
        ("", "", true),
    ] {
        let bench = bench(&[&aged("HTTPRoute", "h", 1, http), &aged("GRPCRoute", "g", 2, grpc)]);
        assert!(accepted(&bench, "HTTPRoute/h"));
        assert_eq!(accepted(&bench, "GRPCRoute/g"), !meet, "{http} {grpc}");
    }
}

#[test]
fn who_is_refused_keeps_nobody_out_and_the_order_of_events_does_not_count() {
    let all = [
        aged("GRPCRoute", "g1", 1, "a.example.com"),
        aged("HTTPRoute", "h1", 2, "a.example.com, b.example.com"),
        aged("GRPCRoute", "g2", 3, "b.example.com"),
        // as old as g2, and behind it in the alphabet
        aged("HTTPRoute", "h2", 3, "b.example.com"),
    ];
    let names = ["GRPCRoute/g1", "HTTPRoute/h1", "GRPCRoute/g2", "HTTPRoute/h2"];
    for order in 0..24 {
        let mut left: Vec<_> = all.iter().collect();
        let mut bench = bench(&[]);
        let mut rest = order;
        for choices in (1..=4).rev() {
            bench.add(left.remove(rest % choices));
            rest /= choices;
        }
        assert_eq!(names.map(|name| accepted(&bench, name)), [true, false, true, false], "{order}");
        // the first one moves away
        bench.add(&aged("GRPCRoute", "g1", 1, "z.example.com"));
        assert_eq!(names.map(|name| accepted(&bench, name)), [true, true, false, true], "{order}");
    }
}

#[test]
fn each_listener_is_decided_by_itself() {
    let listeners = |second: &str| {
        format!(
            "{{name: http, port: 80, protocol: HTTP, {ALL}}}, {{name: other, {second}, protocol: HTTP, {ALL}}}"
        )
    };
    let at = |name: &str| format!("{{name: gw, namespace: infra, sectionName: {name}}}");
    let on = |kind: &str, name: &str, seconds: u8, parents: &str| {
        let mut value: Value = serde_yaml_like(&aged(kind, name, seconds, "a.example.com"));
        value["spec"]["parentRefs"] = serde_yaml_like(parents);
        value.to_string()
    };
    let mut bench = bench(&[
        &gateway(&listeners("port: 8080")),
        &on("GRPCRoute", "g", 1, &format!("[{}]", at("http"))),
        &on("HTTPRoute", "h", 2, &format!("[{}, {}]", at("http"), at("other"))),
    ]);
    let second = |bench: &Bench| bench.condition("HTTPRoute/h", "/parents/1", "Accepted").unwrap().0;
    assert!(!accepted(&bench, "HTTPRoute/h"));
    // port 8080 is not one that is listened on here, and the listener still counts the route
    assert_eq!(second(&bench), "True");
    assert_eq!((attached(&bench, 0), attached(&bench, 1)), (1, 1));
    // the listener goes, and the route stays with nothing to conflict about
    bench.add(&on("GRPCRoute", "g", 1, &format!("[{}]", at("other"))));
    assert!(accepted(&bench, "HTTPRoute/h"));
    assert_eq!(second(&bench), "False");
}
