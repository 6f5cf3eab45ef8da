//! A service as seen by the data path, and its decision for a request: pure except for the health of readers.

use std::sync::Arc;
use std::time::Duration;

use super::cookies::cookie;
use super::error::ServiceError;
use super::logged::LoggedFields;
use super::model::{PauseState, Service};
use super::options::{ServiceOptions, TargetOptions};
use super::pages::ServicePages;
use super::rollout::{COOKIE, Rollout};
use super::slot::{Gate, Slot};
use crate::cluster::Cluster;

/// The cookie that keeps a client off the readers after a write, until the time in the cookie, in milliseconds of Unix
/// time.
const WRITER_COOKIE: &str = "kamal-writer";

/// A service, ready for requests.
pub struct ServiceEntry {
    /// Its name.
    pub name: String,
    /// How it handles clients.
    pub options: ServiceOptions,
    /// How requests are sent to its targets.
    pub target_options: TargetOptions,
    /// The additional fields in its access log.
    pub logged: LoggedFields,
    /// The active targets.
    pub active: Arc<Slot>,
    /// The targets of a rollout, and which clients use them.
    pub rollout: Option<(Arc<Slot>, Option<Rollout>)>,
    /// Its error pages.
    pub pages: ServicePages,
    /// Whether requests are served.
    pub gate: Arc<Gate>,
}

/// The parts of a request that the decision depends on.
pub struct RequestView<'a> {
    /// The method as received.
    pub method: &'a [u8],
    /// Host name without port.
    pub host: &'a [u8],
    /// The path without the query.
    pub path: &'a [u8],
    /// Path and query as sent.
    pub target: &'a [u8],
    /// The values of its Cookie fields.
    pub cookies: &'a [&'a [u8]],
    /// Whether the client uses https, to sluice or to a trusted proxy in front.
    pub is_secure: bool,
    /// Whether it requests a WebSocket upgrade.
    pub websocket: bool,
    /// Milliseconds of Unix time.
    pub unix_ms: u64,
    /// The process's monotonic clock, in milliseconds.
    pub now_ms: u64,
}

/// The decision for a request.
pub enum Choice<'a> {
    /// Redirect with 301.
    Redirect(String),
    /// It is a health check of a load balancer in front: respond with 200 although requests are paused or stopped.
    Well,
    /// Wait, at most this long.
    Wait(Duration),
    /// Reject with this message.
    Stopped(String),
    /// Forward.
    Forward(Forward<'a>),
}

/// Where a request is forwarded to.
pub struct Forward<'a> {
    /// The active slot or the rollout's.
    pub slot: &'a Arc<Slot>,
    /// The slot's writers or its readers.
    pub cluster: &'a Arc<Cluster>,
    /// If set, the response sets the cookie that keeps the client off the readers for this long.
    pub affinity: Option<Duration>,
}

impl ServiceEntry {
    /// A service with these slots. Reads its error pages.
    ///
    /// # Errors
    /// When the error pages cannot be used.
    pub fn new(
        service: &Service,
        active: Arc<Slot>,
        rollout: Option<Arc<Slot>>,
        gate: Arc<Gate>,
    ) -> Result<Self, ServiceError> {
        Ok(Self {
            pages: ServicePages::load(&service.options.error_page_path)?,
            name: service.name.clone(),
            options: service.options.clone(),
            target_options: service.target_options.clone(),
            logged: LoggedFields::new(&service.target_options),
            active,
            rollout: rollout.map(|slot| (slot, service.rollout_controller.clone())),
            gate,
        })
    }

    /// Whether requests for this path are excluded from metrics.
    pub fn excludes(&self, path: &[u8]) -> bool {
        self.options.exclude_metrics_paths.iter().any(|excluded| excluded.as_bytes() == path)
    }

    /// Decides on a request, in the order of kamal-proxy: redirect, pause and stop, targets.
    pub fn choose(&self, request: &RequestView<'_>) -> Choice<'_> {
        if let Some(location) = self.redirect(request) {
            return Choice::Redirect(location);
        }
        let pause = self.gate.now();
        if pause.state != PauseState::Running && self.is_health_check(request) {
            return Choice::Well;
        }
        match pause.state {
            PauseState::Paused => Choice::Wait(pause.fail_after.to_std()),
            PauseState::Stopped => Choice::Stopped(pause.stop_message),
            PauseState::Running => Choice::Forward(self.forward(request)),
        }
    }

    fn redirect(&self, request: &RequestView<'_>) -> Option<String> {
        let canonical = self.options.canonical_host.as_bytes();
        let moves = !canonical.is_empty() && !request.host.eq_ignore_ascii_case(canonical);
        let host = if moves { canonical } else { request.host };
        let wants_https = self.options.tls_enabled && self.options.tls_redirect;
        // Without a host there is no redirect target.
        let upgrades = wants_https && !request.is_secure && !host.is_empty();
        if !moves && !upgrades {
            return None;
        }
        let scheme = if request.is_secure || upgrades { "https" } else { "http" };
        // `*` has no path.
        let target = if request.target.starts_with(b"/") { request.target } else { b"/" };
        Some(format!("{scheme}://{}{}", String::from_utf8_lossy(host), String::from_utf8_lossy(target)))
    }

    fn is_health_check(&self, request: &RequestView<'_>) -> bool {
        matches!(request.method, b"GET" | b"HEAD")
            && request.path == self.target_options.health_check_config.path.as_bytes()
    }

    fn forward(&self, request: &RequestView<'_>) -> Forward<'_> {
        let slot = self.slot(request);
        let Some(readers) = &slot.readers else {
            return Forward { slot, cluster: &slot.writers, affinity: None };
        };
        let reads = matches!(request.method, b"GET" | b"HEAD")
            && (self.options.read_targets_accept_websockets || !request.websocket);
        let usable = || readers.endpoints().iter().any(|one| one.is_usable(request.now_ms));
        let cluster = if reads && !has_written(request) && usable() { readers } else { &slot.writers };
        let timeout = self.options.writer_affinity_timeout.to_std();
        let affinity = (!reads && !timeout.is_zero()).then_some(timeout);
        Forward { slot, cluster, affinity }
    }

    fn slot(&self, request: &RequestView<'_>) -> &Arc<Slot> {
        match &self.rollout {
            Some((slot, Some(rollout)))
                if cookie(request.cookies.iter().copied(), COOKIE.as_bytes())
                    .is_some_and(|value| rollout.includes(value)) =>
            {
                slot
            }
            _ => &self.active,
        }
    }
}

fn has_written(request: &RequestView<'_>) -> bool {
    let value = cookie(request.cookies.iter().copied(), WRITER_COOKIE.as_bytes());
    let until = value.and_then(|value| std::str::from_utf8(value).ok()?.parse::<i64>().ok());
    until.is_some_and(|until| u64::try_from(until).is_ok_and(|until| request.unix_ms < until))
}

/// The Set-Cookie that keeps a client off the readers for `timeout`, starting at `unix_ms`.
pub fn writer_cookie(unix_ms: u64, timeout: Duration) -> String {
    let until_ms = unix_ms.saturating_add(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
    // A second more, because the time in the value is more precise.
    let expires = std::time::UNIX_EPOCH + Duration::from_millis(until_ms) + Duration::from_secs(1);
    format!("{WRITER_COOKIE}={until_ms}; Path=/; Expires={}; HttpOnly", httpdate::fmt_http_date(expires))
}

#[cfg(test)]
#[path = "entry_tests.rs"]
mod tests;
