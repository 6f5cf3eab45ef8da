//! sk_msg, for an application's socket: whether its response is sent directly from the client's socket.
//!
//! The slot decides; see `sluice_ebpf::slot` for who may write what, and when. A message with a head must contain the
//! whole head. Redirected bytes are queued after this program has ended, so each message is compared with the client's
//! own sequence number: nothing overtakes bytes that have not arrived there.

use aya_ebpf::bindings::{bpf_sock, sk_action};
use aya_ebpf::helpers::generated::{
    bpf_ktime_get_ns, bpf_msg_pop_data, bpf_msg_pull_data, bpf_msg_push_data, bpf_probe_read_kernel,
    bpf_sk_storage_get,
};
use aya_ebpf::programs::SkMsgContext;
use sluice_ebpf::head::{self, Head, Refusal, Scratch, TEXT_BYTES};
use sluice_ebpf::slot::{Answer, HELD_BYTES_MAX, LINE_BYTES_MAX, Miss, Phase, REFUSALS, Seen, Slot};
use sluice_ebpf::{Counter, End};

use crate::send::read;
use crate::{CLIENTS, HEADS, SLOTS, count, setting};

/// `TCP_ESTABLISHED` of net/tcp_states.h.
const ESTABLISHED: u8 = 1;
/// Not a reason that the slot knows: the message is spoilt.
const SPOILT: u32 = 0xff;

/// Records that sluice's request is being sent: from now on, what the application sends is the response to it.
#[inline(always)]
pub(crate) fn request_sent(end: &End) {
    if end.slot != 0
        && let Some(slot) = SLOTS.get(end.slot)
    {
        // A send is in progress on the socket, so its memory is its own.
        slot.request_sent(read::<u64>(end.own, setting!(offsets.cookie)));
    }
}

/// Sends the message to the client if it starts or continues a response that may go there, or keeps it. Else `None`.
#[inline(always)]
pub(crate) fn try_direct(
    ctx: &SkMsgContext,
    socket: *mut bpf_sock,
    end: &End,
    size: u32,
    scarce: bool,
) -> Option<sk_action::Type> {
    let slot = SLOTS.get(end.slot)?;
    let phase = slot.enter(end.peer_cookie)?;
    // SAFETY: takes no arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    let went = match phase {
        Phase::Running => next(ctx, slot, size, scarce),
        _ => first(ctx, socket, slot, end, &Message { size, held: phase == Phase::Held, now_ns, scarce }),
    };
    match went {
        Ok(0) => slot.leave_held(size, now_ns),
        Ok(sent) => slot.leave_sent(sent, now_ns),
        Err(reason) => {
            slot.leave_rest(reason);
            // No receiver may see a spoilt message: its sender gets an error.
            return if reason == SPOILT { Some(sk_action::SK_DROP) } else { None };
        }
    }
    Some(sk_action::SK_PASS)
}

/// The first message of a response, or the first one of its body if the head is kept.
struct Message {
    size: u32,
    held: bool,
    now_ns: u64,
    scarce: bool,
}

/// Bytes that have been sent; 0 if the message is a head that is kept.
#[inline(always)]
fn first(
    ctx: &SkMsgContext,
    socket: *mut bpf_sock,
    slot: &Slot,
    end: &End,
    message: &Message,
) -> Result<u32, u32> {
    let scratch = scratch(socket).ok_or(Miss::Unreadable as u32)?;
    if !message.held {
        read_head(ctx, scratch, message.size)?;
    }
    // SAFETY: the scratch is of the sender's socket, which only this program uses; it has the kept or just read head.
    let head = unsafe { (*scratch).head };
    let [first, second] = head.cuts;
    let answer = Answer {
        status: head.status,
        head_bytes: head.head_bytes,
        cut_bytes: first.bytes + second.bytes,
        body_bytes: head.content_length,
        added_bytes: added_bytes(slot, &head)?,
    };
    let held_bytes = if message.held { head.head_bytes } else { 0 };
    let size = message.size + held_bytes;
    slot.judge_answer(&answer, size, to_sluice(end)).map_err(|miss| miss as u32)?;
    if slot.may_hold(&answer, message.size) && !message.held {
        return keep(ctx, scratch, slot, message.size).map(|()| 0).map_err(|()| Miss::Unreadable as u32);
    }
    slot.judge(size + answer.added_bytes, 0, &see(slot, message.scarce)).map_err(|miss| miss as u32)?;
    // One page for a small response; a client with so many of them does not read.
    if !slot.may_slack(PAGE_BYTES) {
        return Err(Miss::Slack as u32);
    }
    let added = answer.added_bytes;
    if message.held {
        restore(ctx, scratch, slot, &head, added)?;
    }
    slot.begin(&answer, message.now_ns);
    let shift = if message.held { added } else { 0 };
    cut(ctx, &head, shift).map_err(|()| Miss::Unreadable as u32)?;
    if added != 0 && !message.held {
        add(ctx, scratch, slot, &head, added)?;
    }
    let size = answer.seen_bytes(size);
    let gathered = gather(ctx, slot, size);
    // Otherwise a kept head, or the lines in front of another one, are in a page of their own.
    let front = held_bytes + added;
    if front != 0 && !gathered {
        note_slack(slot, slack_of(front));
    }
    redirect(ctx, slot)?;
    Ok(size)
}

