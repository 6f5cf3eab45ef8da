//! What the client receives of a response.

use super::strict::{StrictHead, read_strictly};
use super::*;

const NEUTRAL: ResponseForward<'_> = ResponseForward {
    request_id: None,
    framing: Framing::None,
    keep_alive: true,
    client_version: Version::Http11,
    request_method: Method::Get,
    via: false,
    is_encoded: false,
    upgrade: false,
    edits: None,
    extra: [None; 5],
    listener: ListenerFields::NONE,
};

fn forward_with<'a>(
    bytes: &[u8],
    method: Method,
    change: impl FnOnce(&mut ResponseForward<'a>),
) -> StrictHead {
    let (head, framing) = read_response(bytes, method).unwrap();
    let mut forward: ResponseForward<'a> = ResponseForward { framing, request_method: method, ..NEUTRAL };
    change(&mut forward);
    let mut out = Vec::new();
    encode_response(&mut out, &head, &forward);
    read_strictly(&out)
}

fn names(head: &StrictHead) -> Vec<&str> {
    head.fields.iter().map(|field| field.0.as_str()).collect()
}

#[test]
fn status_lines_are_rendered_anew() {
    for (line, expected) in [
        ("HTTP/1.1 200 Fine", "HTTP/1.1 200 Fine"),
        ("HTTP/1.0 200", "HTTP/1.1 200 OK"),
        ("HTTP/1.1 404 ", "HTTP/1.1 404 Not Found"),
        ("HTTP/1.1 299 ", "HTTP/1.1 299 "),
    ] {
        let head = format!("{line}\r\nContent-Length: 1\r\n\r\n");
        assert_eq!(forward_with(head.as_bytes(), Method::Get, |_| {}).start_line, expected);
    }
}

#[test]
fn hop_by_hop_response_fields_are_removed() {
    let bytes = ok_with(
        b"Server: s\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: x\r\n\
          Upgrade: h2c\r\nTrailer: x\r\nTE: x\r\nProxy-Connection: x\r\nDate: d\r\nContent-Length: 1\r\nSet-Cookie: a\r\n",
    );
    let forwarded = forward_with(&bytes, Method::Get, |_| {});
    assert_eq!(names(&forwarded), ["server", "date", "content-length", "set-cookie"]);
}

#[test]
fn response_framing_is_rendered_anew() {
    let repeated = ok_with(b"Content-Length: 5, 05\r\nContent-Length: 5\r\n");
    assert_eq!(forward_with(&repeated, Method::Get, |_| {}).value("content-length"), "5");
    let chunked = ok_with(b"Transfer-Encoding: CHUNKED\r\nTrailer: X\r\n");
    assert_eq!(names(&forward_with(&chunked, Method::Get, |_| {})), ["trailer", "transfer-encoding"]);
    let to_chunked = forward_with(&ok_with(b""), Method::Get, |forward| forward.framing = Framing::Chunked);
    assert_eq!(to_chunked.value("transfer-encoding"), "chunked");
}

/// The field stays as received if that is what would be rendered. Otherwise it is rendered after the other fields.
#[test]
fn canonical_length_keeps_its_position() {
    let out = |lines: &[u8], framing| {
        let (head, _) = read_response(&ok_with(lines), Method::Get).unwrap();
        let mut out = Vec::new();
        encode_response(&mut out, &head, &ResponseForward { framing, ..NEUTRAL });
        String::from_utf8(out).unwrap().replace("\r\n", "|")
    };
    let line = |lines, bytes| out(lines, Framing::Length(bytes));
    assert_eq!(line(b"content-LENGTH:5 \r\nA: b\r\n", 5), "HTTP/1.1 200 OK|content-LENGTH: 5|A: b||");
    for lines in ["content-length: 05\r\nA: b\r\n", "content-length: 5\r\nA: b\r\ncontent-length: 5\r\n"] {
        assert_eq!(line(lines.as_bytes(), 5), "HTTP/1.1 200 OK|A: b|Content-Length: 5||");
    }
    let chunked = out(b"Content-Length: 5\r\nA: b\r\n", Framing::Chunked);
    assert_eq!(chunked, "HTTP/1.1 200 OK|A: b|Transfer-Encoding: chunked||");
}

#[test]
fn length_without_a_body_is_kept_only_for_304_and_head() {
    for (status, method, kept) in [
        (200, Method::Head, true),
        (304, Method::Get, true),
        (304, Method::Head, true),
        (204, Method::Get, false),
        (204, Method::Head, false),
        (103, Method::Get, false),
    ] {
        let head = format!("HTTP/1.1 {status} X\r\nContent-Length: 07\r\n\r\n");
        let forwarded = forward_with(head.as_bytes(), method, |_| {});
        let lengths = forwarded.values("content-length");
        assert_eq!(lengths, if kept { vec![b"7".as_slice()] } else { vec![] }, "{status} {method:?}");
    }
    let head = forward_with(&ok_with(b"Transfer-Encoding: chunked\r\n"), Method::Head, |_| {});
    assert_eq!(names(&head), Vec::<&str>::new());
}

#[test]
fn connection_field_tells_whether_the_connection_stays_open() {
    let one = ok_with(b"Content-Length: 1\r\nConnection: close\r\n");
    assert_eq!(forward_with(&one, Method::Get, |_| {}).values("connection").len(), 0);
    let closing = forward_with(&one, Method::Get, |forward| forward.keep_alive = false);
    assert_eq!(closing.value("connection"), "close");
    let old = forward_with(&one, Method::Get, |forward| forward.client_version = Version::Http10);
    assert_eq!(old.value("connection"), "keep-alive");
    let until_close = forward_with(&ok_with(b""), Method::Get, |_| {});
    assert_eq!(until_close.value("connection"), "close");
    let interim =
        forward_with(b"HTTP/1.1 103 X\r\nLink: a\r\n\r\n", Method::Get, |forward| forward.keep_alive = false);
    assert_eq!(names(&interim), ["link"]);
}

