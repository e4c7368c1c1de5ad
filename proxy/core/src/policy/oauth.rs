//! Built-in OAuth2/OIDC: the validated settings of one Secret.

use crate::{HttpUrl, ResourceRef, Slot};
use http::HeaderValue;
use std::fmt;
use std::time::Duration;

/// Where the provider's endpoints come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ProviderEndpoints {
    /// OIDC discovery at the issuer.
    Discovery,
    /// `skip_oidc_discovery: "true"`
    Fixed(Box<FixedEndpoints>),
}

/// Endpoints as the Secret names them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FixedEndpoints {
    /// `login_url`
    pub login: HttpUrl,
    /// `redeem_url`
    pub redeem: HttpUrl,
    /// `oidc_jwks_url`
    pub jwks: HttpUrl,
    /// `profile_url`
    pub profile: Option<HttpUrl>,
}

/// `cookie_samesite`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum SameSite {
    /// Sent with top-level navigations.
    #[default]
    Lax,
    /// Sent from the same site alone.
    Strict,
    /// Sent always; needs TLS.
    None,
}

/// RFC 7662 introspection of opaque bearer tokens.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Introspection {
    /// `introspection_url`
    pub url: HttpUrl,
    /// `introspection_client_id`, else `client_id`
    pub client_id: Box<str>,
    /// `introspection_client_secret`, else `client_secret`
    pub client_secret: Option<Box<str>>,
}

impl fmt::Debug for Introspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Introspection").field("url", &self.url).finish_non_exhaustive()
    }
}

/// All of an OAuth Secret, validated: every field has its final value, defaults included.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct OAuthPolicy {
    /// The Secret.
    pub source: ResourceRef,
    /// Digest of source and settings: a session made under others is none.
    pub fingerprint: [u8; 32],
    /// `oidc_issuer_url`, byte for byte as tokens must name it in `iss`; its URL is `issuer_url`.
    pub issuer: Box<str>,
    /// The same, taken apart.
    pub issuer_url: Option<HttpUrl>,
    /// Discovered or fixed.
    pub endpoints: ProviderEndpoints,
    /// `client_id`
    pub client_id: Box<str>,
    /// `client_secret`; `None` is a public client.
    pub client_secret: Option<Box<str>>,
    /// `cookie_secret`, decoded.
    pub cookie_secret: [u8; 32],
    /// `cookie_secret_previous`, decoded: opens, never seals.
    pub cookie_secret_previous: Option<[u8; 32]>,
    /// `cookie_name`
    pub cookie_name: Box<str>,
    /// `cookie_domain`; `None` is the host alone.
    pub cookie_domain: Option<Box<str>>,
    /// `cookie_path`
    pub cookie_path: Box<str>,
    /// `cookie_samesite`
    pub cookie_samesite: SameSite,
    /// `cookie_expire`
    pub cookie_expire: Duration,
    /// `cookie_refresh`; `None` never refreshes.
    pub cookie_refresh: Option<Duration>,
    /// `scope`
    pub scope: Box<str>,
    /// `prompt`
    pub prompt: Option<Box<str>>,
    /// `acr_values`
    pub acr_values: Option<Box<str>>,
    /// `email_domains` in lower case; `None` is `*`.
    pub email_domains: Option<Box<[Box<str>]>>,
    /// `allowed_emails` in lower case; empty: no such rule.
    pub allowed_emails: Box<[Box<str>]>,
    /// `allowed_groups`; empty: no such rule.
    pub allowed_groups: Box<[Box<str>]>,
    /// `oidc_email_claim`
    pub email_claim: Box<str>,
    /// `oidc_groups_claim`
    pub groups_claim: Box<str>,
    /// `insecure_oidc_allow_unverified_email`
    pub allow_unverified_email: bool,
    /// `bearer_audiences`, by default `client_id`
    pub bearer_audiences: Box<[Box<str>]>,
    /// Introspection of opaque tokens.
    pub introspection: Option<Introspection>,
    /// `pass_access_token`
    pub pass_access_token: bool,
    /// `pass_authorization_header`
    pub pass_authorization_header: bool,
    /// `api_routes`: path prefixes that get 401 instead of 302.
    pub api_routes: Box<[Box<str>]>,
    /// `post_logout_redirect_uri`
    pub post_logout_redirect_uri: Option<HeaderValue>,
    /// `backend_logout`
    pub backend_logout: Option<HttpUrl>,
    /// `provider_ca`: PEM, checked; `None` is the system's.
    pub provider_ca: Option<Box<[u8]>>,
    /// What the data plane keeps for the provider.
    pub state: Slot,
}

/// Never with secrets.
impl fmt::Debug for OAuthPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OAuthPolicy")
            .field("source", &format_args!("{}", self.source))
            .field("issuer", &self.issuer)
            .field("client_id", &self.client_id)
            .finish_non_exhaustive()
    }
}
