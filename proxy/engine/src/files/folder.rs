//! The folders of routes, open.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;
use sluice_core::clock;
use sluice_ring as ring;

/// Whether the kernel lets files be opened below a folder (openat2(2); 5.6). Where a container denies the call, every file
/// would otherwise seem to be missing. A folder that cannot be opened is another matter.
///
/// # Errors
/// The call is denied, or not known.
pub(crate) fn can_open_below(path: &Path) -> io::Result<()> {
    let Ok(folder) =
        nix::fcntl::open(path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
    else {
        return Ok(());
    };
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_BENEATH);
    match openat2(&folder, ".", how) {
        Err(error @ (Errno::EPERM | Errno::ENOSYS)) => Err(error.into()),
        _ => Ok(()),
    }
}

/// Folders by path. Each is opened again from time to time: a deployment replaces the link that leads to it.
#[derive(Default)]
pub(super) struct Folders(RefCell<BTreeMap<PathBuf, Open>>);

struct Open {
    folder: ring::Fd,
    since_ms: u64,
}

impl Folders {
    /// A folder that was opened less than `recheck_ms` ago.
    pub(super) async fn open(&self, path: &Path, recheck_ms: u64) -> io::Result<ring::Fd> {
        let now = clock::now_ms();
        if let Some(open) = self.0.borrow().get(path).filter(|open| now < open.since_ms + recheck_ms) {
            return Ok(open.folder.clone());
        }
        let name = CString::new(path.as_os_str().as_bytes())?;
        let folder: ring::Fd = ring::open(name, libc::O_PATH | libc::O_DIRECTORY, 0).await?.into();
        let open = Open { folder: folder.clone(), since_ms: now };
        let before = self.0.borrow_mut().insert(path.to_owned(), open);
        drop(before);
        Ok(folder)
    }

    /// Closes the folders that were not asked for lately.
    pub(super) fn close_old(&self, age_ms: u64) {
        let now = clock::now_ms();
        self.0.borrow_mut().retain(|_, open| now <= open.since_ms + age_ms);
    }
}
