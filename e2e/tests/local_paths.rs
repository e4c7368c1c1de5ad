//! Which rule takes a path, and what of the path the backend sees.

mod common;

use common::{HOST, Ingress, everything_to, get, serve, service, status_of};
use ingress_e2e::client;
use ingress_e2e::origin::Origin;
use ingress_e2e::product::Product;
use serde_json::json;

/// The status, and for a 200 the name of the origin that answered.
async fn answer(product: &Product, path: &str) -> (u16, String) {
    let answer = client::get(product.http(), HOST, path).await;
    (answer.status, if answer.status == 200 { answer.origin() } else { String::new() })
}

#[track_caller]
fn assert_answers(got: &[(u16, String)], want: &[&str], paths: &[&str]) {
    let got: Vec<_> = got.iter().map(|(s, o)| if *s == 200 { o.clone() } else { s.to_string() }).collect();
    assert_eq!(got, want, "{paths:?}");
}

async fn answers(product: &Product, paths: &[&str]) -> Vec<(u16, String)> {
    let mut all = Vec::new();
    for path in paths {
        all.push(answer(product, path).await);
    }
    all
}

#[tokio::test]
async fn a_prefix_goes_by_element_with_or_without_its_last_slash() {
    for declared in ["/aaa/bbb/", "/aaa/bbb"] {
        let origin = Origin::echo().await.named("A");
        let ingress = Ingress::new("web").prefix(HOST, declared, "a");
        let product = serve([ingress.yaml(), service("a", &[origin.addr()])]).await;
        let paths = ["/aaa/bbb", "/aaa/bbb/", "/aaa/bbb/ccc", "/aaa/bbbxyz", "/aaa", "/AAA/bbb"];
        assert_answers(&answers(&product, &paths).await, &["A", "A", "A", "404", "404", "404"], &paths);
    }
}

#[tokio::test]
async fn exact_beats_prefix_whichever_is_older() {
    let (a, b) = (Origin::echo().await.named("A"), Origin::echo().await.named("B"));
    let services = [service("a", &[a.addr()]), service("b", &[b.addr()])];
    let paths = ["/foo", "/foo?x=1", "/foo/", "/foo/bar", "/FOO", "/foobar"];
    let one = vec![Ingress::new("one").prefix(HOST, "/foo", "b").exact(HOST, "/foo", "a")];
    let two = |exact, prefix| {
        vec![
            Ingress::new("exact").created(exact).exact(HOST, "/foo", "a"),
            Ingress::new("prefix").created(prefix).prefix(HOST, "/foo", "b"),
        ]
    };
    for ingresses in [one, two(1, 2), two(2, 1)] {
        let product = serve(ingresses.iter().map(Ingress::yaml).chain(services.clone())).await;
        assert_answers(&answers(&product, &paths).await, &["A", "A", "B", "B", "404", "404"], &paths);
    }
}

#[tokio::test]
async fn the_longest_prefix_wins_whichever_is_older() {
    let (a, b) = (Origin::echo().await.named("A"), Origin::echo().await.named("B"));
    let paths = ["/aaa/bbb/x", "/aaa/bbb", "/aaa/bbbx", "/aaa/ccc", "/aaaccc"];
    for (short, long) in [(1, 2), (2, 1)] {
        let product = serve([
            Ingress::new("short").created(short).prefix(HOST, "/aaa", "a").yaml(),
            Ingress::new("long").created(long).prefix(HOST, "/aaa/bbb", "b").yaml(),
            service("a", &[a.addr()]),
            service("b", &[b.addr()]),
        ])
        .await;
        assert_answers(&answers(&product, &paths).await, &["B", "B", "A", "A", "404"], &paths);
    }
}

