//! The part of the control API that is about services: paths, and the JSON of requests and answers.
//!
//! | request | body | does |
//! |---|---|---|
//! | `GET /v1/services` | | [`ListResponse`] |
//! | `POST /v1/services/NAME/deploy` | [`DeployRequest`] | probes new targets, switches to them, drains the old |
//! | `DELETE /v1/services/NAME` | | removes the service |
//! | `POST /v1/services/NAME/pause` | [`PauseRequest`] | holds requests, drains what is under way |
//! | `POST /v1/services/NAME/stop` | [`StopRequest`] | turns requests away, drains what is under way |
//! | `POST /v1/services/NAME/resume` | | serves again |
//! | `POST /v1/services/NAME/rollout/deploy` | [`RolloutDeployRequest`] | deploys targets for a part of the people |
//! | `POST /v1/services/NAME/rollout/set` | [`RolloutSetRequest`] | says for which part |
//! | `POST /v1/services/NAME/rollout/stop` | | for nobody any more |
//! | `POST /v1/services/NAME/set-weight` | [`SetWeightRequest`] | gives a target another share of the requests |
//! | `POST /v1/services/NAME/disable` | [`TargetRequest`] | gives a target no new requests |
//! | `POST /v1/services/NAME/enable` | [`TargetRequest`] | gives it requests again |
//!
//! The last three are about a cluster of the configuration file where no service has the name.
//!
//! An answer comes when all is done, drains included, and is [`Done`]; what went wrong is an [`ApiError`] under 4xx or
//! 5xx. NAME is percent-encoded. Durations are nanoseconds or text as in Go, `"1m30s"`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::duration::GoDuration;
use super::error::ServiceError;
use super::model::Service;
use super::options::{
    DRAIN_TIMEOUT, DeploymentOptions, PAUSE_TIMEOUT, ServiceOptions, TargetOptions, null_is_empty,
};

/// A deploy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeployRequest {
    /// Targets, `host:port`, that take every request.
    #[serde(deserialize_with = "null_is_empty")]
    pub targets: Vec<String>,
    /// Targets that take reads only.
    #[serde(deserialize_with = "null_is_empty")]
    pub read_targets: Vec<String>,
    /// How it goes.
    pub deployment_options: DeploymentOptions,
    /// How the service meets its clients.
    pub options: ServiceOptions,
    /// How its targets are spoken to.
    pub target_options: TargetOptions,
}

/// A deploy for a part of the people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RolloutDeployRequest {
    /// Targets, `host:port`, that take every request.
    #[serde(deserialize_with = "null_is_empty")]
    pub targets: Vec<String>,
    /// Targets that take reads only.
    #[serde(deserialize_with = "null_is_empty")]
    pub read_targets: Vec<String>,
    /// How it goes.
    pub deployment_options: DeploymentOptions,
}

/// For which part of the people a rollout is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RolloutSetRequest {
    /// Percentage of values of the cookie `kamal-rollout`.
    pub percentage: i64,
    /// Values of it that are in any case.
    #[serde(deserialize_with = "null_is_empty")]
    pub allowlist: Vec<String>,
}

/// A pause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PauseRequest {
    /// How long what is under way may take to end.
    pub drain_timeout: GoDuration,
    /// How long requests are held (504 beyond).
    pub pause_timeout: GoDuration,
}

impl Default for PauseRequest {
    fn default() -> Self {
        Self { drain_timeout: DRAIN_TIMEOUT, pause_timeout: PAUSE_TIMEOUT }
    }
}

/// A stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StopRequest {
    /// How long what is under way may take to end.
    pub drain_timeout: GoDuration,
    /// What clients are told.
    pub message: String,
}

impl Default for StopRequest {
    fn default() -> Self {
        Self { drain_timeout: DRAIN_TIMEOUT, message: String::new() }
    }
}

/// A target of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TargetRequest {
    /// As it was deployed.
    pub target: String,
}

