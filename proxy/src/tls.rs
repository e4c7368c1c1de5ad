//! Server-side TLS: the certificate by SNI at each handshake, from the published snapshot.

use crate::clients::{Asked, Hello};
use crate::edge::{self, Edge};
use crate::handshake::Handshake;
use crate::metrics::Metrics;
use crate::passthrough::{self, Choice};
use crate::places::{Place, Places};
use crate::relay::{self, Carried, Tunnel};
use crate::terminate::{self, Greeted};
use crate::{Shared, keypair, proxy_protocol};
use async_trait::async_trait;
use bytes::BufMut;
use ingress_core::route::host::normal_name;
use ingress_core::{CertifiedKey, ClientValidation, Local, Ranges, Reader};
use openssl::asn1::{Asn1Integer, Asn1Time};
use openssl::bn::{BigNum, MsbOption};
use openssl::ec::{EcGroup, EcKey};
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::x509::extension::{BasicConstraints, SubjectAlternativeName};
use openssl::x509::{X509, X509NameBuilder};
use pingora_core::apps::ServerApp;
use pingora_core::listeners::tls::TlsSettings;
use pingora_core::listeners::{PreTlsProcess, TlsAccept};
use pingora_core::protocols::GetSocketDigest;
use pingora_core::protocols::l4::stream::Stream as L4Stream;
use pingora_core::protocols::tls::TlsRef;
use pingora_core::server::ShutdownWatch;
use pingora_core::tls::ext;
use pingora_core::tls::ssl::{
    AlpnError, ClientHelloResponse, NameType, SslAcceptor, SslAcceptorBuilder, SslMethod, SslOptions,
    SslSessionCacheMode, SslVersion, select_next_proto,
};
use pingora_core::utils::tls::CertKey;
use std::any::Any;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// The validation of client certificates that it was held to; `None`: to none.
    pub clients: Option<Arc<ClientValidation>>,
}

/// Has a server show the certificate.
pub fn install(pair: &CertKey, ssl: &mut TlsRef) -> Result<(), ErrorStack> {
    ext::ssl_use_certificate(ssl, pair.leaf())?;
    ext::ssl_use_private_key(ssl, pair.key())?;
    for certificate in pair.intermediates() {
        ext::ssl_add_chain_cert(ssl, certificate)?;
    }
    Ok(())
}

/// `TLSv1.3` or `TLSv1.2`; there are no others.
pub fn version(ssl: &TlsRef) -> &'static str {
    match ssl.version2() {
        Some(SslVersion::TLS1_3) => "TLSv1.3",
        _ => "TLSv1.2",
    }
}

/// Whether a certificate that the controller accepted can be served.
pub(crate) fn serves(certified: &CertifiedKey) -> bool {
    keypair::of(certified).is_some()
}

/// Counts a handshake as failed unless it is marked done; lives in the connection's SSL object, and
/// with it the connection's place.
struct Outcome {
    metrics: Metrics,
    done: AtomicBool,
    /// Where the connection came in, as [`Hello`] has it.
    local: Option<Local>,
    /// The server name of the hello.
    name: Option<Box<str>>,
    _place: Place,
}

impl Drop for Outcome {
    fn drop(&mut self) {
        if !*self.done.get_mut() {
            self.metrics.handshake("unknown", false);
        }
    }
}

/// What the callbacks of a listening socket share.
struct Port {
    reader: Reader,
    fallback: CertKey,
    metrics: Metrics,
    places: Arc<Places>,
    outcome: openssl::ex_data::Index<openssl::ssl::Ssl, Outcome>,
    asked: Asked,
}

