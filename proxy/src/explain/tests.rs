use super::*;
use ingress_core::route::RuleIndex;
use ingress_core::{
    Access, Actions, Backend, BackendProtocol, CertStore, CertifiedKey, ClientValidation, Filter, HostMap,
    HostPattern, Kind, Listener, PathMatch, Policy, Redirect, ResourceRef, RouteTable, Scope, ServicePort,
    Slot, TlsMode, VirtualHost,
};
use rustls_pki_types::PrivateKeyDer;
use std::sync::Arc;

fn route(host: &str, path: PathMatch, name: &str, change: impl Fn(&mut Route)) -> Arc<Route> {
    let mut route = Route {
        path,
        policy: Arc::default(),
        https_redirect: false,
        backend: Arc::new(Backend {
            service: ServicePort { namespace: "shop".into(), name: name.into(), port: 80 },
            address: BackendAddress::Name(format!("{name}.shop.svc.cluster.local.").into(), 80),
            protocol: BackendProtocol::Http,
            tls_name: format!("{name}.shop.svc").into(),
            verify: true,
            keepalive: true,
            tls: None,
            client: None,
        }),
        source: Arc::new(ResourceRef::new(Kind::Ingress, "shop", name)),
        host: host.into(),
        rule: RuleIndex { rule: 0, path: 0 },
        created: 0,
        conditions: None,
        actions: None,
        state: Slot::new(),
    };
    change(&mut route);
    Arc::new(route)
}

fn certificate(secret: &str) -> Arc<CertifiedKey> {
    Arc::new(CertifiedKey {
        chain: vec![],
        key: PrivateKeyDer::Pkcs8(b"private bytes".to_vec().into()),
        not_after: 951_782_400,
        fingerprint: [1; 32],
        source: ResourceRef::new(Kind::Secret, "shop", secret),
        native: Slot::new(),
    })
}

fn snapshot(host: &str, routes: Vec<Arc<Route>>) -> Snapshot {
    let pattern: HostPattern = host.parse().unwrap();
    let mut table = RouteTable::default();
    table.set(&pattern, VirtualHost::build(routes).0);
    let mut certs = CertStore::default();
    certs.insert(&pattern, certificate("tls"));
    Snapshot { generation: 1, routes: Arc::new(table), certs: Arc::new(certs), listeners: Arc::default() }
}

fn question(host: &str, path: &str) -> Question {
    Question {
        tls: false,
        host: host.into(),
        path: path.into(),
        method: Method::GET,
        headers: HeaderMap::new(),
        sni: None,
        client: None,
        port: None,
        address: None,
    }
}

fn ask(snapshot: &Snapshot, question: &Question) -> Report {
    let guard = DialGuard::from_cidrs(["10.9.0.0/16".parse().unwrap()]);
    let config = Config::for_test();
    let addresses = |name: &str| {
        name.starts_with("web.").then(|| vec!["10.0.0.1".parse().unwrap(), "10.9.0.1".parse().unwrap()])
    };
    explain(
        snapshot,
        question,
        &Surroundings { config: &config, guard: &guard, addresses: &addresses, now: 0 },
    )
}

fn prefix(path: &str) -> PathMatch {
    PathMatch::prefix(path).unwrap()
}

fn section<'a>(report: &'a Report, name: &str) -> &'a Section {
    report.sections.iter().find(|s| s.name == name).unwrap_or_else(|| panic!("no {name}: {report:?}"))
}

#[test]
fn a_request_is_followed_to_its_backend() {
    let s = snapshot(
        "app.example.com",
        vec![
            route("app.example.com", prefix("/"), "root", |_| {}),
            route("app.example.com", prefix("/api"), "web", |_| {}),
        ],
    );
    let report = ask(&s, &question("APP.example.com:8080", "//api//x?q=1"));
    assert_eq!(report.request.fact("host"), Some(&text("app.example.com")));
    assert_eq!(report.request.fact("path"), Some(&text("/api/x")));
    assert_eq!(report.answer.fact("forwarded"), Some(&Fact::Flag(true)));
    let winner = report.route.as_ref().unwrap();
    assert_eq!(winner.summary, "ingress/shop/web rules[0].paths[0]: host app.example.com, Prefix /api");
    assert_eq!(report.lost.len(), 1);
    assert_eq!(report.lost[0].fact("lost_by"), Some(&text("longer_path")));
    assert_eq!(report.lost[0].fact("lost_to"), Some(&text("ingress/shop/web rules[0].paths[0]")));
    let all: Vec<_> = report.sections.iter().map(|s| s.name).collect();
    assert_eq!(
        all,
        [
            "certificate",
            "address_lists",
            "redirect",
            "filters",
            "cors",
            "authentication",
            "limits",
            "rate_limits",
            "timeouts",
            "backend"
        ]
    );
    let backend = section(&report, "backend");
    let addresses = Fact::List(vec!["10.0.0.1:80".into(), "10.9.0.1:80 (never dialled)".into()]);
    assert_eq!(backend.fact("addresses"), Some(&addresses));
    assert_eq!(
        section(&ask(&s, &question("app.example.com", "/")), "backend").fact("addresses"),
        Some(&Fact::Nothing),
        "nobody knows them yet"
    );
    let certificate = section(&report, "certificate");
    assert_eq!(certificate.fact("source"), Some(&text("secret/shop/tls")));
    assert_eq!(certificate.fact("not_after"), Some(&text("2000-02-29T00:00:00Z")));
    assert!(!format!("{report:?}").contains("private bytes"));
}

