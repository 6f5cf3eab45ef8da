//! Creates aya's loader without parsing the types of the whole kernel.
//!
//! aya parses them whenever a loader is created, about 20 MB and 30 ms, even if none are needed, and has no option
//! against it. If it cannot open the file, it does without. So the loader is created on a thread that can open none.

use std::io;
use std::thread;

use aya::{Btf, EbpfLoader};

/// The system calls that open a file. musl uses the older one where it exists.
#[cfg(target_arch = "x86_64")]
const OPENING: [libc::c_long; 2] = [libc::SYS_openat, libc::SYS_open];
#[cfg(not(target_arch = "x86_64"))]
const OPENING: [libc::c_long; 1] = [libc::SYS_openat];

/// A loader that relocates nothing by the kernel's types.
pub(super) fn loader() -> EbpfLoader<'static> {
    let made = thread::Builder::new().name("loader".to_owned()).spawn(|| {
        // If that is refused, the types are parsed and freed again.
        let _ = forbid_open();
        EbpfLoader::new()
    });
    let made = made.ok().and_then(|thread| thread.join().ok());
    let mut loader = made.unwrap_or_default();
    loader.btf(None::<&Btf>);
    loader
}

/// From now on this thread, and no other, fails to open files with EACCES (seccomp(2); Linux 3.5).
fn forbid_open() -> io::Result<()> {
    let count = OPENING.len() as u8;
    let instruction = |code: u32, jt: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    // The number of the call is the first word of what a filter sees.
    let mut filter = vec![instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for (index, call) in (0..count).zip(OPENING) {
        // To the last instruction, past the other comparisons and the one that allows.
        filter.push(instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, count - index, call as u32));
    }
    filter.push(instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW));
    filter.push(instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::EACCES as u32));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the first call takes numbers only. The second reads `program` and the instructions that it points to,
    // which this function owns until after the call; the kernel keeps a copy.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
    };
    if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn only_the_thread_that_forbids_it_opens_no_files() {
        let own = thread::spawn(|| {
            if let Err(error) = forbid_open() {
                eprintln!("skipped: {error}");
                return;
            }
            let refused = File::open("/proc/self/status").unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        });
        own.join().unwrap();
        File::open("/proc/self/status").unwrap();
    }
}
