//! Kubernetes YAML: several documents, Lists included, each object on its own.

use super::backend_tls::{BackendTlsPolicySpec, ConfigMap, ConfigMapObject};
use super::certificate::{self, Certificate, CertificateObject};
use super::gateway::{
    GROUP, GatewayApi, GatewayClassSpec, GatewaySpec, GrantSpec, GrpcRouteSpec, HttpRouteSpec,
    ListenerSetSpec, NamespaceObject, Spec, TlsRouteSpec, Wire,
};
use super::{ClassObject, Cluster, Dirty, IngressObject, Key, SecretObject, ServiceObject, SliceObject};
use k8s_openapi::api::core::v1::{Namespace, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use kube::core::PartialObjectMeta;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt::Write as _;
use std::ops::Range;

/// One object of a file.
#[derive(Clone, Debug)]
pub enum Parsed {
    /// `networking.k8s.io/v1` Ingress
    Ingress(IngressObject),
    /// `networking.k8s.io/v1` IngressClass
    Class(ClassObject),
    /// v1 Service
    Service(ServiceObject),
    /// `discovery.k8s.io/v1` EndpointSlice, behind the Service it belongs to
    Slice(Key, SliceObject),
    /// v1 Secret
    Secret(SecretObject),
    /// `cert-manager.io/v1` Certificate, behind the Ingress that it is named for
    Certificate(Key, CertificateObject),
    /// v1 Namespace
    Namespace(NamespaceObject),
    /// v1 ConfigMap with certificates
    ConfigMap(ConfigMapObject),
    /// `gateway.networking.k8s.io/v1`
    GatewayApi(Box<GatewayApi>),
    /// Of a kind that is not read.
    Other,
}

/// Why a document is left out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ParseProblem {
    /// First line of the document, or the line at fault where that is known; the first one is 1.
    pub line: usize,
    /// What is wrong; holds nothing of a Secret.
    pub message: Box<str>,
}

/// Every object of a multi-document YAML text, in order. One that cannot be read costs no other.
pub fn parse_documents(text: &str) -> Vec<Result<Parsed, ParseProblem>> {
    parse_located(text).into_iter().map(|located| located.object).collect()
}

/// An object and where it stands.
pub struct Located {
    /// The object, or why it cannot be read.
    pub object: Result<Parsed, ParseProblem>,
    /// First line of its document; the first one of the text is 1.
    pub line: usize,
    /// Its document within the text.
    pub document: Range<usize>,
    /// The way to it from the document's root: empty, or like `items[3]` in a List.
    pub path: String,
}

/// [`parse_documents`] with the place of each object.
pub fn parse_located(text: &str) -> Vec<Located> {
    documents(text).iter().flat_map(Document::parse).collect()
}

/// One document of a text, not read yet.
#[derive(Clone, Debug)]
pub struct Document<'a> {
    text: &'a str,
    /// Its first line; the first one of the text is 1.
    pub line: usize,
    /// Where it stands within the text.
    pub range: Range<usize>,
}

/// The documents of a text, in order.
pub fn documents(text: &str) -> Vec<Document<'_>> {
    let place = |(line, document): (usize, &'_ str)| {
        let start = document.as_ptr() as usize - text.as_ptr() as usize;
        (line, start..start + document.len())
    };
    split(text)
        .into_iter()
        .map(place)
        .map(|(line, range)| Document { text: &text[range.clone()], line, range })
        .collect()
}

impl Document<'_> {
    /// Its objects, in order: one, or those of a List.
    pub fn parse(&self) -> Vec<Located> {
        let mut found = Vec::new();
        let mut add = |object, path: &str| {
            let (line, document) = (self.line, self.range.clone());
            found.push(Located { object, line, document, path: path.to_owned() });
        };
        match read(self.text, self.line) {
            Ok(value) => flatten(value, self.line, &mut String::new(), 0, &mut add),
            Err(problem) => add(Err(problem), ""),
        }
        found
    }
}

