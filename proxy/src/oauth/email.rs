//! The one reading of an e-mail address.

/// Longest address that is read (RFC 5321 section 4.5.3.1.3).
const MAX: usize = 254;

/// Local part and domain of an address, or `None` if it is anything but one `local@domain` in plain
/// characters. Quoted local parts, comments and literals are nothing a rule could be about.
pub fn parse(address: &str) -> Option<(&str, &str)> {
    let (local, domain) = address.split_once('@')?;
    let atom = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~.".contains(&b);
    let local_fits = !local.is_empty() && local.bytes().all(atom);
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    (address.len() <= MAX && local_fits && domain.split('.').all(label)).then_some((local, domain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_sign_and_plain_characters() {
        assert_eq!(parse("alice@example.com"), Some(("alice", "example.com")));
        assert_eq!(parse("a.b+c@Sub.Example.COM"), Some(("a.b+c", "Sub.Example.COM")));
        assert_eq!(parse("root@localhost"), Some(("root", "localhost")));
        let long = format!("{}@example.com", "x".repeat(250));
        for bad in [
            "",
            "@",
            "alice",
            "alice@",
            "@example.com",
            "x@evil.example@example.com",
            "\"x@evil.example\"@example.com",
            "x@example.com\r\nX-Admin: 1",
            "x @example.com",
            "x@example.com ",
            "x@.example.com",
            "x@example..com",
            "x@example.com.",
            "x@-example.com",
            "x@[192.0.2.1]",
            "x@ex\u{e4}mple.com",
            "x,y@example.com",
            "<x@example.com>",
            "x\0@example.com",
            &long,
        ] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}
