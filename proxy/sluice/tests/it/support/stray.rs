//! A process that has taken over from the proxy.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Proxy;

/// A process that is not our child, killed when dropped.
pub(crate) struct Stray(pub(crate) i32);

impl Drop for Stray {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0), Signal::SIGKILL);
    }
}

/// Upgrades to another process.
pub(crate) fn upgrade(proxy: &Proxy) -> Stray {
    upgrade_with(proxy, &[])
}

pub(crate) fn upgrade_with(proxy: &Proxy, arguments: &[&str]) -> Stray {
    let (code, said) = proxy.command("upgrade", arguments);
    assert_eq!(code, Some(0), "{said}");
    let pid = said.strip_prefix("process ").and_then(|rest| rest.strip_suffix(" has taken over\n"));
    Stray(pid.unwrap_or_else(|| panic!("{said}")).parse().unwrap())
}
