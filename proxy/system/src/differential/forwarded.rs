//! One request as it arrives at the origin, which must be exactly what sluice writes: anything else on a connection to
//! the origin was smuggled, or is a fault of sluice's encoder.

use std::net::Ipv4Addr;

use super::wire::{Cursor, Dialect, Field, Halt, Read, invalid, is_token, length, values};

/// The field that the route adds. Its value is known only to this run.
pub(super) const TOKEN_FIELD: &str = "X-Differential";

/// Fields that sluice adds to each request, exactly one of each.
const OWN: [&str; 5] =
    [TOKEN_FIELD, "X-Forwarded-For", "X-Forwarded-Proto", "X-Request-Id", "X-Request-Start"];
/// Fields that sluice writes, at fixed positions.
const WRITTEN: [&str; 6] =
    ["Host", "X-Forwarded-Host", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade"];

/// A request without the fields that sluice adds.
#[derive(Clone, Debug)]
pub(super) struct Forwarded {
    /// Its client, according to sluice.
    pub(super) client: Ipv4Addr,
    pub(super) method: Vec<u8>,
    pub(super) target: Vec<u8>,
    pub(super) host: Vec<u8>,
    /// What the client's own fields became.
    pub(super) fields: Vec<Field>,
    pub(super) expects_continue: bool,
    pub(super) body: Vec<u8>,
    pub(super) trailers: Vec<Field>,
}

/// What the bytes of a connection contain so far.
pub(super) enum Found {
    /// A request of this many bytes.
    Whole(Forwarded, usize),
    /// A valid head whose body is incomplete.
    Head(Forwarded),
}

/// Parses one request at the front of `bytes`.
///
/// # Errors
/// [`Halt::Short`] while the head is incomplete.
pub(super) fn read(bytes: &[u8], token: &str) -> Read<Found> {
    let mut cursor = Cursor::new(bytes, Dialect::Sluice);
    let mut request = head(&mut cursor, token)?;
    let (framing, fields): (Vec<Field>, Vec<Field>) = std::mem::take(&mut request.fields)
        .into_iter()
        .partition(|field| field.is("content-length") || field.is("transfer-encoding"));
    request.fields = fields;
    match body(&mut cursor, &framing) {
        Ok((body, trailers)) => {
            let request = Forwarded { body, trailers, ..request };
            Ok(Found::Whole(request, cursor.at))
        }
        Err(Halt::Short) => Ok(Found::Head(request)),
        Err(invalid) => Err(invalid),
    }
}

fn head(cursor: &mut Cursor<'_>, token: &str) -> Read<Forwarded> {
    let line = cursor.line()?;
    let mut words = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(b"HTTP/1.1"), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return invalid("request line that sluice does not write");
    };
    let is_path = target.first() == Some(&b'/') || target == b"*";
    if !is_token(method) || !is_path || !target.iter().all(u8::is_ascii_graphic) {
        return invalid("method or target that sluice does not write");
    }
    let fields = cursor.fields()?;
    for name in OWN {
        if values(&fields, name).len() != 1 {
            return invalid(format!("not exactly one {name}"));
        }
    }
    if values(&fields, TOKEN_FIELD) != [token.as_bytes()] {
        return invalid(format!("{TOKEN_FIELD} with another value"));
    }
    let hosts = values(&fields, "host");
    let ([host], true) = (&hosts[..], fields.first().is_some_and(|field| field.is("host"))) else {
        return invalid("not exactly one Host at the front");
    };
    let expects_continue =
        values(&fields, "expect").iter().any(|value| value.eq_ignore_ascii_case(b"100-continue"));
    Ok(Forwarded {
        client: client(&fields)?,
        method: method.to_vec(),
        target: target.to_vec(),
        host: host.to_vec(),
        expects_continue,
        body: Vec::new(),
        trailers: Vec::new(),
        fields: connection(fields)?,
    })
}

/// The fields of the client and those for framing, if sluice's own fields about the connection are right.
fn connection(fields: Vec<Field>) -> Read<Vec<Field>> {
    match (&values(&fields, "connection")[..], &values(&fields, "upgrade")[..]) {
        ([], []) => {}
        ([b"upgrade"], [_]) => {}
        _ => return invalid("Connection or Upgrade that sluice does not write"),
    }
    let frames = |field: &Field| field.is("content-length") || field.is("transfer-encoding");
    let written = |field: &Field| OWN.iter().chain(&WRITTEN).any(|name| field.is(name));
    Ok(fields.into_iter().filter(|field| frames(field) || !written(field)).collect())
}

fn client(fields: &[Field]) -> Read<Ipv4Addr> {
    let address = values(fields, "x-forwarded-for").first().map(|value| String::from_utf8_lossy(value));
    match address.and_then(|text| text.parse().ok()) {
        Some(address) => Ok(address),
        None => invalid("X-Forwarded-For that is not one address"),
    }
}

fn body(cursor: &mut Cursor<'_>, framing: &[Field]) -> Read<(Vec<u8>, Vec<Field>)> {
    match framing {
        [] => Ok((Vec::new(), Vec::new())),
        [one] if one.is("transfer-encoding") && one.value == b"chunked" => cursor.chunked(),
        [one] if one.is("content-length") => {
            let length = length(&one.value)?;
            if length.to_string().as_bytes() != one.value {
                return invalid("Content-Length that sluice does not write");
            }
            Ok((cursor.counted(length)?, Vec::new()))
        }
        _ => invalid("more than one framing field"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN_LINES: &str = "X-Differential: t\nX-Forwarded-For: 127.0.0.1\nX-Forwarded-Proto: http\n\
        X-Request-Id: 1\nX-Request-Start: t=1.000\n";

    fn read_text(text: &str) -> Read<Found> {
        read(text.replace('\n', "\r\n").as_bytes(), "t")
    }

    #[test]
    fn only_requests_as_written_by_sluice_are_accepted() {
        let good = format!("POST /a HTTP/1.1\nHost: a\nB: c\n{OWN_LINES}Content-Length: 1\n\nxGET");
        let Ok(Found::Whole(request, end)) = read_text(&good) else { panic!("refused") };
        assert_eq!((&request.body[..], request.fields.len()), (&b"x"[..], 1));
        assert_eq!(end, good.replace('\n', "\r\n").len() - 3);
        for (from, to) in [
            ("Content-Length: 1", "Content-Length: 01"),
            ("Content-Length: 1", "Content-Length: 1\nTransfer-Encoding: chunked"),
            ("Host: a", "Host: a\nHost: a"),
            ("B: c", "B:c"),
            ("B: c", "Connection: close"),
            ("X-Differential: t", "X-Differential: u"),
            ("X-Differential: t\n", ""),
            ("POST /a", "POST  /a"),
        ] {
            assert!(read_text(&good.replace(from, to)).is_err(), "{to}");
        }
    }
}
