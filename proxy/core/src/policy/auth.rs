//! The one authentication mechanism of a route.

use crate::policy::oauth::OAuthPolicy;
use crate::{HttpUrl, ResourceRef, Slot};
use http::{HeaderName, HeaderValue};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Who may use a route. Anything of the auth family that cannot be resolved in full is
/// `Misconfigured`; no error leads to `Open`, and no mechanism to the next.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum Auth {
    /// No authentication asked for.
    #[default]
    Open,
    /// Name and password, from an htpasswd file.
    Basic(Arc<BasicAuth>),
    /// A service is asked about each request.
    External(Arc<ExternalAuth>),
    /// Built-in OAuth2/OIDC.
    OAuth(Arc<OAuthPolicy>),
    /// Asked for, but not usable: 501 to everybody.
    Misconfigured,
}

/// Basic authentication (RFC 7617).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BasicAuth {
    /// `WWW-Authenticate` as it is sent.
    pub challenge: HeaderValue,
    /// Who can log in; shared by all routes that name the Secret.
    pub file: Arc<Htpasswd>,
}

/// An htpasswd file.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Htpasswd {
    /// The users that can log in.
    pub users: BTreeMap<Box<[u8]>, PasswordHash>,
    /// Checked for a user that does not exist, so that it takes as long: the costliest hash of the file.
    pub stand_in: PasswordHash,
    /// The Secret with the file.
    pub source: ResourceRef,
    /// Digest of source and file: what was verified against one file counts for no other.
    pub fingerprint: [u8; 32],
}

/// Never with names or hashes.
impl fmt::Debug for Htpasswd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Htpasswd")
            .field("users", &self.users.len())
            .field("source", &format_args!("{}", self.source))
            .finish_non_exhaustive()
    }
}

/// One password's hash, in the form of the file. The data plane computes it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PasswordHash {
    /// How it was made.
    pub scheme: Scheme,
    /// Relative work of one check; what costs most stands in for unknown users.
    pub work: u64,
    /// The whole field, `$2y$10$…`.
    pub text: Box<str>,
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PasswordHash").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

/// The hash schemes that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// `$2a$`, `$2b$`, `$2y$`
    Bcrypt,
    /// `$apr1$`
    Apr1,
    /// `$5$`
    Sha256Crypt,
    /// `$6$`
    Sha512Crypt,
    /// `{SHA}`
    Sha1,
}

/// External authentication: the provider decides.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ExternalAuth {
    /// Asked about each request.
    pub url: HttpUrl,
    /// Where 401 and 403 are redirected to.
    pub signin: Option<HttpUrl>,
    /// Headers of the provider's answer that go to the backend, besides the usual ones.
    pub response_headers: Box<[HeaderName]>,
    /// What the data plane keeps for the provider.
    pub state: Slot,
}
