//! Which rules a request's host leads to.

mod common;

use std::net::SocketAddr;

use common::{HOST, Ingress, everything_to, serve, service, status_in, status_of};
use ingress_e2e::client::{self, H2Conn, RawConn, Response};
use ingress_e2e::origin::{Origin, Reply};
use ingress_e2e::pki::{Ca, KeyKind, tls_secret_yaml};
use ingress_e2e::{DEADLINE, eventually};

/// Sends a head as it stands and reads the first answer.
async fn send(addr: SocketAddr, head: &str) -> Response {
    let mut conn = RawConn::connect(addr).await.unwrap();
    conn.send(head).await.unwrap();
    conn.read_response().await.unwrap_or_else(|e| panic!("{head:?}: {e:#}"))
}

#[tokio::test]
async fn port_case_and_trailing_dot_do_not_count() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    for (host, port) in [
        ("app.example.com:80", "80"),
        ("app.example.com:8443", "8443"),
        ("app.example.com:", "80"),
        ("app.example.com.", "80"),
        ("app.example.com.:81", "81"),
        ("APP.Example.COM", "80"),
    ] {
        let answer = client::get(product.http(), host, "/").await;
        assert_eq!(answer.status, 200, "{host}");
        assert_eq!(answer.echoed("x-forwarded-host"), [host], "as the client wrote it");
        assert_eq!(answer.echoed("x-forwarded-port"), [port], "{host}");
    }
    for (host, port) in
        [("app.example.com:443", "443"), ("app.example.com", "443"), ("app.example.com:8443", "8443")]
    {
        let answer = client::tls_get(product.https(), HOST, host, "/", None).await;
        assert_eq!(
            (answer.status, answer.echoed("x-forwarded-port")),
            (200, vec![port.to_owned()]),
            "{host}"
        );
    }
}

#[tokio::test]
async fn a_host_that_cannot_be_is_refused() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    for host in [
        "app.example.com:99999",
        "app.example.com:abc",
        "app.example.com:-1",
        "app.example.com:80:80",
        "app.example.com, b.example.com",
        "app.example.com/x",
        "user@app.example.com",
        "app..example.com",
        ".",
        "[::1",
        "app%2eexample.com",
    ] {
        let status = status_of(product.http(), format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        assert_eq!(status, 400, "{host}");
    }
    assert_eq!(origin.accepts(), 0, "nothing was forwarded");
}

#[tokio::test]
async fn a_missing_empty_or_doubled_host_is_refused() {
    let origin = Origin::echo().await;
    let product = serve([
        // A rule without host must not take what has no host.
        Ingress::new("any").prefix("", "/", "web").prefix(HOST, "/", "web").yaml(),
        service("web", &[origin.addr()]),
    ])
    .await;
    for head in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost:\r\n\r\n",
        "GET / HTTP/1.1\r\nHost:  \r\n\r\n",
        "GET / HTTP/1.1\r\nHost: app.example.com\r\nHost: app.example.com\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: app.example.com\r\nHost: b.example.com\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: app.example.com\r\nX-A: 1\r\nhOST: b.example.com\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
    ] {
        assert_eq!(status_of(product.http(), head).await, 400, "{head:?}");
    }
    assert_eq!(origin.accepts(), 0, "nothing was forwarded");
}

#[tokio::test]
async fn a_wildcard_stands_for_one_label() {
    let origin = Origin::echo().await;
    let product = serve([
        Ingress::new("wild").prefix("*.example.com", "/", "web").yaml(),
        service("web", &[origin.addr()]),
    ])
    .await;
    for (host, statuses) in [
        ("a.example.com", [200, 200]),
        ("A.EXAMPLE.com:80", [200, 200]),
        ("a.b.example.com", [404, 404]),
        ("example.com", [404, 404]),
        (".example.com", [404, 400]),
        ("a.example.com.evil.example", [404, 404]),
        ("aexample.com", [404, 404]),
    ] {
        let status = client::get(product.http(), host, "/").await.status;
        assert!(statuses.contains(&status), "{host}: {status}");
    }
}

