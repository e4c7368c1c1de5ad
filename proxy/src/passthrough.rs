//! What becomes of a TLS connection, by the server name in the client's hello: it ends here and is HTTP, it ends here
//! and what is in it goes to the backend of a TLSRoute, or it is passed to one unread.

use crate::Shared;
use crate::clients::Hello;
use crate::edge;
use ingress_core::listener::TlsMode;
use ingress_core::route::host::normal_name;
use ingress_core::{CertifiedKey, ClientValidation, Route};
use pingora_core::protocols::GetSocketDigest;
use pingora_core::protocols::l4::stream::Stream as L4Stream;
use std::sync::Arc;

/// What is done with a connection before its handshake.
pub enum Choice {
    /// It ends here, and what is in it is HTTP.
    Terminate(Hello),
    /// It ends here, and what is in it goes on.
    TerminateTcp(Taken, Shown),
    /// It is passed on unread.
    Pass(Taken),
    /// Nobody takes it.
    Close,
}

/// Who takes a connection that is not HTTP here.
pub struct Taken {
    /// The route that says where it goes.
    pub route: Arc<Route>,
    /// The server name that was asked for, in lower case and without a trailing dot.
    pub name: String,
}

/// What both sides show of themselves in a handshake.
pub struct Shown {
    /// Our certificate.
    pub certificate: Arc<CertifiedKey>,
    /// What the client must show; `None`: nothing.
    pub clients: Option<Arc<ClientValidation>>,
}

/// Decides by the client's hello; whatever is published later changes nothing for the connection.
pub fn choose(shared: &Shared, stream: &L4Stream, records: &[u8]) -> Choice {
    let snapshot = shared.reader.peek();
    let name = server_name(records);
    if snapshot.listeners.is_empty() {
        return Choice::Terminate(Hello { name, ..Hello::default() });
    }
    let local = stream.get_socket_digest().and_then(|digest| edge::local(&digest, &shared.ports));
    let ended = |name, clients| Choice::Terminate(Hello { name, local, clients });
    let Some(listener) = local.and_then(|local| snapshot.listeners.at(local)) else {
        return ended(name, None);
    };
    if listener.names.is_empty() {
        return ended(name, None);
    }
    let asked = |name: Option<String>| {
        let clients = listener.asks_clients.then(|| listener.routes.clients(name.as_deref())).flatten();
        ended(name, clients.cloned())
    };
    let Some(name) = name else { return asked(None) };
    match listener.mode(&name) {
        TlsMode::Terminate => asked(Some(name)),
        TlsMode::Passthrough(Some(route)) => Choice::Pass(Taken { route: route.clone(), name }),
        TlsMode::TerminateTcp { route: Some(route), clients } => match listener.certs.find(Some(&name)) {
            Some(certificate) => {
                let shown = Shown { certificate: certificate.clone(), clients: clients.clone() };
                Choice::TerminateTcp(Taken { route: route.clone(), name }, shown)
            }
            None => Choice::Close,
        },
        TlsMode::Passthrough(None) | TlsMode::TerminateTcp { route: None, .. } => Choice::Close,
    }
}

/// The server name of a hello in TLS records, in lower case and without a trailing dot (RFC 8446
/// section 4.1.2, RFC 6066 section 3).
pub fn server_name(records: &[u8]) -> Option<String> {
    let mut message = Vec::with_capacity(records.len());
    let mut rest = Reader(records);
    while !rest.0.is_empty() {
        rest.skip(3)?;
        message.extend_from_slice(rest.block::<2>()?);
    }
    let mut hello = Reader(&message);
    if hello.take(1)? != [1] {
        return None;
    }
    let mut hello = Reader(hello.block::<3>()?);
    hello.skip(2 + 32)?; // version, random
    hello.block::<1>()?; // session
    hello.block::<2>()?; // cipher suites
    hello.block::<1>()?; // compression
    let mut extensions = Reader(hello.block::<2>()?);
    while !extensions.0.is_empty() {
        let kind = extensions.take(2)?;
        let body = extensions.block::<2>()?;
        if kind != [0, 0] {
            continue;
        }
        let mut names = Reader(Reader(body).block::<2>()?);
        while !names.0.is_empty() {
            let kind = names.take(1)?;
            let name = names.block::<2>()?;
            if kind == [0] {
                let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty())?;
                return Some(normal_name(name));
            }
        }
    }
    None
}

/// Reads what has its length in front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    fn skip(&mut self, n: usize) -> Option<()> {
        self.take(n).map(|_| ())
    }

    /// A block behind a length of `N` octets.
    fn block<const N: usize>(&mut self) -> Option<&'a [u8]> {
        let length = self.take(N)?.iter().fold(0, |n, b| n << 8 | usize::from(*b));
        self.take(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openssl::ssl::{Ssl, SslContext, SslMethod, SslStream};
    use std::io::{self, Read, Write};

    /// Keeps what is written to it.
    #[derive(Debug, Default)]
    struct Sink(Vec<u8>);

    impl Read for Sink {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }
    }

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn hello(name: Option<&str>) -> Vec<u8> {
        let context = SslContext::builder(SslMethod::tls_client()).unwrap().build();
        let mut ssl = Ssl::new(&context).unwrap();
        if let Some(name) = name {
            ssl.set_hostname(name).unwrap();
        }
        let mut stream = SslStream::new(ssl, Sink::default()).unwrap();
        let _ = stream.connect();
        stream.get_ref().0.clone()
    }

    #[test]
    fn the_server_name_is_read_from_a_clients_hello() {
        assert_eq!(server_name(&hello(Some("A.Example.com"))).as_deref(), Some("a.example.com"));
        assert_eq!(server_name(&hello(Some("a.example.com."))).as_deref(), Some("a.example.com"));
        assert_eq!(server_name(&hello(None)), None);
    }

    #[test]
    fn a_hello_in_several_records_is_one() {
        let whole = hello(Some("a.example.com"));
        let mut split = Vec::new();
        for piece in whole[5..].chunks(40) {
            split.extend_from_slice(&whole[..3]);
            split.extend_from_slice(&(piece.len() as u16).to_be_bytes());
            split.extend_from_slice(piece);
        }
        assert_eq!(server_name(&split).as_deref(), Some("a.example.com"));
    }

    #[test]
    fn a_broken_hello_names_nobody() {
        let whole = hello(Some("a.example.com"));
        for end in 0..whole.len() {
            let _ = server_name(&whole[..end]);
            assert_eq!(server_name(&whole[..end]).filter(|name| name != "a.example.com"), None);
        }
        let mut random = 7u64;
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (random >> 33) as usize % bytes.len();
            bytes[at] = (random >> 20) as u8;
            let _ = server_name(&bytes);
        }
    }
}
