//! Several Gateways that listen for the same: their routes are one set, and what only one can have the oldest has.

use super::clients::{asking, https, prepared};
use super::*;

/// An HTTPRoute of one rule for one host, of 2020 and as many seconds, through this Gateway.
fn through(gateway: &str, name: &str, seconds: u8) -> String {
    let spec = format!(
        "{{parentRefs: [{{name: {gateway}, namespace: infra}}], hostnames: [a.example.com], rules: [{{{WEB}}}]}}"
    );
    let mut value: Value = serde_json::from_str(&route(name, &spec)).unwrap();
    value["metadata"]["creationTimestamp"] = format!("2020-01-01T00:00:{seconds:02}Z").into();
    value.to_string()
}

/// A Gateway of 2020 and as many seconds that listens to HTTP.
fn plain_gateway(name: &str, seconds: u8) -> String {
    asking(name, seconds, &format!("{{name: web, port: 80, protocol: HTTP, {ALL}}}"), "")
}

impl Bench {
    /// What a fresh start tells of an object.
    fn mistakes(&self, object: &str) -> Vec<Reason> {
        let mut fresh = Translator::with_clock(Settings::default(), || 1_000);
        let outcomes = fresh.translate(&self.cluster, &Dirty::everything()).outcomes;
        let of = outcomes.into_iter().filter(|outcome| outcome.source.to_string() == object);
        of.flat_map(|outcome| outcome.findings.into_vec()).map(|finding| finding.reason).collect()
    }
}

/// Names are sorted against ages, and so are those of the Gateways: neither decides where an age does.
#[test]
fn of_equal_routes_through_two_gateways_the_older_one_serves_then_the_first_by_name() {
    let gateways = [plain_gateway("one", 9), plain_gateway("two", 1)];
    for (a, z, winner, loser) in [(5, 2, "z", "a"), (2, 5, "a", "z"), (3, 3, "a", "z")] {
        let routes = [through("one", "a", a), through("two", "z", z)];
        for order in [[0, 1], [1, 0]] {
            for gateways_first in [true, false] {
                let mut all: Vec<&str> = order.iter().map(|at| routes[*at].as_str()).collect();
                let at = if gateways_first { 0 } else { 2 };
                all.splice(at..at, order.iter().map(|at| gateways[*at].as_str()));
                let mut bench = bench(&all);
                let case = format!("{a} {z} {order:?}");
                let winner_is = format!("httproute/{winner}");
                assert_eq!(bench.at("a.example.com", "/").as_deref(), Some(&*winner_is), "{case}");
                let (winner_id, loser_id) =
                    (format!("httproute/shop/{winner}"), format!("httproute/shop/{loser}"));
                assert_eq!(bench.mistakes(&loser_id), [Reason::HostPathTaken], "{case}");
                assert_eq!(bench.mistakes(&winner_id), [], "{case}");
                // both are accepted: of two that ask for the same one has to come second
                for name in [winner, loser] {
                    is(bench.of_route(name, "Accepted"), "True", "Accepted");
                }
                bench.remove(Kind::HttpRoute, "shop", winner);
                let loser_is = format!("httproute/{loser}");
                assert_eq!(bench.at("a.example.com", "/").as_deref(), Some(&*loser_is), "{case}");
                assert_eq!(bench.mistakes(&loser_id), [], "{case}");
            }
        }
    }
}

#[test]
fn a_route_takes_over_when_the_gateway_of_the_older_one_goes() {
    let mut bench = bench(&[
        &plain_gateway("one", 9),
        &plain_gateway("two", 1),
        &through("two", "z", 1),
        &through("one", "a", 2),
    ]);
    assert_eq!(bench.at("a.example.com", "/").as_deref(), Some("httproute/z"));
    bench.remove(Kind::Gateway, "infra", "two");
    assert_eq!(bench.at("a.example.com", "/").as_deref(), Some("httproute/a"));
    assert_eq!(bench.mistakes("httproute/shop/a"), []);
}

/// Which Secret's certificate a client is shown for a name.
fn shown(bench: &Bench, name: &str) -> Option<String> {
    let listener = bench.last.listeners.get(Scope { address: None, port: 443 })?;
    listener.certs.find(Some(name)).map(|certified| certified.source.to_string())
}

#[test]
fn of_two_gateways_certificates_for_a_host_the_oldest_is_shown_and_an_ingresss_before_it() {
    let of = |name: &str, secret: &str, seconds: u8| {
        let listener = https("h", 443, "a.example.com").replace("name: tls", &format!("name: {secret}"));
        asking(name, seconds, &listener, "")
    };
    let secret = |name: &str, namespace: &str| {
        let mut value: Value = serde_json::from_str(&clients::secret(namespace)).unwrap();
        value["metadata"]["name"] = name.into();
        value.to_string()
    };
    let secrets = [secret("young", "infra"), secret("old", "infra"), secret("own", "shop")];
    let mut with_tls: Value =
        serde_json::from_str(&ingress("i", "2021-01-01T00:00:00Z", "a.example.com")).unwrap();
    with_tls["spec"]["tls"] = json!([{ "hosts": ["a.example.com"], "secretName": "own" }]);
    // the name that comes first is that of the younger one
    let gateways = [of("a", "young", 5), of("z", "old", 1)];
    for order in [[0, 1], [1, 0]] {
        let mut bench = prepared(&secrets.each_ref().map(String::as_str));
        for at in order {
            bench.add(&gateways[at]);
        }
        assert_eq!(shown(&bench, "a.example.com").as_deref(), Some("secret/infra/old"), "{order:?}");
        bench.add(&with_tls.to_string());
        assert_eq!(shown(&bench, "a.example.com").as_deref(), Some("secret/shop/own"), "{order:?}");
        bench.remove(Kind::Gateway, "infra", "z");
        assert_eq!(shown(&bench, "a.example.com").as_deref(), Some("secret/shop/own"), "{order:?}");
        bench.remove(Kind::Ingress, "shop", "i");
        assert_eq!(shown(&bench, "a.example.com").as_deref(), Some("secret/infra/young"), "{order:?}");
    }
}

#[test]
fn a_port_speaks_what_the_oldest_gateways_own_listener_says() {
    let http = asking("a", 5, &format!("{{name: l, port: 8443, protocol: HTTP, {ALL}}}"), "");
    let tls = asking("z", 1, &https("l", 8443, "a.example.com"), "");
    for order in [[&http, &tls], [&tls, &http]] {
        let mut bench = prepared(&order.map(String::as_str));
        let on = |bench: &Bench, gateway: &str, kind: &str| {
            bench.condition(&format!("Gateway/{gateway}"), "/listeners/0", kind).unwrap()
        };
        is(on(&bench, "z", "Accepted"), "True", "Accepted");
        is(on(&bench, "a", "Accepted"), "False", "ProtocolConflict");
        is(on(&bench, "a", "Conflicted"), "True", "ProtocolConflict");
        is(on(&bench, "a", "Programmed"), "False", "ProtocolConflict");
        let speaks = |bench: &Bench| {
            bench.last.listeners.get(Scope { address: None, port: 8443 }).map(|listener| listener.tls)
        };
        assert_eq!(speaks(&bench), Some(true));
        bench.remove(Kind::Gateway, "infra", "z");
        is(on(&bench, "a", "Accepted"), "True", "Accepted");
        assert_eq!(speaks(&bench), Some(false));
    }
}
