//! What redbot finds wrong or doubtful in responses of each kind: `cargo xtask test redbot`.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sluice_testkit::process::{bound, free_ports};
use sluice_testkit::{pinned, workspace};

use super::encodings::nginx;
use super::site::{Site, local};

const NGINX: &str = "daemon off; pid @FOLDER@/nginx.pid; error_log stderr; worker_processes 1; @USER@
events {}
http {
    types { text/html html; text/javascript js; image/png png; }
    access_log off;
    @TEMP_PATHS@
    server {
        listen @ADDRESS@;
        root @FOLDER@/html;
        add_header Cache-Control max-age=600 always;
        location /validated { alias @FOLDER@/html; add_header Cache-Control no-cache; }
        location /varying { alias @FOLDER@/html; add_header Cache-Control max-age=600; add_header Vary Accept-Language; }
        location = /old { return 301 /page.html; }
        location = /gone { return 410; }
    }
}
";
/// Of the application, of files, and of sluice itself.
const PATHS: [&str; 14] = [
    "/page.html",
    "/app.js",
    "/logo.png",
    "/validated/page.html",
    "/varying/page.html",
    "/old",
    "/gone",
    "/missing",
    "/files/page.html",
    "/files/app.js",
    "/files/logo.png",
    "/files/missing",
    "/text",
    "/refused",
];

/// Each kind of response three times: at first, from the cache, and encoded from the cache.
pub(super) fn finds_no_fault(binary: &Path) -> Result<String> {
    let folder = workspace::scratch("operate")?.join("redbot-nginx");
    let files = folder.join("html");
    fs::create_dir_all(&files)?;
    let text: String = (0..3000).map(|at| format!("<p>line {at} of a page\n")).collect();
    for name in ["page.html", "app.js"] {
        fs::write(files.join(name), &text)?;
    }
    fs::write(files.join("logo.png"), [b"\x89PNG\r\n\x1a\n", text.as_bytes()].concat())?;
    let [origin, refused] = free_ports(Ipv4Addr::LOCALHOST.into())?.map(local);
    let _nginx = nginx(&folder, &origin.to_string(), NGINX)?;
    let kept = json!([{"path_regex": ".", "value": "max-age=600"}]);
    let keys = json!({
        "clusters": {"default": {"endpoints": [origin]}, "refused": {"endpoints": [refused]}},
        "caches": {"pages": {}},
        "compression": {"cpu_percent_max": 100},
        "routes": [
            {"path_prefix": "/files", "strip_prefix": true, "files": {"root": files, "cache_control": kept}},
            {"path": "/text", "respond": {"status": 200, "body": "a text\n"}, "response_headers": {"set": {"Cache-Control": "max-age=600"}}},
            {"path": "/refused", "cluster": "refused"},
            {"cluster": "default", "cache": "pages", "compress": {}},
        ],
    });
    let site = Site::start("redbot", binary, keys)?;
    let urls = PATHS.map(|path| format!("http://{}{path}", site.address));
    for url in &urls {
        for coding in ["identity", "gzip"] {
            let mut command = bound("curl");
            command.args(["-s", "-o", "/dev/null", "-H", &format!("Accept-Encoding: {coding}"), url]);
            command.status().context("curl")?;
        }
    }
    let script = workspace::root().join("proxy/system/src/operate/redbot_notes.py");
    let mut found = String::new();
    for url in &urls {
        // One that hangs is ended.
        let mut command = bound("timeout");
        command.arg("30").arg(pinned::tool("redbot")?).arg(&script).arg(url);
        let output = command.output().context("redbot")?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "{url}: {said}{}", String::from_utf8_lossy(&output.stderr));
        said.lines().for_each(|line| found.push_str(&format!("{url}: {line}\n")));
    }
    ensure!(found.is_empty(), "{found}");
    Ok(format!("{} kinds", PATHS.len()))
}
