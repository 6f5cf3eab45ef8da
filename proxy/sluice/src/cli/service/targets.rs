//! Commands on one target, which kamal-proxy does not have: `set-weight`, `disable`, `enable`.

use clap::Args;
use sluice_core::service::api::{SetWeightRequest, TargetRequest};

use super::{Asked, integer, post};
use crate::cli::ControlArgs;

/// Selects a target.
#[derive(Clone, Debug, Args)]
pub(crate) struct TargetArgs {
    /// The name of the service, or of a cluster of the configuration file
    #[arg(value_name = "SERVICE")]
    service: String,
    /// The target as it was deployed, host:port
    #[arg(value_name = "TARGET")]
    target: String,
    #[command(flatten)]
    pub(super) control: ControlArgs,
}

/// Selects a target, and its weight.
#[derive(Clone, Debug, Args)]
pub(crate) struct SetWeightArgs {
    #[command(flatten)]
    pub(super) of: TargetArgs,
    /// Weight relative to the other targets, 1 to 1000; the initial weight is 1
    #[arg(value_name = "WEIGHT", value_parser = integer::<u32>)]
    weight: u32,
}

impl TargetArgs {
    /// The command on the target as a request.
    pub(super) fn asked(&self, command: &str) -> Asked {
        post(&self.service, command, &TargetRequest { target: self.target.clone() })
    }
}

impl SetWeightArgs {
    /// The command as a request.
    pub(super) fn asked(&self) -> Asked {
        let TargetArgs { service, target, .. } = &self.of;
        let request = SetWeightRequest { target: target.clone(), weight: self.weight };
        post(service, "set-weight", &request)
    }
}
