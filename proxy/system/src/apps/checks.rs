//! What every server must do behind sluice. Each function is one check, with its path given.

use std::fs;
use std::path::Path;
use std::sync::Barrier;
use std::thread;

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::Check;
use super::curl::{curl, fetch, sha256, wrk};
use super::rig::Rig;
use super::wire::Wire;

const PARALLEL: usize = 100;
/// Peak resident memory of sluice after large transfers: bodies must stream.
const PEAK_KIB_MAX: u64 = 64 * 1024;

/// What every server must do.
pub(super) const CHECKS: &[Check] = &[
    ("get", get),
    ("head", head),
    ("not_found", not_found),
    ("keep_alive", keep_alive),
    ("parallel", parallel),
];

/// A GET answers 200 with the app's line.
fn get(rig: &Rig) -> Result<String> {
    answers(rig, rig.app.path, rig.app.hello)
}

/// A path answers 200 with `body`.
pub(super) fn answers(rig: &Rig, path: &str, body: &str) -> Result<String> {
    let answer = curl(rig, &[], &[path])?;
    ensure!(answer.status == 200, "status {}", answer.status);
    ensure!(answer.text.trim() == body, "body {:?}", answer.text);
    Ok(String::new())
}

/// A HEAD answers 200 with a length and no body.
fn head(rig: &Rig) -> Result<String> {
    let answer = curl(rig, &["--head"], &[rig.app.path])?;
    ensure!(answer.status == 200, "status {}", answer.status);
    ensure!(answer.size == 0, "{} bytes of body", answer.size);
    let lower = answer.text.to_ascii_lowercase();
    ensure!(lower.contains("\ncontent-length: "), "no length: {lower}");
    Ok(String::new())
}

/// Two requests go over one connection.
fn keep_alive(rig: &Rig) -> Result<String> {
    let answer = curl(rig, &[], &[rig.app.path, rig.app.path])?;
    ensure!(answer.status == 200, "status {}", answer.status);
    ensure!(answer.connects == [1, 0], "connections made: {:?}", answer.connects);
    Ok(String::new())
}

/// An unknown path is the origin's own 404.
fn not_found(rig: &Rig) -> Result<String> {
    let answer = curl(rig, &[], &["/no-such-path"])?;
    ensure!(answer.status == 404, "status {}", answer.status);
    Ok(String::new())
}

/// Bytes that the origin makes arrive whole; the same bytes sent up give the same hash there.
pub(super) fn bytes_both_ways(rig: &Rig, count: u64) -> Result<String> {
    let (sent, got) = (rig.place.folder.join("sent.bin"), rig.place.folder.join("got.bin"));
    let path = format!("/bytes?n={count}");
    fetch(&rig.direct_url(&path), &sent).context("directly from the origin")?;
    let sum = sha256(&sent)?;

    let answer = curl(rig, &["--output", &got.display().to_string()], &[&path])?;
    ensure!(answer.status == 200, "download: status {}", answer.status);
    ensure!(answer.size == count, "download: {} of {count} bytes", answer.size);
    ensure!(sha256(&got)? == sum, "download: bytes differ");
    upload(rig, &sent, &sum, &[]).context("upload")?;
    let chunked = ["--header", "Transfer-Encoding: chunked"];
    upload(rig, &sent, &sum, &chunked).context("chunked upload")?;

    for file in [sent, got] {
        fs::remove_file(&file).with_context(|| file.display().to_string())?;
    }
    let peak = rig.sluice.peak_kib()?;
    ensure!(peak < PEAK_KIB_MAX, "sluice's memory peaked at {peak} KiB");
    Ok(format!("{count} bytes each way, sluice's peak {peak} KiB"))
}

fn upload(rig: &Rig, file: &Path, sum: &str, args: &[&str]) -> Result<()> {
    let file = file.display().to_string();
    let args = [args, &["--request", "POST", "--upload-file", &file]].concat();
    let answer = curl(rig, &args, &["/upload"])?;
    ensure!(answer.status == 200, "status {}: {}", answer.status, answer.text);
    ensure!(answer.text.trim() == sum, "hash {}", answer.text.trim());
    Ok(())
}

/// A hundred clients at once all get the body.
fn parallel(rig: &Rig) -> Result<String> {
    let together = Barrier::new(PARALLEL);
    let one = || -> Result<()> {
        let wire = Wire::connect(rig);
        together.wait();
        let mut wire = wire?;
        wire.ask(rig, "GET", &rig.target(rig.app.path), "Connection: close\r\n")?;
        let answer = wire.rest()?;
        let answer = String::from_utf8_lossy(&answer);
        let right = answer.starts_with("HTTP/1.1 200 ") && answer.trim_end().ends_with(rig.app.hello);
        ensure!(right, "answer {answer:?}");
        Ok(())
    };
    let failures: Vec<anyhow::Error> = thread::scope(|scope| {
        let clients: Vec<_> = (0..PARALLEL).map(|_| scope.spawn(one)).collect();
        clients
            .into_iter()
            .filter_map(|client| match client.join() {
                Ok(done) => done.err(),
                Err(_) => Some(anyhow!("panicked")),
            })
            .collect()
    });
    match failures.first() {
        None => Ok(String::new()),
        Some(first) => bail!("{} of {PARALLEL} failed, the first: {first:#}", failures.len()),
    }
}

/// wrk sees nothing but 2xx and no socket error.
pub(super) fn load(rig: &Rig, path: &str) -> Result<String> {
    let report = wrk(rig, path)?;
    judge_report(&report).with_context(|| report.clone())
}

fn judge_report(report: &str) -> Result<String> {
    // wrk prints these lines only if there is something to say.
    for line in ["Non-2xx or 3xx responses", "Socket errors"] {
        ensure!(!report.contains(line), "{line}");
    }
    let rate = report
        .lines()
        .find_map(|line| line.trim().strip_prefix("Requests/sec:"))
        .context("no request rate")?
        .trim();
    ensure!(rate.parse::<f64>().is_ok_and(|rate| rate > 0.0), "no requests");
    Ok(format!("{rate} requests/s"))
}

/// With no exchange under way, SIGTERM ends sluice at once and with success.
pub(super) fn stops_on_sigterm(rig: &mut Rig) -> Result<String> {
    let status = rig.sluice.stop()?;
    ensure!(status.success(), "{status}\n{}", rig.sluice.tail());
    Ok(String::new())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_report_with_errors_or_nothing_fails() {
        let good = "  100 requests in 2.00s\nRequests/sec:  50.00\nTransfer/sec: 1KB\n";
        assert_eq!(judge_report(good).unwrap(), "50.00 requests/s");
        for bad in ["  Socket errors: connect 0, read 1", "  Non-2xx or 3xx responses: 4"] {
            assert!(judge_report(&format!("{bad}\n{good}")).is_err());
        }
        assert!(judge_report("Requests/sec:      0.00\n").is_err());
    }
}