#[test]
fn a_certificate_for_the_backend_is_told_by_its_secret() {
    let of = |client: Option<Arc<CertifiedKey>>| {
        let shown = route("app.example.com", prefix("/"), "web", |route| {
            route.backend = Arc::new(Backend { client: client.clone(), ..Backend::clone(&route.backend) });
        });
        let report = ask(&snapshot("app.example.com", vec![shown]), &question("app.example.com", "/"));
        assert!(!format!("{report:?}").contains("private bytes"));
        section(&report, "backend").fact("client_certificate").cloned()
    };
    assert_eq!(of(Some(certificate("client"))), Some(text("secret/shop/client")));
    assert_eq!(of(None), Some(Fact::Nothing));
}

#[test]
fn each_answer_of_ours_is_told_with_its_status_and_reason() {
    let of = |change: &dyn Fn(&mut Route)| snapshot("a.x", vec![route("a.x", prefix("/a"), "web", change)]);
    let policy = |policy: Policy| move |r: &mut Route| r.policy = Arc::new(policy.clone());
    let plain = of(&|_| {});
    let with_header = |name: &'static str, value: &'static str| {
        let mut question = question("a.x", "/a");
        question.headers.insert(name, HeaderValue::from_static(value));
        question
    };
    let mut options = question("a.x", "*");
    options.method = Method::OPTIONS;
    for (snapshot, question, status, label) in [
        (&plain, question("b.x", "/a"), 404, "no_host"),
        (&plain, question("a.x", "/b"), 404, "no_path"),
        (&plain, question("a..x", "/a"), 400, "malformed"),
        (&plain, question("a.x\n", "/a"), 400, "malformed"),
        (&plain, question("a.x", "/a/../b"), 400, "malformed"),
        (&plain, question("a.x", "a"), 400, "malformed"),
        (&plain, question("a.x", "*"), 400, "malformed"),
        (&plain, options, 404, "no_path"),
        (&plain, with_header("content-length", "x"), 400, "malformed"),
        (&plain, with_header("content-length", "999999999999"), 413, "body_too_large"),
        (
            &of(&policy(Policy { access: Access::Denied, ..Policy::default() })),
            question("a.x", "/a"),
            403,
            "access",
        ),
        (
            &of(&policy(Policy { auth: Auth::Misconfigured, ..Policy::default() })),
            question("a.x", "/a"),
            501,
            "auth_not_configured",
        ),
    ] {
        let report = ask(snapshot, &question);
        assert_eq!(report.answer.fact("status"), Some(&Fact::Number(f64::from(status))), "{question:?}");
        assert_eq!(report.answer.fact("rejected_by"), Some(&text(label)), "{question:?}");
        assert!(report.answer.fact("why").is_some_and(|why| *why != text("")), "{question:?}");
    }
    let redirected = of(&|r| r.https_redirect = true);
    let report = ask(&redirected, &question("a.x", "/a"));
    assert_eq!(report.answer.fact("status"), Some(&Fact::Number(308.0)));
    let report = ask(&redirected, &Question { tls: true, ..question("a.x", "/a") });
    assert_eq!(report.answer.fact("forwarded"), Some(&Fact::Flag(true)));
    let gone = of(&|r| {
        let backend =
            Backend { address: BackendAddress::Unavailable(Unavailable::NoService), ..(*r.backend).clone() };
        r.backend = Arc::new(backend);
    });
    assert_eq!(ask(&gone, &question("a.x", "/a")).answer.fact("rejected_by"), Some(&text("no_service")));
}

#[test]
fn the_server_name_decides_the_certificate() {
    let s = snapshot("*.example.com", vec![route("*.example.com", prefix("/"), "web", |_| {})]);
    let of = |host: &str, sni: Option<&str>| {
        let question = Question { tls: true, sni: sni.map(Into::into), ..question(host, "/") };
        section(&ask(&s, &question), "certificate").summary.clone()
    };
    assert!(of("a.example.com", None).contains("declared for *.example.com, valid until 2000-02-29"));
    assert!(of("a.example.com", Some("other.org")).starts_with("the self-signed fallback"));
    assert!(of("[::1]:443", None).contains("server name (none)"));
}

