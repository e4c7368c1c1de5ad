//! One look at a source, for `explain`: what a controller would serve from it, and then no more. Writes nothing.

use crate::check::{self, Manifest, Mistakes};
use crate::cluster::backend_tls::{BackendTlsPolicySpec, ConfigMap};
use crate::cluster::gateway::{
    GatewayClassSpec, GatewaySpec, GrantSpec, GrpcRouteSpec, HttpRouteSpec, ListenerSetSpec, TlsRouteSpec,
    Wire,
};
use crate::cluster::{Cluster, Dirty};
use crate::translate::{self, Settings, Translator};
use crate::update::{Object, Update, Watched};
use crate::watch;
use ingress_core::{ServicePort, Snapshot};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use kube::api::{Api, ListParams};
use kube::core::{DeserializeGuard, PartialObjectMeta};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::net::IpAddr;

const PAGE: u32 = 500;

/// What a source would be served as.
pub struct Loaded<'a> {
    /// Routes and certificates.
    pub snapshot: Snapshot,
    /// What is wrong with the files; a cluster has Events for that.
    pub mistakes: Option<Mistakes<'a>>,
    /// What could not be read, in sentences.
    pub gaps: Vec<String>,
}

/// A list that the answer cannot do without was refused, or the API was not reached.
#[derive(Debug, thiserror::Error)]
#[error("cannot list {what}: {error}")]
pub struct LoadError {
    what: &'static str,
    #[source]
    error: kube::Error,
}

/// From files, as `--manifests` serves them.
pub fn from_files<'a>(files: &'a [Manifest], settings: &Settings, only: &[String]) -> Loaded<'a> {
    let check::Translated { told, translation, .. } = check::translate(files, settings.clone(), only);
    Loaded {
        snapshot: Snapshot {
            generation: 1,
            routes: translation.routes,
            certs: translation.certs,
            listeners: translation.listeners,
        },
        mistakes: Some(told),
        gaps: Vec::new(),
    }
}

/// From a cluster, in the namespaces named, or all. What the user may not read beside Ingresses is left
/// out and told.
pub async fn from_cluster(
    client: &kube::Client,
    settings: &Settings,
    only: &[String],
) -> Result<Loaded<'static>, LoadError> {
    let mut load = Load { client, only, objects: Vec::new(), gaps: Vec::new() };
    load.namespaced::<Ingress>("Ingresses", ListParams::default(), true).await?;
    load.namespaced::<Service>("Services", ListParams::default(), false).await?;
    load.namespaced::<Secret>("Secrets", ListParams::default().fields(watch::SECRETS), false).await?;
    for labels in [watch::HEADLESS, watch::FOREIGN] {
        let params = ListParams::default().labels(labels);
        load.namespaced::<EndpointSlice>("EndpointSlices", params, false).await?;
    }
    load.list(
        Api::<DeserializeGuard<IngressClass>>::all(client.clone()),
        "IngressClasses",
        ListParams::default(),
        false,
    )
    .await?;
    if settings.gateway_api {
        load.gateway_api().await?;
    }
    let (mut cluster, mut dirty) = (Cluster::default(), Dirty::default());
    Update::Files(std::mem::take(&mut load.objects)).apply(&mut cluster, &mut dirty);
    if translate::names_authorities(&cluster) {
        load.namespaced::<ConfigMap>("ConfigMaps", ListParams::default(), false).await?;
        for object in load.objects {
            if let Object::ConfigMap(map) = object {
                cluster.apply_config_map(map, &mut dirty);
            }
        }
    }
    let translation = Translator::new(settings.clone()).translate(&cluster, &dirty);
    Ok(Loaded {
        snapshot: Snapshot {
            generation: 1,
            routes: translation.routes,
            certs: translation.certs,
            listeners: translation.listeners,
        },
        mistakes: None,
        gaps: load.gaps,
    })
}

/// The addresses that the EndpointSlices of a Service have now.
pub async fn endpoints(client: &kube::Client, service: &ServicePort) -> Result<Vec<IpAddr>, LoadError> {
    let api: Api<EndpointSlice> = Api::namespaced(client.clone(), &service.namespace);
    let of = format!("kubernetes.io/service-name={}", service.name);
    let slices = api
        .list(&ListParams::default().labels(&of))
        .await
        .map_err(|error| LoadError { what: "EndpointSlices", error })?;
    let slices = slices.items.into_iter().filter_map(crate::cluster::SliceObject::of);
    let mut all: Vec<_> = slices.flat_map(|(_, slice)| slice.addresses).collect();
    all.sort();
    all.dedup();
    Ok(all)
}

struct Load<'a> {
    client: &'a kube::Client,
    only: &'a [String],
    objects: Vec<Object>,
    gaps: Vec<String>,
}

