//! Streams that go from the client to sluice only (RFC 9114 section 6.2): control, and those of QPACK.

use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use sluice_http::http3::qpack::{DecoderStream, EncoderStream};
use sluice_http::http3::{ControlFrame, ControlReader, Http3Code, read_varint, stream_type};
use sluice_net::quic::{StreamFault, StreamId};

use super::link::Link;

/// The most bytes that are taken at a time.
const TAKEN_BYTES_MAX: usize = 4096;

/// The client's unidirectional streams.
#[derive(Default)]
pub(super) struct UniStreams {
    streams: Vec<UniStream>,
    /// The types that were opened of those that may be opened once.
    seen: Vec<u64>,
}

struct UniStream {
    id: StreamId,
    /// The first bytes, until they are the whole type.
    start: Vec<u8>,
    kind: Kind,
}

enum Kind {
    Unknown,
    Control(Box<ControlReader>),
    Encoder(EncoderStream),
    Decoder(DecoderStream),
}

/// What becomes of a stream.
#[derive(PartialEq, Eq)]
enum Then {
    Continue,
    Forget,
}

impl UniStreams {
    /// Adds a stream that the client has opened.
    pub(super) fn add(&mut self, id: StreamId) {
        self.streams.push(UniStream { id, start: Vec::new(), kind: Kind::Unknown });
    }

    /// Reads what has arrived. `next` is the first request stream that the client has not opened yet.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, link: &Link, next: u64) {
        let Self { streams, seen } = self;
        let mut fault = None;
        streams.retain_mut(|stream| match stream.read(cx, link, seen, next) {
            Ok(Then::Continue) => true,
            Ok(Then::Forget) => {
                link.connection.forget(stream.id);
                false
            }
            Err(code) => {
                fault.get_or_insert(code);
                true
            }
        });
        if let Some(code) = fault {
            link.fail(code);
        }
    }
}

impl UniStream {
    fn read(
        &mut self,
        cx: &mut Context<'_>,
        link: &Link,
        seen: &mut Vec<u64>,
        next: u64,
    ) -> Result<Then, Http3Code> {
        loop {
            match link.connection.poll_read(cx, self.id, TAKEN_BYTES_MAX) {
                Poll::Pending => return Ok(Then::Continue),
                Poll::Ready(Ok(Some(bytes))) => {
                    if self.take(bytes, link, seen, next)? == Then::Forget {
                        return Ok(Then::Forget);
                    }
                }
                Poll::Ready(Err(StreamFault::Lost)) => return Ok(Then::Forget),
                // Its end, or a reset.
                Poll::Ready(_) => {
                    return match self.kind {
                        // RFC 9114 section 6.2.1, RFC 9204 section 4.2.
                        Kind::Control(_) | Kind::Encoder(_) | Kind::Decoder(_) => {
                            Err(Http3Code::ClosedCriticalStream)
                        }
                        Kind::Unknown => {
                            link.meter.count_control_frames(1);
                            Ok(Then::Forget)
                        }
                    };
                }
            }
        }
    }

    fn take(
        &mut self,
        mut bytes: Bytes,
        link: &Link,
        seen: &mut Vec<u64>,
        next: u64,
    ) -> Result<Then, Http3Code> {
        if matches!(self.kind, Kind::Unknown) {
            let before = self.start.len();
            self.start.extend_from_slice(&bytes[..bytes.len().min(8)]);
            let Some((number, size)) = read_varint(&self.start) else {
                return Ok(Then::Continue);
            };
            bytes.advance(size.saturating_sub(before));
            self.start = Vec::new();
            let Some(kind) = kind_of(number)? else {
                // Unknown types are for extensions, and must be ignored.
                link.meter.count_control_frames(1);
                link.connection.stop(self.id, Http3Code::StreamCreationError.number());
                return Ok(Then::Forget);
            };
            if seen.contains(&number) {
                return Err(Http3Code::StreamCreationError);
            }
            seen.push(number);
            self.kind = kind;
        }
        match &mut self.kind {
            Kind::Control(reader) => {
                let mut input = &bytes[..];
                while let Some(frame) = reader.next(&mut input)? {
                    link.meter.count_control_frames(1);
                    match frame {
                        ControlFrame::Priority(id, priority) => note(link, id, priority, next)?,
                        ControlFrame::GoAway => link.is_leaving.set(true),
                        ControlFrame::Nothing => {}
                    }
                }
                Ok(())
            }
            Kind::Encoder(stream) => {
                link.meter.count_control_frames(bytes.len() as u64);
                stream.read(&bytes)
            }
            Kind::Decoder(stream) => {
                link.meter.count_control_frames(bytes.len() as u64 / 2);
                stream.read(&bytes)
            }
            Kind::Unknown => Ok(()),
        }?;
        Ok(Then::Continue)
    }
}

/// Notes the priority of a request that is there or may come.
fn note(link: &Link, id: u64, priority: sluice_http::http3::Priority, next: u64) -> Result<(), Http3Code> {
    /// No client is further ahead.
    const AHEAD_MAX: u64 = 4 * 1_000_000;
    if id > next.saturating_add(AHEAD_MAX) {
        return Err(Http3Code::IdError);
    }
    let Ok(number) = sluice_net::quic::VarInt::from_u64(id) else { return Err(Http3Code::IdError) };
    link.prioritise(StreamId::from(number), priority, id < next);
    Ok(())
}

/// What a stream of this type is; `None` if that is not known.
fn kind_of(number: u64) -> Result<Option<Kind>, Http3Code> {
    match number {
        stream_type::CONTROL => Ok(Some(Kind::Control(Box::default()))),
        stream_type::QPACK_ENCODER => Ok(Some(Kind::Encoder(EncoderStream))),
        stream_type::QPACK_DECODER => Ok(Some(Kind::Decoder(DecoderStream::default()))),
        // Only a server pushes.
        stream_type::PUSH => Err(Http3Code::StreamCreationError),
        _ => Ok(None),
    }
}
