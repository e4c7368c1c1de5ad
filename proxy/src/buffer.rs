//! Response buffering: a small response is read whole from the backend, whatever the client's
//! speed, within a process-wide budget of bytes.

use crate::headers::Reply;
use bytes::{Bytes, BytesMut};
use http::{Method, StatusCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// A part of the budget, given back when dropped.
pub struct Reserved {
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
    reserved: Option<Reserved>,
}

impl Held {
    /// Whether a response is to be held: only one that says its length, and that is no stream.
    /// `threshold`: `None` = whatever its size, and beyond any budget.
    pub fn wanted(
        method: &Method,
        status: StatusCode,
        reply: &Reply,
        threshold: Option<usize>,
        budget: &Arc<Budget>,
    ) -> Option<Self> {
        let length = reply.length.filter(|n| *n > 0)?;
        let too_long = threshold.is_some_and(|max| length > max);
        // The length of these is that of a body that is not sent.
        let bodiless = *method == Method::HEAD
            || matches!(status, StatusCode::SWITCHING_PROTOCOLS | StatusCode::NOT_MODIFIED);
        if too_long || reply.streams || bodiless {
            return None;
        }
        let reserved = match threshold {
            Some(_) => Some(budget.reserve(length)?),
            None => None,
        };
        Some(Self { body: BytesMut::new(), length, reserved })
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

    /// Whether so many bytes are all of it.
    pub fn is_whole(&self, bytes: usize) -> bool {
        bytes == self.length
    }

    /// Its part of the budget, which it needs until the client has the body.
    pub fn end(self) -> Option<Reserved> {
        self.reserved
    }

    /// What was held of a response that ends before its length.
    pub fn rest(&mut self) -> Option<Bytes> {
        (!self.body.is_empty()).then(|| self.body.split().freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::clean_response;
    use pingora_http::ResponseHeader;

    fn reply(fields: &[(&'static str, &str)]) -> Reply {
        let mut response = ResponseHeader::build(200, None).unwrap();
        for (name, value) in fields {
            response.insert_header(*name, *value).unwrap();
        }
        clean_response(&mut response)
    }

    #[test]
    fn only_responses_of_known_length_within_threshold_and_budget_are_held() {
        let budget = Budget::new(100);
        let held = |method, fields: &[_], threshold| {
            Held::wanted(&method, StatusCode::OK, &reply(fields), threshold, &budget)
        };
        assert!(held(Method::GET, &[("content-length", "60")], Some(64)).is_some());
        assert!(held(Method::GET, &[("content-length", "65")], Some(64)).is_none());
        assert!(held(Method::GET, &[("content-length", "6500")], None).is_some(), "unlimited");
        assert!(held(Method::GET, &[("content-length", "6")], Some(0)).is_none(), "never");
        assert!(held(Method::HEAD, &[("content-length", "6")], Some(64)).is_none());
        assert!(held(Method::GET, &[], Some(64)).is_none());
        let unchanged = reply(&[("content-length", "6")]);
        let status = StatusCode::NOT_MODIFIED;
        assert!(Held::wanted(&Method::GET, status, &unchanged, Some(64), &budget).is_none());
        for stream in [
            ("content-type", "text/event-stream"),
            ("content-type", "application/grpc+proto"),
            ("x-accel-buffering", "no"),
        ] {
            assert!(held(Method::GET, &[("content-length", "6"), stream], Some(64)).is_none(), "{stream:?}");
        }
        let first = held(Method::GET, &[("content-length", "60")], Some(64));
        assert!(held(Method::GET, &[("content-length", "60")], Some(64)).is_none(), "budget used up");
        drop(first);
        assert!(held(Method::GET, &[("content-length", "60")], Some(64)).is_some(), "given back");
    }

    fn six(budget: &Arc<Budget>) -> Held {
        Held::wanted(&Method::GET, StatusCode::OK, &reply(&[("content-length", "6")]), Some(64), budget)
            .unwrap()
    }

    #[test]
    fn the_body_comes_out_whole() {
        let budget = Budget::new(100);
        let mut held = six(&budget);
        assert_eq!(held.take(Bytes::from_static(b"ab"), false), None);
        assert_eq!(held.take(Bytes::from_static(b"cd"), false), None);
        assert_eq!(held.take(Bytes::from_static(b"ef"), false).unwrap(), "abcdef");
        let mut held = six(&budget);
        assert_eq!(held.take(Bytes::from_static(b"abcdef"), false).unwrap(), "abcdef");
        let mut held = six(&budget);
        assert_eq!(held.take(Bytes::from_static(b"ab"), false), None);
        assert_eq!(held.rest().unwrap(), "ab");
    }
}
