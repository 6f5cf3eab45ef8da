//! `rollout`: other targets for a share of the users.

use crate::usage::UsageError;
use clap::{Args, Subcommand};
use sluice_core::service::api::{RolloutDeployRequest, RolloutSetRequest};
use sluice_core::service::duration::GoDuration;
use sluice_core::service::options::DeploymentOptions;

use super::go::{List, flatten};
use super::{Asked, NameArgs, integer, one_service, post, post_nothing};
use crate::cli::ControlArgs;

/// A command on a rollout.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum RolloutCommand {
    /// Deploy targets for a share of the users
    Deploy(RolloutDeployArgs),
    /// Choose the users who are sent to the rollout targets
    Set(RolloutSetArgs),
    /// Stop sending users to the rollout targets
    Stop(NameArgs),
}

#[derive(Clone, Debug, Args)]
#[command(args_override_self = true)]
pub(crate) struct RolloutDeployArgs {
    /// The name of the service
    #[arg(value_name = "SERVICE")]
    service: Vec<String>,
    #[command(flatten)]
    control: ControlArgs,
    /// Targets that receive all requests, host:port
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    target: Vec<List>,
    /// Targets that receive only reads, host:port
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    read_target: Vec<List>,
    /// Time limit until the targets are healthy
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, default_value = "30s")]
    deploy_timeout: GoDuration,
    /// Time limit for draining the old targets
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, default_value = "30s")]
    drain_timeout: GoDuration,
}

#[derive(Clone, Debug, Args)]
#[command(args_override_self = true)]
pub(crate) struct RolloutSetArgs {
    /// The name of the service
    #[arg(value_name = "SERVICE")]
    service: Vec<String>,
    #[command(flatten)]
    control: ControlArgs,
    /// Percentage of kamal-rollout cookie values to include
    #[arg(long, value_name = "N", value_parser = integer::<i64>, allow_hyphen_values = true)]
    percent: Option<i64>,
    /// Cookie values that are always included
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    list: Vec<List>,
}

impl RolloutCommand {
    /// The command as a request.
    pub(super) fn asked(&self) -> Result<Asked, UsageError> {
        match self {
            Self::Deploy(args) => {
                let service = one_service(&args.service)?;
                if args.target.is_empty() {
                    return Err("required flag(s) \"target\" not set".into());
                }
                let (deploy_timeout, drain_timeout) = (args.deploy_timeout, args.drain_timeout);
                let request = RolloutDeployRequest {
                    targets: flatten(&args.target),
                    read_targets: flatten(&args.read_target),
                    deployment_options: DeploymentOptions { deploy_timeout, drain_timeout, force: false },
                };
                Ok(post(service, "rollout/deploy", &request))
            }
            Self::Set(args) => {
                let service = one_service(&args.service)?;
                if args.percent.is_none() && args.list.is_empty() {
                    let message = "at least one of the flags in the group [percent list] is required";
                    return Err(message.to_owned().into());
                }
                let (percentage, allowlist) = (args.percent.unwrap_or(0), flatten(&args.list));
                Ok(post(service, "rollout/set", &RolloutSetRequest { percentage, allowlist }))
            }
            Self::Stop(NameArgs { service, .. }) => Ok(post_nothing(one_service(service)?, "rollout/stop")),
        }
    }

    /// Selects the running sluice.
    pub(super) fn control(&self) -> &ControlArgs {
        match self {
            Self::Deploy(args) => &args.control,
            Self::Set(args) => &args.control,
            Self::Stop(args) => &args.control,
        }
    }
}
