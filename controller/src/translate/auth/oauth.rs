//! The Secret of built-in OAuth2/OIDC: oauth2-proxy's names, each value checked. Nothing is guessed: a
//! value that does not parse, and a name that might be a rule we do not know, close the routes.

// Closures that must name their type.
#![allow(clippy::borrowed_box)]

use super::{Problem, value};
use crate::cluster::SecretObject;
use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::HeaderValue;
use ingress_core::policy::oauth::{FixedEndpoints, Introspection, ProviderEndpoints, SameSite};
use ingress_core::{HttpUrl, Kind, OAuthPolicy, ResourceRef, Slot};
use openssl::sha::Sha256;
use openssl::x509::X509;
use std::sync::Arc;
use std::time::Duration;

/// Options of oauth2-proxy that may stand in a Secret and change nothing here: what they are about does
/// not exist, or is so in any case, or is an exception that is not made. None of them, left out, lets
/// anybody in.
const WITHOUT_EFFECT: &[&str] = &[
    "approval_prompt",
    "client_secret_file",
    "code_challenge_method",
    "insecure_oidc_skip_issuer_verification",
    "insecure_oidc_skip_nonce",
    "jwt_key",
    "jwt_key_file",
    "provider_display_name",
    "pubjwk_url",
    "skip_claims_from_profile_url",
    "validate_url",
    "cookie_csrf_expire",
    "cookie_csrf_per_request",
    "cookie_csrf_per_request_limit",
    "cookie_csrf_samesite",
    "cookie_httponly",
    "cookie_secret_file",
    "cookie_secure",
    "basic_auth_password",
    "set_xauthrequest",
    "set_authorization_header",
    "set_basic_auth",
    "skip_auth_strip_headers",
    "pass_basic_auth",
    "prefer_email_to_user",
    "pass_user_headers",
    "auth_logging_format",
    "auth_logging",
    "errors_to_info_log",
    "exclude_logging_paths",
    "logging_compress",
    "logging_filename",
    "logging_local_time",
    "logging_max_age",
    "logging_max_backups",
    "logging_max_size",
    "request_id_header",
    "request_logging_format",
    "request_logging",
    "silence_ping_logging",
    "standard_logging_format",
    "standard_logging",
    "banner",
    "custom_sign_in_logo",
    "custom_templates_dir",
    "display_htpasswd_form",
    "footer",
    "show_debug_on_error",
    "ping_path",
    "ping_user_agent",
    "ready_path",
    "gcp_healthchecks",
    "allow_query_semicolons",
    "bearer_token_login_fallback",
    "encode_state",
    "extra_jwt_issuers",
    "force_https",
    "force_json_errors",
    "htpasswd_file",
    "htpasswd_user_groups",
    "proxy_prefix",
    "real_client_ip_header",
    "redirect_url",
    "relative_redirect_url",
    "reverse_proxy",
    "signature_key",
    "skip_auth_preflight",
    "skip_auth_regex",
    "skip_auth_routes",
    "skip_jwt_bearer_tokens",
    "skip_provider_button",
    "ssl_insecure_skip_verify",
    "trusted_ips",
    "trusted_proxy_ips",
    "whitelist_domains",
    "http_address",
    "https_address",
    "metrics_address",
    "session_cookie_minimal",
    "session_store_type",
    "redis_connection_url",
    "redis_password",
    "redis_sentinel_password",
    "redis_sentinel_master_name",
    "redis_sentinel_connection_urls",
    "redis_cluster_connection_urls",
    "redis_ca_path",
    "redis_insecure_skip_tls_verify",
    "redis_use_cluster",
    "redis_use_sentinel",
    "redis_connection_idle_timeout",
    "metrics_secure_address",
    "metrics_tls_cert_file",
    "metrics_tls_key_file",
    "tls_cert_file",
    "tls_key_file",
    "tls_cipher_suites",
    "tls_min_version",
    "auth_request_response_mode",
    "use_system_trust_store",
    "flush_interval",
    "pass_host_header",
    "proxy_websockets",
    "ssl_upstream_insecure_skip_verify",
    "disable_keep_alives",
    "upstreams",
    "upstream_timeout",
    "config",
];

/// Standard or URL alphabet, with padding or without.
const fn base64(alphabet: &alphabet::Alphabet) -> GeneralPurpose {
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    GeneralPurpose::new(alphabet, config)
}

