//! The order of matches, written out.

use super::*;
use http::{HeaderMap, Method};
use ingress_core::route::conditions::Head;

/// All of these fit one request. Each comes before the next one by a single criterion, and what counts less speaks against it.
const ORDER: [(&str, &str); 11] = [
    ("young", "{path: {type: Exact, value: /abc/d}}"),
    ("young", "{path: {type: RegularExpression, value: /abc/.}}"),
    ("young", "{path: {value: /abc/d}}"),
    ("young", "{path: {value: /abc}, method: GET}"),
    ("young", "{path: {value: /abc}, headers: [{name: x, value: '1'}, {name: w, value: '1'}]}"),
    (
        "young",
        "{path: {value: /abc}, headers: [{name: x, value: '1'}], queryParams: [{name: q, value: '1'}, {name: r, value: '1'}]}",
    ),
    // the older one, whatever it is called
    (
        "old-b",
        "{path: {value: /abc}, headers: [{name: x, value: '1'}], queryParams: [{name: q, value: '1'}]}",
    ),
    // the name, whatever its place in the rules
    (
        "a-new",
        "{path: {value: /abc}, headers: [{name: x, value: '1'}], queryParams: [{name: r, value: '1'}]}",
    ),
    (
        "young",
        "{path: {value: /abc}, headers: [{name: w, value: '1'}], queryParams: [{name: q, value: '1'}]}",
    ),
    ("old-b", "{path: {value: /abc}, headers: [{name: w, value: '1'}]}"),
    ("old-b", "{path: {value: /}, method: GET, headers: [{name: x, value: '1'}]}"),
];

/// The routes of these matches, one rule for each, those that should come last ahead.
fn routes(matches: &[(&str, &str)]) -> Vec<String> {
    let of = |name: &str| {
        let rules = matches.iter().rev().filter(|(by, _)| *by == name);
        let rules: Vec<_> = rules.map(|(_, wanted)| format!("{{matches: [{wanted}], {WEB}}}")).collect();
        let mut value: Value =
            serde_json::from_str(&route(name, &format!("rules: [{}]", rules.join(", ")))).unwrap();
        let year = if name == "old-b" { 2020 } else { 2021 };
        value["metadata"]["creationTimestamp"] = format!("{year}-01-01T00:00:00Z").into();
        value.to_string()
    };
    ["old-b", "young", "a-new"].map(of).into()
}

#[test]
fn of_all_that_fit_the_first_of_the_written_order_serves() {
    let mut headers = HeaderMap::new();
    for name in ["x", "w"] {
        headers.insert(name, "1".parse().unwrap());
    }
    let head = Head { method: &Method::GET, headers: &headers, query: Some("q=1&r=1"), dropped: |_| false };
    for from in 0..ORDER.len() {
        let left = &ORDER[from..];
        let mut objects = routes(left);
        for _ in 0..2 {
            objects.reverse();
            let objects: Vec<_> = objects.iter().map(String::as_str).collect();
            let bench = bench(&objects);
            let listener = bench.last.listeners.get(Scope { address: None, port: 80 }).unwrap();
            let found = listener.routes.find_for("h.example.com", "/abc/d", &head).unwrap();
            let of: Vec<_> = left.iter().rev().filter(|(by, _)| *by == &*found.source.name).collect();
            assert_eq!(of[usize::from(found.rule.rule)], &left[0], "{from}");
        }
    }
}
