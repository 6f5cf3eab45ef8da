//! `sluice discover`: deploys what is found elsewhere. Runs until it is stopped.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use sluice_control::docker::{self, DockerOptions};
use sluice_core::logging;
use sluice_core::service::duration::GoDuration;

use super::ControlArgs;
use crate::usage::UsageError;

/// Where services are found.
#[derive(Clone, Debug, Args)]
pub(crate) struct DiscoverArgs {
    #[command(subcommand)]
    command: DiscoverCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum DiscoverCommand {
    /// Deploy the containers of Docker or Podman that have the label sluice.host
    Docker(DockerArgs),
}

#[derive(Clone, Debug, Args)]
struct DockerArgs {
    #[command(flatten)]
    control: ControlArgs,
    /// The socket of Docker or Podman
    #[arg(long, value_name = "PATH", default_value = "/run/docker.sock")]
    socket: PathBuf,
    /// What the names of its services begin with; others are left alone
    #[arg(long, value_name = "TEXT", default_value = "docker-", value_parser = NonEmptyStringValueParser::new())]
    prefix: String,
    /// How long a service stays after its last container has gone
    #[arg(long, value_name = "TIME", default_value = "10s")]
    remove_after: GoDuration,
}

impl DiscoverArgs {
    /// Runs until the process is asked to end.
    pub(crate) fn run(self) -> Result<(), UsageError> {
        let DiscoverCommand::Docker(args) = self.command;
        logging::init();
        let options = DockerOptions {
            socket: args.socket,
            control: args.control.path(),
            prefix: args.prefix,
            remove_after: args.remove_after.to_std(),
        };
        docker::run(&options).map_err(|error| UsageError::from(error.to_string()))
    }
}
