//! What stands between a route and its backend, in the one order of the reference.

use crate::respond::Rejection;
use ingress_core::{Access, Auth, Route};

/// The outcome of the policies of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// On to the backend.
    Continue,
    /// 308 to https.
    RedirectToHttps,
    /// An answer of ours.
    Reject(Rejection),
}

/// Access lists, then the redirect to https, then authentication. The first that is not
/// `Continue` decides; upgrades go through all of them.
pub fn decide(route: &Route, tls: bool) -> Verdict {
    if route.policy.access == Access::Denied {
        return Verdict::Reject(Rejection::Denied);
    }
    if route.https_redirect && !tls {
        return Verdict::RedirectToHttps;
    }
    match route.policy.auth {
        Auth::Open => Verdict::Continue,
        Auth::Misconfigured => Verdict::Reject(Rejection::AuthNotConfigured),
    }
}