impl Load<'_> {
    async fn namespaced<K: Watched<Scope = NamespaceResourceScope>>(
        &mut self,
        what: &'static str,
        params: ListParams,
        needed: bool,
    ) -> Result<(), LoadError> {
        if self.only.is_empty() {
            let api = Api::<DeserializeGuard<K>>::all(self.client.clone());
            return self.list(api, what, params, needed).await;
        }
        for namespace in self.only {
            let api = Api::<DeserializeGuard<K>>::namespaced(self.client.clone(), namespace);
            self.list(api, what, params.clone(), needed).await?;
        }
        Ok(())
    }

    /// What a controller reads of the Gateway API, but for what only statuses need.
    async fn gateway_api(&mut self) -> Result<(), LoadError> {
        let all = ListParams::default;
        if self.only.is_empty() {
            let api = Api::<PartialObjectMeta<Namespace>>::all(self.client.clone());
            self.pages(api, "Namespaces", all(), false, |namespace| namespace.reduce().ok()).await?;
        }
        let classes = Api::<DeserializeGuard<Wire<GatewayClassSpec>>>::all(self.client.clone());
        self.list(classes, "GatewayClasses", all(), false).await?;
        self.namespaced::<Wire<GatewaySpec>>("Gateways", all(), false).await?;
        self.namespaced::<Wire<ListenerSetSpec>>("ListenerSets", all(), false).await?;
        self.namespaced::<Wire<GrantSpec>>("ReferenceGrants", all(), false).await?;
        self.namespaced::<Wire<HttpRouteSpec>>("HTTPRoutes", all(), false).await?;
        self.namespaced::<Wire<GrpcRouteSpec>>("GRPCRoutes", all(), false).await?;
        self.namespaced::<Wire<TlsRouteSpec>>("TLSRoutes", all(), false).await?;
        self.namespaced::<Wire<BackendTlsPolicySpec>>("BackendTLSPolicies", all(), false).await
    }

    async fn list<K: Watched>(
        &mut self,
        api: Api<DeserializeGuard<K>>,
        what: &'static str,
        params: ListParams,
        needed: bool,
    ) -> Result<(), LoadError> {
        self.pages(api, what, params, needed, watch::readable).await
    }

    /// Takes in a list page by page. Of a kind that is not installed there is nothing.
    async fn pages<K: Clone + DeserializeOwned + Debug>(
        &mut self,
        api: Api<K>,
        what: &'static str,
        params: ListParams,
        needed: bool,
        read: impl Fn(K) -> Option<Object>,
    ) -> Result<(), LoadError> {
        let mut params = params.limit(PAGE);
        loop {
            let page = match api.list(&params).await {
                Ok(page) => page,
                Err(kube::Error::Api(status)) if status.is_forbidden() && !needed => {
                    let gap = format!("{what} may not be read, and count as not there: {}", status.message);
                    if !self.gaps.contains(&gap) {
                        self.gaps.push(gap);
                    }
                    return Ok(());
                }
                Err(kube::Error::Api(status)) if status.code == 404 && !needed => return Ok(()),
                Err(error) => return Err(LoadError { what, error }),
            };
            self.objects.extend(page.items.into_iter().filter_map(&read));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use ingress_core::BackendAddress;
    use kube::client::Body;
    use serde_json::{Value, json};

    /// An API with two pages of Ingresses, one Service, and a user who may read nothing called `refused`.
    fn api(refused: &'static str) -> kube::Client {
        api_with(refused, None)
    }

    /// One that has the Gateway API too, with at most one object of each of its kinds.
    fn api_with(refused: &'static str, objects: Option<&'static Value>) -> kube::Client {
        let service = tower::service_fn(move |request: Request<Body>| async move {
            let path = request.uri().path().to_owned();
            let query = request.uri().query().unwrap_or_default().to_owned();
            let resource = path.rsplit('/').next().unwrap_or_default();
            let (code, body) = match resource {
                _ if resource == refused => (
                    403,
                    json!({ "kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "no", "code": 403 }),
                ),
                "ingresses" if query.contains("continue=more") => {
                    (200, list("IngressList", vec![ingress("b")], ""))
                }
                "ingresses" => (200, list("IngressList", vec![ingress("a")], "more")),
                "services" => (200, list("ServiceList", vec![service()], "")),
                "endpointslices" if query.contains("service-name") => {
                    (200, list("EndpointSliceList", vec![slice()], ""))
                }
                "endpointslices" | "secrets" | "ingressclasses" | "namespaces" => {
                    (200, list("List", vec![], ""))
                }
                _ if path.contains("/gateway.networking.k8s.io/v1/") => match objects {
                    None => {
                        (404, json!({ "kind": "Status", "status": "Failure", "message": "404", "code": 404 }))
                    }
                    Some(objects) => {
                        (200, list("List", objects.get(resource).cloned().into_iter().collect(), ""))
                    }
                },
                "configmaps" if objects.is_some() => (200, list("List", vec![], "")),
                other => panic!("{other} is none of what is to be listed"),
            };
            let body = Body::from(body.to_string().into_bytes());
            Ok::<_, kube::Error>(Response::builder().status(code).body(body).unwrap())
        });
        kube::Client::new(service, "default")
    }

    fn list(kind: &str, items: Vec<Value>, more: &str) -> Value {
        json!({ "apiVersion": "v1", "kind": kind, "metadata": { "continue": more }, "items": items })
    }

    fn ingress(name: &str) -> Value {
        json!({
            "metadata": { "namespace": "shop", "name": name },
            "spec": { "ingressClassName": "tak-os", "rules": [{ "host": format!("{name}.example.com"), "http": { "paths": [{
                "path": "/", "pathType": "Prefix", "backend": { "service": { "name": "web", "port": { "number": 80 } } }
            }] } }] }
        })
    }

    fn service() -> Value {
        json!({ "metadata": { "namespace": "shop", "name": "web" }, "spec": { "ports": [{ "port": 80 }] } })
    }

    fn slice() -> Value {
        json!({
            "metadata": { "namespace": "shop", "name": "web-1", "labels": { "kubernetes.io/service-name": "web" } },
            "addressType": "IPv4", "ports": [{ "port": 8080 }],
            "endpoints": [{ "addresses": ["10.0.0.2"] }, { "addresses": ["10.0.0.1"] }]
        })
    }

    #[tokio::test]
    async fn every_page_of_a_cluster_is_translated() {
        let client = api("");
        let loaded = from_cluster(&client, &Settings::default(), &[]).await.unwrap();
        assert_eq!((loaded.snapshot.routes.len(), loaded.gaps.len()), (2, 0));
        let route = loaded.snapshot.routes.find("b.example.com", "/").unwrap();
        assert!(matches!(route.backend.address, BackendAddress::Name(..)));
        let pods = endpoints(&client, &route.backend.service).await.unwrap();
        assert_eq!(pods, ["10.0.0.1".parse::<IpAddr>().unwrap(), "10.0.0.2".parse().unwrap()]);
        let some = from_cluster(&client, &Settings::default(), &["shop".into()]).await.unwrap();
        assert_eq!(some.snapshot.routes, loaded.snapshot.routes);
    }

    #[tokio::test]
    async fn what_may_not_be_read_is_a_gap_unless_it_is_the_ingresses() {
        for (refused, gaps) in [("secrets", 1), ("ingressclasses", 1), ("endpointslices", 1)] {
            let loaded = from_cluster(&api(refused), &Settings::default(), &[]).await.unwrap();
            assert_eq!((loaded.gaps.len(), loaded.snapshot.routes.len()), (gaps, 2), "{refused}");
        }
        let error = from_cluster(&api("ingresses"), &Settings::default(), &[]).await.err().unwrap();
        assert!(error.to_string().starts_with("cannot list Ingresses"), "{error}");
    }

    fn gateway_api() -> &'static Value {
        let refs = json!([{ "group": "", "kind": "ConfigMap", "name": "ca" }]);
        let parents = json!([{ "name": "gw", "namespace": "infra" }]);
        Box::leak(Box::new(json!({
            "gatewayclasses": {
                "metadata": { "name": "tak-os" }, "spec": { "controllerName": "tak-os.org/gateway-controller" },
            },
            "gateways": {
                "metadata": { "name": "gw", "namespace": "infra" },
                "spec": { "gatewayClassName": "tak-os", "listeners": [{
                    "name": "http", "port": 80, "protocol": "HTTP", "allowedRoutes": { "namespaces": { "from": "All" } },
                }] },
            },
            "httproutes": {
                "metadata": { "name": "r", "namespace": "shop" },
                "spec": { "parentRefs": parents, "hostnames": ["gw.example.com"],
                          "rules": [{ "backendRefs": [{ "name": "web", "port": 80 }] }] },
            },
            "backendtlspolicies": {
                "metadata": { "name": "p", "namespace": "shop" },
                "spec": { "targetRefs": [{ "group": "", "kind": "Service", "name": "other" }],
                          "validation": { "caCertificateRefs": refs, "hostname": "a" } },
            },
        })))
    }

    #[tokio::test]
    async fn routes_of_the_gateway_api_are_read_where_it_is_installed() {
        let found = async |refused: &'static str, objects, settings: &Settings| {
            let loaded = from_cluster(&api_with(refused, objects), settings, &[]).await.unwrap();
            let scope = ingress_core::Scope { address: None, port: 80 };
            let listener = loaded.snapshot.listeners.get(scope);
            let found = listener.is_some_and(|l| l.routes.find("gw.example.com", "/").is_ok());
            (found, loaded.gaps.len())
        };
        let all = Some(gateway_api());
        assert_eq!(found("", all, &Settings::default()).await, (true, 0));
        assert_eq!(found("", None, &Settings::default()).await, (false, 0));
        let off = Settings { gateway_api: false, ..Settings::default() };
        assert_eq!(found("", all, &off).await, (false, 0));
        for kind in ["gatewayclasses", "gateways", "httproutes"] {
            assert_eq!(found(kind, all, &Settings::default()).await, (false, 1), "{kind}");
        }
        let beside = [
            "namespaces",
            "configmaps",
            "listenersets",
            "referencegrants",
            "grpcroutes",
            "tlsroutes",
            "backendtlspolicies",
        ];
        for kind in beside {
            assert_eq!(found(kind, all, &Settings::default()).await, (true, 1), "{kind}");
        }
    }
}