impl Port {
    /// OpenSSL has the client's hello, and has not looked for a session to resume. A second one, after a retry, changes nothing.
    fn hello(&self, ssl: &mut TlsRef) -> Result<ClientHelloResponse, ErrorStack> {
        if ssl.ex_data(self.outcome).is_none() {
            let Hello { name, local, clients } = Hello::announced();
            let outcome = Outcome {
                metrics: self.metrics.clone(),
                done: AtomicBool::new(false),
                local,
                name: name.map(Into::into),
                _place: self.places.keep(),
            };
            ssl.set_ex_data(self.outcome, outcome);
            if let Some(validation) = clients {
                self.asked.take_over(ssl, validation)?;
            }
        }
        Ok(ClientHelloResponse::SUCCESS)
    }
}

struct Certificates(Arc<Port>);

#[async_trait]
impl TlsAccept for Certificates {
    async fn certificate_callback(&self, ssl: &mut TlsRef) {
        let Port { reader, fallback, metrics, outcome, .. } = &*self.0;
        let local = ssl.ex_data(*outcome).and_then(|outcome| outcome.local);
        let name = ssl.servername(NameType::HOST_NAME);
        let certified = reader.peek().certificate(local, name).cloned();
        let declared = certified.as_ref().and_then(|certified| keypair::of(certified));
        let chosen = declared.map(|pair| &**pair).unwrap_or_else(|| {
            metrics.fallback_certificate();
            fallback
        });
        if let Err(error) = install(chosen, ssl) {
            tracing::warn!(%error, source = ?certified.map(|c| c.source.to_string()), "certificate not usable");
        }
    }

    async fn handshake_complete_callback(&self, ssl: &TlsRef) -> Option<Arc<dyn Any + Send + Sync>> {
        let version = version(ssl);
        self.0.metrics.handshake(version, true);
        let outcome = ssl.ex_data(self.0.outcome);
        if let Some(outcome) = outcome {
            outcome.done.store(true, Ordering::Relaxed);
        }
        // OpenSSL forgets the name where it resumes a session of TLS 1.2.
        let asked = ssl.servername(NameType::HOST_NAME).map(|name| normal_name(name).into());
        let sni = asked.or_else(|| outcome?.name.clone());
        Some(Arc::new(TlsInfo { sni, version, clients: self.0.asked.enforced(ssl) }))
    }
}

/// Bounds a handshake. The wait for a client's hello, whole, comes before the engine's part: a
/// connection that sends nothing, trickles, or speaks no TLS takes a place for this long and no
/// longer. What comes after the hello has the rest of the time (`handshake.rs`).
pub struct HelloDeadline {
    /// `None` = no limit of ours.
    pub limit: Option<Duration>,
    /// Peers that say by the PROXY protocol, before TLS, whose connection it is.
    pub proxies: Option<Ranges>,
    /// Where failures are counted, and the connection takes its place.
    pub shared: Arc<Shared>,
    /// Takes the connections of Gateway ports that speak no TLS.
    pub edge: Arc<Edge>,
    /// Ends TLS for TLSRoutes.
    pub acceptor: Arc<SslAcceptor>,
    /// What those are told at the end.
    pub stopped: ShutdownWatch,
}

/// A record of TLS holds no more (RFC 8446 section 5.1, with room for expansion).
const MAX_RECORD: usize = (1 << 14) + 2048;

/// A hello, in as many records as it comes, is no longer than this.
const MAX_HELLO: usize = 2 * MAX_RECORD;

/// The content type of handshake records.
const HANDSHAKE: u8 = 22;

impl HelloDeadline {
    /// The records of the hello as they came; `None` if the connection ended without a byte.
    async fn hello(stream: &mut L4Stream) -> io::Result<Option<Vec<u8>>> {
        let mut records = Vec::new();
        // Type and length of the message, which may be spread over records (RFC 8446 section 4).
        let mut prefix = [0u8; 4];
        let mut message = 0;
        loop {
            let start = records.len();
            if start == 0 && stream.read_buf(&mut (&mut records).limit(1)).await? == 0 {
                return Ok(None);
            }
            fill(stream, &mut records, start + 5).await?;
            let length = usize::from(u16::from_be_bytes([records[start + 3], records[start + 4]]));
            let end = start + 5 + length;
            if records[start] != HANDSHAKE || length == 0 || length > MAX_RECORD || end > MAX_HELLO {
                return Err(io::ErrorKind::InvalidData.into());
            }
            fill(stream, &mut records, end).await?;
            for (at, byte) in prefix.iter_mut().skip(message).zip(&records[start + 5..]) {
                *at = *byte;
            }
            message += length;
            let [_, a, b, c] = prefix.map(usize::from);
            if message >= prefix.len() + (a << 16 | b << 8 | c) {
                return Ok(Some(records));
            }
        }
    }
}

