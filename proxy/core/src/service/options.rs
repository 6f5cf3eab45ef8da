//! What a deploy can ask for: kamal-proxy's options with its names, units and defaults, and ours beside them.
//!
//! In JSON they are named as in kamal-proxy's state file, so that such a file can be taken over.

use crate::service::InvalidService;
use serde::{Deserialize, Deserializer, Serialize};

use super::duration::GoDuration;
use super::error::ServiceError;

/// Where certificates come from when `--tls-staging` is given.
pub const ACME_STAGING: &str = "https://acme-staging-v02.api.letsencrypt.org/directory";

/// How long a deploy waits for its targets to become healthy, where it does not say.
pub const DEPLOY_TIMEOUT: GoDuration = GoDuration::from_secs(30);
/// How long requests under way may take to end, where a command does not say.
pub const DRAIN_TIMEOUT: GoDuration = GoDuration::from_secs(30);
/// How long requests wait for the end of a pause, where it does not say.
pub const PAUSE_TIMEOUT: GoDuration = GoDuration::from_secs(30);

/// How targets are asked whether they are well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthCheckConfig {
    /// Asked for by GET.
    pub path: String,
    /// Port that is asked; 0 is the target's own.
    pub port: u16,
    /// Time from one check to the next.
    pub interval: GoDuration,
    /// Time that a check may take.
    pub timeout: GoDuration,
    /// The Host that is asked for; empty is the target's address.
    pub host: String,
}

impl Default for HealthCheckConfig {
    fn default() -> Self {
        Self {
            path: "/up".to_owned(),
            port: 0,
            interval: GoDuration::from_secs(1),
            timeout: GoDuration::from_secs(5),
            host: String::new(),
        }
    }
}

/// How a service meets its clients.
///
/// Many fields: one for each option of `deploy`, in kamal-proxy's names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceOptions {
    /// Hosts, exact or `*.suffix`; the empty one is any.
    #[serde(deserialize_with = "null_is_empty")]
    pub hosts: Vec<String>,
    /// Path prefixes; `/` is any.
    #[serde(deserialize_with = "null_is_empty")]
    pub path_prefixes: Vec<String>,
    /// Whether it is served over TLS.
    pub tls_enabled: bool,
    /// A certificate of one's own, PEM.
    pub tls_certificate_path: String,
    /// Its private key, PEM.
    pub tls_private_key_path: String,
    /// Whether plain HTTP is redirected to HTTPS, where TLS is on.
    pub tls_redirect: bool,
    /// Requests for other hosts are redirected to this one; empty is none.
    pub canonical_host: String,
    /// Where certificates come from; empty is Let's Encrypt.
    pub acme_directory: String,
    /// Where certificates are kept.
    pub acme_cache_path: String,
    /// A folder of `STATUS.html` files; empty is none.
    pub error_page_path: String,
    /// Whether the path prefix is taken off before forwarding.
    pub strip_prefix: bool,
    /// How long a client that has written is not sent to readers.
    pub writer_affinity_timeout: GoDuration,
    /// Whether readers take websockets.
    pub read_targets_accept_websockets: bool,
    /// Paths that do not count in metrics. From kamal-proxy 0.10.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub exclude_metrics_paths: Vec<String>,
    /// Field that a proxy in front names the client in; empty is none. From kamal-proxy 0.10.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client_ip_header: String,
    /// Who says for which hosts a certificate may be had; empty is nobody. From kamal-proxy 0.10.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tls_on_demand_url: String,
}

impl Default for ServiceOptions {
    fn default() -> Self {
        Self {
            hosts: Vec::new(),
            path_prefixes: Vec::new(),
            tls_enabled: false,
            tls_certificate_path: String::new(),
            tls_private_key_path: String::new(),
            tls_redirect: true,
            canonical_host: String::new(),
            acme_directory: String::new(),
            acme_cache_path: String::new(),
            error_page_path: String::new(),
            strip_prefix: true,
            writer_affinity_timeout: GoDuration::from_secs(1),
            read_targets_accept_websockets: false,
            exclude_metrics_paths: Vec::new(),
            client_ip_header: String::new(),
            tls_on_demand_url: String::new(),
        }
    }
}

