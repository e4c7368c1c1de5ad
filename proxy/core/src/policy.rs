//! Per-route settings, validated. One value per feature; the parsers live in the controller.

pub mod access;
pub mod auth;
pub mod cors;
pub mod oauth;
pub mod rate_limit;
pub mod url;

use access::Access;
use auth::Auth;
use cors::Cors;
use rate_limit::RateLimit;
use std::time::Duration;

/// Everything that decides how one route's requests are treated.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Policy {
    /// Address lists.
    pub access: Access,
    /// The one authentication mechanism of the route.
    pub auth: Auth,
    /// What scripts of other origins may do; `None` = nothing is said to them.
    pub cors: Option<Box<Cors>>,
    /// How often one client may ask.
    pub rate_limit: RateLimit,
    /// Backend timeouts.
    pub timeouts: Timeouts,
}

/// Backend timeouts; `None` means no limit (annotation value `"0"`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timeouts {
    /// DNS, TCP and TLS together; 60 s by default.
    pub connect: Option<Duration>,
    /// Inactivity while reading from the backend; 300 s by default.
    pub read: Option<Duration>,
    /// Inactivity while writing to the backend; 300 s by default.
    pub send: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Some(Duration::from_secs(60)),
            read: Some(Duration::from_secs(300)),
            send: Some(Duration::from_secs(300)),
        }
    }
}
