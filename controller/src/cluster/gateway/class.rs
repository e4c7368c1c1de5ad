//! GatewayClasses.

use super::{ObjectRef, Text};
use serde::Deserialize;

fields! {
    /// `spec` of a GatewayClass.
    pub struct GatewayClassSpec {
        /// Who serves it.
        pub controller_name: Text,
        /// Parameters: we have none.
        pub parameters_ref: Option<ObjectRef>,
    }
}
