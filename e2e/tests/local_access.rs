//! Address lists, and whose word on a client's address counts.

mod common;

use common::{HOST, Ingress, client_from, everything_to, serve, serve_with, service};
use ingress_e2e::client::{H2Conn, RawConn};
use ingress_e2e::origin::Origin;
use ingress_e2e::pki::{Ca, KeyKind, tls_secret_yaml};
use ingress_e2e::product::Product;
use ingress_e2e::{DEADLINE, eventually};

async fn status_from(product: &Product, ip: &str, headers: &[(&str, &str)]) -> u16 {
    let mut conn = client_from(ip, product.http()).await;
    conn.request("GET", HOST, "/", headers, b"").await.unwrap().status
}

/// [`HOST`] with these lists.
async fn listed(origin: &Origin, lists: &[(&str, &str)], args: &[&str]) -> Product {
    let ingress = Ingress::new("web").prefix(HOST, "/", "web");
    let ingress = lists.iter().fold(ingress, |ingress, (key, value)| ingress.set(key, value));
    serve_with([ingress.yaml(), service("web", &[origin.addr()])], args).await
}

const ALLOW: &str = "allowlist-source-range";
const DENY: &str = "denylist-source-range";

#[tokio::test]
async fn lists_let_in_and_keep_out_by_the_peers_address() {
    let origin = Origin::echo().await;
    for (lists, statuses) in [
        (&[(ALLOW, "127.0.0.2,127.0.0.3")][..], [403, 200, 200, 403]),
        (&[(ALLOW, "::ffff:127.0.0.2/127")], [403, 200, 200, 403]),
        (&[(DENY, "127.0.0.2, 127.0.0.3")], [200, 403, 403, 200]),
        (&[(ALLOW, "127.0.0.0/30"), (DENY, "127.0.0.2/31")], [200, 403, 403, 403]),
        (&[(ALLOW, "2001:db8::/32")], [403, 403, 403, 403]),
        (&[(ALLOW, "127.0.0.0/8,intranet")], [403, 403, 403, 403]),
        (&[(ALLOW, "")], [403, 403, 403, 403]),
        (&[(DENY, "")], [403, 403, 403, 403]),
        (&[(ALLOW, "127.0.0.0/8"), (DENY, "nonsense")], [403, 403, 403, 403]),
    ] {
        let product = listed(&origin, lists, &[]).await;
        for (ip, status) in ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"].into_iter().zip(statuses) {
            assert_eq!(status_from(&product, ip, &[]).await, status, "{lists:?} {ip}");
        }
    }
}

#[tokio::test]
async fn addresses_that_arrive_mapped_are_ipv4() {
    let origin = Origin::echo().await;
    // On a listener of both families the kernel gives IPv4 clients as ::ffff:a.b.c.d.
    let product = listed(&origin, &[(ALLOW, "127.0.0.2/32")], &["--bind-address=::"]).await;
    let to = ([127, 0, 0, 1], product.http().port()).into();
    for (ip, status) in [("127.0.0.2", 200), ("127.0.0.3", 403)] {
        assert_eq!(client_from(ip, to).await.get(HOST, "/").await.unwrap().status, status, "{ip}");
    }
}

#[tokio::test]
async fn nothing_a_client_sends_moves_its_address() {
    let origin = Origin::echo().await;
    let product = listed(&origin, &[(ALLOW, "127.0.0.2")], &[]).await;
    for name in [
        "X-Forwarded-For",
        "x_forwarded_for",
        "X-Real-IP",
        "Forwarded",
        "X-Client-IP",
        "True-Client-IP",
        "CF-Connecting-IP",
        "X-Original-Forwarded-For",
        "Client-IP",
        "Via",
    ] {
        for value in ["127.0.0.2", "for=127.0.0.2", "127.0.0.2, 127.0.0.1"] {
            assert_eq!(status_from(&product, "127.0.0.1", &[(name, value)]).await, 403, "{name}: {value}");
            assert_eq!(status_from(&product, "127.0.0.2", &[(name, "127.0.0.9")]).await, 200, "{name}");
        }
    }
    assert_eq!(origin.requests(), 30);
}

