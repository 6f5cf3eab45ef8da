//! The PROXY protocol header before the first byte of a connection (haproxy's proxy-protocol.txt).

use std::net::SocketAddr;

use ppp::{PartialResult, v1, v2};

/// The longest header to wait for: a v2 header with its addresses and extensions.
pub const HEADER_BYTES_MAX: usize = 4096;
/// The longest v1 header, including its CRLF (section 2.1).
const LINE_BYTES_MAX: usize = 107;

/// What the first bytes of a connection contain.
#[derive(Debug, PartialEq, Eq)]
pub enum Header {
    /// A header of this length, and the client it names; `None` if it names none (LOCAL, UNKNOWN).
    Complete(usize, Option<SocketAddr>),
    /// More bytes are needed.
    Partial,
    /// No header of an expected kind.
    Invalid,
}

/// Kinds of header that are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The line of text (version 1).
    pub text: bool,
    /// The binary header (version 2).
    pub binary: bool,
}

/// Looks for an `expected` kind of header at the start of `data`.
pub fn parse(data: &[u8], expected: Expected) -> Header {
    const V2_START: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
    let starts_like = |start: &[u8]| data.iter().zip(start).all(|(a, b)| a == b);
    let text = expected.text && starts_like(b"PROXY ");
    let binary = expected.binary && starts_like(V2_START);
    match (text, binary) {
        (true, true) => Header::Partial,
        (true, false) => parse_line(data),
        (false, true) => parse_binary(data),
        (false, false) => Header::Invalid,
    }
}

/// Parses only once the line is whole: the parser rejects some truncated lines as invalid (those that end before the
/// last port), and reports some invalid lines as truncated.
fn parse_line(data: &[u8]) -> Header {
    let line = &data[..data.len().min(LINE_BYTES_MAX)];
    let Some(end) = line.windows(2).position(|pair| pair == b"\r\n") else {
        return if data.len() < LINE_BYTES_MAX { Header::Partial } else { Header::Invalid };
    };
    match v1::Header::try_from(&line[..end + 2]) {
        // A port consists of digits only (section 2.1).
        Ok(_) if line[..end].contains(&b'+') => Header::Invalid,
        Ok(header) => Header::Complete(header.header.len(), v1_client(header.addresses)),
        Err(_) => Header::Invalid,
    }
}

fn parse_binary(data: &[u8]) -> Header {
    match v2::Header::try_from(data) {
        Ok(header) => Header::Complete(header.len(), v2_client(&header)),
        Err(error) if error.is_incomplete() && data.len() < HEADER_BYTES_MAX => Header::Partial,
        Err(_) => Header::Invalid,
    }
}

fn v1_client(addresses: v1::Addresses) -> Option<SocketAddr> {
    match addresses {
        v1::Addresses::Tcp4(tcp) => Some((tcp.source_address, tcp.source_port).into()),
        v1::Addresses::Tcp6(tcp) => Some((tcp.source_address, tcp.source_port).into()),
        v1::Addresses::Unknown => None,
    }
}

fn v2_client(header: &v2::Header<'_>) -> Option<SocketAddr> {
    match (header.command, header.addresses) {
        (v2::Command::Proxy, v2::Addresses::IPv4(ip)) => Some((ip.source_address, ip.source_port).into()),
        (v2::Command::Proxy, v2::Addresses::IPv6(ip)) => Some((ip.source_address, ip.source_port).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: Expected = Expected { text: true, binary: false };
    const BINARY: Expected = Expected { text: false, binary: true };
    const ANY: Expected = Expected { text: true, binary: true };
    const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc6\x33\x64\x01\x7f\0\0\x01\x12\x34\0\x50";

    #[test]
    fn both_header_versions_name_the_client() {
        let client = Some(SocketAddr::from(([198, 51, 100, 1], 4660)));
        let text = b"PROXY TCP4 198.51.100.1 127.0.0.1 4660 80\r\nGET /";
        assert_eq!(parse(text, TEXT), Header::Complete(text.len() - 5, client));
        assert_eq!(parse(text, ANY), Header::Complete(text.len() - 5, client));
        assert_eq!(parse(V2, BINARY), Header::Complete(V2.len(), client));
        assert_eq!(parse(b"PROXY UNKNOWN\r\n", TEXT), Header::Complete(15, None));
    }

    #[test]
    fn other_bytes_are_invalid_and_prefixes_are_partial() {
        assert_eq!(parse(b"GET / HTTP/1.1\r\n", ANY), Header::Invalid);
        assert_eq!(parse(b"G", ANY), Header::Invalid);
        assert_eq!(parse(V2, TEXT), Header::Invalid);
        assert_eq!(parse(b"PROXY TCP4 x", BINARY), Header::Invalid);
        assert_eq!(parse(b"PROXY TCP4 nonsense here\r\n", ANY), Header::Invalid);
        let signed = b"PROXY TCP4 198.51.100.1 127.0.0.1 +4660 80\r\n";
        assert_eq!(parse(signed, ANY), Header::Invalid);
        let text: [&[u8]; 3] = [
            b"PROXY TCP4 198.51.100.1 127.0.0.1 4660 80\r\n",
            b"PROXY TCP6 2001:db8::1 ::1 4660 80\r\n",
            b"PROXY UNKNOWN\r\n",
        ];
        for header in [V2, text[0], text[1], text[2]] {
            for length in 0..header.len() {
                assert_eq!(parse(&header[..length], ANY), Header::Partial, "{header:?} {length}");
            }
        }
    }

    #[test]
    fn endless_header_is_invalid() {
        let mut endless = b"PROXY TCP4 ".to_vec();
        endless.resize(HEADER_BYTES_MAX, b'1');
        assert_eq!(parse(&endless, ANY), Header::Invalid);
    }
}
