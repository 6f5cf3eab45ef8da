//! What other programs make of encoded, kept and hinted responses by HTTP/2 over TLS: curl, h2load and Chromium, with
//! nginx as the application: `cargo xtask test encodings`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use serde_json::{Value, json};
use sluice_testkit::identity::Identity;
use sluice_testkit::nginx::temp_paths;
use sluice_testkit::process::{Process, bound, find_program, free_ports};
use sluice_testkit::{pinned, workspace};

use super::site::{Site, local};
use crate::browser::{self, Browser};

const CODINGS: [&str; 3] = ["zstd", "br", "gzip"];
const REQUESTS: usize = 400;
/// How often a browser opens the page at most, until it says that it got hints.
const ROUNDS_MAX: usize = 12;
/// A 103 names the script before nginx is asked.
const NGINX: &str = "daemon off; pid @FOLDER@/nginx.pid; error_log stderr; worker_processes 1; @USER@
events {}
http {
    types { text/html html; text/javascript js; }
    access_log off;
    @TEMP_PATHS@
    server {
        listen @ADDRESS@;
        root @FOLDER@/html;
        add_header Cache-Control 'public, no-cache';
        location = /index.html { add_header Cache-Control 'public, no-cache'; add_header Link '</app.js>; rel=preload; as=script'; }
    }
}
";
const PAGE: &str = "<!doctype html><title>page</title><body>loading<script src=/app.js></script>\n";

/// nginx behind a sluice that encodes with one algorithm, keeps, and sends hints.
struct Scene {
    site: Site,
    script: Vec<u8>,
    /// Last, so that it is stopped after sluice.
    _nginx: Process,
}

/// A script whose last line shows that all of it has arrived.
fn script() -> String {
    let lines = (0..4000).map(|at| format!("sum += {at}; // the sum of {at} numbers\n"));
    let lines: String = lines.collect();
    format!("let sum = 0;\n{lines}document.body.textContent = 'sum ' + sum;\n")
}

impl Scene {
    fn start(binary: &Path, coding: &str, name: &str) -> Result<Self> {
        let folder = workspace::scratch("operate")?.join(format!("encodings-{name}-nginx"));
        fs::create_dir_all(folder.join("html"))?;
        let script = script().into_bytes();
        fs::write(folder.join("html/app.js"), &script)?;
        fs::write(folder.join("html/index.html"), PAGE)?;
        let [origin] = free_ports(std::net::Ipv4Addr::LOCALHOST.into())?.map(local);
        let nginx = nginx(&folder, &origin.to_string(), NGINX)?;
        let identity = Identity::make(&folder, &pinned::tool("openssl")?)?;
        let certificates = json!([{"cert": identity.certificate, "key": identity.key}]);
        let [address] = free_ports(std::net::Ipv4Addr::LOCALHOST.into())?.map(local);
        let keys = json!({
            "listeners": [{"name": "web", "address": address, "tls": {"certificates": certificates}}],
            "clusters": {"default": {"endpoints": [origin]}},
            "caches": {"pages": {"early_hints": true}},
            // Otherwise, responses of a busy worker are sent as they are.
            "compression": {"cpu_percent_max": 100},
            "routes": [{
                "cluster": "default", "cache": "pages",
                "compress": {"algorithms": [coding], "body_min": "100b"},
            }],
        });
        let site = Site::start_at(&format!("encodings-{name}"), binary, address, keys)?;
        Ok(Self { site, script, _nginx: nginx })
    }

    fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.site.address)
    }
}

/// nginx with this configuration, whose marks are replaced.
pub(super) fn nginx(folder: &Path, address: &str, config: &str) -> Result<Process> {
    let program = find_program("nginx").context("nginx")?;
    let output = Command::new(&program).arg("-V").output().context("nginx -V")?;
    let built = String::from_utf8_lossy(&output.stderr).into_owned();
    let config = config
        .replace("@TEMP_PATHS@", &temp_paths(&built))
        .replace("@FOLDER@", &folder.display().to_string())
        .replace("@USER@", if geteuid().is_root() { "user root;" } else { "" })
        .replace("@ADDRESS@", address);
    let file = folder.join("nginx.conf");
    fs::write(&file, config)?;
    let mut command = bound(program);
    command.arg("-c").arg(&file);
    let log = workspace::scratch("logs")?.join("encodings-nginx.log");
    let mut nginx = Process::start("nginx", &mut command, log, Signal::SIGQUIT)?;
    nginx.wait_ready(address.parse()?)?;
    Ok(nginx)
}

