//! What stands between a route and its backend, in the one order of the reference.

pub mod auth;

use crate::respond::{Rejection, Reply};
use ingress_core::{Access, Route};

/// The outcome of a policy of a route.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// On to the next step, and at the end to the backend.
    Continue,
    /// 308 to https.
    RedirectToHttps,
    /// An answer of ours that is no error.
    Respond(Box<Reply>),
    /// An answer of ours.
    Reject(Rejection),
}

/// What comes before authentication: access lists, then the redirect to https. The first that is not
/// `Continue` decides; upgrades go through all of them.
pub fn decide(route: &Route, tls: bool) -> Verdict {
    if route.policy.access == Access::Denied {
        return Verdict::Reject(Rejection::Denied);
    }
    if route.https_redirect && !tls {
        return Verdict::RedirectToHttps;
    }
    Verdict::Continue
}