#[tokio::test]
async fn each_request_of_a_connection_is_asked_about_its_own_route() {
    let origin = Origin::echo().await;
    let ca = Ca::new();
    let product = serve([
        Ingress::new("open").prefix(HOST, "/", "web").tls(&[HOST], "tls").yaml(),
        Ingress::new("closed").prefix(HOST, "/admin", "web").set(ALLOW, "192.0.2.0/24").yaml(),
        tls_secret_yaml(common::NAMESPACE, "tls", &ca.leaf(&[HOST], KeyKind::EcP256Sec1)),
        service("web", &[origin.addr()]),
    ])
    .await;
    // A refused client learns nothing of redirects: the lists come first.
    assert_eq!(
        RawConn::connect(product.http()).await.unwrap().get(HOST, "/admin").await.unwrap().status,
        403
    );
    let h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
    for (path, status) in [("/", 200), ("/admin", 403), ("/", 200), ("/admin/x", 403)] {
        assert_eq!(h2.get(HOST, path).await.unwrap().status, status, "{path}");
    }
    // An upgrade goes through the lists like everything else.
    let ws = [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    assert_eq!(conn.request("GET", HOST, "/admin/ws", &ws, b"").await.unwrap().status, 403);
}

#[tokio::test]
async fn a_trusted_proxy_is_believed_and_nobody_else() {
    let origin = Origin::echo().await;
    let product =
        listed(&origin, &[(DENY, "198.51.100.0/24")], &["--trusted-proxies=127.0.0.2,10.0.0.0/8"]).await;
    let ask = async |ip: &str, headers: &[(&str, &str)]| {
        client_from(ip, product.http()).await.request("GET", HOST, "/", headers, b"").await.unwrap()
    };
    let seen = async |ip: &str, forwarded: &str| {
        let answer = ask(ip, &[("X-Forwarded-For", forwarded)]).await;
        assert_eq!(answer.status, 200, "{ip} {forwarded}");
        assert_eq!(answer.echoed("x-forwarded-for"), answer.echoed("x-real-ip"));
        answer.echoed("x-forwarded-for").join("|")
    };
    assert_eq!(seen("127.0.0.1", "203.0.113.9").await, "127.0.0.1", "not a trusted peer");
    assert_eq!(seen("127.0.0.2", "203.0.113.9").await, "203.0.113.9");
    assert_eq!(seen("127.0.0.2", "203.0.113.9, 10.1.1.1").await, "203.0.113.9", "past trusted proxies");
    // Behind the trusted proxy, the client wrote all but the last entry.
    assert_eq!(seen("127.0.0.2", "198.51.100.1, 203.0.113.9").await, "203.0.113.9");
    assert_eq!(seen("127.0.0.2", "10.9.9.9, 203.0.113.9").await, "203.0.113.9");
    assert_eq!(seen("127.0.0.2", "nonsense").await, "127.0.0.2");
    assert_eq!(ask("127.0.0.2", &[("X-Forwarded-For", "203.0.113.9, 198.51.100.1")]).await.status, 403);
    assert_eq!(ask("127.0.0.1", &[("X-Forwarded-For", "198.51.100.1")]).await.status, 200);
    // The other headers of the family go with it.
    let said =
        [("X-Forwarded-Proto", "https"), ("X-Forwarded-Port", "8443"), ("X-Forwarded-Host", "a.example")];
    let answer = ask("127.0.0.2", &said).await;
    assert_eq!(answer.echoed("x-forwarded-proto"), ["https"]);
    assert_eq!(answer.echoed("x-forwarded-port"), ["8443"]);
    assert_eq!(answer.echoed("x-forwarded-host"), ["a.example"]);
    let answer = ask("127.0.0.1", &said).await;
    assert_eq!(answer.echoed("x-forwarded-proto"), ["http"]);
    assert_eq!(answer.echoed("x-forwarded-port"), ["80"]);
    assert_eq!(answer.echoed("x-forwarded-host"), [HOST]);
    let logged = async || product.log().iter().any(|line| line["client"] == "203.0.113.9").then_some(());
    eventually(DEADLINE, logged).await;
    // Also where no route takes the request.
    for (ip, client) in [("127.0.0.2", "203.0.113.77"), ("127.0.0.1", "127.0.0.1")] {
        let path = format!("/to-nobody-{client}");
        let headers = [("X-Forwarded-For", "203.0.113.77")];
        let mut conn = client_from(ip, product.http()).await;
        assert_eq!(
            conn.request("GET", "nobody.example.com", &path, &headers, b"").await.unwrap().status,
            404
        );
        let record = async || product.log().into_iter().find(|line| line["path"] == path.as_str());
        assert_eq!(eventually(DEADLINE, record).await["client"], client);
    }
}

#[tokio::test]
async fn the_redirect_goes_by_what_a_trusted_proxy_says_of_the_clients_scheme() {
    let origin = Origin::echo().await;
    let ca = Ca::new();
    let documents = [
        Ingress::new("web").prefix(HOST, "/", "web").tls(&[HOST], "tls").yaml(),
        tls_secret_yaml(common::NAMESPACE, "tls", &ca.leaf(&[HOST], KeyKind::EcP256Sec1)),
        service("web", &[origin.addr()]),
    ];
    let product = serve_with(documents, &["--trusted-proxies=127.0.0.2"]).await;
    let https = [("X-Forwarded-Proto", "https")];
    assert_eq!(status_from(&product, "127.0.0.2", &https).await, 200);
    assert_eq!(status_from(&product, "127.0.0.2", &[("X-Forwarded-Proto", "http")]).await, 308);
    assert_eq!(status_from(&product, "127.0.0.2", &[]).await, 308);
    assert_eq!(status_from(&product, "127.0.0.1", &https).await, 308, "nobody believes a client");
}

#[tokio::test]
async fn a_challenge_reaches_its_solver_past_redirect_and_authentication() {
    const TOKEN: &str = "/.well-known/acme-challenge/LoqXcYV8q5ONbJQxbmR7SCTNo3tiAXDfowyjxAjEuX0";
    let (app, solver) = (Origin::echo().await.named("app"), Origin::echo().await.named("solver"));
    let ca = Ca::new();
    let challenge = serde_json::json!({"path": TOKEN, "pathType": "ImplementationSpecific"});
    let port = || serde_json::json!({"number": 80});
    let product = serve([
        Ingress::new("app").prefix(HOST, "/", "app").tls(&[HOST], "tls").set("auth-type", "basic").yaml(),
        Ingress::new("solver").rule(HOST, challenge.clone(), "solver", port()).yaml(),
        // The solver's path in the application's own Ingress, as cert-manager's edit in place has it.
        Ingress::new("own")
            .prefix("own.example.com", "/", "app")
            .rule("own.example.com", challenge, "solver", port())
            .tls(&["own.example.com"], "tls")
            .set("auth-type", "basic")
            .yaml(),
        tls_secret_yaml(common::NAMESPACE, "tls", &ca.leaf(&[HOST], KeyKind::EcP256Sec1)),
        service("app", &[app.addr()]),
        service("solver", &[solver.addr()]),
    ])
    .await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    for host in [HOST, "own.example.com"] {
        let answer = conn.get(host, TOKEN).await.unwrap();
        assert_eq!(answer.status, 200, "{host}");
        assert_eq!(answer.origin(), "solver");
        // Only what was declared for challenges is open, not every path of that name.
        assert_eq!(conn.get(host, "/.well-known/acme-challenge/other").await.unwrap().status, 308);
        assert_eq!(conn.get(host, "/").await.unwrap().status, 308);
    }
    let h2 = H2Conn::connect_tls(product.https(), HOST).await.unwrap();
    assert_eq!(h2.get(HOST, "/.well-known/acme-challenge/other").await.unwrap().status, 501);
    assert_eq!(h2.get("own.example.com", TOKEN).await.unwrap().origin(), "solver");
    let posted = h2.request("POST", "own.example.com", TOKEN, &[], b"x").await.unwrap();
    assert_eq!(posted.status, 501, "a challenge is read, never written");
}

#[tokio::test]
async fn while_a_challenge_runs_a_wildcards_application_stays() {
    const TOKEN: &str = "/.well-known/acme-challenge/LoqXcYV8q5ONbJQxbmR7SCTNo3tiAXDfowyjxAjEuX0";
    let (app, solver) = (Origin::echo().await.named("app"), Origin::echo().await.named("solver"));
    let challenge = serde_json::json!({"path": TOKEN, "pathType": "ImplementationSpecific"});
    let product = serve([
        Ingress::new("app").prefix("*.example.com", "/", "app").yaml(),
        Ingress::new("rest").prefix("", "/", "app").yaml(),
        Ingress::new("solver")
            .rule("www.example.com", challenge.clone(), "solver", serde_json::json!({"number": 80}))
            .rule("example.org", challenge, "solver", serde_json::json!({"number": 80}))
            .yaml(),
        service("app", &[app.addr()]),
        service("solver", &[solver.addr()]),
    ])
    .await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    for host in ["www.example.com", "example.org"] {
        assert_eq!(conn.get(host, TOKEN).await.unwrap().origin(), "solver");
        for path in ["/", "/.well-known/acme-challenge/other"] {
            let answer = conn.get(host, path).await.unwrap();
            assert_eq!((answer.status, answer.origin()), (200, "app".into()), "{host}{path}");
        }
    }
}

#[tokio::test]
async fn without_lists_everybody_is_let_in() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    assert_eq!(status_from(&product, "127.0.0.7", &[]).await, 200);
}
