//! Entrances for the fuzz targets (`fuzz/`): the readers of what clients send, with nothing around
//! them. No part of what the proxy offers.

use crate::framing::{Body, Chunks, RequestLine};
use crate::strict::{Facts, check_target};
use http::{HeaderMap, Method};
use ingress_core::CertifiedKey;

/// Whether a request line that arrives in these pieces is refused.
pub fn request_line_refused<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> bool {
    let mut line = RequestLine::default();
    pieces.for_each(|piece| line.take(piece));
    line.bad()
}

/// Whether a request with this target passes.
pub fn target_passes(method: &Method, target: &[u8]) -> bool {
    check_target(method, target).is_ok()
}

/// What is read of a head's fields: body length and whether the body is chunked; `None` where the
/// request is refused.
pub fn head(fields: &HeaderMap, raw: &[u8]) -> Option<(u64, bool)> {
    let facts = Facts::read(fields).ok()?;
    facts.check_http1(raw).ok()?;
    Some((facts.length, facts.chunked))
}

/// What stands behind a chunked body that arrives in these pieces; `None` where the body is broken.
pub fn behind_chunks<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Option<Vec<u8>> {
    let mut body = Body::Chunked(Chunks::default());
    let mut behind = Vec::new();
    for piece in pieces {
        behind.extend_from_slice(body.take(piece).ok()?);
    }
    Some(behind)
}

/// Whether the data plane can serve a certificate that the control plane accepted.
pub fn serves(certified: &CertifiedKey) -> bool {
    crate::tls::serves(certified)
}
