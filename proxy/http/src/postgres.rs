//! How PostgreSQL clients request TLS: with a plaintext request, and a one-byte response (PostgreSQL's manual, "SSL
//! Session Encryption" in its frontend/backend protocol). Pure.

/// Bytes of the requests that precede the first message.
pub const REQUEST_BYTES: usize = 8;
/// Requests TLS.
pub const SSL_REQUEST: [u8; REQUEST_BYTES] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];
/// Requests GSSAPI encryption, which libpq tries first if it has a ticket.
const GSSENC_REQUEST: [u8; REQUEST_BYTES] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x30];
/// The TLS handshake may begin.
pub const YES: u8 = b'S';
/// The requested encryption is not supported; the client may request another.
pub const NO: u8 = b'N';

/// The first bytes of a PostgreSQL client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// A request for TLS.
    Ssl,
    /// A request for GSSAPI encryption.
    Gssapi,
    /// A TLS record: `sslnegotiation=direct`.
    Direct,
    /// Not enough bytes to decide.
    Partial,
    /// Something else in plaintext.
    Other,
}

/// Classifies the first bytes of a connection.
pub fn opening(data: &[u8]) -> Opening {
    let starts_like = |request: &[u8]| data.iter().zip(request).all(|(a, b)| a == b);
    match data {
        [] => Opening::Partial,
        [22, ..] => Opening::Direct,
        _ if !starts_like(&SSL_REQUEST) && !starts_like(&GSSENC_REQUEST) => Opening::Other,
        _ if data.len() < REQUEST_BYTES => Opening::Partial,
        _ if starts_like(&SSL_REQUEST) => Opening::Ssl,
        _ => Opening::Gssapi,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postgres_requests_are_distinguished() {
        assert_eq!(opening(&SSL_REQUEST), Opening::Ssl);
        assert_eq!(opening(&[&SSL_REQUEST[..], &[22]].concat()), Opening::Ssl);
        assert_eq!(opening(&GSSENC_REQUEST), Opening::Gssapi);
        assert_eq!(opening(&[22, 3]), Opening::Direct);
        for length in 0..REQUEST_BYTES {
            assert_eq!(opening(&SSL_REQUEST[..length]), Opening::Partial, "{length}");
        }
        // A plaintext startup message, and a cancel request.
        assert_eq!(opening(&[0, 0, 0, 41, 0, 3, 0, 0]), Opening::Other);
        assert_eq!(opening(&[0, 0, 0, 16, 0x04, 0xd2, 0x16, 0x2e]), Opening::Other);
        assert_eq!(opening(b"GET / HTTP/1.1"), Opening::Other);
    }
}
