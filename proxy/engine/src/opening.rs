//! The start of a message on its way out: its head, encoded for the protocol that it goes out by, and the bytes that go
//! with it.

use std::io;

use sluice_http::{
    FieldBlock, HeadSink, RequestForward, RequestHead, ResponseForward, ResponseHead, Trailers,
    encode_request, encode_response,
};
use sluice_net::stream::Writer;

/// A head and the first bytes behind it.
#[derive(Debug)]
pub(crate) struct Opening {
    /// The head where that is no bytes. It stays, so that it can be sent again.
    fields: Option<Box<FieldBlock>>,
    /// What is sent as bytes: the head where it is text, and what of the body goes with it.
    pub(crate) bytes: Vec<u8>,
}

impl Opening {
    /// For a receiver that takes heads as fields if `is_framed`. The buffer is empty.
    pub(crate) fn new(bytes: Vec<u8>, is_framed: bool) -> Self {
        Self { fields: is_framed.then(Box::default), bytes }
    }

    /// For what `writer` sends to, in its spare buffer.
    pub(crate) fn to(writer: &mut Writer) -> Self {
        let is_framed = writer.stream().is_channel();
        Self::new(writer.spare(), is_framed)
    }

    /// Encodes a request that is forwarded.
    pub(crate) fn encode_request(&mut self, head: &RequestHead, forward: &RequestForward<'_>) {
        match &mut self.fields {
            Some(fields) => encode_request(&mut **fields, head, forward),
            None => encode_request(&mut self.bytes, head, forward),
        }
    }

    /// Encodes a response that is forwarded.
    pub(crate) fn encode_response(&mut self, head: &ResponseHead, forward: &ResponseForward<'_>) {
        match &mut self.fields {
            Some(fields) => encode_response(&mut **fields, head, forward),
            None => encode_response(&mut self.bytes, head, forward),
        }
    }

    /// Where a head of our own is written.
    pub(crate) fn head(&mut self) -> &mut dyn HeadSink {
        match &mut self.fields {
            Some(fields) => &mut **fields,
            None => &mut self.bytes,
        }
    }

    /// The head where it is no text.
    pub(crate) fn fields(&mut self) -> Option<&mut FieldBlock> {
        self.fields.as_deref_mut()
    }

    /// Bytes of head and body so far. A head that is no text counts as its names and values.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + self.fields.as_ref().map_or(0, |fields| fields.bytes().len())
    }

    /// Sends the head, unless it is among the bytes; `ends` tells that no body follows. What is left to send are the
    /// bytes.
    ///
    /// # Errors
    /// The receiver is gone.
    pub(crate) fn begin(self, writer: &mut Writer, ends: bool) -> io::Result<Vec<u8>> {
        if let Some(fields) = &self.fields {
            writer.send_head(fields, ends)?;
        }
        Ok(self.bytes)
    }

    /// Starts sending all of it; with `end` it is the whole message. The buffer goes to the writer, which fails later if
    /// this does.
    pub(crate) fn submit(&mut self, writer: &mut Writer, end: Option<&Trailers>) {
        let bytes = std::mem::take(&mut self.bytes);
        let ends = bytes.is_empty() && end.is_some_and(Trailers::is_empty);
        if let Some(fields) = &self.fields {
            // What fails here is told to whoever waits for the writer.
            let _ = writer.send_head(fields, ends);
        }
        match end.filter(|_| !ends) {
            Some(trailers) => writer.submit_last(bytes, 0, trailers),
            None => writer.submit(bytes, 0),
        }
    }
}
