//! The connection to the backend.

use super::{Annotation, BOOLEAN, Reader, Since, boolean};
use ingress_core::BackendProtocol;

/// The annotations of this feature.
pub(super) const TABLE: [Annotation; 3] = [PROTOCOL, VERIFY, KEEPALIVE];

const PROTOCOL: Annotation = Annotation {
    key: "ingress.tak-os.org/backend-protocol",
    accepts: "\"http\", \"https\", \"h2c\", \"grpc\" or \"grpcs\"",
    default: "http",
    meaning: "what is spoken to the Service port",
    since: Since::Version("0.1"),
};
const VERIFY: Annotation = Annotation {
    key: "ingress.tak-os.org/proxy-ssl-verify",
    accepts: BOOLEAN,
    default: "true",
    meaning: "the backend's certificate and name are verified",
    since: Since::Version("0.1"),
};
const KEEPALIVE: Annotation = Annotation {
    key: "ingress.tak-os.org/backend-keepalive",
    accepts: BOOLEAN,
    default: "true",
    meaning: "backend connections are used again; false: a fresh one for each ordinary request",
    since: Since::Version("0.1"),
};

/// How backends are spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Connection {
    pub protocol: BackendProtocol,
    pub verify: bool,
    pub keepalive: bool,
}

impl Default for Connection {
    fn default() -> Self {
        Self { protocol: BackendProtocol::Http, verify: true, keepalive: true }
    }
}

pub(super) fn read(reader: &mut Reader<'_>) -> Connection {
    Connection {
        protocol: protocol(reader),
        verify: reader.parse(&VERIFY, true, boolean),
        keepalive: reader.parse(&KEEPALIVE, true, boolean),
    }
}

fn protocol(reader: &mut Reader<'_>) -> BackendProtocol {
    let value = reader.get(PROTOCOL.key).unwrap_or("http");
    match value.to_ascii_lowercase().as_str() {
        "http" => BackendProtocol::Http,
        "https" => BackendProtocol::Https,
        "h2c" => BackendProtocol::H2c,
        "grpc" => BackendProtocol::Grpc,
        "grpcs" => BackendProtocol::Grpcs,
        _ => {
            reader.invalid(&PROTOCOL, value);
            BackendProtocol::Http
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{read_all, read_one};
    use super::*;
    use crate::finding::Reason;

    #[test]
    fn protocols_are_read_in_any_case() {
        use BackendProtocol::{Grpc, Grpcs, H2c, Http, Https};
        for (value, protocol, reason) in [
            ("http", Http, None),
            ("HTTP", Http, None),
            ("https", Https, None),
            ("HTTPS", Https, None),
            ("h2c", H2c, None),
            ("H2C", H2c, None),
            ("GRPC", Grpc, None),
            ("grpcs", Grpcs, None),
            ("htps", Http, Some(Reason::InvalidAnnotation)),
            ("h2", Http, Some(Reason::InvalidAnnotation)),
            ("", Http, Some(Reason::InvalidAnnotation)),
            ("AUTO_HTTP", Http, Some(Reason::InvalidAnnotation)),
        ] {
            let (wanted, found) = read_one("backend-protocol", value);
            assert_eq!(wanted.connection.protocol, protocol, "{value}");
            assert_eq!(found.first().map(|f| f.reason), reason, "{value}");
        }
    }

    #[test]
    fn verification_stays_on_unless_it_is_plainly_turned_off() {
        for (value, verify, findings) in [
            ("true", true, 0),
            ("false", false, 0),
            ("False", false, 0),
            ("off", true, 1),
            ("flase", true, 1),
            ("", true, 1),
        ] {
            let (wanted, found) = read_one("proxy-ssl-verify", value);
            assert_eq!((wanted.connection.verify, found.len()), (verify, findings), "{value}");
        }
    }

    #[test]
    fn switches_do_not_touch_each_other() {
        let (wanted, found) = read_all(&[
            ("ingress.tak-os.org/backend-keepalive", "false"),
            ("ingress.tak-os.org/proxy-ssl-verify", "x"),
        ]);
        let wanted = wanted.connection;
        assert!(!wanted.keepalive && wanted.verify && wanted.protocol == BackendProtocol::Http);
        assert_eq!(found.len(), 1);
        assert!(read_one("backend-keepalive", "nope").0.connection.keepalive);
    }
}
