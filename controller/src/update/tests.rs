use super::*;

fn ingress(namespace: &str, name: &str, version: &str) -> Object {
    let ingress: Ingress = serde_json::from_value(serde_json::json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": { "namespace": namespace, "name": name, "resourceVersion": version }
    }))
    .unwrap();
    ingress.reduce().unwrap_or_else(|_| unreachable!())
}

fn list(namespace: Option<&str>, objects: Vec<Object>) -> Update {
    let part = Part { kind: Kind::Ingress, namespace: namespace.map(Into::into), labels: None };
    Update::List { part, objects }
}

fn names(keys: impl Iterator<Item = Key>) -> Vec<String> {
    let mut names: Vec<_> = keys.map(|k| format!("{}/{}", k.namespace, k.name)).collect();
    names.sort();
    names
}

#[test]
fn a_list_takes_out_what_it_does_not_hold() {
    let (mut cluster, mut dirty) = (Cluster::default(), Dirty::default());
    list(None, vec![ingress("a", "x", "1"), ingress("a", "y", "1")]).apply(&mut cluster, &mut dirty);
    dirty = Dirty::default();
    list(None, vec![ingress("a", "y", "1"), ingress("b", "z", "2")]).apply(&mut cluster, &mut dirty);
    assert_eq!(names(cluster.ingresses.keys().cloned()), ["a/y", "b/z"]);
    assert_eq!(names(dirty.ingresses.into_iter()), ["a/x", "b/z"], "what stayed the same is not dirty");
}

#[test]
fn a_namespaces_list_leaves_the_others_alone() {
    let (mut cluster, mut dirty) = (Cluster::default(), Dirty::default());
    list(Some("a"), vec![ingress("a", "x", "1"), ingress("a", "y", "1")]).apply(&mut cluster, &mut dirty);
    list(Some("b"), vec![ingress("b", "x", "1")]).apply(&mut cluster, &mut dirty);
    dirty = Dirty::default();
    list(Some("a"), vec![ingress("a", "y", "2")]).apply(&mut cluster, &mut dirty);
    assert_eq!(names(cluster.ingresses.keys().cloned()), ["a/y", "b/x"]);
    assert_eq!(names(dirty.ingresses.into_iter()), ["a/x", "a/y"]);
}

fn slice(name: &str, address: &str, headless: bool) -> Object {
    let label = if headless { HEADLESS } else { "app" };
    let slice: EndpointSlice = serde_json::from_value(serde_json::json!({
        "metadata": { "namespace": "a", "name": name, "labels": { "kubernetes.io/service-name": "web", label: "" } },
        "addressType": "IPv4", "ports": [{ "port": 80 }], "endpoints": [{ "addresses": [address] }]
    }))
    .unwrap();
    slice.reduce().unwrap_or_else(|_| unreachable!())
}

#[test]
fn lists_of_two_selectors_leave_each_other_alone() {
    let (mut cluster, mut dirty) = (Cluster::default(), Dirty::default());
    let mut tell = |update: Update| {
        update.apply(&mut cluster, &mut dirty);
        let slices = cluster.slices.values().flat_map(|slices| slices.values());
        let mut known: Vec<_> = slices.map(|s| format!("{}={}", s.name.name, s.addresses[0])).collect();
        known.sort();
        known.join(" ")
    };
    let list = |labels: &str, namespace: Option<&str>, objects: Vec<Object>| {
        let (namespace, labels) = (namespace.map(Into::into), Some(labels.into()));
        Update::List { part: Part { kind: Kind::EndpointSlice, namespace, labels }, objects }
    };
    let (x, y) = (slice("x", "10.0.0.1", true), slice("y", "10.0.0.2", false));
    assert_eq!(tell(list(HEADLESS, None, vec![x.clone()])), "x=10.0.0.1");
    assert_eq!(tell(list(FOREIGN, None, vec![y.clone()])), "x=10.0.0.1 y=10.0.0.2");
    assert_eq!(tell(list(HEADLESS, None, vec![])), "y=10.0.0.2");
    assert_eq!(tell(list(FOREIGN, Some("b"), vec![])), "y=10.0.0.2", "another namespace");
    // it gets the label: the list that it enters tells first, then the one that it leaves
    assert_eq!(tell(Update::Apply(slice("y", "10.0.0.3", true))), "y=10.0.0.2 y=10.0.0.3");
    assert_eq!(tell(Update::Remove(y.name())), "y=10.0.0.3");
    assert_eq!(tell(list(FOREIGN, Some("a"), vec![])), "y=10.0.0.3");
    assert_eq!(tell(list(HEADLESS, Some("a"), vec![])), "");
}

#[test]
fn secrets_that_nothing_can_refer_to_are_not_kept() {
    let secret = |kind: &str| -> Secret {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": { "namespace": "a", "name": "s" }
        }))
        .unwrap()
    };
    assert!(secret("kubernetes.io/tls").reduce().is_ok());
    assert!(secret("Opaque").reduce().is_ok());
    let name = Name::Secret(Key { namespace: "a".into(), name: "s".into() });
    let dropped = secret("kubernetes.io/service-account-token").reduce().err();
    assert_eq!(dropped, Some(Some(name)));
}
