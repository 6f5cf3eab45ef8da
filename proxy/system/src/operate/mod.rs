//! Operations on a running sluice, with real servers behind it and real load, and conformance tools of others: `cargo
//! xtask test deploys`, `upgrade`, `contract`, `encodings`, `sendfile`, `redbot`, `h2spec`, `grpc`,
//! `discovery`, `fleet`, `keepalived` and `migration`.

mod client;
mod consul;
mod contract;
mod deploys;
mod discovery;
mod encodings;
mod etcd;
mod examples;
mod fleet;
mod forwarder;
mod grpc;
mod h2spec;
mod keepalived;
mod load;
mod migration;
mod namespace;
mod puma;
mod redbot;
mod redis;
mod sendfile;
mod site;
mod upgrade;

use std::path::{Path, PathBuf};

use anyhow::Result;
use sluice_testkit::packages::Tools;
use sluice_testkit::process::find_program;
use sluice_testkit::tally::Tally;
pub(crate) use upgrade::Successor;

/// A check: its name, the programs it needs, and its function.
type Check = (&'static str, &'static [&'static str], fn(&Path) -> Result<String>);

const SERVED: &[&str] = &["puma", "ruby", "rack", "wrk"];

const CHECKS: &[Check] = &[
    ("deploys::fifty_in_a_row", SERVED, deploys::fifty_in_a_row),
    ("deploys::never_healthy", SERVED, deploys::never_healthy),
    ("deploys::pause", SERVED, deploys::pause),
    ("upgrade::ten_in_a_row", SERVED, upgrade::ten_in_a_row),
    ("discovery::etcd", &["etcd", "nginx", "curl", "wrk"], discovery::etcd::members_fail),
    ("discovery::dns", &["dnsmasq", "nginx", "curl", "wrk"], discovery::dns::records_change),
    ("fleet::etcd", &["etcd", "nginx", "curl", "wrk"], fleet::over_etcd),
    ("fleet::losses", &["redis-server", "nginx"], fleet::losses),
    ("contract::conforms", &["python3"], contract::conforms),
    ("examples::compose", &["python3"], examples::compose),
    ("examples::kubernetes", &["python3"], examples::kubernetes),
    ("encodings::curl", &["nginx", "curl"], encodings::curl),
    ("encodings::h2load", &["nginx", "h2load"], encodings::h2load),
    ("encodings::chromium", &["nginx"], encodings::chromium),
    ("sendfile::rack", &["puma", "ruby", "rack", "curl"], sendfile::rack),
    ("redbot::finds_no_fault", &["python3", "nginx", "curl"], redbot::finds_no_fault),
    ("h2spec::strict", &["go"], h2spec::strict),
    ("grpc::calls", &["go", "python3"], grpc::calls),
    ("migration::nginx", &["python3", "nginx"], migration::nginx),
    ("migration::haproxy", &["python3", "haproxy"], migration::haproxy),
    ("migration::caddy", &["python3", "caddy"], migration::caddy),
    ("migration::traefik", &["python3", "traefik"], migration::traefik),
];

/// Checks that run only by their names: what they need takes minutes to build or is installed by
/// hand, or others check most of it.
const NAMED: &[Check] = &[
    ("discovery::consul", &["go", "nginx", "curl", "wrk"], discovery::consul::instances_change),
    (
        "discovery::kubernetes",
        &["go", "etcd", "nginx", "curl", "wrk", "ip", "nsenter"],
        discovery::kubernetes::slices_change,
    ),
    (
        "discovery::podman",
        &["busybox", "crun", "ip", "nsenter", "unshare"],
        discovery::podman::containers_change,
    ),
    ("fleet::partitions", &["etcd", "nginx", "curl", "wrk", "ip", "nsenter"], fleet::partitions),
    ("fleet::rates", &["redis-server", "nginx"], fleet::rates),
    ("fleet::redis", &["redis-server", "nginx", "wrk"], fleet::over_redis),
    ("fleet::consul", &["go", "nginx", "curl", "wrk"], fleet::over_consul),
    ("keepalived::moves", &["ip", "nsenter"], keepalived::moves_an_address),
    ("sendfile::django", &["python3", "curl"], sendfile::django),
    ("sendfile::starlette", &["python3", "curl"], sendfile::starlette),
];

/// Checks that need the kernel assists.
const JOINED: &[Check] = &[("deploys::fifty_past_sluice", SERVED, deploys::fifty_past_sluice)];

/// The names of the checks that need the kernel assists.
pub(crate) fn joined_names() -> impl Iterator<Item = String> {
    JOINED.iter().map(|(name, ..)| (*name).to_owned())
}

/// Runs the requested checks. The binary is built only if it is needed.
///
/// # Errors
/// When the binary is not available. Failed checks are counted, not errors.
pub(crate) fn run(binary: impl FnOnce() -> Result<PathBuf>, tally: &mut Tally) -> Result<()> {
    let is_named = NAMED.iter().any(|(name, ..)| tally.filter() == Some(name));
    run_all(if is_named { NAMED } else { CHECKS }, binary, tally)
}

/// The same for checks that need the kernel assists: root and eBPF.
///
/// # Errors
/// As for [`run`].
pub(crate) fn run_joined(binary: &Path, tally: &mut Tally) -> Result<()> {
    run_all(JOINED, || Ok(binary.to_owned()), tally)
}

/// Programs that no distribution has in the version that a check is for.
const UNPACKAGED: &[&str] = &["caddy", "traefik"];

fn absent(programs: &[&str]) -> Option<String> {
    let is_absent = |program: &&&str| UNPACKAGED.contains(program) && find_program(program).is_none();
    programs.iter().find(is_absent).map(|program| format!("{program} is not on PATH"))
}

fn run_all(checks: &[Check], binary: impl FnOnce() -> Result<PathBuf>, tally: &mut Tally) -> Result<()> {
    if !checks.iter().any(|(name, ..)| tally.wants(name)) {
        return Ok(());
    }
    tally.heading("operations");
    let binary = binary()?;
    let tools = Tools::prepare();
    for (name, programs, check) in checks {
        match tools.lack(programs).or_else(|| absent(programs)) {
            Some(lack) if tally.wants(name) => tally.skip(name, 1, &lack),
            Some(_) => {}
            None => tally.check(name, || check(&binary)),
        }
    }
    Ok(())
}
