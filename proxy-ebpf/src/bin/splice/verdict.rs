//! Whether a piece goes to the other socket. Once a piece was left to sluice, all are: that keeps the order.
//!
//! A piece goes there only if the other socket's send buffer has room for it and for everything still waiting. So
//! nothing waits for long: the kernel queues bytes that are left to sluice after it, on the same socket, and a client
//! that sends without reading would otherwise wait forever.

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::sk_action;
use aya_ebpf::helpers::bpf_probe_read_kernel;
use aya_ebpf::helpers::generated::{
    bpf_get_socket_cookie, bpf_map_lookup_elem, bpf_sk_release, bpf_skc_to_tcp_sock,
};
use aya_ebpf::programs::SkBuffContext;
use sluice_ebpf::splice::{Ledger, Passed};

use crate::{BELLS, GATES, LEDGERS, LIMITS, SOCKETS};

/// Twice the send buffer memory that a piece takes in addition to its bytes.
const PIECE_BYTES: u64 = 2048;

/// Reads a limit as the constant that it became at loading; otherwise the compiler would use the zero.
macro_rules! limit {
    ($($field:tt)+) => {
        // SAFETY: this is a field of a static, which lives as long as the program.
        unsafe { (&raw const LIMITS.$($field)+).read_volatile() }
    };
}

/// Redirects the piece, or counts it as left to sluice.
#[inline(always)]
pub(crate) fn decide(ctx: &SkBuffContext) -> sk_action::Type {
    let length = ctx.len();
    // The end of the stream is a piece of no bytes, which the kernel's worker treats as a broken pipe (6.18), on either
    // socket. The socket itself knows that it has ended, and sluice carries the end across.
    if length == 0 {
        return sk_action::SK_DROP;
    }
    account(ctx, length);
    // Also for a redirected piece: the helper has recorded the redirection in it.
    sk_action::SK_PASS
}

#[inline(always)]
fn account(ctx: &SkBuffContext, length: u32) {
    // SAFETY: this is the context from the kernel.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    // Without a ledger nothing was agreed: the socket is about to be closed.
    let Some(ledger) = LEDGERS.get_ptr_mut(cookie) else {
        return;
    };
    // SAFETY: the map returned a valid, aligned pointer. Its only writer is this program under this socket's lock.
    let ledger = unsafe { &mut *ledger };
    match redirect(ctx, cookie, ledger, length) {
        Ok(()) => {
            ledger.redirected += u64::from(length);
            ledger.pieces += 1;
            ledger.pieces_since += 1;
        }
        Err(why) => {
            let is_first = ledger.passed == 0;
            ledger.passed += u64::from(length);
            if is_first {
                ledger.why = why as u32;
                // A full ring means that sluice is behind; it also checks by itself from time to time.
                let _ = BELLS.output(cookie, 0);
            }
        }
    }
}

#[inline(always)]
fn redirect(ctx: &SkBuffContext, cookie: u64, ledger: &mut Ledger, length: u32) -> Result<(), Passed> {
    if ledger.passed != 0 {
        return Err(Passed::Closed);
    }
    // SAFETY: entries are replaced as a whole, and the memory of a replaced one stays until this program has ended.
    let gate = unsafe { GATES.get(cookie) }.ok_or(Passed::Closed)?;
    if gate.open == 0 {
        return Err(Passed::Closed);
    }
    let mut peer = gate.peer;
    let buffer = SendQueue::of(&mut peer).ok_or(Passed::NoPeer)?;
    if ledger.has_base == 0 {
        ledger.base = buffer.written;
        ledger.has_base = 1;
    }
    // Sequence numbers wrap at 32 bits, and so does the difference, which is small.
    let waiting = (ledger.redirected as u32).wrapping_sub(buffer.written.wrapping_sub(ledger.base));
    let pieces = waiting_pieces(ledger, waiting);
    // A received piece is redirected as a whole; it has at most 64 KB.
    if waiting > limit!(budget_bytes) || pieces >= u64::from(limit!(budget_pieces)) {
        return Err(Passed::Budget);
    }
    let bytes = u64::from(waiting) + u64::from(length);
    if buffer.room < bytes * 2 + (pieces + 1) * PIECE_BYTES {
        return Err(Passed::Budget);
    }
    let answer = SOCKETS.redirect_skb(ctx, &mut peer, 0);
    if answer == i64::from(sk_action::SK_PASS) { Ok(()) } else { Err(Passed::NoPeer) }
}

/// Maximum number of waiting pieces: those since the mark before the last one, because a piece leaves only its bytes.
/// The mark moves on when everything that it was set at has left.
#[inline(always)]
fn waiting_pieces(ledger: &mut Ledger, waiting: u32) -> u64 {
    let since_mark = ledger.redirected - ledger.mark;
    if u64::from(waiting) <= since_mark {
        ledger.pieces_before = if waiting == 0 { 0 } else { ledger.pieces_since };
        ledger.pieces_since = 0;
        ledger.mark = ledger.redirected;
    }
    u64::from(ledger.pieces_before) + u64::from(ledger.pieces_since)
}

/// The end of a socket's send buffer and the room in it.
struct SendQueue {
    /// The sequence number after the last byte in it.
    written: u32,
    /// In bytes, including what the kernel adds to those of a message.
    room: u64,
}

impl SendQueue {
    #[inline(always)]
    fn of(cookie: &mut u64) -> Option<Self> {
        let map = (&raw const SOCKETS).cast_mut().cast();
        // SAFETY: the map is ours and its keys are cookies; the kernel holds a reference to the returned socket.
        let socket = unsafe { bpf_map_lookup_elem(map, (&raw mut *cookie).cast()) };
        if socket.is_null() {
            return None;
        }
        // SAFETY: the socket is held until it is released below; the helper only reads it.
        let tcp = unsafe { bpf_skc_to_tcp_sock(socket) };
        let found = if tcp.is_null() { None } else { Self::read(tcp as u64) };
        // SAFETY: the socket has been held since the look-up, and is not used from here on.
        unsafe { bpf_sk_release(socket) };
        found
    }

    #[inline(always)]
    fn read(tcp: u64) -> Option<Self> {
        let size = field(tcp, limit!(offsets.sndbuf))?;
        let used = field(tcp, limit!(offsets.wmem_queued))?;
        let room = u64::from(size).saturating_sub(u64::from(used));
        Some(Self { written: field(tcp, limit!(offsets.write_seq))?, room })
    }
}

#[inline(always)]
fn field(base: u64, offset: u32) -> Option<u32> {
    let address = (base + u64::from(offset)) as *const u32;
    // SAFETY: the helper checks the address itself and copies the value.
    unsafe { bpf_probe_read_kernel(address) }.ok()
}
