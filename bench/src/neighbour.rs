//! Programs outside a measurement that compute all the time.

use std::process::{Child, Stdio};

use anyhow::{Context, Result};

use super::machine::cpus;
use super::server::session;

/// A busy loop on one core; ended when dropped.
pub(super) struct Neighbour(Child);

impl Neighbour {
    /// One loop per core, each in its own session like another service.
    ///
    /// # Errors
    /// taskset or a shell is missing.
    pub(super) fn on_each_core() -> Result<Vec<Self>> {
        (0..cpus()).map(Self::on).collect()
    }

    fn on(core: usize) -> Result<Self> {
        let mut command = session("taskset");
        command.args(["-c", &core.to_string(), "sh", "-c", "while :; do :; done"]).stdin(Stdio::null());
        Ok(Self(command.spawn().context("taskset")?))
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
