//! HTTPRoutes.

use super::route::{BackendRef, ParentRef};
use super::{List, Present, Text, Unknown};
use serde::Deserialize;

fields! {
    /// `spec` of an HTTPRoute.
    pub struct HttpRouteSpec {
        /// What it attaches to.
        pub parent_refs: List<ParentRef>,
        /// Hosts; none: those of the listener.
        pub hostnames: List<Text>,
        /// Rules.
        pub rules: List<HttpRule>,
    }

    /// A rule of an HTTPRoute.
    pub struct HttpRule {
        /// Its name.
        pub name: Option<Text>,
        /// One of them must fit; none: all requests fit.
        pub matches: List<HttpMatch>,
        /// What is done to requests and responses.
        pub filters: List<HttpFilter>,
        /// Where requests go.
        pub backend_refs: List<BackendRef>,
        /// How long it may take.
        pub timeouts: Option<HttpTimeouts>,
        /// What is tried again.
        pub retry: Option<HttpRetry>,
        /// Stickiness: not implemented.
        pub session_persistence: Option<Present>,
    }
}

whole_fields! {
    /// One match: all of it must fit.
    pub struct HttpMatch {
        /// Path; absent: every path.
        pub path: Option<TypedValue>,
        /// Headers.
        pub headers: List<NamedValue>,
        /// Query parameters.
        pub query_params: List<NamedValue>,
        /// Method.
        pub method: Option<Text>,
    }

    /// A value and how it is compared.
    pub struct TypedValue {
        /// Exact, PathPrefix or RegularExpression.
        #[serde(rename = "type")]
        pub kind: Option<Text>,
        /// The value.
        pub value: Option<Text>,
    }

    /// A header or parameter, and how it is compared.
    pub struct NamedValue {
        /// Exact or RegularExpression.
        #[serde(rename = "type")]
        pub kind: Option<Text>,
        /// Its name.
        pub name: Text,
        /// Its value.
        pub value: Text,
    }
}

fields! {
    /// `timeouts` of a rule.
    pub struct HttpTimeouts {
        /// For the whole answer.
        pub request: Option<Text>,
        /// For each try of the backend.
        pub backend_request: Option<Text>,
    }

    /// `retry` of a rule.
    pub struct HttpRetry {
        /// Status codes that are tried again.
        pub codes: List<u16>,
        /// How often.
        pub attempts: Option<u32>,
        /// Least pause between tries.
        pub backoff: Option<Text>,
    }

    /// A filter; one of the fields is set, the one that `type` names.
    pub struct HttpFilter {
        /// Which one.
        #[serde(rename = "type")]
        pub kind: Text,
        /// Changes of request headers.
        pub request_header_modifier: Option<HeaderFilter>,
        /// Changes of response headers.
        pub response_header_modifier: Option<HeaderFilter>,
        /// A copy of requests.
        pub request_mirror: Option<MirrorFilter>,
        /// An answer that leads elsewhere.
        pub request_redirect: Option<RedirectFilter>,
        /// Another host or path for the backend.
        pub url_rewrite: Option<RewriteFilter>,
        /// What scripts of other origins may do.
        pub cors: Option<CorsFilter>,
    }

    /// Changes of headers.
    pub struct HeaderFilter {
        /// Replaced.
        pub set: List<Header>,
        /// Added.
        pub add: List<Header>,
        /// Taken out.
        pub remove: List<Text>,
    }

    /// A header.
    pub struct Header {
        /// Name.
        pub name: Text,
        /// Value.
        pub value: Text,
    }

    /// A copy of requests.
    pub struct MirrorFilter {
        /// Where it goes.
        pub backend_ref: BackendRef,
        /// How many of a hundred; absent: all.
        pub percent: Option<u32>,
        /// How many of how many.
        pub fraction: Option<Fraction>,
    }

    /// A part of requests.
    pub struct Fraction {
        /// So many
        pub numerator: u32,
        /// of so many; 100 where absent.
        pub denominator: Option<u32>,
    }

    /// An answer that leads elsewhere.
    pub struct RedirectFilter {
        /// http or https.
        pub scheme: Option<Text>,
        /// Host.
        pub hostname: Option<Text>,
        /// Path.
        pub path: Option<PathModifier>,
        /// Port.
        pub port: Option<i32>,
        /// Status; 302 where absent.
        pub status_code: Option<u16>,
    }

    /// Another host or path for the backend.
    pub struct RewriteFilter {
        /// Host.
        pub hostname: Option<Text>,
        /// Path.
        pub path: Option<PathModifier>,
    }

    /// Another path.
    pub struct PathModifier {
        /// ReplaceFullPath or ReplacePrefixMatch.
        #[serde(rename = "type")]
        pub kind: Text,
        /// In place of all of it.
        pub replace_full_path: Option<Text>,
        /// In place of what the match's prefix took.
        pub replace_prefix_match: Option<Text>,
    }

    /// What scripts of other origins may do.
    pub struct CorsFilter {
        /// Origins.
        pub allow_origins: List<Text>,
        /// With credentials.
        pub allow_credentials: Option<bool>,
        /// Methods.
        pub allow_methods: List<Text>,
        /// Request headers.
        pub allow_headers: List<Text>,
        /// Response headers.
        pub expose_headers: List<Text>,
        /// Seconds that a preflight is remembered; 5 where absent.
        pub max_age: Option<u32>,
    }
}
