//! The output of an encoder: the text of HTTP/1.1, or fields for a protocol with frames.

use super::framing::Framing;

/// Receives a head in the order in which it is sent: its start line, its fields, its end.
pub trait HeadSink {
    /// Reserves room for a head of about `bytes` bytes.
    fn reserve(&mut self, bytes: usize);

    /// Starts a request.
    fn request(&mut self, method: &[u8], path_and_query: &[u8], host: &[u8]);

    /// Starts a response. The reason phrase may be empty.
    fn response(&mut self, status: u16, reason: &[u8]);

    /// Adds a field.
    fn field(&mut self, name: &[u8], value: &[u8]);

    /// Adds a field that applies to one HTTP/1.1 connection and has no meaning in other protocols.
    fn connection_field(&mut self, name: &[u8], value: &[u8]);

    /// Ends the head.
    fn end(&mut self);

    /// Adds the field that declares `framing`, if there is one.
    fn framing(&mut self, framing: Framing) {
        match framing {
            Framing::Length(bytes) => {
                self.field(b"Content-Length", itoa::Buffer::new().format(bytes).as_bytes());
            }
            Framing::Chunked => self.connection_field(b"Transfer-Encoding", b"chunked"),
            Framing::None | Framing::CloseDelimited | Framing::Stream => {}
        }
    }
}

/// The text of HTTP/1.1.
impl HeadSink for Vec<u8> {
    fn reserve(&mut self, bytes: usize) {
        self.reserve(bytes);
    }

    fn request(&mut self, method: &[u8], path_and_query: &[u8], host: &[u8]) {
        self.extend_from_slice(method);
        self.push(b' ');
        self.extend_from_slice(path_and_query);
        self.extend_from_slice(b" HTTP/1.1\r\n");
        push_line(self, b"Host", host);
    }

    fn response(&mut self, status: u16, reason: &[u8]) {
        self.extend_from_slice(b"HTTP/1.1 ");
        self.extend_from_slice(itoa::Buffer::new().format(status).as_bytes());
        // The space stays even without a reason phrase (RFC 9112 section 4).
        self.push(b' ');
        self.extend_from_slice(reason);
        self.extend_from_slice(b"\r\n");
    }

    fn field(&mut self, name: &[u8], value: &[u8]) {
        push_line(self, name, value);
    }

    fn connection_field(&mut self, name: &[u8], value: &[u8]) {
        push_line(self, name, value);
    }

    fn end(&mut self) {
        self.extend_from_slice(b"\r\n");
    }
}

/// Appends one field line.
pub(crate) fn push_line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}