/// Reads the settings.
pub(super) fn parse(secret: &SecretObject) -> Result<Arc<OAuthPolicy>, Problem> {
    let settings = Settings(secret);
    settings.known()?;
    settings.provider()?;
    let issuer = settings.required("oidc_issuer_url")?;
    let issuer_url: HttpUrl = issuer.parse().map_err(|_| refused("oidc_issuer_url", URL))?;
    if issuer_url.query().is_some() {
        return Err(refused("oidc_issuer_url", "a URL without query"));
    }
    let client_id: Box<str> = settings.required("client_id")?.into();
    let client_secret: Option<Box<str>> = settings.text("client_secret")?.map(Into::into);
    let cookie_expire = settings.duration("cookie_expire")?.unwrap_or(Some(Duration::from_secs(168 * 3600)));
    let cookie_expire = cookie_expire.ok_or(refused("cookie_expire", "a duration above 0, as 168h"))?;
    let cookie_refresh = settings.duration("cookie_refresh")?.flatten();
    if cookie_refresh.is_some_and(|refresh| refresh >= cookie_expire) {
        return Err(refused("cookie_refresh", "a duration below cookie_expire, or 0"));
    }
    let scope = settings.text("scope")?.unwrap_or("openid email profile");
    if !scope.split(' ').any(|word| word == "openid") {
        return Err(refused("scope", "a list with openid in it"));
    }
    let lower = |all: Box<[Box<str>]>| all.iter().map(|one| one.to_ascii_lowercase().into()).collect();
    let email_domains = settings.list("email_domains", words, is_domain, "domains, or *")?;
    let introspection = settings.url("introspection_url")?.map(|url| {
        let id = settings.text("introspection_client_id")?;
        let secret = settings.text("introspection_client_secret")?.map(Into::into);
        Ok(Introspection {
            url,
            client_id: id.map_or_else(|| client_id.clone(), Into::into),
            // another client does not use this one's secret
            client_secret: if id.is_some() { secret } else { secret.or_else(|| client_secret.clone()) },
        })
    });
    let mut bearer_audiences = settings.list("bearer_audiences", words, |_| true, "audiences")?;
    if bearer_audiences.is_empty() {
        let more = settings.list("oidc_extra_audiences", words, |_| true, "audiences")?;
        bearer_audiences = std::iter::once(client_id.clone()).chain(more).collect();
    }
    Ok(Arc::new(OAuthPolicy {
        fingerprint: fingerprint(secret),
        source: ResourceRef {
            kind: Kind::Secret,
            namespace: secret.key.namespace.clone(),
            name: secret.key.name.clone(),
        },
        issuer: issuer.into(),
        issuer_url: Some(issuer_url),
        endpoints: settings.endpoints()?,
        client_id,
        client_secret,
        cookie_secret: settings.key("cookie_secret")?.ok_or(Problem::Missing("cookie_secret"))?,
        cookie_secret_previous: settings.key("cookie_secret_previous")?,
        cookie_name: settings.cookie_name()?,
        cookie_domain: settings.cookie_domain()?,
        cookie_path: settings.cookie_path()?,
        cookie_samesite: match settings.text("cookie_samesite")?.map(str::to_ascii_lowercase).as_deref() {
            None | Some("lax") => SameSite::Lax,
            Some("strict") => SameSite::Strict,
            Some("none") => SameSite::None,
            Some(_) => return Err(refused("cookie_samesite", "lax, strict or none")),
        },
        cookie_expire,
        cookie_refresh,
        scope: scope.into(),
        prompt: settings.text("prompt")?.map(Into::into),
        acr_values: settings.text("acr_values")?.map(Into::into),
        email_domains: (!email_domains.is_empty()).then(|| lower(email_domains)),
        allowed_emails: lower(settings.list("allowed_emails", words, is_email, "e-mail addresses")?),
        allowed_groups: settings.list("allowed_groups", lines, |_| true, "groups")?,
        email_claim: settings.text("oidc_email_claim")?.unwrap_or("email").into(),
        groups_claim: settings.text("oidc_groups_claim")?.unwrap_or("groups").into(),
        allow_unverified_email: settings.boolean("insecure_oidc_allow_unverified_email")?,
        bearer_audiences,
        introspection: introspection.transpose()?,
        pass_access_token: settings.boolean("pass_access_token")?,
        pass_authorization_header: settings.boolean("pass_authorization_header")?,
        api_routes: settings.api_routes()?,
        post_logout_redirect_uri: match settings.url("post_logout_redirect_uri")? {
            Some(url) => HeaderValue::try_from(url.to_string()).ok(),
            None => None,
        },
        backend_logout: match settings.url("backend_logout")? {
            Some(url) => Some(url),
            None => settings.url("backend_logout_url")?,
        },
        provider_ca: settings.provider_ca()?,
        state: Slot::new(),
    }))
}

const URL: &str = "an http or https URL";

fn refused(key: &'static str, accepted: &'static str) -> Problem {
    Problem::Value { key, accepted }
}

/// A Secret's values by their names.
struct Settings<'a>(&'a SecretObject);

