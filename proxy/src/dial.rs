//! Addresses the proxy never connects to, whatever a Service or a provider URL resolves to.
//!
//! The check is made on the address that is about to be dialled, after every look-up: a name that was
//! harmless a minute ago may answer `127.0.0.1` now.

use ingress_core::ranges::{InvalidRange, canonical, range};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// What [`DialGuard::default_deny`] refuses besides our own addresses.
const DEFAULT_DENY: [IpNet; 9] = [
    v4([127, 0, 0, 0], 8),
    v4([0, 0, 0, 0], 8),
    v4([169, 254, 0, 0], 16),
    v4([224, 0, 0, 0], 4),
    v4([255, 255, 255, 255], 32),
    v6([0, 0, 0, 0, 0, 0, 0, 1], 128),
    v6([0, 0, 0, 0, 0, 0, 0, 0], 128),
    v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10),
    v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8),
];

const fn v4(octets: [u8; 4], prefix: u8) -> IpNet {
    let [a, b, c, d] = octets;
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix))
}

const fn v6(segments: [u16; 8], prefix: u8) -> IpNet {
    let [a, b, c, d, e, f, g, h] = segments;
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, g, h), prefix))
}

/// The ranges that are refused. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DialGuard {
    denied: Arc<[IpNet]>,
}

/// An address that must not be dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The address as it was given.
    pub ip: IpAddr,
    /// The range it lies in, possibly through an IPv4 address it carries.
    pub net: IpNet,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "address {} is in the denied range {}", self.ip, self.net)
    }
}

impl std::error::Error for Denied {}

impl DialGuard {
    /// Refuses loopback, link-local, unspecified, multicast, broadcast and the addresses in `own`.
    pub fn default_deny(own: Vec<IpAddr>) -> Self {
        Self::from_cidrs(DEFAULT_DENY.into_iter().chain(own.into_iter().map(IpNet::from)))
    }

    /// Refuses nothing.
    pub fn none() -> Self {
        Self::from_cidrs([])
    }

    /// Refuses these ranges and nothing else.
    pub fn from_cidrs(nets: impl IntoIterator<Item = IpNet>) -> Self {
        Self { denied: nets.into_iter().map(canonical).collect() }
    }

    /// Whether `ip` may be dialled.
    ///
    /// An IPv6 address that carries an IPv4 one is judged by both: a mapped address reaches the IPv4 host
    /// directly, a NAT64 or 6to4 address through a gateway.
    pub fn check(&self, ip: IpAddr) -> Result<(), Denied> {
        if self.denied.is_empty() {
            return Ok(());
        }
        let plain = ip.to_canonical();
        let carried = match plain {
            IpAddr::V6(v6) => carried(v6).map(IpAddr::V4),
            IpAddr::V4(_) => None,
        };
        for net in &*self.denied {
            if net.contains(&plain) || carried.is_some_and(|v4| net.contains(&v4)) {
                return Err(Denied { ip, net: *net });
            }
        }
        Ok(())
    }
}

/// The IPv4 address inside an IPv6 address that is translated or tunnelled to it; mapped addresses are
/// IPv4 by now.
fn carried(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let o = ip.octets();
    match ip.segments() {
        // IPv4-compatible (RFC 4291, deprecated), well-known NAT64 (RFC 6052), local-use NAT64 (RFC 8215).
        [0, 0, 0, 0, 0, 0, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] | [0x64, 0xff9b, 1, ..] => {
            Some(Ipv4Addr::new(o[12], o[13], o[14], o[15]))
        }
        // 6to4 (RFC 3056).
        [0x2002, ..] => Some(Ipv4Addr::new(o[2], o[3], o[4], o[5])),
        _ => None,
    }
}

/// Reads the value of `--deny-backend-cidrs`: `None` = the default ranges, an empty list = `none`, else
/// the ranges given. A bare address stands for itself alone.
pub fn parse(value: &str) -> Result<Option<Vec<IpNet>>, InvalidRange> {
    match value.trim() {
        "" => Ok(None),
        "none" => Ok(Some(Vec::new())),
        list => list.split(',').map(range).collect::<Result<_, _>>().map(Some),
    }
}

