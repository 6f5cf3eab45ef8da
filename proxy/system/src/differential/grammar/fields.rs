//! Field lines that do not frame the message: usual ones, unusual ones, and the ways to write them.

use fastrand::Rng;

use super::{chance, pick};

const USUAL: &[&str] = &[
    "Accept: */*",
    "User-Agent: differ",
    "Cookie: a=b; c=d",
    "X-Note: 1",
    "Referer: /",
    "If-None-Match: \"a\"",
    "Authorization: Basic YTpi",
    "Accept-Encoding: gzip, br",
    "Content-Type: text/plain",
    "X-Empty:",
    "Range: bytes=0-1",
];
/// Fields that the proxy sets, drops or acts on.
const OWNED: &[&str] = &[
    "Connection: close",
    "Connection: keep-alive",
    "Connection: X-Note",
    "Connection: close, X-Differential",
    "Connection: X-Forwarded-For, X-Request-Id",
    "Connection: Host",
    "Connection: Content-Length",
    "Connection: Transfer-Encoding",
    "Connection: Upgrade",
    "Connection: ,",
    "Connection: \"a\"",
    "Connection: TE",
    "Keep-Alive: timeout=1",
    "Proxy-Connection: keep-alive",
    "TE: trailers",
    "Trailer: X-Note",
    "Upgrade: websocket",
    "Upgrade: h2c",
    "HTTP2-Settings: AAMAAABkAAQAAP__",
    "Expect: 100-continue",
    "Expect: 100-Continue",
    "Expect: 100-continue, x",
    "Expect: x",
    "Expect:",
    "X-Forwarded-For: 10.0.0.1",
    "X-Forwarded-Proto: https",
    "X-Forwarded-Host: b",
    "X_Forwarded_For: 10.0.0.1",
    "Forwarded: for=10.0.0.1",
    "X-Request-Id: mine",
    "X-Request-Id: a b",
    "X-Request-Start: t=1",
    "Via: 1.0 other",
    "X-Differential: forged",
    "x-differential: forged",
    "X_Differential: forged",
    "Proxy: http://a",
    "X-HTTP-Method-Override: DELETE",
    "X-Original-URL: /b",
    "X-Client-Cert-Verified: SUCCESS",
    "Content_Type: a",
    "traceparent: 00-1-2-01",
    "Max-Forwards: 0",
];
/// Lines that a careless parser reads differently; each starts a field or continues one.
const ODD: &[&str] = &[
    "X-Note : 1",
    "X-Note\t: 1",
    " X-Note: 1",
    "\tX-Note: 1",
    ": 1",
    "X-Note",
    "X Note: 1",
    "X-Note:\x0b1",
    "X-Note: \x0c1",
    "X-Note: a\0b",
    "X-Note: a\x7f",
    "X-Note: a\x1f",
    "X-Note: \u{e9}",
    "X-\u{e9}: 1",
    "X-Note: a\rContent-Length: 5",
    "X-Note: a\nContent-Length: 5",
    "X-Note: a\r\n Content-Length: 5",
    "X-Note: a\r\n\tb",
    "X-Note: a\n\nGET /n HTTP/1.1",
    "X(Note): 1",
    "X@Note: 1",
    "X[Note]: 1",
    "\"X-Note\": 1",
    "X-Note;: 1",
    "X-Note:: 1",
    "X-Note: 1\r",
    "\r",
    "\0: 1",
    "X-Note: a\u{85}b",
    "X-Note: a\u{2028}b",
    "\u{feff}X-Note: 1",
    "GET /n HTTP/1.1",
    "HTTP/1.1 200 OK",
    "X_Note: 1",
    "x-note:1",
    "X-Note:\t\t1 \t",
    "X.Note: 1",
    "X|Note~: 1",
    "0: 0",
];

/// Ends of lines that are not CRLF.
pub(super) const ODD_ENDS: &[&str] =
    &["\n", "\r", "\r\r\n", "\n\r", "\r\n\r", " \r\n", "\t\r\n", "\0\r\n", "\x0b\r\n", ""];

/// Field lines with their ends, without those for framing.
pub(super) fn fields(rng: &mut Rng) -> Vec<String> {
    let mut lines: Vec<String> = (0..rng.usize(..4)).map(|_| usual(rng)).collect();
    if chance(rng, 25) {
        lines.push(pick(rng, OWNED).to_owned());
    }
    if chance(rng, 5) {
        lines.push(pick(rng, ODD).to_owned());
    }
    if chance(rng, 1) {
        lines.push(format!("X-Long: {}", "a".repeat(rng.usize(1..40_000))));
    }
    if chance(rng, 1) {
        lines.extend((0..rng.usize(80..130)).map(|nth| format!("X-{nth}: {nth}")));
    }
    rng.shuffle(&mut lines);
    lines
}

fn usual(rng: &mut Rng) -> String {
    let line = pick(rng, USUAL);
    match rng.u8(..20) {
        0 => line.to_ascii_uppercase(),
        1 => line.to_ascii_lowercase(),
        2 => line.replace(": ", ":"),
        3 => line.replace(": ", ": \t ") + " \t",
        _ => line.to_owned(),
    }
}

/// The end of a line: nearly always CRLF.
pub(super) fn end(rng: &mut Rng) -> &'static str {
    if rng.u16(..600) == 0 { pick(rng, ODD_ENDS) } else { "\r\n" }
}