/// Bytes of the line that this head gets in addition: sluice's, unless the application has sent such a field itself.
#[inline(always)]
fn added_bytes(slot: &Slot, head: &Head) -> Result<u32, u32> {
    let bytes = slot.line.bytes();
    if bytes == 0 || head.has_request_id != 0 {
        return Ok(0);
    }
    let fits = bytes <= LINE_BYTES_MAX as u32 && head.status_line_bytes <= STATUS_LINE_BYTES_MAX;
    if fits { Ok(bytes) } else { Err(REFUSALS + Refusal::Odd as u32) }
}

/// Most bytes of a status line after which a line can be added.
const STATUS_LINE_BYTES_MAX: u32 = 64;
/// Room in front of a message for a status line and a line that is added to it.
const FRONT_BYTES: u32 = STATUS_LINE_BYTES_MAX + LINE_BYTES_MAX as u32;

/// Adds sluice's line after the status line.
///
/// A message cannot be changed in place: its pages may be those of a file. So both lines are written in front of it, in
/// a page of their own, and what remains of that page and the status line are taken out together.
#[inline(always)]
fn add(ctx: &SkMsgContext, scratch: *const Scratch, slot: &Slot, head: &Head, bytes: u32) -> Result<(), u32> {
    // SAFETY: the context is from the kernel; the helper checks the range.
    if unsafe { bpf_msg_push_data(ctx.msg, 0, FRONT_BYTES, 0) } != 0 {
        return Err(Miss::Unreadable as u32);
    }
    write_front(ctx, scratch, slot, head)?;
    let from = head.status_line_bytes + bytes;
    // SAFETY: the context is from the kernel; the helper checks the range.
    if unsafe { bpf_msg_pop_data(ctx.msg, from, FRONT_BYTES - bytes, 0) } == 0 { Ok(()) } else { Err(SPOILT) }
}

/// Writes the status line and sluice's line at the start of the message, and anything up to [`FRONT_BYTES`] after them.
/// Both copies have a fixed size, because the verifier would follow each possible one.
#[inline(always)]
fn write_front(ctx: &SkMsgContext, scratch: *const Scratch, slot: &Slot, head: &Head) -> Result<(), u32> {
    let (start, end) = (ctx.data(), ctx.data_end());
    if start + STATUS_LINE_BYTES_MAX as usize > end {
        return Err(SPOILT);
    }
    // SAFETY: the scratch is a whole one, and its text is longer than a status line.
    let text = unsafe { (&raw const (*scratch).text).cast::<u64>() };
    for index in 0..STATUS_LINE_BYTES_MAX as usize / 8 {
        // SAFETY: the range was just checked; the text is aligned like the scratch.
        unsafe { (start as *mut u64).add(index).write_unaligned(text.add(index).read_volatile()) };
    }
    let start = start + clamp::<{ STATUS_LINE_BYTES_MAX as u64 - 1 }>(head.status_line_bytes) as usize;
    if start + LINE_BYTES_MAX > end {
        return Err(SPOILT);
    }
    for index in 0..LINE_BYTES_MAX / 8 {
        // SAFETY: the range was just checked.
        unsafe { (start as *mut u64).add(index).write_unaligned(slot.line.word(index)) };
    }
    Ok(())
}

/// Removes a head from its message, which consists only of it, and stores it in the slot.
#[inline(always)]
fn keep(ctx: &SkMsgContext, scratch: *mut Scratch, slot: &Slot, size: u32) -> Result<(), ()> {
    let bytes = clamp::<{ HELD_BYTES_MAX as u64 - 1 }>(size);
    let to = (&raw const slot.text).cast_mut().cast();
    // SAFETY: this copies at most the room for the text, which is the program's in this phase, and less than the
    // scratch contains.
    let copied = unsafe { bpf_probe_read_kernel(to, bytes, (&raw const (*scratch).text).cast()) };
    // SAFETY: the context is from the kernel; the helper checks the range.
    if copied == 0 && unsafe { bpf_msg_pop_data(ctx.msg, 0, size, 0) } == 0 { Ok(()) } else { Err(()) }
}

