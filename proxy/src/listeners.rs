//! Binds the sockets before anything else is started.

use crate::Config;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::Duration;

/// The data plane's sockets, bound and listening.
#[derive(Debug)]
pub struct Bound {
    /// Plain HTTP.
    pub http: TcpListener,
    /// HTTPS.
    pub https: TcpListener,
    /// Further ports of Gateway listeners, each with its number there.
    pub gateway: Vec<(u16, TcpListener)>,
}

/// Which port of a Gateway's listener each of our sockets stands for.
#[derive(Clone, Debug, Default)]
pub struct Ports(Box<[(u16, u16)]>);

impl Ports {
    /// The listener port of a local one.
    pub fn of(&self, local: u16) -> u16 {
        self.0.iter().find(|(own, _)| *own == local).map_or(local, |(_, port)| *port)
    }
}

/// A socket could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} ({flag}): {source}")]
pub struct BindError {
    /// What was to be bound.
    pub address: SocketAddr,
    /// The flag that says so.
    pub flag: &'static str,
    /// What the system said.
    pub source: io::Error,
}

impl Bound {
    /// Binds both ports of the configuration.
    pub fn new(config: &Config) -> Result<Self, BindError> {
        Ok(Self {
            http: bind(config.bind_address, config.http_port, "--http-port")?,
            https: bind(config.bind_address, config.https_port, "--https-port")?,
            gateway: config
                .gateway_ports
                .iter()
                .map(|port| Ok((*port, bind(config.bind_address, *port, "--gateway-listener-ports")?)))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Which listener port each socket stands for.
    pub fn ports(&self) -> Ports {
        let gateway = self.gateway.iter().map(|(port, socket)| (socket, *port));
        let all = [(&self.http, 80), (&self.https, 443)].into_iter().chain(gateway);
        Ports(all.filter_map(|(socket, port)| Some((socket.local_addr().ok()?.port(), port))).collect())
    }
}

/// Binds one TCP listener. `::` is dual stack, and IPv4 alone where the machine has no IPv6.
pub fn bind(ip: IpAddr, port: u16, flag: &'static str) -> Result<TcpListener, BindError> {
    let address = SocketAddr::new(ip, port);
    match listen(address) {
        Err(e)
            if ip == IpAddr::V6(Ipv6Addr::UNSPECIFIED)
                && matches!(e.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) =>
        {
            listen(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port))
        }
        other => other,
    }
    .map_err(|source| BindError { address, flag, source })
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    // The kernel caps this at net.core.somaxconn.
    socket.listen(65_535)?;
    // Accepted connections have it from here: a client that vanished is noticed even where no limit of
    // ours runs, in a tunnel without timeouts.
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(Duration::from_secs(60))
            .with_interval(Duration::from_secs(10))
            .with_retries(3),
    )?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_port_is_an_error_that_names_flag_and_address() {
        let taken = bind(Ipv4Addr::LOCALHOST.into(), 0, "--http-port").unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = bind(Ipv4Addr::LOCALHOST.into(), port, "--https-port").unwrap_err().to_string();
        assert!(error.contains("--https-port") && error.contains(&port.to_string()), "{error}");
    }

    #[test]
    fn the_unspecified_ipv6_address_serves_ipv4() {
        let both = bind(Ipv6Addr::UNSPECIFIED.into(), 0, "--http-port").unwrap();
        let port = both.local_addr().unwrap().port();
        std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    }
    #[test]
    fn accepted_connections_are_probed() {
        let listener = bind(Ipv4Addr::LOCALHOST.into(), 0, "--http-port").unwrap();
        let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        listener.set_nonblocking(false).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert!(socket2::SockRef::from(&accepted).keepalive().unwrap());
    }
}
