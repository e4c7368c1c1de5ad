//! What is wrong with a user's object, in words for the user: one table, stable ids.

use ingress_core::ResourceRef;
use std::fmt;
use std::sync::Arc;

/// One mistake in one object. Becomes a warning log line, an Event on the object, and a count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Stable CamelCase id, used as Event reason and metric label.
    pub reason: Reason,
    /// The key or field at fault, as the user wrote it (`ingress.tak-os.org/ssl-redirect`, `spec.rules[0].host`).
    pub field: Box<str>,
    /// One sentence: what was found and what is accepted. Never holds Secret contents.
    pub message: Box<str>,
}

/// Stable ids: the variant's name is what users and dashboards see, so none is ever renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reason {
    /// An annotation's value does not parse; its default applies.
    InvalidAnnotation,
    /// A key under our prefix that does not exist.
    UnknownAnnotation,
    /// A host that is no DNS name and no `*.` before one; the rule or TLS host does not count.
    InvalidHost,
    /// A path that cannot be matched; it is left out.
    InvalidPath,
    /// A `pathType` that is absent or unknown; the path is left out.
    InvalidPathType,
    /// A path that reads like a regular expression; it is taken literally.
    PathLooksLikeRegex,
    /// A rule without any path: nothing is served for its host by it.
    RuleWithoutPaths,
    /// `spec.defaultBackend`, which is not implemented.
    DefaultBackendIgnored,
    /// A resource backend, which is not implemented; the path is left out.
    ResourceBackendIgnored,
    /// A path without any backend; it is left out.
    BackendMissing,
    /// The Service does not exist (yet); the path answers 502.
    ServiceNotFound,
    /// The Service has no such TCP port, or no port is named; the path answers 502.
    ServicePortNotFound,
    /// The EndpointSlices have addresses but not the port; without a cluster also: there is no
    /// address. The path answers 502.
    NoEndpoints,
    /// An `ExternalName` Service, which the administrator has not allowed; the path answers 502.
    ExternalNameRefused,
    /// An `ExternalName` Service whose target is no host name; the path answers 502.
    InvalidExternalName,
    /// Another Ingress, or another rule of this one, serves the same path of the same host.
    HostPathTaken,
    /// A TLS block that names no hosts; nothing is served with it.
    TlsWithoutHosts,
    /// A TLS host that is the host of none of the Ingress's rules; it does not count.
    TlsHostNotInRules,
    /// The host's certificate comes from another Ingress's, or another block's, Secret.
    TlsHostTaken,
    /// The TLS Secret does not exist (yet); the fallback certificate is served, unless another one stands in.
    SecretNotFound,
    /// The TLS Secret cannot be used; the fallback certificate is served, unless another one stands in.
    InvalidTlsSecret,
    /// The certificate is past its end of validity; it is served all the same.
    CertificateExpired,
    /// cert-manager has not written the certificate for this host yet; the fallback certificate is served.
    CertificateWithoutHost,
    /// A TLS block without `secretName` gets no Certificate; the fallback certificate is served.
    CertificateNotRequested,
    /// A Certificate of the name that the block's would have was made by somebody else; it is left alone.
    CertificateTaken,
    /// `check` only: no issuer is named, and the default one applies.
    DefaultIssuer,
    /// Authentication is asked for in part, or in a way that is not understood; the routes answer 501.
    AuthMisconfigured,
    /// The Secret that authentication needs does not exist (yet); the routes answer 501.
    AuthSecretNotFound,
    /// The Secret that authentication needs cannot be used; the routes answer 501.
    InvalidAuthSecret,
    /// A user of an htpasswd file cannot log in; the others can.
    UnusablePassword,
    /// A mistake in annotations of authentication that do not count, because those of another mechanism come first.
    OutrankedAuthMistake,
    /// The IngressClass belongs to another controller; its Ingresses are not served.
    ForeignIngressClass,
    /// `check` only: an Ingress of a class that is not the one served.
    OtherClass,
    /// A Gateway that is not served at all.
    GatewayNotAccepted,
    /// A listener, or a part of what it allows, that is not served.
    ListenerNotAccepted,
    /// A listener's certificate cannot be used; none of its routes is served.
    ListenerCertificateInvalid,
    /// A Gateway's certificate for backends cannot be used; they are reached without.
    BackendClientCertificateInvalid,
    /// No listener takes the route.
    RouteNotAttached,
    /// A match that cannot be honoured; it is left out.
    UnsupportedMatch,
    /// A filter that cannot be honoured; the rule, or its backend's share, answers 500.
    UnsupportedFilter,
    /// Another field of a rule that cannot be honoured; the message says what follows.
    UnsupportedRouteField,
    /// A reference to a backend that does not resolve or is not permitted; its share answers 500.
    BackendRefInvalid,
    /// A host that is passed on for one object and served for another; the older one has it.
    PassedHostTaken,
    /// A ListenerSet that adds nothing to its Gateway.
    ListenerSetNotAccepted,
    /// Another listener has what this one asks for; it is not served.
    ListenerConflicted,
    /// What a Gateway asks of its clients' certificates cannot be honoured, in full or in part; the message says what.
    ClientValidationInvalid,
    /// A host whose clients must show a certificate for one object and need not for another; one of them has it.
    ProtectedHostTaken,
    /// A BackendTLSPolicy that cannot be honoured, in full or for a target; the message says what follows.
    BackendTlsPolicyInvalid,
    /// Another BackendTLSPolicy comes first at a target.
    BackendTlsPolicyConflicted,
    /// A file, or an object in it, that cannot be read.
    Unparsable,
    /// Files only: an object that stands in them before; the first one counts.
    WrittenTwice,
    /// The object has more mistakes than are listed.
    MoreMistakes,
}