#[test]
fn requested_101_switches_protocols() {
    let bytes = b"HTTP/1.1 101 X\r\nConnection: Upgrade, X-Hop\r\nUpgrade: websocket\r\nX-Hop: 1\r\nSec-WebSocket-Accept: k\r\n\r\n";
    let forwarded = forward_with(bytes, Method::Get, |forward| forward.upgrade = true);
    assert_eq!(names(&forwarded), ["sec-websocket-accept", "connection", "upgrade"]);
    assert_eq!(forwarded.value("connection"), "upgrade");
}

#[test]
fn endpoint_can_suppress_added_fields() {
    let edits = FieldEdits {
        remove: vec![b"x-affinity".to_vec()],
        add: vec![(b"Set-Cookie".to_vec(), b"a=1".to_vec())],
        unless: Some((b"x-affinity".to_vec(), b"false".to_vec())),
        ..FieldEdits::default()
    };
    for (field, added) in [("", true), ("X-Affinity: false\r\n", false), ("X-Affinity: true\r\n", true)] {
        let head = ok_with(format!("{field}Content-Length: 1\r\n").as_bytes());
        let forwarded = forward_with(&head, Method::Get, |forward| forward.edits = Some(&edits));
        let names = names(&forwarded);
        assert_eq!(names.contains(&"set-cookie"), added, "{field}");
        assert!(!names.contains(&"x-affinity"), "{names:?}");
    }
}

#[test]
fn edits_and_extra_fields_apply_to_final_responses() {
    let edits = FieldEdits {
        remove: vec![b"server".to_vec()],
        set: vec![(b"Cache-Control".to_vec(), b"no-store".to_vec())],
        add: vec![(b"Connection".to_vec(), b"x".to_vec())],
        unless: None,
        cookies: None,
    };
    let change = |forward: &mut ResponseForward<'_>| {
        forward.extra[0] = Some((b"X-Endpoint", b"127.0.0.1:1"));
        forward.via = true;
    };
    let bytes = ok_with(b"Server: s\r\ncache-control: public\r\nContent-Length: 1\r\n");
    let forwarded = forward_with(&bytes, Method::Get, |forward| {
        change(forward);
        forward.edits = Some(&edits);
    });
    assert_eq!(names(&forwarded), ["content-length", "via", "x-endpoint", "cache-control"]);
    assert_eq!(forwarded.value("cache-control"), "no-store");
    let interim = b"HTTP/1.1 103 Early Hints\r\nServer: s\r\n\r\n";
    let forwarded = forward_with(interim, Method::Get, |forward| {
        change(forward);
        forward.edits = Some(&edits);
    });
    assert_eq!(names(&forwarded), ["server", "via"]);
}

#[test]
fn final_response_has_exactly_one_request_id() {
    let ids = |bytes: &[u8], edits: Option<&FieldEdits>| {
        let forwarded = forward_with(bytes, Method::Get, |forward| {
            forward.request_id = Some(b"ours");
            forward.edits = edits;
        });
        let ids = forwarded.fields.iter().filter(|(name, _)| name == "x-request-id");
        ids.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&ok_with(b"Content-Length: 1\r\n"), None), ["ours"]);
    assert_eq!(ids(&ok_with(b"Content-Length: 1\r\nx-request-id: theirs\r\n"), None), ["theirs"]);
    // A field that Connection nominates ends here.
    let nominated = ok_with(b"Content-Length: 1\r\nX-Request-Id: a\r\nConnection: x-request-id\r\n");
    assert_eq!(ids(&nominated, None), ["ours"]);
    assert_eq!(ids(b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n", None), [""; 0]);
    let edits = FieldEdits { remove: vec![b"x-request-id".to_vec()], ..FieldEdits::default() };
    assert_eq!(ids(&ok_with(b"Content-Length: 1\r\n"), Some(&edits)), [""; 0]);
}

#[test]
fn hsts_appears_once_and_only_in_final_responses() {
    let say = |forward: &mut ResponseForward<'_>| forward.listener.hsts = Some(b"max-age=1");
    let bytes = b"HTTP/1.1 200 OK\r\nstrict-transport-security: max-age=9\r\nContent-Length: 0\r\n\r\n";
    let said = forward_with(bytes, Method::Get, say);
    assert_eq!(said.value("strict-transport-security"), "max-age=1");
    assert_eq!(names(&said).iter().filter(|name| **name == "strict-transport-security").count(), 1);
    assert_eq!(forward_with(bytes, Method::Get, |_| {}).value("strict-transport-security"), "max-age=9");
    let interim = forward_with(b"HTTP/1.1 103 Early Hints\r\n\r\n", Method::Get, say);
    assert!(!names(&interim).contains(&"strict-transport-security"));
    let edits = FieldEdits { remove: vec![b"strict-transport-security".to_vec()], ..FieldEdits::default() };
    let edited = forward_with(bytes, Method::Get, |forward| {
        forward.listener.hsts = Some(b"max-age=1");
        forward.edits = Some(&edits);
    });
    assert!(!names(&edited).contains(&"strict-transport-security"), "the route's edits take precedence");
}
