//! `check`, `explain` and the debug endpoints: what they say is what happens.

mod common;

use std::net::{SocketAddr, UdpSocket};

use common::{HOST, Ingress, NAMESPACE, PREFIX, everything_to, join, serve, serve_with, service, service_in};
use ingress_e2e::client;
use ingress_e2e::origin::Origin;
use ingress_e2e::pki::{Ca, KeyKind, tls_secret_yaml};
use ingress_e2e::product::{Product, run_product, run_product_with_input};
use ingress_e2e::{DEADLINE, TempDir, eventually};
use serde_json::{Value, json};

/// Runs `check` on these files: exit status, stdout, stderr.
async fn check(files: &[(&str, &str)], args: &[&str]) -> (Option<i32>, String, String) {
    let dir = TempDir::new("check");
    for (name, text) in files {
        dir.write(name, text);
    }
    let path = dir.path().to_str().unwrap();
    let (status, out, err) = run_product(&[&["check", path], args].concat()).await;
    (status.code(), out.replace(path, "DIR"), err)
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("no JSON: {e}: {text}"))
}

async fn debug(product: &Product, path: &str) -> Value {
    let answer = client::get(product.metrics_addr(), "localhost", path).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()
}

const MISTAKES: &str = "apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: web
  annotations:
    ingress.tak-os.org/ssl-redirekt: \"false\"
    ingress.tak-os.org/proxy-read-timeout: 60s
spec:
  ingressClassName: tak-os
  rules:
  - host: app.example.com
    http:
      paths:
      - path: /
        pathType: prefix
        backend: {service: {name: web, port: {number: 80}}}
";

#[tokio::test]
async fn check_names_file_line_object_key_value_and_what_is_accepted() {
    let (status, out, err) = check(&[("deeper/web.yaml", MISTAKES), ("broken.yaml", "kind: [\n")], &[]).await;
    assert_eq!((status, err.as_str()), (Some(1), ""), "{out}");
    for line in [
        "DIR/deeper/web.yaml:6:5: error TAK-1002 UnknownAnnotation: ingress/default/web: \
         ingress.tak-os.org/ssl-redirekt: there is no such annotation; the nearest is ingress.tak-os.org/ssl-redirect",
        "DIR/deeper/web.yaml:7:5: error TAK-1001 InvalidAnnotation: ingress/default/web: \
         ingress.tak-os.org/proxy-read-timeout: \"60s\" is not accepted, only whole seconds",
        "DIR/deeper/web.yaml:15:9: error TAK-2003 InvalidPathType: ingress/default/web: \
         spec.rules[0].http.paths[0].pathType: ",
        "DIR/broken.yaml:",
        "2 files, 1 Ingress served with 0 routes: 4 errors, 0 warnings, 0 notes",
    ] {
        assert!(out.lines().any(|l| l.starts_with(line)), "{line} is not in\n{out}");
    }
    let (status, out, _) = check(&[("web.yaml", MISTAKES)], &["--output=json"]).await;
    let found = parsed(&out);
    assert_eq!((status, &found["errors"]), (Some(1), &json!(3)));
    let timeout = &found["findings"][1];
    assert_eq!(timeout["key"], "ingress.tak-os.org/proxy-read-timeout");
    assert_eq!((&timeout["value"], &timeout["line"]), (&json!("60s"), &json!(7)));
    assert!(timeout["accepted"].as_str().unwrap().contains("whole seconds"));
    let (status, out, _) = check(&[("web.yaml", MISTAKES)], &["--output=sarif"]).await;
    let log = parsed(&out);
    assert_eq!((status, &log["version"]), (Some(1), &json!("2.1.0")));
    assert_eq!(log["runs"][0]["results"].as_array().map(Vec::len), Some(3));
}

