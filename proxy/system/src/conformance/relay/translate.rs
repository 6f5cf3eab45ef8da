//! Translates HTTP/1.1 requests to HTTP/2 and HTTP/3, or says why it cannot. Pure.
//!
//! Everything that these can represent is kept, including faults: a space in a name, a NUL in a value, two different
//! lengths. Only the syntax of lines and chunks is lost (RFC 9113 section 8.2).

use std::mem;

/// A field's name and value.
pub(crate) type Field = (Vec<u8>, Vec<u8>);

/// One request, ready for HPACK or QPACK.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Message {
    /// Pseudo-fields first, names in lower case.
    pub(crate) fields: Vec<Field>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<Field>,
    /// All of its body is present. Otherwise its stream stays open, as the HTTP/1.1 connection would wait.
    pub(crate) whole: bool,
    /// The client requested the end of its connection.
    pub(crate) last: bool,
}

impl Message {
    /// Responses to HEAD have no body, whatever their fields say.
    pub(crate) fn is_head(&self) -> bool {
        self.fields.iter().any(|(name, value)| name == b":method" && value == b"HEAD")
    }
}

/// Why HTTP/2 and HTTP/3 cannot represent it.
type Obstacle = &'static str;

/// Fields that RFC 9113 section 8.2.2 forbids.
const OF_THE_CONNECTION: &[&[u8]] = &[b"connection", b"keep-alive", b"proxy-connection", b"upgrade"];

const DIGITS_MAX: usize = 16;

/// All requests in `bytes`. From a request that must be forwarded (`valid`), parts that only exist in HTTP/1.1 are
/// removed, as any translator does; from others they are kept if the later versions can represent them, and must be refused.
///
/// # Errors
/// Why it cannot be expressed.
pub(crate) fn translate(mut bytes: &[u8], valid: bool) -> Result<Vec<Message>, Obstacle> {
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        let (message, rest) = one(bytes, valid)?;
        messages.push(message);
        bytes = rest;
    }
    Ok(messages)
}

fn one(bytes: &[u8], valid: bool) -> Result<(Message, &[u8]), Obstacle> {
    let end = find(bytes, b"\r\n\r\n").ok_or("head without end")?;
    let (head, rest) = (&bytes[..end], &bytes[end + 4..]);
    let mut lines = split(head);
    let words: Vec<&[u8]> = lines.next().unwrap_or_default().split(|byte| *byte == b' ').collect();
    let &[method, target, b"HTTP/1.1"] = &words[..] else {
        return Err("request line");
    };
    if method.is_empty() || target.is_empty() {
        return Err("request line");
    }
    let mut fields = lines.map(field).collect::<Result<Vec<Field>, Obstacle>>()?;
    let mut message = Message { last: leave_connection(&mut fields, valid)?, ..Message::default() };
    let rest = frame(&mut message, &mut fields, rest, valid)?;
    message.fields = pseudo(method, target, &mut fields);
    message.fields.append(&mut fields);
    Ok((message, rest))
}

/// A field line.
fn field(line: &[u8]) -> Result<Field, Obstacle> {
    if line.starts_with(b" ") || line.starts_with(b"\t") {
        return Err("folded line");
    }
    let colon = line.iter().position(|byte| *byte == b':').ok_or("line without colon")?;
    Ok((line[..colon].to_ascii_lowercase(), trim(&line[colon + 1..]).to_vec()))
}

/// Removes fields about the connection; returns whether it should end.
fn leave_connection(fields: &mut Vec<Field>, valid: bool) -> Result<bool, Obstacle> {
    let plain = |(name, value): &Field| {
        let mut words = value.split(|byte| *byte == b',').map(|word| trim(word).to_ascii_lowercase());
        name == b"connection" && words.all(|word| word == b"close" || word == b"keep-alive")
    };
    let closes = |one: &Field| plain(one) && find(&one.1.to_ascii_lowercase(), b"close").is_some();
    let last = fields.iter().any(closes);
    fields.retain(|one| !plain(one));
    if valid && fields.iter().any(|(name, _)| OF_THE_CONNECTION.contains(&&name[..])) {
        return Err("field of the connection");
    }
    Ok(last)
}

