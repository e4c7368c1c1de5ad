//! TLSRoutes.

use super::route::{BackendRef, ParentRef};
use super::{List, Text};
use serde::Deserialize;

fields! {
    /// `spec` of a TLSRoute.
    pub struct TlsRouteSpec {
        /// What it attaches to.
        pub parent_refs: List<ParentRef>,
        /// Server names.
        pub hostnames: List<Text>,
        /// Rules: one.
        pub rules: List<TlsRule>,
    }

    /// The rule of a TLSRoute.
    pub struct TlsRule {
        /// Its name.
        pub name: Option<Text>,
        /// Where connections go.
        pub backend_refs: List<BackendRef>,
    }
}
