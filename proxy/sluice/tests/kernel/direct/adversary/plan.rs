//! The origin's behaviour for a request, derived from the seed and the request's id, so both ends know it.

use std::fmt::Write;

/// The largest body.
const SIZE_MAX: usize = 300_000;
/// Bytes of a body that identify its response, and the position in it.
const BLOCK: usize = 256;

/// How a response is split into writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Split {
    Whole,
    HeadThenBody,
    /// The head with some of the body, then pieces of this size.
    Pieces {
        first: usize,
        piece: usize,
    },
    /// The head in two writes.
    WithinHead,
}

/// The origin's behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Plain,
    /// Pauses between the writes.
    Slow,
    /// Responds before it has read the request's body.
    Early,
    /// Bytes of another response after the last one, in the same write.
    SurplusWith,
    /// Another response in a separate write, this many microseconds later.
    SurplusAfter {
        pause_us: u64,
    },
    /// Closes or resets after this many bytes, fewer than the response has.
    Cut {
        at: usize,
        reset: bool,
    },
    /// Closes after the response, unannounced.
    CloseAfter,
    /// Closes after the response, as announced.
    LastOne,
    Chunked,
    UntilClose,
    /// An interim response first.
    Hints,
    /// 204.
    Empty,
    /// The request was HEAD.
    HeadOnly,
}

/// One exchange.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) id: u64,
    pub(super) size: usize,
    pub(super) split: Split,
    pub(super) deed: Deed,
    /// Bytes of the request's body; `None` is a GET.
    pub(super) upload: Option<usize>,
    /// The client announces its last request.
    pub(super) last: bool,
}

fn size(random: &mut fastrand::Rng) -> usize {
    match random.u32(..20) {
        0 => 0,
        1..=7 => random.usize(1..2000),
        8..=14 => random.usize(2000..30_000),
        15..=18 => random.usize(30_000..100_000),
        _ => random.usize(100_000..=SIZE_MAX),
    }
}

fn split(random: &mut fastrand::Rng, size: usize) -> Split {
    match random.u32(..20) {
        0..=6 => Split::Whole,
        7..=12 => Split::HeadThenBody,
        // Small enough that writing them does not take the whole test.
        13..=18 => {
            Split::Pieces { first: random.usize(..=size), piece: random.usize(1..=9000).max(size / 60) }
        }
        _ => Split::WithinHead,
    }
}

/// Parameters of all plans.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) seed: u64,
    /// Whether origins send stray responses in separate writes. The next request may then get one, whatever a proxy
    /// does.
    pub(super) strays: bool,
}

