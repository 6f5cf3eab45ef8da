//! The socket itself: where it is, who may use it.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::getuid;

/// A bound control socket; to be made before privileges are dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

/// Where the control socket is unless the configuration says otherwise: in the folder that systemd made for the
/// service, in that of the user's session, or in /run for root.
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

impl Listener {
    /// Binds a path, with mode 0600. A socket that nobody listens on any more is replaced; a missing folder is made.
    ///
    /// # Errors
    /// `AddrInUse` when another process answers there; else what went wrong.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
        }
        if std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
            if UnixStream::connect(path).is_ok() {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there"));
            }
            std::fs::remove_file(path)?;
        }
        Ok(Self { socket: bind_private(path)?, path: path.to_owned() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn into_tokio(self) -> io::Result<tokio::net::UnixListener> {
        self.socket.set_nonblocking(true)?;
        tokio::net::UnixListener::from_std(self.socket)
    }
}

/// Binds under another name and moves it into place, so that nobody can connect before the mode is right.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let _ = std::fs::remove_file(&temporary);
    let socket = UnixListener::bind(&temporary)?;
    let moved = std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(0o600))
        .and_then(|()| std::fs::rename(&temporary, path));
    if let Err(error) = moved {
        let _ = std::fs::remove_file(&temporary);
        return Err(error);
    }
    Ok(socket)
}

/// Whether a peer runs as the same user, or as root.
pub(super) fn is_ours(stream: &tokio::net::UnixStream) -> bool {
    getsockopt(&stream.as_fd(), sockopt::PeerCredentials)
        .is_ok_and(|peer| peer.uid() == 0 || peer.uid() == getuid().as_raw())
}
