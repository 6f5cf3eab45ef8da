//! sk_msg, for an application's socket: whether its answer goes straight out of the client's socket.
//!
//! The slot says so; see `sluice_ebpf::slot` for who may write what, and when. The message of a head must hold the
//! whole head. What is redirected is queued after this program has ended, so each message is compared with the
//! client's own sequence number: nothing overtakes what has not got there.

use aya_ebpf::bindings::{bpf_sock, sk_action};
use aya_ebpf::helpers::generated::{
    bpf_ktime_get_ns, bpf_msg_pop_data, bpf_msg_pull_data, bpf_probe_read_kernel, bpf_sk_storage_get,
};
use aya_ebpf::programs::SkMsgContext;
use sluice_ebpf::End;
use sluice_ebpf::head::{self, Head, Scratch, TEXT_BYTES};
use sluice_ebpf::slot::{Answer, Miss, Phase, REFUSALS, Seen, Slot};

use crate::send::read;
use crate::{CLIENTS, HEADS, SLOTS, setting};

/// `TCP_ESTABLISHED` of net/tcp_states.h.
const ESTABLISHED: u8 = 1;

/// Notes that sluice's request is on its way: what the application sends from now on is the answer to it.
#[inline(always)]
pub(crate) fn request_sent(end: &End) {
    if end.slot != 0
        && let Some(slot) = SLOTS.get(end.slot)
    {
        // The socket is being sent on, so its memory is its own.
        slot.request_sent(read::<u64>(end.own, setting!(offsets.cookie)));
    }
}

/// Sends the message to the client if it is, or goes on with, an answer that may go there.
#[inline(always)]
pub(crate) fn try_direct(ctx: &SkMsgContext, socket: *mut bpf_sock, end: &End, size: u32) -> bool {
    let Some(slot) = SLOTS.get(end.slot) else {
        return false;
    };
    let Some(phase) = slot.enter(end.peer_cookie) else {
        return false;
    };
    let sent =
        if phase == Phase::Armed { first(ctx, socket, slot, end, size) } else { next(ctx, slot, size) };
    match sent {
        Ok(sent) => {
            // SAFETY: takes nothing.
            slot.leave_sent(sent, unsafe { bpf_ktime_get_ns() });
            true
        }
        Err(reason) => {
            slot.leave_rest(reason);
            false
        }
    }
}

#[inline(always)]
fn first(ctx: &SkMsgContext, socket: *mut bpf_sock, slot: &Slot, end: &End, size: u32) -> Result<u32, u32> {
    let head = read_head(ctx, socket, size)?;
    let [first, second] = head.cuts;
    let cut_bytes = first.bytes + second.bytes;
    let answer = Answer {
        status: head.status,
        head_bytes: head.head_bytes,
        cut_bytes,
        body_bytes: head.content_length,
    };
    slot.judge_first(&answer, size, to_sluice(end), &see(slot)).map_err(|miss| miss as u32)?;
    cut(ctx, &head).map_err(|()| Miss::Unreadable as u32)?;
    gather(ctx, size - cut_bytes);
    // SAFETY: takes nothing.
    slot.begin(&answer, unsafe { bpf_ktime_get_ns() });
    redirect(ctx, slot)?;
    Ok(size - cut_bytes)
}

#[inline(always)]
fn next(ctx: &SkMsgContext, slot: &Slot, size: u32) -> Result<u32, u32> {
    slot.judge_next(size, &see(slot)).map_err(|miss| miss as u32)?;
    gather(ctx, size);
    redirect(ctx, slot)?;
    Ok(size)
}

/// Bytes that the application has sent to sluice, either way. What goes to clients is counted with their sockets.
#[inline(always)]
fn to_sluice(end: &End) -> u32 {
    let by_tcp = read::<u32>(end.own, setting!(offsets.write_seq)).wrapping_sub(end.sent_next);
    end.joined_bytes.wrapping_add(by_tcp)
}

#[inline(always)]
fn redirect(ctx: &SkMsgContext, slot: &Slot) -> Result<(), u32> {
    let mut key = slot.client.get();
    let redirected = CLIENTS.redirect_msg(ctx, &mut key, 0);
    if redirected == i64::from(sk_action::SK_PASS) { Ok(()) } else { Err(Miss::Redirect as u32) }
}

