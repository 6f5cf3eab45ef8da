//! Whether a response is encoded, and what its head then says.

use sluice_config::{Compress, ContentCoding};
use sluice_http::{Acceptance, Coding, FieldEdits, Framing, Method, RequestHead, ResponseHead, Version};

/// Fields that say something of the bytes of a body: they would no longer be true.
const OF_BYTES: [&[u8]; 6] =
    [b"content-encoding", b"content-range", b"content-digest", b"repr-digest", b"digest", b"content-md5"];

/// What is done with a response that clients may get encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// This client gets it plain. Caches learn that others may not.
    Plain,
    /// It stands for a response that was encoded: the client has named its weak tag.
    Revalidated,
    /// It is encoded.
    Encode(Coding),
}

/// The choice for a response; `None` if no client would get it encoded.
pub(crate) fn choose(
    config: &Compress,
    request: &RequestHead,
    response: &ResponseHead,
    framing: Framing,
) -> Option<Choice> {
    if response.status() == 304 {
        let tag = response.get(b"etag").map(|tag| [b"W/", tag].concat());
        let named = request.get(b"if-none-match").zip(tag);
        let was_encoded = named.is_some_and(|(named, tag)| memchr::memmem::find(named, &tag).is_some());
        return Some(if was_encoded { Choice::Revalidated } else { Choice::Plain });
    }
    // RFC 9110 section 15.3.7: a part says of Vary what the whole response would say.
    if response.status() == 206 {
        return is_of_encodable(config, response).then_some(Choice::Plain);
    }
    if !is_encodable(config, request, response, framing) {
        return None;
    }
    let is_skipped = config.skip_with.iter().any(|name| request.get(name.as_bytes()).is_some());
    if is_skipped || request.version() == Version::Http10 {
        return Some(Choice::Plain);
    }
    let offered: Vec<Coding> = config.algorithms.iter().copied().map(coding).collect();
    Some(Acceptance::of(request).best(&offered).map_or(Choice::Plain, Choice::Encode))
}

fn is_encodable(config: &Compress, request: &RequestHead, response: &ResponseHead, framing: Framing) -> bool {
    if matches!(response.status(), 100..=199 | 204 | 205 | 206) || response.upgrade().is_some() {
        return false;
    }
    let length = match framing {
        Framing::Length(length) => Some(length),
        // A response to HEAD declares the length that GET would have.
        _ => declared_length(response),
    };
    let is_head = request.method() == Method::Head;
    if length.is_some_and(|length| length < config.body_bytes_min.max(1)) || (framing.is_empty() && !is_head)
    {
        return false;
    }
    config.takes(media_type(response))
        && OF_BYTES.iter().all(|name| response.get(name).is_none())
        && !lists(response, b"cache-control", b"no-transform")
}

/// Whether parts may be of a response that others would get encoded.
fn is_of_encodable(config: &Compress, response: &ResponseHead) -> bool {
    let kind = media_type(response);
    // Several parts have a type of their own, and each names that of the whole.
    (config.takes(kind) || kind.eq_ignore_ascii_case(b"multipart/byteranges"))
        && response.get(b"content-encoding").is_none()
        && !lists(response, b"cache-control", b"no-transform")
}

fn media_type(response: &ResponseHead) -> &[u8] {
    let kind = response.get(b"content-type").unwrap_or_default();
    kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii()
}

fn declared_length(response: &ResponseHead) -> Option<u64> {
    std::str::from_utf8(response.get(b"content-length")?).ok()?.parse().ok()
}

/// Whether a list field has this member, in any of its lines.
fn lists(response: &ResponseHead, name: &[u8], member: &[u8]) -> bool {
    let fields = response.fields().filter(|field| field.name.eq_ignore_ascii_case(name));
    let mut members = fields.flat_map(|field| field.value.split(|byte| *byte == b','));
    members.any(|one| one.trim_ascii().eq_ignore_ascii_case(member))
}

