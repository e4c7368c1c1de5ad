//! GRPCRoutes.

use super::http_route::{HttpFilter, NamedValue};
use super::route::{BackendRef, ParentRef};
use super::{List, Present, Text, Unknown};
use serde::Deserialize;

fields! {
    /// `spec` of a GRPCRoute.
    pub struct GrpcRouteSpec {
        /// What it attaches to.
        pub parent_refs: List<ParentRef>,
        /// Hosts; none: those of the listener.
        pub hostnames: List<Text>,
        /// Rules.
        pub rules: List<GrpcRule>,
    }

    /// A rule of a GRPCRoute.
    pub struct GrpcRule {
        /// Its name.
        pub name: Option<Text>,
        /// One of them must fit; none: all calls fit.
        pub matches: List<GrpcMatch>,
        /// What is done to requests and responses.
        pub filters: List<HttpFilter>,
        /// Where requests go.
        pub backend_refs: List<BackendRef>,
        /// Stickiness: not implemented.
        pub session_persistence: Option<Present>,
    }
}

whole_fields! {
    /// One match of calls.
    pub struct GrpcMatch {
        /// The call's method.
        pub method: Option<GrpcMethod>,
        /// Headers.
        pub headers: List<NamedValue>,
    }

    /// A gRPC method.
    pub struct GrpcMethod {
        /// Exact or RegularExpression.
        #[serde(rename = "type")]
        pub kind: Option<Text>,
        /// `package.Service`
        pub service: Option<Text>,
        /// `Method`
        pub method: Option<Text>,
    }
}
