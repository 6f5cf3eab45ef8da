//! The start of an outgoing message: its head, encoded for the protocol used, and the first bytes of the body.

use std::io;

use sluice_http::{
    FieldBlock, HeadSink, RequestForward, RequestHead, ResponseForward, ResponseHead, Trailers,
    encode_request, encode_response,
};
use sluice_net::stream::Writer;

/// A head and the first bytes after it.
#[derive(Debug)]
pub(crate) struct Opening {
    /// The head, if the protocol sends heads as fields. It is kept, so that it can be sent again.
    fields: Option<Box<FieldBlock>>,
    /// The bytes to send: the head, if it is text, and the first part of the body.
    pub(crate) bytes: Vec<u8>,
}

impl Opening {
    /// An empty opening; `is_framed` if the receiver takes heads as fields. `bytes` is an empty buffer.
    pub(crate) fn new(bytes: Vec<u8>, is_framed: bool) -> Self {
        Self { fields: is_framed.then(Box::default), bytes }
    }

    /// An opening for the receiver of `writer`, in its spare buffer.
    pub(crate) fn to(writer: &mut Writer) -> Self {
        let is_framed = writer.stream().is_channel();
        Self::new(writer.spare(), is_framed)
    }

    /// Encodes a forwarded request.
    pub(crate) fn encode_request(&mut self, head: &RequestHead, forward: &RequestForward<'_>) {
        match &mut self.fields {
            Some(fields) => encode_request(&mut **fields, head, forward),
            None => encode_request(&mut self.bytes, head, forward),
        }
    }

    /// Encodes a forwarded response.
    pub(crate) fn encode_response(&mut self, head: &ResponseHead, forward: &ResponseForward<'_>) {
        match &mut self.fields {
            Some(fields) => encode_response(&mut **fields, head, forward),
            None => encode_response(&mut self.bytes, head, forward),
        }
    }

    /// Whether all of it is in its bytes.
    pub(crate) fn is_text(&self) -> bool {
        self.fields.is_none()
    }

    /// The sink for a head that sluice generates.
    pub(crate) fn head(&mut self) -> &mut dyn HeadSink {
        match &mut self.fields {
            Some(fields) => &mut **fields,
            None => &mut self.bytes,
        }
    }

    /// The head, if it is sent as fields.
    pub(crate) fn fields(&mut self) -> Option<&mut FieldBlock> {
        self.fields.as_deref_mut()
    }

    /// Size of the head and body so far, in bytes. A head of fields counts as its names and values.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + self.fields.as_ref().map_or(0, |fields| fields.bytes().len())
    }

    /// Sends the head, unless it is among the bytes; `ends` if no body follows. Returns the bytes that are left to
    /// send.
    ///
    /// # Errors
    /// The receiver is gone.
    pub(crate) fn begin(self, writer: &mut Writer, ends: bool) -> io::Result<Vec<u8>> {
        if let Some(fields) = &self.fields {
            writer.send_head(fields, ends)?;
        }
        Ok(self.bytes)
    }

    /// Starts sending everything; with `end` it is the whole message. The buffer moves to the writer, which reports a
    /// failure later.
    pub(crate) fn submit(&mut self, writer: &mut Writer, end: Option<&Trailers>) {
        let bytes = std::mem::take(&mut self.bytes);
        let ends = bytes.is_empty() && end.is_some_and(Trailers::is_empty);
        if let Some(fields) = &self.fields {
            // The writer reports a failure when it is settled.
            let _ = writer.send_head(fields, ends);
        }
        match end.filter(|_| !ends) {
            Some(trailers) => writer.submit_last(bytes, 0, trailers),
            None => writer.submit(bytes, 0),
        }
    }
}
