//! Request targets.

use fastrand::Rng;

use super::{chance, pick};

const USUAL: &[&str] = &["/", "/a", "/a/b?c=d", "/index.html", "/x?y=%20z", "/api/v1/items/7"];
const ODD: &[&str] = &[
    "//",
    "//a/b",
    "/.",
    "/..",
    "/a/../b",
    "/a/./b",
    "/%2e%2e/a",
    "/a%2fb",
    "/a\\b",
    "/%",
    "/%zz",
    "/%00",
    "/%0d%0aX: y",
    "/a;b=c",
    "/a|b",
    "/a\"b",
    "/{a}",
    "/a^b`c",
    "/?",
    "/??a",
    "/a?b?c",
    "/a#b",
    "#",
    "?",
    "a",
    "*",
    "/*",
    "",
    "/\x7f",
    "/\x01",
    "/a\tb",
    "/a b",
    "/\u{e9}",
    "\\",
    "/\\..\\a",
    "http:/a",
    "http:",
    "http://",
    "http:///a",
    "/http://a/",
    "HTTP/1.1",
    "/ HTTP/1.1",
    "/a HTTP/1.1\tb",
];
/// Prefixes of an authority.
const SCHEMES: &[&str] =
    &["http://", "https://", "HTTP://", "hTTps://", "ftp://", "http:/", "//", "http:\\\\", ""];
/// Suffixes of an authority.
const PATHS: &[&str] = &["/", "/a", "", "?a", "/?a", "#a", "/a?b", "\\a", "*", ":80/", ";a/"];

/// A target for a request with this Host.
pub(super) fn target(rng: &mut Rng, host: &str) -> String {
    match rng.u8(..100) {
        0..84 => pick(rng, USUAL).to_owned(),
        84..92 => pick(rng, ODD).to_owned(),
        92..93 => format!("/{}", "a".repeat(rng.usize(1..9000))),
        _ => absolute(rng, host),
    }
}

fn absolute(rng: &mut Rng, host: &str) -> String {
    let scheme = if chance(rng, 70) { "http://" } else { pick(rng, SCHEMES) };
    let authority = if chance(rng, 70) { host } else { pick(rng, AUTHORITIES) };
    let path = if chance(rng, 50) { "/a" } else { pick(rng, PATHS) };
    format!("{scheme}{authority}{path}")
}

/// Hosts, valid and not.
pub(super) const AUTHORITIES: &[&str] = &[
    "a",
    "A",
    "a.example",
    "a:80",
    "a:080",
    "a:",
    "a:0",
    "a:65535",
    "a:65536",
    "a:+80",
    ":80",
    "",
    "b",
    "a,b",
    "a b",
    "u@a",
    "u:p@a",
    "a/b",
    "a\\b",
    "a?b",
    "a#b",
    "[::1]",
    "[::1]:80",
    "[::1",
    "::1",
    "[v1.a]",
    "127.0.0.1",
    "127.1",
    "a%62",
    "a%",
    "a%zz",
    "a..b",
    ".",
    "-",
    "_",
    "a_b",
    "a\t",
    "a\x7f",
    "\u{e9}",
    "a;b",
    "a'b",
    "a\"b",
];
