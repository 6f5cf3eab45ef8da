//! The control socket file: its path, and its permissions.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::{Uid, geteuid, getuid};
use sluice_config::ControlSocket;

/// A bound control socket, created before privileges are dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// Its temporary path until it is published.
    bound_at: Option<PathBuf>,
}

/// The default path of the control socket: in the folder that systemd created for the service, in that of the user's
/// session, or in /run for root.
pub fn default_path() -> PathBuf {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if getuid().is_root() {
        return PathBuf::from("/run/sluice/control.sock");
    }
    let folder = folder("RUNTIME_DIRECTORY")
        .or_else(|| folder("XDG_RUNTIME_DIR").map(|session| session.join("sluice")))
        .unwrap_or_else(|| std::env::temp_dir().join(format!("sluice-{}", getuid())));
    folder.join("control.sock")
}

/// Whether a process is listening on this configuration's control socket.
pub(crate) fn answers(configured: &ControlSocket) -> bool {
    let path = match configured {
        ControlSocket::Off => return false,
        ControlSocket::At(path) => path.clone(),
        ControlSocket::Auto => default_path(),
    };
    UnixStream::connect(path).is_ok()
}

/// Refuses a folder in which other users could place a socket before we do, such as /tmp.
fn check_owner(folder: &Path) -> io::Result<()> {
    const OTHERS_WRITE: u32 = 0o002;
    const STICKY: u32 = 0o1000;
    let own = geteuid();
    // A symbolic link is checked too: its owner may change its target.
    for found in [std::fs::symlink_metadata(folder)?, std::fs::metadata(folder)?] {
        let owner = Uid::from_raw(found.uid());
        let is_open = found.is_dir() && found.mode() & (OTHERS_WRITE | STICKY) == OTHERS_WRITE;
        if is_open || !(owner == own || owner.is_root() || own.is_root()) {
            let message = format!(
                "other users can replace files in {} (owner {owner}, mode {:04o})",
                folder.display(),
                found.mode() & 0o7777
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
    }
    Ok(())
}

/// Whether the process listening at `path` may receive commands: it must run as this user or root; for root, also as
/// the owner of the folder.
pub(super) fn is_trusted(path: &Path, peer: Uid) -> bool {
    let own = geteuid();
    let owner =
        || path.parent().and_then(|folder| std::fs::symlink_metadata(folder).ok()).map(|found| found.uid());
    peer == own || peer.is_root() || (own.is_root() && owner() == Some(peer.as_raw()))
}

impl Listener {
    /// Binds a path with mode 0600; creates a missing folder. The socket gets its final name in [`Listener::publish`].
    ///
    /// # Errors
    /// `AddrInUse` when another process is listening there, unless this one is to `replace` it; otherwise the I/O
    /// error.
    pub(crate) fn bind(path: &Path, replace: bool) -> io::Result<Self> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            let mode = if folder.parent() == Some(&std::env::temp_dir()) { 0o700 } else { 0o755 };
            std::fs::DirBuilder::new().recursive(true).mode(mode).create(folder)?;
            check_owner(folder)?;
        }
        let is_socket = std::fs::symlink_metadata(path).map(|meta| meta.file_type().is_socket());
        match is_socket {
            Ok(true) if !replace && UnixStream::connect(path).is_ok() => {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process is listening there"));
            }
            Ok(false) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is not a socket")),
            _ => {}
        }
        let bound_at = beside(path);
        let _ = std::fs::remove_file(&bound_at);
        let socket = UnixListener::bind(&bound_at)?;
        let listener = Self { socket, path: path.to_owned(), bound_at: Some(bound_at) };
        if let Some(bound_at) = &listener.bound_at {
            std::fs::set_permissions(bound_at, std::fs::Permissions::from_mode(0o600))?;
        }
        Ok(listener)
    }

    /// Moves the socket to its path. It replaces a socket that nothing listens on, or the predecessor's.
    ///
    /// # Errors
    /// The I/O error.
    pub(crate) fn publish(&mut self) -> io::Result<()> {
        match self.bound_at.take() {
            Some(bound_at) => std::fs::rename(&bound_at, &self.path).inspect_err(|_| {
                let _ = std::fs::remove_file(&bound_at);
            }),
            None => Ok(()),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn to_tokio(&self) -> io::Result<tokio::net::UnixListener> {
        let socket = self.socket.try_clone()?;
        socket.set_nonblocking(true)?;
        tokio::net::UnixListener::from_std(socket)
    }
}

/// A second name of the control socket while a new process that replaces it is being started: a socket without any name
/// left cannot get a new one.
#[derive(Debug)]
pub(crate) struct SecondName {
    path: PathBuf,
    second: PathBuf,
}

impl SecondName {
    /// Creates a second name for the socket at `path`, in the same folder.
    ///
    /// # Errors
    /// The I/O error.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let second = beside(path);
        let _ = std::fs::remove_file(&second);
        std::fs::hard_link(path, &second)?;
        Ok(Self { path: path.to_owned(), second })
    }

    /// Moves the socket back to its path, replacing whatever is there.
    ///
    /// # Errors
    /// The I/O error.
    pub(crate) fn restore(&self) -> io::Result<()> {
        std::fs::rename(&self.second, &self.path)
    }
}

impl Drop for SecondName {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.second);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(bound_at) = &self.bound_at {
            let _ = std::fs::remove_file(bound_at);
        }
    }
}

/// A name in the same folder that is unique to this process.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    PathBuf::from(name)
}

/// Whether the peer runs as the same user, or as root.
pub(super) fn is_ours(stream: &tokio::net::UnixStream) -> bool {
    getsockopt(&stream.as_fd(), sockopt::PeerCredentials)
        .is_ok_and(|peer| peer.uid() == 0 || peer.uid() == getuid().as_raw())
}