#[tokio::test]
async fn check_ends_with_0_on_sound_manifests_and_on_warnings_unless_strict() {
    let sound = join([Ingress::new("web").prefix(HOST, "/", "web").yaml(), service("web", &[])]);
    let (status, out, err) = check(&[("a.yaml", &sound)], &["--strict"]).await;
    assert_eq!((status, err.as_str()), (Some(0), ""), "{out}");
    let missing = Ingress::new("web").prefix(HOST, "/", "gone").yaml();
    let (status, out, _) = check(&[("a.yaml", &missing)], &[]).await;
    assert!(status == Some(0) && out.contains("warning TAK-3001 ServiceNotFound"), "{out}");
    assert_eq!(check(&[("a.yaml", &missing)], &["--strict"]).await.0, Some(1));

    let (status, out, _) = run_product_with_input(&["check", "-"], MISTAKES).await;
    assert!(status.code() == Some(1) && out.starts_with("<stdin>:6:5: "), "{out}");
    let (status, out, err) = run_product(&["check", "/nowhere/at/all"]).await;
    assert_eq!((status.code(), out.as_str(), err.lines().count()), (Some(2), "", 1), "{err}");
}

#[tokio::test]
async fn the_words_of_check_are_those_of_the_log() {
    let (_, out, _) = check(&[("web.yaml", MISTAKES)], &["--output=json"]).await;
    let product = serve([MISTAKES.to_owned()]).await;
    let found = parsed(&out)["findings"].as_array().unwrap().clone();
    let log = eventually(DEADLINE, async || {
        let log = product.log_entries("mistake in an object");
        (log.len() >= found.len()).then_some(log)
    })
    .await;
    for finding in &found {
        let same = |line: &&Value| {
            [
                ("reason", "reason"),
                ("id", "id"),
                ("field", "key"),
                ("problem", "message"),
                ("object", "object"),
            ]
            .iter()
            .all(|(a, b)| line[*a] == finding[*b])
        };
        assert!(log.iter().any(|line| same(&line)), "{finding} is not in {log:?}");
    }
}

#[tokio::test]
async fn explain_names_the_rule_the_losers_and_the_backend() {
    let dir = TempDir::new("explain");
    let yaml = join([
        Ingress::new("old")
            .created(1)
            .prefix(HOST, "/api", "api")
            .set("proxy-read-timeout", "7")
            .set("ssl-redirect", "no")
            .yaml(),
        Ingress::new("young").created(2).prefix(HOST, "/api", "other").yaml(),
        Ingress::new("root").prefix(HOST, "/", "web").yaml(),
        service("api", &[([127, 0, 0, 1], 7001).into()]),
    ]);
    dir.write("all.yaml", yaml);
    let folder = format!("--manifests={}", dir.path().display());
    let host = format!("--host={HOST}");
    let (status, out, err) = run_product(&["explain", &host, "--path=/api/x", &folder]).await;
    assert_eq!((status.code(), err.as_str()), (Some(0), ""), "{out}");
    for (name, words) in [
        ("request", "GET http://app.example.com/api/x"),
        ("answer", "forwarded to Service shop/api:80"),
        ("route", "ingress/shop/old rules[0].paths[0]: host app.example.com, Prefix /api"),
        (
            "lost",
            "ingress/shop/young rules[0].paths[0]: host app.example.com, Prefix /api: of two rules with one path",
        ),
        ("lost", "ingress/shop/root rules[0].paths[0]: host app.example.com, Prefix /: the longer path"),
        ("certificate", "none on plain HTTP"),
        ("redirect", "none"),
        ("authentication", "none asked for"),
        ("limits", "request head 65536 bytes, body 104857600 bytes"),
        ("timeouts", "connect 60 s, read 7 s, send 300 s"),
        ("backend", "Service shop/api:80 over http by its endpoints: 127.0.0.1:7001"),
        ("finding", "TAK-1001 InvalidAnnotation: ingress.tak-os.org/ssl-redirect: \"no\" is not accepted"),
    ] {
        let found = out.lines().any(|line| {
            line.split_once(' ').is_some_and(|(n, rest)| n == name && rest.trim_start().starts_with(words))
        });
        assert!(found, "{name} {words} is not in\n{out}");
    }
    let (_, out, _) = run_product(&["explain", &host, "--path=/api/x", &folder, "--output=json"]).await;
    let found = parsed(&out);
    assert_eq!(found["route"]["object"], "ingress/shop/old");
    let lost: Vec<_> =
        found["lost"].as_array().unwrap().iter().map(|l| l["lost_by"].as_str().unwrap()).collect();
    assert_eq!(lost, ["older_object", "longer_path"]);
    assert_eq!(found["backend"]["addresses"], json!(["127.0.0.1:7001"]));

    let (status, out, _) = run_product(&["explain", "--host=nobody.example.com", &folder]).await;
    assert!(status.success() && out.contains("404 Not Found: no rule declares this host"), "{out}");
    let (status, _, err) = run_product(&["explain", &host, "--manifests=/nowhere/at/all"]).await;
    assert_eq!((status.code(), err.lines().count()), (Some(2), 1), "{err}");
}