impl<'a> Settings<'a> {
    /// An option that we do not know may be one that keeps people out.
    fn known(&self) -> Result<(), Problem> {
        let read = crate::cluster::AUTH_KEYS;
        let unknown =
            self.0.data.keys().find(|name| !read.contains(&&***name) && !WITHOUT_EFFECT.contains(&&***name));
        match unknown {
            Some(name) => Err(Problem::UnknownKey {
                nearest: read
                    .into_iter()
                    .filter(|key| *key != "auth")
                    .min_by_key(|key| crate::annotations::distance(key, name))
                    .unwrap_or_default(),
                key: name.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Whichever it is, it is spoken to as OpenID Connect.
    fn provider(&self) -> Result<(), Problem> {
        match self.text("provider")?.map(str::to_ascii_lowercase).as_deref() {
            None | Some("oidc" | "keycloak-oidc" | "entra-id" | "google" | "gitlab" | "cidaas" | "adfs") => {
                Ok(())
            }
            Some(_) => Err(refused("provider", "oidc, or a provider that speaks OpenID Connect")),
        }
    }

    /// A line of text without surrounding space; `None` where there is none.
    fn text(&self, key: &'static str) -> Result<Option<&'a str>, Problem> {
        if !self.0.data.contains_key(key) {
            return Ok(None);
        }
        let bytes = match value(self.0, key) {
            Ok(bytes) => bytes,
            Err(Problem::Missing(_)) => return Ok(None),
            Err(problem) => return Err(problem),
        };
        let text = std::str::from_utf8(bytes).map_err(|_| refused(key, "text in UTF-8"))?.trim();
        if text.chars().any(|c| c.is_control() && c != '\n' && c != '\r' && c != '\t') {
            return Err(refused(key, "text without control characters"));
        }
        Ok(Some(text).filter(|text| !text.is_empty()))
    }

    fn required(&self, key: &'static str) -> Result<&'a str, Problem> {
        self.text(key)?.ok_or(Problem::Missing(key))
    }

    fn url(&self, key: &'static str) -> Result<Option<HttpUrl>, Problem> {
        self.text(key)?.map(|text| text.parse().map_err(|_| refused(key, URL))).transpose()
    }

    fn boolean(&self, key: &'static str) -> Result<bool, Problem> {
        match self.text(key)? {
            None => Ok(false),
            Some(text) => crate::annotations::boolean(text).ok_or(refused(key, "true or false")),
        }
    }

    /// A list; empty where the key is absent. A key that is there and lists nothing is a mistake: a
    /// rule was meant.
    fn list(
        &self,
        key: &'static str,
        split: fn(&str) -> Vec<&str>,
        fits: fn(&str) -> bool,
        accepted: &'static str,
    ) -> Result<Box<[Box<str>]>, Problem> {
        if !self.0.data.contains_key(key) {
            return Ok(Box::default());
        }
        let text = self.text(key)?.ok_or(refused(key, accepted))?;
        let all: Vec<Box<str>> = if text.starts_with('[') {
            serde_json::from_str(text).map_err(|_| refused(key, accepted))?
        } else {
            split(text).into_iter().map(str::trim).filter(|one| !one.is_empty()).map(Into::into).collect()
        };
        // `*` asks for nothing, whatever else is beside it
        if all.iter().any(|one| &**one == "*") {
            return Ok(Box::default());
        }
        let fit = !all.is_empty() && all.iter().all(|one| !one.trim().is_empty() && fits(one));
        if fit { Ok(all.into()) } else { Err(refused(key, accepted)) }
    }

    /// oauth2-proxy's `1h30m`, or `0`, which is `Some(None)`.
    fn duration(&self, key: &'static str) -> Result<Option<Option<Duration>>, Problem> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        let duration = go_duration(text).ok_or(refused(key, "a duration as 168h or 1h30m, or 0"))?;
        Ok(Some(Some(duration).filter(|duration| !duration.is_zero())))
    }

    /// 32 bytes in base64.
    fn key(&self, key: &'static str) -> Result<Option<[u8; 32]>, Problem> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        let decoded = base64(&alphabet::STANDARD)
            .decode(text)
            .or_else(|_| base64(&alphabet::URL_SAFE).decode(text))
            .map_err(|_| refused(key, KEY))?;
        decoded.try_into().map(Some).map_err(|_| refused(key, KEY))
    }

    fn endpoints(&self) -> Result<ProviderEndpoints, Problem> {
        if !self.boolean("skip_oidc_discovery")? {
            return Ok(ProviderEndpoints::Discovery);
        }
        let url = |key| self.url(key)?.ok_or(Problem::Missing(key));
        Ok(ProviderEndpoints::Fixed(Box::new(FixedEndpoints {
            login: url("login_url")?,
            redeem: url("redeem_url")?,
            jwks: url("oidc_jwks_url")?,
            profile: self.url("profile_url")?,
        })))
    }

    fn cookie_name(&self) -> Result<Box<str>, Problem> {
        let name = self.text("cookie_name")?.unwrap_or("_tak_oauth2");
        let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        // the cookies of logins have a path, which that prefix forbids (RFC 6265bis section 4.1.3)
        if name.len() > 64 || !name.bytes().all(token) || name.starts_with("__Host-") {
            return Err(refused(
                "cookie_name",
                "a cookie name of at most 64 characters without __Host- before it",
            ));
        }
        Ok(name.into())
    }

    fn cookie_domain(&self) -> Result<Option<Box<str>>, Problem> {
        let text = match self.text("cookie_domain")? {
            Some(text) => Some(text),
            None => self.text("cookie_domains")?,
        };
        let Some(text) = text else { return Ok(None) };
        let domain = text.strip_prefix('.').unwrap_or(text);
        if !is_domain(domain) || domain.starts_with(['.', '*']) {
            return Err(refused("cookie_domain", "one domain, as example.com"));
        }
        Ok(Some(domain.to_ascii_lowercase().into()))
    }

    fn cookie_path(&self) -> Result<Box<str>, Problem> {
        let path = self.text("cookie_path")?.unwrap_or("/");
        if !path.starts_with('/') || !path.bytes().all(|b| b.is_ascii_graphic() && b != b';') {
            return Err(refused("cookie_path", "a path, as /"));
        }
        Ok(path.into())
    }

    /// oauth2-proxy's expressions, as far as they are prefixes.
    fn api_routes(&self) -> Result<Box<[Box<str>]>, Problem> {
        let plain = |text: &str| {
            let prefix = text.strip_prefix('^').unwrap_or(text);
            prefix.starts_with('/')
                && !prefix.contains(['[', ']', '(', ')', '{', '}', '|', '*', '+', '?', '$', '\\', '^'])
        };
        let all = self.list("api_routes", words, plain, "path prefixes, as /api")?;
        Ok(all.iter().map(|one| one.strip_prefix('^').unwrap_or(one).into()).collect())
    }

    fn provider_ca(&self) -> Result<Option<Box<[u8]>>, Problem> {
        if self.text("provider_ca")?.is_none() {
            return Ok(None);
        }
        let pem = value(self.0, "provider_ca")?;
        let certificates = X509::stack_from_pem(pem).ok().filter(|all| !all.is_empty());
        certificates.map(|_| Some(pem.into())).ok_or(refused("provider_ca", "certificates in PEM"))
    }
}

const KEY: &str = "exactly 32 bytes in base64, as openssl rand -base64 32 gives";

/// At commas and white space.
fn words(text: &str) -> Vec<&str> {
    text.split(|c: char| c == ',' || c.is_whitespace()).collect()
}

/// At commas and ends of lines.
fn lines(text: &str) -> Vec<&str> {
    text.split([',', '\n', '\r']).collect()
}

/// A domain; with `.` or `*.` before it, those below it.
fn is_domain(text: &str) -> bool {
    let name = text.strip_prefix("*.").or_else(|| text.strip_prefix('.')).unwrap_or(text);
    let label =
        |label: &str| !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    name.len() <= 253 && name.split('.').all(label)
}

fn is_email(text: &str) -> bool {
    text.split_once('@').is_some_and(|(local, domain)| {
        !local.is_empty() && !domain.starts_with(['.', '*']) && is_domain(domain)
    })
}

/// Go's way to write durations.
fn go_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = Some(text).filter(|text| !text.is_empty())?;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let part = match &rest[..letters] {
            "h" => Duration::from_secs(number.checked_mul(3600)?),
            "m" => Duration::from_secs(number.checked_mul(60)?),
            "s" => Duration::from_secs(number),
            "ms" => Duration::from_millis(number),
            _ => return None,
        };
        rest = &rest[letters..];
        total = total.checked_add(part)?;
    }
    // a hundred years, so that no sum of times can overflow
    (total <= Duration::from_secs(876_000 * 3600)).then_some(total)
}

fn fingerprint(secret: &SecretObject) -> [u8; 32] {
    let mut sha = Sha256::new();
    let source = [secret.key.namespace.as_bytes(), secret.key.name.as_bytes()];
    let data = secret.data.iter().flat_map(|(name, value)| [name.as_bytes(), &**value]);
    for part in source.into_iter().chain(data) {
        sha.update(&(part.len() as u64).to_be_bytes());
        sha.update(part);
    }
    sha.finish()
}

#[cfg(test)]
mod tests;
