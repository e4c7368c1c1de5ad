//! Log output that never holds up a request: lines go into a buffer of the calling thread, one
//! writer thread collects the buffers and writes whole lines. What does not fit is dropped and
//! counted.

use parking_lot::Mutex;
use prometheus::IntCounter;
use std::cell::RefCell;
use std::io::Write;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes that one thread may have waiting.
const MAX_WAITING: usize = 1 << 20;

/// From here on the writer is woken before its tick.
const WAKE_AT: usize = 32 << 10;

const TICK: Duration = Duration::from_millis(50);

/// Where lines go; cheap to clone. The writer thread ends when the last clone is dropped.
#[derive(Clone)]
pub struct LogSink(Arc<Inner>);

/// The lines of one thread, shared with the writer alone.
type Buffer = Arc<Mutex<Vec<u8>>>;

struct Inner {
    id: u64,
    buffers: Mutex<Vec<Buffer>>,
    dropped: IntCounter,
    writer: std::thread::Thread,
    flushes: (Mutex<u64>, parking_lot::Condvar),
    woken: Arc<AtomicU8>,
}

thread_local! {
    /// This thread's buffers, one a sink.
    static MINE: RefCell<Vec<(u64, Buffer)>> = const { RefCell::new(Vec::new()) };
    static LINE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl LogSink {
    /// Starts the writer thread over `out`.
    pub fn new(mut out: impl Write + Send + 'static, dropped: IntCounter) -> std::io::Result<Self> {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let (hand_over, take) = std::sync::mpsc::channel::<(Weak<Inner>, Arc<AtomicU8>)>();
        let thread = std::thread::Builder::new().name("log-writer".into()).spawn(move || {
            let Ok((inner, woken)) = take.recv() else { return };
            let mut batch = Vec::new();
            loop {
                // Sleeps until there is something. The flag decides, not the wake-up: one of those may
                // have gone to the channel above.
                while woken.load(Ordering::Acquire) == WokenFor::Nothing as u8 {
                    std::thread::park();
                }
                if woken.load(Ordering::Acquire) < WokenFor::Much as u8 {
                    std::thread::park_timeout(TICK); // lets a batch gather
                }
                let Some(inner) = inner.upgrade() else { return };
                woken.store(WokenFor::Nothing as u8, Ordering::Release);
                inner.collect(&mut batch, &mut out);
            }
        })?;
        let inner = Arc::new(Inner {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            buffers: Mutex::default(),
            dropped,
            writer: thread.thread().clone(),
            flushes: Default::default(),
            woken: Arc::new(AtomicU8::new(WokenFor::Nothing as u8)),
        });
        // The receiver is the thread above; it cannot be gone.
        let _ = hand_over.send((Arc::downgrade(&inner), inner.woken.clone()));
        Ok(Self(inner))
    }

    /// Builds one line with `write` (without its newline) and queues it.
    pub fn line(&self, write: impl FnOnce(&mut Vec<u8>)) {
        LINE.with_borrow_mut(|line| {
            line.clear();
            write(line);
            line.push(b'\n');
            self.push(line);
        });
    }

    /// Queues bytes that end in a newline.
    pub fn push(&self, line: &[u8]) {
        MINE.with_borrow_mut(|mine| {
            let buffer = match mine.iter().position(|(id, _)| *id == self.0.id) {
                Some(i) => &mine[i].1,
                None => {
                    let buffer = Buffer::default();
                    self.0.buffers.lock().push(buffer.clone());
                    mine.push((self.0.id, buffer));
                    &mine[mine.len() - 1].1
                }
            };
            // Shared with the writer alone, which only swaps it out.
            let mut waiting = buffer.lock();
            if waiting.len() + line.len() > MAX_WAITING {
                self.0.dropped.inc();
                return;
            }
            waiting.extend_from_slice(line);
            let full = waiting.len() >= WAKE_AT;
            drop(waiting);
            self.0.wake(if full { WokenFor::Much } else { WokenFor::Some });
        });
    }

    /// Waits until everything queued so far is written, at most for `limit`.
    pub fn flush(&self, limit: Duration) {
        let (count, changed) = &self.0.flushes;
        let mut done = count.lock();
        // A pass that has begun may have missed the last lines; the one after it has not.
        let target = *done + 2;
        let deadline = std::time::Instant::now() + limit;
        while *done < target {
            self.0.wake(WokenFor::Much);
            // The second pass has to be asked for once the first is over.
            let soon = std::time::Instant::now() + Duration::from_millis(5);
            changed.wait_until(&mut done, soon.min(deadline));
            if std::time::Instant::now() >= deadline {
                return;
            }
        }
    }
}

/// What the writer was woken for since its last pass; grows.
#[derive(Clone, Copy)]
enum WokenFor {
    Nothing,
    /// A first line: the pass comes after a tick.
    Some,
    /// A full buffer: the pass comes at once.
    Much,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The writer finds that nobody is left.
        self.wake(WokenFor::Much);
    }
}

