//! What an end has unread, for sluice to find out whether an application reads joined bytes at all.

use aya_ebpf::programs::TcContext;
use sluice_ebpf::{Known, Tuple, UNREAD_OFFSET};

use crate::send::read;
use crate::{KNOWN, setting};

/// Bytes in the receive queue of the end whose [`Tuple`] the frame holds; `None` if there is no such end, or
/// nobody has accepted it yet: then nobody could have read.
#[inline(always)]
pub(crate) fn try_unread(ctx: &TcContext) -> Option<i32> {
    let key: Tuple = ctx.load(UNREAD_OFFSET).ok()?;
    // SAFETY: copied at once; entries are written before they are found and never changed.
    let Known { socket, cookie, .. } = *unsafe { KNOWN.get(key) }?;
    let unread = read::<u32>(socket, setting!(offsets.rmem_alloc));
    let accepted = read::<u64>(socket, setting!(offsets.socket)) != 0;
    // Last: what was read is of that socket only if it still is that socket.
    let same = read::<u64>(socket, setting!(offsets.cookie)) == cookie;
    (accepted && same).then_some(unread as i32)
}
