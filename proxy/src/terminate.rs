//! TLS that ends here for a TLSRoute: the handshake, and then whatever is inside goes to the route's backend.
//!
//! The engine ends TLS for HTTP alone: it offers HTTP's protocols (ALPN) to everybody, and asks for a certificate by the
//! server name in the middle of the handshake. Here route and certificate are known before it begins.

use crate::Shared;
use crate::clients;
use crate::close_notify::CloseNotify;
use crate::handshake::Handshake;
use crate::keypair;
use crate::passthrough::{Shown, Taken};
use crate::places::Place;
use crate::relay::{self, Carried, Tunnel};
use crate::tls;
use ingress_core::route::host::normal_name;
use openssl::error::ErrorStack;
use openssl::ssl::{NameType, Ssl, SslAcceptor, SslVersion};
use pingora_core::protocols::l4::stream::Stream as L4Stream;
use pingora_core::protocols::tls::SslStream;
use std::sync::Arc;
use std::time::Duration;

/// A handshake without a limit of ours takes no longer than the engine's own would.
const CEILING: Duration = Duration::from_secs(60);

/// Settings of these connections: those of HTTPS, without a word on what is spoken inside.
pub fn acceptor() -> Result<SslAcceptor, ErrorStack> {
    let mut builder = tls::silent_context()?;
    builder.set_session_id_context(b"tak-os-ingress")?;
    Ok(builder.build())
}

/// A connection whose hello was read.
pub struct Greeted {
    /// The stream behind the hello.
    pub stream: L4Stream,
    /// The hello, as it came.
    pub records: Vec<u8>,
    /// Its place among `--max-connections`.
    pub place: Place,
    /// Counts while the handshake lasts.
    pub handshake: Handshake,
    /// What is left of the time for it; `None` = no limit.
    pub left: Option<Duration>,
}

/// Ends TLS, and carries what is inside until both sides are done.
pub async fn run(
    shared: Arc<Shared>,
    acceptor: Arc<SslAcceptor>,
    greeted: Greeted,
    taken: Taken,
    shown: Shown,
) {
    let Greeted { mut stream, records, place, handshake, left } = greeted;
    let client = relay::client(&stream);
    stream.rewind(&records);
    drop(records);
    let shaking = shake(&acceptor, stream, &shown);
    let shaken = tokio::time::timeout(left.unwrap_or(CEILING), shaking).await.ok().flatten();
    // What was chosen by one name holds for no other, should a second hello have brought one: TLS 1.3 alone knows those.
    // Of earlier versions OpenSSL forgets the name where it resumes a session.
    let asked = |stream: &SslStream<L4Stream>| {
        let asked = stream.ssl().servername(NameType::HOST_NAME).map(normal_name);
        stream.ssl().version2() != Some(SslVersion::TLS1_3) || asked.is_some_and(|asked| asked == taken.name)
    };
    let Some(stream) = shaken.filter(asked) else {
        shared.metrics.handshake("unknown", false);
        return;
    };
    let version = tls::version(stream.ssl());
    shared.metrics.handshake(version, true);
    let tunnel = Tunnel::begin(&shared, place);
    drop(handshake);
    let carried = Carried { taken, client, tls_version: Some(version) };
    relay::run(shared, tunnel, CloseNotify::new(stream), Vec::new(), carried).await;
}

async fn shake(
    acceptor: &SslAcceptor,
    stream: L4Stream,
    Shown { certificate, clients }: &Shown,
) -> Option<SslStream<L4Stream>> {
    let mut ssl = match clients {
        Some(clients) => clients::silent(clients)?,
        None => Ssl::new(acceptor.context()).ok()?,
    };
    let installed = keypair::of(certificate).map(|pair| tls::install(pair, &mut ssl));
    if !matches!(installed, Some(Ok(()))) {
        tracing::warn!(source = %certificate.source, "certificate not usable; the connection is closed");
        return None;
    }
    let mut stream = SslStream::new(ssl, stream).ok()?;
    stream.accept().await.ok()?;
    let lets_in = clients.as_ref().is_none_or(|clients| clients::lets_in(clients, stream.ssl()));
    lets_in.then_some(stream)
}
