//! A certificate authority for tests, and leaf certificates in every form in which users store keys.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use openssl::asn1::{Asn1Integer, Asn1Time};
use openssl::bn::BigNum;
use openssl::ec::{Asn1Flag, EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::rsa::Rsa;
use openssl::x509::extension::{
    AuthorityKeyIdentifier, BasicConstraints, ExtendedKeyUsage, KeyUsage, SubjectAlternativeName,
    SubjectKeyIdentifier,
};
use openssl::x509::{X509, X509Builder, X509Name, X509NameBuilder};

/// Algorithm and PEM form of a private key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// `BEGIN RSA PRIVATE KEY`
    Rsa2048Pkcs1,
    /// `BEGIN PRIVATE KEY`
    Rsa2048Pkcs8,
    /// `BEGIN EC PRIVATE KEY`
    EcP256Sec1,
    /// `BEGIN EC PARAMETERS`, then `BEGIN EC PRIVATE KEY`, as `openssl ecparam -genkey` prints
    EcP256Sec1WithParams,
    /// `BEGIN PRIVATE KEY`
    EcP384Pkcs8,
    /// `BEGIN PRIVATE KEY`
    Ed25519,
}

impl KeyKind {
    /// Every kind.
    pub const ALL: [Self; 6] = [
        Self::Rsa2048Pkcs1,
        Self::Rsa2048Pkcs8,
        Self::EcP256Sec1,
        Self::EcP256Sec1WithParams,
        Self::EcP384Pkcs8,
        Self::Ed25519,
    ];

    fn generate(self) -> (PKey<Private>, Vec<u8>) {
        match self {
            Self::Rsa2048Pkcs1 => {
                let rsa = Rsa::generate(2048).unwrap();
                let pem = rsa.private_key_to_pem().unwrap();
                (PKey::from_rsa(rsa).unwrap(), pem)
            }
            Self::Rsa2048Pkcs8 => pkcs8(PKey::from_rsa(Rsa::generate(2048).unwrap()).unwrap()),
            Self::EcP256Sec1 => {
                let ec = ec(Nid::X9_62_PRIME256V1);
                let pem = ec.private_key_to_pem().unwrap();
                (PKey::from_ec_key(ec).unwrap(), pem)
            }
            Self::EcP256Sec1WithParams => {
                let (key, pem) = Self::EcP256Sec1.generate();
                // The object identifier of prime256v1 in DER.
                let mut all =
                    b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
                        .to_vec();
                all.extend(pem);
                (key, all)
            }
            Self::EcP384Pkcs8 => pkcs8(PKey::from_ec_key(ec(Nid::SECP384R1)).unwrap()),
            Self::Ed25519 => pkcs8(PKey::generate_ed25519().unwrap()),
        }
    }
}

fn ec(curve: Nid) -> EcKey<Private> {
    let mut group = EcGroup::from_curve_name(curve).unwrap();
    group.set_asn1_flag(Asn1Flag::NAMED_CURVE);
    EcKey::generate(&group).unwrap()
}

fn pkcs8(key: PKey<Private>) -> (PKey<Private>, Vec<u8>) {
    let pem = key.private_key_to_pem_pkcs8().unwrap();
    (key, pem)
}

/// A certificate with its key, both as PEM.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// The certificate alone, without the CA's.
    pub cert_pem: String,
    /// The private key in the form that its [`KeyKind`] names.
    pub key_pem: String,
}

impl Leaf {
    /// The certificate, parsed.
    pub fn certificate(&self) -> X509 {
        X509::from_pem(self.cert_pem.as_bytes()).unwrap()
    }

    /// The key, parsed.
    pub fn key(&self) -> PKey<Private> {
        PKey::private_key_from_pem(self.key_pem.as_bytes()).unwrap()
    }
}

/// How a leaf differs from the usual: valid for a day from now, for servers and clients, without organisation.
#[derive(Clone, Debug)]
pub struct LeafOptions {
    /// The subject's common name; the first host where empty.
    pub common_name: String,
    /// The subject's organisation: for Kubernetes the group.
    pub organization: Option<String>,
    /// The serial number; the next one where absent.
    pub serial: Option<u32>,
    /// Seconds from now at which validity starts.
    pub not_before: i64,
    /// Seconds from now at which validity ends.
    pub not_after: i64,
    /// For servers alone, not for clients.
    pub server_only: bool,
}

impl Default for LeafOptions {
    fn default() -> Self {
        Self {
            common_name: String::new(),
            organization: None,
            serial: None,
            not_before: -3600,
            not_after: 86_400,
            server_only: false,
        }
    }
}

/// A certificate authority with a P-256 key.
#[derive(Clone, Debug)]
pub struct Ca {
    certificate: X509,
    key: PKey<Private>,
}

impl Default for Ca {
    fn default() -> Self {
        Self::new()
    }
}

