//! Pure: what statuses should say and what they say now, in; what has to be written, out. An object whose status is
//! as it should be gives nothing to write, so a quiet cluster is a silent one.

pub(crate) mod conditions;

use crate::cluster::Key;
use crate::cluster::gateway::{GROUP, Meta, ParentRef};
use crate::write::{Change, Target, Write};
use conditions::{Condition, difference, is_ahead, merged};
use ingress_core::Kind;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Features of the Gateway API that a GatewayClass says we have, in the order of the alphabet: those whose conformance
/// tests pass with the flags' defaults. What is left out, and why, is in `docs/gateway.md`.
pub const FEATURES: [&str; 38] = [
    "BackendTLSPolicy",
    "BackendTLSPolicySANValidation",
    "GRPCRoute",
    "GRPCRouteNamedRouteRule",
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayBackendClientCertificate",
    "GatewayHTTPListenerIsolation",
    "GatewayHTTPSListenerDetectMisdirectedRequests",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteCORS",
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteSchemeRedirect",
    "ListenerSet",
    "ReferenceGrant",
    "TLSRoute",
    "TLSRouteModeMixed",
    "TLSRouteModeTerminate",
];

/// A condition of Gateways that let clients in without the certificate that they are asked for.
pub(crate) const INSECURE_FRONTEND: &str = "InsecureFrontendValidationMode";

/// A listener's part of the status of a Gateway or ListenerSet.
pub(crate) struct ListenerStatus<'a> {
    pub name: &'a str,
    /// `kind` of the routes that may attach.
    pub kinds: Vec<&'static str>,
    pub attached: usize,
    pub conditions: &'a [Condition],
}

/// What a route's status says of one of its parents.
pub(crate) struct ParentStatus<'a> {
    pub reference: &'a ParentRef,
    pub conditions: Vec<Condition>,
}

/// Features whose field, `retry` of a rule, is in the experimental channel's definition of HTTPRoutes alone.
const RETRIES: [&str; 3] =
    ["HTTPRouteRetry", "HTTPRouteRetryBackendTimeout", "HTTPRouteRetryConnectionError"];

/// Features whose tests pass where Gateways have addresses of their own (`--gateway-addresses`). Client certificates are demanded
/// without those too, but not at a host that another Gateway serves to everybody at the same address, as the suite's do.
const OWN_ADDRESSES: [&str; 3] = [
    "GatewayFrontendClientCertificateValidation",
    "GatewayFrontendClientCertificateValidationInsecureFallback",
    "GatewayStaticAddresses",
];

/// [`FEATURES`], and those that come with flags: port 8080 of `--gateway-listener-ports`, and what addresses
/// of their own make possible for Gateways; and retries, where routes can ask for them.
pub(crate) fn features(ports: &[u16], addresses: bool, retries: bool) -> Vec<&'static str> {
    let mut all = FEATURES.to_vec();
    all.extend(ports.contains(&8080).then_some("GatewayPort8080"));
    all.extend(OWN_ADDRESSES.into_iter().filter(|_| addresses));
    all.extend(RETRIES.into_iter().filter(|_| retries));
    all.sort_unstable();
    all
}

/// The status of a GatewayClass of ours.
pub(crate) fn class(meta: &Meta, conditions: &[Condition], features: &[&str], now: i64) -> Write {
    let current = parsed(meta);
    let features: Vec<Value> = features.iter().map(|name| json!({ "name": name })).collect();
    let mut wanted = Map::new();
    wanted
        .insert("conditions".into(), merged(&current["conditions"], conditions, meta.generation, now, false));
    wanted.insert("supportedFeatures".into(), features.into());
    let ahead = is_ahead(&current["conditions"], meta.generation);
    write(Kind::GatewayClass, meta, if ahead { None } else { difference(&current, wanted) })
}