#[test]
fn losers_beyond_what_anybody_reads_are_counted() {
    let routes = (0..150).map(|i| route("a.x", prefix(&format!("/{i}")), "web", |_| {})).collect();
    let report = ask(&snapshot("a.x", routes), &question("a.x", "/7"));
    assert_eq!((report.lost.len(), report.lost_more), (MAX_LOST, 49));
}

#[test]
fn where_a_request_comes_in_decides_what_serves_it() {
    let host = "app.example.com";
    let mut s = snapshot(host, vec![route(host, prefix("/"), "root", |_| {})]);
    let moved = Redirect {
        https: None,
        hostname: Some("new.example.com".into()),
        port: None,
        path: None,
        status: http::StatusCode::FOUND,
    };
    let actions = Actions { filters: [Filter::Redirect(moved)].into(), ..Actions::default() };
    let own = route(host, prefix("/"), "web", |route| route.actions = Some(Arc::new(actions.clone())));
    let mut routes = RouteTable::default();
    routes.set(&host.parse().unwrap(), VirtualHost::build(vec![own]).0);
    let mut names = HostMap::default();
    names.insert(&host.parse().unwrap(), TlsMode::Terminate);
    names.insert(&"other.example.com".parse().unwrap(), TlsMode::Terminate);
    let passed = route("pass.example.com", prefix("/"), "web", |_| {});
    names.insert(&"pass.example.com".parse().unwrap(), TlsMode::Passthrough(Some(passed)));
    let listener =
        Listener { tls: true, routes: Arc::new(routes), names: Arc::new(names), ..Listener::default() };
    let scope = Scope { address: None, port: 8443 };
    s.listeners = Arc::new([(scope, Arc::new(listener))].into_iter().collect());
    let at = |host: &str, sni: Option<&str>, port| Question {
        tls: true,
        port,
        sni: sni.map(Into::into),
        ..question(host, "/x")
    };
    let told = |question: &Question| ask(&s, question).answer.summary;
    assert!(told(&at(host, None, None)).starts_with("forwarded to Service shop/root"));
    assert_eq!(told(&at(host, None, Some(8443))), "302 Found: to https://new.example.com:8443/x");
    let report = ask(&s, &at(host, None, Some(8443)));
    assert_eq!(section(&report, "filters").summary, "redirect 302");
    assert!(told(&at(host, Some("other.example.com"), Some(8443))).starts_with("421 "));
    assert!(told(&at(host, None, Some(9443))).contains("nothing is served on port 9443"));
    let passed = told(&at("pass.example.com", None, Some(8443)));
    assert_eq!(passed, "the TLS connection is passed on unread, by ingress/shop/web");
}

#[test]
fn who_must_show_a_certificate_is_told_so() {
    let clients = |required| {
        let authorities = Box::default();
        let fingerprint = [u8::from(required); 32];
        Arc::new(ClientValidation { authorities, required, fingerprint, native: Slot::new() })
    };
    let mut routes = RouteTable::default();
    for (host, clients) in
        [("closed.x", Some(clients(true))), ("lax.x", Some(clients(false))), ("open.x", None)]
    {
        let own = VirtualHost::build(vec![route(host, prefix("/"), "web", |_| {})]).0;
        routes.set(&host.parse().unwrap(), own.map(|own| own.under(clients)));
    }
    let listener =
        Listener { tls: true, asks_clients: true, routes: Arc::new(routes), ..Listener::default() };
    let mut s = snapshot("else.x", vec![]);
    let scope = Scope { address: None, port: 443 };
    s.listeners = Arc::new([(scope, Arc::new(listener))].into_iter().collect());
    for (host, sni, status, asked) in [
        ("closed.x", None, "forwarded", Some("required")),
        ("closed.x", Some("open.x"), "421 ", None),
        ("closed.x", Some("lax.x"), "421 ", Some("asked_for")),
        ("closed.x", Some("nobody.x"), "421 ", None),
        ("open.x", Some("closed.x"), "forwarded", Some("required")),
        ("lax.x", Some("open.x"), "forwarded", None),
    ] {
        let sni = sni.map(Into::into);
        let report = ask(&s, &Question { tls: true, sni, ..question(host, "/x") });
        assert!(report.answer.summary.starts_with(status), "{host}: {}", report.answer.summary);
        let told = section(&report, "certificate").fact("client_certificate").unwrap().clone();
        assert_eq!(told, asked.map_or(Fact::Nothing, text), "{host}");
    }
}
