//! A received message: its head, the DATA frames of its body, and trailers.

use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use sluice_http::http3::{FieldSection, Http3Code, MessagePart, MessageReader, SectionError};
use sluice_net::quic::{StreamFault, StreamId};

use super::link::Link;

/// The most bytes that are taken from the transport at a time; taking them gives the client room for as many.
const TAKEN_BYTES_MAX: usize = 16 * 1024;

/// Why a message does not continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The client has given it up, or its connection is lost.
    Gone,
    /// It is malformed: a stream error with this code.
    Stream(Http3Code),
}

/// A message being received.
pub(super) struct Inbound {
    reader: MessageReader,
    /// Received, but not read yet.
    rest: Bytes,
    /// Of these, the first ones that belong to the body.
    data: usize,
    /// Bytes of the body that are still to come, if its length was declared.
    length_left: Option<u64>,
    trailers: Option<FieldSection>,
    ended: bool,
    fault: Option<Fault>,
    /// Whether only DATA may come (RFC 9114 section 4.4).
    is_tunnel: bool,
}

/// The head of a message.
pub(super) enum Head {
    /// Its fields.
    Fields(FieldSection),
    /// It is larger than allowed.
    TooLarge,
}

impl Inbound {
    pub(super) fn new(link: &Link) -> Self {
        Self {
            reader: MessageReader::new(link.section_bytes_max),
            rest: Bytes::new(),
            data: 0,
            length_left: None,
            trailers: None,
            ended: false,
            fault: None,
            is_tunnel: false,
        }
    }

    /// Whether all of it was given out, and only trailers may follow.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// The trailers of a message that has ended.
    pub(super) fn trailers(&self) -> Option<&FieldSection> {
        self.trailers.as_ref()
    }

    /// Why it does not continue, if it does not.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Its body has this length, if that was declared. A part of it may have arrived.
    pub(super) fn expect(&mut self, length: Option<u64>) {
        let Some(length) = length else { return };
        match length.checked_sub(self.data as u64) {
            Some(left) if left == 0 || !self.ended => self.length_left = Some(left),
            _ => _ = self.fail(Fault::Stream(Http3Code::MessageError)),
        }
    }

    /// Its head is malformed.
    pub(super) fn refuse(&mut self) {
        self.fault.get_or_insert(Fault::Stream(Http3Code::MessageError));
    }

    /// The client has given it up.
    pub(super) fn give_up(&mut self) {
        self.fault.get_or_insert(Fault::Gone);
    }

