//! sk_msg: whether a message bypasses TCP. Runs under the sender's lock, once per message.
//!
//! Joined bytes are read before bytes that arrived through TCP, so a message may be joined only when everything sent
//! through TCP has been read: then the receiver's `copied_seq` is the sender's `write_seq`. Joined bytes have no
//! window, so the receiver's unread bytes and messages are limited here.

use aya_ebpf::bindings::{BPF_F_INGRESS, sk_action};
use aya_ebpf::helpers::bpf_probe_read_kernel;
use aya_ebpf::programs::SkMsgContext;
use sluice_ebpf::{Counter, End, Known};

use crate::direct::{request_sent, try_direct};
use crate::memory::is_scarce;
use crate::{ENDS, KNOWN, count, setting, state, stopped};

/// `SEND_SHUTDOWN` of `sk_shutdown`.
const SEND_SHUTDOWN: u8 = 2;

/// Redirects the message to the other end or the client ([`crate::direct`]), or counts why not and leaves it to TCP.
#[inline(always)]
pub(crate) fn try_send(ctx: &SkMsgContext) -> sk_action::Type {
    // SAFETY: the context is from the kernel and valid while the program runs; it contains no null socket here.
    let socket = unsafe { (*ctx.msg).__bindgen_anon_3.sk };
    let size = ctx.size();
    let Some(end) = (if socket.is_null() { None } else { state(socket, false) }) else {
        passed(Counter::NoPeer, size);
        return sk_action::SK_PASS;
    };
    // SAFETY: this is the storage of the sender, whose lock this program runs under, so nothing else changes it.
    let (ours, slot) = unsafe { ((*end).ours != 0, (*end).slot) };
    // SAFETY: as above.
    if !ours && has_ulp(unsafe { (*end).own }) {
        passed(Counter::Ulp, size);
        return sk_action::SK_PASS;
    }
    // SAFETY: as above.
    let scarce = unsafe {
        find_peer(&mut *end);
        is_scarce(&mut *end, size)
    };
    // SAFETY: as above.
    if !ours
        && slot != 0
        && let Some(action) = try_direct(ctx, socket, unsafe { &*end }, size, scarce)
    {
        return action;
    }
    // The current size: a head may have been put in front, or lines cut out.
    let size = ctx.size();
    match join(ctx, end, size, scarce) {
        Ok(()) => {
            if ours {
                // SAFETY: as above.
                request_sent(unsafe { &*end });
            }
            count(Counter::MessagesJoined, 1);
            count(Counter::BytesJoined, u64::from(size));
        }
        Err(reason) => {
            // SAFETY: this is the storage of the sender, whose lock this program runs under.
            unsafe { (*end).used_tcp = 1 };
            passed(reason, size);
        }
    }
    // Also for a redirected message: the helper has recorded the redirection in it.
    sk_action::SK_PASS
}

#[inline(always)]
fn passed(reason: Counter, size: u32) {
    count(reason, 1);
    count(Counter::BytesPassed, u64::from(size));
}

#[inline(always)]
fn join(ctx: &SkMsgContext, end: *mut End, size: u32, scarce: bool) -> Result<(), Counter> {
    // SAFETY: this is the storage of the sender, whose lock this program runs under, so nothing else changes it.
    let end = unsafe { &mut *end };
    // An application may count its bytes (FIONREAD) or splice them, which a change of path breaks; sluice does neither.
    // So messages to an application do not return from TCP, and are not stopped within a message.
    if end.ours != 0 {
        if end.used_tcp != 0 {
            return Err(Counter::AfterTcp);
        }
    } else if stopped() {
        return Err(Counter::Stopped);
    }
    if end.peer == 0 {
        return Err(Counter::NoPeer);
    }
    may_join(end, size)?;
    if scarce {
        return Err(Counter::MemoryPressure);
    }
    let mut key = end.peer_cookie;
    let redirected = ENDS.redirect_msg(ctx, &mut key, u64::from(BPF_F_INGRESS));
    if redirected != i64::from(sk_action::SK_PASS) {
        return Err(Counter::RedirectFailed);
    }
    end.messages += 1;
    end.joined_bytes = end.joined_bytes.wrapping_add(size);
    Ok(())
}

/// Records the other end, if it is known by now.
#[inline(always)]
fn find_peer(end: &mut End) {
    if end.peer != 0 {
        return;
    }
    // SAFETY: the value is copied at once; entries are written before they can be found, and never changed.
    if let Some(&Known { socket, cookie, .. }) = unsafe { KNOWN.get(end.tuple.mirrored()) } {
        end.peer = socket;
        end.peer_cookie = cookie;
    }
}

/// The rule. Each value may be outdated at once, but only in the safe direction: while the sender's lock is held,
/// nothing else adds to the receiver's unread bytes.
#[inline(always)]
fn may_join(end: &mut End, size: u32) -> Result<(), Counter> {
    let (own, peer) = (end.own, end.peer);
    if read::<u8>(own, setting!(offsets.shutdown)) & SEND_SHUTDOWN != 0 {
        return Err(Counter::SenderShutDown);
    }
    // The memory may belong to another socket by now; then its cookie differs too.
    if read::<u64>(peer, setting!(offsets.cookie)) != end.peer_cookie {
        return Err(Counter::NoPeer);
    }
    if end.ours != 0 && has_ulp(peer) {
        return Err(Counter::Ulp);
    }
    let copied_seq = read::<u32>(peer, setting!(offsets.copied_seq));
    if copied_seq != read::<u32>(own, setting!(offsets.write_seq)) {
        return Err(Counter::TcpUnread);
    }
    if read::<u32>(peer, setting!(offsets.rcvlowat)) > 1 {
        return Err(Counter::LowWatermark);
    }
    let unread = read::<u32>(peer, setting!(offsets.rmem_alloc));
    if unread == 0 {
        end.messages = 0;
    }
    if u64::from(unread) + u64::from(size) > u64::from(setting!(budget_bytes)) {
        return Err(Counter::ByteBudget);
    }
    if end.messages >= setting!(budget_messages) {
        return Err(Counter::MessageBudget);
    }
    // Only towards sluice, which never sleeps inside a receive: nothing waits there for bytes through TCP.
    if end.used_tcp != 0 {
        if read::<u32>(peer, setting!(offsets.owned)) != 0 {
            return Err(Counter::ReaderInside);
        }
        end.used_tcp = 0;
    }
    Ok(())
}

/// Whether the bytes of a socket belong to another protocol: it would be sent bytes that are not encrypted yet, and
/// read bytes that still are.
#[inline(always)]
fn has_ulp(socket: u64) -> bool {
    read::<u64>(socket, setting!(offsets.ulp)) != 0
}

/// A field of a kernel structure; 0 if the memory is gone.
#[inline(always)]
pub(crate) fn read<T: Copy + Default>(base: u64, offset: u32) -> T {
    let address = (base + u64::from(offset)) as *const T;
    // SAFETY: the helper checks the address itself and copies the value.
    unsafe { bpf_probe_read_kernel(address) }.unwrap_or_default()
}
