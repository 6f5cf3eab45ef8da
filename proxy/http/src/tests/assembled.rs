//! Heads that arrive as fields: judged like the same head as text, plus what only frames can express.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Names and values.
type Fields = Vec<(String, String)>;

const GET: RequestParts<'_> = RequestParts {
    version: Version::Http2,
    method: b"GET",
    target: b"/",
    authority: Some(b"a"),
    ended: true,
    websocket: None,
};

fn pairs(fields: &Fields) -> impl Iterator<Item = (&[u8], &[u8])> {
    fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()))
}

fn owned(fields: &[(&str, &str)]) -> Fields {
    fields.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

fn assemble(parts: &RequestParts<'_>, fields: &[(&str, &str)]) -> Result<(RequestHead, Framing), ParseError> {
    let mut head = RequestHead::new();
    head.assemble(parts, pairs(&owned(fields)), &LIMITS)?;
    let framing = request_framing(&head)?;
    Ok((head, framing))
}

fn shown<'a>(fields: impl Iterator<Item = FieldRef<'a>>) -> Vec<String> {
    fields.map(|field| format!("{}: {}", field.name.escape_ascii(), field.value.escape_ascii())).collect()
}

#[test]
fn cookies_are_joined_and_an_equal_host_is_not_repeated() {
    let fields = [("cookie", "a=1"), ("host", "A"), ("x", " y\t"), ("cookie", "b=2")];
    let (head, framing) = assemble(&GET, &fields).unwrap();
    assert_eq!(shown(head.fields()), ["host: a", "x: y", "cookie: a=1; b=2"]);
    assert_eq!((head.version(), head.host(), framing), (Version::Http2, &b"a"[..], Framing::None));
}

#[test]
fn request_body_ends_as_declared_or_with_its_stream() {
    let post = |ended, fields: &[(&str, &str)]| {
        assemble(&RequestParts { method: b"POST", ended, ..GET }, fields).map(|(_, framing)| framing)
    };
    assert_eq!(post(false, &[]), Ok(Framing::Stream));
    assert_eq!(post(true, &[]), Ok(Framing::None));
    assert_eq!(post(false, &[("content-length", "3")]), Ok(Framing::Length(3)));
    assert_eq!(post(true, &[("content-length", "0")]), Ok(Framing::Length(0)));
    for length in ["3, 3", "+3", ""] {
        assert_eq!(post(false, &[("content-length", length)]), Err(ParseError::BadFraming), "{length}");
    }
    assert_eq!(post(true, &[("content-length", "3")]), Err(ParseError::BadFraming));
    let trace = assemble(&RequestParts { method: b"TRACE", ended: false, ..GET }, &[]);
    assert_eq!(trace.map(drop), Err(ParseError::BadFraming));
}

#[test]
fn fields_are_refused_for_the_same_reasons_as_text() {
    let verdict =
        |authority, fields: &[(&str, &str)]| assemble(&RequestParts { authority, ..GET }, fields).map(drop);
    let a = Some(&b"a"[..]);
    assert_eq!(verdict(None, &[("host", "a")]), Ok(()));
    for fields in [&[("host", "b")][..], &[("host", "a"), ("host", "a")], &[("host", "a"), ("host", "b")]] {
        assert_eq!(verdict(a, fields), Err(ParseError::BadHost), "{fields:?}");
    }
    assert_eq!(verdict(None, &[]), Err(ParseError::BadHost));
    assert_eq!(verdict(Some(b"user@a"), &[]), Err(ParseError::BadHost));
    for name in ["content_length", "transfer_encoding"] {
        assert_eq!(verdict(a, &[(name, "1")]), Err(ParseError::BadFraming));
    }
    for target in ["/\u{e9}", "/ x", "/#x", "http://b/", "", "*"] {
        let parts = RequestParts { target: target.as_bytes(), ..GET };
        assert_eq!(assemble(&parts, &[]).map(drop), Err(ParseError::BadRequest), "{target}");
    }
    let (longest, longer) = ([b'A'; 32], [b'A'; 33]);
    assert!(assemble(&RequestParts { method: &longest, ..GET }, &[]).is_ok());
    let mut head = RequestHead::new();
    let parts = RequestParts { method: &longer, ..GET };
    assert_eq!(head.assemble(&parts, std::iter::empty(), &LIMITS), Err(ParseError::BadRequest));
    head.forget();
    assert_eq!((head.version(), head.method_bytes()), (Version::Http2, &b""[..]));
    let long = vec![b'/'; LIMITS.target_bytes_max + 1];
    let parts = RequestParts { target: &long, ..GET };
    assert_eq!(assemble(&parts, &[]).map(drop), Err(ParseError::TargetTooLong));
    let many: Vec<(&str, &str)> = (0..LIMITS.headers_max).map(|_| ("x", "y")).collect();
    assert_eq!(verdict(a, &many[1..]), Ok(()));
    assert_eq!(verdict(a, &many), Err(ParseError::HeadTooLarge));
    let large = "y".repeat(LIMITS.head_bytes_max);
    assert_eq!(verdict(a, &[("x", &large)]), Err(ParseError::HeadTooLarge));
}

