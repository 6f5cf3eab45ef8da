//! What a request's fields request for the connection, and the names that are known.

use super::*;

#[test]
fn request_keep_alive() {
    for (version, connection, expected) in [
        ("1.1", "", true),
        ("1.1", "Connection: close\r\n", false),
        ("1.1", "Connection: x, ,CLOSE\r\n", false),
        ("1.1", "Connection: keep-alive\r\nConnection: close\r\n", false),
        ("1.0", "", false),
        ("1.0", "Connection: Keep-Alive\r\n", true),
        ("1.0", "Connection: keep-alive, close\r\n", false),
        ("1.0", "Proxy-Connection: keep-alive\r\n", false),
    ] {
        let head = format!("GET / HTTP/{version}\r\nHost: a\r\n{connection}\r\n");
        assert_eq!(read_request(head.as_bytes()).unwrap().0.keep_alive(), expected, "{head}");
    }
}

#[test]
fn nominations_are_limited() {
    let nominating = |count: usize| get_with(format!("Connection: {}\r\n", "x,".repeat(count)).as_bytes());
    assert!(read_request(&nominating(32)).is_ok());
    refused(&nominating(33), ParseError::BadRequest);
}

#[test]
fn expectations() {
    for (fields, expected) in [
        ("", Expect::None),
        ("Expect: 100-Continue\r\n", Expect::Continue),
        ("Expect: 200-ok\r\n", Expect::Other),
        ("Expect: 100-continue, x\r\n", Expect::Failed),
        ("Expect: y 100-continue\r\n", Expect::Failed),
        ("Expect: a, b\r\n", Expect::Failed),
        ("Expect: 100-continue\r\nExpect: 100-continue\r\n", Expect::Failed),
    ] {
        let (head, _) = read_request(&post_with(fields.as_bytes())).unwrap();
        assert_eq!(head.expect(), expected, "{fields}");
    }
    let old = b"POST / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n";
    assert_eq!(read_request(old).unwrap().0.expect(), Expect::None);
}

#[test]
fn requested_upgrades() {
    let asked = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n";
    let (head, _) = read_request(&get_with(asked.as_bytes())).unwrap();
    assert_eq!(head.upgrade(), Some(b"websocket".as_slice()));
    let with_fields = |fields: &str| get_with(fields.as_bytes());
    for bytes in [
        post_with(asked.as_bytes()),
        format!("GET / HTTP/1.0\r\nHost: a\r\n{asked}\r\n").into_bytes(),
        with_fields("Upgrade: websocket\r\n"),
        with_fields("Connection: upgrade\r\n"),
        with_fields("Connection: upgrade\r\nUpgrade: a\r\nUpgrade: b\r\n"),
        with_fields("Connection: upgrade\r\nUpgrade: a b\r\n"),
        with_fields("Connection: upgrade\r\nUpgrade: ,\r\n"),
        with_fields("Connection: upgrade, http2-settings\r\nUpgrade: h2c\r\n"),
        with_fields("Connection: upgrade\r\nUpgrade: websocket, H2C\r\n"),
        with_fields("Connection: upgrade\r\nUpgrade: HTTP/2.0\r\n"),
        with_fields("Connection: upgrade\r\nUpgrade: TLS/1.2\r\n"),
        with_fields(&format!("{asked}Content-Length: 0\r\n")),
    ] {
        assert_eq!(read_request(&bytes).unwrap().0.upgrade(), None, "{}", bytes.escape_ascii());
    }
}

#[test]
fn methods() {
    let idempotent = ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE"];
    for name in
        ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH", "get", "PURGE"]
    {
        let method = Method::from_bytes(name.as_bytes());
        assert_eq!(method.is_idempotent(), idempotent.contains(&name), "{name}");
        assert_eq!(method == Method::Other, matches!(name, "get" | "PURGE"));
    }
}

#[test]
fn field_names_are_recognized_in_any_case() {
    for (name, kind) in [
        ("HOST", FieldKind::Host),
        ("content-LENGTH", FieldKind::ContentLength),
        ("Transfer-Encoding", FieldKind::TransferEncoding),
        ("HTTP2-Settings", FieldKind::Http2Settings),
        ("proxy-authorization", FieldKind::ProxyAuthorization),
        ("X-Forwarded-Proto", FieldKind::XForwardedProto),
        ("x-request-id", FieldKind::XRequestId),
        ("Content_Length", FieldKind::Lookalike),
        ("x_forwarded-for", FieldKind::Lookalike),
        ("X-Forwarded-Ssl", FieldKind::Claim),
        ("x_real_ip", FieldKind::Lookalike),
        ("X-Client-Cert-Subject", FieldKind::Identity),
        ("User_Agent", FieldKind::Other),
        ("X.Forwarded.For", FieldKind::Other),
        ("Hosts", FieldKind::Other),
        ("", FieldKind::Other),
    ] {
        assert_eq!(FieldKind::of(name.as_bytes()), kind, "{name}");
    }
}
