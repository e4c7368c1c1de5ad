use super::*;
use crate::cluster::{Cluster, Dirty};
use serde_json::Value;

/// Ingress `ns/app` of this uid with these annotations and blocks.
fn ingress(uid: &str, annotations: &[(&str, &str)], tls: Value) -> IngressObject {
    let annotations: serde_json::Map<String, Value> =
        annotations.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    let wire = json!({
        "metadata": { "namespace": "ns", "name": "app", "uid": uid, "annotations": annotations },
        "spec": { "tls": tls },
    });
    serde_json::from_value::<k8s_openapi::api::networking::v1::Ingress>(wire).unwrap().into()
}

fn asked(object: &IngressObject) -> (Box<[Request]>, Vec<Reason>) {
    let mut findings = Findings::default();
    let requests = requests(object, "letsencrypt-staging", &mut findings);
    (requests, findings.finish().iter().map(|finding| finding.reason).collect())
}

fn issuer_of(annotations: &[(&str, &str)]) -> (Option<String>, Vec<Reason>) {
    let (requests, found) = asked(&ingress("u", annotations, json!([{ "hosts": ["a.test"] }])));
    let issuer =
        requests.first().map(|r| &r.spec.issuer_ref).map(|i| format!("{} {} {}", i.group, i.kind, i.name));
    (issuer, found)
}

/// The cluster's Certificates, and the writes and findings for an Ingress.
#[derive(Default)]
struct Bench {
    cluster: Cluster,
}

impl Bench {
    fn plan(&self, object: &IngressObject) -> Plan {
        Plan::make(object, &asked(object).0, &self.cluster.certificates)
    }

    /// What the API makes of the writes.
    fn carry_out(&mut self, plan: &Plan) {
        for write in &plan.writes {
            let body = match &write.change {
                Change::Create(body) => {
                    let mut body = body.clone();
                    body["metadata"]["uid"] = json!(format!("uid of {}", write.target.name));
                    body
                }
                Change::Apply(body) => body.clone(),
                _ => continue,
            };
            self.put(&body);
        }
    }

    fn put(&mut self, certificate: &Value) {
        let (key, object) =
            CertificateObject::of(serde_json::from_value(certificate.clone()).unwrap()).unwrap();
        self.cluster.apply_certificate(key, object, &mut Dirty::default());
    }
}

/// `name: hosts by issuer, owner` of each write that does something.
fn told(plan: &Plan) -> Vec<String> {
    let writes = plan.writes.iter().filter_map(|write| {
        let (verb, body) = match &write.change {
            Change::Create(body) => ("create", body),
            Change::Apply(body) => ("apply", body),
            _ => return None,
        };
        assert_eq!(*write.target.name, *body["metadata"]["name"].as_str().unwrap());
        assert_eq!(body["spec"]["secretName"], body["metadata"]["name"], "{body}");
        let hosts: Vec<_> =
            body["spec"]["dnsNames"].as_array().unwrap().iter().map(|h| h.as_str().unwrap()).collect();
        let owner = body["metadata"]["ownerReferences"][0]["uid"].as_str().unwrap();
        Some(format!("{verb} {}: {} for {owner}", write.target.name, hosts.join(",")))
    });
    writes.collect()
}

#[test]
fn the_issuer_is_the_cluster_issuer_then_the_issuer_then_the_default() {
    for (annotations, issuer) in [
        (&[(CLUSTER_ISSUER, "prod"), (ISSUER, "mine")][..], "ClusterIssuer prod"),
        (&[(ISSUER, "mine")], "Issuer mine"),
        (&[], "ClusterIssuer letsencrypt-staging"),
        // nothing in it is as good as not there
        (&[(CLUSTER_ISSUER, ""), (ISSUER, "mine")], "Issuer mine"),
        (&[(CLUSTER_ISSUER, " "), (ISSUER, "")], "ClusterIssuer letsencrypt-staging"),
        (&[(CLUSTER_ISSUER, " prod ")], "ClusterIssuer prod"),
    ] {
        assert_eq!(
            issuer_of(annotations),
            (Some(format!("cert-manager.io {issuer}")), vec![]),
            "{annotations:?}"
        );
    }
    for name in ["no name", "UPPER", "a..b", "-a", "a/b", &"x".repeat(254)] {
        assert_eq!(issuer_of(&[(CLUSTER_ISSUER, name)]), (None, vec![Reason::InvalidAnnotation]), "{name}");
    }
}