/// Fields that would not be true as trailers of an encoded body.
pub(crate) fn trailers_of_bytes() -> impl Iterator<Item = Vec<u8>> {
    OF_BYTES.iter().map(|name| name.to_vec())
}

/// The changes of the route, and those that tell of the choice. With `padding` the head has a length of its own: if
/// the body has a secret and something that an attacker chose, its length would otherwise tell how much they have in
/// common (BREACH).
pub(crate) fn describe(
    choice: Choice,
    response: &ResponseHead,
    edits: Option<&FieldEdits>,
    padding: Option<String>,
) -> FieldEdits {
    let mut edits = edits.cloned().unwrap_or_default();
    let names = |member: &[u8]| lists(response, b"vary", member) && !edits.takes_out(b"vary");
    if !names(b"accept-encoding") && !names(b"*") {
        edits.add.push((b"Vary".to_vec(), b"Accept-Encoding".to_vec()));
    }
    if choice == Choice::Plain {
        return edits;
    }
    // RFC 9110 section 8.8.1: the same tag for two representations is weak.
    if let Some(tag) = response.get(b"etag").filter(|tag| tag.starts_with(b"\""))
        && !edits.takes_out(b"etag")
    {
        edits.set.push((b"ETag".to_vec(), [b"W/", tag].concat()));
    }
    let Choice::Encode(coding) = choice else { return edits };
    // A range would be one of the encoded bytes, which nobody has kept.
    edits.remove.push(b"accept-ranges".to_vec());
    edits.set.push((b"Content-Encoding".to_vec(), coding.name().into()));
    edits.add.extend(padding.map(|padding| (b"X-Sluice-Padding".to_vec(), padding.into_bytes())));
    edits
}

