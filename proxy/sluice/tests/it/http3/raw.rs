//! Frames written by hand, on streams of quinn.

use quinn::{Connection, ReadError, ReadToEndError, RecvStream, SendStream, VarInt};

/// Frame types.
pub(super) const DATA: u64 = 0;
pub(super) const HEADERS: u64 = 1;
pub(super) const SETTINGS: u64 = 4;
pub(super) const GOAWAY: u64 = 7;

/// A number as QUIC writes it.
pub(super) fn varint(number: u64) -> Vec<u8> {
    match number {
        0..=0x3f => vec![number as u8],
        0x40..=0x3fff => (number as u16 | 0x4000).to_be_bytes().to_vec(),
        0x4000..=0x3fff_ffff => (number as u32 | 0x8000_0000).to_be_bytes().to_vec(),
        _ => (number | 0xc000_0000_0000_0000).to_be_bytes().to_vec(),
    }
}

/// A frame.
pub(super) fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    [varint(kind), varint(payload.len() as u64), payload.to_vec()].concat()
}

/// A field section of literal lines.
pub(super) fn section(fields: &[(&str, &str)]) -> Vec<u8> {
    fn length(out: &mut Vec<u8>, first: u8, bits: u32, length: usize) {
        let mask = (1 << bits) - 1;
        if length < mask {
            return out.push(first | length as u8);
        }
        out.push(first | mask as u8);
        let mut rest = length - mask;
        while rest >= 128 {
            out.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        out.push(rest as u8);
    }
    let mut out = vec![0, 0];
    for (name, value) in fields {
        length(&mut out, 0x20, 3, name.len());
        out.extend_from_slice(name.as_bytes());
        length(&mut out, 0, 7, value.len());
        out.extend_from_slice(value.as_bytes());
    }
    out
}

/// A HEADERS frame of a request to this path.
pub(super) fn head(method: &str, path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let start = [(":method", method), (":scheme", "https"), (":authority", "a.test"), (":path", path)];
    frame(HEADERS, &section(&[&start[..], fields].concat()))
}

/// Opens the control stream, with these bytes after its type.
pub(super) async fn control(connection: &Connection, bytes: &[u8]) -> SendStream {
    uni(connection, 0, bytes).await
}

/// Opens a stream of this type.
pub(super) async fn uni(connection: &Connection, kind: u64, bytes: &[u8]) -> SendStream {
    let mut stream = connection.open_uni().await.unwrap();
    // It may be refused meanwhile.
    let _ = stream.write_all(&[&varint(kind), bytes].concat()).await;
    stream
}

/// Sends bytes on a request stream, ends it, and reads what comes back.
pub(super) async fn exchange(connection: &Connection, bytes: &[u8]) -> Result<Vec<u8>, u64> {
    let (mut send, receive) = connection.open_bi().await.unwrap();
    let _ = send.write_all(bytes).await;
    let _ = send.finish();
    rest(receive).await
}

/// Reads to the end; the code of a reset.
pub(super) async fn rest(mut receive: RecvStream) -> Result<Vec<u8>, u64> {
    match receive.read_to_end(10_000_000).await {
        Ok(bytes) => Ok(bytes),
        Err(ReadToEndError::Read(ReadError::Reset(code))) => Err(code.into_inner()),
        Err(error) => panic!("{error}"),
    }
}

/// The code that a connection was closed with.
pub(super) async fn closed(connection: &Connection) -> u64 {
    match connection.closed().await {
        quinn::ConnectionError::ApplicationClosed(close) => close.error_code.into_inner(),
        quinn::ConnectionError::ConnectionClosed(close) => u64::from(close.error_code),
        error => panic!("{error}"),
    }
}

/// A code.
pub(super) fn code(number: u32) -> VarInt {
    VarInt::from_u32(number)
}