/// The status of a Gateway of ours.
pub(crate) fn gateway(
    meta: &Meta,
    conditions: &[Condition],
    addresses: &[(&'static str, Box<str>)],
    listeners: &[ListenerStatus<'_>],
    attached_sets: usize,
    now: i64,
) -> Write {
    let current = parsed(meta);
    if is_ahead(&current["conditions"], meta.generation) {
        return write(Kind::Gateway, meta, None);
    }
    let addresses: Vec<Value> =
        addresses.iter().map(|(kind, value)| json!({ "type": kind, "value": value })).collect();
    let mut wanted = Map::new();
    let mut known = current["conditions"].clone();
    if let Some(known) = known.as_array_mut() {
        // ours as well, and there only while it is true
        known.retain(|c| {
            c["type"] != INSECURE_FRONTEND || conditions.iter().any(|ours| ours.kind == INSECURE_FRONTEND)
        });
    }
    wanted.insert("conditions".into(), merged(&known, conditions, meta.generation, now, false));
    wanted.insert("listeners".into(), of_listeners(&current, listeners, meta.generation, now));
    // an empty list is not kept by the API
    if !(addresses.is_empty() && current["addresses"].is_null()) {
        wanted.insert("addresses".into(), addresses.into());
    }
    // definitions of before ListenerSets do not keep the field
    if attached_sets > 0 || !current["attachedListenerSets"].is_null() {
        wanted.insert("attachedListenerSets".into(), attached_sets.into());
    }
    write(Kind::Gateway, meta, difference(&current, wanted))
}

/// The status of a ListenerSet of a Gateway of ours.
pub(crate) fn listener_set(
    meta: &Meta,
    conditions: &[Condition],
    listeners: &[ListenerStatus<'_>],
    now: i64,
) -> Write {
    let current = parsed(meta);
    if is_ahead(&current["conditions"], meta.generation) {
        return write(Kind::ListenerSet, meta, None);
    }
    let mut wanted = Map::new();
    wanted
        .insert("conditions".into(), merged(&current["conditions"], conditions, meta.generation, now, false));
    if !(listeners.is_empty() && current["listeners"].is_null()) {
        wanted.insert("listeners".into(), of_listeners(&current, listeners, meta.generation, now));
    }
    write(Kind::ListenerSet, meta, difference(&current, wanted))
}

/// `listeners` of a status.
fn of_listeners(current: &Value, listeners: &[ListenerStatus<'_>], generation: i64, now: i64) -> Value {
    let known = |name: &str| {
        let all = current["listeners"].as_array().map(Vec::as_slice).unwrap_or_default();
        all.iter().find(|l| l["name"] == *name).cloned().unwrap_or_default()
    };
    let all = listeners.iter().map(|listener| {
        let old = known(listener.name);
        let kinds: Vec<Value> =
            listener.kinds.iter().map(|kind| json!({ "group": GROUP, "kind": kind })).collect();
        json!({
            "name": listener.name,
            "supportedKinds": kinds,
            "attachedRoutes": listener.attached,
            "conditions": merged(&old["conditions"], listener.conditions, generation, now, true),
        })
    });
    all.collect()
}

/// The status of a route: our entries are these, those of other controllers stay as they are.
pub(crate) fn route(kind: Kind, meta: &Meta, ours: &[ParentStatus<'_>], controller: &str, now: i64) -> Write {
    let ours = ours.iter().map(|parent| (reference(parent.reference), &*parent.conditions));
    let places = Places { list: "parents", reference: "parentRef", room: usize::MAX };
    entries(kind, meta, places, ours.collect(), controller, now)
}

/// The API keeps no more entries than this of a policy's ancestors.
const MAX_ANCESTORS: usize = 16;

/// The status of a BackendTLSPolicy: the same of each of these Gateways, as far as there is room.
pub(crate) fn policy(
    meta: &Meta,
    gateways: &BTreeSet<&Key>,
    conditions: &[Condition],
    controller: &str,
    now: i64,
) -> Write {
    let ancestor = |gateway: &&Key| {
        let Key { namespace, name } = gateway;
        let reference =
            json!({ "group": GROUP, "kind": "Gateway", "namespace": **namespace, "name": **name });
        (reference, conditions)
    };
    let ours = gateways.iter().map(ancestor).collect();
    let places = Places { list: "ancestors", reference: "ancestorRef", room: MAX_ANCESTORS };
    entries(Kind::BackendTlsPolicy, meta, places, ours, controller, now)
}

/// A list in a status that controllers share.
struct Places {
    list: &'static str,
    /// The field of an entry that says what it is about.
    reference: &'static str,
    /// How many entries there can be.
    room: usize,
}

fn entries(
    kind: Kind,
    meta: &Meta,
    places: Places,
    ours: Vec<(Value, &[Condition])>,
    controller: &str,
    now: i64,
) -> Write {
    let Places { list, reference: about, room } = places;
    let current = parsed(meta);
    let empty = Vec::new();
    let entries = current[list].as_array().unwrap_or(&empty);
    let own: Vec<&Value> = entries.iter().filter(|entry| entry["controllerName"] == *controller).collect();
    if own.iter().any(|entry| is_ahead(&entry["conditions"], meta.generation)) {
        return write(kind, meta, None);
    }
    let mut fresh = Vec::with_capacity(ours.len());
    for (reference, conditions) in ours {
        let same = |entry: &&&Value| plain(&entry[about]) == plain(&reference);
        let old = own.iter().find(same);
        let known = old.map_or(&Value::Null, |old| &old["conditions"]);
        let mut entry = json!({
            "controllerName": controller,
            "conditions": merged(known, conditions, meta.generation, now, true),
        });
        entry[about] = old.map_or(reference, |old| old[about].clone());
        fresh.push(entry);
    }
    // in the places that they have already
    let place = |entry: &Value| own.iter().position(|old| old[about] == entry[about]).unwrap_or(usize::MAX);
    fresh.sort_by_key(place);
    fresh.truncate(room.saturating_sub(entries.len() - own.len()));
    let mut fresh = fresh.into_iter();
    let mut all: Vec<Value> = Vec::with_capacity(entries.len());
    for entry in entries {
        if entry["controllerName"] == *controller {
            all.extend(fresh.next());
        } else {
            all.push(entry.clone());
        }
    }
    all.extend(fresh);
    let mut wanted = Map::new();
    if !(all.is_empty() && current[list].is_null()) {
        wanted.insert(list.into(), all.into());
    }
    write(kind, meta, difference(&current, wanted))
}

/// A reference with what the API fills in where it is left out.
fn reference(parent: &ParentRef) -> Value {
    let mut value = serde_json::to_value(parent).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.entry("group").or_insert_with(|| GROUP.into());
        fields.entry("kind").or_insert_with(|| "Gateway".into());
    }
    value
}

/// For comparing: without what stands for its own absence.
fn plain(reference: &Value) -> Value {
    let mut value = reference.clone();
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
        fields.entry("group").or_insert_with(|| GROUP.into());
        fields.entry("kind").or_insert_with(|| "Gateway".into());
    }
    value
}

/// The IP addresses that the status of a Gateway tells.
pub(crate) fn addresses(meta: &Meta) -> Vec<IpAddr> {
    let status = parsed(meta);
    let addresses = status["addresses"].as_array().into_iter().flatten();
    addresses.filter_map(|address| address["value"].as_str()?.parse().ok()).collect()
}

fn parsed(meta: &Meta) -> Value {
    serde_json::from_str(&meta.status).unwrap_or_default()
}

fn write(kind: Kind, meta: &Meta, status: Option<Value>) -> Write {
    let change = match status {
        Some(status) => Change::Status { from: meta.resource_version.clone(), status },
        None => Change::Nothing,
    };
    let (kind, plural) = match kind {
        Kind::GatewayClass => ("GatewayClass", "gatewayclasses"),
        Kind::Gateway => ("Gateway", "gateways"),
        Kind::ListenerSet => ("ListenerSet", "listenersets"),
        Kind::GrpcRoute => ("GRPCRoute", "grpcroutes"),
        Kind::BackendTlsPolicy => ("BackendTLSPolicy", "backendtlspolicies"),
        Kind::TlsRoute => ("TLSRoute", "tlsroutes"),
        _ => ("HTTPRoute", "httproutes"),
    };
    let (namespace, name) = (meta.key.namespace.clone(), meta.key.name.clone());
    Write { target: Target { group: GROUP, version: "v1", kind, plural, namespace, name }, change }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "tak-os.org/gateway-controller";

    fn meta(generation: i64, status: &Value) -> Meta {
        Meta {
            key: Key::new("shop", "web"),
            uid: "u".into(),
            resource_version: "7".into(),
            generation,
            created: 0,
            status: status.to_string().into(),
        }
    }

    fn parent(name: &str) -> ParentRef {
        ParentRef { name: name.into(), ..Default::default() }
    }

    fn accepted() -> Condition {
        Condition::new("Accepted", true, "Accepted", "")
    }

    fn of_route(meta: &Meta, names: &[&str]) -> Change {
        let parents: Vec<_> = names.iter().map(|name| parent(name)).collect();
        let ours: Vec<_> = parents
            .iter()
            .map(|reference| ParentStatus { reference, conditions: vec![accepted()] })
            .collect();
        route(Kind::HttpRoute, meta, &ours, OURS, 0).change
    }

    /// The status after a change, as the API keeps it.
    fn after(mut status: Value, change: &Change) -> Value {
        if let Change::Status { status: Value::Object(fields), .. } = change {
            for (field, value) in fields {
                status[field] = value.clone();
            }
        }
        status
    }

    #[test]
    fn entries_of_other_controllers_are_never_touched() {
        let theirs = json!({ "controllerName": "example.com/c", "parentRef": { "name": "x" }, "conditions": [],
                             "later": 1 });
        let before = json!({ "parents": [theirs] });
        let change = of_route(&meta(1, &before), &["gw", "gw2"]);
        let status = after(before, &change);
        assert_eq!(status["parents"][0], theirs);
        assert_eq!(status["parents"][1]["parentRef"]["name"], "gw");
        assert_eq!(status["parents"].as_array().unwrap().len(), 3);
        // one goes; the other keeps what it has
        let fewer = after(status.clone(), &of_route(&meta(1, &status), &["gw2"]));
        assert_eq!(fewer["parents"], json!([theirs, status["parents"][2]]));
        let none = after(fewer.clone(), &of_route(&meta(1, &fewer), &[]));
        assert_eq!(none["parents"], json!([theirs]));
    }

    #[test]
    fn a_status_that_is_right_is_not_written() {
        let change = of_route(&meta(1, &Value::Null), &["gw"]);
        let status = after(json!({}), &change);
        assert_eq!(of_route(&meta(1, &status), &["gw"]), Change::Nothing);
        assert_eq!(of_route(&meta(1, &json!({})), &[]), Change::Nothing);
        assert!(matches!(of_route(&meta(2, &status), &["gw"]), Change::Status { from, .. } if &*from == "7"));
    }

    #[test]
    fn a_status_of_a_later_generation_is_left_to_whoever_knows_it() {
        let status = after(json!({}), &of_route(&meta(3, &Value::Null), &["gw"]));
        assert_eq!(of_route(&meta(2, &status), &[]), Change::Nothing);
    }

    #[test]
    fn so_is_that_of_every_other_kind() {
        type Of = fn(&Meta) -> Change;
        fn listeners() -> [ListenerStatus<'static>; 1] {
            [ListenerStatus { name: "http", kinds: vec!["HTTPRoute"], attached: 1, conditions: &[] }]
        }
        let kinds: [(&str, Of); 4] = [
            ("class", |meta| class(meta, &[accepted()], &["HTTPRoute"], 0).change),
            ("gateway", |meta| gateway(meta, &[accepted()], &[], &listeners(), 1, 0).change),
            ("set", |meta| listener_set(meta, &[accepted()], &listeners(), 0).change),
            ("policy", |meta| {
                policy(meta, &BTreeSet::from([&Key::new("infra", "gw")]), &[accepted()], OURS, 0).change
            }),
        ];
        for (kind, of) in kinds {
            let known = after(json!({}), &of(&meta(3, &Value::Null)));
            assert!(matches!(of(&meta(4, &known)), Change::Status { .. }), "{kind}");
            assert_eq!(of(&meta(2, &known)), Change::Nothing, "{kind}");
        }
    }

    #[test]
    fn a_policy_has_an_entry_for_each_gateway_as_far_as_there_is_room() {
        let of = |meta: &Meta, names: &[&str]| {
            let keys: Vec<_> = names.iter().map(|name| Key::new("infra", *name)).collect();
            policy(meta, &keys.iter().collect(), &[accepted()], OURS, 0)
        };
        let theirs = json!({ "controllerName": "example.com/c", "ancestorRef": { "name": "gw" } });
        let before = json!({ "ancestors": [theirs] });
        let write = of(&meta(1, &before), &["z"]);
        assert_eq!(write.target.to_string(), "backendtlspolicy/shop/web");
        let status = after(before, &write.change);
        assert_eq!(status["ancestors"][0], theirs);
        assert_eq!(status["ancestors"][1]["ancestorRef"]["name"], "z");
        assert_eq!(of(&meta(1, &status), &["z"]).change, Change::Nothing);
        // who is there already stays
        let names: Vec<_> = ('a'..='z').map(String::from).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let full = after(status.clone(), &of(&meta(1, &status), &names).change);
        let all = full["ancestors"].as_array().unwrap();
        assert_eq!((all.len(), &all[0], &all[1]), (16, &theirs, &status["ancestors"][1]));
        assert_eq!(of(&meta(1, &full), &names).change, Change::Nothing);
        let none = after(full.clone(), &of(&meta(1, &full), &[]).change);
        assert_eq!(none["ancestors"], json!([theirs]));
    }

    #[test]
    fn a_gateways_listeners_are_all_ours() {
        let listener = |name| ListenerStatus { name, kinds: vec!["HTTPRoute"], attached: 2, conditions: &[] };
        let before = json!({ "listeners": [{ "name": "old" }], "conditions": [{ "type": "Theirs" }] });
        let addresses = [("IPAddress", Box::<str>::from("192.0.2.1"))];
        let write = gateway(&meta(1, &before), &[accepted()], &addresses, &[listener("http")], 0, 0);
        assert_eq!(write.target.to_string(), "gateway/shop/web");
        let status = after(before, &write.change);
        assert_eq!(status["listeners"][0]["name"], "http");
        assert_eq!(status["listeners"][0]["attachedRoutes"], 2);
        assert_eq!(status["addresses"], json!([{ "type": "IPAddress", "value": "192.0.2.1" }]));
        assert_eq!(status["conditions"][0]["type"], "Theirs");
        let again = gateway(&meta(1, &status), &[accepted()], &addresses, &[listener("http")], 0, 99);
        assert_eq!(again.change, Change::Nothing);
    }

    #[test]
    fn a_gateway_is_insecure_only_as_long_as_it_is() {
        let insecure = || Condition::new(INSECURE_FRONTEND, true, "ConfigurationChanged", "");
        let before = json!({ "conditions": [{ "type": "Theirs" }] });
        let of = |current: &Value, conditions: &[Condition]| {
            let write = gateway(&meta(1, current), conditions, &[], &[], 0, 0);
            after(current.clone(), &write.change)
        };
        let types = |status: &Value| -> Vec<String> {
            let all = status["conditions"].as_array().unwrap().iter();
            all.map(|c| c["type"].as_str().unwrap().to_owned()).collect()
        };
        let status = of(&before, &[accepted(), insecure()]);
        assert_eq!(types(&status), ["Theirs", "Accepted", INSECURE_FRONTEND]);
        assert_eq!(of(&status, &[accepted(), insecure()]), status);
        assert_eq!(types(&of(&status, &[accepted()])), ["Theirs", "Accepted"]);
    }

    #[test]
    fn a_class_says_what_it_supports_in_order() {
        let features = features(&[80, 443, 8080], true, false);
        assert_eq!(features.len(), FEATURES.len() + 1 + OWN_ADDRESSES.len());
        assert!(features.contains(&"GatewayPort8080"));
        assert!(OWN_ADDRESSES.iter().all(|name| features.contains(name)));
        assert_eq!(super::features(&[80, 443], false, false), FEATURES);
        let with_retries = super::features(&[80, 443], false, true);
        assert_eq!(with_retries.len(), FEATURES.len() + 3);
        assert!(RETRIES.iter().all(|name| with_retries.contains(name)));
        let write = class(&meta(1, &Value::Null), &[accepted()], &features, 0);
        let status = after(json!({}), &write.change);
        let names: Vec<_> = status["supportedFeatures"]
            .as_array()
            .unwrap()
            .iter()
            .map(|f| f["name"].as_str().unwrap())
            .collect();
        assert!(names.is_sorted());
        assert_eq!(class(&meta(1, &status), &[accepted()], &features, 9).change, Change::Nothing);
    }
}
