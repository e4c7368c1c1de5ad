//! The model: routes, policies, backends and certificates as plain values.
//!
//! The controller writes these values, the proxy reads them. Nothing here does I/O, knows
//! Kubernetes or knows Pingora; a new dependency of this crate needs an ADR.

pub mod backend;
pub mod cert;
pub mod client;
pub mod filter;
pub mod listener;
pub mod policy;
pub mod ranges;
pub mod route;
pub mod slot;
pub mod snapshot;
pub mod source;

pub use backend::{
    Backend, BackendAddress, BackendProtocol, BackendTls, ServicePort, SubjectName, Unavailable, Weighted,
    WeightedBackend,
};
pub use cert::{CertStore, CertifiedKey};
pub use client::ClientValidation;
pub use filter::{Filter, HeaderEdit, Mirror, PathEdit, Redirect, Rewrite};
pub use listener::{Listener, Listeners, Local, Scope, TlsMode};
pub use policy::access::Access;
pub use policy::auth::{Auth, BasicAuth, ExternalAuth, Htpasswd, PasswordHash, Scheme};
pub use policy::cors::{Cors, Origin, Origins};
pub use policy::oauth::OAuthPolicy;
pub use policy::rate_limit::RateLimit;
pub use policy::url::{HttpUrl, InvalidUrl};
pub use policy::{Policy, Timeouts};
pub use ranges::{InvalidRange, Ranges};
pub use route::conditions::{Conditions, Head, HeaderMatch, QueryMatch, ValueMatch};
pub use route::explain::{Candidate, Explanation, Lost};
pub use route::host::{HostPattern, InvalidHost, RequestHost};
pub use route::names::{HostMap, Specificity};
pub use route::path::{InvalidPath, PathMatch};
pub use route::regex::{InvalidPattern, Pattern};
pub use route::table::{NoMatch, OAuthRoutes, RouteTable, VirtualHost};
pub use route::{Actions, Precedence, Retry, Route, Rule};
pub use slot::Slot;
pub use snapshot::{Publisher, Reader, Snapshot, channel};
pub use source::{Kind, ResourceRef};