mod table;

pub use table::{Entry, Severity};

impl Reason {
    /// Every reason, in the order of the table.
    pub fn all() -> impl Iterator<Item = Self> {
        table::TABLE.iter().map(|entry| entry.reason)
    }

    /// Its row of the table.
    pub fn entry(self) -> &'static Entry {
        // the table is checked at compile time to be in the order of the variants
        &table::TABLE[self as usize]
    }

    /// The id that documentation and programs know it by, like `TAK-1001`.
    pub fn id(self) -> &'static str {
        self.entry().id
    }

    /// How bad it is.
    pub fn severity(self) -> Severity {
        self.entry().severity
    }
}

impl Finding {
    /// Field and message: what Events and `check` say.
    pub fn text(&self) -> String {
        if self.field.is_empty() {
            self.message.to_string()
        } else {
            format!("{}: {}", self.field, self.message)
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// All findings of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The object.
    pub source: ResourceRef,
    /// Its `metadata.uid`; empty where it does not exist.
    pub uid: Arc<str>,
    /// Its `metadata.resourceVersion`.
    pub resource_version: Arc<str>,
    /// In a fixed order; empty: nothing is wrong any more.
    pub findings: Box<[Finding]>,
}

/// More than this nobody reads; the rest is counted.
const MAX_FINDINGS: usize = 64;

/// Findings as they come up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    found: Vec<Finding>,
    more: usize,
}

impl Findings {
    pub(crate) fn add(&mut self, reason: Reason, field: impl Into<Box<str>>, message: impl Into<Box<str>>) {
        self.push(Finding { reason, field: field.into(), message: message.into() });
    }

    /// For a mistake that shows in many places: it is told of the first.
    pub(crate) fn add_once(&mut self, reason: Reason, field: impl Into<Box<str>>, message: String) {
        if !self.found.iter().any(|f| f.reason == reason && *f.message == *message) {
            self.add(reason, field, message);
        }
    }

    pub(crate) fn push(&mut self, finding: Finding) {
        if self.found.len() < MAX_FINDINGS {
            self.found.push(finding);
        } else {
            self.more += 1;
        }
    }

    pub(crate) fn finish(mut self) -> Box<[Finding]> {
        if self.more > 0 {
            let message = format!("and {} more mistakes in this object", self.more);
            self.found.push(Finding {
                reason: Reason::MoreMistakes,
                field: Box::default(),
                message: message.into(),
            });
        }
        self.found.into()
    }
}

/// Longest part of a user's value that is repeated to them.
const MAX_QUOTE: usize = 80;

/// A user's value as it stands in a message: escaped, and cut where it is long.
pub(crate) fn quoted(value: &str) -> String {
    match value.char_indices().nth(MAX_QUOTE) {
        Some((end, _)) => format!("{:?}…", &value[..end]),
        None => format!("{value:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_an_id_of_its_own_and_says_cause_and_cure() {
        let mut seen = std::collections::HashSet::new();
        for reason in Reason::all() {
            let Entry { reason: own, id, cause, cure, .. } = *reason.entry();
            assert_eq!(own, reason);
            assert!(seen.insert(id), "{id} stands twice");
            let number = id.strip_prefix("TAK-").unwrap_or_default();
            assert!(number.len() == 4 && number.bytes().all(|b| b.is_ascii_digit()), "{id}");
            for text in [cause, cure] {
                assert!(text.ends_with('.') && !text.contains('|') && !text.contains('\n'), "{id}: {text}");
            }
        }
        assert_eq!(Reason::InvalidAnnotation.id(), "TAK-1001");
    }

    #[test]
    fn reasons_are_camel_case_words() {
        assert_eq!(Reason::InvalidAnnotation.to_string(), "InvalidAnnotation");
        assert_eq!(Reason::TlsHostNotInRules.to_string(), "TlsHostNotInRules");
    }

    #[test]
    fn a_mistake_in_many_places_is_told_once_and_a_flood_is_bounded() {
        let mut findings = Findings::default();
        findings.add_once(Reason::ServiceNotFound, "a", "gone".into());
        findings.add_once(Reason::ServiceNotFound, "b", "gone".into());
        assert_eq!(findings.clone().finish().len(), 1);
        for i in 0..100 {
            findings.add(Reason::InvalidPath, "x", i.to_string());
        }
        let all = findings.finish();
        assert_eq!(all.len(), MAX_FINDINGS + 1);
        assert_eq!(&*all[MAX_FINDINGS].message, "and 37 more mistakes in this object");
    }

    #[test]
    fn quotes_are_escaped_and_cut() {
        assert_eq!(quoted("a\nb\""), r#""a\nb\"""#);
        assert_eq!(quoted(&"ä".repeat(90)), format!("\"{}\"…", "ä".repeat(80)));
    }
}
