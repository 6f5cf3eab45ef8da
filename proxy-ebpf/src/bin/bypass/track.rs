//! sock_ops: finds the two sockets that are the ends of one of sluice's connections.
//!
//! The active end comes first: the SYN-ACK establishes it, and its ACK then establishes the passive end. It is sluice's
//! if sluice wrote a wish into its storage, or a client's if it connects to where sluice listens. The passive end is
//! accepted only if the active one is known, and if both have the same sequence numbers, which no other connection can
//! guess; for a client also only if the listener is sluice's.

use core::arch::asm;
use core::mem::offset_of;

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::{
    BPF_NOEXIST, BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB,
    BPF_SOCK_OPS_STATE_CB, BPF_SOCK_OPS_STATE_CB_FLAG, bpf_sock, bpf_sock_ops,
};
use aya_ebpf::helpers::generated::{
    bpf_get_netns_cookie, bpf_get_socket_cookie, bpf_skc_to_mptcp_sock, bpf_skc_to_tcp_sock,
};
use aya_ebpf::programs::SockOpsContext;
use sluice_ebpf::{ACTIVE, Counter, End, Known, PASSIVE, Service, Tuple, Wish};

use crate::address::{is_loopback, log_pair, mapped};
use crate::send::read;
use crate::{ENDS, KNOWN, SERVICES, count, setting, state, stopped};

const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
const TCP_CLOSE: u32 = 7;

/// A field of the context, or the bytes at an offset from it. In assembly, because the verifier requires a constant
/// offset for each, and the compiler likes to merge two loads into one at a computed address.
macro_rules! field {
    ($ctx:expr, $field:ident $(+ $bytes:literal)?) => {
        field!($ctx, $field $(+ $bytes)?, "u32") as u32
    };
    ($ctx:expr, $field:ident $(+ $bytes:literal)?, $width:literal) => {{
        let value: u64;
        // SAFETY: the context is from the kernel and valid while the program runs; this only loads from it.
        unsafe {
            asm!(
                concat!("{value} = *(", $width, " *)({context} + {offset})"),
                value = out(reg) value,
                context = in(reg) $ctx.ops,
                offset = const offset_of!(bpf_sock_ops, $field) $(+ $bytes)?,
                options(nostack, readonly),
            );
        }
        value
    }};
}

/// `None` means that the callback was not for a connection of sluice, or that the end was refused.
#[inline(always)]
pub(crate) fn try_track(ctx: &SockOpsContext) -> Option<()> {
    match field!(ctx, op) {
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB => active(ctx),
        BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB => passive(ctx),
        BPF_SOCK_OPS_STATE_CB => closed(ctx),
        _ => None,
    }
}

#[inline(always)]
fn active(ctx: &SockOpsContext) -> Option<()> {
    let socket = socket(ctx)?;
    let Some(end) = state(socket, false) else {
        return client(ctx, socket);
    };
    // SAFETY: this is the storage of this socket, which lives while the program runs.
    let (wish, slot) = unsafe { ((*end).wish, (*end).slot) };
    if wish == 0 || stopped() {
        return None;
    }
    let mut tuple = tuple(ctx)?;
    if wish == Wish::AnyNamespace as u32 && !is_loopback(&tuple) {
        tuple.netns = 0;
    }
    register(ctx, socket, end, &tuple, Role { role: ACTIVE, ours: true, slot })
}

/// Another process's socket: a client if it connects to where sluice listens.
#[inline(always)]
fn client(ctx: &SockOpsContext, socket: *mut bpf_sock) -> Option<()> {
    if setting!(clients) == 0 {
        return None;
    }
    let tuple = tuple(ctx)?;
    let mut service =
        Service { address: tuple.remote, port: tuple.remote_port, reserved: 0, netns: tuple.netns };
    if SERVICES.get_ptr(service).is_none() {
        service.address = [0; 4];
        SERVICES.get_ptr(service)?;
    }
    if stopped() {
        return None;
    }
    let end = state(socket, true)?;
    register(ctx, socket, end, &tuple, Role { role: ACTIVE, ours: false, slot: 0 })
}