/// What the client's socket is now. It can only become better while this runs: nobody else writes to it, or the
/// slot would not be ours.
#[inline(always)]
fn see(slot: &Slot) -> Seen {
    let socket = slot.client_socket.get();
    let queued = read::<u32>(socket, setting!(offsets.wmem_queued));
    let sequence = read::<u32>(socket, setting!(offsets.write_seq));
    let room = read::<u32>(socket, setting!(offsets.sndbuf)).saturating_sub(queued);
    let alive = read::<u8>(socket, setting!(offsets.state)) == ESTABLISHED
        && read::<u32>(socket, setting!(offsets.err)) == 0
        && read::<u8>(socket, setting!(offsets.shutdown)) == 0
        // Last: what was read is of that socket only if it still is that socket.
        && read::<u64>(socket, setting!(offsets.cookie))
            == slot.client.get();
    Seen { alive, sequence, room }
}

/// Parses the head that the message begins with, in a copy that nobody changes meanwhile.
#[inline(always)]
fn read_head(ctx: &SkMsgContext, socket: *mut bpf_sock, size: u32) -> Result<Head, u32> {
    let unreadable = Miss::Unreadable as u32;
    let map = (&raw const HEADS).cast_mut().cast();
    // SAFETY: the sender's socket, held while the program runs; the map is ours; 1 makes the storage if there is
    // none.
    let scratch: *mut Scratch =
        unsafe { bpf_sk_storage_get(map, socket.cast(), core::ptr::null_mut(), 1) }.cast();
    if scratch.is_null() {
        return Err(unreadable);
    }
    let wanted = size.min(TEXT_BYTES as u32);
    // Nearly always it is in one piece.
    if ((ctx.data_end() - ctx.data()) as u32) < wanted {
        // SAFETY: the context that the kernel gave.
        if unsafe { bpf_msg_pull_data(ctx.msg, 0, wanted, 0) } != 0 {
            return Err(unreadable);
        }
    }
    let bytes = clamp(wanted);
    // SAFETY: `bytes` is at most the room for text in the storage, which only programs on this socket use, one at a
    // time under its lock; the helper checks the other address.
    let copied =
        unsafe { bpf_probe_read_kernel((&raw mut (*scratch).text).cast(), bytes, ctx.data() as *const _) };
    if copied != 0 {
        return Err(unreadable);
    }
    // SAFETY: as above.
    unsafe {
        head::parse(scratch, bytes).map_err(|refusal| REFUSALS + refusal as u32)?;
        Ok((*scratch).head)
    }
}

/// From 1 to as much as there is room for, so that the verifier sees it, too.
#[inline(always)]
fn clamp(bytes: u32) -> u32 {
    let mut clamped = u64::from(bytes);
    // SAFETY: arithmetic on a register.
    unsafe {
        core::arch::asm!(
            "{bytes} += -1",
            "{bytes} &= 2047",
            "{bytes} += 1",
            bytes = inout(reg) clamped,
            options(pure, nomem, nostack),
        );
    }
    clamped as u32
}

/// Brings a message into one piece: each piece of it would leave as a segment of its own. If that cannot be had it
/// leaves in more.
#[inline(always)]
fn gather(ctx: &SkMsgContext, size: u32) {
    // SAFETY: the context that the kernel gave; the helper checks the range.
    unsafe { bpf_msg_pull_data(ctx.msg, 0, size, 0) };
}

/// Takes the lines out that are not for the client, the last one first, so that the others stay where they are.
#[inline(always)]
fn cut(ctx: &SkMsgContext, head: &Head) -> Result<(), ()> {
    let [first, second] = head.cuts;
    for cut in [second, first] {
        // SAFETY: the context that the kernel gave; the helper checks the range.
        if cut.bytes != 0 && unsafe { bpf_msg_pop_data(ctx.msg, cut.start, cut.bytes, 0) } != 0 {
            return Err(());
        }
    }
    Ok(())
}
