//! Tells the processor which memory is needed next. Here because the layers above have no unsafe code.
#![allow(unsafe_code, reason = "the instruction takes an address")]

/// Bytes that a processor loads at a time.
const LINE_BYTES: usize = 64;

/// Starts to load `bytes` bytes at this address into the first cache, all at once: code that reads them one after the
/// other would wait for each line. The address may be of memory that is in use elsewhere, or no longer exists. Does
/// nothing where the instruction is not known.
pub fn prefetch(at: *const u8, bytes: usize) {
    for offset in (0..bytes).step_by(LINE_BYTES) {
        let line = at.wrapping_add(offset);
        // SAFETY: the instruction neither reads nor writes memory as far as a program can tell, and faults at no address.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = line;
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn any_address_may_be_prefetched() {
        super::prefetch(std::ptr::null(), 1000);
        super::prefetch(std::ptr::without_provenance(usize::MAX - 100), 1000);
    }
}
