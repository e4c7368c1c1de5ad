use super::*;

fn objects(text: &str) -> Cluster {
    Cluster::from_yaml(text).unwrap()
}

fn service(name: &str, version: &str, port: u16) -> ServiceObject {
    let text = format!(
        "{{apiVersion: v1, kind: Service, metadata: {{namespace: ns, name: {name}, resourceVersion: '{version}'}}, \
         spec: {{ports: [{{port: {port}}}]}}}}"
    );
    let cluster = objects(&text);
    cluster.services.values().next().map(|service| (**service).clone()).unwrap()
}

fn slice(name: &str, ip: &str) -> SliceObject {
    SliceObject {
        name: SliceName { name: name.into(), foreign: false },
        ports: [("".into(), 80)].into(),
        addresses: [ip.parse().unwrap()].into(),
    }
}

fn dirty(change: impl FnOnce(&mut Dirty)) -> Vec<String> {
    let mut dirty = Dirty::default();
    change(&mut dirty);
    let mut keys: Vec<_> = dirty.services.iter().map(Key::to_string).collect();
    keys.sort();
    keys
}

#[test]
fn what_is_not_read_makes_nothing_dirty() {
    let mut cluster = Cluster::default();
    assert_eq!(dirty(|d| cluster.apply_service(service("a", "1", 80), d)), ["ns/a"]);
    assert!(dirty(|d| cluster.apply_service(service("a", "2", 80), d)).is_empty(), "a label, say");
    assert_eq!(dirty(|d| cluster.apply_service(service("a", "3", 81), d)), ["ns/a"]);
    assert!(dirty(|d| cluster.remove_service(&Key::new("ns", "b"), d)).is_empty());
    assert_eq!(dirty(|d| cluster.remove_service(&Key::new("ns", "a"), d)), ["ns/a"]);
}

#[test]
fn a_list_of_the_same_objects_dirties_nothing_and_keeps_them() {
    let mut cluster = Cluster::default();
    let list = || vec![service("a", "1", 80), service("b", "1", 80)];
    assert_eq!(dirty(|d| cluster.replace_services(list(), d)), ["ns/a", "ns/b"]);
    let before = cluster.services[&Key::new("ns", "a")].clone();
    assert!(dirty(|d| cluster.replace_services(list(), d)).is_empty());
    assert!(Arc::ptr_eq(&before, &cluster.services[&Key::new("ns", "a")]));
    let changed = vec![service("b", "2", 81), service("c", "1", 80)];
    assert_eq!(dirty(|d| cluster.replace_services(changed, d)), ["ns/a", "ns/b", "ns/c"]);
    assert_eq!(cluster.services.len(), 2);
}

#[test]
fn slices_follow_their_service() {
    let mut cluster = Cluster::default();
    let (a, b) = (Key::new("ns", "a"), Key::new("ns", "b"));
    assert_eq!(dirty(|d| cluster.apply_slice(a.clone(), slice("s1", "10.0.0.1"), d)), ["ns/a"]);
    assert!(dirty(|d| cluster.apply_slice(a.clone(), slice("s1", "10.0.0.1"), d)).is_empty());
    assert_eq!(dirty(|d| cluster.apply_slice(b.clone(), slice("s1", "10.0.0.1"), d)), ["ns/a", "ns/b"]);
    assert!(!cluster.slices.contains_key(&a) && cluster.slices[&b].len() == 1);
    let list = || vec![(b.clone(), slice("s1", "10.0.0.1")), (b.clone(), slice("s2", "10.0.0.2"))];
    assert_eq!(dirty(|d| cluster.replace_slices(list(), d)), ["ns/b"]);
    assert!(dirty(|d| cluster.replace_slices(list(), d)).is_empty());
    assert_eq!(dirty(|d| cluster.remove_slice(&b, &slice("s1", "10.0.0.1").name, d)), ["ns/b"]);
    assert_eq!(dirty(|d| cluster.replace_slices(vec![], d)), ["ns/b"]);
    assert!(cluster.slices.is_empty() && cluster.slice_owners.is_empty());
}

#[test]
fn classes_and_secrets_are_compared_too() {
    let text =
        "{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: c}, spec: {controller: x}}";
    let class = |controller: &str| {
        let cluster = objects(&text.replace(": x}", &format!(": {controller}}}")));
        (*cluster.classes["c"]).clone()
    };
    let (mut cluster, mut d) = (Cluster::default(), Dirty::default());
    cluster.apply_class(class("one"), &mut d);
    assert!(std::mem::take(&mut d).classes);
    cluster.replace_classes(vec![class("one")], &mut d);
    assert!(d.is_empty());
    cluster.replace_classes(vec![class("two")], &mut d);
    assert!(std::mem::take(&mut d).classes);
    cluster.remove_class(&"c".into(), &mut d);
    assert!(std::mem::take(&mut d).classes);

    let secret = |value: &str, version: &str| SecretObject {
        key: Key::new("ns", "s"),
        uid: "".into(),
        resource_version: version.into(),
        secret_type: "kubernetes.io/tls".into(),
        data: [("tls.crt".into(), value.as_bytes().into())].into(),
    };
    cluster.apply_secret(secret("1", "1"), &mut d);
    assert_eq!(std::mem::take(&mut d).secrets.len(), 1);
    cluster.replace_secrets(vec![secret("1", "2")], &mut d);
    assert!(d.is_empty());
    cluster.replace_secrets(vec![secret("2", "3")], &mut d);
    assert_eq!(std::mem::take(&mut d).secrets.len(), 1);
    cluster.remove_secret(&Key::new("ns", "s"), &mut d);
    assert_eq!(d.secrets.len(), 1);
}

#[test]
fn namespaces_are_kept_once() {
    let mut cluster = Cluster::default();
    let mut d = Dirty::default();
    cluster.apply_service(service("a", "1", 80), &mut d);
    cluster.apply_service(service("b", "1", 80), &mut d);
    let mut names = cluster.services.values().map(|service| &service.key.namespace);
    let (Some(a), Some(b)) = (names.next(), names.next()) else { panic!("two services") };
    assert!(Arc::ptr_eq(a, b));
}