#[inline(always)]
fn passive(ctx: &SockOpsContext) -> Option<()> {
    if setting!(direct) != 0 && note_client(ctx) {
        return None;
    }
    let mut tuple = tuple(ctx)?;
    // SAFETY: the entry may change meanwhile, which at worst prevents a join.
    let mut known = unsafe { KNOWN.get(tuple.mirrored()) };
    if known.is_none() && setting!(any_namespace) != 0 && !is_loopback(&tuple) {
        tuple.netns = 0;
        // SAFETY: as above.
        known = unsafe { KNOWN.get(tuple.mirrored()) };
    }
    let known = known?;
    let (sent_next, received_next) = (field!(ctx, snd_nxt), field!(ctx, rcv_nxt));
    if known.role != ACTIVE || known.sent_next != received_next || known.received_next != sent_next {
        count(Counter::EndsRefused, 1);
        return None;
    }
    let socket = socket(ctx)?;
    let end = state(socket, true)?;
    let ours = known.ours == 0;
    // SAFETY: this is the storage of this socket, which lives while the program runs.
    if ours && unsafe { (*end).wish } != Wish::Clients as u32 {
        count(Counter::EndsRefused, 1);
        return None;
    }
    let (peer, peer_cookie, slot) = (known.socket, known.cookie, known.slot);
    // SAFETY: as above.
    unsafe {
        ((*end).peer, (*end).peer_cookie, (*end).slot) = (peer, peer_cookie, slot);
    }
    register(ctx, socket, end, &tuple, Role { role: PASSIVE, ours, slot })?;
    count(Counter::PairsJoined, 1);
    log_pair!(ctx, "joined: {:i} port {} to {:i} port {}", tuple);
    Some(())
}

/// Whether it is a client to which responses may be sent. If so, records its address and where its bytes start.
#[inline(always)]
fn note_client(ctx: &SockOpsContext) -> bool {
    let Some(socket) = socket(ctx) else {
        return false;
    };
    let Some(end) = state(socket, false) else {
        return false;
    };
    // SAFETY: this is the storage of this socket, which lives while the program runs.
    if unsafe { (*end).wish } != Wish::Direct as u32 {
        return false;
    }
    // SAFETY: this is the context's socket, not null and locked by the callback; the helper only reads it.
    let own = unsafe { bpf_skc_to_tcp_sock(socket.cast()) };
    let sent_next = field!(ctx, snd_nxt);
    // SAFETY: as above.
    unsafe { ((*end).sent_next, (*end).own) = (sent_next, own as u64) };
    true
}

/// Only sockets that were registered request this callback.
#[inline(always)]
fn closed(ctx: &SockOpsContext) -> Option<()> {
    if field!(ctx, __bindgen_anon_1 + 4) != TCP_CLOSE {
        return None;
    }
    let end = state(socket(ctx)?, false)?;
    // SAFETY: this is the storage of this socket, which lives while the program runs.
    let (tuple, role) = unsafe { ((*end).tuple, (*end).role) };
    if role == 0 {
        return None;
    }
    let _ = KNOWN.remove(tuple);
    if role == PASSIVE {
        count(Counter::PairsClosed, 1);
        log_pair!(ctx, "left: {:i} port {} to {:i} port {}", tuple);
    }
    Some(())
}

/// The properties of an end.
struct Role {
    role: u32,
    ours: bool,
    slot: u32,
}

/// Adds an end to the maps and stores its key in its state.
#[inline(always)]
fn register(
    ctx: &SockOpsContext,
    socket: *mut bpf_sock,
    end: *mut End,
    tuple: &Tuple,
    role: Role,
) -> Option<()> {
    let done = try_register(ctx, socket, end, tuple, role);
    if done.is_none() {
        count(Counter::EndsRefused, 1);
    }
    done
}