#[tokio::test]
async fn the_first_host_that_matches_decides() {
    let (exact, wild, any) = (
        Origin::echo().await.named("exact"),
        Origin::echo().await.named("wild"),
        Origin::echo().await.named("any"),
    );
    let product = serve([
        Ingress::new("any").prefix("", "/", "any").yaml(),
        Ingress::new("wild").prefix("*.example.com", "/only", "wild").yaml(),
        Ingress::new("exact").prefix(HOST, "/only", "exact").yaml(),
        service("exact", &[exact.addr()]),
        service("wild", &[wild.addr()]),
        service("any", &[any.addr()]),
    ])
    .await;
    let get = async |host, path| client::get(product.http(), host, path).await;
    assert_eq!(get(HOST, "/only").await.origin(), "exact");
    assert_eq!(get(HOST, "/else").await.status, 404, "not the wildcard's, not the rule's without host");
    assert_eq!(get("b.example.com", "/only").await.origin(), "wild");
    assert_eq!(get("b.example.com", "/else").await.status, 404, "not the rule's without host");
    assert_eq!(get("else.example.org", "/else").await.origin(), "any");
}

#[tokio::test]
async fn an_unknown_host_is_404_from_the_proxy_itself() {
    let origin = Origin::http(|_| Reply::new(200, "hi").header("Server", "backend/1")).await;
    let product = serve(everything_to(&origin)).await;
    let ours = client::get(product.http(), "other.example.com", "/").await;
    assert_eq!((ours.status, ours.header_all("server")), (404, vec!["tak-os-ingress"]));
    let theirs = client::get(product.http(), HOST, "/").await;
    assert_eq!((theirs.status, theirs.header_all("server")), (200, vec!["backend/1"]));

    let plain = Origin::echo().await;
    let product = serve(everything_to(&plain)).await;
    assert_eq!(client::get(product.http(), HOST, "/").await.header("server"), None, "none of ours is added");
}

#[tokio::test]
async fn an_absolute_target_is_served_in_origin_form() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    for target in ["http://app.example.com/x/y?z=1", "HTTP://app.example.com/x/y?z=1"] {
        let answer =
            send(product.http(), &format!("GET {target} HTTP/1.1\r\nHost: app.example.com\r\n\r\n")).await;
        assert_eq!(answer.status, 200, "{target}");
        assert_eq!(answer.json()["request_line"], "GET /x/y?z=1 HTTP/1.1");
        assert_eq!(answer.echoed("host"), [HOST], "{target}");
    }
    let bare =
        send(product.http(), "GET http://app.example.com HTTP/1.1\r\nHost: app.example.com\r\n\r\n").await;
    assert_eq!((bare.status, bare.json()["request_line"].as_str()), (200, Some("GET / HTTP/1.1")));
}

#[tokio::test]
async fn an_absolute_target_that_contradicts_host_never_takes_the_hosts_route() {
    let (admin, public) = (Origin::echo().await, Origin::echo().await);
    let product = serve([
        Ingress::new("admin").prefix("admin.example.com", "/", "admin").set("auth-type", "basic").yaml(),
        Ingress::new("public").prefix("public.example.com", "/", "public").yaml(),
        service("admin", &[admin.addr()]),
        service("public", &[public.addr()]),
    ])
    .await;
    // Refused rather than read as the target's host, which RFC 9112 section 3.2.2 would allow as well.
    for (target, host) in [("admin", "public"), ("public", "admin")] {
        let head = format!("GET http://{target}.example.com/ HTTP/1.1\r\nHost: {host}.example.com\r\n\r\n");
        assert_eq!(status_of(product.http(), head).await, 400, "{target} {host}");
    }
    assert_eq!((admin.accepts(), public.accepts()), (0, 0));
}

#[tokio::test]
async fn the_scheme_of_an_absolute_target_says_nothing_of_the_connection() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let head = "GET https://app.example.com/ HTTP/1.1\r\nHost: app.example.com\r\nConnection: close\r\n\r\n";
    let answer = client::raw(product.http(), head).await;
    match status_in(&answer) {
        200 => {
            let head = origin.last_head().to_ascii_lowercase();
            assert!(head.contains("\r\nx-forwarded-proto: http\r\n"), "{head}");
            assert!(head.contains("\r\nx-forwarded-port: 80\r\n"), "{head}");
        }
        status => assert_eq!((status, origin.accepts()), (400, 0)),
    }
}

