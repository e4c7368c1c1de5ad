use super::*;
use crate::cluster::{MAX_SECRET_VALUE, PathBackend, PathType, PortRef};

fn names(text: &str) -> Vec<String> {
    parse_documents(text)
        .into_iter()
        .map(|parsed| match parsed {
            Ok(Parsed::Ingress(o)) => format!("ingress {}", o.key),
            Ok(Parsed::Class(o)) => format!("class {}", o.name),
            Ok(Parsed::Service(o)) => format!("service {}", o.key),
            Ok(Parsed::Slice(service, o)) => format!("slice {} of {service}", o.name.name),
            Ok(Parsed::Certificate(ingress, o)) => format!("certificate {} of {ingress}", o.block),
            Ok(Parsed::Secret(o)) => format!("secret {}", o.key),
            Ok(Parsed::Namespace(o)) => format!("namespace {}", o.name),
            Ok(Parsed::ConfigMap(o)) => format!("configmap {}", o.key),
            Ok(Parsed::GatewayApi(o)) => format!("{} {}", o.kind(), o.meta().key),
            Ok(Parsed::Other) => "other".into(),
            Err(problem) => problem.to_string(),
        })
        .collect()
}

fn first(text: &str) -> Parsed {
    parse_documents(text).remove(0).unwrap()
}

#[test]
fn documents_lists_and_other_kinds() {
    let text = "# a comment
---
apiVersion: v1
kind: Service
metadata: {name: a, namespace: ns}
---
# nothing here
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
--- # another
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Service, metadata: {name: b}}
- apiVersion: networking.k8s.io/v1
  kind: IngressList
  items:
  - metadata: {name: i, namespace: ns}
- {apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: c}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s, labels: {kubernetes.io/service-name: a}}
addressType: IPv4
endpoints: []
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: stray}
addressType: IPv4
endpoints: []
---
apiVersion: networking.internal.knative.dev/v1alpha1
kind: Ingress
metadata: {name: k}
...
";
    assert_eq!(
        names(text),
        [
            "service ns/a",
            "other",
            "service default/b",
            "ingress ns/i",
            "class c",
            "slice s of default/a",
            "other",
            "other"
        ]
    );
    assert_eq!(names(&text.replace('\n', "\r\n")).len(), 8);
    assert!(names("").is_empty() && names("\u{feff}---\n---\n\n").is_empty());
}

#[test]
fn one_broken_document_costs_no_other() {
    let text = "apiVersion: v1
kind: Service
metadata: {name: a}
---
kind: [unclosed
---
apiVersion: v1
kind: Service
metadata: {name: b}
---
just text
---
apiVersion: v1
kind: Service
---
apiVersion: extensions/v1beta1
kind: Ingress
metadata: {name: old}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: i, annotations: {ingress.tak-os.org/ssl-redirect: false}}
";
    let names = names(text);
    assert_eq!(names.len(), 7, "{names:?}");
    assert_eq!((names[0].as_str(), names[2].as_str()), ("service default/a", "service default/b"));
    // lines of the file, not of the document
    assert!(names[1].starts_with("line 5: ") && names[1].contains("at line 5"), "{names:?}");
    assert_eq!(names[3], "line 10: apiVersion or kind is missing");
    assert_eq!(names[4], "line 12: Service without metadata.name");
    assert_eq!(
        names[5],
        "line 15: Ingress old: apiVersion \"extensions/v1beta1\" is not read, networking.k8s.io/v1 is"
    );
    assert!(names[6].starts_with("line 19: Ingress i: invalid type: boolean"), "{names:?}");
    assert!(Cluster::from_yaml(text).is_err());
}