impl Cluster {
    /// A cluster that holds the text's objects.
    pub fn from_yaml(text: &str) -> Result<Self, ParseProblem> {
        let (mut cluster, mut dirty) = (Self::default(), Dirty::default());
        for parsed in parse_documents(text) {
            match parsed? {
                Parsed::Ingress(object) => cluster.apply_ingress(object, &mut dirty),
                Parsed::Class(object) => cluster.apply_class(object, &mut dirty),
                Parsed::Service(object) => cluster.apply_service(object, &mut dirty),
                Parsed::Slice(service, object) => cluster.apply_slice(service, object, &mut dirty),
                Parsed::Secret(object) => cluster.apply_secret(object, &mut dirty),
                Parsed::Certificate(ingress, object) => {
                    cluster.apply_certificate(ingress, object, &mut dirty);
                }
                Parsed::Namespace(object) => cluster.apply_namespace(object, &mut dirty),
                Parsed::ConfigMap(object) => cluster.apply_config_map(object, &mut dirty),
                Parsed::GatewayApi(object) => cluster.apply_gateway_api(*object, &mut dirty),
                Parsed::Other => {}
            }
        }
        Ok(cluster)
    }
}

/// The documents with the number of their first line. A line that begins with `---` ends a document
/// wherever it stands, block scalars included (YAML 1.2 section 9.1.2).
fn split(text: &str) -> Vec<(usize, &str)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut documents = Vec::new();
    let (mut start, mut first, mut offset) = (0, 1, 0);
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        let marker = line
            .strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']));
        if marker && offset > start {
            documents.push((first, &text[start..offset]));
            (start, first) = (offset, number);
        }
        offset += line.len();
    }
    documents.push((first, &text[start..]));
    documents
}

/// The value of a document that begins in this line.
fn read(document: &str, line: usize) -> Result<Value, ParseProblem> {
    value(document).or_else(|_| {
        // read again where it stands in the file, for the sake of the message
        value(&("\n".repeat(line - 1) + document)).map_err(|error| ParseProblem {
            line: error.location().and_then(|at| usize::try_from(at.line()).ok()).unwrap_or(line),
            message: if document.contains("Secret") {
                "not valid YAML".into()
            } else {
                error.to_string().into()
            },
        })
    })
}

fn value(text: &str) -> Result<Value, serde_saphyr::Error> {
    // The files are the administrator's own: the bounds only stop what would never end.
    let options = serde_saphyr::options! {
        with_snippet: false,
        budget: serde_saphyr::budget! { max_events: 50_000_000, max_nodes: 20_000_000 },
    };
    serde_saphyr::from_str_with_options(text, options)
}

/// Lists within Lists end here.
const MAX_DEPTH: usize = 4;

fn flatten(
    value: Value,
    line: usize,
    path: &mut String,
    depth: usize,
    found: &mut impl FnMut(Result<Parsed, ParseProblem>, &str),
) {
    let is_list = value.get("kind").and_then(Value::as_str).is_some_and(|kind| kind.ends_with("List"));
    match value {
        Value::Null => {}
        Value::Object(mut list) if is_list && depth < MAX_DEPTH && list.contains_key("items") => {
            let own = list.remove("kind").zip(list.remove("apiVersion"));
            let Some(Value::Array(items)) = list.remove("items") else { return };
            let outer = path.len();
            for (i, mut item) in items.into_iter().enumerate() {
                inherit(&mut item, own.as_ref());
                let dot = if outer == 0 { "" } else { "." };
                // writing to a String does not fail
                let _ = write!(path, "{dot}items[{i}]");
                flatten(item, line, path, depth + 1, found);
                path.truncate(outer);
            }
        }
        value => {
            found(object(value).map_err(|message| ParseProblem { line, message: message.into() }), path);
        }
    }
}

/// The items of an `IngressList` need not say that they are Ingresses.
fn inherit(item: &mut Value, list: Option<&(Value, Value)>) {
    let (Some(item), Some((Value::String(kind), version))) = (item.as_object_mut(), list) else { return };
    let Some(kind) = kind.strip_suffix("List").filter(|kind| !kind.is_empty()) else { return };
    if !item.contains_key("kind") {
        item.insert("kind".into(), kind.into());
        item.entry("apiVersion").or_insert_with(|| version.clone());
    }
}

