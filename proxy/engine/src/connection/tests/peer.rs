//! One end of the wire, played by a test: writes with pauses, reads strictly, and fails on purpose.

use std::time::Duration;

use sluice_net::stream::memory::End;

/// Longer than every timeout of the proxy.
pub(super) const STALL: Duration = Duration::from_secs(300);

/// The maximum number of bytes in one receive or one send.
const PIECE_BYTES: usize = 32 * 1024;

/// A fault that happens once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Reset,
    Close,
    HalfClose,
    Stall,
}

/// A fault that happens after this many bytes of one direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub(super) after: usize,
    pub(super) kind: Kind,
}

/// Why no more can be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The other side has ended.
    Eof,
    /// The connection is broken.
    Reset,
    /// The fault makes this side close the connection.
    Gone,
    /// The fault makes this side stop writing.
    Silent,
}

/// Bytes of one direction, and its fault.
struct Budget {
    moved: usize,
    fault: Option<Fault>,
}

impl Budget {
    /// How many bytes may move before the fault.
    fn left(&self) -> usize {
        self.fault.map_or(usize::MAX, |fault| fault.after.saturating_sub(self.moved))
    }

    /// Triggers the fault if it is due.
    async fn check(&mut self, end: &End) -> Result<(), Ended> {
        if self.left() > 0 {
            return Ok(());
        }
        match self.fault.take().map(|fault| fault.kind) {
            None => Ok(()),
            Some(Kind::Reset) => {
                end.reset();
                Err(Ended::Gone)
            }
            Some(Kind::Close) => Err(Ended::Gone),
            Some(Kind::HalfClose) => Err(Ended::Silent),
            Some(Kind::Stall) => {
                tokio::time::sleep(STALL).await;
                Ok(())
            }
        }
    }
}

/// The writing direction.
pub(super) struct Sink {
    end: End,
    budget: Budget,
    random: fastrand::Rng,
}

impl Sink {
    pub(super) fn new(end: &End, seed: u64, fault: Option<Fault>) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self { end: end.clone(), budget: Budget { moved: 0, fault }, random }
    }

    /// Writes everything, in pieces, with occasional pauses of a few milliseconds.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        let mut rest = bytes;
        while !rest.is_empty() {
            self.pause().await;
            let most = rest.len().min(self.budget.left()).min(PIECE_BYTES);
            let piece = if self.random.bool() { most } else { self.random.usize(..=most).max(most.min(1)) };
            if piece > 0 {
                let (sent, _) = self.end.send(rest[..piece].to_vec(), 0, false).await;
                let sent = sent.map_err(|_| Ended::Reset)?;
                self.budget.moved += sent;
                rest = &rest[sent..];
            }
            let checked = self.budget.check(&self.end).await;
            if checked == Err(Ended::Silent) {
                self.finish();
            }
            checked?;
        }
        Ok(())
    }

    async fn pause(&mut self) {
        if self.random.u8(..8) == 0 {
            tokio::time::sleep(Duration::from_millis(self.random.u64(..20))).await;
        }
    }

    /// Half-closes.
    pub(super) fn finish(&self) {
        self.end.shutdown_write();
    }
}

/// The reading direction.
pub(super) struct Source {
    end: End,
    budget: Budget,
    data: Vec<u8>,
}

/// A message head.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) line: String,
    fields: Vec<(String, String)>,
}

impl Head {
    fn parse(text: &str) -> Self {
        let mut lines = text.split("\r\n");
        let line = lines.next().unwrap().to_owned();
        let fields = lines.map(|line| {
            let (name, value) = line.split_once(": ").unwrap_or_else(|| panic!("no field: {line:?}"));
            (name.to_ascii_lowercase(), value.to_owned())
        });
        Self { line, fields: fields.collect() }
    }

    /// The value of the only field of this name, which is in lower case.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let mut found = self.fields.iter().filter(|(other, _)| other == name);
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "two fields {name}: {self:?}");
        value
    }

    /// The framing declared by the fields.
    pub(super) fn framing(&self, otherwise: Framing) -> Framing {
        match (self.get("content-length"), self.get("transfer-encoding")) {
            (Some(length), None) => Framing::Length(length.parse().unwrap()),
            (None, Some("chunked")) => Framing::Chunked,
            (None, None) => otherwise,
            other => panic!("framing of {other:?}"),
        }
    }
}

