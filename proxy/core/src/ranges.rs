//! Sets of address ranges: read from text, asked about single addresses.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A set of address ranges, each address in at most one of them: equal sets are equal values, and a
/// question takes a binary search, however long the list was.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Ranges {
    v4: Box<[Ipv4Net]>,
    v6: Box<[Ipv6Net]>,
}

/// A part of a list that is neither an address nor a range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{entry}` is neither an address nor a CIDR range")]
pub struct InvalidRange {
    /// The part of the list at fault.
    pub entry: String,
}

impl Ranges {
    /// Whether an address lies in one of the ranges. An IPv4-mapped address is the IPv4 address in it.
    pub fn contains(&self, ip: IpAddr) -> bool {
        // The ranges are sorted and do not overlap: only the last that begins at or before the address
        // can hold it.
        match ip.to_canonical() {
            IpAddr::V4(ip) => {
                let behind = self.v4.partition_point(|net| net.network() <= ip);
                behind.checked_sub(1).and_then(|i| self.v4.get(i)).is_some_and(|net| net.contains(&ip))
            }
            IpAddr::V6(ip) => {
                let behind = self.v6.partition_point(|net| net.network() <= ip);
                behind.checked_sub(1).and_then(|i| self.v6.get(i)).is_some_and(|net| net.contains(&ip))
            }
        }
    }

    /// Whether no address lies in it.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }
}

impl FromIterator<IpNet> for Ranges {
    fn from_iter<I: IntoIterator<Item = IpNet>>(nets: I) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for net in nets {
            match canonical(net) {
                IpNet::V4(net) => v4.push(net),
                IpNet::V6(net) => v6.push(net),
            }
        }
        let (mut v4, mut v6) = (Ipv4Net::aggregate(&v4), Ipv6Net::aggregate(&v6));
        v4.sort_unstable();
        v6.sort_unstable();
        Self { v4: v4.into(), v6: v6.into() }
    }
}

impl FromStr for Ranges {
    type Err = InvalidRange;

    /// Addresses and CIDR ranges, separated by commas; at least one.
    fn from_str(list: &str) -> Result<Self, InvalidRange> {
        list.split(',').map(range).collect()
    }
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.v4.iter().copied().map(IpNet::V4).chain(self.v6.iter().copied().map(IpNet::V6));
        for (i, net) in all.enumerate() {
            write!(f, "{}{net}", if i > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// One range as text; a bare address stands for itself alone.
pub fn range(text: &str) -> Result<IpNet, InvalidRange> {
    let text = text.trim();
    text.parse::<IpNet>()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map(canonical)
        .map_err(|_| InvalidRange { entry: text.to_owned() })
}

/// A range of mapped addresses is one of IPv4 addresses: that is what addresses are compared as.
pub fn canonical(net: IpNet) -> IpNet {
    if let IpNet::V6(v6) = net
        && let Some(prefix) = v6.prefix_len().checked_sub(96)
        && let Some(v4) = v6.addr().to_ipv4_mapped()
        && let Ok(v4) = Ipv4Net::new(v4, prefix)
    {
        return IpNet::V4(v4.trunc());
    }
    net.trunc()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(list: &str) -> Ranges {
        list.parse().unwrap()
    }

    #[test]
    fn an_address_is_in_the_ranges_that_hold_it_in_either_form() {
        let set = ranges("10.0.0.0/8, 192.0.2.7,2001:db8::/32 , ::ffff:198.51.100.0/120");
        for (ip, inside) in [
            ("10.0.0.0", true),
            ("10.255.255.255", true),
            ("9.255.255.255", false),
            ("11.0.0.0", false),
            ("::ffff:10.1.2.3", true),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("192.0.2.6", false),
            ("198.51.100.9", true),
            ("198.51.101.9", false),
            ("2001:db8::1", true),
            ("2001:db9::1", false),
            ("::a01:203", false),
            ("0.0.0.0", false),
            ("255.255.255.255", false),
            ("::", false),
        ] {
            assert_eq!(set.contains(ip.parse().unwrap()), inside, "{ip}");
        }
        // A family that is not named is not meant.
        assert!(!ranges("::/0").contains("10.0.0.1".parse().unwrap()));
        assert!(!ranges("0.0.0.0/0").contains("2001:db8::1".parse().unwrap()));
        assert!(!Ranges::default().contains("10.0.0.1".parse().unwrap()) && Ranges::default().is_empty());
    }

    #[test]
    fn equal_sets_are_equal_values() {
        assert_eq!(ranges("10.0.0.0/9,10.128.0.0/9,10.1.2.3"), ranges("10.9.9.9/8"));
        assert_eq!(
            ranges("2001:db8::/33,10.0.0.1/32,2001:db8:8000::/33").to_string(),
            "10.0.0.1/32,2001:db8::/32"
        );
    }

    #[test]
    fn one_bad_entry_spoils_the_list() {
        for bad in [
            "",
            " ",
            "10.0.0.0/33",
            "10.0.0",
            "10.0.0.0/8,",
            "10.0.0.0/8 10.1.0.0/16",
            "app.example.com",
            "fe80::1%eth0",
            "10.0.0.0/-1",
        ] {
            assert!(bad.parse::<Ranges>().is_err(), "{bad:?}");
        }
        assert_eq!("10.0.0.1, x".parse::<Ranges>().unwrap_err().entry, "x");
    }

    #[test]
    fn membership_equals_a_naive_scan() {
        let mut seed = 11u64;
        let mut next = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for _ in 0..300 {
            let nets: Vec<IpNet> = (0..next(12))
                .map(|_| {
                    let ip = IpAddr::from([10, next(2) as u8, next(3) as u8, next(256) as u8]);
                    IpNet::new(ip, 8 + next(25) as u8).unwrap()
                })
                .collect();
            let set: Ranges = nets.iter().copied().collect();
            for _ in 0..50 {
                let ip = IpAddr::from([9 + next(3) as u8, next(3) as u8, next(4) as u8, next(256) as u8]);
                assert_eq!(set.contains(ip), nets.iter().any(|net| net.contains(&ip)), "{ip} {nets:?}");
            }
        }
    }
}
