//! `deploy`: all flags of kamal-proxy, and the checks that involve several of them.

use crate::usage::UsageError;
use clap::Args;
use sluice_core::service::api::DeployRequest;
use sluice_core::service::duration::GoDuration;
use sluice_core::service::options::{
    ACME_STAGING, DeploymentOptions, HealthCheckConfig, InFlightLimit, ServiceOptions, TargetOptions,
};

use super::go::{List, boolean, flatten, integer};
use super::one_service;
use crate::cli::ControlArgs;

/// Arguments of `deploy`.
///
/// Many fields: one for each option of the command line.
#[derive(Clone, Debug, Args)]
#[command(args_override_self = true)]
pub(crate) struct DeployArgs {
    /// The name of the service
    #[arg(value_name = "SERVICE")]
    service: Vec<String>,
    #[command(flatten)]
    pub(super) control: ControlArgs,
    /// Targets that receive all requests, host:port
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    target: Vec<List>,
    /// Targets that receive only reads, host:port
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    read_target: Vec<List>,
    /// Hosts to serve, exact or *.example.com [default: any]
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    host: Vec<List>,
    /// Path prefixes to serve [default: /]
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    path_prefix: Vec<List>,
    /// Remove the path prefix before forwarding
    #[arg(long, value_name = "BOOL", value_parser = boolean, default_value = "true")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    strip_path_prefix: bool,
    /// Redirect requests for other hosts to this one
    #[arg(long, value_name = "HOST", allow_hyphen_values = true, default_value = "")]
    canonical_host: String,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    timing: TimingArgs,
    #[command(flatten)]
    check: CheckArgs,
    /// Deploy without checking the health of the targets
    #[arg(long, value_name = "BOOL", value_parser = boolean, default_value = "false")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    force: bool,
    /// How long a client's reads go to the main targets after it writes
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, default_value = "1s")]
    writer_affinity_timeout: GoDuration,
    /// Allow websockets on read targets
    #[arg(long, value_name = "BOOL", value_parser = boolean, default_value = "false")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    read_target_websockets: bool,
    /// Time limit for the response head, once the request is sent
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, default_value = "30s")]
    target_timeout: GoDuration,
    #[command(flatten)]
    buffer: BufferArgs,
    #[command(flatten)]
    fields: FieldArgs,
    /// A folder with error pages, such as 503.html
    #[arg(long, value_name = "FOLDER", allow_hyphen_values = true, default_value = "")]
    error_pages: String,
    /// Maximum concurrent requests per target; excess requests queue: a number or auto [default: unlimited]
    #[arg(long, value_name = "N|auto", allow_hyphen_values = true)]
    max_in_flight: Option<InFlightLimit>,
    /// Maximum requests that wait for a target [default: 1000]
    #[arg(long, value_name = "N", value_parser = integer::<u32>, allow_hyphen_values = true)]
    queue_size: Option<u32>,
}

#[derive(Clone, Debug, Args)]
struct TimingArgs {
    /// Time limit until the targets are healthy
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, default_value = "30s")]
    deploy_timeout: GoDuration,
    /// Time limit for draining the old targets
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, default_value = "30s")]
    drain_timeout: GoDuration,
}

#[derive(Clone, Debug, Args)]
struct CheckArgs {
    /// Interval between health checks
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, default_value = "1s")]
    health_check_interval: GoDuration,
    /// Time limit of a health check
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, default_value = "5s")]
    health_check_timeout: GoDuration,
    /// Path of health checks
    #[arg(long, value_name = "PATH", allow_hyphen_values = true, default_value = "/up")]
    health_check_path: String,
    /// Port of health checks [default: the target's]
    #[arg(long, value_name = "PORT", value_parser = integer::<u16>, allow_hyphen_values = true, default_value = "0")]
    health_check_port: u16,
    /// Host field of health checks [default: the target's]
    #[arg(long, value_name = "HOST", allow_hyphen_values = true, default_value = "")]
    health_check_host: String,
}

#[derive(Clone, Debug, Args)]
struct TlsArgs {
    /// Serve the hosts over HTTPS, with certificates from Let's Encrypt unless others are given
    #[arg(long, value_name = "BOOL", value_parser = boolean, default_value = "false")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    tls: bool,
    /// Get certificates from Let's Encrypt's staging environment
    #[arg(long, value_name = "BOOL", value_parser = boolean, default_value = "false")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    tls_staging: bool,
    /// Get certificates from the ACME authority with this directory URL
    #[arg(long, value_name = "URL", allow_hyphen_values = true, conflicts_with = "tls_staging")]
    tls_acme_directory: Option<String>,
    /// Your own certificate, PEM
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    tls_certificate_path: Option<String>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    tls_private_key_path: Option<String>,
    /// Accepted but ignored: certificates are stored next to the state of services
    #[arg(long, value_name = "FOLDER", allow_hyphen_values = true, default_value = "")]
    tls_acme_cache_path: String,
    /// URL that approves on-demand certificates (GET with ?host=NAME): a path of the service, or
    /// http://host:port/path
    #[arg(long, value_name = "URL", allow_hyphen_values = true, default_value = "")]
    tls_on_demand_url: String,
    /// Redirect plain HTTP to HTTPS
    #[arg(long, value_name = "BOOL", value_parser = boolean, default_value = "true")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    tls_redirect: bool,
}