fn object(value: Value) -> Result<Parsed, String> {
    let field = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let (Some(kind), Some(version)) = (field("kind"), field("apiVersion")) else {
        return Err("apiVersion or kind is missing".into());
    };
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let wanted = match (group, kind.as_str()) {
        ("networking.k8s.io" | "extensions", "Ingress") | ("networking.k8s.io", "IngressClass") => {
            "networking.k8s.io/v1"
        }
        ("discovery.k8s.io", "EndpointSlice") => "discovery.k8s.io/v1",
        ("", "Service" | "Secret" | "Namespace" | "ConfigMap") => "v1",
        (certificate::GROUP, certificate::KIND) => "cert-manager.io/v1",
        // the same object in both
        (GROUP, "ReferenceGrant") if version == "gateway.networking.k8s.io/v1beta1" => &version,
        (
            GROUP,
            "GatewayClass" | "Gateway" | "ListenerSet" | "HTTPRoute" | "GRPCRoute" | "TLSRoute"
            | "ReferenceGrant" | "BackendTLSPolicy",
        ) => "gateway.networking.k8s.io/v1",
        _ => return Ok(Parsed::Other),
    };
    let meta = value.get("metadata");
    let name = meta.and_then(|meta| meta.get("name")).and_then(Value::as_str).unwrap_or_default();
    if name.is_empty() {
        return Err(format!("{kind} without metadata.name"));
    }
    let what = match meta.and_then(|meta| meta.get("namespace")).and_then(Value::as_str) {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    };
    if version != wanted {
        return Err(format!("{what}: apiVersion {version:?} is not read, {wanted} is"));
    }
    match kind.as_str() {
        "Ingress" => decode::<Ingress>(value, &what).map(|o| Parsed::Ingress(o.into())),
        "IngressClass" => decode::<IngressClass>(value, &what).map(|o| Parsed::Class(o.into())),
        "Service" => decode::<Service>(value, &what).map(|o| Parsed::Service(o.into())),
        "EndpointSlice" => decode::<EndpointSlice>(value, &what)
            .map(|o| SliceObject::of(o).map_or(Parsed::Other, |(service, o)| Parsed::Slice(service, o))),
        certificate::KIND => decode::<Certificate>(value, &what).map(|o| {
            CertificateObject::of(o).map_or(Parsed::Other, |(ingress, o)| Parsed::Certificate(ingress, o))
        }),
        "Namespace" => {
            decode::<PartialObjectMeta<Namespace>>(value, &what).map(|o| Parsed::Namespace(o.into()))
        }
        "GatewayClass" => gateway_api::<GatewayClassSpec>(value, &what),
        "Gateway" => gateway_api::<GatewaySpec>(value, &what),
        "ListenerSet" => gateway_api::<ListenerSetSpec>(value, &what),
        "HTTPRoute" => gateway_api::<HttpRouteSpec>(value, &what),
        "GRPCRoute" => gateway_api::<GrpcRouteSpec>(value, &what),
        "TLSRoute" => gateway_api::<TlsRouteSpec>(value, &what),
        "ReferenceGrant" => gateway_api::<GrantSpec>(value, &what),
        "BackendTLSPolicy" => gateway_api::<BackendTlsPolicySpec>(value, &what),
        "ConfigMap" => decode::<ConfigMap>(value, &what)
            .map(|o| ConfigMapObject::of(o).map_or(Parsed::Other, Parsed::ConfigMap)),
        // the decoder's words may quote the data
        _ => decode::<Secret>(value, &what)
            .map(|o| Parsed::Secret(o.into()))
            .map_err(|_| format!("{what}: not a valid Secret (is `data` base64 text, `stringData` text?)")),
    }
}

fn gateway_api<S: Spec>(value: Value, what: &str) -> Result<Parsed, String> {
    decode::<Wire<S>>(value, what).map(|wire| Parsed::GatewayApi(Box::new(S::keep(wire.into()))))
}

fn decode<T: DeserializeOwned>(value: Value, what: &str) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| format!("{what}: {error}"))
}

#[cfg(test)]
mod tests;