impl Inner {
    fn wake(&self, reason: WokenFor) {
        if self.woken.load(Ordering::Acquire) < reason as u8
            && self.woken.fetch_max(reason as u8, Ordering::AcqRel) < reason as u8
        {
            self.writer.unpark();
        }
    }

    fn collect(&self, batch: &mut Vec<u8>, out: &mut impl Write) {
        let buffers: Vec<_> = {
            let mut all = self.buffers.lock();
            // Held by nobody else: its thread has ended.
            all.retain(|b| Arc::strong_count(b) > 1 || !b.lock().is_empty());
            all.clone()
        };
        for buffer in buffers {
            batch.clear();
            std::mem::swap(batch, &mut *buffer.lock());
            if !batch.is_empty() {
                let _ = out.write_all(batch);
            }
            if batch.capacity() > MAX_WAITING / 4 {
                *batch = Vec::new();
            }
        }
        let _ = out.flush();
        let (count, changed) = &self.flushes;
        *count.lock() += 1;
        changed.notify_all();
    }
}

/// One JSON object, written field by field.
pub struct Record<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
}

impl<'a> Record<'a> {
    /// Begins an object.
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, first: true }
    }

    fn key(&mut self, key: &str) {
        if !self.first {
            self.out.push(b',');
        }
        self.first = false;
        self.out.push(b'"');
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    /// A string; any bytes, escaped.
    pub fn text(&mut self, key: &str, value: &[u8]) {
        self.key(key);
        self.out.push(b'"');
        escape(self.out, value);
        self.out.push(b'"');
    }

    /// A string that is left out when absent.
    pub fn opt(&mut self, key: &str, value: Option<&[u8]>) {
        if let Some(value) = value {
            self.text(key, value);
        }
    }

    /// A string in its `Display` form, which must need no escaping.
    pub fn display(&mut self, key: &str, value: impl std::fmt::Display) {
        self.key(key);
        let _ = write!(self.out, "\"{value}\"");
    }

    /// A whole number.
    pub fn int(&mut self, key: &str, value: u64) {
        self.key(key);
        self.out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    }

    /// Milliseconds with three decimals.
    pub fn millis(&mut self, key: &str, value: Duration) {
        self.key(key);
        let micros = u64::try_from(value.as_micros()).unwrap_or(u64::MAX);
        self.out.extend_from_slice(itoa::Buffer::new().format(micros / 1000).as_bytes());
        let rest = micros % 1000;
        self.out.extend_from_slice(&[
            b'.',
            b'0' + (rest / 100) as u8,
            b'0' + (rest / 10 % 10) as u8,
            b'0' + (rest % 10) as u8,
        ]);
    }

    /// `true` or `false`.
    pub fn flag(&mut self, key: &str, value: bool) {
        self.key(key);
        self.out.extend_from_slice(if value { b"true" } else { b"false" });
    }

    /// The time of day, RFC 3339 in UTC with milliseconds.
    pub fn now(&mut self, key: &str) {
        self.key(key);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.out.push(b'"');
        timestamp(self.out, now);
        self.out.push(b'"');
    }

    /// Ends the object.
    pub fn end(self) {
        self.out.push(b'}');
    }
}

