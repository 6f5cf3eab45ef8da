//! HTTP/3 as other implementations see it: aioquic, quic-go, ngtcp2 and Chromium. `cargo xtask test http3`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sluice_testkit::process::bound;
use sluice_testkit::{metrics, packages, pinned, workspace};

use super::{Served, chromium};
use crate::browser::{self, Browser};

/// What aioquic and quic-go send and receive, with a digest of both. Keys of quic-go change several times meanwhile.
const MEGABYTES: &str = "1024";
const SCRIPT: &str = "proxy/system/tls/http3_client.py";
const QUIC_GO: &str = "proxy/system/tls/quicgo";
/// The program of Debian's ngtcp2-client.
const NGTCP2: &str = "gtlsclient";
/// What it uploads, and gets back.
const UPLOAD_BYTES: usize = 8 << 20;
/// What it downloads: so much that it pings often.
const DOWNLOAD_BYTES: usize = 1 << 30;
/// Its requests on one connection.
const STREAMS: usize = 100;

/// Options for everything.
const QUIET: [&str; 5] =
    ["-q", "--exit-on-all-streams-close", "--timeout=20s", "--no-quic-dump", "--no-http-dump"];

/// Its options, case by case.
const CASES: [(&str, &[&str]); 7] = [
    ("plain", &[]),
    ("migration", &["--change-local-addr=20ms"]),
    ("key update", &["--key-update=5ms"]),
    ("NAT rebinding", &["--change-local-addr=20ms", "--nat-rebinding"]),
    ("loss", &["--tx-loss=0.05", "--rx-loss=0.05"]),
    ("ChaCha20", &["--ciphers=NORMAL:-CIPHER-ALL:+CHACHA20-POLY1305"]),
    ("small packets", &["--max-udp-payload-size=1200", "--no-pmtud"]),
];

/// Retry, handshake, 100 streams, key updates, migration, trailers, a WebSocket, resumption, a large body up and down.
pub(super) fn suits_aioquic(binary: &Path) -> Result<String> {
    let served = Served::start_with_http3("aioquic", binary, 0)?;
    let mut command = bound(pinned::tool("aioquic")?);
    command.arg("-B").arg(workspace::root().join(SCRIPT));
    command.arg(served.address.port().to_string()).arg(MEGABYTES);
    said_by(command)
}

/// The same by quic-go, with a gigabyte in both directions; each client has to prove its address first.
pub(super) fn suits_quic_go(binary: &Path) -> Result<String> {
    let served = Served::start_with_http3("quic-go", binary, 0)?;
    let program = served.folder.join("quicgo");
    let mut build = Command::new(pinned::tool("go")?);
    build.args(["build", "-o"]).arg(&program).arg(".").current_dir(workspace::root().join(QUIC_GO));
    workspace::must(build.env("CGO_ENABLED", "0").env("GOFLAGS", "-buildvcs=false"))?;
    let mut command = bound(program);
    command.arg(served.address.port().to_string()).arg(MEGABYTES);
    said_by(command)
}

fn said_by(mut command: Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().context("the client")?;
    let said = String::from_utf8_lossy(&output.stdout).trim().replace('\n', ", ");
    ensure!(output.status.success(), "after {said}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(said)
}

/// Uploads that come back, while ngtcp2 moves, loses packets or chooses other parameters; a large download, many
/// requests, a session that is resumed. It has to prove its address first.
pub(super) fn suits_ngtcp2(binary: &Path) -> Result<String> {
    packages::install(&["ngtcp2-client"])?;
    let served = Served::start_with_http3("ngtcp2", binary, 0)?;
    let upload = served.folder.join("upload");
    let content: Vec<u8> =
        (0..UPLOAD_BYTES as u64).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 16) as u8).collect();
    fs::write(&upload, &content)?;
    for (name, options) in CASES {
        let folder = served.folder.join("downloads");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder)?;
        let mut command = ngtcp2(&served, &["-m", "POST"]);
        command.arg("-d").arg(&upload).arg("--download").arg(&folder);
        request(&served, command.args(options), "/echo").context(name)?;
        let got = fs::read(folder.join("echo")).with_context(|| format!("{name}: nothing came back"))?;
        ensure!(got == content, "{name}: {} bytes came back, and they differ", got.len());
    }
    request(&served, &mut ngtcp2(&served, &[]), &format!("/bytes?n={DOWNLOAD_BYTES}")).context("download")?;
    let before = metric(&served, "sluice_http3_streams_total")?;
    request(&served, &mut ngtcp2(&served, &["-n", &STREAMS.to_string()]), "/bytes?n=20000")?;
    let streams = metric(&served, "sluice_http3_streams_total")? - before;
    ensure!(streams == STREAMS as u64, "{streams} streams");
    for _ in 0..2 {
        let mut command = ngtcp2(&served, &["--disable-early-data"]);
        command.arg("--session-file").arg(served.folder.join("session"));
        request(&served, command.arg("--tp-file").arg(served.folder.join("parameters")), "/bytes?n=9")?;
    }
    let resumed = metrics::read(served.admin)?;
    let mut resumed = resumed
        .lines()
        .filter(|line| line.starts_with("sluice_tls_handshakes_total{") && line.contains("resumed=\"yes\""));
    ensure!(resumed.any(|line| line.ends_with(" 1")), "no session was resumed");
    let abuses = metric(&served, "sluice_http3_abuses_total")?;
    ensure!(abuses == 0, "{abuses} connections were ended for abuse");
    let retries = metric(&served, "sluice_http3_retries_total")?;
    let clients = CASES.len() as u64 + 4;
    ensure!(retries >= clients, "{retries} of {clients} had to prove their address");
    Ok(format!("{}, a GiB, {STREAMS} streams, resumption, Retry", CASES.map(|(name, _)| name).join(", ")))
}

