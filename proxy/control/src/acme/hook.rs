//! The command that changes DNS records, run as `COMMAND ARGUMENTS present|cleanup RECORD VALUE`, like lego's hooks.

use crate::acme::AcmeError;
use std::process::{Output, Stdio};
use std::time::Duration;

use sluice_config::DnsHook;
use tokio::process::Command;
use tokio::time::timeout;

/// Maximum characters of its output that are shown.
const SAID_MAX: usize = 500;

/// Runs it to completion.
///
/// # Errors
/// When it cannot start, takes too long, or exits with a code other than 0; with its output.
pub(super) async fn run(hook: &DnsHook, verb: &str, record: &str, value: &str) -> Result<(), AcmeError> {
    let shown = hook.command.display();
    let mut command = Command::new(&hook.command);
    command.args(&hook.arguments).args([verb, record, value]);
    // Kills the process when the future is dropped.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let child = command.spawn().map_err(|error| format!("{shown}: {error}"))?;
    let ended = timeout(Duration::from_millis(hook.timeout_ms), child.wait_with_output()).await;
    match ended {
        Err(_) => Err(format!("{shown} {verb} did not finish within {} ms", hook.timeout_ms).into()),
        Ok(Err(error)) => Err(format!("{shown} {verb}: {error}").into()),
        Ok(Ok(Output { status, .. })) if status.success() => Ok(()),
        Ok(Ok(Output { status, stderr, .. })) => {
            let said: String = String::from_utf8_lossy(&stderr).chars().take(SAID_MAX).collect();
            Err(format!(
                "{shown} {verb} failed with {status}: {}",
                said.replace(char::is_control, " ").trim()
            )
            .into())
        }
    }
}
