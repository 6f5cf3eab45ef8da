//! One deployed service as it is stored: options, targets, pause and rollout. The JSON is that of kamal-proxy's state
//! file.

use crate::service::InvalidService;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::duration::GoDuration;
use super::options::{ServiceOptions, TargetOptions, null_is_empty};
use super::rollout::Rollout;
use crate::cluster::Adjustment;

/// A deployed service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// How it handles clients.
    pub options: ServiceOptions,
    /// How requests are sent to its targets.
    pub target_options: TargetOptions,
    /// Targets that take every request.
    #[serde(deserialize_with = "null_is_empty")]
    pub active_targets: Vec<String>,
    /// Targets that take reads only.
    #[serde(deserialize_with = "null_is_empty")]
    pub active_readers: Vec<String>,
    /// Targets of the rollout, if one was deployed.
    #[serde(deserialize_with = "null_is_empty")]
    pub rollout_targets: Vec<String>,
    /// Readers of the rollout.
    #[serde(deserialize_with = "null_is_empty")]
    pub rollout_readers: Vec<String>,
    /// Whether requests are served, paused or rejected.
    pub pause_controller: Pause,
    /// Which clients use the rollout's targets; `None` means none.
    pub rollout_controller: Option<Rollout>,
    /// Adjustments of targets since they were deployed, by name. sluice's addition.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub active_adjusted: BTreeMap<String, Adjustment>,
    /// Adjustments of the rollout's targets, by name. sluice's addition.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rollout_adjusted: BTreeMap<String, Adjustment>,
}

impl Service {
    /// The targets as shown by `list`.
    pub fn targets(&self) -> Vec<&str> {
        self.active_targets.iter().chain(&self.active_readers).map(String::as_str).collect()
    }

    /// Whether a rollout was deployed.
    pub fn has_rollout(&self) -> bool {
        !self.rollout_targets.is_empty() || !self.rollout_readers.is_empty()
    }
}

/// Whether requests are served, paused or rejected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pause {
    /// The state.
    pub state: PauseState,
    /// The message of rejected requests.
    pub stop_message: String,
    /// How long a paused request waits (504 after that).
    pub fail_after: GoDuration,
}

/// Whether requests are served, paused or rejected; a number in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub enum PauseState {
    /// Requests are served.
    #[default]
    Running,
    /// Requests wait until the pause ends.
    Paused,
    /// Requests are rejected with 503.
    Stopped,
}

impl PauseState {
    /// The word shown by `list`.
    pub fn word(self) -> &'static str {
        match self {
            PauseState::Running => "running",
            PauseState::Paused => "paused",
            PauseState::Stopped => "stopped",
        }
    }
}

impl From<PauseState> for u8 {
    fn from(state: PauseState) -> u8 {
        match state {
            PauseState::Running => 0,
            PauseState::Paused => 1,
            PauseState::Stopped => 2,
        }
    }
}

impl TryFrom<u8> for PauseState {
    type Error = InvalidService;

    fn try_from(number: u8) -> Result<Self, InvalidService> {
        match number {
            0 => Ok(PauseState::Running),
            1 => Ok(PauseState::Paused),
            2 => Ok(PauseState::Stopped),
            other => Err(format!("{other} is not a pause state; 0 is running, 1 paused, 2 stopped").into()),
        }
    }
}

impl Pause {
    /// Requests wait for at most this long.
    pub fn paused(fail_after: GoDuration) -> Self {
        Self { state: PauseState::Paused, stop_message: String::new(), fail_after }
    }

    /// Requests are rejected with this message.
    pub fn stopped(message: String) -> Self {
        Self { state: PauseState::Stopped, stop_message: message, fail_after: GoDuration::default() }
    }
}
