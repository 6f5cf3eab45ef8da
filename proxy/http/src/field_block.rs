//! A head that will be sent in frames: what the encoder wrote, field by field.

use super::fields::{Span, TYPICAL_FIELDS};
use super::sink::HeadSink;

/// A head for a protocol with frames (HTTP/2), which encodes it when it is sent. It can be sent again.
#[derive(Clone, Debug, Default)]
pub struct FieldBlock {
    bytes: Vec<u8>,
    start: Start,
    fields: Vec<(Span, Span)>,
}

/// What replaces the start line.
#[derive(Clone, Copy, Debug, Default)]
enum Start {
    #[default]
    Nothing,
    Request {
        method: Span,
        path_and_query: Span,
        host: Span,
    },
    Response(u16),
}

impl FieldBlock {
    /// The method, path and query, and host of a request.
    pub fn as_request(&self) -> Option<[&[u8]; 3]> {
        match self.start {
            Start::Request { method, path_and_query, host } => {
                Some([method, path_and_query, host].map(|span| span.get(&self.bytes)))
            }
            _ => None,
        }
    }

    /// The status of a response.
    pub fn as_response(&self) -> Option<u16> {
        match self.start {
            Start::Response(status) => Some(status),
            _ => None,
        }
    }

    /// Names and values in order. Both are slices of [`FieldBlock::bytes`].
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields.iter().map(|(name, value)| (name.get(&self.bytes), value.get(&self.bytes)))
    }

    /// The bytes that names and values are parts of.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Sets the value of the field with exactly this name, or appends the field. At most one field may have the name.
    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        let value = self.push(value);
        let known = self.fields.iter_mut().find(|(other, _)| other.get(&self.bytes) == name);
        match known {
            Some((_, known)) => *known = value,
            None => {
                let name = self.push(name);
                self.fields.push((name, value));
            }
        }
    }

    fn push(&mut self, part: &[u8]) -> Span {
        Span::append(&mut self.bytes, part)
    }
}

impl HeadSink for FieldBlock {
    fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve(bytes);
        self.fields.reserve(TYPICAL_FIELDS);
    }

    fn request(&mut self, method: &[u8], path_and_query: &[u8], host: &[u8]) {
        let (method, path_and_query) = (self.push(method), self.push(path_and_query));
        self.start = Start::Request { method, path_and_query, host: self.push(host) };
    }

    fn response(&mut self, status: u16, _: &[u8]) {
        self.start = Start::Response(status);
    }

    fn field(&mut self, name: &[u8], value: &[u8]) {
        let field = (self.push(name), self.push(value));
        self.fields.push(field);
    }

    fn connection_field(&mut self, _: &[u8], _: &[u8]) {}

    fn end(&mut self) {}
}