/// The addresses of this host's (in Kubernetes: this Pod's) network interfaces.
///
/// Interfaces that are down are left out. With the host's network and kube-proxy in IPVS mode, every
/// ClusterIP is an address of the dummy `kube-ipvs0`, which is never up; taking those for ours would
/// refuse every Service. `kube-ipvs0` and `nodelocaldns` are also skipped by name.
pub fn own_addresses() -> std::io::Result<Vec<IpAddr>> {
    let mut head = std::ptr::null_mut();
    // SAFETY: `head` is a valid place for the list's address.
    if unsafe { libc::getifaddrs(&mut head) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = head;
    // SAFETY: getifaddrs succeeded, so the pointers are those of a well-formed list that lives until
    // freeifaddrs; an address, where there is one, is as long as its family says.
    unsafe {
        while let Some(interface) = next.as_ref() {
            next = interface.ifa_next;
            let up = interface.ifa_flags & libc::IFF_UP as libc::c_uint != 0;
            let name = std::ffi::CStr::from_ptr(interface.ifa_name).to_bytes();
            if interface.ifa_addr.is_null() || !up || matches!(name, b"kube-ipvs0" | b"nodelocaldns") {
                continue;
            }
            let ip = match i32::from((*interface.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let address = interface.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                    IpAddr::from(address.sin_addr.s_addr.to_ne_bytes())
                }
                libc::AF_INET6 => {
                    let address = interface.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                    IpAddr::from(address.sin6_addr.s6_addr)
                }
                _ => continue,
            };
            if !found.contains(&ip) {
                found.push(ip);
            }
        }
        libc::freeifaddrs(head);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn range(guard: &DialGuard, text: &str) -> Option<String> {
        guard.check(ip(text)).err().map(|denied| denied.net.to_string())
    }

    #[test]
    fn default_ranges() {
        let guard = DialGuard::default_deny(vec![ip("10.1.2.3"), ip("fd00::7"), ip("::ffff:10.1.2.4")]);
        for (address, net) in [
            ("127.0.0.1", "127.0.0.0/8"),
            ("127.255.255.254", "127.0.0.0/8"),
            ("0.0.0.0", "0.0.0.0/8"),
            ("0.1.2.3", "0.0.0.0/8"),
            ("169.254.169.254", "169.254.0.0/16"),
            ("224.0.0.1", "224.0.0.0/4"),
            ("239.255.255.255", "224.0.0.0/4"),
            ("255.255.255.255", "255.255.255.255/32"),
            ("fe80::1", "fe80::/10"),
            ("febf::1", "fe80::/10"),
            ("ff02::1", "ff00::/8"),
            ("10.1.2.3", "10.1.2.3/32"),
            ("10.1.2.4", "10.1.2.4/32"),
            ("fd00::7", "fd00::7/128"),
            // Mapped.
            ("::ffff:127.0.0.1", "127.0.0.0/8"),
            ("::ffff:169.254.169.254", "169.254.0.0/16"),
            ("::ffff:10.1.2.3", "10.1.2.3/32"),
            ("::ffff:0.0.0.0", "0.0.0.0/8"),
            // NAT64, well-known and local-use.
            ("64:ff9b::127.0.0.1", "127.0.0.0/8"),
            ("64:ff9b::a9fe:a9fe", "169.254.0.0/16"),
            ("64:ff9b:1::127.0.0.1", "127.0.0.0/8"),
            // 6to4.
            ("2002:7f00:1::", "127.0.0.0/8"),
            ("2002:a9fe:a9fe::1", "169.254.0.0/16"),
            ("2002:a01:203::1", "10.1.2.3/32"),
            // IPv4-compatible.
            ("::127.0.0.1", "127.0.0.0/8"),
            ("::10.1.2.3", "10.1.2.3/32"),
        ] {
            assert_eq!(range(&guard, address).as_deref(), Some(net), "{address}");
        }
        // Both lie in ::/96 as well, whose carried addresses are 0.0.0.0/8.
        for address in ["::", "::1"] {
            assert!(guard.check(ip(address)).is_err(), "{address}");
        }
        for address in [
            "10.1.2.5",
            "10.96.0.1",
            "128.0.0.1",
            "126.255.255.255",
            "1.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "223.255.255.255",
            "255.255.255.254",
            "192.168.0.1",
            "fd00::8",
            "fec0::1",
            "2001:db8::1",
            "::ffff:10.96.0.1",
            "64:ff9b::10.96.0.1",
            "64:ff9c::127.0.0.1",
            "2002:a60:1::1",
            "2003:7f00:1::",
        ] {
            assert_eq!(range(&guard, address), None, "{address}");
        }
    }

    #[test]
    fn loopback_and_unspecified_without_carried_form() {
        for net in ["::1/128", "::/128"] {
            let guard = DialGuard::from_cidrs([net.parse().unwrap()]);
            assert_eq!(range(&guard, net.split('/').next().unwrap()).as_deref(), Some(net));
            assert_eq!(range(&guard, "::2"), None);
        }
    }

    #[test]
    fn lifted_and_own_ranges() {
        for address in ["127.0.0.1", "::1", "169.254.169.254", "::ffff:127.0.0.1"] {
            assert_eq!(DialGuard::none().check(ip(address)), Ok(()));
        }
        let guard = DialGuard::from_cidrs(
            parse("10.9.0.0/8, 2001:db8::/32,::ffff:192.168.7.0/120").unwrap().unwrap(),
        );
        for (address, net) in [
            ("10.1.1.1", Some("10.0.0.0/8")),
            ("64:ff9b::10.1.1.1", Some("10.0.0.0/8")),
            ("2001:db8::1", Some("2001:db8::/32")),
            ("192.168.7.9", Some("192.168.7.0/24")),
            ("::ffff:192.168.7.9", Some("192.168.7.0/24")),
            ("192.168.8.9", None),
            ("127.0.0.1", None),
        ] {
            assert_eq!(range(&guard, address).as_deref(), net, "{address}");
        }
    }

    #[test]
    fn flag_values() {
        assert_eq!(parse(""), Ok(None));
        assert_eq!(parse("  "), Ok(None));
        assert_eq!(parse("none"), Ok(Some(vec![])));
        assert_eq!(
            parse("10.0.0.0/8,192.168.1.1 , fe80::/10,::1"),
            Ok(Some(vec![
                "10.0.0.0/8".parse().unwrap(),
                "192.168.1.1/32".parse().unwrap(),
                "fe80::/10".parse().unwrap(),
                "::1/128".parse().unwrap(),
            ]))
        );
        for (value, entry) in [
            ("10.0.0.0/33", "10.0.0.0/33"),
            ("10.0.0.0/8,", ""),
            (",", ""),
            ("10.0.0.0/8,none", "none"),
            ("all", "all"),
            ("localhost", "localhost"),
            ("10.0.0/8", "10.0.0/8"),
            ("010.0.0.1", "010.0.0.1"),
        ] {
            assert_eq!(parse(value), Err(InvalidRange { entry: entry.into() }), "{value}");
        }
        assert_eq!(parse("x").unwrap_err().to_string(), "`x` is neither an address nor a CIDR range");
    }

    #[test]
    fn says_which_range() {
        let denied = DialGuard::default_deny(vec![]).check(ip("64:ff9b::127.0.0.1")).unwrap_err();
        assert_eq!(denied.to_string(), "address 64:ff9b::7f00:1 is in the denied range 127.0.0.0/8");
    }

    #[test]
    fn finds_own_addresses() {
        let own = own_addresses().unwrap();
        assert!(own.contains(&ip("127.0.0.1")), "{own:?}");
        let distinct: std::collections::HashSet<_> = own.iter().collect();
        assert_eq!(distinct.len(), own.len());
    }
}
