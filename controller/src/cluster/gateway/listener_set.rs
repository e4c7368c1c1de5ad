//! ListenerSets: listeners that others add to a Gateway.

use super::listener::ListenerSpec;
use super::{List, ObjectRef};
use serde::Deserialize;

fields! {
    /// `spec` of a ListenerSet.
    pub struct ListenerSetSpec {
        /// The Gateway that gets the listeners.
        pub parent_ref: ObjectRef,
        /// The listeners.
        pub listeners: List<ListenerSpec>,
    }
}
