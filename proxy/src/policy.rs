//! What stands between a route and its backend, in the one order of the reference.

pub mod acme;
pub mod auth;
pub mod cors;
pub mod rate_limit;

use crate::respond::{Rejection, Reply};
use http::{HeaderMap, Method};
use ingress_core::Route;
use std::net::IpAddr;

/// The outcome of a policy of a route.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// On to the next step, and at the end to the backend.
    Continue,
    /// To the backend at once: neither authentication nor limits are asked.
    Exempt,
    /// 308 to https.
    RedirectToHttps,
    /// 204 to a browser that asks for leave.
    Preflight,
    /// An answer of ours that is no error.
    Respond(Box<Reply>),
    /// An answer of ours.
    Reject(Rejection),
}

/// What the policies look at.
pub struct Asked<'a> {
    /// The request's method.
    pub method: &'a Method,
    /// Its header fields.
    pub headers: &'a HeaderMap,
    /// The client's address.
    pub client: IpAddr,
    /// Whether the client speaks TLS.
    pub https: bool,
}

/// What comes before authentication: access lists, the redirect to https, preflights. The first that is not
/// `Continue` decides; upgrades go through all of them.
pub fn decide(route: &Route, asked: &Asked<'_>) -> Verdict {
    if !route.policy.access.admits(asked.client) {
        return Verdict::Reject(Rejection::Denied);
    }
    if acme::is_challenge(route, asked.method) {
        return Verdict::Exempt;
    }
    if route.https_redirect && !asked.https {
        return Verdict::RedirectToHttps;
    }
    if route.policy.cors.is_some() && cors::is_preflight(asked.method, asked.headers) {
        return Verdict::Preflight;
    }
    Verdict::Continue
}
