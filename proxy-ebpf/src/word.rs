//! A number in memory that sluice and the programs share.
//!
//! It is an atomic in sluice. The programs' compiler has no atomics for its processor, but aligned loads and stores of
//! 8 bytes are single accesses there, and a swap exists as an instruction.
#![allow(unsafe_code, reason = "plain accesses to shared memory")]

#[cfg(not(target_arch = "bpf"))]
use core::sync::atomic::{AtomicU64, Ordering};

/// Eight bytes, always read and written as a whole.
#[cfg(not(target_arch = "bpf"))]
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Word(AtomicU64);

#[cfg(not(target_arch = "bpf"))]
impl Word {
    /// Returns the value; does not order other accesses.
    pub fn get(&self) -> u64 {
        watch::before();
        self.0.load(Ordering::Relaxed)
    }

    /// Returns the value; what was written before it is visible.
    pub fn get_acquire(&self) -> u64 {
        watch::before();
        self.0.load(Ordering::Acquire)
    }

    /// Sets the value; does not order other accesses.
    pub fn set(&self, value: u64) {
        watch::before();
        self.0.store(value, Ordering::Relaxed);
        watch::wrote(self);
    }

    /// Sets the value, after all earlier writes.
    pub fn set_release(&self, value: u64) {
        watch::before();
        self.0.store(value, Ordering::Release);
        watch::wrote(self);
    }

    /// Replaces `old` by `new`; false if the value was not `old`. A full barrier.
    pub fn swap(&self, old: u64, new: u64) -> bool {
        watch::before();
        let swapped = self.0.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if swapped {
            watch::wrote(self);
        }
        swapped
    }
}

/// Eight bytes, always read and written as a whole.
#[cfg(target_arch = "bpf")]
#[repr(transparent)]
pub struct Word(core::cell::UnsafeCell<u64>);

#[cfg(target_arch = "bpf")]
impl Word {
    /// Returns the value; does not order other accesses.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        // SAFETY: the pointer is valid and aligned, because it comes from the reference.
        unsafe { self.0.get().read_volatile() }
    }

    /// Like `get` here: code that depends on the order swaps next.
    #[inline(always)]
    pub fn get_acquire(&self) -> u64 {
        self.get()
    }

    /// Sets the value; does not order other accesses.
    #[inline(always)]
    pub fn set(&self, value: u64) {
        // SAFETY: as above.
        unsafe { self.0.get().write_volatile(value) }
    }

    /// Replaces `old` by `new`; false if the value was not `old`. A full barrier if it succeeds.
    #[inline(always)]
    pub fn swap(&self, old: u64, new: u64) -> bool {
        let found: u64;
        // SAFETY: as above; the instruction is atomic.
        unsafe {
            core::arch::asm!(
                "r0 = cmpxchg_64({place} + 0, r0, {new})",
                place = in(reg) self.0.get(),
                new = in(reg) new,
                inout("r0") old => found,
                options(nostack),
            );
        }
        found == old
    }
}

// SAFETY: every access is whole, and code that relies on an order between two accesses uses `swap`.
#[cfg(target_arch = "bpf")]
unsafe impl Sync for Word {}

/// Lets the model test act between any two accesses, as another processor could, and see who writes.
#[cfg(all(test, not(target_arch = "bpf")))]
pub(crate) mod watch {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::Word;

    /// An observer of accesses.
    pub(crate) trait Watch {
        /// Called before an access.
        fn before(&self);
        /// Called after a change of the word.
        fn wrote(&self, word: *const Word);
    }

    std::thread_local! {
        static WATCHING: RefCell<Option<Rc<dyn Watch>>> = const { RefCell::new(None) };
    }

    /// Sets the observer of this thread.
    pub(crate) fn begin(watch: Option<Rc<dyn Watch>>) {
        WATCHING.with_borrow_mut(|watching| *watching = watch);
    }

    fn watching() -> Option<Rc<dyn Watch>> {
        WATCHING.with_borrow(Option::clone)
    }

    pub(super) fn before() {
        if let Some(watch) = watching() {
            watch.before();
        }
    }

    pub(super) fn wrote(word: &Word) {
        if let Some(watch) = watching() {
            watch.wrote(word);
        }
    }
}

/// Only tests observe accesses.
#[cfg(all(not(test), not(target_arch = "bpf")))]
mod watch {
    use super::Word;

    #[inline(always)]
    pub(super) fn before() {}

    #[inline(always)]
    pub(super) fn wrote(_word: &Word) {}
}
