//! Where commands are taken, and where what they deploy is kept.

use std::path::PathBuf;

/// Where `sluice reload` and other commands reach the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ControlSocket {
    /// At the usual path, if it can be bound.
    #[default]
    Auto,
    /// Nowhere.
    Off,
    /// At this path of a unix socket.
    At(PathBuf),
}

/// Where deployed services are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicesState {
    /// The file; `None` is the one in the folder that systemd made for the state, or none.
    pub state_file: Option<PathBuf>,
    /// kamal-proxy's file, which is read where there is none of ours.
    pub kamal_state_file: Option<PathBuf>,
}