/// Reads on until there are so many bytes. Memory is taken as they come, not as they are announced.
async fn fill(stream: &mut L4Stream, bytes: &mut Vec<u8>, length: usize) -> io::Result<()> {
    while bytes.len() < length {
        let left = length - bytes.len();
        bytes.reserve(left.min(2048));
        if stream.read_buf(&mut bytes.limit(left)).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

impl HelloDeadline {
    /// Whether clients speak TLS on the connection's port; an error where no Gateway listens on it.
    fn speaks_tls(&self, stream: &L4Stream) -> pingora_core::Result<bool> {
        let digest = stream.get_socket_digest();
        let local = digest.and_then(|digest| edge::local(&digest, &self.shared.ports));
        let Some(local) = local.filter(|local| local.port != 443) else { return Ok(true) };
        match self.shared.reader.peek().listeners.at(local) {
            Some(listener) => Ok(listener.tls),
            None => closed("no listener on this port"),
        }
    }
}

/// The stream itself, for somebody else than the engine, which keeps one that is closed.
fn taken(stream: &mut L4Stream) -> pingora_core::Result<L4Stream> {
    let failed =
        |e| pingora_core::Error::because(pingora_core::ErrorType::AcceptError, "no stream to leave", e);
    let (left, _) = tokio::net::UnixStream::pair().map_err(failed)?;
    Ok(std::mem::replace(stream, L4Stream::from(left)))
}

/// The engine is done with the connection.
fn closed<T>(why: &'static str) -> pingora_core::Result<T> {
    pingora_core::Error::e_explain(pingora_core::ErrorType::AcceptError, why)
}

#[async_trait]
impl PreTlsProcess for HelloDeadline {
    async fn process(&self, stream: &mut L4Stream) -> pingora_core::Result<()> {
        let shared = &self.shared;
        if !self.speaks_tls(stream)? {
            let taken = taken(stream)?;
            let (edge, stopped) = (self.edge.clone(), self.stopped.clone());
            tokio::spawn(async move { ServerApp::process_new(&edge, Box::new(taken), &stopped).await });
            return closed("no TLS on this port");
        }
        // Held until the hello is whole; the certificate is chosen in the same breath, and takes it over.
        let Some(place) = shared.places.take() else {
            shared.metrics.connection_refused();
            return pingora_core::Error::e_explain(pingora_core::ErrorType::AcceptError, "connection limit");
        };
        let (handshake, began) = (Handshake::begin(&shared.handshakes), Instant::now());
        let limit = self.limit;
        let proxies = self.proxies.as_ref();
        let reading = async {
            if let Some(proxies) = proxies {
                match proxy_protocol::expect(stream, proxies, limit).await {
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                    other => other?,
                }
            }
            Self::hello(stream).await
        };
        let read = match self.limit {
            Some(limit) => {
                tokio::time::timeout(limit, reading).await.unwrap_or(Err(io::ErrorKind::TimedOut.into()))
            }
            None => reading.await,
        };
        match read {
            Ok(Some(records)) => match passthrough::choose(shared, stream, &records) {
                Choice::Terminate(hello) => {
                    stream.rewind(&records);
                    handshake.watch(stream, self.limit, began);
                    hello.announce();
                    return Ok(());
                }
                Choice::Pass(by) => {
                    let (stream, shared) = (taken(stream)?, shared.clone());
                    let client = relay::client(&stream);
                    let carried = Carried { taken: by, client, tls_version: None };
                    let tunnel = Tunnel::begin(&shared, place);
                    tokio::spawn(async move { relay::run(shared, tunnel, stream, records, carried).await });
                    return closed("passed through");
                }
                Choice::TerminateTcp(by, shown) => {
                    let left = self.limit.map(|limit| limit.saturating_sub(began.elapsed()));
                    let greeted = Greeted { stream: taken(stream)?, records, place, handshake, left };
                    let (shared, acceptor) = (shared.clone(), self.acceptor.clone());
                    tokio::spawn(terminate::run(shared, acceptor, greeted, by, shown));
                    return closed("ended for a TLSRoute");
                }
                Choice::Close => shared.metrics.unmatched("no_host"),
            },
            Ok(None) => {} // a probe that only connects
            Err(_) => shared.metrics.handshake("unknown", false),
        }
        pingora_core::Error::e_explain(pingora_core::ErrorType::TLSHandshakeFailure, "no client hello")
    }
}

/// The settings of a listening socket for TLS.
pub fn settings(
    reader: Reader,
    metrics: Metrics,
    places: Arc<Places>,
) -> Result<TlsSettings, crate::StartError> {
    let (outcome, asked) = (openssl::ssl::Ssl::new_ex_index()?, Asked::new()?);
    let port = Arc::new(Port { reader, fallback: self_signed()?, metrics, places, outcome, asked });
    let mut settings = TlsSettings::with_callbacks(Box::new(Certificates(port.clone())))
        .map_err(|e| crate::StartError::Settings(e.to_string()))?;
    common(&mut settings)?;
    settings.set_session_id_context(b"tak-os-ingress")?;
    settings.set_client_hello_callback(move |ssl, _| port.hello(ssl));
    Ok(settings)
}

/// What holds on every connection whose requests we look for, whatever clients must show there.
fn common(settings: &mut SslAcceptorBuilder) -> Result<(), ErrorStack> {
    settings.set_alpn_select_callback(|_, offered| match offered {
        [] => Err(AlpnError::NOACK),
        _ => select_next_proto(b"\x02h2\x08http/1.1", offered).ok_or(AlpnError::NOACK),
    });
    always(settings)
}

/// What holds wherever TLS ends here.
fn always(settings: &mut SslAcceptorBuilder) -> Result<(), ErrorStack> {
    settings.set_min_proto_version(Some(SslVersion::TLS1_2))?;
    settings.set_cipher_list(CIPHERS)?;
    settings.set_options(SslOptions::CIPHER_SERVER_PREFERENCE | SslOptions::NO_RENEGOTIATION);
    // Clients keep their sessions (tickets); each of ours would be up to twenty thousand of them in memory.
    settings.set_session_cache_mode(SslSessionCacheMode::OFF);
    Ok(())
}

/// A context that can take the place of a listener's once a hello is there.
pub(crate) fn context() -> Result<SslAcceptorBuilder, ErrorStack> {
    let mut builder = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls())?;
    common(&mut builder)?;
    Ok(builder)
}

/// A context for connections that are no HTTP here: no protocol is selected of those that the client offers (ALPN).
pub(crate) fn silent_context() -> Result<SslAcceptorBuilder, ErrorStack> {
    let mut builder = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls())?;
    always(&mut builder)?;
    Ok(builder)
}

/// The certificate for server names that nobody declared: made at start, P-256, valid for as long as
/// scanners accept (397 days).
pub(crate) fn self_signed() -> Result<CertKey, ErrorStack> {
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
    Ok(CertKey::new(vec![certificate.build()], key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fallback_certificate_belongs_to_its_key_and_to_no_host() {
        let pair = self_signed().unwrap();
        assert!(pair.leaf().verify(pair.key()).unwrap());
        assert!(pair.leaf().public_key().unwrap().public_eq(pair.key()));
        let names = pair.leaf().subject_alt_names().unwrap();
        assert_eq!(names.iter().filter_map(|n| n.dnsname()).collect::<Vec<_>>(), ["tak-os-ingress.invalid"]);
    }
}
