//! HTTP/3 as other implementations see it: aioquic, quic-go, ngtcp2 and Chromium. `cargo xtask test http3`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sluice_testkit::process::bound;
use sluice_testkit::{packages, pinned, workspace};

use super::{Served, chromium};
use crate::browser::{self, Browser};

/// What aioquic transfers: it is slow.
const AIOQUIC_MEGABYTES: &str = "64";
/// What quic-go sends and receives at the same time, with a digest of both. Keys change several times.
const QUIC_GO_MEGABYTES: &str = "1024";
const SCRIPT: &str = "proxy/system/tls/http3_client.py";
const QUIC_GO: &str = "proxy/system/tls/quicgo";
/// The program of Debian's ngtcp2-client.
const NGTCP2: &str = "gtlsclient";
/// What it uploads, and gets back.
const UPLOAD_BYTES: usize = 8 << 20;

/// Its options, case by case.
const CASES: [(&str, &[&str]); 6] = [
    ("plain", &[]),
    ("migration", &["--change-local-addr=20ms"]),
    ("NAT rebinding", &["--change-local-addr=20ms", "--nat-rebinding"]),
    ("loss", &["--tx-loss=0.05", "--rx-loss=0.05"]),
    ("ChaCha20", &["--ciphers=NORMAL:-CIPHER-ALL:+CHACHA20-POLY1305"]),
    ("small packets", &["--max-udp-payload-size=1200", "--no-pmtud"]),
];

/// Handshake, 100 streams, key updates, migration, trailers, a WebSocket, resumption, a large body.
pub(super) fn suits_aioquic(binary: &Path) -> Result<String> {
    let served = Served::start_with_http3("aioquic", binary, 200)?;
    let mut command = bound(pinned::tool("aioquic")?);
    command.arg("-B").arg(workspace::root().join(SCRIPT));
    command.arg(served.address.port().to_string()).arg(AIOQUIC_MEGABYTES);
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
    command.arg(served.address.port().to_string()).arg(QUIC_GO_MEGABYTES);
    said_by(command)
}

fn said_by(mut command: Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().context("the client")?;
    let said = String::from_utf8_lossy(&output.stdout).trim().replace('\n', ", ");
    ensure!(output.status.success(), "after {said}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(said)
}

/// Uploads that come back, while ngtcp2 moves, loses packets or chooses other parameters.
pub(super) fn suits_ngtcp2(binary: &Path) -> Result<String> {
    packages::install(&["ngtcp2-client"])?;
    let served = Served::start_with_http3("ngtcp2", binary, 200)?;
    let upload = served.folder.join("upload");
    let content: Vec<u8> =
        (0..UPLOAD_BYTES as u64).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 16) as u8).collect();
    fs::write(&upload, &content)?;
    for (name, options) in CASES {
        let folder = served.folder.join("downloads");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder)?;
        let port = served.address.port().to_string();
        let mut command = bound("timeout");
        command.args(["120", NGTCP2, "-q", "--exit-on-all-streams-close", "--timeout=20s", "-m", "POST"]);
        command
            .args(["--no-quic-dump", "--no-http-dump"])
            .arg("-d")
            .arg(&upload)
            .arg("--download")
            .arg(&folder);
        command.args(options).args(["127.0.0.1", &port]).arg(format!("https://localhost:{port}/echo"));
        let output = command.stdin(Stdio::null()).output().context(NGTCP2)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{name}: {}", said.lines().last().unwrap_or_default());
        let got = fs::read(folder.join("echo")).with_context(|| format!("{name}: nothing came back"))?;
        ensure!(got == content, "{name}: {} bytes came back, and they differ", got.len());
    }
    Ok(CASES.map(|(name, _)| name).join(", "))
}

/// Chromium takes the certificate by the digest of its key: for QUIC it accepts no other exception.
pub(super) fn suits_chromium(binary: &Path) -> Result<String> {
    let program = browser::program()?;
    let served = Served::start_with_http3("chromium-http3", binary, 200)?;
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
    Ok("a page, many bodies at once, an upload and a WebSocket".to_owned())
}
