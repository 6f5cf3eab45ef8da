//! What counts as one client.

use std::net::{IpAddr, Ipv6Addr};

/// Leading bits of a v6 address that are the client.
pub const V6_BITS: u8 = 64;

/// The unit in which clients are counted: a v4 address, or the /64 of a v6 host, which has all its addresses.
pub fn share(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_v6_prefix_of_64_bits_is_one_client() {
        let all = ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "::ffff:192.0.2.1", "192.0.2.1"];
        let shares = all.map(|text| text.parse().map(|client| share(client).to_string()).unwrap_or_default());
        assert_eq!(shares, ["2001:db8::", "2001:db8::", "2001:db8:0:1::", "192.0.2.1", "192.0.2.1"]);
    }
}