impl Plan {
    pub(super) fn of(rules: Rules, id: u64) -> Self {
        let seed = rules.seed;
        let mut random = fastrand::Rng::with_seed(seed ^ id.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let size = size(&mut random);
        let split = split(&mut random, size);
        let upload = (random.u32(..6) == 0).then(|| random.usize(..30_000));
        let last = random.u32(..40) == 0;
        let mut plan = Self { id, size, split, deed: Deed::Plain, upload, last };
        plan.deed = match plan.any_deed(&mut random) {
            Deed::SurplusAfter { .. } if !rules.strays => Deed::SurplusWith,
            deed => deed,
        };
        plan
    }

    fn any_deed(&self, random: &mut fastrand::Rng) -> Deed {
        let total = self.head().len() + self.size;
        match random.u32(..100) {
            0..=1 => Deed::SurplusWith,
            2..=3 => Deed::SurplusAfter { pause_us: random.u64(..3).pow(3) * 200 },
            4..=6 => Deed::Cut { at: random.usize(..total), reset: random.bool() },
            7..=8 => Deed::CloseAfter,
            9 => Deed::LastOne,
            10..=12 => Deed::Chunked,
            13 => Deed::UntilClose,
            14 => Deed::Hints,
            15 => Deed::Empty,
            16 if self.upload.is_none() => Deed::HeadOnly,
            17..=18 => Deed::Slow,
            19..=40 if self.upload.is_some() => Deed::Early,
            _ => Deed::Plain,
        }
    }

    /// The request, sent `sent` nanoseconds after the start.
    pub(super) fn request(&self, sent: u64) -> Vec<u8> {
        let id = self.id;
        let mut head = format!("GET /{id} HTTP/1.1\r\nHost: a\r\nX-Sent: {sent}\r\n");
        if self.last {
            head.push_str("Connection: close\r\n");
        }
        if self.deed == Deed::HeadOnly {
            head.replace_range(..3, "HEAD");
        }
        if let Some(bytes) = self.upload {
            head.replace_range(..3, "POST");
            write!(head, "Content-Length: {bytes}\r\n").expect("strings grow");
        }
        let upload = vec![b'u'; self.upload.unwrap_or(0)];
        [head.as_bytes(), b"\r\n", &upload].concat()
    }

    /// The head of the response.
    pub(super) fn head(&self) -> Vec<u8> {
        let (id, size) = (self.id, self.size);
        let head = match self.deed {
            Deed::Empty => format!("HTTP/1.1 204 No Content\r\nX-Id: {id}\r\n\r\n"),
            Deed::Chunked => format!("HTTP/1.1 200 OK\r\nX-Id: {id}\r\nTransfer-Encoding: chunked\r\n\r\n"),
            Deed::UntilClose => format!("HTTP/1.1 200 OK\r\nX-Id: {id}\r\n\r\n"),
            Deed::LastOne => {
                format!(
                    "HTTP/1.1 200 OK\r\nConnection: close\r\nX-Id: {id}\r\nContent-Length: {size}\r\n\r\n"
                )
            }
            // As nginx does.
            _ if id.is_multiple_of(2) => {
                format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nConnection: keep-alive\r\nX-Id: {id}\r\n\r\n"
                )
            }
            _ => format!("HTTP/1.1 200 OK\r\nX-Id: {id}\r\nContent-Length: {size}\r\n\r\n"),
        };
        head.into_bytes()
    }

    /// The content: the id repeated with the position, so that each byte is unique to it.
    pub(super) fn body(&self) -> Vec<u8> {
        if matches!(self.deed, Deed::Empty | Deed::HeadOnly) {
            return Vec::new();
        }
        let mut body = self.id.to_be_bytes().repeat(self.size.div_ceil(8));
        for (at, block) in body.chunks_exact_mut(BLOCK).enumerate() {
            block[8..16].copy_from_slice(&(at as u64).to_be_bytes());
        }
        body.truncate(self.size);
        body
    }

    /// What the origin writes, write by write.
    pub(super) fn writes(&self) -> Vec<Vec<u8>> {
        let (head, body) = (self.head(), self.framed());
        let mut writes = match self.split {
            Split::Whole => vec![[head, body].concat()],
            Split::HeadThenBody => vec![head, body],
            Split::WithinHead => vec![head[..20].to_vec(), [&head[20..], &body].concat()],
            Split::Pieces { first, piece } => {
                let (with, rest) = body.split_at(first.min(body.len()));
                let pieces = rest.chunks(piece).map(<[u8]>::to_vec);
                [[&head, with].concat()].into_iter().chain(pieces).collect()
            }
        };
        writes.retain(|bytes| !bytes.is_empty());
        if self.deed == Deed::Hints {
            writes.insert(0, b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".to_vec());
        }
        if self.deed == Deed::SurplusWith
            && let Some(last) = writes.last_mut()
        {
            last.extend_from_slice(&stray("with", self.id));
        }
        writes
    }

    fn framed(&self) -> Vec<u8> {
        let body = self.body();
        if self.deed != Deed::Chunked {
            return body;
        }
        let chunk = |part: &[u8]| [format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat();
        [body.chunks(7001).map(chunk).collect::<Vec<_>>().concat(), b"0\r\n\r\n".to_vec()].concat()
    }

    /// Whether the client cannot receive all of it.
    pub(super) fn is_cut(&self) -> bool {
        matches!(self.deed, Deed::Cut { .. })
    }
}

/// An unrequested response.
pub(super) fn stray(how: &str, id: u64) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nX-Id: stray-{how}-{id}\r\nContent-Length: 5\r\n\r\nstray").into_bytes()
}