#[derive(Clone, Debug, Args)]
struct BufferArgs {
    /// Receive requests completely before forwarding them
    #[arg(long, value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    buffer_requests: Option<bool>,
    /// Receive responses completely before forwarding them
    #[arg(long, value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    buffer_responses: Option<bool>,
    /// Bytes of a buffered message that are kept in memory
    #[arg(long, value_name = "BYTES", value_parser = integer::<u64>, allow_hyphen_values = true)]
    #[arg(default_value = "1048576")]
    buffer_memory: u64,
    /// Maximum bytes of a buffered request [default: unlimited]
    #[arg(long, value_name = "BYTES", value_parser = integer::<u64>, allow_hyphen_values = true)]
    max_request_body: Option<u64>,
    /// Maximum bytes of a buffered response [default: unlimited]
    #[arg(long, value_name = "BYTES", value_parser = integer::<u64>, allow_hyphen_values = true)]
    max_response_body: Option<u64>,
}

#[derive(Clone, Debug, Args)]
struct FieldArgs {
    /// Request fields to log
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    log_request_header: Vec<List>,
    /// Response fields to log
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    log_response_header: Vec<List>,
    /// Paths to exclude from metrics
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    exclude_metrics_path: Vec<List>,
    /// Keep the client's X-Forwarded-* fields [default: true, with --tls false]
    #[arg(long, value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    forward_headers: Option<bool>,
    /// Header with the client's IP address, set by a proxy in front of sluice
    #[arg(long, value_name = "FIELD", allow_hyphen_values = true, default_value = "")]
    client_ip_header: String,
    /// Prepend the path prefix to the paths of cookies
    #[arg(long, value_name = "BOOL", value_parser = boolean, default_value = "false")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    scope_cookie_paths: bool,
}

impl DeployArgs {
    /// The service and the request. Checks run in the order of kamal-proxy, so that the same error is reported first.
    pub(crate) fn request(&self) -> Result<(&str, DeployRequest), UsageError> {
        let service = one_service(&self.service)?;
        let options = self.options();
        if self.buffer.max_request_body.is_some() && self.buffer.buffer_requests.is_none() {
            return Err("max-request-body can only be set when request buffering is enabled"
                .to_owned()
                .into());
        }
        if self.buffer.max_response_body.is_some() && self.buffer.buffer_responses.is_none() {
            return Err("max-response-body can only be set when response buffering is enabled"
                .to_owned()
                .into());
        }
        options.validate().map_err(|error| error.to_string())?;
        if self.target.is_empty() {
            return Err("required flag(s) \"target\" not set".into());
        }
        self.tls.together()?;
        let deployment_options = DeploymentOptions {
            deploy_timeout: self.timing.deploy_timeout,
            drain_timeout: self.timing.drain_timeout,
            force: self.force,
        };
        let request = DeployRequest {
            targets: flatten(&self.target),
            read_targets: flatten(&self.read_target),
            deployment_options,
            options,
            target_options: self.target_options(),
        };
        Ok((service, request))
    }

    fn options(&self) -> ServiceOptions {
        let mut options = ServiceOptions {
            hosts: flatten(&self.host),
            path_prefixes: flatten(&self.path_prefix),
            canonical_host: self.canonical_host.clone(),
            error_page_path: self.error_pages.clone(),
            strip_prefix: self.strip_path_prefix,
            writer_affinity_timeout: self.writer_affinity_timeout,
            read_targets_accept_websockets: self.read_target_websockets,
            exclude_metrics_paths: flatten(&self.fields.exclude_metrics_path),
            client_ip_header: self.fields.client_ip_header.clone(),
            ..self.tls.options()
        };
        options.normalize();
        options
    }

    fn target_options(&self) -> TargetOptions {
        let CheckArgs { health_check_interval: interval, health_check_timeout: timeout, .. } = self.check;
        let path = self.check.health_check_path.clone();
        let (port, host) = (self.check.health_check_port, self.check.health_check_host.clone());
        TargetOptions {
            health_check_config: HealthCheckConfig { path, port, interval, timeout, host },
            response_timeout: self.target_timeout,
            buffer_requests: self.buffer.buffer_requests.unwrap_or(false),
            buffer_responses: self.buffer.buffer_responses.unwrap_or(false),
            max_memory_buffer_size: self.buffer.buffer_memory,
            max_request_body_size: self.buffer.max_request_body.unwrap_or(0),
            max_response_body_size: self.buffer.max_response_body.unwrap_or(0),
            log_request_headers: flatten(&self.fields.log_request_header),
            log_response_headers: flatten(&self.fields.log_response_header),
            forward_headers: self.fields.forward_headers.unwrap_or(!self.tls.tls),
            scope_cookie_paths: self.fields.scope_cookie_paths,
            max_in_flight: self.max_in_flight,
            queue_size: self.queue_size,
        }
    }
}

impl TlsArgs {
    fn options(&self) -> ServiceOptions {
        ServiceOptions {
            tls_enabled: self.tls,
            tls_certificate_path: self.tls_certificate_path.clone().unwrap_or_default(),
            tls_private_key_path: self.tls_private_key_path.clone().unwrap_or_default(),
            tls_redirect: self.tls_redirect,
            acme_directory: self.directory(),
            acme_cache_path: self.tls_acme_cache_path.clone(),
            tls_on_demand_url: self.tls_on_demand_url.clone(),
            ..ServiceOptions::default()
        }
    }

    fn directory(&self) -> String {
        let staging = || self.tls_staging.then(|| ACME_STAGING.to_owned());
        self.tls_acme_directory.clone().or_else(staging).unwrap_or_default()
    }

    fn together(&self) -> Result<(), UsageError> {
        let missing = match (&self.tls_certificate_path, &self.tls_private_key_path) {
            (Some(_), None) => "tls-private-key-path",
            (None, Some(_)) => "tls-certificate-path",
            _ => return Ok(()),
        };
        Err(format!(
            "if any flags in the group [tls-certificate-path tls-private-key-path] are set they must all be set; \
             missing [{missing}]"
        ).into())
    }
}
