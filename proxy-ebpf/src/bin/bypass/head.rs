//! The parser of heads on its own, for tests: the code that direct return runs, on bytes from sluice.

use core::mem::offset_of;

use aya_ebpf::EbpfContext;
use aya_ebpf::helpers::generated::{bpf_skb_load_bytes, bpf_skb_store_bytes};
use aya_ebpf::programs::TcContext;
use sluice_ebpf::head::{Head, Scratch, TEXT_BYTES, TRIAL_HEAD_OFFSET, TRIAL_TEXT_OFFSET, parse};

use crate::HEAD_TRIAL;

/// Writes the result into the frame. The error is the number of a [`Refusal`](sluice_ebpf::head::Refusal), or -1 if the
/// frame or the map is invalid.
#[inline(always)]
pub(crate) fn try_head(ctx: &TcContext) -> Result<(), i32> {
    let scratch = HEAD_TRIAL.get_ptr_mut(0).ok_or(-1)?;
    let length = (ctx.len() as usize).wrapping_sub(TRIAL_TEXT_OFFSET).wrapping_sub(1);
    // One less than it is, because the verifier requires that it is never 0.
    let length = (length & (TEXT_BYTES - 1)) as u32 + 1;
    // SAFETY: the map returned a pointer to a whole scratch, and the length is at most that of its text.
    unsafe {
        let text = scratch.cast::<u8>().add(offset_of!(Scratch, text));
        if bpf_skb_load_bytes(ctx.as_ptr(), TRIAL_TEXT_OFFSET as u32, text.cast(), length) != 0 {
            return Err(-1);
        }
        parse(scratch, length).map_err(|refusal| refusal as i32)?;
        let head = (&raw const (*scratch).head).cast();
        let stored =
            bpf_skb_store_bytes(ctx.skb.skb, TRIAL_HEAD_OFFSET as u32, head, size_of::<Head>() as u32, 0);
        if stored == 0 { Ok(()) } else { Err(-1) }
    }
}