#[tokio::test]
async fn the_snapshot_tells_what_is_loaded_from_which_object_and_no_secret() {
    let origin = Origin::echo().await;
    let ca = Ca::new();
    let leaf = ca.leaf(&[HOST], KeyKind::EcP384Pkcs8);
    let product = serve([
        Ingress::new("web").created(1).prefix(HOST, "/", "web").tls(&[HOST], "web-tls").yaml(),
        Ingress::new("late").created(2).prefix(HOST, "/", "web").yaml(),
        service("web", &[origin.addr()]),
        tls_secret_yaml(NAMESPACE, "web-tls", &leaf),
    ])
    .await;
    let all = debug(&product, "/debug/snapshot").await;
    assert_eq!(all["generation"], 1);
    assert!(all["published"].as_str().is_some_and(|at| at.starts_with("20")), "{all}");
    let host = &all["hosts"][0];
    assert!(host["host"] == HOST && host["since"].as_str().is_some_and(|at| at.starts_with("20")), "{all}");
    assert_eq!(host["routes"][0]["object"], "ingress/shop/web");
    assert_eq!(host["routes"][0]["backend"], "shop/web:80");
    assert_eq!(host["shadowed"][0]["object"], "ingress/shop/late");
    let certificate = &all["certificates"][0];
    assert_eq!((&certificate["host"], &certificate["source"]), (&json!(HOST), &json!("secret/shop/web-tls")));
    assert_eq!(certificate["expired"], false);
    assert!(certificate["not_after"].as_str().is_some_and(|at| at.ends_with('Z')), "{all}");
    assert_eq!(debug(&product, "/debug/snapshot?host=other.example.com").await["hosts"], json!([]));

    let told = debug(&product, &format!("/debug/explain?host={HOST}&scheme=https")).await;
    assert_eq!(told["certificate"]["source"], "secret/shop/web-tls");
    let pem = |text: &str| text.lines().nth(1).unwrap().to_owned();
    for secret in [pem(&leaf.key_pem), pem(&leaf.cert_pem)] {
        assert!(!all.to_string().contains(&secret) && !told.to_string().contains(&secret));
    }
    for (path, status) in [("/debug/explain", 400), ("/debug/snapshot?hots=x", 400), ("/debug", 404)] {
        assert_eq!(client::get(product.metrics_addr(), "localhost", path).await.status, status, "{path}");
    }
}

#[tokio::test]
async fn the_debug_endpoints_answer_this_machine_only() {
    let origin = Origin::echo().await;
    let product = serve_with(everything_to(&origin), &["--bind-address=0.0.0.0"]).await;
    let port = product.metrics_addr().port();
    let loopback = SocketAddr::from(([127, 0, 0, 1], port));
    let paths = ["/debug/snapshot", "/debug/explain?host=app.example.com"];
    for path in paths {
        assert_eq!(client::get(loopback, &format!("127.0.0.1:{port}"), path).await.status, 200);
        // a page that has bent its own name to this address
        assert_eq!(client::get(loopback, "evil.example.com", path).await.status, 403);
    }
    // the address by which others reach this machine, if it has one
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let outside = socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr());
    if let Ok(address) = outside.as_ref().map(SocketAddr::ip)
        && !address.is_loopback()
    {
        let answer = client::get((address, port).into(), "localhost", "/healthz").await;
        assert_eq!(answer.status, 200);
        for path in paths {
            assert_eq!(client::get((address, port).into(), "localhost", path).await.status, 403, "{path}");
        }
    }
}

