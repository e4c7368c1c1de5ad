//! The one table of findings: Events, the log, `check` and `docs/findings.md` all speak from it.

use super::Reason;
use std::fmt;

/// What is known of a [`Reason`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it is about.
    pub reason: Reason,
    /// `TAK-` and four digits; never given to another reason. The first digit is the part of the object.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What is accepted in its place; empty where an annotation's own row says that, or where there is nothing to put.
    pub accepts: &'static str,
    /// What is found, and what follows.
    pub cause: &'static str,
    /// What to do.
    pub cure: &'static str,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// The object itself is at fault: what it asks for is not done until it is edited.
    Error,
    /// It is done as far as it can be: something else is missing, or something else was probably meant.
    Warning,
    /// Nothing is wrong; good to know.
    Note,
}

impl Severity {
    /// Lower-case word, which is also SARIF's level.
    pub const fn as_str(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

const fn row(
    reason: Reason,
    id: &'static str,
    severity: Severity,
    accepts: &'static str,
    cause: &'static str,
    cure: &'static str,
) -> Entry {
    Entry { reason, id, severity, accepts, cause, cure }
}

use Severity::{Error, Note, Warning};

/// In the order of [`Reason`]'s variants. TAK-1003 stood for an annotation that was not built yet.
pub(super) const TABLE: [Entry; 52] = [
    row(
        Reason::InvalidAnnotation,
        "TAK-1001",
        Error,
        "",
        "The value of an annotation does not parse. Its default applies; where it guards access, the route is closed.",
        "Write a value that the message, or `check`, names as accepted.",
    ),
    row(
        Reason::UnknownAnnotation,
        "TAK-1002",
        Error,
        "",
        "There is no annotation of this name under our prefix. Nothing is done with it.",
        "Take the name that the message gives as the nearest, or remove the annotation.",
    ),
    row(
        Reason::InvalidHost,
        "TAK-2001",
        Error,
        "a DNS name, or *. before one",
        "A host is no DNS name and no `*.` before one. The rule, or the TLS host, does not count.",
        "Write a host name without scheme, port and path; a wildcard is the whole first label.",
    ),
    row(
        Reason::InvalidPath,
        "TAK-2002",
        Error,
        "a path that begins with / in visible ASCII, without dot segments, # and ?",
        "A path that no request can have, or that two servers could read differently. It is left out.",
        "Begin it with `/`; write other characters percent-encoded; leave out `.` and `..` segments, `#` and `?`.",
    ),
    row(
        Reason::InvalidPathType,
        "TAK-2003",
        Error,
        "Exact, Prefix or ImplementationSpecific",
        "`pathType` is absent or unknown. The path is left out.",
        "Set `pathType` to Exact, Prefix or ImplementationSpecific.",
    ),
    row(
        Reason::PathLooksLikeRegex,
        "TAK-2004",
        Warning,
        "a literal path",
        "A path reads like a regular expression. It is taken letter by letter.",
        "Write the literal path; Prefix takes everything below it.",
    ),
    row(
        Reason::RuleWithoutPaths,
        "TAK-2005",
        Warning,
        "at least one path",
        "A rule has no paths. Nothing is served for its host by it.",
        "Add a path, or remove the rule.",
    ),
    row(
        Reason::DefaultBackendIgnored,
        "TAK-2006",
        Error,
        "",
        "`spec.defaultBackend` is not implemented. Requests that match no rule are answered 404.",
        "Add a rule without host and with the path `/`.",
    ),
    row(
        Reason::ResourceBackendIgnored,
        "TAK-2007",
        Error,
        "a backend with `service`",
        "A backend that is an object other than a Service is not implemented. The path is left out.",
        "Name a Service.",
    ),
    row(
        Reason::BackendMissing,
        "TAK-2008",
        Error,
        "a backend with `service`",
        "A path has no backend. It is left out.",
        "Name a Service and its port.",
    ),
    row(
        Reason::ServiceNotFound,
        "TAK-3001",
        Warning,
        "a Service of the Ingress's namespace",
        "The Service does not exist. Requests are answered 502 until it does.",
        "Create the Service in the namespace of the Ingress, or correct its name.",
    ),
    row(
        Reason::ServicePortNotFound,
        "TAK-3002",
        Error,
        "number or name of a TCP port of the Service",
        "The Service has no such TCP port, or none is named. Requests are answered 502.",
        "Name one of the ports that the message lists.",
    ),
    row(
        Reason::NoEndpoints,
        "TAK-3003",
        Warning,
        "",
        "No EndpointSlice has an address with the port. Requests are answered 502.",
        "Look at the Service's selector, the readiness of its Pods, and the name of the port in the EndpointSlice.",
    ),
    row(
        Reason::ExternalNameRefused,
        "TAK-3004",
        Error,
        "",
        "Services of type ExternalName are not allowed here. Requests are answered 502.",
        "Use another type of Service, or have the administrator set `--allow-external-name-services`.",
    ),
    row(
        Reason::InvalidExternalName,
        "TAK-3005",
        Error,
        "a DNS name or an IP address",
        "The target of an ExternalName Service is no host name. Requests are answered 502.",
        "Correct `spec.externalName`.",
    ),
    row(
        Reason::HostPathTaken,
        "TAK-2009",
        Error,
        "",
        "Another rule serves the same path of the same host: the one of the older object, then of the smaller `namespace/name`.",
        "Remove one of the two, or give them different paths.",
    ),
    row(
        Reason::TlsWithoutHosts,
        "TAK-4001",
        Error,
        "at least one host",
        "A TLS block names no hosts. Nothing is served with it.",
        "List the hosts of the rules that the certificate is for.",
    ),
    row(
        Reason::TlsHostNotInRules,
        "TAK-4002",
        Error,
        "a host of the Ingress's rules, or the wildcard over one",
        "A TLS host is the host of none of the Ingress's rules. Its certificate is not served.",
        "Add a rule for the host, or correct the name.",
    ),
    row(
        Reason::TlsHostTaken,
        "TAK-4003",
        Warning,
        "",
        "The host's certificate comes from the Secret of an older Ingress, or of an earlier block.",
        "Name the same Secret, or remove the host from one of the TLS blocks.",
    ),
    row(
        Reason::SecretNotFound,
        "TAK-4004",
        Warning,
        "a Secret of type kubernetes.io/tls",
        "The TLS Secret does not exist. The self-signed fallback certificate is served until it does.",
        "Create the Secret in the namespace of the Ingress, or correct its name.",
    ),
    row(
        Reason::InvalidTlsSecret,
        "TAK-4005",
        Error,
        "a Secret of type kubernetes.io/tls with a PEM chain and its key",
        "The TLS Secret cannot be used. The self-signed fallback certificate is served.",
        "Put the chain, leaf first, into `tls.crt` and its unencrypted private key into `tls.key`.",
    ),
    row(
        Reason::CertificateExpired,
        "TAK-4006",
        Warning,
        "",
        "The certificate is past its end of validity. It is served all the same; clients will refuse it.",
        "Renew it.",
    ),
    row(
        Reason::CertificateWithoutHost,
        "TAK-4007",
        Warning,
        "",
        "The Secret of a TLS block without `secretName` holds a certificate that does not name the host, as after the block's hosts changed. The self-signed fallback certificate is served until cert-manager has written one that does.",
        "Wait; if it stays, look at the Certificate (`kubectl describe certificate`), or, without cert-manager, put a certificate for the host into the Secret.",
    ),
    row(
        Reason::CertificateNotRequested,
        "TAK-4008",
        Warning,
        "",
        "A TLS block names no Secret, and no Certificate can be requested for it. The self-signed fallback certificate is served, unless a Secret of the documented name is there.",
        "Do what the message says is missing, or name a Secret with `secretName`.",
    ),
    row(
        Reason::CertificateTaken,
        "TAK-4009",
        Warning,
        "",
        "A Certificate of the name that the block's would have was made by somebody else. It is never changed; the Secret of that name is served all the same.",
        "Name the Secret with `secretName` if the Certificate is yours and meant; else delete or rename it, and ours is made.",
    ),
    row(
        Reason::DefaultIssuer,
        "TAK-4010",
        Note,
        "",
        "A TLS block names no Secret, and the Ingress no issuer. The certificate comes from the ClusterIssuer of `--default-cluster-issuer`; that of `letsencrypt-staging` is trusted by nobody.",
        "Choose one with the annotation `cert-manager.io/cluster-issuer` or `cert-manager.io/issuer`.",
    ),
    row(
        Reason::AuthMisconfigured,
        "TAK-6001",
        Error,
        "auth-type with auth-secret, or auth-url, or oauth2-secret, each with all that it needs",
        "Authentication is asked for in part, or in a way that is not understood. The routes answer 501 to everybody.",
        "Complete the annotations as the message says, or remove all of them.",
    ),
    row(
        Reason::AuthSecretNotFound,
        "TAK-6002",
        Warning,
        "a Secret of type Opaque",
        "The Secret that authentication needs does not exist. The routes answer 501 to everybody until it does.",
        "Create the Secret in the namespace of the Ingress, or correct its name.",
    ),
    row(
        Reason::InvalidAuthSecret,
        "TAK-6003",
        Error,
        "a Secret of type Opaque with the documented keys",
        "The Secret that authentication needs cannot be used. The routes answer 501 to everybody.",
        "Correct the key that the message names.",
    ),
    row(
        Reason::UnusablePassword,
        "TAK-6004",
        Warning,
        "a bcrypt, SHA-crypt, apr1 or SHA hash",
        "A user of an htpasswd file has a password in a form that is not read. That user cannot log in; the others can.",
        "Make the line anew with `tak-os-ingress hash-password`.",
    ),
    row(
        Reason::OutrankedAuthMistake,
        "TAK-6005",
        Warning,
        "one mechanism an Ingress",
        "There is a mistake in annotations of authentication that do not count, because those of another mechanism are there and come first. Without those the routes would answer 501.",
        "Correct what the message names, or remove these annotations.",
    ),
    row(
        Reason::ForeignIngressClass,
        "TAK-5001",
        Error,
        "tak-os.org/ingress-controller",
        "The IngressClass belongs to another controller. Its Ingresses are not served.",
        "Set `spec.controller` of the IngressClass to `tak-os.org/ingress-controller`, or serve another class.",
    ),
    row(
        Reason::OtherClass,
        "TAK-5002",
        Note,
        "",
        "The Ingress is of another class than the one that is served, or of none. It is not looked at.",
        "Set `spec.ingressClassName`, or give the class with `--ingress-class`, if it is meant for this controller.",
    ),
    row(
        Reason::GatewayNotAccepted,
        "TAK-7001",
        Error,
        "",
        "A Gateway asks for something that is not there. Nothing is served for it.",
        "Take out the field that the message names.",
    ),
    row(
        Reason::ListenerNotAccepted,
        "TAK-7002",
        Error,
        "HTTP on port 80, HTTPS with tls.mode Terminate and TLS on port 443, further ports of --gateway-listener-ports; routes of kind HTTPRoute and GRPCRoute, for TLS of kind TLSRoute",
        "A listener, or a kind of route that it allows, is not supported. It is not served; other listeners are.",
        "Write one of the ports, protocols and kinds that the message names.",
    ),
    row(
        Reason::ListenerCertificateInvalid,
        "TAK-7003",
        Error,
        "Secrets of type kubernetes.io/tls, of other namespaces with a ReferenceGrant",
        "A certificate of a listener is missing, cannot be used, or is not permitted. None of the listener's routes is served.",
        "Create the Secret, or a ReferenceGrant in its namespace; cert-manager is not asked for it.",
    ),
    row(
        Reason::BackendClientCertificateInvalid,
        "TAK-7015",
        Error,
        "a Secret of type kubernetes.io/tls with an RSA or ECDSA key, of another namespace with a ReferenceGrant",
        "The certificate that a Gateway is to show to its backends is missing, cannot be used, or is not permitted. Backends are reached without a client certificate; those that ask for one refuse.",
        "Create or correct the Secret, or create a ReferenceGrant for Gateways in its namespace.",
    ),
    row(
        Reason::RouteNotAttached,
        "TAK-7004",
        Warning,
        "",
        "No listener of the Gateway or ListenerSet takes the route: because of its name or port, kind, namespace or host names.",
        "Look at sectionName, port and hostnames of the route, and at allowedRoutes and hostname of the listener.",
    ),
    row(
        Reason::UnsupportedMatch,
        "TAK-7005",
        Error,
        "paths by Exact, PathPrefix and RegularExpression; headers and query parameters by Exact and RegularExpression; methods",
        "A match cannot be honoured. It is left out; a rule without another match serves nothing.",
        "Write a match of a kind that the message names.",
    ),
    row(
        Reason::UnsupportedFilter,
        "TAK-7006",
        Error,
        "RequestHeaderModifier, ResponseHeaderModifier, RequestRedirect, URLRewrite, RequestMirror and CORS",
        "A filter cannot be honoured. Requests are answered 500, for without it they could do what they must not.",
        "Take out the filter, or correct the value that the message names.",
    ),
    row(
        Reason::UnsupportedRouteField,
        "TAK-7007",
        Error,
        "",
        "A field of a rule is not supported, or its value is not understood. The message says what follows.",
        "Take out the field, or correct its value.",
    ),
    row(
        Reason::BackendRefInvalid,
        "TAK-7008",
        Warning,
        "a Service and one of its TCP ports, of other namespaces with a ReferenceGrant",
        "A backend does not exist, is no Service, or is not permitted. Its share of requests is answered 500, its share of passed connections closed.",
        "Create the Service, correct the reference, or create a ReferenceGrant in the Service's namespace.",
    ),
    row(
        Reason::PassedHostTaken,
        "TAK-7011",
        Error,
        "",
        "A TLSRoute passes on the connections for a host that something else is declared for at the same port. The older object has the host; the other one gets no connection there.",
        "Take the host out of one of the two objects.",
    ),
    row(
        Reason::ListenerSetNotAccepted,
        "TAK-7013",
        Error,
        "a Gateway whose spec.allowedListeners takes the namespace of the ListenerSet",
        "The Gateway does not let the ListenerSet add listeners, or is itself not accepted. None of its listeners is served.",
        "Ask the owner of the Gateway to allow it with spec.allowedListeners, or attach to another Gateway.",
    ),
    row(
        Reason::ListenerConflicted,
        "TAK-7014",
        Error,
        "one listener for each port and host of a Gateway and its ListenerSets; one protocol for each port",
        "Another listener came first to the host, or to the port with another protocol; of an HTTPS and a TLS listener in one object with the same host neither is first. This one is not served; other listeners are.",
        "Choose another host or port. The Gateway's own listeners come first, then those of the older ListenerSet.",
    ),
    row(
        Reason::ClientValidationInvalid,
        "TAK-7016",
        Error,
        "ConfigMaps with PEM certificates of at most 256 KiB under ca.crt, those of another namespace with a ReferenceGrant there; AllowValidOnly or AllowInsecureFallback as mode",
        "A part of what a Gateway asks of its clients' certificates cannot be honoured. An authority that is missing is not believed; without any, or with a mode that is not known, no listener is served where it should hold.",
        "Create the ConfigMap or the ReferenceGrant, or correct the field that the message names.",
    ),
    row(
        Reason::ProtectedHostTaken,
        "TAK-7017",
        Error,
        "",
        "For one object the clients of a host must show a certificate, for another one at the same port they need not, or another one. A host is under one of both: the other object's routes are not served there.",
        "Take the host out of one of the two objects, or ask the same of clients in both.",
    ),
    row(
        Reason::BackendTlsPolicyInvalid,
        "TAK-7009",
        Error,
        "ConfigMaps of the same namespace with PEM certificates of at most 256 KiB under ca.crt, or wellKnownCACertificates System; a DNS name as hostname; subjectAltNames of type Hostname and URI; sectionName a TCP port's name",
        "A part of a BackendTLSPolicy cannot be honoured. A certificate that is missing is not trusted; without any, or with another part wrong, requests to the Service are answered 500, never sent in plain text. A port that is not there is not covered.",
        "Create the ConfigMap, or correct the field that the message names.",
    ),
    row(
        Reason::BackendTlsPolicyConflicted,
        "TAK-7010",
        Warning,
        "",
        "An older BackendTLSPolicy, or one of the same age with a smaller name, has the same Service or port. This one does not count there.",
        "Remove one of the two, or have them name different ports by sectionName.",
    ),
    row(
        Reason::Unparsable,
        "TAK-9001",
        Error,
        "Kubernetes YAML",
        "A file, or an object in it, cannot be read. Without a cluster its last good content counts.",
        "Correct what the message names.",
    ),
    row(
        Reason::WrittenTwice,
        "TAK-9002",
        Warning,
        "",
        "The object stands in the files twice. The first one counts.",
        "Remove one of the two.",
    ),
    row(
        Reason::MoreMistakes,
        "TAK-9003",
        Warning,
        "",
        "The object has more mistakes than are listed.",
        "Correct the listed ones first.",
    ),
];

/// A variant that has no row, or stands in another place, does not compile.
const _: () = {
    assert!(Reason::MoreMistakes as usize + 1 == TABLE.len(), "each reason needs a row");
    let mut i = 0;
    while i < TABLE.len() {
        assert!(TABLE[i].reason as usize == i, "rows are in the order of the reasons");
        i += 1;
    }
};
