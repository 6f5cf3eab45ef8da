//! A number in memory that sluice and the programs share.
//!
//! An atomic in sluice. The programs' compiler knows no atomics for their processor, whose aligned loads and stores
//! of 8 bytes are each one access all the same; a swap it has as an instruction.
#![allow(unsafe_code, reason = "plain accesses to shared memory")]

#[cfg(not(target_arch = "bpf"))]
use core::sync::atomic::{AtomicU64, Ordering};

/// Eight bytes, read and written whole.
#[cfg(not(target_arch = "bpf"))]
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Word(AtomicU64);

#[cfg(not(target_arch = "bpf"))]
impl Word {
    /// Its value; orders nothing.
    pub fn get(&self) -> u64 {
        watch::before();
        self.0.load(Ordering::Relaxed)
    }

    /// Its value; what was written before it is seen.
    pub fn get_acquire(&self) -> u64 {
        watch::before();
        self.0.load(Ordering::Acquire)
    }

    /// Gives it another value; orders nothing.
    pub fn set(&self, value: u64) {
        watch::before();
        self.0.store(value, Ordering::Relaxed);
        watch::wrote(self);
    }

    /// The same, after all that was written before.
    pub fn set_release(&self, value: u64) {
        watch::before();
        self.0.store(value, Ordering::Release);
        watch::wrote(self);
    }

    /// Replaces one value by another; false if it had neither. A full barrier.
    pub fn swap(&self, old: u64, new: u64) -> bool {
        watch::before();
        let swapped = self.0.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if swapped {
            watch::wrote(self);
        }
        swapped
    }
}

/// Eight bytes, read and written whole.
#[cfg(target_arch = "bpf")]
#[repr(transparent)]
pub struct Word(core::cell::UnsafeCell<u64>);

#[cfg(target_arch = "bpf")]
impl Word {
    /// Its value; orders nothing.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        // SAFETY: valid and aligned, as the reference is.
        unsafe { self.0.get().read_volatile() }
    }

    /// The same here: who depends on it swaps next.
    #[inline(always)]
    pub fn get_acquire(&self) -> u64 {
        self.get()
    }

    /// Gives it another value; orders nothing.
    #[inline(always)]
    pub fn set(&self, value: u64) {
        // SAFETY: as above.
        unsafe { self.0.get().write_volatile(value) }
    }

    /// Replaces one value by another; false if it had neither. A full barrier if it succeeds.
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

// SAFETY: every access is whole, and who relies on an order between two uses swaps.
#[cfg(target_arch = "bpf")]
unsafe impl Sync for Word {}

/// Lets the model test act between any two accesses, as another processor may, and see who writes.
#[cfg(all(test, not(target_arch = "bpf")))]
pub(crate) mod watch {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::Word;

    /// Who is told.
    pub(crate) trait Watch {
        /// Of an access that is about to happen.
        fn before(&self);
        /// Of one that has changed the word.
        fn wrote(&self, word: *const Word);
    }

    std::thread_local! {
        static WATCHING: RefCell<Option<Rc<dyn Watch>>> = const { RefCell::new(None) };
    }

    /// From now on, in this thread.
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

/// Nobody watches but tests.
#[cfg(all(not(test), not(target_arch = "bpf")))]
mod watch {
    use super::Word;

    #[inline(always)]
    pub(super) fn before() {}

    #[inline(always)]
    pub(super) fn wrote(_word: &Word) {}
}