#[test]
fn only_blocks_without_a_secret_ask_and_each_counts_in_the_index() {
    let tls = json!([
        { "hosts": ["a.test"], "secretName": "own" },
        { "hosts": ["B.test", "b.test", "*.c.test", "not a host", ""] },
        { "hosts": ["d.test"], "secretName": "" },
        { "hosts": [] },
        { "hosts": ["not a host"] },
    ]);
    let object = ingress("u", &[], tls);
    let (requests, found) = asked(&object);
    let shown: Vec<_> =
        requests.iter().map(|r| format!("{} {}", r.block, r.spec.dns_names.join(","))).collect();
    assert_eq!(shown, ["1 b.test,*.c.test", "2 d.test"]);
    // bad hosts are told of where TLS is read
    assert!(found.is_empty());
    let plan = Bench::default().plan(&object);
    assert_eq!(told(&plan), ["create app-tls-1: b.test,*.c.test for u", "create app-tls-2: d.test for u"]);
    assert_eq!(plan.writes[0].target.to_string(), "certificate/ns/app-tls-1");
}

#[test]
fn a_certificate_is_owned_by_its_ingress_which_does_not_control_it() {
    let plan =
        Bench::default().plan(&ingress("u1", &[(CLUSTER_ISSUER, "prod")], json!([{ "hosts": ["a.test"] }])));
    let [Write { change: Change::Create(body), .. }] = &plan.writes[..] else { panic!("{plan:?}") };
    assert_eq!(
        *body,
        json!({
            "apiVersion": "cert-manager.io/v1",
            "kind": "Certificate",
            "metadata": {
                "namespace": "ns",
                "name": "app-tls-0",
                "labels": { "app.kubernetes.io/managed-by": "tak-os-ingress" },
                "ownerReferences": [
                    { "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "name": "app", "uid": "u1" }
                ],
            },
            "spec": {
                "dnsNames": ["a.test"],
                "secretName": "app-tls-0",
                "issuerRef": { "name": "prod", "kind": "ClusterIssuer", "group": "cert-manager.io" },
            },
        })
    );
}

#[test]
fn a_certificate_follows_hosts_issuer_and_ingress_and_rests_when_it_fits() {
    let mut bench = Bench::default();
    let one = |hosts: Value| json!([{ "hosts": hosts }]);
    let steps = [
        (ingress("u", &[], one(json!(["a.test"]))), "create app-tls-0: a.test for u"),
        (ingress("u", &[], one(json!(["a.test", "b.test"]))), "apply app-tls-0: a.test,b.test for u"),
        (ingress("u", &[], one(json!(["b.test"]))), "apply app-tls-0: b.test for u"),
        (ingress("u", &[(CLUSTER_ISSUER, "prod")], one(json!(["b.test"]))), "apply app-tls-0: b.test for u"),
        // the Ingress was deleted and made anew before the garbage collector came
        (
            ingress("u2", &[(CLUSTER_ISSUER, "prod")], one(json!(["b.test"]))),
            "apply app-tls-0: b.test for u2",
        ),
    ];
    for (object, written) in steps {
        let plan = bench.plan(&object);
        assert_eq!((told(&plan), plan.findings.len()), (vec![written.to_owned()], 0));
        bench.carry_out(&plan);
        let again = bench.plan(&object);
        assert_eq!(told(&again), Vec::<String>::new(), "{written}");
        // what may still wait is void
        assert_eq!(again.writes.len(), 1);
    }
    // an edit by hand does not last
    let object = ingress("u", &[], one(json!(["a.test"])));
    bench.put(&json!({
        "metadata": {
            "namespace": "ns", "name": "app-tls-0", "uid": "x",
            "labels": { "app.kubernetes.io/managed-by": "tak-os-ingress" },
            "ownerReferences": [{ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "name": "app", "uid": "u" }],
        },
        "spec": { "dnsNames": ["evil.test"], "secretName": "elsewhere", "issuerRef": { "name": "i" } },
    }));
    let plan = bench.plan(&object);
    assert_eq!(told(&plan), ["apply app-tls-0: a.test for u"]);
    let [Write { change: Change::Apply(body), .. }] = &plan.writes[..] else { panic!("{plan:?}") };
    assert_eq!(body["metadata"]["uid"], "x", "good for that object only");
}

#[test]
fn what_somebody_else_made_is_told_of_and_never_touched() {
    let mut bench = Bench::default();
    let label = json!({ "app.kubernetes.io/managed-by": "tak-os-ingress" });
    let owner = json!([{ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "name": "app", "uid": "u", "controller": true }]);
    for (labels, owners) in [(json!({}), json!([])), (label, owner)] {
        bench.put(&json!({
            "metadata": { "namespace": "ns", "name": "app-tls-0", "uid": "x", "labels": labels, "ownerReferences": owners },
            "spec": { "dnsNames": ["other.test"], "secretName": "app-tls-0", "issuerRef": { "name": "i" } },
        }));
        let plan = bench.plan(&ingress("u", &[], json!([{ "hosts": ["a.test"] }])));
        assert_eq!(told(&plan), Vec::<String>::new());
        let [Finding { reason: Reason::CertificateTaken, field, message }] = &plan.findings[..] else {
            panic!("{plan:?}")
        };
        assert_eq!(&**field, "spec.tls[0]");
        assert!(message.contains("ns/app-tls-0"), "{message}");
        // nor is it given up when the block goes
        assert_eq!(told(&bench.plan(&ingress("u", &[], json!([])))), Vec::<String>::new());
    }
}

#[test]
fn what_is_wanted_no_more_goes_to_the_garbage_collector_once() {
    let mut bench = Bench::default();
    let two = ingress("u", &[], json!([{ "hosts": ["a.test"] }, { "hosts": ["b.test"] }]));
    let plan = bench.plan(&two);
    bench.carry_out(&plan);
    // the second block now names a Secret
    let one =
        ingress("u", &[], json!([{ "hosts": ["a.test"] }, { "hosts": ["b.test"], "secretName": "own" }]));
    let plan = bench.plan(&one);
    assert_eq!(told(&plan), [format!("apply app-tls-1: b.test for {NOBODY}")]);
    bench.carry_out(&plan);
    assert_eq!(told(&bench.plan(&one)), Vec::<String>::new(), "once is enough");
    // wanted again before it was collected
    assert_eq!(told(&bench.plan(&two)), ["apply app-tls-1: b.test for u"]);
}

#[test]
fn where_none_can_be_made_only_missing_secrets_are_told_of() {
    let object = ingress("u", &[], json!([{ "hosts": ["a.test"] }, { "hosts": ["b.test"] }]));
    for why in [Unable::SwitchedOff, Unable::Files, Unable::NotInstalled] {
        let plan = Plan::unable(&asked(&object).0, why, |name| name == "app-tls-0");
        assert!(plan.writes.is_empty());
        let [finding] = &plan.findings[..] else { panic!("{plan:?}") };
        assert_eq!((finding.reason, &*finding.field), (Reason::CertificateNotRequested, "spec.tls[1]"));
        assert!(finding.message.contains(why.why()) && finding.message.contains("app-tls-1"), "{finding:?}");
    }
}

#[test]
fn a_name_that_would_be_too_long_is_told_of() {
    let mut object = ingress("u", &[], json!([{ "hosts": ["a.test"] }]));
    object.key.name = "x".repeat(250).into();
    assert_eq!(asked(&object), (Box::default(), vec![Reason::CertificateNotRequested]));
}
