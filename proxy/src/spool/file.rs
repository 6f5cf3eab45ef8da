//! A file without a name, for what of a body is not held in memory. Nobody else can open it, and it is gone with its
//! descriptor, however the process ends.

#[cfg(test)]
use std::cell::RefCell;
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nix::sys::resource::{Resource, getrlimit};

use super::HoldError;
use super::budget::{Place, Share};
use crate::clock;
use crate::config;
use crate::ring;
use crate::upstream::Connector;
use crate::worker::Worker;

/// How often a disk that fails is spoken of; each exchange has its reason.
const REPORT_MS: u64 = 10_000;

/// Where the bytes are.
enum Store {
    /// A file, through the ring. `None` only while it is being closed.
    Ring(Option<ring::Fd>),
    /// For tests without a ring.
    #[cfg(test)]
    Memory(Rc<RefCell<Vec<u8>>>),
}

/// The file and its share of the space.
pub(super) struct File {
    store: Store,
    share: Share,
    bytes: u64,
    /// Bytes that the process may write to one file: one more would end it by a signal (SIGXFSZ).
    bytes_max: u64,
}

impl File {
    /// Makes one.
    pub(super) async fn create(worker: &Worker, buffers: &config::Buffers) -> Result<Self, HoldError> {
        if buffers.spool_bytes_max == 0 {
            return Err(HoldError::Full);
        }
        let budget = worker.metrics().budget();
        let store = match worker.connector() {
            Connector::Ring => {
                let name = worker.with_random(|random| random.u128(..));
                let fd = open(&buffers.directory(), name).await.map_err(|error| failed("made", &error))?;
                Store::Ring(Some(Rc::new(fd)))
            }
            #[cfg(test)]
            Connector::Memory(_) => Store::Memory(Rc::default()),
        };
        budget.count_file();
        let bytes_max = getrlimit(Resource::RLIMIT_FSIZE).map_or(u64::MAX, |(soft, _)| soft);
        Ok(Self { store, share: Share::new(budget, Place::Spool), bytes: 0, bytes_max })
    }

    /// Bytes in it.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Puts `buf` behind what is there; returns it empty. Dropped amid it, the file is of no more use.
    pub(super) async fn append(
        &mut self,
        mut buf: Vec<u8>,
        buffers: &config::Buffers,
    ) -> Result<Vec<u8>, HoldError> {
        let length = buf.len() as u64;
        if !self.share.grow(length, buffers.spool_bytes_max) {
            return Err(HoldError::Full);
        }
        if self.bytes + length > self.bytes_max {
            return Err(failed("written", &io::Error::from_raw_os_error(libc::EFBIG)));
        }
        let mut written = 0;
        while written < buf.len() {
            let offset = self.bytes + written as u64;
            let outcome;
            (outcome, buf) = self.write(buf, written, offset).await;
            match outcome {
                Ok(0) => return Err(failed("written", &io::ErrorKind::WriteZero.into())),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed("written", &error)),
            }
        }
        self.bytes += length;
        buf.clear();
        Ok(buf)
    }

    async fn write(&self, buf: Vec<u8>, start: usize, offset: u64) -> (io::Result<usize>, Vec<u8>) {
        match &self.store {
            Store::Ring(Some(fd)) => ring::write_at(fd, buf, start, offset).await,
            Store::Ring(None) => (Err(io::ErrorKind::NotFound.into()), buf),
            #[cfg(test)]
            Store::Memory(bytes) => {
                bytes.borrow_mut().extend_from_slice(&buf[start..]);
                (Ok(buf.len() - start), buf)
            }
        }
    }

    /// Reads some of it from `offset` into `buf`, which is empty: at most `bytes_max`, and at least a byte.
    pub(super) async fn read(
        &self,
        mut buf: Vec<u8>,
        bytes_max: usize,
        offset: u64,
    ) -> Result<Vec<u8>, HoldError> {
        let left = usize::try_from(self.bytes - offset).unwrap_or(usize::MAX);
        let wanted = bytes_max.min(left);
        buf.reserve_exact(wanted);
        loop {
            let outcome;
            (outcome, buf) = self.read_at(buf, wanted, offset).await;
            match outcome {
                Ok(0) => return Err(failed("read", &io::ErrorKind::UnexpectedEof.into())),
                Ok(_) => return Ok(buf),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed("read", &error)),
            }
        }
    }

    async fn read_at(&self, buf: Vec<u8>, wanted: usize, offset: u64) -> (io::Result<usize>, Vec<u8>) {
        match &self.store {
            Store::Ring(Some(fd)) => ring::read_at(fd, buf, wanted, offset).await,
            Store::Ring(None) => (Err(io::ErrorKind::NotFound.into()), buf),
            #[cfg(test)]
            Store::Memory(bytes) => {
                let mut buf = buf;
                buf.extend_from_slice(&bytes.borrow()[offset as usize..][..wanted]);
                (Ok(wanted), buf)
            }
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // With an operation under way the last holder is that, and closes when it ends.
        if let Store::Ring(fd) = &mut self.store
            && let Some(fd) = fd.take().and_then(Rc::into_inner)
        {
            ring::close(fd);
        }
    }
}

/// Makes a file that has no name, or loses it at once.
async fn open(directory: &Path, name: u128) -> io::Result<OwnedFd> {
    let directory = directory.to_path_buf();
    // A task of its own, which goes on if the exchange ends meanwhile: the descriptor would be lost.
    let opening = tokio_uring::spawn(async move {
        match unnamed(&directory).await {
            Err(error) if config::lacks_unnamed_files(&error) => named(&directory, name).await,
            opened => opened,
        }
    });
    opening.await.map_err(io::Error::other)?
}

/// Not on every filesystem.
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

/// Says why, now and then.
fn failed(what: &str, error: &io::Error) -> HoldError {
    static NEXT_MS: AtomicU64 = AtomicU64::new(0);
    let now = clock::now_ms();
    let due = |next: u64| (now >= next).then_some(now + REPORT_MS);
    if NEXT_MS.fetch_update(Relaxed, Relaxed, due).is_ok() {
        tracing::error!(%error, "a file for a body that is held cannot be {what}");
    }
    HoldError::Disk
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// What a file is that nobody can find: readable and writable by its owner, without a name.
    fn check(opened: io::Result<OwnedFd>, directory: &Path) {
        let metadata = std::fs::File::from(opened.unwrap()).metadata().unwrap();
        assert_eq!((metadata.mode() & 0o7777, metadata.nlink()), (0o600, 0));
        assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0);
    }

    #[test]
    fn a_file_has_no_name_also_where_it_must_have_had_one() {
        let directory = std::env::temp_dir().join(format!("sluice-spool-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let ran = ring::run(async {
            check(named(&directory, 7).await, &directory);
            check(open(&directory, 8).await, &directory);
            match unnamed(&directory).await {
                Err(error) => assert!(config::lacks_unnamed_files(&error), "{error}"),
                opened => check(opened, &directory),
            }
            // A name that is taken is not opened, whatever it leads to.
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
