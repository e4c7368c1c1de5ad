//! TLS sessions of one client, which it offers wherever it likes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

use openssl::ssl::{
    SslConnector, SslMethod, SslOptions, SslSession, SslSessionCacheMode, SslStream, SslVerifyMode,
    SslVersion,
};

use crate::DEADLINE;
use crate::pki::Leaf;

/// A client that keeps the sessions it is given. It takes any server certificate, and blocks.
pub struct SessionClient {
    connector: SslConnector,
    sessions: Arc<Mutex<Vec<SslSession>>>,
}

impl SessionClient {
    /// Of this one version of TLS; with a certificate, which it shows where it is asked for one.
    pub fn new(version: SslVersion, leaf: Option<&Leaf>) -> Self {
        Self::with(version, leaf, SslOptions::empty())
    }

    /// One of TLS 1.2 that takes no tickets: whoever wants to resume its sessions must keep them.
    pub fn without_tickets() -> Self {
        Self::with(SslVersion::TLS1_2, None, SslOptions::NO_TICKET)
    }

    fn with(version: SslVersion, leaf: Option<&Leaf>, options: SslOptions) -> Self {
        let sessions = Arc::<Mutex<Vec<SslSession>>>::default();
        let mut builder = SslConnector::builder(SslMethod::tls_client()).unwrap();
        builder.set_verify(SslVerifyMode::NONE);
        builder.set_options(options);
        builder.set_min_proto_version(Some(version)).unwrap();
        builder.set_max_proto_version(Some(version)).unwrap();
        if let Some(leaf) = leaf {
            builder.set_certificate(&leaf.certificate()).unwrap();
            builder.set_private_key(&leaf.key()).unwrap();
        }
        builder.set_session_cache_mode(SslSessionCacheMode::CLIENT | SslSessionCacheMode::NO_INTERNAL);
        builder.set_new_session_callback({
            let sessions = sessions.clone();
            move |_, session| sessions.lock().unwrap().push(session)
        });
        Self { connector: builder.build(), sessions }
    }

    /// A new connection that offers the last session; `None` where the handshake was refused.
    pub fn connect(&self, addr: SocketAddr, host: &str) -> Option<SessionConn> {
        let configuration = self.connector.configure().unwrap().verify_hostname(false);
        let mut ssl = configuration.into_ssl(host).unwrap();
        if let Some(session) = self.sessions.lock().unwrap().last() {
            // SAFETY: the session comes from this connector's own context.
            unsafe { ssl.set_session(session) }.unwrap();
        }
        let tcp = TcpStream::connect(addr).unwrap();
        tcp.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut stream = SslStream::new(ssl, tcp).unwrap();
        stream.connect().ok()?;
        Some(SessionConn { stream })
    }

    /// One request on a new connection: the status, if the server let it in, and whether the session was taken.
    pub fn get(&self, addr: SocketAddr, host: &str) -> (Option<u16>, bool) {
        let Some(mut conn) = self.connect(addr, host) else { return (None, false) };
        let reused = conn.is_resumed();
        (conn.get(host), reused)
    }
}

/// A connection of a [`SessionClient`].
pub struct SessionConn {
    stream: SslStream<TcpStream>,
}

impl SessionConn {
    /// Whether the server took the session that was offered.
    pub fn is_resumed(&self) -> bool {
        self.stream.ssl().session_reused()
    }

    /// The status of the connection's last request; `None` where nothing comes back.
    pub fn get(&mut self, host: &str) -> Option<u16> {
        // A refusal may be on its way already.
        let _ = write!(self.stream, "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let mut answer = Vec::new();
        // The end may come without a close_notify.
        let _ = self.stream.read_to_end(&mut answer);
        // Without an orderly end OpenSSL calls the session no longer resumable.
        let _ = self.stream.shutdown();
        let answer = String::from_utf8_lossy(&answer);
        answer.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()
    }
}
