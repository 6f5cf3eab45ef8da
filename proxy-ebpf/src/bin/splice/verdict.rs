//! Whether a piece goes to the other socket. Once one was left to sluice, all are: that keeps the order.
//!
//! It goes only if the other socket's send buffer has room for it and for what still waits. So nothing waits for
//! long: the kernel puts what is left to sluice behind it, on the same socket, and a client that sends without
//! reading would wait for ever otherwise.

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::sk_action;
use aya_ebpf::helpers::bpf_probe_read_kernel;
use aya_ebpf::helpers::generated::{
    bpf_get_socket_cookie, bpf_map_lookup_elem, bpf_sk_release, bpf_skc_to_tcp_sock,
};
use aya_ebpf::programs::SkBuffContext;
use sluice_ebpf::splice::{Ledger, Passed};

use crate::{BELLS, GATES, LEDGERS, LIMITS, SOCKETS};

/// What a piece takes of the send buffer besides its bytes, twice over.
const PIECE_BYTES: u64 = 2048;

/// Reads a limit as the constant that it became at loading; else the compiler would see the zero.
macro_rules! limit {
    ($($field:tt)+) => {
        // SAFETY: a field of a static that lives as long as the program.
        unsafe { (&raw const LIMITS.$($field)+).read_volatile() }
    };
}

/// Redirects the piece, or counts it as left to sluice.
#[inline(always)]
pub(crate) fn decide(ctx: &SkBuffContext) -> sk_action::Type {
    let length = ctx.len();
    // The end of the stream is a piece of no bytes, which the kernel's worker takes for a broken pipe (6.18), on
    // either socket. The socket itself knows that it has ended, and sluice carries it across.
    if length == 0 {
        return sk_action::SK_DROP;
    }
    account(ctx, length);
    // Also when the piece was redirected: the helper has noted that with it.
    sk_action::SK_PASS
}

#[inline(always)]
fn account(ctx: &SkBuffContext, length: u32) {
    // SAFETY: the context that the kernel gave.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    // Without a ledger nothing was agreed on: the socket is on its way out.
    let Some(ledger) = LEDGERS.get_ptr_mut(cookie) else {
        return;
    };
    // SAFETY: the map gave a valid, aligned pointer. Its one writer is this program under this socket's lock.
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
                // Full says that sluice is late; it also looks by itself from time to time.
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
    // SAFETY: entries are replaced whole, and the memory of one that was stays until this program has ended.
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
    // What came is let through whole: a piece is of 64 KB at most.
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

/// How many pieces wait, at most: those since the last mark but one, for a piece leaves nothing behind but its
/// bytes. The mark moves on when all that it was set at have left.
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

/// The end of the send buffer of a socket and the room in it.
struct SendQueue {
    /// The sequence number behind the last byte in it.
    written: u32,
    /// In bytes, with what the kernel adds to those of a message.
    room: u64,
}

impl SendQueue {
    #[inline(always)]
    fn of(cookie: &mut u64) -> Option<Self> {
        let map = (&raw const SOCKETS).cast_mut().cast();
        // SAFETY: the map is ours and its keys are cookies; the kernel holds the socket that it gives.
        let socket = unsafe { bpf_map_lookup_elem(map, (&raw mut *cookie).cast()) };
        if socket.is_null() {
            return None;
        }
        // SAFETY: a socket that is held until it is released below; the helper only looks at it.
        let tcp = unsafe { bpf_skc_to_tcp_sock(socket) };
        let found = if tcp.is_null() { None } else { Self::read(tcp as u64) };
        // SAFETY: held since the lookup, and not used from here on.
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
    // SAFETY: the helper checks the address itself and copies.
    unsafe { bpf_probe_read_kernel(address) }.ok()
}
