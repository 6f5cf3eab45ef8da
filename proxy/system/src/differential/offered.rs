//! The meaning of an origin's bytes as the response to one request, by RFC 9112. sluice may accept fewer of them as a
//! response, but never more, and must not forward incomplete ones as complete.

use super::answers::Answer;
use super::sent::connection_options;
use super::wire::{Cursor, Dialect, Field, Halt, Read, invalid, is_text, length, trim, values};

/// A response and the bytes after it.
pub(super) struct Offered {
    pub(super) answer: Answer,
    /// Bytes after its end, which belong to no response.
    pub(super) surplus: usize,
}

/// Parses the response to a request with this method from `bytes`; `closes` says whether the connection closes after
/// them.
///
/// # Errors
/// [`Halt::Short`] if the response is cut.
pub(super) fn read(bytes: &[u8], method: &[u8], closes: bool) -> Read<Offered> {
    let mut cursor = Cursor::new(bytes, Dialect::Rfc);
    loop {
        let (is_http10, status, reason) = status_line(&mut cursor)?;
        let fields = cursor.fields()?;
        let _ = connection_options(&fields)?;
        if status == 101 {
            return invalid("a 101 that was not requested");
        }
        if status < 200 {
            // An interim response has no body, whatever it says.
            continue;
        }
        let mut answer = Answer {
            status,
            reason,
            fields,
            body: Vec::new(),
            trailers: Vec::new(),
            is_close_delimited: false,
            is_last: false,
        };
        let framing = framing(&answer.fields, is_http10)?;
        let has_body = !(matches!(status, 204 | 304) || method == b"HEAD");
        match framing {
            _ if !has_body => {}
            Framing::Length(length) => answer.body = cursor.counted(length)?,
            Framing::Chunked => (answer.body, answer.trailers) = cursor.chunked()?,
            Framing::None if !closes => return Err(Halt::Short),
            Framing::None => {
                answer.is_close_delimited = true;
                answer.body = cursor.rest().to_vec();
                cursor.at = bytes.len();
            }
        }
        return Ok(Offered { answer, surplus: cursor.rest().len() });
    }
}

enum Framing {
    None,
    Length(u64),
    Chunked,
}

/// The version, the status and the reason. A response without a reason may lack the space before it.
fn status_line(cursor: &mut Cursor<'_>) -> Read<(bool, u16, Vec<u8>)> {
    let line = cursor.line()?;
    let (is_http10, rest) = match (line.strip_prefix(b"HTTP/1.0 "), line.strip_prefix(b"HTTP/1.1 ")) {
        (Some(rest), _) => (true, rest),
        (_, Some(rest)) => (false, rest),
        _ => return invalid("status line"),
    };
    let (status, reason) = match rest.split_at_checked(3) {
        Some((status, [])) => (status, &[][..]),
        Some((status, [b' ', reason @ ..])) => (status, reason),
        _ => return invalid("status line"),
    };
    let digits =
        std::str::from_utf8(status).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    match digits.and_then(|text| text.parse().ok()) {
        Some(status @ 100..=599) if is_text(reason) => Ok((is_http10, status, reason.to_vec())),
        _ => invalid("status or reason"),
    }
}

fn framing(fields: &[Field], is_http10: bool) -> Read<Framing> {
    let lengths: Vec<&[u8]> = values(fields, "content-length")
        .into_iter()
        .flat_map(|value| value.split(|byte| *byte == b','))
        .map(trim)
        .collect();
    let codings = values(fields, "transfer-encoding");
    match (&lengths[..], &codings[..]) {
        ([], []) => Ok(Framing::None),
        ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") && !is_http10 => Ok(Framing::Chunked),
        ([first, others @ ..], []) => {
            let first = length(first)?;
            for other in others {
                if length(other)? != first {
                    return invalid("two lengths");
                }
            }
            Ok(Framing::Length(first))
        }
        _ => invalid("ambiguous framing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(text: &str, method: &[u8], closes: bool) -> Option<(String, usize)> {
        let offered = read(text.replace('\n', "\r\n").as_bytes(), method, closes).ok()?;
        Some((String::from_utf8_lossy(&offered.answer.body).into_owned(), offered.surplus))
    }

    #[test]
    fn responses_end_where_the_rfc_says() {
        let counted = "HTTP/1.1 100 Continue\n\nHTTP/1.1 200 OK\nContent-Length: 1, 1\n\nabc";
        assert_eq!(body(counted, b"GET", false), Some(("a".to_owned(), 2)));
        assert_eq!(body(counted, b"HEAD", false), Some((String::new(), 3)));
        let open = "HTTP/1.1 200\n\nabc";
        assert_eq!(body(open, b"GET", true), Some(("abc".to_owned(), 0)));
        assert_eq!(body(open, b"GET", false), None);
        assert_eq!(body("HTTP/1.0 200 OK\nTransfer-Encoding: chunked\n\n0\n\n", b"GET", true), None);
    }
}
