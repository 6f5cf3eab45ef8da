//! The findings of testssl.sh: nothing high or critical except what is listed here.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use sluice_testkit::process::{bound, find_program};
use sluice_testkit::{packages, workspace};

use super::Served;

const TOOL: &str = "testssl";
const PACKAGES: &[&str] = &["testssl.sh", "bsdmainutils", "openssl", "bind9-dnsutils", "procps"];

const GRAVE: &[&str] = &["HIGH", "CRITICAL", "FATAL"];
const LIGHT: &[&str] = &["LOW", "MEDIUM"];

/// Findings that are not about sluice, with the reason; each is printed when it occurs.
const ALLOWED: &[(&str, &str)] = &[
    ("cert_chain_of_trust", "the certificate is self-signed"),
    ("cert_expirationStatus", "the certificate is valid for thirty days"),
    ("cert_notAfter", "the same"),
    ("cert_revocation", "a self-signed certificate cannot be revoked"),
    (
        "cipher_order",
        "all default suites are good, and clients know whether they have AES in hardware; with configured \
         suites their order matters, which is tested separately",
    ),
];

/// The finding about the order of suites.
const ORDER: &str = "cipher_order";
/// Written when a scan is complete.
const LAST: &str = "scanTime";

/// One line of the report.
struct Finding {
    id: String,
    severity: String,
    text: String,
}

/// All findings for a listener with the defaults; the order of suites for one that configures them.
pub(super) fn grades(binary: &Path) -> Result<String> {
    if find_program(TOOL).is_none() {
        packages::install(PACKAGES)?;
    }
    let served = Served::start(TOOL, binary)?;
    let ordered = scan(&served, served.ordered, "ordered", &["--server-preference"])?;
    let order = ordered.iter().find(|finding| finding.id == ORDER).context("no order of suites")?;
    ensure!(order.severity == "OK", "with configured suites: {ORDER}: {}", order.text);

    let findings = scan(&served, served.address, "all", &[])?;
    let is = |severities: &'static [&'static str]| {
        findings.iter().filter(move |finding| severities.contains(&&finding.severity[..]))
    };
    let mut bad = Vec::new();
    for Finding { id, severity, text } in is(GRAVE) {
        match ALLOWED.iter().find(|(allowed, _)| allowed == id) {
            Some((_, why)) => println!("{TOOL}: allowed: {severity} {id}: {text}: {why}"),
            None => bad.push(format!("{severity} {id}: {text}")),
        }
    }
    for Finding { id, severity, text } in is(LIGHT) {
        println!("{TOOL}: {severity} {id}: {text}");
    }
    ensure!(bad.is_empty(), "{}", bad.join("\n"));
    Ok(format!("{} findings, {} of them low or medium", findings.len(), is(LIGHT).count()))
}

fn scan(served: &Served, address: SocketAddr, name: &str, more: &[&str]) -> Result<Vec<Finding>> {
    let file = served.folder.join(format!("{name}.json"));
    // It does not overwrite existing files.
    if file.exists() {
        fs::remove_file(&file)?;
    }
    let log = workspace::scratch("logs")?.join(format!("{TOOL}-{name}.log"));
    let mut command = bound(find_program(TOOL).context("no testssl in PATH")?);
    command.args(["--quiet", "--color", "0", "--warnings", "off", "--nodns", "none", "--jsonfile"]);
    command.arg(&file).args(more).arg(format!("https://{address}/"));
    // Its exit status counts findings.
    command
        .stdin(Stdio::null())
        .stdout(fs::File::create(&log)?)
        .stderr(Stdio::null())
        .status()
        .context(TOOL)?;
    let text = fs::read_to_string(&file).with_context(|| format!("no report, see {}", log.display()))?;
    let report: Vec<Value> = serde_json::from_str(&text).context("the report")?;
    let word = |one: &Value, key: &str| one[key].as_str().unwrap_or_default().to_owned();
    let finding = |one: &Value| Finding {
        id: word(one, "id"),
        severity: word(one, "severity"),
        text: word(one, "finding"),
    };
    let findings: Vec<Finding> = report.iter().map(finding).collect();
    if !findings.iter().any(|finding| finding.id == LAST) {
        bail!("the scan was not completed, see {}", log.display());
    }
    Ok(findings)
}
