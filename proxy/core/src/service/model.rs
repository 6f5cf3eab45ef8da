//! One deployed service as it is kept: options, targets, pause and rollout. In JSON as in kamal-proxy's state file.

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
    /// How it meets its clients.
    pub options: ServiceOptions,
    /// How its targets are spoken to.
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
    /// Whether requests are served, held or turned away.
    pub pause_controller: Pause,
    /// Who goes to the rollout's targets; `None` is nobody.
    pub rollout_controller: Option<Rollout>,
    /// What was set for targets since they were deployed, by name. Ours.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub active_adjusted: BTreeMap<String, Adjustment>,
    /// The same for those of the rollout. Ours.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rollout_adjusted: BTreeMap<String, Adjustment>,
}

impl Service {
    /// The targets as `list` shows them.
    pub fn targets(&self) -> Vec<&str> {
        self.active_targets.iter().chain(&self.active_readers).map(String::as_str).collect()
    }

    /// Whether a rollout was deployed.
    pub fn has_rollout(&self) -> bool {
        !self.rollout_targets.is_empty() || !self.rollout_readers.is_empty()
    }
}

/// Whether requests are served, held or turned away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pause {
    /// Which of them.
    pub state: PauseState,
    /// What those who are turned away are told.
    pub stop_message: String,
    /// How long a request is held (504 beyond).
    pub fail_after: GoDuration,
}

/// Whether requests are served, held or turned away; a number in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub enum PauseState {
    /// Served.
    #[default]
    Running,
    /// Held until the pause ends.
    Paused,
    /// Turned away by 503.
    Stopped,
}

impl PauseState {
    /// The word that `list` shows.
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
            other => Err(format!("{other} is no pause state; 0 is running, 1 paused, 2 stopped").into()),
        }
    }
}

impl Pause {
    /// Requests are held for this long at most.
    pub fn paused(fail_after: GoDuration) -> Self {
        Self { state: PauseState::Paused, stop_message: String::new(), fail_after }
    }

    /// Requests are turned away with this message.
    pub fn stopped(message: String) -> Self {
        Self { state: PauseState::Stopped, stop_message: message, fail_after: GoDuration::default() }
    }
}