impl ServiceOptions {
    /// Writes out what is left out: no host is any host, no path is every path, and paths have one slash in front
    /// and none at the end.
    pub fn normalize(&mut self) {
        if self.hosts.is_empty() {
            self.hosts.push(String::new());
        }
        if self.path_prefixes.is_empty() {
            self.path_prefixes.push("/".to_owned());
        }
        for prefix in &mut self.path_prefixes {
            *prefix = format!("/{}", prefix.trim_matches('/'));
        }
    }

    /// Whether it serves the root path, whose TLS settings hold for the host.
    pub fn serves_root(&self) -> bool {
        self.path_prefixes.iter().any(|prefix| prefix == "/")
    }

    /// What cannot be, whoever asks for it; the options are to be normalized.
    ///
    /// # Errors
    /// kamal-proxy's words for the first that is wrong.
    pub fn validate(&self) -> Result<(), ServiceError> {
        let invalid = |message: &str| Err(ServiceError::Invalid(message.to_owned()));
        let names_hosts = !self.hosts.is_empty() && !self.hosts.iter().any(String::is_empty);
        if !self.tls_on_demand_url.is_empty() {
            if !self.tls_enabled {
                return invalid("TLS must be enabled to use a TLS on-demand URL");
            }
            if names_hosts {
                return invalid("cannot set hosts when using a TLS on-demand URL");
            }
            if !self.tls_certificate_path.is_empty() || !self.tls_private_key_path.is_empty() {
                return invalid("cannot use a custom TLS certificate with a TLS on-demand URL");
            }
            if !self.canonical_host.is_empty() {
                return invalid("cannot set a canonical host when using a TLS on-demand URL");
            }
        }
        if self.tls_enabled && !self.serves_root() {
            return invalid("TLS settings must be specified on the root path service");
        }
        let named = self.hosts.first().is_some_and(|host| !host.is_empty());
        if !self.canonical_host.is_empty() && named && !self.hosts.contains(&self.canonical_host) {
            return Err(ServiceError::Invalid(format!(
                "canonical-host '{}' must be present in the hosts list: [{}]",
                self.canonical_host,
                self.hosts.join(" ")
            )));
        }
        Ok(())
    }
}

/// How targets are spoken to.
///
/// Many fields: one for each option of `deploy`, in kamal-proxy's names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetOptions {
    /// How they are asked whether they are well.
    pub health_check_config: HealthCheckConfig,
    /// From the request sent to the response head (504 beyond).
    pub response_timeout: GoDuration,
    /// Whether a request is received whole before it is forwarded.
    pub buffer_requests: bool,
    /// Whether a response is received whole before it is sent on.
    pub buffer_responses: bool,
    /// Bytes of it that are kept in memory.
    pub max_memory_buffer_size: u64,
    /// Bytes of a request's body; 0 is as many as the listener takes.
    pub max_request_body_size: u64,
    /// Bytes of a response's body; 0 is any number.
    pub max_response_body_size: u64,
    /// Request fields to log.
    #[serde(deserialize_with = "null_is_empty")]
    pub log_request_headers: Vec<String>,
    /// Response fields to log.
    #[serde(deserialize_with = "null_is_empty")]
    pub log_response_headers: Vec<String>,
    /// Whether the client's X-Forwarded-* fields are passed on.
    pub forward_headers: bool,
    /// Whether the paths of cookies get the path prefix put in front.
    pub scope_cookie_paths: bool,
    /// Requests that each target may have under way: a number or `auto`. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<InFlightLimit>,
    /// Requests that may wait for a target (503 beyond). Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_size: Option<u32>,
}

