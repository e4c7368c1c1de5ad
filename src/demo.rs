//! The bundled example: an echo backend of its own, one plain and one TLS host.

use crate::readiness::Readiness;
use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use openssl::asn1::Asn1Time;
use openssl::bn::{BigNum, MsbOption};
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::x509::extension::SubjectAlternativeName;
use openssl::x509::{X509, X509NameBuilder};
use std::convert::Infallible;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::TcpListener;

const PLAIN_HOST: &str = "demo.localhost";
const TLS_HOST: &str = "secure.localhost";

/// A folder of manifests and a running backend; the folder goes when this is dropped.
pub struct Demo {
    /// Where the manifests are.
    pub dir: PathBuf,
    /// What to tell the user once it serves.
    pub text: String,
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Demo {
    /// Starts the backend and writes the manifests.
    pub async fn new(config: &ingress_proxy::Config) -> Result<Self> {
        let listener =
            TcpListener::bind(("127.0.0.1", 0)).await.context("no loopback port for the backend")?;
        let backend = listener.local_addr()?.port();
        tokio::spawn(echo(listener));
        let dir = std::env::temp_dir().join(format!("tak-os-ingress-demo-{}", std::process::id()));
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let (http, https) = (config.http_port, config.https_port);
        let text = format!(
            "\nThe demo serves two hosts from {}. Try:\n\n  \
             curl -H 'Host: {PLAIN_HOST}' http://127.0.0.1:{http}/hello\n  \
             curl -i -H 'Host: {TLS_HOST}' http://127.0.0.1:{http}/\n  \
             curl -k --resolve {TLS_HOST}:{https}:127.0.0.1 https://{TLS_HOST}:{https}/hello\n\n\
             Change the files in that folder and try again; Ctrl-C ends it.\n\n",
            dir.display()
        );
        let demo = Self { dir, text };
        let (certificate, key) = certificate(TLS_HOST)?;
        let mut yaml = include_str!("demo.yaml").replace("BACKEND_PORT", &backend.to_string());
        write!(yaml, "---\n{}", secret(&certificate, &key))?;
        std::fs::write(demo.dir.join("demo.yaml"), yaml)?;
        Ok(demo)
    }
}

/// Prints the lines to try once the routes are there.
pub async fn announce(readiness: &Readiness, text: &str) {
    while !readiness.pending().is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    use std::io::Write as _;
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn secret(certificate: &str, key: &str) -> String {
    let indent = |pem: &str| pem.lines().map(|l| format!("    {l}\n")).collect::<String>();
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: secure-tls\n  namespace: demo\ntype: kubernetes.io/tls\n\
         stringData:\n  tls.crt: |\n{}  tls.key: |\n{}",
        indent(certificate),
        indent(key)
    )
}

fn certificate(host: &str) -> Result<(String, String)> {
    let key = PKey::from_ec_key(EcKey::generate(&*EcGroup::from_curve_name(Nid::X9_62_PRIME256V1)?)?)?;
    let mut name = X509NameBuilder::new()?;
    name.append_entry_by_text("CN", host)?;
    let name = name.build();
    let mut serial = BigNum::new()?;
    serial.rand(127, MsbOption::MAYBE_ZERO, false)?;
    let mut certificate = X509::builder()?;
    certificate.set_version(2)?;
    certificate.set_serial_number(&*openssl::asn1::Asn1Integer::from_bn(&serial)?)?;
    certificate.set_subject_name(&name)?;
    certificate.set_issuer_name(&name)?;
    certificate.set_not_before(&*Asn1Time::days_from_now(0)?)?;
    certificate.set_not_after(&*Asn1Time::days_from_now(30)?)?;
    certificate.set_pubkey(&key)?;
    let names = SubjectAlternativeName::new().dns(host).build(&certificate.x509v3_context(None, None))?;
    certificate.append_extension(names)?;
    certificate.sign(&key, MessageDigest::sha256())?;
    Ok((
        String::from_utf8(certificate.build().to_pem()?)?,
        String::from_utf8(key.private_key_to_pem_pkcs8()?)?,
    ))
}

/// Answers every request with what arrived.
async fn echo(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let service = service_fn(|request: Request<Incoming>| async move {
                let mut body = format!("{} {}\n", request.method(), request.uri());
                for (name, value) in request.headers() {
                    let _ = writeln!(body, "{name}: {}", String::from_utf8_lossy(value.as_bytes()));
                }
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(body))))
            });
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}
