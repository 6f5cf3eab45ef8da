//! Additional checks for joined connections: that they were joined, and that responses do not differ.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sluice_testkit::metrics;

use super::Check;
use super::rig::Rig;
use super::wire::{Reply, Wire};

/// Run after the checks of the app, so that they see their effects.
pub(super) const CHECKS: &[Check] = &[("same_answers", same_answers), ("joined", joined)];

/// Fields that differ between responses.
const CHANGING: &[&str] = &["date: ", "x-request-id: ", "x-runtime: "];

/// Why this binary cannot join connections on this host, if so.
///
/// # Errors
/// When it cannot be run.
pub(crate) fn obstacle(binary: &Path) -> Result<Option<String>> {
    let output = Command::new(binary).args(["doctor", "--json"]).output().context("sluice doctor")?;
    let answer: Value = serde_json::from_slice(&output.stdout).context("sluice doctor --json")?;
    let bypass = &answer["assists"]["bypass"];
    let reasons = bypass["reasons"].as_array().map(Vec::as_slice).unwrap_or_default();
    // Any other reason is a failure.
    let absent = reasons.iter().any(|reason| reason["code"] == "not_in_this_version");
    if bypass["host_can"].as_bool() != Some(false) && !absent {
        return Ok(None);
    }
    let means: Vec<&str> = reasons.iter().filter_map(|reason| reason["means"].as_str()).collect();
    Ok(Some(means.join("; ")))
}

/// Status, fields and body are the same as those of a sluice that copies.
fn same_answers(rig: &Rig) -> Result<String> {
    let (_copying, address) = rig.copying()?;
    for path in rig.app.compared {
        let joined = ask(rig, rig.address, path).with_context(|| format!("{path}, joined"))?;
        let copied = ask(rig, address, path).with_context(|| format!("{path}, copied"))?;
        let (left, right) = (lasting(&joined), lasting(&copied));
        ensure!(left == right, "{path}: joined\n{left:#?}\ncopied\n{right:#?}");
        ensure!(joined.body == copied.body, "{path}: bodies differ");
    }
    Ok(format!("{} answers", rig.app.compared.len()))
}

fn ask(rig: &Rig, address: SocketAddr, path: &str) -> Result<Reply> {
    let mut wire = Wire::to(address)?;
    wire.ask(rig, "GET", &rig.target(path), "")?;
    wire.reply()
}

/// The head without the parts that vary.
fn lasting(reply: &Reply) -> Vec<&str> {
    let lasts = |line: &&str| {
        let lower = line.to_ascii_lowercase();
        !CHANGING.iter().any(|name| lower.starts_with(name))
    };
    reply.head.lines().filter(lasts).collect()
}

/// Pairs were joined, and exchanges went over them.
fn joined(rig: &Rig) -> Result<String> {
    if !rig.required {
        return Ok("not requested".to_owned());
    }
    let pairs = metrics::pairs_joined(rig.admin)?;
    let log = fs::read_to_string(rig.sluice.log()).context("sluice's log")?;
    let path = |word: &str| log.matches(&format!("\"path\":\"{word}\"")).count();
    let [bypass, direct, copy] = ["bypass", "direct", "copy"].map(path);
    let found =
        format!("{pairs} pairs joined; exchanges: {direct} direct, {bypass} by bypass, {copy} by copy");
    // Direct returns use joined pairs as well, and may be all there are.
    ensure!(pairs > 0 && direct > 0, "{found}");
    Ok(found)
}
