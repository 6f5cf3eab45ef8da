//! How many requests the bytes of a client contain, and their content, by the strictest reading of RFC 9112 that still
//! accepts everything sluice is documented to accept. sluice may forward fewer requests, but never more, and nothing
//! else.

use super::wire::{Cursor, Dialect, Field, Halt, Read, invalid, is_text, is_token, length, trim, values};

/// A request as it must arrive at the origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) method: Vec<u8>,
    /// Path and query, or `*`.
    pub(super) target: Vec<u8>,
    /// Empty if an HTTP/1.0 request has none.
    pub(super) host: Vec<u8>,
    pub(super) fields: Vec<Field>,
    pub(super) body: Vec<u8>,
    pub(super) trailers: Vec<Field>,
}

/// All requests of one connection.
pub(super) struct Sent {
    pub(super) requests: Vec<Request>,
    /// The method of the following bytes: of a request that is cut, or refused.
    pub(super) next_method: Vec<u8>,
    /// Why no further request can be parsed; none if the bytes end after the last one, or it closes the connection.
    pub(super) halt: Option<Halt>,
}

/// Maximum empty lines before a request.
const EMPTY_LINES_MAX: usize = 64;

/// Reads all of `bytes`.
pub(super) fn read(bytes: &[u8]) -> Sent {
    let mut cursor = Cursor::new(bytes, Dialect::Rfc);
    let mut sent = Sent { requests: Vec::new(), next_method: Vec::new(), halt: None };
    loop {
        cursor.skip_empty_lines(EMPTY_LINES_MAX);
        if cursor.is_at_end() {
            return sent;
        }
        let method = cursor.rest().split(|byte| *byte == b' ').next().unwrap_or_default();
        sent.next_method = method.to_vec();
        match request(&mut cursor) {
            Ok((request, keep_alive)) => {
                sent.requests.push(request);
                if !keep_alive {
                    return sent;
                }
            }
            Err(halt) => {
                sent.halt = Some(halt);
                return sent;
            }
        }
    }
}

/// One request, and whether another may follow.
fn request(cursor: &mut Cursor<'_>) -> Read<(Request, bool)> {
    let line = cursor.line()?;
    let mut words = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return invalid("request line that is not three words");
    };
    let is_http10 = match version {
        b"HTTP/1.1" => false,
        b"HTTP/1.0" => true,
        _ => return invalid("version"),
    };
    if !is_token(method) {
        return invalid("method that is not a token");
    }
    let fields = cursor.fields()?;
    let host = host(&fields, is_http10)?;
    let (target, host) = resolve(method, target, host)?;
    let (body, trailers) = body(cursor, &fields, is_http10)?;
    let options = connection_options(&fields)?;
    let has = |name: &str| options.iter().any(|option| option.eq_ignore_ascii_case(name.as_bytes()));
    let keep_alive = !has("close") && (!is_http10 || has("keep-alive"));
    Ok((Request { method: method.to_vec(), target, host, fields, body, trailers }, keep_alive))
}

fn host(fields: &[Field], is_http10: bool) -> Read<Vec<u8>> {
    match values(fields, "host")[..] {
        [] if is_http10 => Ok(Vec::new()),
        [host] if host.is_empty() && is_http10 => Ok(Vec::new()),
        [host] if is_authority(host) => Ok(host.to_vec()),
        _ => invalid("not one valid Host"),
    }
}

/// Path and query, and the host of the request.
fn resolve(method: &[u8], target: &[u8], host: Vec<u8>) -> Read<(Vec<u8>, Vec<u8>)> {
    if !target.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'#') {
        return invalid("byte that is not allowed in a target");
    }
    if target.first() == Some(&b'/') || (method == b"OPTIONS" && target == b"*") {
        return Ok((target.to_vec(), host));
    }
    let scheme = [&b"http://"[..], b"https://"]
        .into_iter()
        .find(|scheme| target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)));
    let Some(rest) = scheme.map(|scheme| &target[scheme.len()..]) else {
        return invalid("form of the target");
    };
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    if !is_authority(authority) || !(host.is_empty() || host.eq_ignore_ascii_case(authority)) {
        return invalid("authority of the target");
    }
    let path = match rest {
        [b'/', ..] => rest.to_vec(),
        [] if method == b"OPTIONS" => b"*".to_vec(),
        _ => [b"/", rest].concat(),
    };
    Ok((path, authority.to_vec()))
}