/// The body by the framing of RFC 9112 section 6.3; returns what follows it.
fn frame<'b>(
    message: &mut Message,
    fields: &mut Vec<Field>,
    rest: &'b [u8],
    valid: bool,
) -> Result<&'b [u8], Obstacle> {
    let values = |wanted: &[u8]| -> Vec<Vec<u8>> {
        fields.iter().filter(|(name, _)| name == wanted).map(|(_, value)| value.clone()).collect()
    };
    let (codings, lengths) = (values(b"transfer-encoding"), values(b"content-length"));
    message.whole = true;
    if codings.is_empty() && lengths.is_empty() {
        return Ok(rest);
    }
    if lengths.is_empty() && codings.len() == 1 && codings[0].eq_ignore_ascii_case(b"chunked") {
        fields.retain(|(name, _)| name != b"transfer-encoding");
        return chunks(message, rest);
    }
    if let (true, [length]) = (codings.is_empty(), &lengths[..])
        && let Some(length) = number(length, 10)
    {
        let (body, rest) = rest.split_at(length.min(rest.len()));
        message.whole = body.len() == length;
        message.body = body.to_vec();
        return Ok(rest);
    }
    if valid {
        return Err("framing of HTTP/1.1");
    }
    message.body = rest.to_vec();
    Ok(&[])
}

/// A chunked body, which is carried decoded.
fn chunks<'b>(message: &mut Message, mut rest: &'b [u8]) -> Result<&'b [u8], Obstacle> {
    loop {
        let Some(end) = find(rest, b"\r\n") else {
            message.whole = false;
            return if rest.is_empty() { Ok(rest) } else { Err("chunk without end") };
        };
        let size = number(&rest[..end], 16).ok_or("chunk syntax")?;
        rest = &rest[end + 2..];
        if size == 0 {
            break;
        }
        let after = rest.get(size..).ok_or("chunk without end")?;
        message.body.extend_from_slice(&rest[..size]);
        rest = after.strip_prefix(b"\r\n").ok_or("chunk syntax")?;
    }
    if let Some(after) = rest.strip_prefix(b"\r\n") {
        return Ok(after);
    }
    let end = find(rest, b"\r\n\r\n").ok_or("trailers without end")?;
    message.trailers = split(&rest[..end]).map(field).collect::<Result<_, _>>()?;
    Ok(&rest[end + 4..])
}

/// The pseudo-fields of RFC 9113 section 8.3.1; a Host that became one of them is removed.
fn pseudo(method: &[u8], target: &[u8], fields: &mut Vec<Field>) -> Vec<Field> {
    let pair = |name: &[u8], value: &[u8]| (name.to_vec(), value.to_vec());
    let mut made = vec![pair(b":method", method)];
    let absolute = find(target, b"://").filter(|_| !target.starts_with(b"/"));
    let mut hosts = fields.iter_mut().filter(|(name, value)| name == b"host" && !value.is_empty());
    let host = match (hosts.next(), hosts.next()) {
        // In addition to the authority of a target it is kept, because it may differ.
        (Some((_, value)), None) if absolute.is_none() => Some(mem::take(value)),
        _ => None,
    };
    if host.is_some() {
        fields.retain(|(name, value)| name != b"host" || !value.is_empty());
    }
    if method == b"CONNECT" {
        made.push(pair(b":authority", target));
        return made;
    }
    let (scheme, authority, path) = match absolute {
        Some(at) => {
            let rest = &target[at + 3..];
            let end = rest.iter().position(|byte| b"/?#".contains(byte)).unwrap_or(rest.len());
            let path = if end == rest.len() { b"/" } else { &rest[end..] };
            (&target[..at], Some(rest[..end].to_vec()), path)
        }
        None => (&b"http"[..], host, target),
    };
    made.push((b":scheme".to_vec(), scheme.to_ascii_lowercase()));
    made.extend(authority.map(|authority| (b":authority".to_vec(), authority)));
    made.push(pair(b":path", path));
    made
}

/// Splits at CRLF only: a bare LF stays in place.
fn split(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(head);
    std::iter::from_fn(move || {
        let now = rest?;
        let end = find(now, b"\r\n");
        rest = end.map(|end| &now[end + 2..]);
        Some(&now[..end.unwrap_or(now.len())])
    })
}