#[test]
fn an_ingress_is_reduced_to_what_is_read() {
    let Parsed::Ingress(ingress) = first(
        "apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: app
  namespace: shop
  uid: u1
  resourceVersion: '5'
  creationTimestamp: 2024-01-01T00:00:00Z
  labels: {acme.cert-manager.io/http01-solver: 'true'}
  annotations:
    ingress.tak-os.org/ssl-redirect: 'false'
    cert-manager.io/cluster-issuer: x
    kubernetes.io/ingress.class: old
    kubectl.kubernetes.io/last-applied-configuration: '{}'
spec:
  ingressClassName: tak-os
  defaultBackend: {service: {name: d, port: {number: 1}}}
  tls: [{hosts: [a.b], secretName: s}, {secretName: ''}]
  rules:
  - host: a.b
    http:
      paths:
      - {path: /x, pathType: Exact, backend: {service: {name: web, port: {number: 80}}}}
      - {pathType: ImplementationSpecific, backend: {service: {name: web, port: {name: http}}}}
      - {path: /r, pathType: Odd, backend: {resource: {kind: Bucket, name: b}}}
      - {path: /n, pathType: Prefix, backend: {service: {name: web}}}
  - {}
",
    ) else {
        panic!("an Ingress")
    };
    assert_eq!((&*ingress.uid, &*ingress.resource_version, ingress.created), ("u1", "5", 1_704_067_200));
    assert_eq!(ingress.class.as_deref(), Some("tak-os"));
    let keys: Vec<_> = ingress.annotations.iter().map(|(key, _)| key).collect();
    assert_eq!(
        keys,
        ["cert-manager.io/cluster-issuer", "ingress.tak-os.org/ssl-redirect", "kubernetes.io/ingress.class"]
    );
    assert!(ingress.default_backend);
    assert_eq!((ingress.tls[0].secret.as_deref(), ingress.tls[1].secret.as_deref()), (Some("s"), None));
    let paths = &ingress.rules[0].paths;
    let types: Vec<_> = paths.iter().map(|path| path.path_type).collect();
    assert_eq!(
        types,
        [PathType::Exact, PathType::ImplementationSpecific, PathType::Unknown, PathType::Prefix]
    );
    let service = |port| PathBackend::Service { name: "web".into(), port };
    assert_eq!(paths[0].backend, service(PortRef::Number(80)));
    assert_eq!(paths[1].backend, service(PortRef::Name("http".into())));
    assert_eq!((paths[1].path.as_deref(), &paths[2].backend), (None, &PathBackend::Resource));
    assert_eq!(paths[3].backend, service(PortRef::None));
    assert!(ingress.rules[1].host.is_empty() && ingress.rules[1].paths.is_empty());
}

#[test]
fn services_and_slices_are_reduced_to_what_is_read() {
    let Parsed::Service(service) = first(
        "apiVersion: v1
kind: Service
metadata: {name: a}
spec:
  clusterIP: None
  ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}, {port: 99999}]
",
    ) else {
        panic!("a Service")
    };
    assert!(service.headless && service.external_name.is_none());
    let ports: Vec<_> = service.ports.iter().map(|p| (&*p.name, p.port, p.tcp)).collect();
    assert_eq!(ports, [("http", 80, true), ("dns", 53, false)]);

    let Parsed::Slice(_, slice) = first(
        "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s, labels: {kubernetes.io/service-name: a}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: dns, port: 53, protocol: UDP}, {port: 9}, {name: all}]
endpoints:
- {addresses: [10.0.0.1, 10.9.9.9]}
- {addresses: [10.0.0.2], conditions: {ready: false}}
- {addresses: [10.0.0.3], conditions: {ready: true}}
- {addresses: [not-an-ip]}
",
    ) else {
        panic!("a slice")
    };
    let ports: Vec<_> = slice.ports.iter().map(|(name, port)| (&**name, *port)).collect();
    assert_eq!(ports, [("http", 8080), ("", 9)]);
    let addresses: Vec<_> = slice.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["10.0.0.1", "10.0.0.3"]);
}

#[test]
fn of_a_secret_only_what_its_type_needs_is_kept_and_nothing_is_printed() {
    let secret = |kind: &str, body: &str| {
        let text = format!("{{apiVersion: v1, kind: Secret, type: {kind}, metadata: {{name: s}}, {body}}}");
        let Parsed::Secret(secret) = first(&text) else { panic!("a Secret") };
        secret
    };
    let body = "data: {tls.crt: aGVsbG8=, tls.key: a2V5, ca.crt: eA==}, stringData: {tls.key: plain}";
    let tls = secret("kubernetes.io/tls", body);
    let data: Vec<_> = tls.data.iter().map(|(key, value)| (&**key, &**value)).collect();
    assert_eq!(data, [("tls.crt", &b"hello"[..]), ("tls.key", b"plain")], "stringData wins");
    assert!(!format!("{tls:?}").contains("plain") && !format!("{tls:?}").contains("104"), "{tls:?}");
    assert!(secret("Opaque", body).data.is_empty());
    let body = "stringData: {auth: a, client-id: b, cookie_secret: c, cookie-secret: d, password: e}";
    let opaque = secret("Opaque", body);
    let data: Vec<_> = opaque.data.iter().map(|(key, value)| (&**key, &**value)).collect();
    assert_eq!(data, [("auth", &b"a"[..]), ("client_id", b"b"), ("cookie_secret", b"c"), ("password", b"")]);
    assert!(secret("kubernetes.io/tls", body).data.is_empty());
    let large = format!("stringData: {{tls.crt: {}}}", "x".repeat(MAX_SECRET_VALUE + 100));
    assert_eq!(secret("kubernetes.io/tls", &large).data["tls.crt"].len(), MAX_SECRET_VALUE + 1);
    for broken in [
        "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {k: hunter2!}",
        "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {k: [hunter2]}",
        "apiVersion: v1\nkind: Secret\nstringData: {hunter2: 'hunter2}\n",
        "apiVersion: v1\nkind: Secret\nstringData: {hunter2: 1, hunter2: 2}\n",
    ] {
        let problem = parse_documents(broken).remove(0).unwrap_err();
        assert!(!problem.to_string().contains("hunter2"), "{problem}");
    }
}
