//! Unread bytes of an end, so that sluice can find out whether an application reads joined bytes at all.

use aya_ebpf::programs::TcContext;
use sluice_ebpf::{Known, Tuple, UNREAD_OFFSET};

use crate::send::read;
use crate::{KNOWN, setting};

/// Bytes in the receive queue of the end whose [`Tuple`] is in the frame; `None` if there is no such end, or if it has
/// not been accepted yet, so that no process could have read.
#[inline(always)]
pub(crate) fn try_unread(ctx: &TcContext) -> Option<i32> {
    let key: Tuple = ctx.load(UNREAD_OFFSET).ok()?;
    // SAFETY: the value is copied at once; entries are written before they can be found, and never changed.
    let Known { socket, cookie, .. } = *unsafe { KNOWN.get(key) }?;
    let unread = read::<u32>(socket, setting!(offsets.rmem_alloc));
    let accepted = read::<u64>(socket, setting!(offsets.socket)) != 0;
    // Last: the values belong to that socket only if it is still that socket.
    let same = read::<u64>(socket, setting!(offsets.cookie)) == cookie;
    (accepted && same).then_some(unread as i32)
}