    /// Reads the head.
    pub(super) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        link: &Link,
        id: StreamId,
    ) -> Poll<Result<Head, Fault>> {
        loop {
            match ready!(self.poll_part(cx, link, id))? {
                Some(MessagePart::Head(section)) => {
                    return Poll::Ready(self.section(link, section, link.section_bytes_max));
                }
                // It ended before its head (RFC 9114 section 4.1).
                None => return Poll::Ready(Err(self.fail(Fault::Stream(Http3Code::RequestIncomplete)))),
                Some(_) => {}
            }
        }
    }

    /// Whether its end, its body or a fault has come.
    pub(super) fn is_known(&self) -> bool {
        self.ended || self.data > 0 || self.fault.is_some()
    }

    /// From now on, nothing but DATA may come.
    pub(super) fn refuse_trailers(&mut self) {
        self.is_tunnel = true;
    }

    /// Reads on to the body or the end, as far as they have arrived.
    pub(super) fn ends_now(&mut self, cx: &mut Context<'_>, link: &Link, id: StreamId) {
        while !self.ended && self.data == 0 && self.fault.is_none() {
            match self.poll_part(cx, link, id) {
                Poll::Ready(Ok(Some(MessagePart::Trailers(section)))) => self.take_trailers(link, section),
                Poll::Ready(Ok(Some(_))) => {}
                _ => break,
            }
        }
    }

    /// Appends bytes of the body to `buf`; 0 is the end.
    pub(super) fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        link: &Link,
        id: StreamId,
        buf: &mut Vec<u8>,
    ) -> Poll<Result<usize, Fault>> {
        let before = buf.len();
        let polled = self.poll_all(cx, link, id, buf);
        match (buf.len() - before, polled) {
            // An error will be returned again by the next call.
            (count @ 1.., _) => Poll::Ready(Ok(count)),
            (0, Poll::Ready(outcome)) => Poll::Ready(outcome.map(|()| 0)),
            (_, Poll::Pending) => Poll::Pending,
        }
    }

    /// Gives out bytes until there is no room, or nothing more has arrived. Ready at the end of the body.
    fn poll_all(
        &mut self,
        cx: &mut Context<'_>,
        link: &Link,
        id: StreamId,
        buf: &mut Vec<u8>,
    ) -> Poll<Result<(), Fault>> {
        while !self.ended {
            if self.data > 0 {
                // An empty receive would be taken for the end.
                let room = (buf.capacity() - buf.len()).max(1);
                let count = room.min(self.data);
                buf.extend_from_slice(&self.rest[..count]);
                self.rest.advance(count);
                self.data -= count;
                if self.data > 0 || buf.len() == buf.capacity() {
                    return Poll::Pending;
                }
            }
            if let Some(MessagePart::Trailers(section)) = ready!(self.poll_part(cx, link, id))? {
                self.take_trailers(link, section);
            }
        }
        Poll::Ready(self.fault.map_or(Ok(()), Err))
    }

    /// Takes the trailers.
    fn take_trailers(&mut self, link: &Link, section: Option<Vec<u8>>) {
        if self.is_tunnel {
            link.fail(Http3Code::FrameUnexpected);
            self.fail(Fault::Gone);
            return;
        }
        match self.section(link, section, link.trailer_bytes_max.saturating_mul(2)) {
            Ok(Head::Fields(trailers)) if trailers.is_well_formed_trailers() && self.is_complete() => {
                self.trailers = Some(trailers);
            }
            _ => _ = self.fail(Fault::Stream(Http3Code::MessageError)),
        }
    }

    fn is_complete(&self) -> bool {
        self.length_left.is_none_or(|left| left == 0)
    }

    fn section(&mut self, link: &Link, section: Option<Vec<u8>>, bytes_max: usize) -> Result<Head, Fault> {
        let Some(section) = section else { return Ok(Head::TooLarge) };
        match FieldSection::decode(&section, bytes_max) {
            Ok(fields) => Ok(Head::Fields(fields)),
            Err(SectionError::TooLarge) => Ok(Head::TooLarge),
            Err(SectionError::Code(code)) => {
                link.fail(code);
                Err(self.fail(Fault::Gone))
            }
        }
    }

    /// The next part, and `None` at the end of the stream. Bytes of the body are counted in `data`.
    fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
        link: &Link,
        id: StreamId,
    ) -> Poll<Result<Option<MessagePart>, Fault>> {
        if let Some(fault) = self.fault {
            return Poll::Ready(Err(fault));
        }
        if self.ended {
            return Poll::Ready(Ok(None));
        }
        loop {
            let (used, part) = match self.reader.next(&self.rest) {
                Ok(read) => read,
                Err(code) => {
                    link.fail(code);
                    return Poll::Ready(Err(self.fail(Fault::Gone)));
                }
            };
            self.rest.advance(used);
            match &part {
                MessagePart::More => match ready!(link.connection.poll_read(cx, id, TAKEN_BYTES_MAX)) {
                    Ok(Some(bytes)) => self.rest = bytes,
                    Ok(None) => return Poll::Ready(self.end(link)),
                    Err(StreamFault::Abandoned(_) | StreamFault::Closed | StreamFault::Lost) => {
                        return Poll::Ready(Err(self.fail(Fault::Gone)));
                    }
                },
                MessagePart::Data(count) => {
                    self.data = *count;
                    if let Some(left) = &mut self.length_left {
                        match left.checked_sub(*count as u64) {
                            Some(less) => *left = less,
                            None => {
                                self.data = 0;
                                return Poll::Ready(Err(self.fail(Fault::Stream(Http3Code::MessageError))));
                            }
                        }
                    }
                    return Poll::Ready(Ok(Some(part)));
                }
                MessagePart::Nothing => link.meter.count_control_frames(1),
                MessagePart::Head(_) | MessagePart::Trailers(_) => return Poll::Ready(Ok(Some(part))),
            }
        }
    }

    fn end(&mut self, link: &Link) -> Result<Option<MessagePart>, Fault> {
        if let Err(code) = self.reader.end() {
            link.fail(code);
            return Err(self.fail(Fault::Gone));
        }
        if !self.is_complete() {
            return Err(self.fail(Fault::Stream(Http3Code::MessageError)));
        }
        self.ended = true;
        Ok(None)
    }

    fn fail(&mut self, fault: Fault) -> Fault {
        *self.fault.get_or_insert(fault)
    }
}
