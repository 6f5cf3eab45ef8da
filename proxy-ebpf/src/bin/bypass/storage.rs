//! Socket storage that an accepted socket inherits from its listener; aya-ebpf's own is not inherited.

use core::marker::PhantomData;
use core::ptr::null;

use aya_ebpf::bindings::bpf_map_type::BPF_MAP_TYPE_SK_STORAGE;

/// `BPF_F_NO_PREALLOC`, which such a map requires, and `BPF_F_CLONE` (5.4).
const FLAGS: usize = 1 | 0x200;

/// A definition only by types, as loaders read it from the type information: never dereferenced.
#[repr(C)]
pub(crate) struct ClonedStorage<T> {
    r#type: *const [i32; BPF_MAP_TYPE_SK_STORAGE as usize],
    key: *const i32,
    value: *const T,
    max_entries: *const [i32; 0],
    map_flags: *const [i32; FLAGS],
    _value: PhantomData<T>,
}

// SAFETY: placeholder pointers that nothing dereferences; the loader replaces them with the map.
unsafe impl<T> Sync for ClonedStorage<T> {}

impl<T> ClonedStorage<T> {
    /// The map definition.
    pub(crate) const fn new() -> Self {
        Self {
            r#type: null(),
            key: null(),
            value: null(),
            max_entries: null(),
            map_flags: null(),
            _value: PhantomData,
        }
    }
}
