//! What routes of all kinds have.

use super::http_route::HttpFilter;
use super::{List, Text};
use serde::{Deserialize, Serialize};

fields! {
    /// A backend and its share.
    pub struct BackendRef {
        /// API group; the core group where absent.
        pub group: Option<Text>,
        /// Kind; Service where absent.
        pub kind: Option<Text>,
        /// Namespace; the route's where absent.
        pub namespace: Option<Text>,
        /// Name.
        pub name: Text,
        /// Port of the Service.
        pub port: Option<i32>,
        /// Share; 1 where absent.
        pub weight: Option<u32>,
        /// What is done only to its requests and responses.
        pub filters: List<HttpFilter>,
    }
}

/// What a route attaches to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ParentRef {
    /// API group; the Gateway API's where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<Text>,
    /// Kind; Gateway where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Text>,
    /// Namespace; the route's where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Text>,
    /// Name.
    pub name: Text,
    /// Only this listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<Text>,
    /// Only listeners at this port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
}
