//! ReferenceGrants.

use super::{List, Text};
use serde::Deserialize;

fields! {
    /// `spec` of a ReferenceGrant.
    pub struct GrantSpec {
        /// Who may refer.
        pub from: List<GrantFrom>,
        /// To what.
        pub to: List<GrantTo>,
    }

    /// Who may refer.
    pub struct GrantFrom {
        /// API group of what refers.
        pub group: Text,
        /// Kind of what refers.
        pub kind: Text,
        /// Namespace of what refers.
        pub namespace: Text,
    }

    /// To what.
    pub struct GrantTo {
        /// API group.
        pub group: Text,
        /// Kind.
        pub kind: Text,
        /// Name; absent: all.
        pub name: Option<Text>,
    }
}
