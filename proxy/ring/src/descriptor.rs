//! A descriptor that operations share.

use std::cell::OnceCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A reference-counted descriptor. Each holder keeps the number from being reused.
#[derive(Clone, Debug)]
pub struct Fd(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Its registration with epoll for reading, created when an operation of that engine first has to wait for data.
    /// Declared before the descriptor, so that it is dropped first.
    watch: OnceCell<Box<AsyncFd<RawFd>>>,
    /// The same for writing, of a duplicate: most sockets never wait for room, and those would be reported as writable
    /// again and again while the kernel sends on them directly.
    room: OnceCell<Box<AsyncFd<OwnedFd>>>,
    descriptor: OwnedFd,
}

impl Fd {
    /// The descriptor, if this is its last holder.
    pub fn into_inner(self) -> Option<OwnedFd> {
        let Shared { watch, room, descriptor } = Rc::into_inner(self.0)?;
        drop((watch, room));
        Some(descriptor)
    }

    /// Number of holders.
    #[cfg(test)]
    pub(crate) fn holders(&self) -> usize {
        Rc::strong_count(&self.0)
    }

    /// Whether it is registered with epoll.
    pub(crate) fn is_watched(&self) -> bool {
        self.0.watch.get().is_some()
    }

    /// Its registration with epoll, which reports when there is something to read.
    ///
    /// # Errors
    /// The descriptor cannot be registered.
    #[allow(unsafe_code, reason = "the descriptor outlives its registration")]
    pub(crate) fn watch(&self) -> io::Result<&AsyncFd<RawFd>> {
        if let Some(watch) = self.0.watch.get() {
            return Ok(watch);
        }
        let raw = self.as_raw_fd();
        // SAFETY: `Shared` owns both the open descriptor and the registration, and drops the registration first (field
        // order). So the descriptor stays open for as long as it is registered.
        let watch = unsafe { AsyncFd::register_with_interest(raw, Interest::READABLE) }?;
        Ok(self.0.watch.get_or_init(|| Box::new(watch)))
    }

    /// Its registration with epoll, which reports when there is room to write.
    ///
    /// # Errors
    /// The process has no descriptor left, or the duplicate cannot be registered.
    #[allow(unsafe_code, reason = "the registration owns the registered descriptor")]
    pub(crate) fn room(&self) -> io::Result<&AsyncFd<OwnedFd>> {
        if let Some(room) = self.0.room.get() {
            return Ok(room);
        }
        let own = self.as_fd().try_clone_to_owned()?;
        // SAFETY: the registration owns the duplicate, which therefore stays open for as long as it is registered.
        let room = unsafe { AsyncFd::register_with_interest(own, Interest::WRITABLE) }?;
        Ok(self.0.room.get_or_init(|| Box::new(room)))
    }
}

impl From<OwnedFd> for Fd {
    fn from(descriptor: OwnedFd) -> Self {
        Self(Rc::new(Shared { watch: OnceCell::new(), room: OnceCell::new(), descriptor }))
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.descriptor.as_fd()
    }
}

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.descriptor.as_raw_fd()
    }
}