/// Puts a kept head in front of the message, with sluice's line of `added` bytes unless that is 0.
#[inline(always)]
fn restore(
    ctx: &SkMsgContext,
    scratch: *mut Scratch,
    slot: &Slot,
    head: &Head,
    added: u32,
) -> Result<(), u32> {
    let (size, whole) = (head.head_bytes, head.head_bytes + added);
    // A short head leaves too little room to write a line in front of it.
    let room = if added == 0 { whole } else { whole.max(FRONT_BYTES) };
    // SAFETY: the context is from the kernel; the helper checks the range.
    if unsafe { bpf_msg_push_data(ctx.msg, 0, room, 0) } != 0 {
        return Err(Miss::Unreadable as u32);
    }
    let (mut skip, mut shift) = (0, 0);
    if added != 0 {
        write_front(ctx, scratch, slot, head)?;
        skip = clamp::<{ STATUS_LINE_BYTES_MAX as u64 - 1 }>(head.status_line_bytes) as usize;
        shift = clamp::<63>(added) as usize;
    }
    let (start, end) = (ctx.data() + shift, ctx.data_end());
    // SAFETY: the scratch is a whole one.
    let text = unsafe { (&raw const (*scratch).text).cast::<u8>() };
    let copy = |skip: usize, at: usize| {
        let to = start + skip + at;
        if to + 8 > end {
            return Err(SPOILT);
        }
        // SAFETY: `to` was just checked; the source is within the text, which is longer than a kept head.
        unsafe { (to as *mut u64).write_volatile(text.add(skip).add(at).cast::<u64>().read_volatile()) };
        Ok(())
    };
    // Counted from 0, because the verifier of Linux 6.1 goes on where a range has become empty.
    let mut at = 0;
    while skip + at + 8 <= size as usize && at < HELD_BYTES_MAX {
        copy(skip, at)?;
        at += 8;
    }
    // The last eight bytes once more, because some may be left, and no head is shorter. For a loop over single bytes,
    // the verifier of Linux 6.1 would follow every possible number of them from each word on, and give up.
    copy(0, clamp::<{ HELD_BYTES_MAX as u64 - 1 }>(size - 7) as usize - 1)?;
    // SAFETY: the context is from the kernel; the helper checks the range.
    if room == whole || unsafe { bpf_msg_pop_data(ctx.msg, whole, room - whole, 0) } == 0 {
        Ok(())
    } else {
        Err(SPOILT)
    }
}

#[inline(always)]
fn next(ctx: &SkMsgContext, slot: &Slot, size: u32, scarce: bool) -> Result<u32, u32> {
    slot.judge_next(size, &see(slot, scarce)).map_err(|miss| miss as u32)?;
    gather(ctx, slot, size);
    redirect(ctx, slot)?;
    Ok(size)
}

/// Bytes that the application has sent to sluice, by either path. Bytes to clients are counted in their sockets.
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

/// Bytes of a segment in a send queue: only the last has fewer, and none has more.
const PIECE_MIN: u32 = 256;
const PIECE_MAX: u32 = 65_536;
/// Most memory that a segment takes in addition to its bytes.
const PIECE_OVERHEAD: u32 = 2048;

/// The current state of the client's socket. It can only improve while this runs: nothing else writes to the socket, or
/// the slot would not be ours.
#[inline(always)]
fn see(slot: &Slot, scarce: bool) -> Seen {
    let socket = slot.client_socket.get();
    // First: bytes that were being taken until then are included in the sequence number.
    let quiet = read::<u32>(socket, setting!(offsets.owned)) == 0;
    let queued = read::<u32>(socket, setting!(offsets.wmem_queued));
    let sequence = read::<u32>(socket, setting!(offsets.write_seq));
    // Everything queued before has reached the client, and its pages are free.
    if read::<u32>(socket, setting!(offsets.snd_una)) == sequence {
        slot.slack.set(0);
    }
    let room = read::<u32>(socket, setting!(offsets.sndbuf)).saturating_sub(queued);
    // Segments have at most half the largest window that the client has offered, and each has its own structure: with
    // small windows there is room for fewer bytes.
    let piece = (read::<u32>(socket, setting!(offsets.max_window)) / 2).clamp(PIECE_MIN, PIECE_MAX);
    let room = (u64::from(room) * u64::from(piece) / u64::from(piece + PIECE_OVERHEAD)) as u32;
    // A namespace's own limit, for which 0 stands, is unknown here: sluice sets one on each socket.
    let unsent = sequence.wrapping_sub(read::<u32>(socket, setting!(offsets.snd_nxt)));
    let unsent_room = read::<u32>(socket, setting!(offsets.notsent_lowat)).saturating_sub(unsent);
    let alive = read::<u8>(socket, setting!(offsets.state)) == ESTABLISHED
        && read::<u32>(socket, setting!(offsets.err)) == 0
        && read::<u8>(socket, setting!(offsets.shutdown)) == 0
        // Last: the values belong to that socket only if it is still that socket.
        && read::<u64>(socket, setting!(offsets.cookie))
            == slot.client.get();
    Seen { alive, sequence, quiet, room, unsent_room, scarce }
}