/// A small deterministic generator: the same clusters on every run.
struct Lcg(u64);

impl Lcg {
    fn next(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.next(all.len())]
    }

    fn path(&mut self) -> String {
        (0..=self.next(3)).map(|_| format!("/{}", self.of(&["a", "b", "ab", "", "A", "a.b"]))).collect()
    }
}

const HOSTS: [&str; 5] = ["a.example.com", "b.example.com", "*.example.com", "example.com", ""];
const SERVICES: [&str; 4] = ["s0", "s1", "s2", "gone"];

/// Ingresses that are at odds with each other in every way.
fn ingresses(rng: &mut Lcg) -> Vec<String> {
    (0..25)
        .map(|i| {
            let mut ingress =
                Ingress::at(rng.of(&["one", "two"]), &format!("i{i}")).created(1 + rng.next(3) as u32);
            for _ in 0..=rng.next(3) {
                let (host, path, service) = (rng.of(&HOSTS), rng.path(), rng.of(&SERVICES));
                ingress = match rng.next(2) {
                    0 => ingress.exact(host, &path, service),
                    _ => ingress.prefix(host, &path, service),
                };
                if rng.next(6) == 0 && !host.is_empty() {
                    ingress = ingress.tls(&[host], "none");
                }
            }
            match rng.next(10) {
                0 => ingress.set("ssl-redirect", "false"),
                1 => ingress.set("auth-type", "basic"),
                2 => ingress.class(Some("other")),
                3 => ingress.annotation(&format!("{PREFIX}allowlist-source-range"), "broken"),
                _ => ingress,
            }
            .yaml()
        })
        .collect()
}

#[tokio::test]
async fn explain_names_the_backend_that_a_request_reaches() {
    let mut rng = Lcg(42);
    let mut seen = std::collections::BTreeMap::<u64, usize>::new();
    let mut origins = Vec::new();
    let mut services = Vec::new();
    for namespace in ["one", "two"] {
        for name in &SERVICES[..3] {
            let origin = Origin::echo().await.named(&format!("{namespace}/{name}:80"));
            services.push(service_in(namespace, name, &[origin.addr()]));
            origins.push(origin);
        }
    }
    for _ in 0..3 {
        let product = serve([ingresses(&mut rng), services.clone()].concat()).await;
        let folder = format!("--manifests={}", product.manifests_dir().display());
        for i in 0..100 {
            let host = rng.of(&[
                "a.example.com",
                "B.example.com",
                "c.example.com",
                "example.com",
                "other.org",
                "a..b",
            ]);
            let path = if rng.next(20) == 0 { "/a/../b".to_owned() } else { rng.path() };
            let https = rng.next(4) == 0;
            let scheme = if https { "https" } else { "http" };
            let told =
                debug(&product, &format!("/debug/explain?host={host}&path={path}&scheme={scheme}")).await;
            let answer = match https {
                true => client::tls_get(product.https(), "x.example.com", host, &path, None).await,
                false => client::get(product.http(), host, &path).await,
            };
            let case = format!("{scheme}://{host}{path}: {told:#}");
            if told["answer"]["forwarded"] == true {
                assert_eq!(answer.status, 200, "{case}");
                assert_eq!(told["backend"]["service"], answer.origin(), "{case}");
            } else {
                assert_eq!(told["answer"]["status"], answer.status, "{case}");
            }
            *seen.entry(told["answer"]["status"].as_u64().unwrap_or(200)).or_default() += 1;
            if i % 20 == 0 {
                let (host, path) = (format!("--host={host}"), format!("--path={path}"));
                let mut args = vec!["explain", &host, &path, &folder, "--output=json"];
                args.extend(https.then_some("--https"));
                let (_, out, err) = run_product(&args).await;
                let offline = parsed(&out);
                for part in ["request", "answer", "route", "lost", "backend", "redirect", "timeouts"] {
                    assert_eq!(offline[part], told[part], "{part}: {case} {err}");
                }
            }
        }
    }
    // each kind of answer came up, or the property says little
    for status in [200, 308, 400, 403, 404, 501, 502] {
        assert!(seen.contains_key(&status), "{status} never came up: {seen:?}");
    }
}