/// The coding that a keyword stands for.
pub(crate) fn coding(coding: ContentCoding) -> Coding {
    match coding {
        ContentCoding::Brotli => Coding::Brotli,
        ContentCoding::Zstd => Coding::Zstd,
        ContentCoding::Gzip => Coding::Gzip,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use sluice_http::{HeadLimits, HeadScanner, Scan};

    use super::*;

    const LIMITS: HeadLimits =
        HeadLimits { head_bytes_max: 65_536, headers_max: 99, target_bytes_max: 65_536 };

    fn request(fields: &str) -> RequestHead {
        let bytes = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n").into_bytes();
        assert!(matches!(HeadScanner::new().scan(&bytes, &LIMITS), Ok(Scan::Complete(_))));
        let mut head = RequestHead::new();
        head.parse(&bytes, &LIMITS).unwrap();
        head
    }

    fn response(status: u16, fields: &str) -> ResponseHead {
        let bytes = format!("HTTP/1.1 {status} X\r\n{fields}\r\n").into_bytes();
        let mut head = ResponseHead::new();
        head.parse(&bytes, &LIMITS).unwrap();
        head
    }

    const HTML: &str = "Content-Type: text/html; charset=utf-8\r\n";

    #[test]
    fn only_what_shrinks_and_may_change_is_encoded() {
        let request = request("Accept-Encoding: gzip\r\n");
        let encode = Some(Choice::Encode(Coding::Gzip));
        for (status, fields, framing, wanted) in [
            (200, HTML, Framing::Length(5000), encode),
            (200, HTML, Framing::Chunked, encode),
            (404, HTML, Framing::Chunked, encode),
            (200, HTML, Framing::Length(1023), None),
            (200, HTML, Framing::Length(1024), encode),
            (200, "", Framing::Chunked, None),
            (200, "Content-Type: image/png\r\n", Framing::Chunked, None),
            (204, HTML, Framing::None, None),
            (206, HTML, Framing::Length(5000), Some(Choice::Plain)),
            (
                206,
                "Content-Type: multipart/byteranges; boundary=a\r\n",
                Framing::Length(5000),
                Some(Choice::Plain),
            ),
            (206, "Content-Type: image/png\r\n", Framing::Length(5000), None),
            (304, "ETag: \"a\"\r\n", Framing::None, Some(Choice::Plain)),
            (200, HTML, Framing::Length(0), None),
            (200, "Content-Type: text/html\r\nContent-Encoding: br\r\n", Framing::Chunked, None),
            (200, "Content-Type: text/html\r\nContent-Digest: sha-256=:a:\r\n", Framing::Chunked, None),
            (
                200,
                "Content-Type: text/html\r\nCache-Control: public, No-Transform\r\n",
                Framing::Chunked,
                None,
            ),
            (
                200,
                "Content-Type: text/html\r\nCache-Control: a\r\nCache-Control: no-transform\r\n",
                Framing::Chunked,
                None,
            ),
        ] {
            let response = response(status, fields);
            assert_eq!(
                choose(&Compress::default(), &request, &response, framing),
                wanted,
                "{status} {fields} {framing:?}"
            );
        }
    }

    #[test]
    fn the_client_decides_by_what_it_takes_and_sends() {
        let compress = Compress::default();
        for (fields, wanted) in [
            ("", Choice::Plain),
            ("Accept-Encoding: br, gzip, zstd\r\n", Choice::Encode(Coding::Zstd)),
            ("Accept-Encoding: br, gzip\r\n", Choice::Encode(Coding::Brotli)),
            ("Accept-Encoding: deflate\r\n", Choice::Plain),
            ("Accept-Encoding: gzip\r\nAuthorization: Bearer a\r\n", Choice::Plain),
        ] {
            let choice = choose(&compress, &request(fields), &response(200, HTML), Framing::Chunked);
            assert_eq!(choice, Some(wanted), "{fields}");
        }
    }

    #[test]
    fn a_head_tells_of_the_choice() {
        let fields = "Content-Type: text/html\r\nETag: \"a\"\r\nAccept-Ranges: bytes\r\nVary: Cookie\r\n";
        let response_head = response(200, fields);
        let edits = describe(Choice::Encode(Coding::Gzip), &response_head, None, Some("00".to_owned()));
        let set: Vec<_> = edits.set.iter().map(|(name, value)| [&name[..], b": ", value].concat()).collect();
        assert_eq!(set, [&b"ETag: W/\"a\""[..], b"Content-Encoding: gzip"]);
        assert!(edits.takes_out(b"accept-ranges") && edits.adds(b"vary") && edits.adds(b"x-sluice-padding"));
        let plain = describe(Choice::Plain, &response_head, None, None);
        assert!(plain.set.is_empty() && plain.adds(b"vary"));
        for vary in ["*", "Origin, accept-encoding"] {
            let head = response(200, &format!("Vary: {vary}\r\n"));
            assert!(!describe(Choice::Plain, &head, None, None).adds(b"vary"), "{vary}");
        }
        let head = response(200, "Vary: Accept-Encoding\r\n");
        let other = FieldEdits { set: vec![(b"Vary".to_vec(), b"Origin".to_vec())], ..FieldEdits::default() };
        assert!(describe(Choice::Plain, &head, Some(&other), None).adds(b"vary"));
        let named = request("If-None-Match: W/\"a\"\r\n");
        let head = response(304, "ETag: \"a\"\r\n");
        let choice = choose(&Compress::default(), &named, &head, Framing::None);
        assert_eq!(choice, Some(Choice::Revalidated));
        let edits = describe(Choice::Revalidated, &head, None, None);
        assert_eq!(edits.set, [(b"ETag".to_vec(), b"W/\"a\"".to_vec())]);
        let own = FieldEdits { remove: vec![b"etag".to_vec()], ..FieldEdits::default() };
        assert!(describe(Choice::Encode(Coding::Gzip), &response_head, Some(&own), None).set.len() == 1);
    }
}
