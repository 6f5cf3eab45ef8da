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
    /// Its registration with epoll, created when an operation of that engine first has to wait. Declared before the
    /// descriptor, so that it is dropped first.
    watch: OnceCell<Box<AsyncFd<RawFd>>>,
    descriptor: OwnedFd,
}

impl Fd {
    /// The descriptor, if this is its last holder.
    pub fn into_inner(self) -> Option<OwnedFd> {
        let Shared { watch, descriptor } = Rc::into_inner(self.0)?;
        drop(watch);
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

    /// Its registration with epoll, which reports readiness.
    ///
    /// # Errors
    /// The descriptor cannot be registered.
    #[allow(unsafe_code, reason = "the descriptor outlives its registration")]
    pub(crate) fn watch(&self) -> io::Result<&AsyncFd<RawFd>> {
        if let Some(watch) = self.0.watch.get() {
            return Ok(watch);
        }
        let (raw, both) = (self.as_raw_fd(), Interest::READABLE | Interest::WRITABLE);
        // SAFETY: `Shared` owns both the open descriptor and the registration, and drops the registration first (field
        // order). So the descriptor stays open for as long as it is registered.
        let watch = unsafe { AsyncFd::register_with_interest(raw, both) }?;
        Ok(self.0.watch.get_or_init(|| Box::new(watch)))
    }
}

impl From<OwnedFd> for Fd {
    fn from(descriptor: OwnedFd) -> Self {
        Self(Rc::new(Shared { watch: OnceCell::new(), descriptor }))
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
