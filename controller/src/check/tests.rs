use super::*;

fn manifest(name: &str, text: &str) -> Manifest {
    Manifest { name: name.into(), text: Ok(text.into()) }
}

fn checked(files: &[(&str, &str)]) -> Report {
    let files: Vec<_> = files.iter().map(|(name, text)| manifest(name, text)).collect();
    check(&files, &Settings::default(), &[])
}

/// `file:line:column id field = value (nearest)`
fn lines(report: &Report) -> Vec<String> {
    let line = |m: &Mistake| {
        let value = m.value.as_ref().map(|v| format!(" = {v}")).unwrap_or_default();
        let nearest = m.nearest.map(|n| format!(" ({n})")).unwrap_or_default();
        format!("{}:{}:{} {} {}{value}{nearest}", m.file, m.line, m.column, m.reason, m.field)
    };
    report.mistakes.iter().map(line).collect()
}

const MISTAKES: &str = "apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: web
  namespace: shop
  annotations:
    ingress.tak-os.org/ssl-redirect: \"no\"
    ingress.tak-os.org/proxy-read-time-out: \"60\"
    ingress.tak-os.org/auth-url: https://user:word@auth.example.com/
spec:
  ingressClassName: tak-os
  tls:
  - hosts: [app.example.com, other.example.com]
    secretName: web-tls
  rules:
  - host: app.example.com
    http:
      paths:
      - path: /a/../b
        pathType: Prefix
        backend: {service: {name: web, port: {number: 80}}}
      - path: /
        pathType: Prefix
        backend: {service: {name: web, port: {name: htttp}}}
  - host: https://x.example.com
    http:
      paths: []
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{name: http, port: 80}]}
";

#[test]
fn each_mistake_has_the_line_it_is_about() {
    let report = checked(&[("a.yaml", MISTAKES)]);
    assert_eq!(
        lines(&report),
        [
            "a.yaml:7:5 InvalidAnnotation ingress.tak-os.org/ssl-redirect = no",
            "a.yaml:8:5 UnknownAnnotation ingress.tak-os.org/proxy-read-time-out (ingress.tak-os.org/proxy-read-timeout)",
            "a.yaml:9:5 AuthMisconfigured ingress.tak-os.org/auth-url",
            "a.yaml:13:30 TlsHostNotInRules spec.tls[0].hosts[1] = other.example.com",
            "a.yaml:14:5 SecretNotFound spec.tls[0].secretName = web-tls",
            "a.yaml:19:9 InvalidPath spec.rules[0].http.paths[0].path = /a/../b",
            "a.yaml:24:19 ServicePortNotFound spec.rules[0].http.paths[1].backend.service",
            "a.yaml:25:5 InvalidHost spec.rules[1].host = https://x.example.com",
        ]
    );
    assert_eq!((report.files, report.ingresses, report.routes), (1, 1, 1));
    assert_eq!((report.count(Severity::Error), report.count(Severity::Warning)), (7, 1));
    let redirect = &report.mistakes[0];
    assert_eq!(redirect.accepted, "\"true\" or \"false\"");
    assert_eq!(redirect.object.as_ref().unwrap().to_string(), "ingress/shop/web");
    assert!(!report.mistakes.iter().any(|m| format!("{m:?}").contains("user:word")));
}

#[test]
fn objects_of_other_files_are_part_of_the_cluster() {
    let ingress = |name: &str, created: &str| {
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: {name}{created}}}\nspec:\n  \
             ingressClassName: tak-os\n  rules:\n  - host: a.x\n    http:\n      paths:\n      - path: /\n        \
             pathType: Prefix\n        backend: {{service: {{name: web, port: {{number: 80}}}}}}\n"
        )
    };
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{port: 80}]}\n";
    let young = ingress("young", ", creationTimestamp: \"2026-01-02T00:00:00Z\"");
    let report = checked(&[("young.yaml", &young), ("old.yaml", &ingress("old", "")), ("s.yaml", service)]);
    assert_eq!(lines(&report), ["young.yaml:10:9 HostPathTaken spec.rules[0].http.paths[0].path = /"]);
    let report = checked(&[("one.yaml", &young), ("two.yaml", &young), ("s.yaml", service)]);
    assert_eq!(lines(&report), ["two.yaml:3:12 WrittenTwice metadata.name"]);
    assert!(report.mistakes[0].message.contains("one.yaml"));
}

