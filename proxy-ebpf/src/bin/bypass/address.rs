//! Addresses as in the maps: IPv6, or IPv4 mapped to it.

use sluice_ebpf::Tuple;

/// Logs what happened to a pair, given as the passive end sees it, active end first.
macro_rules! log_pair {
    ($ctx:expr, $format:literal, $tuple:expr) => {
        aya_log_ebpf::debug!(
            $ctx,
            $format,
            $crate::address::bytes($tuple.remote),
            $tuple.remote_port,
            $crate::address::bytes($tuple.local),
            $tuple.local_port
        )
    };
}
pub(crate) use log_pair;

/// An IPv4 address as IPv6.
#[inline(always)]
pub(crate) fn mapped(address: u32) -> [u32; 4] {
    [0, 0, 0xffff_u32.to_be(), address]
}

/// 127/8 or ::1 at either end: every network namespace has these.
#[inline(always)]
pub(crate) fn is_loopback(tuple: &Tuple) -> bool {
    is_loopback_address(&tuple.local) || is_loopback_address(&tuple.remote)
}

#[inline(always)]
fn is_loopback_address(address: &[u32; 4]) -> bool {
    let [a, b, c, d] = *address;
    if a != 0 || b != 0 {
        return false;
    }
    let d = u32::from_be(d);
    (c == 0xffff_u32.to_be() && d >> 24 == 127) || (c == 0 && d == 1)
}

/// The bytes of an address in network order.
#[inline(always)]
pub(crate) fn bytes(address: [u32; 4]) -> [u8; 16] {
    // SAFETY: both types are 16 plain bytes.
    unsafe { core::mem::transmute(address) }
}
