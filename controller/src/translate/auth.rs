//! From the mechanism that an Ingress asks for to one that the data plane can run: the Secret is
//! looked up and read. Whatever is missing closes the routes.

mod htpasswd;
mod oauth;

use crate::annotations::auth::{SECRET_KEY, WantedAuth};
use crate::cluster::{Cluster, Key, MAX_SECRET_VALUE, SecretObject};
use crate::finding::{Findings, Reason};
use ingress_core::{Auth, BasicAuth, Htpasswd, OAuthPolicy};
use std::collections::HashMap;
use std::sync::Arc;

/// What authentication reads from Secrets, each read once for as long as it stays as it is.
#[derive(Default)]
pub(super) struct AuthSecrets {
    files: Kept<(Arc<Htpasswd>, Box<[Note]>)>,
    oauth: Kept<Arc<OAuthPolicy>>,
}

/// A mistake within a Secret that does not make it useless.
type Note = (Reason, Box<str>);

/// Why a Secret cannot be used. Says nothing of what is in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Problem {
    #[error("its type is {0:?}, \"Opaque\" is needed")]
    Type(Box<str>),
    #[error("key {0} is missing or empty")]
    Missing(&'static str),
    #[error("key {0} is larger than {MAX_SECRET_VALUE} bytes")]
    TooLarge(&'static str),
    #[error("key auth has no line with a user and a password hash that can be used")]
    NoUsers,
    #[error("key {key} is not {accepted}")]
    Value { key: &'static str, accepted: &'static str },
    #[error("key {key:?} is no setting; the nearest is {nearest}")]
    UnknownKey { key: Box<str>, nearest: &'static str },
}

impl AuthSecrets {
    /// The mechanism, with what it needs of `secret`, which is the one that it names.
    pub(super) fn resolve(
        &mut self,
        wanted: WantedAuth,
        secret: Option<&Key>,
        cluster: &Cluster,
        findings: &mut Findings,
    ) -> Auth {
        match (wanted, secret) {
            (WantedAuth::Open, _) => Auth::Open,
            (WantedAuth::External(external), _) => Auth::External(Arc::from(external)),
            (WantedAuth::Basic { challenge, .. }, Some(secret)) => {
                let Some((file, notes)) =
                    self.files.read(cluster, secret, htpasswd::parse, SECRET_KEY, findings)
                else {
                    return Auth::Misconfigured;
                };
                for (reason, message) in notes {
                    findings.add(reason, SECRET_KEY, format!("Secret {secret}: {message}"));
                }
                Auth::Basic(Arc::new(BasicAuth { challenge, file }))
            }
            (WantedAuth::OAuth { key, .. }, Some(secret)) => self
                .oauth
                .read(cluster, secret, oauth::parse, key, findings)
                .map_or(Auth::Misconfigured, Auth::OAuth),
            (WantedAuth::Misconfigured | WantedAuth::Basic { .. } | WantedAuth::OAuth { .. }, _) => {
                Auth::Misconfigured
            }
        }
    }

    /// Nothing refers to the Secret any more.
    pub(super) fn forget(&mut self, key: &Key) {
        self.files.0.remove(key);
        self.oauth.0.remove(key);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.files.0.is_empty() && self.oauth.0.is_empty()
    }
}

/// What Secrets were read as.
struct Kept<T>(HashMap<Key, (Arc<SecretObject>, Result<T, Problem>)>);

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Clone> Kept<T> {
    /// The Secret as `parse` reads it; what is wrong is told of the annotation `field`.
    fn read(
        &mut self,
        cluster: &Cluster,
        key: &Key,
        parse: fn(&SecretObject) -> Result<T, Problem>,
        field: &'static str,
        findings: &mut Findings,
    ) -> Option<T> {
        let Some(secret) = cluster.secrets.get(key) else {
            self.0.remove(key);
            let message = format!("Secret {key} does not exist; requests are answered 501");
            findings.add(Reason::AuthSecretNotFound, field, message);
            return None;
        };
        let same = |from: &Arc<SecretObject>| {
            Arc::ptr_eq(from, secret)
                || (&from.secret_type, &from.data) == (&secret.secret_type, &secret.data)
        };
        let known = self.0.get(key).filter(|(from, _)| same(from));
        let parsed = match known {
            Some((_, parsed)) => parsed.clone(),
            None => {
                let parsed = match &*secret.secret_type {
                    "Opaque" => parse(secret),
                    other => Err(Problem::Type(other.into())),
                };
                self.0.insert(key.clone(), (secret.clone(), parsed.clone()));
                parsed
            }
        };
        parsed
            .map_err(|problem| {
                let message = format!("Secret {key} cannot be used: {problem}; requests are answered 501");
                findings.add(Reason::InvalidAuthSecret, field, message);
            })
            .ok()
    }
}

/// The value of a key, unless it is missing, empty or too long.
fn value<'a>(secret: &'a SecretObject, name: &'static str) -> Result<&'a [u8], Problem> {
    let value = secret.data.get(name).filter(|value| !value.is_empty()).ok_or(Problem::Missing(name))?;
    if value.len() > MAX_SECRET_VALUE { Err(Problem::TooLarge(name)) } else { Ok(value) }
}
