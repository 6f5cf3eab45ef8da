//! Returns memory to the kernel that only the start needed.

use std::ffi::{c_int, c_void};

/// Returns freed memory, after an object was loaded: its parts, and the types of the whole kernel where
/// [`super::loader`] cannot do without them.
pub(super) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number and only releases free memory, under the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Returns what only the start needed: freed memory, and the pages of the program's code and constants, most of which
/// nothing uses again. The others come back from the page cache, by some hundred faults of a microsecond.
pub fn end_start() {
    give_back();
    forget_code();
}

fn forget_code() {
    // SAFETY: the function is called before this returns, with no data.
    unsafe { libc::dl_iterate_phdr(Some(forget_object), std::ptr::null_mut()) };
}

/// Unmaps the pages of one object's segments that are never written.
///
/// # Safety
/// `info` is what dl_iterate_phdr(3) passes: a loaded object with its program headers.
unsafe extern "C" fn forget_object(info: *mut libc::dl_phdr_info, _size: usize, _: *mut c_void) -> c_int {
    // SAFETY: the caller passes a valid object, whose headers stay while it is loaded.
    let (info, headers) = unsafe {
        let info = &*info;
        if info.dlpi_phdr.is_null() {
            return 0;
        }
        (info, std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)))
    };
    for header in headers {
        // A segment that was writable at some time may differ from its file.
        if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0 {
            forget_range(info.dlpi_addr as usize + header.p_vaddr as usize, header.p_memsz as usize);
        }
    }
    0
}

/// Unmaps the pages that lie within the range entirely.
fn forget_range(start: usize, length: usize) {
    let page = page_bytes();
    let (first, end) = (start.next_multiple_of(page), (start + length) / page * page);
    if first < end {
        // SAFETY: the range belongs to a private mapping of a file that was never writable, so its pages equal those of
        // the file, and the kernel reads them again when they are accessed (madvise(2)). An error changes nothing.
        unsafe { libc::madvise(std::ptr::without_provenance_mut(first), end - first, libc::MADV_DONTNEED) };
    }
}

fn page_bytes() -> usize {
    // SAFETY: takes and returns a number.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_and_constants_work_after_they_were_forgotten() {
        let before = format!("{:?}", std::env::args().next());
        forget_code();
        assert_eq!(format!("{:?}", std::env::args().next()), before);
    }
}