/// curl decodes what it gets, three times: from nginx, and twice when nginx has said that it is still right.
pub(super) fn curl(binary: &Path) -> Result<String> {
    for coding in CODINGS {
        let scene = Scene::start(binary, coding, "curl")?;
        let fields = scene.site.folder.join("fields");
        for round in 0..3 {
            let mut command = bound("curl");
            command.args(["-sk", "--http2", "--compressed", "-o", "-", "-D"]).arg(&fields);
            let output = command.arg(scene.url("/app.js")).output()?;
            let fields = fs::read_to_string(&fields)?.to_lowercase();
            ensure!(output.stdout == scene.script, "{coding}, {round}: another body\n{fields}");
            let is_encoded = fields.contains(&format!("content-encoding: {coding}"));
            ensure!(fields.starts_with("http/2 200") && is_encoded, "{coding}, {round}: {fields}");
            let wanted = if round == 0 { "fwd=uri-miss; stored" } else { "fwd-status=304" };
            ensure!(fields.contains(wanted), "{coding}, {round}: {fields}");
        }
    }
    Ok(format!("{} codings, three times each", CODINGS.len()))
}

/// h2load gets nothing but whole responses, on many streams.
pub(super) fn h2load(binary: &Path) -> Result<String> {
    for coding in CODINGS {
        let scene = Scene::start(binary, coding, "h2load")?;
        let mut command = bound("h2load");
        command.args(["-n", &REQUESTS.to_string(), "-c", "4", "-m", "20"]);
        command.args(["-H", &format!("accept-encoding: {coding}")]);
        let output = command.arg(scene.url("/app.js")).stderr(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(said.contains(&format!("{REQUESTS} succeeded, 0 failed, 0 errored")), "{coding}: {said}");
        ensure!(said.contains("Application protocol: h2"), "{coding}: {said}");
        let data = said.lines().find_map(|line| line.strip_suffix(") data")).unwrap_or_default();
        let data: usize = data.rsplit('(').next().unwrap_or_default().parse().context(said.clone())?;
        ensure!(data < REQUESTS * scene.script.len() / 2, "{coding}: {data} bytes were not encoded");
    }
    Ok(format!("{REQUESTS} of each coding"))
}

/// Chromium runs the script, and has heard of it before the page.
pub(super) fn chromium(binary: &Path) -> Result<String> {
    let program = browser::program()?;
    for coding in CODINGS {
        let scene = Scene::start(binary, coding, "chromium")?;
        let mut browser = Browser::start(program, &scene.site.folder.join("profile"))?;
        browser.call("Security.setIgnoreCertificateErrors", json!({"ignore": true}))?;
        let hints = "Network.responseReceivedEarlyHints";
        // On starved cores the browser gets the hints of a page, as its network log shows, but does not always say so.
        let mut rounds = 0;
        while rounds < 2 || rounds < ROUNDS_MAX && browser.events(hints).next().is_none() {
            browser.open(&scene.url("/index.html"), 800, 600, false)?;
            browser.wait_until("the script", "document.body?.textContent.trim() === 'sum 7998000'")?;
            let of_script = "performance.getEntriesByName(location.origin + '/app.js')[0].toJSON()";
            let timing = browser.evaluate(of_script)?;
            ensure!(timing["nextHopProtocol"] == "h2", "{coding}: {timing}");
            ensure!(rounds > 0 || is_encoded(&timing), "{coding}: {timing}");
            // The next one must not take this page for its own.
            browser.open("about:blank", 800, 600, false)?;
            browser.wait_until("an empty page", "location.href === 'about:blank'")?;
            rounds += 1;
        }
        let coded = browser.events("Network.responseReceived").filter(|params| {
            let response = &params["response"];
            let is_script = response["url"].as_str().is_some_and(|url| url.ends_with("/app.js"));
            is_script && response["headers"]["content-encoding"] == coding
        });
        ensure!(coded.count() > 0, "{coding}: no response with this coding");
        let hinted = browser.wait_for_events(hints, 1);
        hinted.with_context(|| format!("{coding}: {}", responses(&browser)))?;
        // The first time, the page was not known.
        ensure!(browser.events(hints).count() < rounds, "{coding}: hints of an unknown page");
        let complaints = browser.complaints();
        ensure!(
            complaints.iter().all(|line| line.contains("favicon")),
            "{coding}: {}",
            complaints.join("\n")
        );
    }
    Ok(format!("{} codings, with early hints", CODINGS.len()))
}

/// What came for each request, and what the cache said of it.
fn responses(browser: &Browser) -> String {
    let lines = browser.events("Network.responseReceived").map(|params| {
        let response = &params["response"];
        let kept = response["fromDiskCache"] == true;
        let cache = &response["headers"]["cache-status"];
        format!("{} {} {cache}, from the disk of the browser: {kept}", response["url"], response["status"])
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn is_encoded(timing: &Value) -> bool {
    let bytes = |name: &str| timing[name].as_u64().unwrap_or_default();
    bytes("decodedBodySize") > 2 * bytes("encodedBodySize")
}
