//! Heads of real servers, and each reason to refuse one. sluice's own tests check random heads.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

extern crate std;

use std::borrow::ToOwned;
use std::format;
use std::string::String;
use std::vec::Vec;

use super::*;

const NGINX: &str = "HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nDate: Sat, 21 Nov 2026 09:00:00 GMT\r\n\
    Content-Type: text/html\r\nContent-Length: 65536\r\nLast-Modified: Fri, 20 Nov 2026 09:00:00 GMT\r\n\
    Connection: keep-alive\r\nETag: \"655b1f3c-10000\"\r\nAccept-Ranges: bytes\r\n\r\n";

const RAILS: &str = "HTTP/1.1 200 OK\r\nx-frame-options: SAMEORIGIN\r\nx-xss-protection: 0\r\n\
    x-content-type-options: nosniff\r\nx-permitted-cross-domain-policies: none\r\n\
    referrer-policy: strict-origin-when-cross-origin\r\nlink: </assets/a.css>; rel=preload; as=style; nopush\r\n\
    content-type: text/html; charset=utf-8\r\nvary: Accept\r\netag: W/\"7d33b1f0a1c2\"\r\n\
    cache-control: max-age=0, private, must-revalidate\r\n\
    set-cookie: _app_session=Zm9v%2BYmFy--abc; path=/; HttpOnly; SameSite=Lax\r\n\
    x-request-id: 6b1d9f36-9d54-4e0a-8ed6-2f1f0a6c7b11\r\nx-runtime: 0.012345\r\nserver-timing: a;dur=0.1, b;dur=2\r\n\
    Content-Length: 10240\r\n\r\n";

const GO: &str = "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\n\
    Date: Sat, 21 Nov 2026 09:00:00 GMT\r\nContent-Length: 19\r\n\r\n";

const NODE: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n\
    Date: Sat, 21 Nov 2026 09:00:00 GMT\r\nConnection: keep-alive\r\nKeep-Alive: timeout=5\r\n\r\n";

const UVICORN: &str = "HTTP/1.1 200 OK\r\ndate: Sat, 21 Nov 2026 09:00:00 GMT\r\nserver: uvicorn\r\n\
    content-length: 13\r\ncontent-type: application/json\r\n\r\n";

/// The head with one additional line.
fn with(line: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n{line}\r\n\r\n")
}

/// The head with this Content-Length.
fn sized(digits: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {digits}\r\n\r\n")
}

fn read(head: &str) -> Result<Head, Refusal> {
    parse_text(head.as_bytes())
}

/// The head that is forwarded to the client.
fn passed(head: &str) -> String {
    let found = read(head).unwrap_or_else(|refusal| panic!("{refusal:?}: {head}"));
    assert_eq!(found.head_bytes as usize, head.len());
    let mut rest = head.to_owned();
    for cut in found.cuts.iter().take(found.cut_count as usize).rev() {
        let start = cut.start as usize;
        rest.replace_range(start..start + cut.bytes as usize, "");
    }
    rest
}

#[track_caller]
fn refused(head: &str, refusal: Refusal) {
    assert_eq!(read(head), Err(refusal), "{head:?}");
}

#[test]
fn heads_of_real_servers_are_accepted() {
    for (head, status, length, fields) in [
        (NGINX, 200, 65536, 8),
        (RAILS, 200, 10240, 15),
        (GO, 404, 19, 4),
        (NODE, 200, 0, 5),
        (UVICORN, 200, 13, 4),
    ] {
        let found = read(head).unwrap();
        assert_eq!((found.status, found.content_length, found.fields), (status, length, fields), "{head}");
        let without = head.replace("Connection: keep-alive\r\n", "").replace("Keep-Alive: timeout=5\r\n", "");
        assert_eq!(passed(head), without);
    }
}

#[test]
fn removed_lines_are_reported_in_order() {
    let cuts = |head: &str| read(head).map(|found| (found.cut_count, found.cuts));
    let none = Cut::default();
    let one = Cut { start: 36, bytes: 24 };
    assert_eq!(cuts(UVICORN), Ok((0, [none, none])));
    assert_eq!(cuts(&with("Connection: Keep-Alive")), Ok((1, [one, none])));
    assert_eq!(
        cuts(&with("KEEP-ALIVE: max=5, a=bc\r\nconnection: keep-alive")),
        Ok((2, [Cut { start: 36, bytes: 25 }, Cut { start: 61, bytes: 24 }]))
    );
    let first = "HTTP/1.1 200 OK\r\nKeep-Alive: a\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(cuts(first), Ok((1, [Cut { start: 17, bytes: 15 }, none])));
}

/// Also at every other position in a word, and with anything after the head.
#[test]
fn bytes_after_the_head_are_ignored() {
    for pad in 1..40 {
        let head = with(&format!("X-Pad: {}\r\n{}: b", "x".repeat(pad), "n".repeat(pad)));
        for behind in ["", "\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n", "\0\u{1}"] {
            let found = read(&format!("{head}{behind}")).unwrap();
            assert_eq!((found.head_bytes as usize, found.content_length), (head.len(), 5));
        }
    }
}

#[test]
fn a_truncated_head_is_incomplete() {
    for head in [NGINX, RAILS, NODE] {
        for end in 0..head.len() {
            refused(&head[..end], Refusal::Incomplete);
        }
    }
}

