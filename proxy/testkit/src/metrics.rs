//! Metrics of a running sluice: `/metrics` of its admin listener, read and summed.

use std::net::SocketAddr;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use crate::process::bound;

const TIME_MAX_S: &str = "20";

/// The whole text of `/metrics`.
///
/// # Errors
/// curl cannot fetch it.
pub fn read(admin: SocketAddr) -> Result<String> {
    let mut command = bound("curl");
    command.args(["--silent", "--show-error", "--fail", "--noproxy", "*", "--max-time", TIME_MAX_S]);
    let output = command
        .arg(format!("http://{admin}/metrics"))
        .stdin(Stdio::null())
        .output()
        .context("curl of /metrics")?;
    ensure!(output.status.success(), "/metrics: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The sum of all series of a counter.
pub fn sum(metrics: &str, name: &str) -> u64 {
    let of_name = |line: &&str| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{') || rest.starts_with(' '))
    };
    let value = |line: &str| line.rsplit(' ').next()?.parse::<f64>().ok();
    metrics.lines().filter(of_name).filter_map(value).sum::<f64>() as u64
}

/// Pairs of sockets that were joined without loopback TCP.
///
/// # Errors
/// `/metrics` cannot be fetched.
pub fn pairs_joined(admin: SocketAddr) -> Result<u64> {
    Ok(sum(&read(admin)?, "sluice_bypass_pairs_joined_total"))
}

/// Number of responses returned directly to the client.
///
/// # Errors
/// `/metrics` cannot be fetched.
pub fn direct_returns(admin: SocketAddr) -> Result<u64> {
    Ok(sum(&read(admin)?, "sluice_direct_return_exchanges_total"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_includes_every_series_of_the_counter_only() {
        let text = "# TYPE a_total counter\na_total{x=\"1\"} 2\na_total{x=\"2\"} 3\na_total_more 7\nb 1\n";
        assert_eq!(sum(text, "a_total"), 5);
        assert_eq!(sum("a_total 4\n", "a_total"), 4);
    }
}