#[inline(always)]
fn try_register(
    ctx: &SockOpsContext,
    socket: *mut bpf_sock,
    end: *mut End,
    tuple: &Tuple,
    role: Role,
) -> Option<()> {
    let Role { role, ours, slot } = role;
    // SAFETY: this is the context's socket, not null and locked by the callback; the helpers only read it.
    let (own, mptcp) = unsafe { (bpf_skc_to_tcp_sock(socket.cast()), bpf_skc_to_mptcp_sock(socket.cast())) };
    // An MPTCP subflow carries bytes with different sequence numbers. The map itself refuses sockets with a ULP.
    if own.is_null() || !mptcp.is_null() {
        return None;
    }
    let known = Known {
        socket: own as u64,
        // SAFETY: this is the context from the kernel.
        cookie: unsafe { bpf_get_socket_cookie(ctx.as_ptr()) },
        sent_next: field!(ctx, snd_nxt),
        received_next: field!(ctx, rcv_nxt),
        role,
        ours: u32::from(ours),
        slot,
        reserved: 0,
    };
    // Never replace another end: one connection's bytes would reach another's.
    KNOWN.insert(tuple, &known, u64::from(BPF_NOEXIST)).ok()?;
    let (mut allocated, mut limits, mut pressed) = (0, 0, 0);
    if setting!(memory.prot) != 0 {
        let prot = read::<u64>(known.socket, setting!(memory.prot));
        allocated = read(prot, setting!(memory.allocated));
        limits = read(prot, setting!(memory.limits));
        pressed = read(prot, setting!(memory.pressed));
    }
    // SAFETY: this is the storage of this socket, which lives while the program runs.
    unsafe {
        ((*end).allocated, (*end).limits, (*end).pressed) = (allocated, limits, pressed);
        (*end).tuple = *tuple;
        (*end).own = known.socket;
        (*end).sent_next = known.sent_next;
        (*end).role = role;
        (*end).ours = u32::from(ours);
    }
    // The kernel reports the close only to sockets that request it, so that other sockets cost nothing.
    let flags = field!(ctx, bpf_sock_ops_cb_flags) | BPF_SOCK_OPS_STATE_CB_FLAG;
    let asked = ctx.set_cb_flags(flags as i32);
    let mut key = known.cookie;
    // SAFETY: this is the context from the kernel, which is not borrowed elsewhere meanwhile.
    let ops = unsafe { &mut *ctx.ops };
    if asked.is_err() || ENDS.update(&mut key, ops, u64::from(BPF_NOEXIST)).is_err() {
        let _ = KNOWN.remove(tuple);
        // SAFETY: as above.
        unsafe { (*end).role = 0 };
        return None;
    }
    Some(())
}

#[inline(always)]
fn socket(ctx: &SockOpsContext) -> Option<*mut bpf_sock> {
    let socket = field!(ctx, __bindgen_anon_2, "u64") as *mut bpf_sock;
    (!socket.is_null()).then_some(socket)
}

/// The connection as the context's socket sees it.
#[inline(always)]
fn tuple(ctx: &SockOpsContext) -> Option<Tuple> {
    let (local, remote) = match field!(ctx, family) {
        AF_INET => (mapped(field!(ctx, local_ip4)), mapped(field!(ctx, remote_ip4))),
        AF_INET6 => (
            [
                field!(ctx, local_ip6),
                field!(ctx, local_ip6 + 4),
                field!(ctx, local_ip6 + 8),
                field!(ctx, local_ip6 + 12),
            ],
            [
                field!(ctx, remote_ip6),
                field!(ctx, remote_ip6 + 4),
                field!(ctx, remote_ip6 + 8),
                field!(ctx, remote_ip6 + 12),
            ],
        ),
        _ => return None,
    };
    Some(Tuple {
        local,
        remote,
        local_port: field!(ctx, local_port),
        // This field is in network byte order, in the upper half of its 32 bits on a little-endian machine.
        remote_port: u32::from_be(field!(ctx, remote_port)),
        // SAFETY: this is the context from the kernel.
        netns: unsafe { bpf_get_netns_cookie(ctx.as_ptr()) },
    })
}
