//! The commands on services: kamal-proxy's, by its flags, words and exit codes.
//!
//! clap reads them. What it refuses is said as cobra says it (`words`), and what cobra checks afterwards is checked
//! here, in its order.

mod deploy;
mod go;
mod table;
#[cfg(test)]
mod tests;
pub(crate) mod words;

use std::io::ErrorKind;
use std::path::Path;

use clap::{Args, Subcommand};
use serde::Serialize;
use sluice::control::{self, ClientError};
use sluice::service::api::{
    ApiError, ListResponse, PauseRequest, RolloutDeployRequest, RolloutSetRequest, StopRequest, path,
};
use sluice::service::duration::GoDuration;
use sluice::service::options::DeploymentOptions;

pub(crate) use deploy::DeployArgs;
use go::{List, flatten};

use super::ControlArgs;
pub(crate) use go::{boolean, integer};

/// A command on services.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// Deploy targets: traffic goes to them once they are healthy
    Deploy(Box<DeployArgs>),
    /// List the services
    #[command(alias = "ls")]
    List(ListArgs),
    /// Remove a service
    #[command(alias = "rm")]
    Remove(NameArgs),
    /// Hold the requests of a service
    Pause(PauseArgs),
    /// Turn the requests of a service away
    Stop(StopArgs),
    /// Serve the requests of a service again
    Resume(NameArgs),
    /// Send a part of the people to other targets
    Rollout {
        #[command(subcommand)]
        command: RolloutCommand,
    },
}

/// A command on a rollout.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum RolloutCommand {
    /// Deploy targets for a part of the people
    Deploy(RolloutDeployArgs),
    /// Say for which part
    Set(RolloutSetArgs),
    /// Send nobody there any more
    Stop(NameArgs),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ListArgs {
    #[arg(hide = true)]
    surplus: Vec<String>,
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

/// What `pause` and `stop` have in common: both hold requests back and drain what is under way.
#[derive(Clone, Debug, Args)]
pub(crate) struct HoldArgs {
    /// The name of the service
    #[arg(value_name = "SERVICE")]
    service: Vec<String>,
    #[command(flatten)]
    control: ControlArgs,
    /// How long requests under way may take to end
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, default_value = "30s")]
    drain_timeout: GoDuration,
}

#[derive(Clone, Debug, Args)]
#[command(args_override_self = true)]
pub(crate) struct PauseArgs {
    #[command(flatten)]
    hold: HoldArgs,
    /// How long requests are held before they fail
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, default_value = "30s")]
    max_pause: GoDuration,
}

#[derive(Clone, Debug, Args)]
#[command(args_override_self = true)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    hold: HoldArgs,
    /// What clients are told
    #[arg(long, allow_hyphen_values = true, default_value = "")]
    message: String,
}

#[derive(Clone, Debug, Args)]
#[command(args_override_self = true)]
pub(crate) struct RolloutDeployArgs {
    /// The name of the service
    #[arg(value_name = "SERVICE")]
    service: Vec<String>,
    #[command(flatten)]
    control: ControlArgs,
    /// Targets that take every request, host:port
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    target: Vec<List>,
    /// Targets that take reads only, host:port
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    read_target: Vec<List>,
    /// How long the targets may take to become healthy
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, default_value = "30s")]
    deploy_timeout: GoDuration,
    /// How long requests under way at the old targets may take to end
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
    /// The percentage of values of the cookie kamal-rollout
    #[arg(long, value_name = "N", value_parser = integer::<i64>, allow_hyphen_values = true)]
    percent: Option<i64>,
    /// Values of it that go there in any case
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    list: Vec<List>,
}

/// A command as a request to the control socket.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    /// JSON; empty is none.
    pub(crate) body: String,
}

/// The only argument there may be.
pub(super) fn one_service(arguments: &[String]) -> Result<&str, String> {
    match arguments {
        [service] => Ok(service),
        other => Err(format!("accepts 1 arg(s), received {}", other.len())),
    }
}

impl ServiceCommand {
    /// The request that the command is; `program` is what it was called as.
    pub(crate) fn asked(&self, program: &str) -> Result<Asked, String> {
        match self {
            Self::Deploy(args) => {
                let (service, request) = args.request()?;
                Ok(post(service, "deploy", &request))
            }
            Self::List(ListArgs { surplus, .. }) => match surplus.first() {
                Some(surplus) => Err(format!("unknown command {surplus:?} for \"{program} list\"")),
                None => Ok(Asked { method: "GET", path: "/v1/services".to_owned(), body: String::new() }),
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
            Self::Rollout { command } => command.asked(),
        }
    }

    /// Which running sluice is meant.
    pub(crate) fn control(&self) -> &ControlArgs {
        match self {
            Self::Deploy(args) => &args.control,
            Self::List(args) => &args.control,
            Self::Remove(args) | Self::Resume(args) => &args.control,
            Self::Pause(args) => &args.hold.control,
            Self::Stop(args) => &args.hold.control,
            Self::Rollout { command } => match command {
                RolloutCommand::Deploy(args) => &args.control,
                RolloutCommand::Set(args) => &args.control,
                RolloutCommand::Stop(args) => &args.control,
            },
        }
    }

    /// Carries the command out. What it prints, or what is to be said of its failure.
    pub(crate) fn run(&self, program: &str, socket: &Path) -> Result<String, Vec<String>> {
        let Asked { method, path, body } = self.asked(program).map_err(|error| vec![error])?;
        let answer = control::request(socket, method, &path, body).map_err(|error| refused(&error))?;
        match self {
            Self::List(_) => match serde_json::from_value::<ListResponse>(answer) {
                Ok(response) => Ok(table::table(&response)),
                Err(error) => Err(vec![format!("the list cannot be read: {error}")]),
            },
            _ => Ok(String::new()),
        }
    }
}

impl RolloutCommand {
    fn asked(&self) -> Result<Asked, String> {
        match self {
            Self::Deploy(args) => {
                let service = one_service(&args.service)?;
                if args.target.is_empty() {
                    return Err("required flag(s) \"target\" not set".to_owned());
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
                    return Err(message.to_owned());
                }
                let (percentage, allowlist) = (args.percent.unwrap_or(0), flatten(&args.list));
                Ok(post(service, "rollout/set", &RolloutSetRequest { percentage, allowlist }))
            }
            Self::Stop(NameArgs { service, .. }) => Ok(post_nothing(one_service(service)?, "rollout/stop")),
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

/// What is to be said of a failure. Nobody there is said as Go says it, for scripts look for it.
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
