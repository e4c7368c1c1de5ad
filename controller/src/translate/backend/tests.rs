use super::*;

const OBJECTS: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: ns}
spec: {ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53}]}
---
apiVersion: v1
kind: Service
metadata: {name: pods, namespace: ns}
spec: {clusterIP: None, ports: [{name: http, port: 80}, {name: other, port: 81}]}
---
apiVersion: v1
kind: Service
metadata: {name: empty, namespace: ns}
spec: {clusterIP: None, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: out, namespace: ns}
spec: {type: ExternalName, externalName: API.example.com.}
---
apiVersion: v1
kind: Service
metadata: {name: out-ip, namespace: ns}
spec: {type: ExternalName, externalName: '[::1]', ports: [{name: http, port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: out-odd, namespace: ns}
spec: {type: ExternalName, externalName: 'a b'}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: pods-2, namespace: ns, labels: {kubernetes.io/service-name: pods}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.0.0.2]}, {addresses: [10.0.0.1]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: pods-1, namespace: ns, labels: {kubernetes.io/service-name: pods}}
addressType: IPv6
ports: [{name: http, port: 8081}]
endpoints: [{addresses: ['fd00::1']}, {addresses: [10.0.0.2]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: bare, namespace: ns, labels: {kubernetes.io/service-name: bare}}
addressType: IPv4
ports: [{port: 3000}]
endpoints: [{addresses: [127.0.0.1]}]
";

fn resolve(settings: &Settings, service: &str, port: PortRef) -> (Arc<Backend>, Option<Reason>) {
    let cluster = Cluster::from_yaml(OBJECTS).unwrap();
    let key = Key::new("ns", service);
    let (backend, problem) =
        Backends::default().resolve(&key, &port, Connection::default(), &cluster, settings);
    (backend, problem.map(|(reason, _)| reason))
}

fn shown(backend: &Backend) -> String {
    match &backend.address {
        BackendAddress::Name(name, port) => format!("{name}:{port}"),
        BackendAddress::Endpoints(all) => all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
        BackendAddress::Unavailable(why) => format!("{why:?}"),
    }
}

fn number(number: i32) -> PortRef {
    PortRef::Number(number)
}

fn name(name: &str) -> PortRef {
    PortRef::Name(name.into())
}

#[test]
fn services_are_reached_by_name_and_service_port() {
    let settings = Settings::default();
    for (port, want, resolved, reason) in [
        (number(80), "web.ns.svc.cluster.local.:80", 80, None),
        (name("http"), "web.ns.svc.cluster.local.:80", 80, None),
        (number(53), "web.ns.svc.cluster.local.:53", 53, None),
        (name("dns"), "NoPort", 0, Some(Reason::ServicePortNotFound)),
        (number(8080), "NoPort", 8080, Some(Reason::ServicePortNotFound)),
        (name("https"), "NoPort", 0, Some(Reason::ServicePortNotFound)),
        (number(0), "NoPort", 0, Some(Reason::ServicePortNotFound)),
        (number(70_000), "NoPort", 0, Some(Reason::ServicePortNotFound)),
        (PortRef::None, "NoPort", 0, Some(Reason::ServicePortNotFound)),
    ] {
        let (backend, problem) = resolve(&settings, "web", port.clone());
        assert_eq!(
            (shown(&backend).as_str(), backend.service.port, problem),
            (want, resolved, reason),
            "{port:?}"
        );
        assert_eq!(&*backend.tls_name, "web.ns.svc");
    }
    let (backend, problem) = resolve(&settings, "gone", number(80));
    assert_eq!((shown(&backend).as_str(), problem), ("NoService", Some(Reason::ServiceNotFound)));
    let domain = Settings { cluster_domain: "corp.example.".into(), ..settings };
    assert_eq!(shown(&resolve(&domain, "web", number(80)).0), "web.ns.svc.corp.example.:80");
}

#[test]
fn headless_services_are_reached_by_their_endpoints() {
    let settings = Settings::default();
    let (backend, problem) = resolve(&settings, "pods", number(80));
    assert_eq!(shown(&backend), "10.0.0.1:8080 10.0.0.2:8080 10.0.0.2:8081 [fd00::1]:8081");
    assert_eq!((backend.service.port, problem), (80, None));
    let (backend, problem) = resolve(&settings, "pods", name("other"));
    assert_eq!((shown(&backend).as_str(), problem), ("NoEndpoints", Some(Reason::NoEndpoints)));
    let (backend, problem) = resolve(&settings, "empty", number(80));
    assert_eq!((shown(&backend).as_str(), problem), ("NoEndpoints", None), "not the Ingress's mistake");
}

#[test]
fn external_names_are_refused_unless_allowed() {
    let refused = Settings::default();
    for service in ["out", "out-ip", "out-odd"] {
        let (backend, problem) = resolve(&refused, service, number(8080));
        assert_eq!((shown(&backend).as_str(), problem), ("ExternalName", Some(Reason::ExternalNameRefused)));
    }
    let allowed = Settings { allow_external_name: true, ..refused };
    let (backend, problem) = resolve(&allowed, "out", number(443));
    assert_eq!((shown(&backend).as_str(), problem), ("api.example.com.:443", None));
    assert_eq!(&*backend.tls_name, "api.example.com");
    assert_eq!(resolve(&allowed, "out", name("http")).1, Some(Reason::ServicePortNotFound));
    assert_eq!(shown(&resolve(&allowed, "out-ip", name("http")).0), "[::1]:8080");
    let (backend, problem) = resolve(&allowed, "out-odd", number(80));
    assert_eq!((shown(&backend).as_str(), problem), ("ExternalName", Some(Reason::InvalidExternalName)));
}

#[test]
fn without_a_cluster_slices_stand_in_for_dns() {
    let files = Settings { backends_from_slices: true, ..Settings::default() };
    for (service, port, want, reason) in [
        ("pods", number(80), "10.0.0.1:8080 10.0.0.2:8080 10.0.0.2:8081 [fd00::1]:8081", None),
        ("web", number(80), "NoEndpoints", Some(Reason::NoEndpoints)),
        ("out", number(80), "api.example.com.:80", None),
        ("bare", number(80), "127.0.0.1:3000", None),
        ("bare", name("http"), "NoService", Some(Reason::ServiceNotFound)),
        ("gone", number(80), "NoService", Some(Reason::ServiceNotFound)),
    ] {
        let (backend, problem) = resolve(&files, service, port);
        assert_eq!((shown(&backend).as_str(), problem), (want, reason), "{service}");
    }
}

#[test]
fn equal_backends_are_one_and_unused_ones_are_let_go() {
    let cluster = Cluster::from_yaml(OBJECTS).unwrap();
    let mut backends = Backends::default();
    let mut resolve = |name: &str, connection| {
        backends.resolve(&Key::new("ns", name), &number(80), connection, &cluster, &Settings::default()).0
    };
    let plain = resolve("web", Connection::default());
    let unverified = resolve("web", Connection { verify: false, ..Connection::default() });
    assert!(Arc::ptr_eq(&plain, &resolve("web", Connection::default())) && plain != unverified);
    for i in 0..1000 {
        resolve(&format!("gone-{i}"), Connection::default());
    }
    assert!(Arc::ptr_eq(&plain, &resolve("web", Connection::default())));
    assert!(backends.len <= 200, "{}", backends.len);
}