#[tokio::test]
async fn case_of_host_and_server_name_does_not_count() {
    let ca = Ca::new();
    let leaf = ca.leaf(&[HOST], KeyKind::EcP256Sec1);
    let origin = Origin::echo().await;
    let product = serve([
        Ingress::new("web").prefix("App.Example.com", "/", "web").tls(&["APP.example.com"], "tls").yaml(),
        service("web", &[origin.addr()]),
        tls_secret_yaml("shop", "tls", &leaf),
    ])
    .await;
    let host = "APP.Example.COM";
    let answer = client::tls_get(product.https(), "APP.EXAMPLE.COM", host, "/", None).await;
    assert_eq!(answer.status, 200);
    let served = client::served_certificate(product.https(), Some("APP.EXAMPLE.COM")).await;
    assert!(served.is(&leaf), "{:?}", served.names());
    let labels = [("host", HOST), ("code", "200")];
    let counted = async || product.metric_sum("tak_ingress_requests_total", &labels).await;
    eventually(DEADLINE, async || (counted().await == 1.0).then_some(())).await;
}

#[tokio::test]
async fn one_http2_connection_serves_the_hosts_of_its_wildcard_certificate() {
    let leaf = Ca::new().leaf(&["*.example.com"], KeyKind::EcP256Sec1);
    let (a, b) = (Origin::echo().await.named("A"), Origin::echo().await.named("B"));
    let hosts = ["a.example.com", "b.example.com", "closed.example.com"];
    let product = serve([
        Ingress::new("a").prefix(hosts[0], "/", "a").tls(&hosts[..1], "wild").yaml(),
        Ingress::new("b").prefix(hosts[1], "/", "b").tls(&hosts[1..2], "wild").yaml(),
        Ingress::new("closed")
            .prefix(hosts[2], "/", "b")
            .tls(&hosts[2..], "wild")
            .set("auth-type", "basic")
            .yaml(),
        service("a", &[a.addr()]),
        service("b", &[b.addr()]),
        tls_secret_yaml("shop", "wild", &leaf),
    ])
    .await;
    let conn = H2Conn::connect_tls(product.https(), hosts[0]).await.unwrap();
    assert_eq!(conn.get(hosts[0], "/").await.unwrap().origin(), "A");
    let other = conn.get(hosts[1], "/").await.unwrap();
    assert_eq!((other.status, other.origin().as_str()), (200, "B"));
    assert_eq!(other.echoed("host"), [hosts[1]], "the backend sees :authority as Host");
    assert_eq!(conn.get(hosts[2], "/").await.unwrap().status, 501, "each host keeps its own authentication");
    assert_eq!((a.requests(), b.requests()), (1, 1));
}

#[tokio::test]
async fn no_header_but_host_chooses_the_route() {
    let (admin, public) = (Origin::echo().await.named("admin"), Origin::echo().await.named("public"));
    let product = serve([
        Ingress::new("admin").prefix("admin.example.com", "/", "admin").yaml(),
        Ingress::new("public").prefix("public.example.com", "/", "public").yaml(),
        service("admin", &[admin.addr()]),
        service("public", &[public.addr()]),
    ])
    .await;
    let mut conn = RawConn::connect(product.http()).await.unwrap();
    for name in [
        "X-Forwarded-Host",
        "X-Host",
        "X-Original-Host",
        "X-Forwarded-Server",
        "X-HTTP-Host-Override",
        "Forwarded",
    ] {
        let value = if name == "Forwarded" { "host=admin.example.com" } else { "admin.example.com" };
        let answer = conn.request("GET", "public.example.com", "/", &[(name, value)], b"").await.unwrap();
        assert_eq!((answer.status, answer.origin().as_str()), (200, "public"), "{name}");
        assert_eq!(answer.echoed("x-forwarded-host"), ["public.example.com"], "{name}");
    }
    assert_eq!(admin.accepts(), 0);
}
