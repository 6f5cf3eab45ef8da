//! Where cgroup2 is mounted, and the memory limit of our own cgroup.

use std::fs;
use std::path::{Path, PathBuf};

use super::Sources;

/// The cgroups of this process.
#[derive(Debug, Default, PartialEq)]
pub struct Cgroups {
    /// Where cgroup2 is mounted: alone, or alongside cgroup v1 (the hybrid layout).
    pub unified: Option<PathBuf>,
    /// Whether that mount is the root of the hierarchy. In a container it is usually only a part, and connections of
    /// processes outside that part are not visible.
    pub is_root: bool,
    /// Whether cgroup v1 is mounted.
    pub legacy: bool,
    /// Whether the memory controller is cgroup v1's, wherever it is mounted.
    pub legacy_memory: bool,
    /// The lowest memory limit from our cgroup upwards.
    pub memory_limit: Option<MemoryLimit>,
}

/// A memory limit.
#[derive(Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Its bytes.
    pub bytes: u64,
    /// The file that contains the limit.
    pub file: PathBuf,
}

/// cgroup v1 represents "no limit" as the largest number of whole pages.
const UNLIMITED_BYTES: u64 = 1 << 62;

struct Mount {
    path: PathBuf,
    kind: String,
    options: String,
}

impl Cgroups {
    pub(super) fn read(sources: &Sources) -> Self {
        let mounts = mounts(&sources.proc("mounts").unwrap_or_default());
        let own = sources.proc("self/cgroup").unwrap_or_default();
        let unified = mounts.iter().find(|mount| mount.kind == "cgroup2").map(|mount| mount.path.clone());
        let memory = mounts.iter().find(|mount| {
            mount.kind == "cgroup" && mount.options.split(',').any(|option| option == "memory")
        });
        let newer = unified.as_deref().and_then(|mount| least(mount, group(&own, ""), "memory.max"));
        let older =
            memory.and_then(|mount| least(&mount.path, group(&own, "memory"), "memory.limit_in_bytes"));
        Self {
            // Only the root has no `cgroup.type`.
            is_root: unified.as_ref().is_some_and(|path| path.is_dir() && !path.join("cgroup.type").exists()),
            unified,
            legacy: mounts.iter().any(|mount| mount.kind == "cgroup"),
            legacy_memory: has_legacy_memory(&sources.proc("cgroups").unwrap_or_default()),
            memory_limit: newer.into_iter().chain(older).min_by_key(|limit| limit.bytes),
        }
    }
}

/// From /proc/cgroups: for each controller its name, the number of its hierarchy (0 is cgroup v2), and more.
fn has_legacy_memory(text: &str) -> bool {
    let mut controllers = text.lines().map(str::split_whitespace);
    controllers
        .any(|mut words| words.next() == Some("memory") && words.next().is_some_and(|word| word != "0"))
}

/// The lines of /proc/mounts: device, path, kind, options.
fn mounts(text: &str) -> Vec<Mount> {
    let parse = |line: &str| {
        let mut words = line.split(' ').skip(1).map(unescaped);
        Some(Mount { path: words.next()?.into(), kind: words.next()?, options: words.next()? })
    };
    text.lines().filter_map(parse).collect()
}

/// /proc/mounts writes space, tab, newline and backslash as a backslash and three octal digits.
fn unescaped(word: &str) -> String {
    let codes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    codes.iter().fold(word.to_owned(), |word, (code, character)| word.replace(code, character))
}

/// Our path below the mount of a controller (`""` is cgroup2), from /proc/self/cgroup.
fn group<'t>(text: &'t str, controller: &str) -> &'t str {
    let line = text.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let named = parts.next()?.split(',').any(|name| name == controller);
        parts.next().filter(|_| named)
    });
    line.unwrap_or_default().trim_start_matches('/')
}

/// The lowest limit from our cgroup up to the mount.
fn least(mount: &Path, group: &str, name: &str) -> Option<MemoryLimit> {
    // In a cgroup namespace the path may lead out of the mount; then only the mount itself is visible.
    let group = if group.contains("..") { "" } else { group };
    let folder = mount.join(group);
    let folders = folder.ancestors().take_while(|folder| folder.starts_with(mount));
    let limits = folders.filter_map(|folder| {
        let file = folder.join(name);
        let bytes = fs::read_to_string(&file).ok()?.trim().parse().ok()?;
        (bytes < UNLIMITED_BYTES).then_some(MemoryLimit { bytes, file })
    });
    limits.min_by_key(|limit| limit.bytes)
}
