//! TLS as a client: what to offer, and what the server chose.

use std::net::SocketAddr;
use std::pin::Pin;

use anyhow::Context;
use openssl::pkey::PKey;
use openssl::ssl::{SslConnector, SslMethod, SslVerifyMode, SslVersion};
use openssl::x509::X509;
use openssl::x509::store::X509StoreBuilder;
use tokio::net::TcpStream;
use tokio_openssl::SslStream;

use super::{bounded, connect_tcp};

/// A TLS connection of a client.
pub type TlsStream = SslStream<TcpStream>;

/// What a client offers and demands. By default: no SNI, no ALPN, any certificate accepted.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    sni: Option<String>,
    alpn: Vec<String>,
    ca_pem: Option<String>,
    identity: Option<(String, String)>,
    versions: Option<(SslVersion, SslVersion)>,
    ciphers: Option<String>,
}

impl Tls {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends this server name.
    pub fn sni(mut self, name: &str) -> Self {
        self.sni = Some(name.into());
        self
    }

    /// Offers these protocols.
    pub fn alpn(mut self, protocols: &[&str]) -> Self {
        self.alpn = protocols.iter().map(|p| (*p).to_owned()).collect();
        self
    }

    /// Demands a certificate that leads to this authority and, where a server name is sent, carries it.
    pub fn ca(mut self, pem: &str) -> Self {
        self.ca_pem = Some(pem.into());
        self
    }

    /// Presents a client certificate.
    pub fn identity(mut self, cert_pem: &str, key_pem: &str) -> Self {
        self.identity = Some((cert_pem.into(), key_pem.into()));
        self
    }

    /// Speaks only versions from `min` to `max`.
    pub fn versions(mut self, min: SslVersion, max: SslVersion) -> Self {
        self.versions = Some((min, max));
        self
    }

    /// Offers only these cipher suites of TLS 1.2 and older, in OpenSSL's notation.
    pub fn ciphers(mut self, list: &str) -> Self {
        self.ciphers = Some(list.into());
        self
    }

    /// Connects and shakes hands.
    pub async fn connect(&self, addr: SocketAddr) -> anyhow::Result<TlsStream> {
        self.handshake(connect_tcp(addr).await?).await.with_context(|| format!("TLS handshake with {addr}"))
    }

    /// Shakes hands over a connection that is already there (and may have carried a PROXY header).
    pub async fn handshake(&self, stream: TcpStream) -> anyhow::Result<TlsStream> {
        let mut builder = SslConnector::builder(SslMethod::tls_client())?;
        // Old versions and ciphers are the server's to refuse, not this client's.
        builder.set_security_level(0);
        builder.set_min_proto_version(None)?;
        if let Some((min, max)) = self.versions {
            builder.set_min_proto_version(Some(min))?;
            builder.set_max_proto_version(Some(max))?;
        }
        if let Some(list) = &self.ciphers {
            builder.set_cipher_list(list)?;
        }
        if !self.alpn.is_empty() {
            let wire = self.alpn.iter().flat_map(|p| std::iter::once(p.len() as u8).chain(p.bytes()));
            builder.set_alpn_protos(&wire.collect::<Vec<_>>())?;
        }
        if let Some((cert, key)) = &self.identity {
            let (cert, key) = (X509::from_pem(cert.as_bytes())?, PKey::private_key_from_pem(key.as_bytes())?);
            builder.set_certificate(&cert)?;
            builder.set_private_key(&key)?;
        }
        match &self.ca_pem {
            Some(pem) => {
                let mut store = X509StoreBuilder::new()?;
                for certificate in X509::stack_from_pem(pem.as_bytes())? {
                    store.add_cert(certificate)?;
                }
                builder.set_cert_store(store.build());
            }
            None => builder.set_verify(SslVerifyMode::NONE),
        }
        let verify_name = self.ca_pem.is_some() && self.sni.is_some();
        let configuration = builder
            .build()
            .configure()?
            .use_server_name_indication(self.sni.is_some())
            .verify_hostname(verify_name);
        let ssl = configuration.into_ssl(self.sni.as_deref().unwrap_or(""))?;
        let mut stream = SslStream::new(ssl, stream)?;
        bounded("handshake", async { Ok(Pin::new(&mut stream).connect().await?) }).await?;
        Ok(stream)
    }
}

/// What a server chose in a handshake.
#[derive(Clone, Debug)]
pub struct Served {
    /// The leaf certificate.
    pub certificate: X509,
    /// All certificates that were sent, the leaf first.
    pub chain: Vec<X509>,
    /// The protocol chosen by ALPN.
    pub alpn: Option<String>,
    /// `TLSv1.2`, `TLSv1.3`, …
    pub version: String,
    /// The cipher suite.
    pub cipher: String,
}

impl Served {
    /// What the server of an open connection chose.
    pub fn of(stream: &TlsStream) -> anyhow::Result<Self> {
        let ssl = stream.ssl();
        Ok(Self {
            certificate: ssl.peer_certificate().context("the server sent no certificate")?,
            chain: ssl.peer_cert_chain().into_iter().flatten().map(ToOwned::to_owned).collect(),
            alpn: ssl.selected_alpn_protocol().map(|p| String::from_utf8_lossy(p).into_owned()),
            version: ssl.version_str().to_owned(),
            cipher: ssl.current_cipher().map_or("", |c| c.name()).to_owned(),
        })
    }

    /// The DNS names in the certificate.
    pub fn names(&self) -> Vec<String> {
        let names = self.certificate.subject_alt_names().into_iter().flatten();
        names.filter_map(|name| name.dnsname().map(ToOwned::to_owned)).collect()
    }

    /// Whether this certificate is that of `leaf`.
    pub fn is(&self, leaf: &crate::pki::Leaf) -> bool {
        self.certificate == leaf.certificate()
    }
}

/// The certificate that the server at `addr` shows for a server name, with what else it chose from `h2` and
/// `http/1.1`; panics where the handshake fails.
pub async fn served_certificate(addr: SocketAddr, sni: Option<&str>) -> Served {
    let mut tls = Tls::new().alpn(&["h2", "http/1.1"]);
    if let Some(name) = sni {
        tls = tls.sni(name);
    }
    let served = async { Served::of(&tls.connect(addr).await?) };
    served.await.unwrap_or_else(|e| panic!("no certificate from {addr} for {sni:?}: {e:#}"))
}