fn metric(served: &Served, name: &str) -> Result<u64> {
    Ok(metrics::sum(&metrics::read(served.admin)?, name))
}

/// ngtcp2's client with these options.
fn ngtcp2(served: &Served, options: &[&str]) -> Command {
    let mut command = bound("timeout");
    command.args(["120", NGTCP2]).args(QUIET).args(options).current_dir(&served.folder);
    command
}

/// Completes the command of ngtcp2's client, and runs it.
fn request(served: &Served, command: &mut Command, path: &str) -> Result<()> {
    let port = served.address.port().to_string();
    command.args(["127.0.0.1", &port]).arg(format!("https://localhost:{port}{path}"));
    let output = command.stdin(Stdio::null()).output().context(NGTCP2)?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or_default();
    ensure!(output.status.success() && !said.contains("ERR_"), "{path}: {last}");
    Ok(())
}

/// Chromium without Retry and with it.
pub(super) fn suits_chromium(binary: &Path) -> Result<String> {
    browse(binary, 200)?;
    browse(binary, 0)?;
    Ok("a page, many bodies at once, an upload, a GiB and a WebSocket, without Retry and with it".to_owned())
}

/// Chromium takes the certificate by the digest of its key: for QUIC it accepts no other exception.
fn browse(binary: &Path, validate_above: u32) -> Result<()> {
    let program = browser::program()?;
    let served = Served::start_with_http3("chromium-http3", binary, validate_above)?;
    let digest = "openssl x509 -pubkey -noout -in \"$0\" | openssl pkey -pubin -outform der | \
        openssl dgst -sha256 -binary | openssl base64";
    let mut command = bound("sh");
    command.args(["-c", digest]).arg(served.folder.join("certificate.pem"));
    let digest = String::from_utf8(command.output()?.stdout)?.trim().to_owned();
    // By the address: for a name it may try IPv6 first.
    let place = served.address.to_string();
    let flags = [
        format!("--ignore-certificate-errors-spki-list={digest}"),
        format!("--origin-to-force-quic-on={place}"),
    ];
    let mut browser = Browser::start_with(program, &served.folder.join("profile"), &flags)?;
    browser.open(&format!("https://{place}/"), 1000, 1000, false)?;
    browser.wait_until("the page", "document.body?.innerText.includes('demo origin') === true")?;
    let found = browser.evaluate(&chromium::script("h3"))?;
    let wanted = json!({
        "bodies": chromium::BODIES, "echo": true, "socket": true, "closed": 1000, "protocol": "h3", "others": [],
    });
    ensure!(found == wanted, "it has {found}\n{}", browser.complaints().join("\n"));
    let length = browser.evaluate(&DOWNLOAD.replace("@BYTES@", &DOWNLOAD_BYTES.to_string()))?;
    ensure!(length == json!(DOWNLOAD_BYTES), "a download has {length} bytes");
    let retries = metric(&served, "sluice_http3_retries_total")?;
    ensure!((retries > 0) == (validate_above == 0), "{retries} Retry packets");
    Ok(())
}

/// Reads a large body piece by piece.
const DOWNLOAD: &str = r"(async () => {
    const reader = (await fetch('/bytes?n=@BYTES@')).body.getReader();
    let length = 0;
    for (let part; !(part = await reader.read()).done;) length += part.value.length;
    return length;
})()";