/// RFC 9113 section 8.2.
#[test]
fn connection_specific_fields_are_malformed_in_frames() {
    let connection = ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "te"];
    for (name, value) in
        connection.map(|name| (name, "close")).into_iter().chain([("a b", "c"), ("", "c"), ("a", "b\r\nc")])
    {
        assert_eq!(assemble(&GET, &[(name, value)]).map(drop), Err(ParseError::BadRequest), "{name}");
        let mut response = ResponseHead::new();
        let fields = owned(&[(name, value)]);
        assert_eq!(
            response.assemble((200, true), pairs(&fields), &LIMITS),
            Err(ParseError::BadResponse),
            "{name}"
        );
    }
    assert!(assemble(&GET, &[("te", "trailers")]).is_ok());
}

#[test]
fn websocket_over_http2_becomes_an_upgrade() {
    let parts = RequestParts { ended: false, websocket: Some(b"ours"), ..GET };
    let (head, framing) =
        assemble(&parts, &[("sec-websocket-key", "x"), ("sec-websocket-version", "13")]).unwrap();
    assert_eq!((head.upgrade(), framing), (Some(&b"websocket"[..]), Framing::None));
    let wanted = [
        "host: a",
        "sec-websocket-version: 13",
        "connection: upgrade",
        "upgrade: websocket",
        "sec-websocket-key: ours",
    ];
    assert_eq!(shown(head.fields()), wanted);
}

#[test]
fn response_body_ends_as_declared_or_with_its_stream() {
    let framing = |(status, ended): (u16, bool), method, fields: &[(&str, &str)]| {
        let mut head = ResponseHead::new();
        head.assemble((status, ended), pairs(&owned(fields)), &LIMITS)?;
        response_framing(&head, method)
    };
    let length = ("content-length", "3");
    let grpc = ("content-type", "application/grpc+proto");
    for (begun, method, fields, wanted) in [
        ((200, false), Method::Get, &[][..], Framing::Stream),
        ((200, true), Method::Get, &[], Framing::Length(0)),
        ((200, false), Method::Get, &[length], Framing::Length(3)),
        // gRPC trailers carry the result.
        ((200, false), Method::Get, &[length, grpc], Framing::Stream),
        ((200, true), Method::Head, &[length], Framing::None),
        ((204, true), Method::Get, &[], Framing::None),
        ((103, false), Method::Get, &[], Framing::None),
    ] {
        assert_eq!(framing(begun, method, fields), Ok(wanted), "{begun:?} {fields:?}");
    }
    assert_eq!(framing((200, true), Method::Get, &[length]), Err(ParseError::BadResponse));
    for status in [99, 600] {
        assert_eq!(framing((status, true), Method::Get, &[]), Err(ParseError::BadResponse));
    }
}

#[test]
fn field_block_omits_connection_fields() {
    let parts = RequestParts { method: b"POST", ended: false, ..GET };
    let (head, framing) = assemble(&parts, &[("te", "trailers"), ("trailer", "x")]).unwrap();
    let mut block = FieldBlock::default();
    let forward = RequestForward {
        path_and_query: b"/x?y",
        host: b"b",
        framing,
        client_ip: b"192.0.2.1",
        proto: b"https",
        trusted: false,
        request_id: b"",
        request_start: b"",
        continued: false,
        via: true,
        upgrade: None,
        dropped: &[],
        is_early: false,
        traceparent: None,
        identity: None,
        edits: None,
    };
    encode_request(&mut block, &head, &forward);
    assert_eq!(block.as_request(), Some([&b"POST"[..], b"/x?y", b"b"]));
    let fields = |block: &FieldBlock| -> Vec<String> {
        block
            .fields()
            .map(|(name, value)| format!("{}: {}", name.escape_ascii(), value.escape_ascii()))
            .collect()
    };
    let wanted = [
        "trailer: x",
        "X-Forwarded-For: 192.0.2.1",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Host: a",
        "Via: 2.0 sluice",
        "TE: trailers",
    ];
    assert_eq!(fields(&block), wanted);
    for value in [&b"one"[..], b"another", b""] {
        block.set(b"X-To", value);
    }
    assert_eq!(fields(&block)[6..], ["X-To: "]);

    let mut response = ResponseHead::new();
    response.assemble((418, true), [(&b"x"[..], &b"y"[..])].into_iter(), &LIMITS).unwrap();
    let mut block = FieldBlock::default();
    let forward = ResponseForward {
        request_id: None,
        framing: response_framing(&response, Method::Get).unwrap(),
        keep_alive: false,
        client_version: Version::Http2,
        request_method: Method::Get,
        via: true,
        is_encoded: false,
        upgrade: false,
        edits: None,
        extra: [None; 5],
        listener: ListenerFields::NONE,
    };
    encode_response(&mut block, &response, &forward);
    assert_eq!((block.as_response(), block.as_request()), (Some(418), None));
    assert_eq!(fields(&block), ["x: y", "Via: 2.0 sluice", "Content-Length: 0"]);
}

