//! The options of a deploy: those of kamal-proxy with its names, units and defaults, and sluice's own.
//!
//! In JSON they are named as in kamal-proxy's state file, so that such a file can be imported.

use crate::service::InvalidService;
use serde::{Deserialize, Deserializer, Serialize};

use super::duration::GoDuration;
use super::error::ServiceError;

/// The certificate authority used with `--tls-staging`.
pub const ACME_STAGING: &str = "https://acme-staging-v02.api.letsencrypt.org/directory";

/// How long a deploy waits for its targets to become healthy, by default.
pub const DEPLOY_TIMEOUT: GoDuration = GoDuration::from_secs(30);
/// How long running requests may take to finish, by default.
pub const DRAIN_TIMEOUT: GoDuration = GoDuration::from_secs(30);
/// How long requests wait for the end of a pause, by default.
pub const PAUSE_TIMEOUT: GoDuration = GoDuration::from_secs(30);

/// How the health of targets is checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthCheckConfig {
    /// Path of the GET request.
    pub path: String,
    /// Port of the check; 0 means the target's own.
    pub port: u16,
    /// Time from one check to the next.
    pub interval: GoDuration,
    /// Timeout of a check.
    pub timeout: GoDuration,
    /// The Host field of the check; empty means the target's address.
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

/// How a service handles clients.
///
/// Many fields: one for each option of `deploy`, with kamal-proxy's names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceOptions {
    /// Hosts, exact or `*.suffix`; an empty host matches any.
    #[serde(deserialize_with = "null_is_empty")]
    pub hosts: Vec<String>,
    /// Path prefixes; `/` matches any.
    #[serde(deserialize_with = "null_is_empty")]
    pub path_prefixes: Vec<String>,
    /// Whether it is served over TLS.
    pub tls_enabled: bool,
    /// Certificate file, PEM.
    pub tls_certificate_path: String,
    /// Private key file, PEM.
    pub tls_private_key_path: String,
    /// Whether plain HTTP is redirected to HTTPS, if TLS is on.
    pub tls_redirect: bool,
    /// Requests for other hosts are redirected to this host; empty means no redirect.
    pub canonical_host: String,
    /// URL of the certificate authority; empty means Let's Encrypt.
    pub acme_directory: String,
    /// Folder of issued certificates.
    pub acme_cache_path: String,
    /// A folder of `STATUS.html` files; empty means none.
    pub error_page_path: String,
    /// Whether the path prefix is removed before forwarding.
    pub strip_prefix: bool,
    /// How long a client that has written is kept off the readers.
    pub writer_affinity_timeout: GoDuration,
    /// Whether readers get WebSocket requests.
    pub read_targets_accept_websockets: bool,
    /// Paths that are excluded from metrics. From kamal-proxy 0.10.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub exclude_metrics_paths: Vec<String>,
    /// The field in which a proxy in front names the client; empty means none. From kamal-proxy 0.10.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client_ip_header: String,
    /// URL that decides which hosts may get a certificate; empty means none. From kamal-proxy 0.10.
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
    /// Fills in omitted values: no host becomes any host, no path becomes every path. Paths get one slash in front and
    /// none at the end.
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

    /// Whether it serves the root path, whose TLS settings apply to the host.
    pub fn serves_root(&self) -> bool {
        self.path_prefixes.iter().any(|prefix| prefix == "/")
    }

    /// Checks for invalid combinations. Call [`Self::normalize`] first.
    ///
    /// # Errors
    /// The first mistake, in kamal-proxy's words.
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

/// How requests are sent to targets.
///
/// Many fields: one for each option of `deploy`, with kamal-proxy's names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetOptions {
    /// How the health of targets is checked.
    pub health_check_config: HealthCheckConfig,
    /// Timeout from sending the request to the response head (504 after that).
    pub response_timeout: GoDuration,
    /// Whether a request is buffered completely before it is forwarded.
    pub buffer_requests: bool,
    /// Whether a response is buffered completely before it is sent to the client.
    pub buffer_responses: bool,
    /// Bytes of a body that are buffered in memory.
    pub max_memory_buffer_size: u64,
    /// Maximum size of a request's body in bytes; 0 means the listener's limit.
    pub max_request_body_size: u64,
    /// Maximum size of a response's body in bytes; 0 means no limit.
    pub max_response_body_size: u64,
    /// Request fields to log.
    #[serde(deserialize_with = "null_is_empty")]
    pub log_request_headers: Vec<String>,
    /// Response fields to log.
    #[serde(deserialize_with = "null_is_empty")]
    pub log_response_headers: Vec<String>,
    /// Whether the client's X-Forwarded-* fields are forwarded.
    pub forward_headers: bool,
    /// Whether the path prefix is prepended to the paths of cookies.
    pub scope_cookie_paths: bool,
    /// Limit of requests under way at each target: a number or `auto`. sluice's addition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<InFlightLimit>,
    /// Requests that may wait for a target (503 beyond). sluice's addition.
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

/// The largest limit of requests under way.
const IN_FLIGHT_MAX: u32 = 1_000_000;

/// A limit of requests under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InFlightLimit {
    /// Calculated from measured latency.
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

/// Timeouts of a deploy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeploymentOptions {
    /// How long the targets may take to become healthy.
    pub deploy_timeout: GoDuration,
    /// How long running requests at the old targets may take to finish.
    pub drain_timeout: GoDuration,
    /// Whether the targets are used without a health check.
    pub force: bool,
}

impl Default for DeploymentOptions {
    fn default() -> Self {
        Self { deploy_timeout: DEPLOY_TIMEOUT, drain_timeout: DRAIN_TIMEOUT, force: false }
    }
}

/// A limit of at least 1.
fn some<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let count = u32::deserialize(deserializer)?;
    match count {
        1..=IN_FLIGHT_MAX => Ok(count),
        _ => Err(serde::de::Error::custom("not between 1 and 1000000")),
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
    fn omitted_hosts_and_paths_match_any() {
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
        // The cases of kamal-proxy's own tests.
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
