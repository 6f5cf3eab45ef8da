//! The commands on services, with kamal-proxy's flags, messages and exit codes.
//!
//! clap parses them. Its errors are reported in cobra's words (`words`); checks that cobra makes after parsing are made
//! here, in its order.

mod deploy;
mod go;
mod rollout;
mod table;
mod targets;
#[cfg(test)]
mod tests;
pub(crate) mod words;

use crate::fleet_table;
use crate::usage::UsageError;
use std::io::{ErrorKind, IsTerminal};
use std::path::Path;

use clap::{Args, Subcommand};
use serde::Serialize;
use sluice_control::commands::{self, ClientError};
use sluice_control::fleet::FleetView;
use sluice_core::service::api::{ApiError, Done, ListResponse, PauseRequest, StopRequest, path};
use sluice_core::service::duration::GoDuration;

pub(crate) use deploy::DeployArgs;

pub(crate) use rollout::RolloutCommand;
pub(crate) use targets::{SetWeightArgs, TargetArgs};

use super::ControlArgs;
pub(crate) use go::{boolean, integer};

/// A command on services.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// Deploy targets: requests are sent to them once they are healthy
    Deploy(Box<DeployArgs>),
    /// List the services
    #[command(alias = "ls")]
    List(ListArgs),
    /// Remove a service
    #[command(alias = "rm")]
    Remove(NameArgs),
    /// Pause the requests of a service
    Pause(PauseArgs),
    /// Refuse the requests of a service
    Stop(StopArgs),
    /// Resume a paused or stopped service
    Resume(NameArgs),
    /// Change the weight of a target of a service
    SetWeight(SetWeightArgs),
    /// Stop sending new requests to a target of a service; running ones finish
    Disable(TargetArgs),
    /// Send requests to a disabled target again
    Enable(TargetArgs),
    /// Send a share of the users to other targets
    Rollout {
        #[command(subcommand)]
        command: RolloutCommand,
    },
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ListArgs {
    #[arg(hide = true)]
    surplus: Vec<String>,
    /// List the members of the fleet
    #[arg(long)]
    fleet: bool,
    #[command(flatten)]
    control: ControlArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct NameArgs {
    /// The name of the service
    #[arg(value_name = "SERVICE")]
    service: Vec<String>,
    #[command(flatten)]
    control: ControlArgs,
}

/// Options shared by `pause` and `stop`: both stop forwarding requests and drain the running ones.
#[derive(Clone, Debug, Args)]
pub(crate) struct HoldArgs {
    /// The name of the service
    #[arg(value_name = "SERVICE")]
    service: Vec<String>,
    #[command(flatten)]
    control: ControlArgs,
    /// Time limit for running requests to finish
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, default_value = "30s")]
    drain_timeout: GoDuration,
}

#[derive(Clone, Debug, Args)]
#[command(args_override_self = true)]
pub(crate) struct PauseArgs {
    #[command(flatten)]
    hold: HoldArgs,
    /// Maximum time that a request waits before it fails
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, default_value = "30s")]
    max_pause: GoDuration,
}

#[derive(Clone, Debug, Args)]
#[command(args_override_self = true)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    hold: HoldArgs,
    /// Message for clients
    #[arg(long, allow_hyphen_values = true, default_value = "")]
    message: String,
}

/// A command as a request to the control socket.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    /// JSON; empty for no body.
    pub(crate) body: String,
}

/// The only argument allowed.
pub(super) fn one_service(arguments: &[String]) -> Result<&str, UsageError> {
    match arguments {
        [service] => Ok(service),
        other => Err(format!("accepts 1 arg(s), received {}", other.len()).into()),
    }
}

