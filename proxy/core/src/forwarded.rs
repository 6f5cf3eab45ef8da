//! The client's address, and the fields that report it to the origin.

use std::net::{IpAddr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

use ipnet::IpNet;
use sluice_http::{FieldKind, RequestHead};

/// Room for `t=` and a time in seconds with three decimals.
pub const REQUEST_START_MAX: usize = 32;
/// Entries of X-Forwarded-For that are examined, from the right.
const HOPS_MAX: usize = 32;

/// The client's address, and whether the peer is a trusted proxy. Behind trusted proxies the client is the last address
/// of X-Forwarded-For that is not a trusted proxy: anyone could have written the addresses to the left of it.
pub fn client(peer: IpAddr, proxies: &[IpNet], head: &RequestHead) -> (IpAddr, bool) {
    let peer = peer.to_canonical();
    let is_proxy = |address: &IpAddr| proxies.iter().any(|net| net.contains(address));
    if !is_proxy(&peer) {
        return (peer, false);
    }
    let mut client = peer;
    let fields: Vec<&[u8]> = head
        .fields()
        .filter(|field| field.kind == FieldKind::XForwardedFor)
        .map(|field| field.value)
        .collect();
    let hops = fields.iter().rev().flat_map(|value| value.rsplit(|byte| *byte == b','));
    for hop in hops.take(HOPS_MAX) {
        let Some(address) = std::str::from_utf8(hop.trim_ascii()).ok().and_then(address) else {
            break;
        };
        client = address.to_canonical();
        if !is_proxy(&client) {
            break;
        }
    }
    (client, true)
}

/// An address, as some proxies write it with its port.
fn address(hop: &str) -> Option<IpAddr> {
    let with_port = || hop.parse::<SocketAddr>().ok().map(|address| address.ip());
    hop.parse().ok().or_else(with_port)
}

/// 128 random bits in hexadecimal.
pub fn make_request_id(random: &mut fastrand::Rng) -> [u8; 32] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut bits = random.u128(..);
    let mut id = [0; 32];
    for digit in id.iter_mut().rev() {
        *digit = DIGITS[(bits & 15) as usize];
        bits >>= 4;
    }
    id
}

/// The value of X-Request-Start, `t=<seconds>.<milliseconds>`: the form that every known parser reads. Written digit by
/// digit because `format!` costs more than parsing a request.
pub fn request_start(at: SystemTime, room: &mut [u8; REQUEST_START_MAX]) -> &[u8] {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut digits = itoa::Buffer::new();
    let seconds = digits.format(since.as_secs()).as_bytes();
    let point = 2 + seconds.len();
    room[..2].copy_from_slice(b"t=");
    room[2..point].copy_from_slice(seconds);
    room[point] = b'.';
    let mut millis = since.subsec_millis();
    for digit in room[point + 1..point + 4].iter_mut().rev() {
        *digit = b'0' + u8::try_from(millis % 10).expect("a remainder of ten fits");
        millis /= 10;
    }
    &room[..point + 4]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use sluice_http::HeadLimits;

    fn head(forwarded: &[&str]) -> RequestHead {
        let mut text = String::from("GET / HTTP/1.1\r\nHost: a\r\n");
        for value in forwarded {
            text.push_str(&format!("X-Forwarded-For: {value}\r\n"));
        }
        text.push_str("\r\n");
        let limits = HeadLimits { head_bytes_max: 4096, headers_max: 50, target_bytes_max: 100 };
        let mut head = RequestHead::new();
        head.parse(text.as_bytes(), &limits).unwrap();
        head
    }

    #[test]
    fn client_is_the_last_address_that_is_not_a_trusted_proxy() {
        let proxies: Vec<IpNet> = vec!["10.0.0.0/8".parse().unwrap()];
        let cases: [(&str, &[&str], &str, bool); 9] = [
            ("10.0.0.1", &["198.51.100.1:51234"], "198.51.100.1", true),
            ("10.0.0.1", &["[2001:db8::1]:80"], "2001:db8::1", true),
            ("192.0.2.1", &["198.51.100.1"], "192.0.2.1", false),
            ("10.0.0.1", &[], "10.0.0.1", true),
            ("10.0.0.1", &["198.51.100.1"], "198.51.100.1", true),
            ("10.0.0.1", &["6.6.6.6, 198.51.100.1, 10.0.0.2"], "198.51.100.1", true),
            ("10.0.0.1", &["6.6.6.6", "198.51.100.1"], "198.51.100.1", true),
            ("10.0.0.1", &["6.6.6.6, junk"], "10.0.0.1", true),
            ("::ffff:10.0.0.1", &["2001:db8::1"], "2001:db8::1", true),
        ];
        for (peer, fields, expected, trusted) in cases {
            let found = client(peer.parse().unwrap(), &proxies, &head(fields));
            assert_eq!(found, (expected.parse().unwrap(), trusted), "{peer} {fields:?}");
        }
    }

    #[test]
    fn request_start_has_three_digits() {
        let at = UNIX_EPOCH + std::time::Duration::from_millis(1_700_000_000_007);
        assert_eq!(request_start(at, &mut [0; REQUEST_START_MAX]), b"t=1700000000.007");
    }

    #[test]
    fn request_ids_are_hexadecimal() {
        let id = make_request_id(&mut fastrand::Rng::with_seed(1));
        assert!(id.iter().all(u8::is_ascii_hexdigit));
    }
}
