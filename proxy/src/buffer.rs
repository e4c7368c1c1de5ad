//! Response buffering: a small response is read whole from the backend, whatever the client's
//! speed, within a process-wide budget of bytes.

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderName, Method, StatusCode};
use pingora_http::ResponseHeader;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Bytes that all responses together may hold.
#[derive(Debug)]
pub struct Budget {
    used: AtomicUsize,
    limit: usize,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), limit })
    }

    fn reserve(self: &Arc<Self>, bytes: usize) -> Option<Reserved> {
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|sum| *sum <= self.limit)
            })
            .ok()
            .map(|_| Reserved { budget: self.clone(), bytes })
    }
}

struct Reserved {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// One response being held.
pub struct Held {
    body: BytesMut,
    length: usize,
    _reserved: Option<Reserved>,
}

impl Held {
    /// Whether a response is to be held: only one that says its length, and that is no stream.
    /// `threshold`: `None` = whatever its size, and beyond any budget.
    pub fn wanted(
        method: &Method,
        response: &ResponseHeader,
        threshold: Option<usize>,
        budget: &Arc<Budget>,
    ) -> Option<Self> {
        if threshold == Some(0) || *method == Method::HEAD || response.status == StatusCode::SWITCHING_PROTOCOLS {
            return None;
        }
        let length: usize = response.headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()?;
        if length == 0 || threshold.is_some_and(|max| length > max) {
            return None;
        }
        let streams = response.headers.get(CONTENT_TYPE).is_some_and(|kind| {
            let kind = kind.as_bytes();
            kind.starts_with(b"text/event-stream") || kind.starts_with(b"application/grpc")
        });
        let asked_not_to = response.headers.get(X_ACCEL_BUFFERING).is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"no"));
        if streams || asked_not_to {
            return None;
        }
        let reserved = match threshold {
            Some(_) => Some(budget.reserve(length)?),
            None => None,
        };
        Some(Self { body: BytesMut::new(), length, _reserved: reserved })
    }

    /// Takes a chunk in; gives the whole body back once it is there. The length decides, since the
    /// end of the stream may come in a task of its own.
    pub fn take(&mut self, chunk: Bytes, end: bool) -> Option<Bytes> {
        if self.body.is_empty() && (chunk.len() >= self.length || end) {
            return Some(chunk); // all in one piece: nothing to copy
        }
        if self.body.is_empty() {
            self.body.reserve(self.length);
        }
        self.body.extend_from_slice(&chunk);
        (self.body.len() >= self.length || end).then(|| self.body.split().freeze())
    }

    /// What was held of a response that ends before its length.
    pub fn rest(&mut self) -> Option<Bytes> {
        (!self.body.is_empty()).then(|| self.body.split().freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(fields: &[(&'static str, &str)]) -> ResponseHeader {
        let mut response = ResponseHeader::build(200, None).unwrap();
        for (name, value) in fields {
            response.insert_header(*name, *value).unwrap();
        }
        response
    }

    #[test]
    fn only_responses_of_known_length_within_threshold_and_budget_are_held() {
        let budget = Budget::new(100);
        let held = |method, fields: &[_], threshold| Held::wanted(&method, &response(fields), threshold, &budget);
        assert!(held(Method::GET, &[("content-length", "60")], Some(64)).is_some());
        assert!(held(Method::GET, &[("content-length", "65")], Some(64)).is_none());
        assert!(held(Method::GET, &[("content-length", "6500")], None).is_some(), "unlimited");
        assert!(held(Method::GET, &[("content-length", "6")], Some(0)).is_none(), "never");
        assert!(held(Method::HEAD, &[("content-length", "6")], Some(64)).is_none());
        assert!(held(Method::GET, &[], Some(64)).is_none());
        assert!(held(Method::GET, &[("content-length", "6"), ("content-type", "text/event-stream")], Some(64)).is_none());
        assert!(held(Method::GET, &[("content-length", "6"), ("content-type", "application/grpc+proto")], Some(64)).is_none());
        assert!(held(Method::GET, &[("content-length", "6"), ("x-accel-buffering", "no")], Some(64)).is_none());
        let first = held(Method::GET, &[("content-length", "60")], Some(64));
        assert!(held(Method::GET, &[("content-length", "60")], Some(64)).is_none(), "budget used up");
        drop(first);
        assert!(held(Method::GET, &[("content-length", "60")], Some(64)).is_some(), "given back");
    }

    #[test]
    fn the_body_comes_out_whole() {
        let budget = Budget::new(100);
        let mut held = Held::wanted(&Method::GET, &response(&[("content-length", "6")]), Some(64), &budget).unwrap();
        assert_eq!(held.take(Bytes::from_static(b"ab"), false), None);
        assert_eq!(held.take(Bytes::from_static(b"cd"), false), None);
        assert_eq!(held.take(Bytes::from_static(b"ef"), false).unwrap(), "abcdef");
        let mut held = Held::wanted(&Method::GET, &response(&[("content-length", "6")]), Some(64), &budget).unwrap();
        assert_eq!(held.take(Bytes::from_static(b"abcdef"), false).unwrap(), "abcdef");
        let mut held = Held::wanted(&Method::GET, &response(&[("content-length", "6")]), Some(64), &budget).unwrap();
        assert_eq!(held.take(Bytes::from_static(b"ab"), false), None);
        assert_eq!(held.rest().unwrap(), "ab");
    }
}