fn number(digits: &[u8], radix: u32) -> Option<usize> {
    let text = std::str::from_utf8(digits).ok()?;
    // HTTP/1.1 refuses numbers with too many digits when it reads them; their value does not matter here.
    let plain = (1..=DIGITS_MAX).contains(&text.len()) && text.chars().all(|digit| digit.is_digit(radix));
    plain.then(|| usize::from_str_radix(text, radix).ok()).flatten()
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

fn trim(value: &[u8]) -> &[u8] {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = value.iter().position(|byte| !blank(byte)).unwrap_or(value.len());
    let end = value.iter().rposition(|byte| !blank(byte)).map_or(start, |last| last + 1);
    &value[start..end]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn shown(fields: &[Field]) -> String {
        let pair = |(name, value): &Field| format!("{}={}", name.escape_ascii(), value.escape_ascii());
        fields.iter().map(pair).collect::<Vec<_>>().join(" ")
    }

    fn only(bytes: &[u8]) -> Message {
        let mut messages = translate(bytes, true).unwrap();
        assert_eq!(messages.len(), 1);
        messages.remove(0)
    }

    #[test]
    fn a_request_becomes_pseudo_fields_and_fields() {
        let message = only(b"GET /a?b HTTP/1.1\r\nHost: x:1\r\nConnection: close\r\nX-A:  b \r\n\r\n");
        assert_eq!(shown(&message.fields), ":method=GET :scheme=http :authority=x:1 :path=/a?b x-a=b");
        assert!(message.whole && message.last);
    }

    #[test]
    fn chunks_become_data_and_trailers() {
        let head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let message = only(&[&head[..], b"3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n"].concat());
        assert_eq!((&message.body[..], shown(&message.trailers)), (&b"abc"[..], "x-t=1".to_owned()));
        assert!(!shown(&message.fields).contains("transfer-encoding"));
        assert!(!only(&[&head[..], b"3\r\nabc\r\n"].concat()).whole);
        for broken in [&b"3;x\r\nabc\r\n0\r\n\r\n"[..], b"3\r\nabcd\r\n0\r\n\r\n", b"0x3\r\nabc\r\n0\r\n\r\n"]
        {
            assert_eq!(translate(&[&head[..], broken].concat(), true), Err("chunk syntax"));
        }
    }

    #[test]
    fn bytes_after_a_counted_body_are_another_request() {
        let bytes =
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nabGET /b HTTP/1.1\r\nHost: a\r\n\r\n";
        let messages = translate(bytes, true).unwrap();
        assert_eq!((messages.len(), &messages[0].body[..]), (2, &b"ab"[..]));
        assert!(!only(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nab").whole);
    }

    #[test]
    fn representable_faults_are_kept() {
        let kept = |bytes: &[u8]| shown(&translate(bytes, false).unwrap()[0].fields);
        assert!(kept(b"GET / HTTP/1.1\r\nHost: a\r\nX-T : v\0w\nb\r\n\r\n").ends_with(r"x-t =v\x00w\nb"));
        let both =
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
        assert!(kept(both).ends_with("content-length=1 transfer-encoding=chunked"));
        assert_eq!(translate(both, true), Err("framing of HTTP/1.1"));
        assert!(kept(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n").ends_with("host=a host=b"));
    }

    #[test]
    fn line_syntax_cannot_be_represented() {
        for (bytes, why) in [
            (&b"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n"[..], "folded line"),
            (b"GET / HTTP/1.1\r\nHost\r\n\r\n", "line without colon"),
            (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", "request line"),
            (b"GET / HTTP/1.0\r\n\r\n", "request line"),
            (b"GET / HTTP/1.1\r\nHost: a\r\n", "head without end"),
        ] {
            assert_eq!(translate(bytes, false), Err(why), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn an_absolute_target_has_its_own_authority() {
        let message = only(b"GET http://a/b HTTP/1.1\r\nHost: c\r\n\r\n");
        assert_eq!(shown(&message.fields), ":method=GET :scheme=http :authority=a :path=/b host=c");
    }
}