#[tokio::test]
async fn implementation_specific_is_a_prefix() {
    let origin = Origin::echo().await.named("A");
    let plain = json!({"path": "/plain", "pathType": "ImplementationSpecific"});
    let bare = json!({"pathType": "ImplementationSpecific"});
    let product = serve([
        Ingress::new("plain").rule(HOST, plain, "a", json!({"number": 80})).yaml(),
        Ingress::new("bare").rule("bare.example.com", bare, "a", json!({"number": 80})).yaml(),
        service("a", &[origin.addr()]),
    ])
    .await;
    let paths = ["/plain", "/plain/x", "/plainx", "/"];
    assert_answers(&answers(&product, &paths).await, &["A", "A", "404", "404"], &paths);
    assert_eq!(client::get(product.http(), "bare.example.com", "/any").await.status, 200, "no path is /");
}

async fn regex_like() -> (Product, Origin) {
    let origin = Origin::echo().await.named("A");
    let path = json!({"path": "/api/(.*)", "pathType": "ImplementationSpecific"});
    let ingress = Ingress::new("regex").rule(HOST, path, "a", json!({"number": 80}));
    (serve([ingress.yaml(), service("a", &[origin.addr()])]).await, origin)
}

#[tokio::test]
async fn a_path_like_a_regular_expression_is_plain_text() {
    let (product, _origin) = regex_like().await;
    let paths = ["/api/x", "/api/", "/api/(.*)", "/api/(.*)/x"];
    assert_answers(&answers(&product, &paths).await, &["404", "404", "A", "A"], &paths);
}

#[tokio::test]
async fn a_path_like_a_regular_expression_is_warned_of() {
    let (product, _origin) = regex_like().await;
    let warned = async || {
        let log = product.log();
        let mut lines = log.iter().filter(|line| line["level"] == "WARN").map(ToString::to_string);
        lines.find(|line| line.contains("shop/regex") && line.contains("/api/(.*)"))
    };
    ingress_e2e::eventually(ingress_e2e::DEADLINE, warned).await;
}

#[tokio::test]
async fn dot_segments_are_refused_in_every_spelling() {
    let (adm, web) = (Origin::echo().await, Origin::echo().await);
    let product = serve([
        Ingress::new("adm").prefix(HOST, "/admin", "adm").set("auth-type", "basic").yaml(),
        Ingress::new("web").prefix(HOST, "/", "web").yaml(),
        service("adm", &[adm.addr()]),
        service("web", &[web.addr()]),
    ])
    .await;
    let refused = [
        "/x/../admin",
        "/../admin",
        "/./admin",
        "/admin/.",
        "/x/..",
        "/.",
        "/..",
        "/x/..?q",
        "/x/%2e%2e/admin",
        "/x/.%2E/admin",
        "/x/%2E./admin",
        "/%2e/admin",
        "/admin/%2e%2e/admin",
        "/x//../admin",
        "/x/..%2Fadmin",
        "/x/%2e%2e%2fadmin",
        "/x%2F..%2Fadmin",
        "/x%2f%2e%2E%2fadmin",
        "/x%2F./admin",
        "/x%2F..",
        "/x/..\\admin",
        "/x\\..\\admin",
        "/\\..\\admin",
        "/x%5C..%5Cadmin",
        "/x/%2e%2e%5cadmin",
        "/x/..;/admin",
        "/x/..;a=b/admin",
        "/x/.;/admin",
        "/x/%2e%2e;/admin",
    ];
    for target in refused {
        assert_eq!(status_of(product.http(), get(HOST, target)).await, 400, "{target}");
    }
    assert_eq!((adm.accepts(), web.accepts()), (0, 0), "nothing was forwarded");

    for target in ["/...", "/a..b", "/..a/b", "/.well-known/x", "/x/.git", "/x/%2e%2e%2e", "/x?a=/../b"] {
        assert_eq!(status_of(product.http(), get(HOST, target)).await, 200, "{target} holds no dot segment");
    }
    assert_eq!(adm.accepts(), 0);
}

#[tokio::test]
async fn path_and_query_reach_the_backend_byte_for_byte() {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    for target in [
        "/remote/%2Ftest%2F2/a%3Ab%3Bc/%3cfoo%3e?q=a%20b+c&z=%2F",
        "/%e4%f6?%FF",
        "/a%25b",
        "/a%zz%",
        "/a;b=c,d/e@f:g!h$i&j'(k)*",
        "/a\\b",
        "/a|b[0]~",
        "/x?a=^`{|}[0]\\",
        "/x?",
        "/x??a=//..",
        "/x?a=b&&c",
        "/x?../../y",
        "/trailing/",
        "//double//slash///",
    ] {
        let answer = client::get(product.http(), HOST, target).await;
        assert_eq!(answer.status, 200, "{target}");
        assert_eq!(answer.json()["request_line"], format!("GET {target} HTTP/1.1"));
    }
}

