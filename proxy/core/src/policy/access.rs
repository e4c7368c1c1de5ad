//! Who may reach a route by address.

use crate::Ranges;
use std::net::IpAddr;

/// Who may reach a route by address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum Access {
    /// Everybody.
    #[default]
    Open,
    /// Nobody: an address list is asked for that cannot be read (403).
    Denied,
    /// Those that the lists let in.
    Listed {
        /// Only these; `None` = all.
        allow: Option<Ranges>,
        /// And of them not these.
        deny: Ranges,
    },
}

impl Access {
    /// Whether a client at this address is let in. The denied ranges win over the allowed ones.
    pub fn admits(&self, ip: IpAddr) -> bool {
        match self {
            Access::Open => true,
            Access::Denied => false,
            Access::Listed { allow, deny } => {
                !deny.contains(ip) && allow.as_ref().is_none_or(|allow| allow.contains(ip))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_denied_win_over_the_allowed() {
        let listed = |allow: Option<&str>, deny: Option<&str>| Access::Listed {
            allow: allow.map(|list| list.parse().unwrap()),
            deny: deny.map(|list| list.parse().unwrap()).unwrap_or_default(),
        };
        let (inner, outer) = (Some("10.1.0.0/16"), Some("10.0.0.0/8"));
        for (access, ip, admitted) in [
            (Access::Open, "10.1.2.3", true),
            (Access::Denied, "10.1.2.3", false),
            (listed(outer, None), "10.1.2.3", true),
            (listed(outer, None), "::ffff:10.1.2.3", true),
            (listed(outer, None), "192.0.2.1", false),
            (listed(outer, None), "2001:db8::1", false),
            (listed(None, outer), "10.1.2.3", false),
            (listed(None, outer), "::ffff:10.1.2.3", false),
            (listed(None, outer), "2001:db8::1", true),
            (listed(outer, inner), "10.1.2.3", false),
            (listed(outer, inner), "10.2.2.3", true),
            (listed(inner, outer), "10.1.2.3", false),
        ] {
            assert_eq!(access.admits(ip.parse().unwrap()), admitted, "{access:?} {ip}");
        }
    }
}
