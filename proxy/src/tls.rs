//! Server-side TLS: the certificate by SNI at each handshake, from the published snapshot.

use crate::handshake::Handshake;
use crate::metrics::Metrics;
use async_trait::async_trait;
use ingress_core::{CertifiedKey, Reader};
use openssl::asn1::{Asn1Integer, Asn1Time};
use openssl::bn::{BigNum, MsbOption};
use openssl::ec::{EcGroup, EcKey};
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::x509::extension::{BasicConstraints, SubjectAlternativeName};
use openssl::x509::{X509, X509NameBuilder};
use pingora_core::listeners::tls::TlsSettings;
use pingora_core::listeners::{PreTlsProcess, TlsAccept};
use pingora_core::protocols::l4::stream::Stream as L4Stream;
use pingora_core::protocols::tls::TlsRef;
use pingora_core::tls::ext;
use pingora_core::tls::ssl::{NameType, SslOptions, SslVersion};
use std::any::Any;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;

/// TLS 1.2 suites: forward secrecy and AEAD only. TLS 1.3 has its own.
const CIPHERS: &str = "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:\
                       ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305";

/// What a finished handshake tells the HTTP layer.
pub struct TlsInfo {
    /// The server name that the client asked for.
    pub sni: Option<Box<str>>,
    /// `TLSv1.2` or `TLSv1.3`.
    pub version: &'static str,
}

/// A chain and key in OpenSSL's form, leaf first.
struct Native {
    leaf: X509,
    rest: Vec<X509>,
    key: PKey<Private>,
}

impl Native {
    fn parse(certified: &CertifiedKey) -> Option<Self> {
        let mut chain = certified.chain.iter().map(|der| X509::from_der(der));
        let leaf = chain.next()?.ok()?;
        Some(Self {
            leaf,
            rest: chain.collect::<Result<_, _>>().ok()?,
            key: PKey::private_key_from_der(certified.key.secret_der()).ok()?,
        })
    }

    fn install(&self, ssl: &mut TlsRef) -> Result<(), ErrorStack> {
        ext::ssl_use_certificate(ssl, &self.leaf)?;
        ext::ssl_use_private_key(ssl, &self.key)?;
        for certificate in &self.rest {
            ext::ssl_add_chain_cert(ssl, certificate)?;
        }
        Ok(())
    }
}

/// Counts a handshake as failed unless it is marked done; lives in the connection's SSL object.
struct Outcome {
    metrics: Metrics,
    done: bool,
}

impl Drop for Outcome {
    fn drop(&mut self) {
        if !self.done {
            self.metrics.handshake("unknown", false);
        }
    }
}

struct Certificates {
    reader: Reader,
    fallback: Native,
    metrics: Metrics,
    outcome: openssl::ex_data::Index<openssl::ssl::Ssl, Outcome>,
}

#[async_trait]
impl TlsAccept for Certificates {
    async fn certificate_callback(&self, ssl: &mut TlsRef) {
        ssl.set_ex_data(self.outcome, Outcome { metrics: self.metrics.clone(), done: false });
        let certified = self.reader.peek().certs.find(ssl.servername(NameType::HOST_NAME)).cloned();
        // Parsed once per certificate; a chain that the controller accepted always parses.
        let native = certified.as_ref().and_then(|c| c.native.get_or_init(|| Native::parse(c))?.as_ref());
        let chosen = native.unwrap_or_else(|| {
            self.metrics.fallback_certificate();
            &self.fallback
        });
        if let Err(error) = chosen.install(ssl) {
            tracing::warn!(%error, source = ?certified.map(|c| c.source.to_string()), "certificate not usable");
        }
    }

    async fn handshake_complete_callback(&self, ssl: &TlsRef) -> Option<Arc<dyn Any + Send + Sync>> {
        let version = match ssl.version2() {
            Some(SslVersion::TLS1_3) => "TLSv1.3",
            _ => "TLSv1.2",
        };
        self.metrics.handshake(version, true);
        Some(Arc::new(TlsInfo { sni: ssl.servername(NameType::HOST_NAME).map(Into::into), version }))
    }
}

/// Bounds a handshake. The wait for a client's hello, whole, comes before the engine's part: a
/// connection that sends nothing, trickles, or speaks no TLS takes a place for this long and no
/// longer. What comes after the hello has the rest of the time (`handshake.rs`).
pub struct HelloDeadline {
    /// `None` = no limit of ours.
    pub limit: Option<Duration>,
    /// Where failures are counted.
    pub metrics: Metrics,
    /// Handshakes that have begun and not ended.
    pub handshakes: Arc<AtomicI64>,
}