/// host [ ":" port ], with a host that is not empty and contains nothing that could end it.
fn is_authority(authority: &[u8]) -> bool {
    let text = String::from_utf8_lossy(authority);
    let (host, port) = match text.strip_prefix('[') {
        Some(inner) => match inner.split_once(']') {
            Some((address, port)) if address.parse::<std::net::Ipv6Addr>().is_ok() => ("v6", port),
            _ => return false,
        },
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._~!$&'()*+;=%".contains(c);
    let port_is_number = match port.strip_prefix(':') {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_digit()) && digits.parse::<u16>().is_ok(),
        None => port.is_empty(),
    };
    !host.is_empty() && host.chars().all(allowed) && port_is_number
}

fn body(cursor: &mut Cursor<'_>, fields: &[Field], is_http10: bool) -> Read<(Vec<u8>, Vec<Field>)> {
    if fields.iter().any(|field| imitates_framing(&field.name)) {
        return invalid("field that imitates Content-Length or Transfer-Encoding");
    }
    match (&values(fields, "transfer-encoding")[..], &values(fields, "content-length")[..]) {
        ([], []) => Ok((Vec::new(), Vec::new())),
        ([], [value]) => Ok((cursor.counted(length(value)?)?, Vec::new())),
        ([coding], []) if coding.eq_ignore_ascii_case(b"chunked") && !is_http10 => cursor.chunked(),
        _ => invalid("ambiguous framing"),
    }
}

/// Whether a server that reads `_` as `-` takes the field for a framing field.
fn imitates_framing(name: &[u8]) -> bool {
    let dashed: Vec<u8> = name.iter().map(|byte| if *byte == b'_' { b'-' } else { *byte }).collect();
    let is_framing = [&b"content-length"[..], b"transfer-encoding"]
        .iter()
        .any(|framing| dashed.eq_ignore_ascii_case(framing));
    name.contains(&b'_') && is_framing
}

/// The members of all Connection fields.
pub(super) fn connection_options(fields: &[Field]) -> Read<Vec<Vec<u8>>> {
    let members =
        values(fields, "connection").into_iter().flat_map(|value| value.split(|byte| *byte == b','));
    let members: Vec<Vec<u8>> =
        members.map(|member| trim(member).to_vec()).filter(|member| !member.is_empty()).collect();
    match members.iter().all(|member| is_token(member) && is_text(member)) {
        true => Ok(members),
        false => invalid("Connection option that is not a token"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> (usize, Option<Halt>) {
        let sent = read(text.replace('\n', "\r\n").as_bytes());
        (sent.requests.len(), sent.halt)
    }

    #[test]
    fn requests_are_counted_up_to_the_first_doubt() {
        assert_eq!(count("GET / HTTP/1.1\nHost: a\n\n\nGET / HTTP/1.1\nHost: a\n\n"), (2, None));
        assert_eq!(
            count("GET / HTTP/1.1\nHost: a\nConnection: close\n\nGET / HTTP/1.1\nHost: a\n\n"),
            (1, None)
        );
        assert_eq!(count("GET / HTTP/1.1\nHost: a\n\nGET"), (1, Some(Halt::Short)));
        for doubt in
            ["Content-Length: 1\nContent-Length: 1", "Content-Length: +1", "Transfer-Encoding: x", "Host: b"]
        {
            let (requests, halt) = count(&format!("POST / HTTP/1.1\nHost: a\n{doubt}\n\nx"));
            assert!(requests == 0 && matches!(halt, Some(Halt::Invalid(_))), "{doubt}");
        }
    }

    #[test]
    fn an_absolute_target_loses_its_authority() {
        let sent = read(b"GET http://a:1?x HTTP/1.0\r\n\r\n");
        assert_eq!((&sent.requests[0].target[..], &sent.requests[0].host[..]), (&b"/?x"[..], &b"a:1"[..]));
        assert_eq!(read(b"GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n").requests.len(), 0);
    }
}