#[test]
fn what_cannot_be_read_is_told_with_its_line_and_costs_nothing_else() {
    let text = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n---\nkind: [\n---\nkind: Nothing\n---\n\
                apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {key: \"hunter2 is no base64\"}\n";
    let files =
        [manifest("a.yaml", text), Manifest { name: "b.yaml".into(), text: Err("no such file".into()) }];
    let report = check(&files, &Settings::default(), &[]);
    let lines = lines(&report);
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(lines.iter().all(|line| line.contains("Unparsable")), "{lines:?}");
    assert!(lines[1].starts_with("a.yaml:6:") && lines[2].starts_with("a.yaml:8:"), "{lines:?}");
    assert!(lines[3].starts_with("b.yaml:1:"), "{lines:?}");
    assert!(!format!("{report:?}").contains("hunter2"));
}

#[test]
fn an_ingress_that_is_not_looked_at_is_noted() {
    let ingress = |name: &str, spec: &str| {
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n"
        )
    };
    let text = [
        ingress("none", ""),
        ingress("other", "ingressClassName: nginx"),
        ingress("ours", "ingressClassName: tak-os"),
    ]
    .join("---\n");
    let report = checked(&[("a.yaml", &text)]);
    assert_eq!(
        lines(&report),
        [
            "a.yaml:4:1 OtherClass spec.ingressClassName",
            "a.yaml:9:8 OtherClass spec.ingressClassName = nginx"
        ]
    );
    assert_eq!((report.ingresses, report.count(Severity::Note)), (1, 2));
    let all = Settings { process_without_class: true, ..Settings::default() };
    assert_eq!(check(&[manifest("a.yaml", &text)], &all, &[]).ingresses, 2);
    let foreign = "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: tak-os}\nspec:\n  \
                   controller: example.com/other\n";
    let report = checked(&[("a.yaml", &text), ("class.yaml", foreign)]);
    assert_eq!(report.ingresses, 0);
    assert!(
        lines(&report)
            .contains(&"class.yaml:5:3 ForeignIngressClass spec.controller = example.com/other".to_owned())
    );
}

#[test]
fn other_namespaces_are_left_out_where_some_are_named() {
    let files = [manifest("a.yaml", MISTAKES)];
    assert!(check(&files, &Settings::default(), &["other".into()]).mistakes.is_empty());
    assert!(!check(&files, &Settings::default(), &["shop".into(), "other".into()]).mistakes.is_empty());
}

#[test]
fn objects_of_a_list_are_found_in_it() {
    let text = "kind: List\napiVersion: v1\nitems:\n- apiVersion: networking.k8s.io/v1\n  kind: Ingress\n  \
                metadata: {name: a, annotations: {ingress.tak-os.org/ssl-redirekt: x}}\n  spec: {ingressClassName: tak-os}\n";
    assert_eq!(
        lines(&checked(&[("a.yaml", text)])),
        ["a.yaml:6:37 UnknownAnnotation ingress.tak-os.org/ssl-redirekt (ingress.tak-os.org/ssl-redirect)"]
    );
}

#[test]
fn a_folder_is_read_as_the_source_reads_it() {
    let dir = std::env::temp_dir().join(format!("tak-check-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("deeper")).unwrap();
    for (file, text) in [("b.yaml", "b"), ("deeper/a.yml", "a"), ("notes.txt", "-"), (".hidden.yaml", "-")] {
        std::fs::write(dir.join(file), text).unwrap();
    }
    let read_all = read(&dir).map(|files| files.into_iter().map(|f| f.text.unwrap()).collect::<Vec<_>>());
    let one = read(&dir.join("notes.txt")).map(|files| files.len());
    let none = read(&dir.join("gone"));
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(read_all.unwrap(), ["b", "a"]);
    assert_eq!(one.unwrap(), 1);
    assert!(none.is_err());
}

/// Documents are read side by side; the report is that of reading them one after the other.
#[test]
fn many_documents_are_told_in_their_order_and_the_first_of_a_name_counts() {
    const N: usize = 500;
    let web = |i: usize| {
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: web-{}\n  annotations:\n    \
             ingress.tak-os.org/ssl-redirekt: 'x'\nspec: {{ingressClassName: tak-os}}\n",
            i % (N - 1)
        )
    };
    let one = (0..N).map(web).collect::<Vec<_>>().join("---\n");
    let report = checked(&[("a.yaml", &one), ("b.yaml", "a: [")]);
    let unknown: Vec<_> = report.mistakes.iter().filter(|m| m.reason == Reason::UnknownAnnotation).collect();
    assert_eq!((report.ingresses, unknown.len()), (N - 1, N - 1));
    for (i, mistake) in unknown.iter().enumerate() {
        assert_eq!(mistake.line, i * 8 + 6, "{mistake:?}");
    }
    let [.., twice, broken] = &report.mistakes[..] else { panic!("{report:?}") };
    assert_eq!((twice.reason, twice.line), (Reason::WrittenTwice, (N - 1) * 8 + 4));
    assert_eq!((broken.reason, broken.file.as_str()), (Reason::Unparsable, "b.yaml"));
}

#[test]
fn gateways_and_their_routes_are_checked_too() {
    let text = "apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: tak-os}
spec: {controllerName: tak-os.org/gateway-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw, namespace: shop}
spec:
  gatewayClassName: tak-os
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: other, port: 81, protocol: HTTP}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: r, namespace: shop}
spec:
  parentRefs: [{name: gw}]
  rules:
  - matches: [{header: [{name: a, value: x}]}]
    backendRefs: [{name: web, port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{port: 80}]}
";
    let report = checked(&[("gw.yaml", text)]);
    let told: Vec<_> = report
        .mistakes
        .iter()
        .map(|m| format!("{} {} {}", m.object.as_ref().unwrap(), m.reason, m.field))
        .collect();
    assert_eq!(
        told,
        [
            "gateway/shop/gw ListenerNotAccepted spec.listeners[1].port",
            "httproute/shop/r UnsupportedMatch spec.rules[0].matches[0]",
        ]
    );
}