/// The memory into which heads are read; created if there is none.
#[inline(always)]
fn scratch(socket: *mut bpf_sock) -> Option<*mut Scratch> {
    let map = (&raw const HEADS).cast_mut().cast();
    // SAFETY: this is the sender's socket, held while the program runs; the map is ours; 1 creates the storage if there
    // is none.
    let scratch: *mut Scratch =
        unsafe { bpf_sk_storage_get(map, socket.cast(), core::ptr::null_mut(), 1) }.cast();
    (!scratch.is_null()).then_some(scratch)
}

/// Parses the head at the start of the message, in a copy that nothing changes meanwhile.
#[inline(always)]
fn read_head(ctx: &SkMsgContext, scratch: *mut Scratch, size: u32) -> Result<(), u32> {
    let unreadable = Miss::Unreadable as u32;
    let wanted = size.min(TEXT_BYTES as u32);
    // Nearly always it is in one piece.
    if ((ctx.data_end() - ctx.data()) as u32) < wanted {
        // SAFETY: this is the context from the kernel.
        if unsafe { bpf_msg_pull_data(ctx.msg, 0, wanted, 0) } != 0 {
            return Err(unreadable);
        }
    }
    let bytes = clamp::<{ TEXT_BYTES as u64 - 1 }>(wanted);
    // SAFETY: `bytes` is at most the room for text in the storage, which only programs on this socket use, one at a
    // time under its lock; the helper checks the other address.
    let copied =
        unsafe { bpf_probe_read_kernel((&raw mut (*scratch).text).cast(), bytes, ctx.data() as *const _) };
    if copied != 0 {
        return Err(unreadable);
    }
    // SAFETY: as above.
    unsafe { head::parse(scratch, bytes).map_err(|refusal| REFUSALS + refusal as u32) }
}

/// Clamps from 1 to one more than the mask, in a way that the verifier understands.
#[inline(always)]
fn clamp<const MASK: u64>(bytes: u32) -> u32 {
    let mut clamped = u64::from(bytes);
    // SAFETY: this is only arithmetic on a register.
    unsafe {
        core::arch::asm!(
            "{bytes} += -1",
            "{bytes} &= {mask}",
            "{bytes} += 1",
            bytes = inout(reg) clamped,
            mask = const MASK,
            options(pure, nomem, nostack),
        );
    }
    clamped as u32
}

/// A larger message is sent in the pieces that it has: it leaves as more than one segment anyway.
const GATHERED_MAX: u32 = 16_384;
const PAGE_BYTES: u32 = 4096;

/// Gathers a message into one piece, because each piece would leave as a separate segment. If this fails, it leaves in
/// several. The kernel copies it into pages of its own, of which TCP counts only the used bytes. Returns whether it
/// gathered the message.
#[inline(always)]
fn gather(ctx: &SkMsgContext, slot: &Slot, size: u32) -> bool {
    let is_whole = (ctx.data_end() - ctx.data()) as u32 >= size;
    let slack = slack_of(size);
    if is_whole || size > GATHERED_MAX || !slot.may_slack(slack) {
        return false;
    }
    // SAFETY: the context is from the kernel; the helper checks the range.
    let gathered = unsafe { bpf_msg_pull_data(ctx.msg, 0, size, 0) } == 0;
    if gathered {
        note_slack(slot, slack);
    }
    gathered
}

/// Unused bytes of the pages into which a message of at most [`GATHERED_MAX`] is gathered.
#[inline(always)]
fn slack_of(size: u32) -> u32 {
    let pages = match size {
        ..=PAGE_BYTES => 1,
        ..=8192 => 2,
        _ => 4,
    };
    (pages * PAGE_BYTES).saturating_sub(size)
}

#[inline(always)]
fn note_slack(slot: &Slot, bytes: u32) {
    slot.add_slack(bytes);
    count(Counter::SlackBytes, u64::from(bytes));
}

/// Cuts out the lines that are not for the client, the last one first, so that the positions of the others stay valid.
/// The message has `shift` bytes more than the head in front of them.
#[inline(always)]
fn cut(ctx: &SkMsgContext, head: &Head, shift: u32) -> Result<(), ()> {
    let [first, second] = head.cuts;
    for cut in [second, first] {
        // SAFETY: the context is from the kernel; the helper checks the range.
        if cut.bytes != 0 && unsafe { bpf_msg_pop_data(ctx.msg, cut.start + shift, cut.bytes, 0) } != 0 {
            return Err(());
        }
    }
    Ok(())
}