/// How a body is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Length(usize),
    Chunked,
    Close,
}

/// A body as far as it arrived.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) bytes: Vec<u8>,
    pub(super) trailers: Vec<String>,
    pub(super) end: Result<(), Ended>,
}

impl Source {
    pub(super) fn new(end: &End, fault: Option<Fault>) -> Self {
        Self { end: end.clone(), budget: Budget { moved: 0, fault }, data: Vec::new() }
    }

    /// Receives something.
    async fn fill(&mut self) -> Result<(), Ended> {
        // A reader that half-closes is treated as one that closes.
        self.budget.check(&self.end).await.map_err(|_| Ended::Gone)?;
        let buf = Vec::with_capacity(PIECE_BYTES.min(self.budget.left()));
        match self.end.recv(buf).await {
            (Ok(0), _) => Err(Ended::Eof),
            (Ok(count), buf) => {
                self.budget.moved += count;
                self.data.extend_from_slice(&buf);
                Ok(())
            }
            (Err(_), _) => Err(Ended::Reset),
        }
    }

    /// Reads up to the next `end` and consumes it without returning it.
    async fn until(&mut self, end: &[u8]) -> Result<String, Ended> {
        let mut searched = 0;
        loop {
            let found = self.data[searched..].windows(end.len()).position(|window| window == end);
            if let Some(at) = found {
                let at = searched + at;
                let text = String::from_utf8(self.data[..at].to_vec()).unwrap();
                self.data.drain(..at + end.len());
                return Ok(text);
            }
            searched = self.data.len().saturating_sub(end.len() - 1);
            self.fill().await?;
        }
    }

    /// Reads a head; the end of the connection before it is an error like any other.
    pub(super) async fn head(&mut self) -> Result<Head, Ended> {
        let text = self.until(b"\r\n\r\n").await?;
        Ok(Head::parse(&text))
    }

    /// Reads a body, as far as it arrives.
    pub(super) async fn body(&mut self, framing: Framing) -> Body {
        let mut body = Body { bytes: Vec::new(), trailers: Vec::new(), end: Ok(()) };
        body.end = match framing {
            Framing::Length(length) => self.read(length, &mut body.bytes).await,
            Framing::Chunked => self.chunks(&mut body).await,
            Framing::Close => match self.read(usize::MAX, &mut body.bytes).await {
                Err(Ended::Eof) => Ok(()),
                other => other,
            },
        };
        body
    }

    /// Moves `length` bytes to `to`.
    pub(super) async fn read(&mut self, length: usize, to: &mut Vec<u8>) -> Result<(), Ended> {
        let mut left = length;
        loop {
            let count = left.min(self.data.len());
            to.extend_from_slice(&self.data[..count]);
            self.data.drain(..count);
            left -= count;
            if left == 0 {
                return Ok(());
            }
            self.fill().await?;
        }
    }

    /// The proxy never forwards an extension, so none is expected.
    async fn chunks(&mut self, body: &mut Body) -> Result<(), Ended> {
        loop {
            let size = usize::from_str_radix(&self.until(b"\r\n").await?, 16).unwrap();
            if size == 0 {
                break;
            }
            self.read(size, &mut body.bytes).await?;
            assert_eq!(self.until(b"\r\n").await?, "", "after a chunk");
        }
        loop {
            match self.until(b"\r\n").await? {
                line if line.is_empty() => return Ok(()),
                line => body.trailers.push(line),
            }
        }
    }

    /// Waits until there is something to read.
    pub(super) async fn wait(&mut self) -> Result<(), Ended> {
        while self.data.is_empty() {
            self.fill().await?;
        }
        Ok(())
    }

    /// Reads to the end of the connection; returns the number of bytes, and how it ended.
    pub(super) async fn rest(&mut self) -> (usize, Ended) {
        let mut bytes = Vec::new();
        let ended = self.read(usize::MAX, &mut bytes).await.unwrap_err();
        (bytes.len(), ended)
    }
}