/// A target's share of the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SetWeightRequest {
    /// As it was deployed.
    pub target: String,
    /// Relative to the other targets, 1 to 1000.
    pub weight: u32,
}

/// What was asked for is done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Done {
    /// What is to be known of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Every service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListResponse {
    /// By name.
    pub services: BTreeMap<String, Listed>,
}

/// A service as `list` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Its hosts; `*` is any.
    pub host: String,
    /// Its path prefixes.
    pub path: String,
    /// Whether it is served over TLS.
    pub tls: bool,
    /// Its targets.
    pub target: String,
    /// `running`, `paused` or `stopped`.
    pub state: String,
}

impl Listed {
    pub(super) fn of(service: &Service) -> Self {
        let host = service.options.hosts.join(",");
        Self {
            host: if host.is_empty() { "*".to_owned() } else { host },
            path: service.options.path_prefixes.join(","),
            tls: service.options.tls_enabled,
            target: service.targets().join(","),
            state: service.pause_controller.state.word().to_owned(),
        }
    }
}

/// What went wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ApiError {
    /// One sentence; kamal-proxy's where it has one.
    pub error: String,
    /// What else is known, such as what the last health check of a target said.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
}

impl From<&ServiceError> for ApiError {
    fn from(error: &ServiceError) -> Self {
        Self { error: error.to_string(), details: error.details() }
    }
}

/// The path of a command on a service, `deploy` for example; of the service itself if it is empty.
pub fn path(service: &str, command: &str) -> String {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut path = String::from("/v1/services/");
    for byte in service.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_~".contains(&byte) {
            path.push(char::from(byte));
        } else {
            // Dots too: no name is then taken for a dot segment.
            path.extend([
                '%',
                char::from(HEX[usize::from(byte >> 4)]),
                char::from(HEX[usize::from(byte & 15)]),
            ]);
        }
    }
    if !command.is_empty() {
        path.push('/');
        path.push_str(command);
    }
    path
}

/// The service and the command that a path is about; `None` if it is none of ours or not well encoded.
pub fn parse_path(path: &str) -> Option<(String, &str)> {
    let rest = path.strip_prefix("/v1/services/")?;
    let (name, command) = rest.split_once('/').unwrap_or((rest, ""));
    let mut decoded = Vec::with_capacity(name.len());
    let mut bytes = name.bytes();
    while let Some(byte) = bytes.next() {
        let decoded_byte = match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                u8::try_from(digit(bytes.next())? * 16 + digit(bytes.next())?).ok()?
            }
            other => other,
        };
        decoded.push(decoded_byte);
    }
    let name = String::from_utf8(decoded).ok().filter(|name| !name.is_empty())?;
    Some((name, command))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_name_service_and_command() {
        assert_eq!(path("web", "deploy"), "/v1/services/web/deploy");
        assert_eq!(path("a/b c", ""), "/v1/services/a%2Fb%20c");
        assert_eq!(parse_path("/v1/services/web/rollout/set"), Some(("web".to_owned(), "rollout/set")));
        for other in ["/v1/services", "/v1/services/", "/v1/services/%", "/v1/services/%ff", "/v1/reload"] {
            assert_eq!(parse_path(other), None, "{other}");
        }
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let deploy: DeployRequest =
            serde_json::from_str(r#"{"targets": ["a:1"], "deployment_options": {"drain_timeout": "5s"}}"#)
                .unwrap();
        assert_eq!(deploy.deployment_options.drain_timeout, GoDuration::from_secs(5));
        assert_eq!(deploy.deployment_options.deploy_timeout, GoDuration::from_secs(30));
        assert_eq!(deploy.target_options.health_check_config.path, "/up");
        assert!(serde_json::from_str::<DeployRequest>(r#"{"target": "a:1"}"#).is_err());
    }

    proptest! {
        #[test]
        fn any_name_comes_back(name in "\\PC{1,12}") {
            let path = path(&name, "stop");
            prop_assert_eq!(parse_path(&path), Some((name, "stop")));
        }
    }
}
