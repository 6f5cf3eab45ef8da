//! How PostgreSQL's clients ask for TLS: by a request in the clear, which one byte answers (PostgreSQL's manual, "SSL
//! Session Encryption" in its frontend/backend protocol). Pure.

/// Bytes of the requests that come before the first message.
pub const REQUEST_BYTES: usize = 8;
/// Asks for TLS.
pub const SSL_REQUEST: [u8; REQUEST_BYTES] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];
/// Asks for encryption by GSSAPI, which libpq does first where it has a ticket.
const GSSENC_REQUEST: [u8; REQUEST_BYTES] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x30];
/// Says that the TLS handshake may begin.
pub const YES: u8 = b'S';
/// Says that there is none of what was asked for; the client may ask for something else.
pub const NO: u8 = b'N';

/// What a client of PostgreSQL begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// A request for TLS.
    Ssl,
    /// A request for encryption by GSSAPI.
    Gssapi,
    /// A TLS record: `sslnegotiation=direct`.
    Direct,
    /// Not enough bytes to tell.
    Partial,
    /// Something in the clear.
    Other,
}

/// Looks at the first bytes of a connection.
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
    fn requests_are_told_apart() {
        assert_eq!(opening(&SSL_REQUEST), Opening::Ssl);
        assert_eq!(opening(&[&SSL_REQUEST[..], &[22]].concat()), Opening::Ssl);
        assert_eq!(opening(&GSSENC_REQUEST), Opening::Gssapi);
        assert_eq!(opening(&[22, 3]), Opening::Direct);
        for length in 0..REQUEST_BYTES {
            assert_eq!(opening(&SSL_REQUEST[..length]), Opening::Partial, "{length}");
        }
        // A startup message in the clear, and a request to cancel.
        assert_eq!(opening(&[0, 0, 0, 41, 0, 3, 0, 0]), Opening::Other);
        assert_eq!(opening(&[0, 0, 0, 16, 0x04, 0xd2, 0x16, 0x2e]), Opening::Other);
        assert_eq!(opening(b"GET / HTTP/1.1"), Opening::Other);
    }
}
