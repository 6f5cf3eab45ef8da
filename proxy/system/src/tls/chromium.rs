//! Chromium, as used by real visitors, over TLS and HTTP/2, in one connection.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Served;
use crate::browser::{self, Browser};

/// Bodies requested at once, each with its own length.
pub(super) const BODIES: u64 = 64;

/// Many bodies at once, one after the other in the page's promise; an echoed upload; a WebSocket.
const SCRIPT: &str = r"(async () => {
    const size = (n) => n * 3001;
    const bodies = await Promise.all([...Array(@BODIES@).keys()].map(async (n) =>
        (await (await fetch('/bytes?n=' + size(n))).arrayBuffer()).byteLength === size(n)));
    const sent = 'sluice '.repeat(30000);
    const back = await (await fetch('/echo', {method: 'POST', body: sent})).text();
    const message = 'm'.repeat(70000);
    const socket = new WebSocket('wss://' + location.host + '/ws');
    const heard = await new Promise((done, fail) => {
        socket.onopen = () => socket.send(message);
        socket.onmessage = (event) => done(event.data);
        socket.onerror = () => fail(new Error('the WebSocket fails'));
    });
    const closed = new Promise((done) => { socket.onclose = (event) => done(event.code); });
    socket.close(1000);
    return {
        bodies: bodies.filter((it) => it).length,
        echo: back === sent,
        socket: heard === message,
        closed: await closed,
        protocol: performance.getEntriesByType('navigation')[0].nextHopProtocol,
        others: performance.getEntriesByType('resource').filter((it) => it.nextHopProtocol !== '@PROTOCOL@').map((it) => it.name),
    };
})()";

/// The script, for a page that is expected over this protocol.
pub(super) fn script(protocol: &str) -> String {
    SCRIPT.replace("@BODIES@", &BODIES.to_string()).replace("@PROTOCOL@", protocol)
}

/// # Errors
/// When Chromium sees anything other than what was sent, or uses anything other than HTTP/2.
pub(super) fn browses(binary: &Path) -> Result<String> {
    let program = browser::program()?;
    let mut served = Served::start("chromium", binary)?;
    let mut browser = Browser::start(program, &served.folder.join("profile"))?;
    // It does not trust our authorities, and can only be configured with a database in the home folder.
    browser.call("Security.setIgnoreCertificateErrors", json!({"ignore": true}))?;
    browser.open(&format!("https://{}/", served.address), 1000, 1000, false)?;
    browser.wait_until("the page", "document.body?.innerText.includes('demo origin') === true")?;
    let found = browser.evaluate(&script("h2"))?;
    let wanted = json!({
        "bodies": BODIES, "echo": true, "socket": true, "closed": 1000, "protocol": "h2", "others": [],
    });
    ensure!(found == wanted, "it has {found}\n{}", browser.complaints().join("\n"));
    drop(browser);
    served.sluice.stop()?;
    let log = fs::read_to_string(&served.log).with_context(|| served.log.display().to_string())?;
    let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let exchanges: Vec<_> = lines.iter().filter(|line| line["protocol"].is_string()).collect();
    let over_http2 = exchanges.iter().filter(|line| line["protocol"] == "HTTP/2.0").count();
    ensure!(over_http2 == exchanges.len(), "{over_http2} of {} exchanges over HTTP/2", exchanges.len());
    let socket = exchanges.iter().find(|line| line["target"] == "/ws").context("no WebSocket in the log")?;
    ensure!(socket["reason"].is_null(), "the WebSocket's line is {socket}");
    Ok(format!("{over_http2} exchanges over HTTP/2, including a WebSocket"))
}