impl Ca {
    /// A new self-signed authority.
    pub fn new() -> Self {
        let (key, _) = KeyKind::EcP256Sec1.generate();
        let subject = subject(&format!("e2e CA {}", serial()), None);
        let mut builder = base(&subject, &subject, &key, -3600, 10 * 86_400);
        builder.append_extension(BasicConstraints::new().critical().ca().build().unwrap()).unwrap();
        let usage =
            KeyUsage::new().critical().key_cert_sign().crl_sign().digital_signature().build().unwrap();
        builder.append_extension(usage).unwrap();
        let identifier = SubjectKeyIdentifier::new().build(&builder.x509v3_context(None, None)).unwrap();
        builder.append_extension(identifier).unwrap();
        builder.sign(&key, MessageDigest::sha256()).unwrap();
        Self { certificate: builder.build(), key }
    }

    /// The authority's certificate.
    pub fn pem(&self) -> String {
        String::from_utf8(self.certificate.to_pem().unwrap()).unwrap()
    }

    /// The authority's certificate, parsed.
    pub fn certificate(&self) -> &X509 {
        &self.certificate
    }

    /// A leaf for the given host names, IP addresses and URIs; the first is also the common name.
    pub fn leaf(&self, hosts: &[&str], kind: KeyKind) -> Leaf {
        self.leaf_with(hosts, kind, &LeafOptions::default())
    }

    /// [`Ca::leaf`] with other than the usual subject or validity. `hosts` may be empty.
    pub fn leaf_with(&self, hosts: &[&str], kind: KeyKind, options: &LeafOptions) -> Leaf {
        let (key, key_pem) = kind.generate();
        let common_name = match options.common_name.as_str() {
            "" => hosts.first().copied().unwrap_or("e2e"),
            name => name,
        };
        let subject = subject(common_name, options.organization.as_deref());
        let issuer = self.certificate.subject_name();
        let mut builder = base(&subject, issuer, &key, options.not_before, options.not_after);
        if let Some(serial) = options.serial {
            builder.set_serial_number(&number(serial)).unwrap();
        }
        builder.append_extension(BasicConstraints::new().build().unwrap()).unwrap();
        builder.append_extension(KeyUsage::new().critical().digital_signature().build().unwrap()).unwrap();
        let mut usage = ExtendedKeyUsage::new();
        usage.server_auth();
        if !options.server_only {
            usage.client_auth();
        }
        builder.append_extension(usage.build().unwrap()).unwrap();
        let context = builder.x509v3_context(Some(&self.certificate), None);
        let authority = AuthorityKeyIdentifier::new().keyid(true).build(&context).unwrap();
        let names = (!hosts.is_empty()).then(|| {
            let mut names = SubjectAlternativeName::new();
            for host in hosts {
                match host.parse::<IpAddr>() {
                    Ok(_) => names.ip(host),
                    Err(_) if host.contains("://") => names.uri(host),
                    Err(_) => names.dns(host),
                };
            }
            names.build(&context).unwrap()
        });
        builder.append_extension(authority).unwrap();
        if let Some(names) = names {
            builder.append_extension(names).unwrap();
        }
        builder.sign(&self.key, MessageDigest::sha256()).unwrap();
        Leaf {
            cert_pem: String::from_utf8(builder.build().to_pem().unwrap()).unwrap(),
            key_pem: String::from_utf8(key_pem).unwrap(),
        }
    }
}

fn base(
    subject: &X509Name,
    issuer: &openssl::x509::X509NameRef,
    key: &PKey<Private>,
    not_before: i64,
    not_after: i64,
) -> X509Builder {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
    let mut builder = X509::builder().unwrap();
    builder.set_version(2).unwrap();
    builder.set_serial_number(&number(serial())).unwrap();
    builder.set_subject_name(subject).unwrap();
    builder.set_issuer_name(issuer).unwrap();
    builder.set_pubkey(key).unwrap();
    builder.set_not_before(&Asn1Time::from_unix(now + not_before).unwrap()).unwrap();
    builder.set_not_after(&Asn1Time::from_unix(now + not_after).unwrap()).unwrap();
    builder
}

fn subject(common_name: &str, organization: Option<&str>) -> X509Name {
    let mut name = X509NameBuilder::new().unwrap();
    if let Some(organization) = organization {
        name.append_entry_by_nid(Nid::ORGANIZATIONNAME, organization).unwrap();
    }
    // RFC 5280 bounds a common name at 64 characters; longer ones live in the subjectAltName alone.
    let common_name = common_name.get(..64).unwrap_or(common_name);
    name.append_entry_by_nid(Nid::COMMONNAME, common_name).unwrap();
    name.build()
}

fn number(serial: u32) -> Asn1Integer {
    BigNum::from_u32(serial).unwrap().to_asn1_integer().unwrap()
}

fn serial() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A manifest of a `kubernetes.io/tls` Secret.
pub fn tls_secret_yaml(namespace: &str, name: &str, leaf: &Leaf) -> String {
    let encode = |text: &str| openssl::base64::encode_block(text.as_bytes());
    format!(
        "apiVersion: v1\nkind: Secret\ntype: kubernetes.io/tls\nmetadata: {{namespace: {namespace}, name: {name}}}\n\
         data:\n  tls.crt: {}\n  tls.key: {}\n",
        encode(&leaf.cert_pem),
        encode(&leaf.key_pem)
    )
}
