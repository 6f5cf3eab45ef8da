//! `caches`: where responses are kept that may be used again.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::codec::{Codec, File, Flag, Or, Own, Table, keys, map, number};
use super::defaults::DAY_MS;
use super::out::Out;
use super::problem::quote;
use super::reader::{Fields, Item};
use super::shape::Shape;
use super::text;

/// Maximum number of caches; each has memory of its own.
const CACHES_MAX: usize = 100;

/// A cache, which routes share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Bytes of all stored responses, with what is known of them.
    pub memory_bytes_max: u64,
    /// Bytes of encoded bodies, for routes with `compress`.
    pub encoded_bytes_max: u64,
    /// The largest body that is stored, in bytes.
    pub object_bytes_max: u64,
    /// Responses for one URL that differ by the fields in Vary.
    pub variants_max: usize,
    /// How long a response is used at most that does not say for how long it may be, in milliseconds.
    pub heuristic_max_ms: u64,
    /// How long a request waits for another one that has gone for the same response, in milliseconds.
    pub wait_max_ms: u64,
    /// How long a stale response is used while no endpoint responds, if it does not say so, in milliseconds.
    pub stale_on_failure_ms: u64,
    /// Whether clients may ask for a response that is not stored.
    pub obey_requests: bool,
    /// Whether responses are stored that set a cookie.
    pub store_set_cookie: bool,
    /// Whether browsers are told the links of a stored response while the application is asked.
    pub early_hints: bool,
    /// Where responses are kept beyond memory, and beyond the process.
    pub disk: Option<CacheDisk>,
}

/// Where a cache keeps responses beyond its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheDisk {
    /// The folder, in which each cache has one of its own.
    pub folder: PathBuf,
    /// Bytes of all files.
    pub size_bytes_max: u64,
    /// Maximum number of files; each takes about 64 bytes of memory.
    pub files_max: u64,
}

keys! { CacheDisk {
    // A tenth of the disk of a small server.
    size_bytes_max: 1 << 30, number(1 << 20..=1 << 44);
    // 16 MiB of memory.
    files_max: 250_000, number(1..=1 << 26);
} required {
    folder: PathBuf::new(), "a folder that sluice may write to, such as /var/cache/sluice", File;
}}

keys! { Cache, settle consistent {
    // The pages and assets of a site, without its pictures.
    memory_bytes_max: 64 << 20, number(1 << 20..=1 << 40);
    // A fourth as much as memory_max: an encoded page has a fifth of its size, and most clients take the same coding.
    encoded_bytes_max: 16 << 20, number(0..=1 << 40);
    // What is larger is mostly fetched by few.
    object_bytes_max: 1 << 20, number(1024..=1 << 30);
    // Encodings, languages and kinds of devices; one who invents values takes no more than this.
    variants_max: 16, number(1..=1000);
    // Long enough to spare an application, short enough that nobody looks for the cause of an old page.
    heuristic_max_ms: 600_000, number(0..=30 * DAY_MS);
    // Longer than most pages take, shorter than a client's patience.
    wait_max_ms: 5000, number(0..=600_000);
    // A deployment that fails, a database that is restarted.
    stale_on_failure_ms: 600_000, number(0..=30 * DAY_MS);
    // Whoever reloads a page would otherwise have it made anew for all.
    obey_requests: false, Flag;
    // One client's session would otherwise become that of all.
    store_set_cookie: false, Flag;
    // Some clients understand no 103, and some pages have links that are not worth it.
    early_hints: false, Flag;
    // Writing costs, and only you know where.
    disk: None, Or("off", map());
}}

/// The largest object takes a quarter of the memory at most: others are to stay.
fn consistent(cache: &mut Cache, fields: &mut Fields<'_>) {
    if cache.object_bytes_max > cache.memory_bytes_max / 4 && !fields.is_broken() {
        let path = fields.path.key("object_max");
        let message = "is more than a quarter of memory_max; lower it, or raise memory_max";
        fields.problems.add(&path, message);
    }
}

/// Caches by name.
pub(super) const CACHES: Own<BTreeMap<String, Cache>> = Own {
    read: |item| Some(caches(item)),
    write: |caches| {
        let mut out = Out::default();
        caches.iter().for_each(|(name, cache)| out.put(name, cache.written()));
        out.done()
    },
    shape: || Shape::entries(Shape::Map(Cache::keys()), CACHES_MAX),
};

fn caches(item: &Item<'_>) -> BTreeMap<String, Cache> {
    let mut caches = BTreeMap::new();
    for (name, item) in item.entries(CACHES_MAX) {
        // Cache-Status names it, and its folder.
        if name.len() > text::NAME_BYTES_MAX || !text::is_token(&name) || name.starts_with('.') {
            item.mistake(format!("{} is not a name here; write letters, digits and hyphens", quote(&name)));
        }
        caches.extend(map().read(&item).map(|cache| (name, cache)));
    }
    caches
}