impl Default for TargetOptions {
    fn default() -> Self {
        Self {
            health_check_config: HealthCheckConfig::default(),
            response_timeout: GoDuration::from_secs(30),
            buffer_requests: false,
            buffer_responses: false,
            max_memory_buffer_size: 1 << 20,
            max_request_body_size: 0,
            max_response_body_size: 0,
            log_request_headers: Vec::new(),
            log_response_headers: Vec::new(),
            forward_headers: false,
            scope_cookie_paths: false,
            max_in_flight: None,
            queue_size: None,
        }
    }
}

/// The largest bound on requests under way.
const IN_FLIGHT_MAX: u32 = 1_000_000;

/// A bound on requests under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InFlightLimit {
    /// As many as measured latency shows to be good.
    Auto,
    /// This many.
    #[serde(untagged)]
    Fixed(#[serde(deserialize_with = "some")] u32),
}

impl std::str::FromStr for InFlightLimit {
    type Err = InvalidService;

    fn from_str(text: &str) -> Result<Self, InvalidService> {
        match text.parse::<u32>() {
            Ok(count @ 1..=IN_FLIGHT_MAX) => Ok(Self::Fixed(count)),
            _ if text == "auto" => Ok(Self::Auto),
            _ => Err("write a number from 1 to 1000000, or auto".into()),
        }
    }
}

/// How a deploy goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeploymentOptions {
    /// How long the targets may take to become healthy.
    pub deploy_timeout: GoDuration,
    /// How long what is under way at the old ones may take to end.
    pub drain_timeout: GoDuration,
    /// Whether they are used without being asked.
    pub force: bool,
}

impl Default for DeploymentOptions {
    fn default() -> Self {
        Self { deploy_timeout: DEPLOY_TIMEOUT, drain_timeout: DRAIN_TIMEOUT, force: false }
    }
}

/// A bound that lets something through.
fn some<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let count = u32::deserialize(deserializer)?;
    match count {
        1..=IN_FLIGHT_MAX => Ok(count),
        _ => Err(serde::de::Error::custom("not from 1 to 1000000")),
    }
}

/// kamal-proxy writes `null` where a list is empty.
pub(super) fn null_is_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Option::<Vec<String>>::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn what_is_left_out_is_any() {
        let mut options = ServiceOptions::default();
        options.normalize();
        assert_eq!((options.hosts, options.path_prefixes), (texts(&[""]), texts(&["/"])));
        let path_prefixes = texts(&["api", "/x/", "//y//", "/"]);
        let mut options = ServiceOptions { path_prefixes, ..ServiceOptions::default() };
        options.normalize();
        assert_eq!(options.path_prefixes, ["/api", "/x", "/y", "/"]);
    }

    #[test]
    fn a_canonical_host_is_one_of_the_hosts() {
        // kamal-proxy's own table.
        let two = texts(&["example.com", "www.example.com"]);
        for (hosts, canonical_host, said) in [
            (&two[..], "example.com", None),
            (&two[..], "www.example.com", None),
            (
                &two[..],
                "api.example.com",
                Some(
                    "canonical-host 'api.example.com' must be present in the hosts list: [example.com www.example.com]",
                ),
            ),
            (&two[..], "", None),
            (&[], "example.com", None),
            (&[], "", None),
        ] {
            let canonical_host = canonical_host.to_owned();
            let mut options = ServiceOptions { hosts: hosts.to_vec(), canonical_host, ..Default::default() };
            options.normalize();
            assert_eq!(options.validate().err().map(|error| error.to_string()).as_deref(), said);
        }
    }

    #[test]
    fn limits_are_numbers_or_auto() {
        assert_eq!("4".parse(), Ok(InFlightLimit::Fixed(4)));
        assert_eq!("auto".parse(), Ok(InFlightLimit::Auto));
        assert!("0".parse::<InFlightLimit>().is_err());
        for limit in [InFlightLimit::Auto, InFlightLimit::Fixed(4)] {
            let json = serde_json::to_string(&limit).unwrap();
            assert_eq!(serde_json::from_str::<InFlightLimit>(&json).unwrap(), limit, "{json}");
        }
        assert!(serde_json::from_str::<InFlightLimit>("0").is_err());
    }
}
