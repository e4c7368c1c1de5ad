//! The Secret of built-in OAuth2/OIDC.

use super::Problem;
use crate::cluster::SecretObject;
use ingress_core::OAuthPolicy;
use std::sync::Arc;

/// Reads the settings.
pub(super) fn parse(_: &SecretObject) -> Result<Arc<OAuthPolicy>, Problem> {
    Err(Problem::Unsupported)
}
