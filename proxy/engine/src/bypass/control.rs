//! The control plane's handle to the eBPF programs: loaded at start, queried for counters, stopped before a drain.

use crate::AssistError;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sluice_config::{Address, Config, KernelAssists, Protocol, Switch};
use sluice_ebpf::Counter;
use sluice_kernel::probe;
use sluice_kernel::program::{Bypass, Limits, Marker, ProgramError, cgroup2};
use sluice_kernel::selftest::{self, Failure};
use sluice_net::listener::Bound;
use tokio::sync::Notify;

use super::BypassError;
use super::joiner::{Bounds, JoinerConfig};
use super::place::is_loopback;
use crate::direct;

/// Connections with a slot, which takes 1.3 KB of kernel memory. Responses to further connections are copied.
const SLOTS_MAX: u32 = 4096;

/// The loaded programs.
pub struct Control {
    bypass: Mutex<Bypass>,
    /// The counters after the self-test.
    tried: [u64; Counter::COUNT],
    stopped: Arc<AtomicBool>,
    bounds: Bounds,
    kernel: KernelAssists,
    /// Whether the program can add a line to a response's head.
    adds_lines: bool,
    /// One for each worker, to wake it.
    workers: Arc<Vec<Notify>>,
    /// Why direct return is not used although it was requested.
    pub direct_failure: Option<Failure>,
}

/// Loads the programs, tests them on sockets of sluice's own, and joins clients on this host with `listeners` if
/// configured. Takes about a quarter of a second, and requires privileges.
///
/// # Errors
/// Why it cannot be used; everything is cleaned up. If only direct return is unavailable, that is not an error but
/// recorded.
pub fn start(config: &Config, direct_return: bool, listeners: &[Vec<Bound>]) -> Result<Control, BypassError> {
    let began = Instant::now();
    let mut bypass = Bypass::load(limits(config, direct_return), &cgroup2()?)?;
    let mut marker = bypass.marker()?;
    let joins_clients = config.kernel.bypass_downstream == Switch::On;
    let mark_all = |bypass: &mut Bypass| {
        listeners.iter().flatten().try_for_each(|bound| mark(bypass, config.kernel, bound))
    };
    if !joins_clients {
        // Joins nothing. Clients that connect during the tests are recorded like all later ones.
        mark_all(&mut bypass)?;
    }
    selftest::run(&bypass, &mut marker)?;
    let direct_failure = selftest::run_direct(&bypass, &mut marker).err();
    if direct_failure.is_some() {
        bypass.give_up_slots();
    }
    let adds_lines = direct_failure.is_none() && can_add(&bypass, &mut marker);
    let mut kernel = config.kernel;
    if direct_failure.is_none()
        && bypass.slots().is_some()
        && kernel.direct_return_hold_ms > 0
        && let Err(reason) = can_hold(&bypass, &mut marker)
    {
        tracing::info!(%reason, "direct return cannot delay response heads until the body starts; direct_return_hold is ignored");
        kernel.direct_return_hold_ms = 0;
    }
    tracing::debug!(ms = began.elapsed().as_millis(), "bypass: loaded, self-test passed");
    if joins_clients {
        mark_all(&mut bypass)?;
    }
    bypass.mind_memory()?;
    bypass.discard_log();
    let mut tried = bypass.counters()?;
    // The pairs of the self-test are closed, or will be in a moment.
    tried[Counter::PairsClosed as usize] = tried[Counter::PairsJoined as usize];
    Ok(Control {
        bypass: Mutex::new(bypass),
        tried,
        stopped: Arc::default(),
        bounds: Bounds::of(config.kernel),
        kernel,
        adds_lines,
        workers: Arc::new((0..config.worker_count()).map(|_| Notify::new()).collect()),
        direct_failure,
    })
}

/// Whether the program can add a line to a response's head. Tried in any case, because a reload may require it.
fn can_add(bypass: &Bypass, marker: &mut Marker) -> bool {
    match selftest::run_adding(bypass, marker) {
        Ok(()) => true,
        Err(reason) => {
            tracing::warn!(%reason, "direct return cannot add X-Request-Id; it is only used with response_request_id: false");
            false
        }
    }
}

