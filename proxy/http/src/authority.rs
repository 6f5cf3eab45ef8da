//! The authority of a request: `host` or `host:port`, as in Host and in an absolute-form target.

use std::net::Ipv6Addr;

/// Longest reg-name accepted, in bytes: the limit of DNS (RFC 3986 section 3.2.2).
const REG_NAME_BYTES_MAX: usize = 255;

/// Whether `authority` is uri-host [ ":" port ] (RFC 9110 section 7.2).
///
/// Stricter than RFC 3986: no empty host or port, no comma (it could hide a list), no userinfo, no IPvFuture.
pub(crate) fn is_authority(authority: &[u8]) -> bool {
    let host = host_name(authority);
    let port = &authority[host.len()..];
    let valid_host = match host {
        [b'[', inner @ .., b']'] => is_ipv6(inner),
        _ => is_reg_name(host),
    };
    valid_host && (port.is_empty() || port.strip_prefix(b":").is_some_and(is_port))
}

/// The part of `authority` before its port, with the brackets of an IPv6 address.
pub(crate) fn host_name(authority: &[u8]) -> &[u8] {
    let end = match authority.first() {
        Some(b'[') => authority.iter().position(|&byte| byte == b']').map(|close| close + 1),
        _ => authority.iter().position(|&byte| byte == b':'),
    };
    &authority[..end.unwrap_or(authority.len())]
}

fn is_port(digits: &[u8]) -> bool {
    matches!(digits.len(), 1..=5)
        && digits.iter().all(u8::is_ascii_digit)
        && digits.iter().fold(0, |port, digit| port * 10 + u32::from(digit - b'0')) <= 65535
}

fn is_ipv6(inner: &[u8]) -> bool {
    std::str::from_utf8(inner).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok())
}

/// reg-name, which includes IPv4 addresses (RFC 3986 section 3.2.2).
fn is_reg_name(name: &[u8]) -> bool {
    let mut rest = name;
    while let [byte, tail @ ..] = rest {
        rest = match (byte, tail) {
            (b'%', [high, low, tail @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => tail,
            (b'%', _) => return false,
            _ if is_reg_name_byte(*byte) => tail,
            _ => return false,
        };
    }
    matches!(name.len(), 1..=REG_NAME_BYTES_MAX)
}

/// unreserved / sub-delims of RFC 3986, without the comma.
fn is_reg_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+;=".contains(&byte)
}
