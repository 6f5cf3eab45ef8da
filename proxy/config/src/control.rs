//! The control socket, and where deployed services are stored.

use std::path::PathBuf;

/// Where `sluice reload` and other commands reach the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ControlSocket {
    /// At the default path, if it can be bound.
    #[default]
    Auto,
    /// No socket.
    Off,
    /// At this path.
    At(PathBuf),
}

/// Where deployed services are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicesState {
    /// The file; `None` uses systemd's state directory, or no file without one.
    pub state_file: Option<PathBuf>,
    /// kamal-proxy's state file, which is read while ours does not exist.
    pub kamal_state_file: Option<PathBuf>,
}