#[test]
fn a_head_larger_than_the_buffer_is_incomplete() {
    let sized = |bytes: usize| with(&format!("X-Pad: {}", "x".repeat(bytes - with("X-Pad: ").len())));
    let largest = sized(TEXT_BYTES);
    assert_eq!(read(&largest).unwrap().head_bytes as usize, TEXT_BYTES);
    assert_eq!(read(&(largest + "\r\nbody")).unwrap().head_bytes as usize, TEXT_BYTES);
    for bytes in TEXT_BYTES + 1..TEXT_BYTES + 9 {
        refused(&sized(bytes), Refusal::Incomplete);
    }
}

#[test]
fn fields_and_names_have_limits() {
    let lines = |count: u64| (1..count).map(|_| "a: b").collect::<Vec<_>>().join("\r\n");
    assert_eq!(u64::from(read(&with(&lines(FIELDS_MAX))).unwrap().fields), FIELDS_MAX);
    refused(&with(&lines(FIELDS_MAX + 1)), Refusal::Odd);
    let name = |bytes: u64| format!("{}: x", "n".repeat(bytes as usize));
    assert!(read(&with(&name(NAME_BYTES_MAX))).is_ok());
    refused(&with(&name(NAME_BYTES_MAX + 1)), Refusal::Odd);
}

#[test]
fn status_lines_are_exact() {
    let head = |line: &str| format!("{line}\r\nContent-Length: 5\r\n\r\n");
    for status in [200, 206, 301, 404, 500, 599] {
        assert_eq!(read(&head(&format!("HTTP/1.1 {status} X"))).unwrap().status, status);
    }
    for status in [100, 101, 103, 199, 204, 304, 600, 999, 0] {
        refused(&head(&format!("HTTP/1.1 {status:03} X")), Refusal::Status);
    }
    for line in [
        "HTTP/1.0 200 OK",
        "http/1.1 200 OK",
        "HTTP/1.1 20 OK",
        "HTTP/1.1 2000 OK",
        "HTTP/1.1  200 O",
        "HTTP/1.1 200",
        "HTTP/1.1 2x0 OK",
        "\r\nHTTP/1.1 200 OK",
        "HTTP/1.1\t200 OK",
    ] {
        refused(&head(line), Refusal::NotHttp11);
    }
    for line in
        ["HTTP/1.1 200 ", "HTTP/1.1 200  OK", "HTTP/1.1 200 OK ", "HTTP/1.1 200 O\tK", "HTTP/1.1 200 \u{e9}"]
    {
        refused(&head(line), Refusal::Odd);
    }
}

#[test]
fn content_length_is_a_plain_decimal() {
    for digits in ["0", "7", "10", "12345678", "123456789", "100000000000000", "999999999999999"] {
        assert_eq!(read(&sized(digits)).map(|found| found.content_length), Ok(digits.parse().unwrap()));
    }
    for digits in [
        "007",
        "00",
        "1000000000000000",
        "18446744073709551616",
        "5, 5",
        "5,5",
        "+5",
        "-5",
        "0x5",
        "5 5",
        "5a",
        "12345678901a34567",
    ] {
        refused(&sized(digits), Refusal::Length);
    }
    refused("HTTP/1.1 200 OK\r\nDate: d\r\n\r\n", Refusal::Length);
    refused(&with("content-length: 5"), Refusal::Length);
    refused(&with("CONTENT-LENGTH: 6"), Refusal::Length);
    assert!(read(&with("content-lengthy: 6\r\ncontent-digest: a\r\ncontent-lengtg: 7")).is_ok());
}

#[test]
fn hop_by_hop_fields_are_refused() {
    for line in [
        "Upgrade: h2c",
        "Connection: close",
        "Connection: keep-alive, x",
        "Connection: upgrade",
        "connection: keep-alivf",
        "Connection: keep-alive ,",
        "TE: x",
        "Proxy-Connection: x",
        "Proxy-Authenticate: Basic",
        "proxy-authorization: x",
        "HTTP2-Settings: AAA",
    ] {
        refused(&with(line), Refusal::HopByHop);
    }
    for line in
        ["Transfer-Encoding: chunked", "transfer-encoding: x", "Trailer: x", "TRAILER: Content-Length"]
    {
        refused(&with(line), Refusal::Coding);
    }
    assert!(
        read(&with(
            "t: a\r\ntf: b\r\nconnectiom: d\r\nupgrade1: a\r\nproxy: x\r\nproxy-status: y\r\nkeep-alivd: z"
        ))
        .is_ok()
    );
}

#[test]
fn unusual_heads_are_refused() {
    for line in [
        "a:b",
        "a:  b",
        "a : b",
        "a:\tb",
        ": b",
        " a: b",
        "a: ",
        "a: b ",
        "a: b\t",
        "a:",
        "a",
        "a_b: c",
        "a.b: c",
        "a\0: b",
        "a: b\0c",
        "a: \u{e9}",
        "\u{e9}: a",
        "a: b\u{7f}",
        "a: b\n c: d",
        "a: b\rc",
        "a: b\r\r\nc: d",
        "a: b\r\n c",
        "a: b\tc",
        "Connection: keep-alive\r\nConnection: keep-alive",
        "Keep-Alive: a\r\nkeep-alive: b",
        "Content_Length: 5",
    ] {
        refused(&with(line), Refusal::Odd);
    }
    refused("HTTP/1.1 200 OK\nContent-Length: 5\n\n", Refusal::Odd);
}
