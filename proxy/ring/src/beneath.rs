//! How files below a folder are opened.

use nix::fcntl::{OFlag, ResolveFlag};

/// How names are resolved: no `..`, no absolute path and no symbolic link leads out of the folder, and none of the links
/// of /proc is followed.
pub(crate) fn beneath() -> ResolveFlag {
    ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS
}

/// For reading. Opening a named pipe would otherwise wait for a writer.
pub(crate) const READING: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_CLOEXEC).union(OFlag::O_NONBLOCK).union(OFlag::O_NOCTTY);