impl ServiceCommand {
    /// The command as a request; `program` is the name it was called as.
    pub(crate) fn asked(&self, program: &str) -> Result<Asked, UsageError> {
        match self {
            Self::Deploy(args) => {
                let (service, request) = args.request()?;
                Ok(post(service, "deploy", &request))
            }
            Self::List(ListArgs { surplus, fleet, .. }) => match surplus.first() {
                Some(surplus) => Err(format!("unknown command {surplus:?} for \"{program} list\"").into()),
                None => {
                    let path = if *fleet { commands::FLEET } else { "/v1/services" };
                    Ok(Asked { method: "GET", path: path.to_owned(), body: String::new() })
                }
            },
            Self::Remove(NameArgs { service, .. }) => {
                let path = path(one_service(service)?, "");
                Ok(Asked { method: "DELETE", path, body: String::new() })
            }
            Self::Pause(PauseArgs { hold, max_pause }) => {
                let request = PauseRequest { drain_timeout: hold.drain_timeout, pause_timeout: *max_pause };
                Ok(post(one_service(&hold.service)?, "pause", &request))
            }
            Self::Stop(StopArgs { hold, message }) => {
                let request = StopRequest { drain_timeout: hold.drain_timeout, message: message.clone() };
                Ok(post(one_service(&hold.service)?, "stop", &request))
            }
            Self::Resume(NameArgs { service, .. }) => Ok(post_nothing(one_service(service)?, "resume")),
            Self::SetWeight(args) => Ok(args.asked()),
            Self::Disable(args) => Ok(args.asked("disable")),
            Self::Enable(args) => Ok(args.asked("enable")),
            Self::Rollout { command } => command.asked(),
        }
    }

    /// Selects the running sluice.
    pub(crate) fn control(&self) -> &ControlArgs {
        match self {
            Self::Deploy(args) => &args.control,
            Self::List(args) => &args.control,
            Self::Remove(args) | Self::Resume(args) => &args.control,
            Self::Pause(args) => &args.hold.control,
            Self::Stop(args) => &args.hold.control,
            Self::SetWeight(args) => &args.of.control,
            Self::Disable(args) | Self::Enable(args) => &args.control,
            Self::Rollout { command } => command.control(),
        }
    }

    /// Carries out the command. Returns its output, or the lines of its error.
    pub(crate) fn run(&self, program: &str, socket: &Path) -> Result<String, Vec<String>> {
        let Asked { method, path, body } = self.asked(program).map_err(|error| vec![error.to_string()])?;
        let answer = commands::request(socket, method, &path, body).map_err(|error| refused(&error))?;
        match self {
            Self::List(ListArgs { fleet: true, .. }) => match serde_json::from_value::<FleetView>(answer) {
                Ok(view) => Ok(fleet_table::table(&view)),
                Err(error) => Err(vec![format!("the list cannot be read: {error}")]),
            },
            Self::List(_) => match serde_json::from_value::<ListResponse>(answer) {
                Ok(response) => Ok(table::table(&response, is_coloured(program))),
                Err(error) => Err(vec![format!("the list cannot be read: {error}")]),
            },
            _ => {
                let Done { note } = serde_json::from_value(answer).unwrap_or_default();
                Ok(note.map(|note| note + "\n").unwrap_or_default())
            }
        }
    }
}

fn post(service: &str, command: &str, request: &impl Serialize) -> Asked {
    let body = serde_json::to_string(request).expect("numbers, text and lists are JSON");
    Asked { method: "POST", path: path(service, command), body }
}

fn post_nothing(service: &str, command: &str) -> Asked {
    Asked { method: "POST", path: path(service, command), body: String::new() }
}

/// The lines of an error. If no process is listening, the message is Go's, because scripts look for it.
fn refused(error: &ClientError) -> Vec<String> {
    match error {
        ClientError::Unreachable { path, source } => {
            let why = match source.kind() {
                ErrorKind::NotFound => "no such file or directory".to_owned(),
                ErrorKind::ConnectionRefused => "connection refused".to_owned(),
                ErrorKind::PermissionDenied => "permission denied".to_owned(),
                _ => source.to_string(),
            };
            vec![format!("dial unix {}: connect: {why}", path.display())]
        }
        ClientError::Refused(body) => match serde_json::from_value::<ApiError>(body.clone()) {
            Ok(ApiError { error, details }) => [error].into_iter().chain(details).collect(),
            Err(_) => vec![error.to_string()],
        },
        other => vec![other.to_string()],
    }
}

/// Whether to use colours: on a terminal, and always when called as kamal-proxy, as it does.
fn is_coloured(program: &str) -> bool {
    let is_refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    program == super::kamal::PROGRAM || std::io::stdout().is_terminal() && !is_refused
}
