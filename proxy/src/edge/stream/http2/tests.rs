//! What an HTTP/2 connection sends, gathered.

use super::*;
use crate::preface::PREFACE;
use crate::service::tests::shared;
use futures::FutureExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Wake;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::Instant;

/// A connection of HTTP/2 and its client, with room for so many bytes between them.
fn http2(room: usize) -> (EdgeStream, DuplexStream) {
    let (client, server) = tokio::io::duplex(room);
    let mut stream = EdgeStream::new(Box::new(server), shared(Vec::new())).unwrap();
    stream.opening = None;
    let mut frames = Box::<Frames>::default();
    frames.take(PREFACE);
    stream.frames = Some(frames);
    (stream, client)
}

/// One turn of the engine at the connection, in which nothing comes in.
fn turn(stream: &mut EdgeStream) {
    assert!(stream.read(&mut [0; 64]).now_or_never().is_none());
}

fn arrived(client: &mut DuplexStream) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    let n = client.read(&mut bytes).now_or_never().map_or(0, Result::unwrap);
    bytes.truncate(n);
    bytes
}

#[tokio::test]
async fn what_is_written_in_one_turn_goes_out_together_in_the_next() {
    struct Woken(AtomicBool);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let (mut stream, mut client) = http2(1 << 20);
    let woken = Arc::new(Woken(AtomicBool::new(false)));
    let waker = woken.clone().into();
    let mut cx = Context::from_waker(&waker);
    for piece in [&b"one "[..], b"two "] {
        assert!(matches!(Pin::new(&mut stream).poll_write(&mut cx, piece), Poll::Ready(Ok(4))));
        assert!(matches!(Pin::new(&mut stream).poll_flush(&mut cx), Poll::Ready(Ok(()))));
    }
    assert_eq!(arrived(&mut client), b"");
    assert!(woken.0.load(Ordering::Relaxed), "there is a next turn");
    turn(&mut stream);
    assert_eq!(arrived(&mut client), b"one two ");
    assert_eq!(stream.gathered.rest(), b"");
}

#[tokio::test]
async fn slices_are_taken_as_far_as_there_is_room() {
    let (mut stream, mut client) = http2(1 << 20);
    let large = vec![b'b'; GATHER];
    let slices = [io::IoSlice::new(b"head"), io::IoSlice::new(&large), io::IoSlice::new(b"end")];
    assert!(stream.is_write_vectored());
    assert_eq!(stream.write_vectored(&slices).await.unwrap(), GATHER);
    stream.write_all(b"bbbb").await.unwrap();
    // the first record is out: it was full
    assert_eq!(arrived(&mut client), [b"head", &large[4..]].concat());
    stream.flush().await.unwrap();
    turn(&mut stream);
    assert_eq!(arrived(&mut client), b"bbbb");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_holds_the_writer_up_and_then_fails_it() {
    let (mut stream, mut client) = http2(1000);
    let sent: Vec<u8> = (0..3 * GATHER).map(|i| (i % 251) as u8).collect();
    let mut left = &sent[..];
    // more than is gathered is not taken, however often it is tried
    while let Some(n) = stream.write(left).now_or_never() {
        left = &left[n.unwrap()..];
        stream.flush().await.unwrap();
        let _ = stream.read(&mut [0; 64]).now_or_never();
    }
    assert!(sent.len() - left.len() <= GATHER + 1000, "{}", left.len());
    // it reads: all comes, in order
    let reading = async {
        let mut got = vec![0; sent.len()];
        client.read_exact(&mut got).await.unwrap();
        got
    };
    let writing = async {
        stream.write_all(left).await.unwrap();
        AsyncWriteExt::shutdown(&mut stream).await.unwrap();
    };
    let (got, ()) = tokio::join!(reading, writing);
    assert!(got == sent);

    let (mut stream, _client) = http2(1000);
    let began = Instant::now();
    let error = stream.write_all(&sent).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert_eq!(
        Some(began.elapsed().as_secs()),
        stream.shared.config.client_write_timeout.map(|d| d.as_secs())
    );
}

#[tokio::test]
async fn what_was_gathered_is_sent_before_the_end() {
    let (mut stream, mut client) = http2(1 << 20);
    stream.write_all(b"last").await.unwrap();
    stream.flush().await.unwrap();
    AsyncWriteExt::shutdown(&mut stream).await.unwrap();
    drop(stream);
    let mut all = Vec::new();
    client.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, b"last");

    // the engine drops an idle connection without a word
    let (mut stream, mut client) = http2(1 << 20);
    stream.write_all(b"last").await.unwrap();
    drop(stream);
    let mut all = Vec::new();
    client.read_to_end(&mut all).await.unwrap();
    assert_eq!(all[..4], *b"last");
    assert_eq!(all[4 + 3], 7, "and a GOAWAY behind it");

    // one that has no room for both does not get half of a frame and then another
    let (mut stream, mut client) = http2(2);
    stream.write_all(b"last").await.unwrap();
    drop(stream);
    let mut all = Vec::new();
    client.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, b"la");
}
