//! A service as the data path sees it, and what becomes of a request: pure but for the health of readers.

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

/// The cookie that keeps a client that has written away from readers until the time in it, in milliseconds of Unix
/// time.
const WRITER_COOKIE: &str = "kamal-writer";

/// A service, ready for requests.
pub struct ServiceEntry {
    /// Its name.
    pub name: String,
    /// How it meets its clients.
    pub options: ServiceOptions,
    /// How its targets are spoken to.
    pub target_options: TargetOptions,
    /// What it has in the access log beside the rest.
    pub logged: LoggedFields,
    /// The targets that serve.
    pub active: Arc<Slot>,
    /// The targets of a rollout, and who goes to them.
    pub rollout: Option<(Arc<Slot>, Option<Rollout>)>,
    /// Its own error pages.
    pub pages: ServicePages,
    /// Whether requests are served.
    pub gate: Arc<Gate>,
}

/// What of a request decides.
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
    /// Whether the client speaks https, with sluice or with a trusted proxy in front.
    pub is_secure: bool,
    /// Whether it asks for a websocket.
    pub websocket: bool,
    /// Milliseconds of Unix time.
    pub unix_ms: u64,
    /// The process's monotonic clock, in milliseconds.
    pub now_ms: u64,
}

/// What becomes of a request.
pub enum Choice<'a> {
    /// It is sent elsewhere by 301.
    Redirect(String),
    /// It is a health check from in front, and all is well although requests are held.
    Well,
    /// It is held, at most for so long.
    Wait(Duration),
    /// It is turned away with this message.
    Stopped(String),
    /// It is forwarded.
    Forward(Forward<'a>),
}

/// Where a request is forwarded to.
pub struct Forward<'a> {
    /// The half of the rollout that it falls to.
    pub slot: &'a Arc<Slot>,
    /// The slot's writers or its readers.
    pub cluster: &'a Arc<Cluster>,
    /// The answer sets the cookie that keeps the client away from readers for so long.
    pub affinity: Option<Duration>,
}

impl ServiceEntry {
    /// A service with these slots. Reads its error pages.
    ///
    /// # Errors
    /// When those cannot be used.
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

    /// Whether requests for this path do not count in metrics.
    pub fn excludes(&self, path: &[u8]) -> bool {
        self.options.exclude_metrics_paths.iter().any(|excluded| excluded.as_bytes() == path)
    }

    /// What becomes of a request, in the order of kamal-proxy: redirect, pause and stop, targets.
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
        // Without a host there is nowhere to send it.
        let upgrades = wants_https && !request.is_secure && !host.is_empty();
        if !moves && !upgrades {
            return None;
        }
        let scheme = if request.is_secure || upgrades { "https" } else { "http" };
        // `*` is of no path in particular.
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

/// The Set-Cookie that keeps a client away from readers for `timeout`, as of `unix_ms`.
pub fn writer_cookie(unix_ms: u64, timeout: Duration) -> String {
    let until_ms = unix_ms.saturating_add(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
    // A second more, for the time in the value is the finer one.
    let expires = std::time::UNIX_EPOCH + Duration::from_millis(until_ms) + Duration::from_secs(1);
    format!("{WRITER_COOKIE}={until_ms}; Path=/; Expires={}; HttpOnly", httpdate::fmt_http_date(expires))
}

#[cfg(test)]
#[path = "entry_tests.rs"]
mod tests;