/// A record of TLS holds no more (RFC 8446 section 5.1, with room for expansion).
const MAX_RECORD: usize = (1 << 14) + 2048;

/// The content type of handshake records.
const HANDSHAKE: u8 = 22;

impl HelloDeadline {
    /// The first record as it came; `None` if the connection ended without a byte.
    async fn first_record(stream: &mut L4Stream) -> io::Result<Option<Vec<u8>>> {
        let mut record = vec![0; 5];
        match stream.read(&mut record[..1]).await? {
            0 => return Ok(None),
            _ => stream.read_exact(&mut record[1..]).await?,
        };
        let length = usize::from(u16::from_be_bytes([record[3], record[4]]));
        if record[0] != HANDSHAKE || length == 0 || length > MAX_RECORD {
            return Err(io::ErrorKind::InvalidData.into());
        }
        record.resize(5 + length, 0);
        stream.read_exact(&mut record[5..]).await?;
        Ok(Some(record))
    }
}

#[async_trait]
impl PreTlsProcess for HelloDeadline {
    async fn process(&self, stream: &mut L4Stream) -> pingora_core::Result<()> {
        let (handshake, began) = (Handshake::begin(&self.handshakes), Instant::now());
        let reading = Self::first_record(stream);
        let read = match self.limit {
            Some(limit) => {
                tokio::time::timeout(limit, reading).await.unwrap_or(Err(io::ErrorKind::TimedOut.into()))
            }
            None => reading.await,
        };
        match read {
            Ok(Some(record)) => {
                stream.rewind(&record);
                handshake.watch(stream, self.limit, began);
                return Ok(());
            }
            Ok(None) => {} // a probe that only connects
            Err(_) => self.metrics.handshake("unknown", false),
        }
        pingora_core::Error::e_explain(pingora_core::ErrorType::TLSHandshakeFailure, "no client hello")
    }
}

/// The settings of the HTTPS listener.
pub fn settings(reader: Reader, metrics: Metrics) -> Result<TlsSettings, crate::StartError> {
    let outcome = openssl::ssl::Ssl::new_ex_index()?;
    let certificates = Certificates { reader, fallback: self_signed()?, metrics, outcome };
    let mut settings = TlsSettings::with_callbacks(Box::new(certificates))
        .map_err(|e| crate::StartError::Settings(e.to_string()))?;
    settings.enable_h2();
    settings.set_min_proto_version(Some(SslVersion::TLS1_2))?;
    settings.set_cipher_list(CIPHERS)?;
    settings.set_options(SslOptions::CIPHER_SERVER_PREFERENCE | SslOptions::NO_RENEGOTIATION);
    settings.set_session_id_context(b"tak-os-ingress")?;
    Ok(settings)
}

/// The certificate for server names that nobody declared: made at start, P-256, valid for as long as
/// scanners accept (397 days).
fn self_signed() -> Result<Native, ErrorStack> {
    let key = PKey::from_ec_key(EcKey::generate(&*EcGroup::from_curve_name(Nid::X9_62_PRIME256V1)?)?)?;
    let mut name = X509NameBuilder::new()?;
    name.append_entry_by_text("O", "TAK-OS Ingress")?;
    name.append_entry_by_text("CN", "TAK-OS Ingress self-signed fallback")?;
    let name = name.build();
    let mut serial = BigNum::new()?;
    serial.rand(127, MsbOption::MAYBE_ZERO, false)?;
    let mut certificate = X509::builder()?;
    certificate.set_version(2)?;
    certificate.set_serial_number(&*Asn1Integer::from_bn(&serial)?)?;
    certificate.set_subject_name(&name)?;
    certificate.set_issuer_name(&name)?;
    certificate.set_not_before(&*Asn1Time::days_from_now(0)?)?;
    certificate.set_not_after(&*Asn1Time::days_from_now(397)?)?;
    certificate.set_pubkey(&key)?;
    certificate.append_extension(BasicConstraints::new().critical().build()?)?;
    let names = SubjectAlternativeName::new()
        .dns("tak-os-ingress.invalid")
        .build(&certificate.x509v3_context(None, None))?;
    certificate.append_extension(names)?;
    certificate.sign(&key, MessageDigest::sha256())?;
    Ok(Native { leaf: certificate.build(), rest: Vec::new(), key })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fallback_certificate_belongs_to_its_key_and_to_no_host() {
        let native = self_signed().unwrap();
        assert!(native.leaf.verify(&native.key).unwrap());
        assert!(native.leaf.public_key().unwrap().public_eq(&native.key));
        let names = native.leaf.subject_alt_names().unwrap();
        assert_eq!(names.iter().filter_map(|n| n.dnsname()).collect::<Vec<_>>(), ["tak-os-ingress.invalid"]);
    }
}