fn escape(out: &mut Vec<u8>, value: &[u8]) {
    let plain = |b: u8| (0x20..0x7f).contains(&b) && b != b'"' && b != b'\\';
    if value.iter().all(|b| plain(*b)) {
        out.extend_from_slice(value);
        return;
    }
    for c in String::from_utf8_lossy(value).chars() {
        match c {
            '"' => out.extend_from_slice(b"\\\""),
            '\\' => out.extend_from_slice(b"\\\\"),
            c if (c as u32) < 0x20 || c == '\u{7f}' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// RFC 3339, to the second, from seconds since the epoch; what lies before it is taken for it.
pub fn rfc3339(seconds: i64) -> String {
    let mut out = Vec::with_capacity(24);
    timestamp(&mut out, Duration::from_secs(seconds.try_into().unwrap_or(0)));
    let mut text = String::from_utf8(out).unwrap_or_default();
    text.truncate(text.len().saturating_sub(".000Z".len()));
    text.push('Z');
    text
}

/// RFC 3339 from a time since the epoch (days to date by the era method of the proleptic Gregorian calendar).
fn timestamp(out: &mut Vec<u8>, since_epoch: Duration) {
    let seconds = since_epoch.as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let two = |n: u64| [b'0' + (n / 10 % 10) as u8, b'0' + (n % 10) as u8];
    let _ = write!(out, "{year:04}");
    for (mark, n) in
        [(b'-', month), (b'-', day), (b'T', second / 3600), (b':', second / 60 % 60), (b':', second % 60)]
    {
        out.push(mark);
        out.extend_from_slice(&two(n));
    }
    let millis = since_epoch.subsec_millis();
    out.extend_from_slice(&[
        b'.',
        b'0' + (millis / 100) as u8,
        b'0' + (millis / 10 % 10) as u8,
        b'0' + (millis % 10) as u8,
        b'Z',
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that can be made to hang.
    #[derive(Clone, Default)]
    struct Out(Arc<(Mutex<Vec<u8>>, Mutex<()>)>);
    impl Write for Out {
        fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
            let _open = self.0.1.lock();
            self.0.0.lock().extend_from_slice(buf);
            Ok(buf.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_of_all_threads_arrive_whole() {
        let out = Out::default();
        let sink = LogSink::new(out.clone(), IntCounter::new("a", "a").unwrap()).unwrap();
        std::thread::scope(|scope| {
            for t in 0..4 {
                let sink = sink.clone();
                scope.spawn(move || {
                    for i in 0..1000 {
                        sink.line(|l| {
                            let _ = write!(l, "thread {t} line {i}");
                        });
                    }
                });
            }
        });
        sink.flush(Duration::from_secs(10));
        let text = String::from_utf8(out.0.0.lock().clone()).unwrap();
        assert_eq!(text.lines().count(), 4000);
        assert!(text.lines().all(|l| l.starts_with("thread ")));
    }

    #[test]
    fn the_first_line_is_never_left_lying() {
        for _ in 0..300 {
            let out = Out::default();
            let sink = LogSink::new(out.clone(), IntCounter::new("a", "a").unwrap()).unwrap();
            sink.push(b"first\n");
            let begun = std::time::Instant::now();
            while out.0.0.lock().is_empty() {
                assert!(begun.elapsed() < Duration::from_secs(10), "the writer sleeps on");
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn a_stuck_output_costs_lines_and_never_blocks() {
        let out = Out::default();
        let dropped = IntCounter::new("a", "a").unwrap();
        let sink = LogSink::new(out.clone(), dropped.clone()).unwrap();
        let stuck = out.0.1.lock();
        let line = vec![b'x'; 1023];
        for _ in 0..8192 {
            sink.line(|l| l.extend_from_slice(&line));
        }
        assert!(dropped.get() > 0);
        drop(stuck);
        sink.flush(Duration::from_secs(10));
        let written = out.0.0.lock().len() as u64 / 1024;
        assert_eq!(written + dropped.get(), 8192);
    }

    #[test]
    fn records_are_json_whatever_the_bytes() {
        let mut line = Vec::new();
        let mut record = Record::new(&mut line);
        record.text("path", b"/a\"b\\c\n\x7f\xff");
        record.opt("none", None);
        record.int("status", 200);
        record.millis("ms", Duration::from_micros(12_034));
        record.flag("reused", true);
        record.end();
        assert_eq!(
            String::from_utf8(line).unwrap(),
            "{\"path\":\"/a\\\"b\\\\c\\u000a\\u007f\u{fffd}\",\"status\":200,\"ms\":12.034,\"reused\":true}"
        );
    }

    #[test]
    fn timestamps_are_rfc_3339() {
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(-5), "1970-01-01T00:00:00Z");
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_798_761_599, "2026-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            let mut out = Vec::new();
            timestamp(&mut out, Duration::from_secs(seconds));
            assert_eq!(String::from_utf8(out).unwrap(), text);
        }
    }
}
