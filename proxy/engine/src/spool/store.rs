//! Where a file's bytes are stored: on a disk, through the ring, or in memory in tests. Limits and accounting are
//! elsewhere.

#[cfg(test)]
use std::cell::RefCell;
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
#[cfg(test)]
use std::rc::Rc;

use sluice_config as config;
use sluice_ring as ring;

/// Where files are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Medium {
    /// On a disk, through the I/O engine of this thread.
    Disk,
    /// In memory, for tests without an engine.
    #[cfg(test)]
    Memory,
}

/// One file without a name.
pub(super) enum Store {
    /// Driven by the I/O engine of this thread. `None` only while it is being closed.
    File(Option<ring::Fd>),
    /// For tests without an engine.
    #[cfg(test)]
    Memory(Rc<RefCell<Vec<u8>>>),
}

impl Store {
    /// Creates a file in `directory`.
    pub(super) async fn create(medium: Medium, directory: &Path) -> io::Result<Self> {
        match medium {
            Medium::Disk => open(directory, fastrand::u128(..)).await.map(|fd| Self::File(Some(fd.into()))),
            #[cfg(test)]
            Medium::Memory => Ok(Self::Memory(Rc::default())),
        }
    }

    /// Writes `buf[start..]`, or a part of it, at `offset`.
    pub(super) async fn write(
        &self,
        buf: Vec<u8>,
        start: usize,
        offset: u64,
    ) -> (io::Result<usize>, Vec<u8>) {
        match self {
            Self::File(Some(fd)) => ring::write_at(fd, buf, start, offset).await,
            Self::File(None) => (Err(io::ErrorKind::NotFound.into()), buf),
            #[cfg(test)]
            Self::Memory(bytes) => {
                bytes.borrow_mut().extend_from_slice(&buf[start..]);
                (Ok(buf.len() - start), buf)
            }
        }
    }

    /// Reads at most `bytes_max` bytes at `offset` into `buf`, which has the room.
    pub(super) async fn read(
        &self,
        buf: Vec<u8>,
        bytes_max: usize,
        offset: u64,
    ) -> (io::Result<usize>, Vec<u8>) {
        match self {
            Self::File(Some(fd)) => ring::read_at(fd, buf, bytes_max, offset).await,
            Self::File(None) => (Err(io::ErrorKind::NotFound.into()), buf),
            #[cfg(test)]
            Self::Memory(bytes) => {
                let read = bytes.borrow()[offset as usize..][..bytes_max].to_vec();
                (Ok(bytes_max), [buf, read].concat())
            }
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        match self {
            // An operation under way is the last holder, and closes the file when it ends.
            Self::File(fd) => drop(fd.take().and_then(ring::Fd::into_inner).map(ring::close)),
            #[cfg(test)]
            Self::Memory(_) => {}
        }
    }
}

/// Creates a file that has no name, or that is unlinked at once.
async fn open(directory: &Path, name: u128) -> io::Result<OwnedFd> {
    let directory = directory.to_path_buf();
    // In a separate task, which continues if the exchange ends in the meantime: otherwise the descriptor would be lost.
    let opening = tokio::task::spawn_local(async move {
        match unnamed(&directory).await {
            Err(error) if config::lacks_unnamed_files(&error) => named(&directory, name).await,
            opened => opened,
        }
    });
    opening.await.map_err(io::Error::other)?
}

/// Not supported on every filesystem.
async fn unnamed(directory: &Path) -> io::Result<OwnedFd> {
    ring::open(c_path(directory)?, libc::O_RDWR | libc::O_EXCL | libc::O_TMPFILE, 0o600).await
}

async fn named(directory: &Path, name: u128) -> io::Result<OwnedFd> {
    let path = c_path(&directory.join(format!(".sluice-{name:032x}")))?;
    let flags = libc::O_RDWR | libc::O_EXCL | libc::O_CREAT | libc::O_NOFOLLOW;
    let fd = ring::open(path.clone(), flags, 0o600).await?;
    ring::unlink(path).await.map(|()| fd)
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// Checks that a file cannot be found: readable and writable by its owner, and without a name.
    fn check(opened: io::Result<OwnedFd>, directory: &Path) {
        let metadata = std::fs::File::from(opened.unwrap()).metadata().unwrap();
        assert_eq!((metadata.mode() & 0o7777, metadata.nlink()), (0o600, 0));
        assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0);
    }

    #[test]
    fn a_file_has_no_name_with_and_without_o_tmpfile() {
        let directory = std::env::temp_dir().join(format!("sluice-spool-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let ran = ring::run(ring::Engine::IoUring, async {
            check(named(&directory, 7).await, &directory);
            check(open(&directory, 8).await, &directory);
            match unnamed(&directory).await {
                Err(error) => assert!(config::lacks_unnamed_files(&error), "{error}"),
                opened => check(opened, &directory),
            }
            // If the name is taken, it is not opened, whatever it links to.
            let taken = directory.join(format!(".sluice-{:032x}", 9));
            std::os::unix::fs::symlink("/dev/null", &taken).unwrap();
            assert_eq!(named(&directory, 9).await.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        });
        std::fs::remove_dir_all(&directory).unwrap();
        if let Err(error) = ran {
            eprintln!("skipped: no ring: {error}");
        }
    }
}
