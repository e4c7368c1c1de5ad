//! The frames of an HTTP/2 client, followed as far as its time limits need: whether the preface or a
//! block of header fields is still coming in.

/// The first bytes of a connection (RFC 9113 section 3.4).
const PREFACE: usize = 24;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// Follows what a client sends.
#[derive(Debug, Default)]
pub struct Frames {
    /// Bytes of the preface that were read.
    preface: usize,
    head: [u8; 9],
    /// Bytes of the frame's head that were read.
    have: usize,
    /// Bytes of its payload that are to come.
    left: usize,
    /// A block of header fields has begun and not ended.
    block: bool,
    /// The frame that is being read ends it.
    ends: bool,
    last_stream: u32,
}

impl Frames {
    /// Takes more bytes in.
    pub fn take(&mut self, mut bytes: &[u8]) {
        if self.preface < PREFACE {
            let n = bytes.len().min(PREFACE - self.preface);
            self.preface += n;
            bytes = &bytes[n..];
        }
        while !bytes.is_empty() {
            if self.left > 0 {
                let n = bytes.len().min(self.left);
                self.left -= n;
                bytes = &bytes[n..];
            } else {
                let n = bytes.len().min(self.head.len() - self.have);
                self.head[self.have..self.have + n].copy_from_slice(&bytes[..n]);
                self.have += n;
                bytes = &bytes[n..];
                if self.have < self.head.len() {
                    return;
                }
                self.begin();
            }
            if self.left == 0 && self.ends {
                (self.block, self.ends) = (false, false);
            }
        }
    }

    fn begin(&mut self) {
        let [a, b, c, kind, flags, i, j, k, l] = self.head;
        self.have = 0;
        self.left = u32::from_be_bytes([0, a, b, c]) as usize;
        if kind == HEADERS || kind == CONTINUATION {
            self.block = true;
            self.ends = flags & END_HEADERS != 0;
        }
        if kind == HEADERS {
            self.last_stream = self.last_stream.max(u32::from_be_bytes([i & 0x7f, j, k, l]));
        }
    }

    /// Whether the client owes the rest of the preface or of a block of header fields.
    pub fn owes(&self) -> bool {
        self.preface < PREFACE || self.block
    }

    /// The GOAWAY that ends a connection on which nothing is under way (RFC 9113 section 6.8): every
    /// stream that was seen has been answered, and none after it.
    pub fn goaway(&self) -> [u8; 17] {
        let [i, j, k, l] = self.last_stream.to_be_bytes();
        [0, 0, 8, 7, 0, 0, 0, 0, 0, i, j, k, l, 0, 0, 0, 0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream];
        frame.extend_from_slice(payload);
        frame
    }

    fn after(parts: &[&[u8]], step: usize) -> Frames {
        let mut frames = Frames::default();
        parts.concat().chunks(step).for_each(|part| frames.take(part));
        frames
    }

    #[test]
    fn a_preface_and_a_block_of_fields_are_owed_until_they_are_whole() {
        let settings = frame(4, 0, 0, &[]);
        let open = frame(HEADERS, 0, 1, b"abc");
        let more = frame(CONTINUATION, 0, 1, b"def");
        let last = frame(CONTINUATION, END_HEADERS, 1, b"");
        let whole = frame(HEADERS, END_HEADERS, 3, b"abc");
        let data = frame(0, 0, 3, &[0; 50]);
        for step in [1, 7, 1000] {
            for (parts, owes) in [
                (&[&HELLO[..23]][..], true),
                (&[HELLO], false),
                (&[HELLO, &settings], false),
                (&[HELLO, &settings, &open], true),
                (&[HELLO, &open, &more], true),
                (&[HELLO, &open, &more, &last], false),
                (&[HELLO, &whole[..10]], true),
                (&[HELLO, &whole, &data], false),
                (&[HELLO, &whole, &data[..20]], false),
            ] {
                assert_eq!(after(parts, step).owes(), owes, "{parts:?} by {step}");
            }
        }
    }

    #[test]
    fn goaway_names_the_last_stream() {
        let frames = after(&[HELLO, &frame(HEADERS, 4, 5, b"a"), &frame(HEADERS, 4, 3, b"a")], 1000);
        assert_eq!(frames.goaway(), [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0]);
    }
}
