//! The Upgrade field (RFC 9110 section 7.8): the protocols to which a connection may switch.

use super::grammar::{is_token, members};

/// Whether `value` lists protocols to which a connection may switch (RFC 9110 section 7.8).
///
/// HTTP itself and TLS are excluded: requests could then pass unchecked.
pub(crate) fn is_upgrade_list(value: &[u8]) -> bool {
    members(value).next().is_some() && members(value).all(is_upgrade_protocol)
}

fn is_upgrade_protocol(protocol: &[u8]) -> bool {
    let mut parts = protocol.splitn(2, |&byte| byte == b'/');
    let name = parts.next().unwrap_or_default();
    let refused: [&[u8]; 4] = [b"h2c", b"h2", b"http", b"tls"];
    is_token(name)
        && parts.next().is_none_or(is_token)
        && !refused.iter().any(|other| name.eq_ignore_ascii_case(other))
}