#[tokio::test]
async fn empty_segments_count_for_the_backend_alone() {
    let (api, user) = (Origin::echo().await.named("api"), Origin::echo().await.named("user"));
    let product = serve([
        Ingress::new("api").prefix(HOST, "/api/users", "api").exact(HOST, "/api/users/1", "user").yaml(),
        service("api", &[api.addr()]),
        service("user", &[user.addr()]),
    ])
    .await;
    for (target, origin) in [
        ("//api/users", "api"),
        ("/api//users///x", "api"),
        ("///api/users//", "api"),
        ("/api/users//1", "user"),
        ("//api//users//1", "user"),
    ] {
        let answer = client::get(product.http(), HOST, target).await;
        assert_eq!((answer.status, answer.origin().as_str()), (200, origin), "{target}");
        assert_eq!(answer.json()["request_line"], format!("GET {target} HTTP/1.1"));
    }
    assert_eq!(client::get(product.http(), HOST, "//apiusers").await.status, 404);
}

#[tokio::test]
async fn an_encoded_slash_does_not_separate() {
    let (api, deep) = (Origin::echo().await.named("api"), Origin::echo().await.named("deep"));
    let product = serve([
        Ingress::new("api").prefix(HOST, "/api", "api").prefix(HOST, "/api/deep", "deep").yaml(),
        service("api", &[api.addr()]),
        service("deep", &[deep.addr()]),
    ])
    .await;
    let paths = ["/api/deep/x", "/api/deep%2Fx", "/api%2Fdeep", "/api%2fdeep/x", "/api/x%2Fdeep"];
    assert_answers(&answers(&product, &paths).await, &["deep", "api", "404", "404", "api"], &paths);
}

/// None of these may be read as a path at all.
async fn assert_refused(targets: &[&[u8]]) {
    let origin = Origin::echo().await;
    let product = serve(everything_to(&origin)).await;
    let mut accepted = Vec::new();
    for target in targets {
        let request = [b"GET ", *target, b" HTTP/1.1\r\nHost: app.example.com\r\n\r\n"].concat();
        let before = origin.heads().len();
        let status = status_of(product.http(), request).await;
        let forwarded: Vec<_> = origin
            .heads()
            .split_off(before)
            .iter()
            .filter_map(|h| h.lines().next().map(str::to_owned))
            .collect();
        if status != 400 || !forwarded.is_empty() {
            accepted.push((String::from_utf8_lossy(target), status, forwarded));
        }
    }
    assert!(accepted.is_empty(), "target, status, what the backend saw: {accepted:#?}");
}

#[tokio::test]
async fn a_fragment_is_refused() {
    assert_refused(&[b"/public#/../admin", b"/admin#x", b"/#", b"/a?b#c", b"http://app.example.com/a#b"])
        .await;
}

#[tokio::test]
async fn control_and_non_ascii_octets_are_refused() {
    assert_refused(&[
        b"/a\x01b",
        b"/a\x1fb",
        b"/a\x7fb",
        b"/a\0b",
        b"/a%00b",
        b"/a\tb",
        b"/\xc3\xa4",
        b"/\xff",
    ])
    .await;
}

#[tokio::test]
async fn a_space_in_the_target_is_refused() {
    assert_refused(&[b"/a b", b"/ x", b" /", b"/ ", b"/a?b c"]).await;
}

#[tokio::test]
async fn a_target_without_its_slash_is_refused() {
    assert_refused(&[
        b"admin",
        b"admin/x",
        b"x/../../admin",
        b"?x=1",
        b"?/../x",
        b"",
        b"*",
        b"*/x",
        b"app.example.com:80",
    ])
    .await;
}