/// Whether the kernel can hold a response's head until its body begins; if not, why.
fn can_hold(bypass: &Bypass, marker: &mut Marker) -> Result<(), AssistError> {
    // Older kernels may access the page of a message that has none, depending on their build options.
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if probe::version(&release).is_none_or(|version| version < (6, 5)) {
        return Err(format!("Linux {} is older than 6.5", release.trim()).into());
    }
    selftest::run_holding(bypass, marker).map_err(|failure| failure.to_string().into())
}

/// Enables joining or direct return for a listener's clients.
fn mark(bypass: &mut Bypass, kernel: KernelAssists, bound: &Bound) -> Result<(), ProgramError> {
    let listener = &bound.listening.current().config;
    let socket = bound.socket.as_fd();
    match &listener.address {
        Address::Ip(_) if kernel.bypass_downstream == Switch::On => {
            // Responses to joined clients bypass TCP, which direct return would not do.
            bypass.serve_clients(socket)
        }
        Address::Ip(_) if bypass.slots().is_some() && listener.protocol == Protocol::Http => {
            bypass.return_to_clients(socket)
        }
        _ => Ok(()),
    }
}

fn limits(config: &Config, direct_return: bool) -> Limits {
    let KernelAssists {
        bypass_budget_bytes,
        bypass_budget_messages,
        bypass_connections_max,
        direct_return_clients_max,
        ..
    } = config.kernel;
    let endpoints = config.clusters.values().flat_map(|cluster| &cluster.endpoints);
    let are_found = config.clusters.values().any(|cluster| cluster.discover.is_some());
    Limits {
        budget_bytes: bypass_budget_bytes,
        budget_messages: bypass_budget_messages,
        ends_max: bypass_connections_max.saturating_mul(2),
        any_namespace: are_found || !endpoints.into_iter().all(|endpoint| is_loopback(&endpoint.address)),
        clients: config.kernel.bypass_downstream == Switch::On,
        slots_max: if direct_return { bypass_connections_max.min(SLOTS_MAX) } else { 0 },
        direct_clients_max: if direct_return { direct_return_clients_max } else { 1 },
    }
}

impl Control {
    /// The parameters with which one worker joins connections.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn seat(&self) -> Result<JoinerConfig, AssistError> {
        let marker = self.lock().marker().map_err(|error| error.to_string())?;
        let slots = self.lock().slots().cloned();
        Ok(JoinerConfig { marker, stopped: Arc::clone(&self.stopped), bounds: self.bounds, slots })
    }

    /// The parameters of one worker's direct return, if it is used.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn direct_seat(&self, index: usize) -> Result<Option<direct::DirectConfig>, AssistError> {
        let bypass = self.lock();
        if bypass.slots().is_none() {
            return Ok(None);
        }
        let marker = bypass.marker().map_err(|error| error.to_string())?;
        let (workers, kernel, adds_lines) = (Arc::clone(&self.workers), self.kernel, self.adds_lines);
        Ok(Some(direct::DirectConfig { marker, workers, index, kernel, adds_lines }))
    }

    /// Enables joining or direct return for the clients of another listener. If that fails, their responses are copied,
    /// and a warning is logged.
    pub fn serve(&self, bound: &Bound) {
        if let Err(error) = mark(&mut self.lock(), self.kernel, bound) {
            let listener = &bound.listening.current().config.name;
            tracing::warn!(listener, %error, "cannot join clients of a new listener");
        }
    }

    /// Stops joining; joined connections end as usual. The first step of a drain.
    pub fn stop(&self) {
        self.stopped.store(true, Relaxed);
        if let Err(error) = self.lock().stop_joining() {
            tracing::warn!(%error, "cannot stop joining in the kernel; no more connections will be marked");
        }
    }

    /// What the programs have counted since the start; `None` if they cannot be read.
    pub fn counters(&self) -> Option<[u64; Counter::COUNT]> {
        let mut counts = self.lock().counters().ok()?;
        for (count, tried) in counts.iter_mut().zip(self.tried) {
            *count = count.saturating_sub(tried);
        }
        Some(counts)
    }

    /// Forwards the log of the programs, if there is one, until it is dropped.
    pub async fn log(&self) {
        let records = self.lock().take_log();
        let Some(records) = records else {
            return;
        };
        if let Err(error) = records.forward().await {
            tracing::warn!(%error, "the log of the eBPF programs has ended");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Bypass> {
        self.bypass.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
