//! An Ingress with authentication and an HTTPRoute for one host: each request has one winner, and its rule alone.

mod common;

use common::gateway::{gateway, http, object, to};
use common::{HOST, Ingress, join, secret, service};
use ingress_e2e::client::{self, RawConn, Response};
use ingress_e2e::origin::{Origin, Reply};
use ingress_e2e::product::Product;
use ingress_e2e::{DEADLINE, eventually};
use serde_json::{Value, json};

/// `alice` with the password `pa:ss word`.
const USERS: &str = "alice:$apr1$abcdefgh$tZCjPu7axu9jp1Xjq4cw21";
const CREDENTIALS: (&str, &str) = ("Authorization", "Basic YWxpY2U6cGE6c3Mgd29yZA==");

const INGRESS: &str = "ingress.yaml";
const ROUTE: &str = "route.yaml";

/// How an Ingress is protected.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Auth {
    Basic,
    External,
}

/// Whom requests reach, and the one who says for the Ingress who gets in.
struct Scene {
    product: Product,
    of_ingress: Origin,
    of_route: Origin,
    _provider: Origin,
}

/// An Ingress with authentication for `ingress_path`, and a route for `route_path`, each to its own backend.
async fn scene(auth: Auth, ingress_older: bool, ingress_path: &str, route_path: &str) -> Scene {
    let of_ingress = Origin::echo().await.named("of-ingress");
    let of_route = Origin::echo().await.named("of-route");
    let provider = Origin::http(|asked| match asked.header("authorization") {
        Some(value) if value == CREDENTIALS.1 => Reply::new(200, ""),
        _ => Reply::new(401, ""),
    })
    .await;
    let ingress = Ingress::new("i").created(if ingress_older { 1 } else { 3 });
    let ingress = ingress.prefix(HOST, ingress_path, "of-ingress");
    let ingress = match auth {
        Auth::Basic => ingress.set("auth-type", "basic").set("auth-secret", "users"),
        Auth::External => ingress.set("auth-url", &format!("http://{}/", provider.addr())),
    };
    let rules = json!([{"matches": [{"path": {"value": route_path}}], "backendRefs": to("of-route")}]);
    let spec = json!({"parentRefs": [{"name": "gw"}], "hostnames": [HOST], "rules": rules});
    let mut route: Value = serde_json::from_str(&object("HTTPRoute", "r", spec)).unwrap();
    route["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z".into();
    let base = [
        service("of-ingress", &[of_ingress.addr()]),
        service("of-route", &[of_route.addr()]),
        secret("users", json!({"auth": USERS})),
    ];
    let product = Product::builder()
        .manifest("base.yaml", &join(base.into_iter().chain(gateway(http()))))
        .manifest(INGRESS, &ingress.yaml())
        .manifest(ROUTE, &route.to_string())
        .arg("--enable-gateway-api=auto")
        .arg("--auth-throttle-failures=0")
        .start()
        .await;
    product.ready().await;
    Scene { product, of_ingress, of_route, _provider: provider }
}

impl Scene {
    async fn ask(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        let mut conn = RawConn::connect(self.product.http()).await.unwrap();
        conn.request("GET", HOST, path, headers, b"").await.unwrap()
    }

    /// The Ingress's rule holds there, and its backend is the one behind it.
    async fn is_protected(&self, path: &str) {
        let before = (self.of_ingress.accepts(), self.of_route.accepts());
        for headers in [&[][..], &[("Authorization", "Basic YWxpY2U6d3Jvbmc=")], &[("Version", "two")]] {
            assert_eq!(self.ask(path, headers).await.status, 401, "{path} {headers:?}");
        }
        assert_eq!((self.of_ingress.accepts(), self.of_route.accepts()), before, "{path}: nobody was asked");
        let answer = self.ask(path, &[CREDENTIALS]).await;
        assert_eq!((answer.status, answer.origin()), (200, "of-ingress".to_owned()), "{path}");
    }

    /// No rule of the Ingress holds there: credentials are the route's backend's own matter.
    async fn is_open(&self, path: &str) {
        let before = self.of_ingress.accepts();
        for headers in [&[][..], &[CREDENTIALS], &[("Authorization", "Basic YWxpY2U6d3Jvbmc=")]] {
            let answer = self.ask(path, headers).await;
            assert_eq!((answer.status, answer.origin()), (200, "of-route".to_owned()), "{path} {headers:?}");
            assert_eq!(answer.echoed("authorization"), headers.iter().map(|h| h.1).collect::<Vec<_>>());
            assert!(answer.echoed("x-auth-request-user").is_empty());
        }
        assert_eq!(self.of_ingress.accepts(), before, "{path}: the Ingress's backend was not asked");
    }
}

#[tokio::test]
async fn the_older_of_both_has_a_path_with_its_own_rule_until_it_is_deleted() {
    for auth in [Auth::Basic, Auth::External] {
        let scene = scene(auth, true, "/", "/").await;
        for path in ["/", "/deep/er", "/?x=1"] {
            scene.is_protected(path).await;
        }
        assert_eq!(scene.of_route.accepts(), 0, "{auth:?}: the route has nothing here");
        scene.product.remove_manifest(INGRESS);
        eventually(DEADLINE, async || match scene.ask("/", &[]).await {
            answer if answer.status == 401 => None, // and no gap between both
            answer => {
                assert_eq!((answer.status, answer.origin()), (200, "of-route".to_owned()), "{auth:?}");
                Some(())
            }
        })
        .await;
        scene.is_open("/deep/er").await;

        let scene = self::scene(auth, false, "/", "/").await;
        scene.is_open("/").await;
        assert_eq!(scene.of_ingress.accepts(), 0, "{auth:?}: the Ingress has nothing here");
        // The route is attached to the HTTP listener alone, so over TLS the Ingress has the path.
        let tls = client::tls_get(scene.product.https(), HOST, HOST, "/", None).await;
        assert_eq!((tls.status, scene.of_ingress.accepts()), (401, 0), "{auth:?}");
        scene.product.remove_manifest(ROUTE);
        eventually(DEADLINE, async || match scene.ask("/", &[]).await {
            answer if answer.status == 401 => Some(()),
            answer => {
                assert_eq!((answer.status, answer.origin()), (200, "of-route".to_owned()), "{auth:?}");
                None
            }
        })
        .await;
        assert_eq!(scene.of_ingress.accepts(), 0, "{auth:?}: at no time was it open");
        scene.is_protected("/deep/er").await;
    }
}

#[tokio::test]
async fn with_different_paths_each_has_its_own_whichever_is_older() {
    for auth in [Auth::Basic, Auth::External] {
        for ingress_older in [true, false] {
            let scene = scene(auth, ingress_older, "/admin", "/").await;
            for path in ["/admin", "/admin/", "/admin/x"] {
                scene.is_protected(path).await;
            }
            for path in ["/", "/admins", "/x/admin"] {
                scene.is_open(path).await;
            }
            let scene = self::scene(auth, ingress_older, "/", "/public").await;
            for path in ["/", "/publics", "/x/public"] {
                scene.is_protected(path).await;
            }
            for path in ["/public", "/public/x"] {
                scene.is_open(path).await;
            }
        }
    }
}
