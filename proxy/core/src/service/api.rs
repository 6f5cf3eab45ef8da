//! The services part of the control API: paths, and the JSON of requests and responses.
//!
//! | request | body | effect |
//! |---|---|---|
//! | `GET /v1/services` | | [`ListResponse`] |
//! | `POST /v1/services/NAME/deploy` | [`DeployRequest`] | probes new targets, switches to them, drains the old |
//! | `DELETE /v1/services/NAME` | | removes the service |
//! | `POST /v1/services/NAME/pause` | [`PauseRequest`] | makes new requests wait, drains running ones |
//! | `POST /v1/services/NAME/stop` | [`StopRequest`] | rejects new requests, drains running ones |
//! | `POST /v1/services/NAME/resume` | | serves again |
//! | `POST /v1/services/NAME/rollout/deploy` | [`RolloutDeployRequest`] | deploys targets for a part of the clients |
//! | `POST /v1/services/NAME/rollout/set` | [`RolloutSetRequest`] | sets which part |
//! | `POST /v1/services/NAME/rollout/stop` | | ends the rollout |
//! | `POST /v1/services/NAME/set-weight` | [`SetWeightRequest`] | changes a target's share of the requests |
//! | `POST /v1/services/NAME/disable` | [`TargetRequest`] | sends a target no new requests |
//! | `POST /v1/services/NAME/enable` | [`TargetRequest`] | sends it requests again |
//!
//! The last three apply to a cluster of the configuration file if no service has the name.
//!
//! A response is sent when the command is complete, including drains. It is [`Done`], or an [`ApiError`] with a 4xx or
//! 5xx status. NAME is percent-encoded. Durations are nanoseconds, or text as in Go: `"1m30s"`.

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
    /// Timeouts of the deploy.
    pub deployment_options: DeploymentOptions,
    /// How the service handles clients.
    pub options: ServiceOptions,
    /// How requests are sent to its targets.
    pub target_options: TargetOptions,
}

/// A deploy for a part of the clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RolloutDeployRequest {
    /// Targets, `host:port`, that take every request.
    #[serde(deserialize_with = "null_is_empty")]
    pub targets: Vec<String>,
    /// Targets that take reads only.
    #[serde(deserialize_with = "null_is_empty")]
    pub read_targets: Vec<String>,
    /// Timeouts of the deploy.
    pub deployment_options: DeploymentOptions,
}

/// The part of the clients that a rollout applies to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RolloutSetRequest {
    /// Percentage of values of the cookie `kamal-rollout`.
    pub percentage: i64,
    /// Values of the cookie that are always included.
    #[serde(deserialize_with = "null_is_empty")]
    pub allowlist: Vec<String>,
}

/// A pause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PauseRequest {
    /// How long running requests may take to finish.
    pub drain_timeout: GoDuration,
    /// How long new requests may wait (504 after that).
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
    /// How long running requests may take to finish.
    pub drain_timeout: GoDuration,
    /// The message that clients get.
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
    /// The target as it was deployed.
    pub target: String,
}

/// A target's share of the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SetWeightRequest {
    /// The target as it was deployed.
    pub target: String,
    /// Relative to the other targets, 1 to 1000.
    pub weight: u32,
}

/// The command succeeded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Done {
    /// Additional information about the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Every service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListResponse {
    /// By name.
    pub services: BTreeMap<String, Listed>,
}

/// A service as shown by `list`.
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

/// The error of a failed command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ApiError {
    /// One sentence; kamal-proxy's wording if it has one.
    pub error: String,
    /// More details, such as the outcome of a target's last health check.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
}

impl From<&ServiceError> for ApiError {
    fn from(error: &ServiceError) -> Self {
        Self { error: error.to_string(), details: error.details() }
    }
}

/// The path of a command on a service, for example `deploy`; the path of the service itself if `command` is empty.
pub fn path(service: &str, command: &str) -> String {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut path = String::from("/v1/services/");
    for byte in service.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_~".contains(&byte) {
            path.push(char::from(byte));
        } else {
            // Dots too, so that no name is taken for a dot segment.
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

/// The service and the command of a path; `None` if the path is unknown or badly encoded.
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
    fn omitted_fields_have_their_defaults() {
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
        fn any_name_survives_a_round_trip(name in "\\PC{1,12}") {
            let path = path(&name, "stop");
            prop_assert_eq!(parse_path(&path), Some((name, "stop")));
        }
    }
}