#[test]
fn trailers_in_frames_have_the_limit_of_trailers_after_chunks() {
    let mut reader = TrailerReader::new(20);
    reader.refuse(vec![b"x-no".to_vec()]);
    reader.take(b"x_no", b"1").unwrap();
    reader.take(b"a", b" b ").unwrap();
    assert_eq!(lines(reader.trailers()), b"a: b\r\n");
    assert_eq!(reader.take(b"b", b""), Err(ParseError::TrailersTooLarge));
    assert_eq!(TrailerReader::new(99).take(b"a b", b""), Err(ParseError::BadBody));
}

/// The same request as text.
fn render(parts: &RequestParts<'_>, fields: &Fields) -> Vec<u8> {
    let mut out = [parts.method, b" ", parts.target, b" HTTP/1.1\r\n"].concat();
    let mut line =
        |name: &str, value: &[u8]| out.extend_from_slice(&[name.as_bytes(), b": ", value, b"\r\n"].concat());
    parts.authority.into_iter().for_each(|authority| line("host", authority));
    // A Host field that equals the authority is not repeated.
    let mut authority = parts.authority;
    for (name, value) in fields {
        if name == "host"
            && authority.is_some_and(|authority| authority.eq_ignore_ascii_case(value.as_bytes()))
        {
            authority = None;
        } else {
            line(name, value.as_bytes());
        }
    }
    if !parts.ended && !fields.iter().any(|(name, _)| name == "content-length") {
        line("transfer-encoding", b"chunked");
    }
    out.extend_from_slice(b"\r\n");
    out
}

fn field() -> impl Strategy<Value = (String, String)> {
    let name = prop::sample::select(vec![
        "host",
        "content-length",
        "expect",
        "via",
        "x-forwarded-for",
        "forwarded",
        "proxy",
        "content_length",
        "x_host",
        "accept",
        "x-a",
        "http2-settings",
        "trailer",
    ]);
    let value = prop_oneof![
        prop::sample::select(vec!["a", "0", "5", "100-continue", "a.example", "A", "", "1, 1", "x, y"])
            .prop_map(str::to_string),
        "[ -~\t]{0,12}",
    ];
    (name.prop_map(str::to_string), value)
}

proptest! {
    #[test]
    fn fields_are_judged_like_the_same_head_as_text(
        method in prop::sample::select(vec!["GET", "POST", "TRACE", "OPTIONS", "PURGE", "CONNECT", "B@D", "A-METHOD-THAT-HAS-MORE-THAN-32-BYTES"]),
        target in prop::sample::select(vec!["/", "/a?b", "*", "/|", "/#", "a", "", "/a b"]),
        authority in prop::option::of(prop::sample::select(vec!["a", "a.example:80", "[::1]", "a,b", ""])),
        fields in vec(field(), 0..5),
        ended: bool,
    ) {
        // Whether a length may follow a stream that has ended is a rule of frames only.
        let ended = ended && fields.iter().all(|(name, _)| name != "content-length");
        let parts = RequestParts {
            version: Version::Http2,
            method: method.as_bytes(), target: target.as_bytes(), authority: authority.map(str::as_bytes), ended, websocket: None,
        };
        let text = render(&parts, &fields);
        let mut of_text = RequestHead::new();
        let text_verdict = match HeadScanner::new().scan(&text, &LIMITS) {
            Ok(Scan::Complete(end)) if end == text.len() => {
                of_text.parse(&text, &LIMITS).and_then(|()| request_framing(&of_text))
            }
            // Text that does not form exactly one head.
            _ => Err(ParseError::BadRequest),
        };
        let mut of_fields = RequestHead::new();
        let verdict = of_fields.assemble(&parts, pairs(&fields), &LIMITS).and_then(|()| request_framing(&of_fields));
        let wanted = text_verdict.map(|framing| if framing == Framing::Chunked { Framing::Stream } else { framing });
        prop_assert_eq!(verdict.is_ok(), wanted.is_ok(), "{:?} {:?}", verdict, wanted);
        if wanted.is_ok() {
            prop_assert_eq!(verdict, wanted);
            prop_assert_eq!(of_fields.method(), of_text.method());
            prop_assert_eq!(of_fields.path_and_query(), of_text.path_and_query());
            prop_assert_eq!(of_fields.host(), of_text.host());
            prop_assert_eq!(of_fields.expect(), of_text.expect());
            let coded = |line: &String| !line.starts_with("transfer-encoding");
            let text_fields: Vec<String> = shown(of_text.fields()).into_iter().filter(coded).collect();
            prop_assert_eq!(shown(of_fields.fields()), text_fields);
        }
    }
}
