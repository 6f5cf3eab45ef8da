//! The command that changes DNS records: run as `COMMAND ARGUMENTS present|cleanup RECORD VALUE`, as lego runs its own.

use crate::acme::AcmeError;
use std::process::{Output, Stdio};
use std::time::Duration;

use sluice_config::DnsHook;
use tokio::process::Command;
use tokio::time::timeout;

/// Characters of what it has said that are shown.
const SAID_MAX: usize = 500;

/// Runs it to its end.
///
/// # Errors
/// That it could not start, took too long, or ended with another code than 0; with what it said.
pub(super) async fn run(hook: &DnsHook, verb: &str, record: &str, value: &str) -> Result<(), AcmeError> {
    let shown = hook.command.display();
    let mut command = Command::new(&hook.command);
    command.args(&hook.arguments).args([verb, record, value]);
    // Nobody waits for one that is given up.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let child = command.spawn().map_err(|error| format!("{shown}: {error}"))?;
    let ended = timeout(Duration::from_millis(hook.timeout_ms), child.wait_with_output()).await;
    match ended {
        Err(_) => Err(format!("{shown} {verb} has not ended within {} ms", hook.timeout_ms).into()),
        Ok(Err(error)) => Err(format!("{shown} {verb}: {error}").into()),
        Ok(Ok(Output { status, .. })) if status.success() => Ok(()),
        Ok(Ok(Output { status, stderr, .. })) => {
            let said: String = String::from_utf8_lossy(&stderr).chars().take(SAID_MAX).collect();
            Err(format!("{shown} {verb} ended with {status}: {}", said.replace(char::is_control, " ").trim())
                .into())
        }
    }
}
