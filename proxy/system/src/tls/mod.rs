//! A TLS listener as seen by a browser and by external tools: `cargo xtask test testssl`, `tlsfuzzer` and `http3`, only by
//! these names, because they take minutes and install what they need.

mod chromium;
mod h3i;
mod http3;
mod testssl;
mod tlsfuzzer;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use sluice_testkit::identity::Identity;
use sluice_testkit::pinned;
use sluice_testkit::process::{Process, free_ports, sluice};
use sluice_testkit::tally::Tally;
use sluice_testkit::workspace;

use crate::browser;

/// A check and its name.
type Check = (&'static str, fn(&Path) -> Result<String>);

const CHECKS: &[Check] = &[("testssl", testssl::grades), ("tlsfuzzer", tlsfuzzer::bears)];

/// Other implementations of HTTP/3, all of them by one name.
const HTTP3: &str = "http3";

const HTTP3_CHECKS: &[Check] = &[
    ("http3_aioquic", http3::suits_aioquic),
    ("http3_quic_go", http3::suits_quic_go),
    ("http3_ngtcp2", http3::suits_ngtcp2),
    ("http3_chromium", http3::suits_chromium),
    ("http3_h3i", h3i::bears),
];

const BROWSER: &str = "chromium::browses";

/// Runs the browser's check if it is requested, and another one if it is named in full. The binary is built only then.
///
/// # Errors
/// When the binary is not available. Failed checks are counted, not errors.
pub(crate) fn run(binary: impl FnOnce() -> Result<PathBuf>, tally: &mut Tally) -> Result<()> {
    let is_named = |(name, _): &&Check| tally.filter() == Some(name);
    let over_quic: Vec<_> =
        HTTP3_CHECKS.iter().filter(|check| tally.filter() == Some(HTTP3) || is_named(check)).collect();
    if !over_quic.is_empty() {
        tally.heading("HTTP/3");
        let binary = binary()?;
        over_quic.iter().for_each(|(name, check)| tally.check(name, || check(&binary)));
        return Ok(());
    }
    let named = CHECKS.iter().find(is_named);
    if named.is_none() && !tally.wants(BROWSER) {
        return Ok(());
    }
    tally.heading("TLS");
    if let Some((name, check)) = named {
        let binary = binary()?;
        tally.check(name, || check(&binary));
    } else if let Err(error) = browser::program() {
        tally.skip(BROWSER, 1, &format!("Chromium is not available: {error:#}"));
    } else {
        let binary = binary()?;
        tally.check(BROWSER, || chromium::browses(&binary));
    }
    Ok(())
}

/// A sluice with a self-signed certificate.
struct Served {
    sluice: Process,
    /// With the defaults.
    address: SocketAddr,
    /// With configured cipher suites, whose order then matters.
    ordered: SocketAddr,
    /// Of its metrics.
    admin: SocketAddr,
    /// Its log, including the access log.
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
        Self::start_by(name, binary, &json!("off"), &json!({}))
    }

    /// With HTTP/3; clients prove their address while this many handshakes are under way.
    fn start_with_http3(name: &str, binary: &Path, validate_above: u32) -> Result<Self> {
        Self::start_by(name, binary, &json!("auto"), &json!({"http3": {"validate_above": validate_above}}))
    }

    fn start_by(name: &str, binary: &Path, http3: &Value, limits: &Value) -> Result<Self> {
        let folder = workspace::scratch("tls")?.join(name);
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let identity = Identity::make(&folder, &pinned::tool("openssl")?)?;
        let ports: [u16; 4] = free_ports(Ipv4Addr::LOCALHOST.into())?;
        let [address, ordered, origin, admin] =
            ports.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let certificates = json!([{"cert": identity.certificate, "key": identity.key}]);
        let config = json!({
            "listeners": [
                {"address": address, "tls": {"certificates": certificates}, "hsts": {}, "http3": http3, "limits": limits},
                {"address": ordered, "tls": {"certificates": certificates, "cipher_suites": SUITES}},
            ],
            "clusters": {"demo": {"endpoints": [origin]}},
            "demo_origin": origin,
            "control": "off",
            "admin": {"address": admin},
            "workers": if http3.as_str() == Some("auto") { 2 } else { 1 },
        });
        let file = folder.join("sluice.yaml");
        fs::write(&file, format!("{config:#}\n"))?;
        let mut command = sluice(binary);
        command.arg("--config").arg(&file);
        let log = workspace::scratch("logs")?.join(format!("{name}-sluice.log"));
        let mut sluice = Process::start("sluice", &mut command, log.clone(), Signal::SIGTERM)?;
        sluice.wait_ready(address)?;
        Ok(Self { sluice, address, ordered, admin, log, folder })
    }
}
