//! A headless Chromium with one page, controlled by its debugging protocol over a pipe. Knows nothing of sluice.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use data_encoding::BASE64;
use nix::unistd::geteuid;
use serde_json::{Value, json};
use sluice_testkit::packages::install;
use sluice_testkit::process::{bound, find_program};

/// Reached only by a hang; starting takes seconds on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// Takes the pipe from standard input and output, where a shell can easily connect it.
const SCRIPT: &str = "exec \"$@\" --remote-debugging-pipe 3<&0 4>&1 </dev/null >/dev/null 2>&1";

/// A running browser.
pub(crate) struct Browser {
    child: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    events: VecDeque<Value>,
    session: Option<String>,
    calls: u64,
}

/// The program; as root on Debian or Ubuntu it is installed if necessary.
///
/// # Errors
/// Why it is not available.
pub(crate) fn program() -> Result<&'static str> {
    let found = || NAMES.into_iter().find(|name| find_program(name).is_some());
    if let Some(name) = found() {
        return Ok(name);
    }
    ensure!(geteuid().is_root() && Path::new("/etc/debian_version").exists(), "apt-get install chromium");
    install(&["chromium"])?;
    found().context("chromium is missing, though apt-get has installed it")
}

impl Browser {
    /// Starts it with a separate profile in `folder` and an empty page.
    ///
    /// # Errors
    /// When it does not start, or does not respond.
    pub(crate) fn start(program: &str, folder: &Path) -> Result<Self> {
        Self::start_with(program, folder, &[])
    }

    /// The same with further options.
    ///
    /// # Errors
    /// As [`Browser::start`].
    pub(crate) fn start_with(program: &str, folder: &Path, options: &[String]) -> Result<Self> {
        let mut command = bound("sh");
        command.args(["-c", SCRIPT, "sh", program, "--headless=new", "--disable-gpu", "--no-first-run"]);
        // Disables its own network requests.
        command.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
        command.arg(format!("--user-data-dir={}", folder.display())).args(options);
        if geteuid().is_root() {
            // Its sandbox does not work as root; it only loads our pages.
            command.arg("--no-sandbox");
        }
        let mut child = command.arg("about:blank").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().context("piped above")?;
        let output = BufReader::new(child.stdout.take().context("piped above")?);
        let (sender, messages) = channel();
        thread::spawn(move || {
            for message in output.split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else { return };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let events = VecDeque::new();
        let mut browser = Self { child, input, messages, events, session: None, calls: 0 };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}))?;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", attach)?;
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}))?;
        }
        Ok(browser)
    }

    /// Calls a method of the protocol; events received meanwhile are kept.
    ///
    /// # Errors
    /// When the browser has exited, or refuses.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.calls += 1;
        let mut call = json!({"id": self.calls, "method": method, "params": params});
        if let Some(session) = &self.session {
            call["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&call)?;
        bytes.push(0);
        self.input.write_all(&bytes).context("the browser has exited")?;
        loop {
            let message =
                self.messages.recv_timeout(PATIENCE).with_context(|| format!("no response to {method}"))?;
            if message["id"] != self.calls {
                self.events.push_back(message);
                continue;
            }
            if let Some(error) = message.get("error") {
                bail!("{method}: {error}");
            }
            return Ok(message["result"].clone());
        }
    }

    /// The value of an expression in the page.
    ///
    /// # Errors
    /// When it throws.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let done = self.call("Runtime.evaluate", params)?;
        if let Some(thrown) = done.get("exceptionDetails") {
            bail!("{expression}: {thrown}");
        }
        Ok(done["result"]["value"].clone())
    }

    /// Waits until an expression is true.
    ///
    /// # Errors
    /// When it does not become true; with the content of the page.
    pub(crate) fn wait_until(&mut self, what: &str, expression: &str) -> Result<()> {
        let begun = Instant::now();
        while self.evaluate(expression)? != json!(true) {
            if begun.elapsed() > PATIENCE {
                bail!(
                    "timed out waiting for {what}; the page says\n{}",
                    self.evaluate("document.body.innerText")?
                );
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Loads a page of this width and height.
    ///
    /// # Errors
    /// When the browser refuses.
    pub(crate) fn open(&mut self, url: &str, width: u32, height: u32, dark: bool) -> Result<()> {
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": true});
        self.call("Emulation.setDeviceMetricsOverride", metrics)?;
        let scheme = if dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", media)?;
        self.call("Page.navigate", json!({"url": url})).map(drop)
    }

    /// Presses and releases a key.
    ///
    /// # Errors
    /// When the browser refuses.
    pub(crate) fn press(&mut self, key: &str, code: u32) -> Result<()> {
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({
                "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text,
            });
            self.call("Input.dispatchKeyEvent", event)?;
        }
        Ok(())
    }

    /// Moves the mouse to this place of the view.
    ///
    /// # Errors
    /// When the browser refuses.
    pub(crate) fn point(&mut self, x: f64, y: f64) -> Result<()> {
        self.call("Input.dispatchMouseEvent", json!({"type": "mouseMoved", "x": x, "y": y})).map(drop)
    }

    /// A screenshot as PNG.
    ///
    /// # Errors
    /// When the browser refuses.
    pub(crate) fn screenshot(&mut self) -> Result<Vec<u8>> {
        let shot = self.call("Page.captureScreenshot", json!({"format": "png"}))?;
        BASE64.decode(shot["data"].as_str().context("no picture")?.as_bytes()).context("no picture")
    }

    /// The events of a name so far.
    pub(crate) fn events<'b>(&'b self, name: &'b str) -> impl Iterator<Item = &'b Value> {
        self.events.iter().filter(move |event| event["method"] == name).map(|event| &event["params"])
    }

    /// Waits until `count` events of a name have come. They travel apart from what a page shows: what is on the page
    /// may be seen before them.
    ///
    /// # Errors
    /// When they do not come.
    pub(crate) fn wait_for_events(&mut self, name: &str, count: usize) -> Result<()> {
        let begun = Instant::now();
        while self.events(name).count() < count {
            ensure!(begun.elapsed() < PATIENCE, "{} events {name}, not {count}", self.events(name).count());
            if let Ok(event) = self.messages.recv_timeout(POLL) {
                self.events.push_back(event);
            }
        }
        Ok(())
    }

    /// Addresses that the page has requested so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        let sent = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.filter_map(|event| event["params"]["request"]["url"].as_str().map(str::to_owned)).collect()
    }

    /// Exceptions, refused content and other complaints so far, the first ten.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let complaint = |event: &&Value| match event["method"].as_str() {
            Some("Runtime.exceptionThrown" | "Runtime.consoleAPICalled") => true,
            Some("Log.entryAdded") => event["params"]["entry"]["level"] != "info",
            _ => false,
        };
        self.events.iter().filter(complaint).take(10).map(|event| event["params"].to_string()).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.session = None;
        let asked = self.call("Browser.close", json!({})).is_ok();
        let begun = Instant::now();
        while asked && begun.elapsed() < PATIENCE {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            thread::sleep(POLL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
