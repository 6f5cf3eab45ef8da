//! A TLS listener as a browser sees it, and as others' tools judge it: `cargo xtask test testssl` and `tlsfuzzer`, by
//! these names only, for they take minutes and install what they need.

mod chromium;
mod testssl;
mod tlsfuzzer;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use serde_json::json;
use sluice_testkit::identity::Identity;
use sluice_testkit::pinned;
use sluice_testkit::process::{Process, free_ports, sluice};
use sluice_testkit::tally::Tally;
use sluice_testkit::workspace;

use crate::browser;

/// A check and its name.
type Check = (&'static str, fn(&Path) -> Result<String>);

const CHECKS: &[Check] = &[("testssl", testssl::grades), ("tlsfuzzer", tlsfuzzer::bears)];

const BROWSER: &str = "chromium::browses";

/// Runs the browser's check if the tally wants it, and another if it is asked for by its whole name. The binary is asked
/// for only then.
///
/// # Errors
/// When the binary cannot be had. What a check finds is counted, not an error.
pub(crate) fn run(binary: impl FnOnce() -> Result<PathBuf>, tally: &mut Tally) -> Result<()> {
    let named = CHECKS.iter().find(|(name, _)| tally.filter() == Some(name));
    if named.is_none() && !tally.wants(BROWSER) {
        return Ok(());
    }
    tally.heading("TLS");
    if let Some((name, check)) = named {
        let binary = binary()?;
        tally.check(name, || check(&binary));
    } else if let Err(error) = browser::program() {
        tally.skip(BROWSER, 1, &format!("Chromium cannot be had: {error:#}"));
    } else {
        let binary = binary()?;
        tally.check(BROWSER, || chromium::browses(&binary));
    }
    Ok(())
}

/// A sluice with a certificate of its own making.
struct Served {
    sluice: Process,
    /// By the defaults.
    address: SocketAddr,
    /// With its cipher suites named, which makes their order count.
    ordered: SocketAddr,
    /// What it says, and its access log.
    log: PathBuf,
    folder: PathBuf,
}

const SUITES: &[&str] = &[
    "TLS13_AES_128_GCM_SHA256",
    "TLS13_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
];

impl Served {
    fn start(name: &str, binary: &Path) -> Result<Self> {
        let folder = workspace::scratch("tls")?.join(name);
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let identity = Identity::make(&folder, &pinned::tool("openssl")?)?;
        let ports: [u16; 3] = free_ports(Ipv4Addr::LOCALHOST.into())?;
        let [address, ordered, origin] = ports.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let certificates = json!([{"cert": identity.certificate, "key": identity.key}]);
        let config = json!({
            "listeners": [
                {"address": address, "tls": {"certificates": certificates}, "hsts": {}},
                {"address": ordered, "tls": {"certificates": certificates, "cipher_suites": SUITES}},
            ],
            "clusters": {"demo": {"endpoints": [origin]}},
            "demo_origin": origin,
            "control": "off",
            "workers": 1,
        });
        let file = folder.join("sluice.yaml");
        fs::write(&file, format!("{config:#}\n"))?;
        let mut command = sluice(binary);
        command.arg("--config").arg(&file);
        let log = workspace::scratch("logs")?.join(format!("{name}-sluice.log"));
        let mut sluice = Process::start("sluice", &mut command, log.clone(), Signal::SIGTERM)?;
        sluice.wait_ready(address)?;
        Ok(Self { sluice, address, ordered, log, folder })
    }
}
