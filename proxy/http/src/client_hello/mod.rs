//! Reads the server name in the first message of a TLS client, which decides where the connection goes.
//!
//! Pure. Apart from the name, only the structure is checked: the endpoint judges the contents itself, so clients with
//! TLS versions that sluice does not support pass as well. A name that two readers could read differently is refused.

use std::ops::ControlFlow;

/// Bytes of a record header (RFC 8446 5.1).
const RECORD_HEADER_BYTES: usize = 5;
/// The content type of handshake messages (RFC 8446 5.1).
const HANDSHAKE: u8 = 22;
/// The major version of every TLS record, including SSL 3.0.
const MAJOR: u8 = 3;
/// Bytes of a record's plaintext (RFC 8446 5.1).
const RECORD_BYTES_MAX: usize = 1 << 14;
/// Bytes of a handshake message header: type and length (RFC 8446 4).
const MESSAGE_HEADER_BYTES: usize = 4;
/// The handshake type of a ClientHello (RFC 8446 4).
const CLIENT_HELLO: u8 = 1;
/// The extension that names the server (RFC 6066 3).
const SERVER_NAME: u16 = 0;
/// The only type of name (RFC 6066 3).
const HOST_NAME: u8 = 0;
/// Bytes of a host name as text (RFC 1035 3.1).
const NAME_BYTES_MAX: usize = 253;

/// What the first bytes of a connection are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientHello {
    /// A whole ClientHello and the server that it names, in lower case and without a trailing dot.
    Complete(Option<String>),
    /// The beginning of a ClientHello.
    Partial,
    /// The beginning of a ClientHello that is larger than allowed.
    TooLarge,
    /// Not TLS.
    NotTls,
    /// TLS records, but no ClientHello that every reader would read the same way.
    Malformed,
}

/// Looks for a ClientHello of at most `bytes_max` bytes, including the headers of its records, at the start of `data`.
/// Bytes after it are ignored.
pub fn parse(data: &[u8], bytes_max: usize) -> ClientHello {
    let is_cut = data.len() >= bytes_max;
    match records(&data[..data.len().min(bytes_max)], bytes_max) {
        Records::Message(message) => match server_name(&message) {
            Some(name) => ClientHello::Complete(name),
            None => ClientHello::Malformed,
        },
        Records::Partial if is_cut => ClientHello::TooLarge,
        Records::Partial => ClientHello::Partial,
        Records::TooLarge => ClientHello::TooLarge,
        Records::NotTls => ClientHello::NotTls,
        Records::Malformed => ClientHello::Malformed,
    }
}

/// What a sequence of records contains.
enum Records {
    /// A whole ClientHello, without the message header.
    Message(Vec<u8>),
    /// A part of a ClientHello.
    Partial,
    /// A part of a ClientHello whose length field exceeds the limit.
    TooLarge,
    NotTls,
    Malformed,
}

/// Reassembles a message, which may be split over records anywhere (RFC 8446 5.1).
fn records(data: &[u8], bytes_max: usize) -> Records {
    let mut message = Vec::new();
    let mut rest = data;
    loop {
        let (taken, expected) = match record(rest, message.is_empty()) {
            ControlFlow::Continue(record) => record,
            ControlFlow::Break(end) => return end,
        };
        message.extend_from_slice(taken);
        if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Records::Malformed;
        }
        let wanted = match message[..] {
            [_, a, b, c, ..] => MESSAGE_HEADER_BYTES + u32::from_be_bytes([0, a, b, c]) as usize,
            _ => MESSAGE_HEADER_BYTES,
        };
        if wanted + RECORD_HEADER_BYTES > bytes_max {
            return Records::TooLarge;
        }
        if message.len() >= wanted && message.len() >= MESSAGE_HEADER_BYTES {
            message.truncate(wanted);
            message.drain(..MESSAGE_HEADER_BYTES);
            return Records::Message(message);
        }
        if taken.len() < expected {
            return Records::Partial;
        }
        rest = &rest[RECORD_HEADER_BYTES + expected..];
    }
}

/// The received part of the first record's content, and the full length of that content.
fn record(data: &[u8], is_first: bool) -> ControlFlow<Records, (&[u8], usize)> {
    let starts_wrong = data.iter().zip([HANDSHAKE, MAJOR]).any(|(byte, expected)| *byte != expected);
    if starts_wrong {
        return ControlFlow::Break(if is_first { Records::NotTls } else { Records::Malformed });
    }
    let [_, _, _, high, low, content @ ..] = data else {
        return ControlFlow::Break(Records::Partial);
    };
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    // Records with handshake messages are never empty (RFC 8446 5.1).
    if !(1..=RECORD_BYTES_MAX).contains(&length) {
        return ControlFlow::Break(Records::Malformed);
    }
    ControlFlow::Continue((&content[..content.len().min(length)], length))
}

/// The server that a ClientHello names, if any (RFC 8446 4.1.2); `None` if the ClientHello is malformed.
fn server_name(message: &[u8]) -> Option<Option<String>> {
    let mut rest = message;
    // The legacy version and the random bytes.
    take(&mut rest, 2 + 32)?;
    let session = prefixed(&mut rest, 1)?;
    let suites = prefixed(&mut rest, 2)?;
    let compressions = prefixed(&mut rest, 1)?;
    if session.len() > 32 || suites.is_empty() || suites.len() % 2 != 0 || compressions.is_empty() {
        return None;
    }
    // Before TLS 1.3, a ClientHello may end here.
    if rest.is_empty() {
        return Some(None);
    }
    let mut extensions = prefixed(&mut rest, 2)?;
    if !rest.is_empty() {
        return None;
    }
    let mut name = None;
    while !extensions.is_empty() {
        let kind = number(take(&mut extensions, 2)?);
        let content = prefixed(&mut extensions, 2)?;
        if kind == usize::from(SERVER_NAME) && name.replace(host_name(content)?).is_some() {
            return None;
        }
    }
    Some(name)
}

/// The name in a server name extension (RFC 6066 3): "The ServerNameList MUST NOT contain more than one name of the
/// same name_type", and only one type exists.
fn host_name(extension: &[u8]) -> Option<String> {
    let mut rest = extension;
    let mut list = prefixed(&mut rest, 2)?;
    let kind = take(&mut list, 1)?;
    let name = prefixed(&mut list, 2)?;
    if kind != [HOST_NAME] || !list.is_empty() || !rest.is_empty() {
        return None;
    }
    let name = name.strip_suffix(b".").unwrap_or(name);
    let visible = name.iter().all(u8::is_ascii_graphic);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !visible {
        return None;
    }
    Some(String::from_utf8_lossy(name).to_ascii_lowercase())
}

fn take<'d>(data: &mut &'d [u8], count: usize) -> Option<&'d [u8]> {
    data.split_off(..count)
}

/// The bytes after a length field of `length_bytes` bytes.
fn prefixed<'d>(data: &mut &'d [u8], length_bytes: usize) -> Option<&'d [u8]> {
    let length = number(take(data, length_bytes)?);
    take(data, length)
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

#[cfg(test)]
mod tests;
