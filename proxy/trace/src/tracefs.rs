//! The file system that enables tracepoints: most systems mount it at boot, some never do.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

const PLACE: &str = "/sys/kernel/tracing";
const OTHER_PLACE: &str = "/sys/kernel/debug/tracing";

/// Mounted, for as long as this exists if it was not mounted before.
pub struct Tracefs {
    ours: bool,
}

impl Tracefs {
    /// Mounts it if it is not.
    ///
    /// # Errors
    /// When that is not allowed.
    pub fn mounted() -> Result<Self> {
        let ours = ![PLACE, OTHER_PLACE].iter().any(|place| Path::new(place).join("events").exists());
        if ours {
            must(Command::new("mount").args(["-t", "tracefs", "tracefs", PLACE]))?;
        }
        Ok(Self { ours })
    }
}

fn must(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{:?}", command.get_program()))?;
    ensure!(status.success(), "tracefs: {:?}: {status}", command.get_program());
    Ok(())
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        if self.ours
            && let Err(error) = must(Command::new("umount").arg(PLACE))
        {
            eprintln!("warning: {error:#}");
        }
    }
}
