//! The built binary, started for one test with its own configuration and folder.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{Message, Origin, Wire, poll};

/// The value of `kernel.bypass` and `kernel.splice`, unless a test sets them; off if it is not set.
pub(crate) const ASSISTS: &str = "SLUICE_TEST_ASSISTS";

/// The engine, unless a test sets it; `auto` if it is not set.
pub(crate) const RUNTIME: &str = "SLUICE_TEST_RUNTIME";

/// A configuration under construction. JSON is valid YAML, and easier to change piece by piece.
pub(crate) struct Setup {
    config: Value,
    /// Folder for sockets, logs and other files of the test.
    pub(crate) folder: PathBuf,
    /// Shell commands that run before the binary replaces the shell.
    preamble: String,
    stdin: Option<Stdio>,
    arguments: Vec<String>,
}

impl Setup {
    /// One listener, one cluster named `default` with these endpoints, one worker: its pool is then the only one.
    pub(crate) fn to(endpoints: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("sluice-it-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let assists = std::env::var(ASSISTS).unwrap_or("off".to_owned());
        let config = json!({
            "listeners": [{"name": "main", "address": "127.0.0.1:0"}],
            "clusters": {"default": {"endpoints": endpoints}},
            "access_log": {"output": folder.join("access.log"), "format": "json"},
            "control": format!("unix:{}", folder.join("control.sock").display()),
            "admin": format!("unix:{}", folder.join("admin.sock").display()),
            "workers": 1,
            "runtime": std::env::var(RUNTIME).unwrap_or("auto".to_owned()),
            // A test that ends its proxy within an exchange should not wait for it, and no other test should reach it.
            "drain_timeout_ms": 30_000,
            // Tests that pass with copying must also pass with the kernel assists: the kernel tier runs all of them
            // again with them.
            "kernel": {
                "bypass": assists,
                "direct_return": if assists == "off" { "off" } else { "auto" },
                "direct_return_from_request": 1,
                "splice": assists,
                "splice_after_bytes": 0,
            },
        });
        Self { config, folder, preamble: String::new(), stdin: None, arguments: Vec::new() }
    }

    /// One endpoint.
    pub(crate) fn to_origin(origin: &Origin) -> Self {
        Self::to(&[&origin.endpoint])
    }

    /// Sets the key at this dotted path; a number is an index.
    pub(crate) fn with(mut self, path: &str, value: impl Into<Value>) -> Self {
        let mut place = &mut self.config;
        for key in path.split('.') {
            place = match (key.parse::<usize>(), place) {
                (Ok(index), Value::Array(items)) => &mut items[index],
                (_, place) => &mut place[key],
            };
        }
        *place = value.into();
        self
    }

    /// Removes a top-level key.
    pub(crate) fn without(mut self, key: &str) -> Self {
        self.config.as_object_mut().unwrap().remove(key);
        self
    }

    /// Runs the binary from a shell, after these commands.
    pub(crate) fn after(mut self, preamble: &str) -> Self {
        preamble.clone_into(&mut self.preamble);
        self
    }

    /// The standard input of the shell.
    pub(crate) fn stdin(mut self, stdin: impl Into<Stdio>) -> Self {
        self.stdin = Some(stdin.into());
        self
    }

    /// Another argument of `sluice run`.
    pub(crate) fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Writes a file into the folder and returns its path.
    pub(crate) fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.folder.join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    fn command(&mut self) -> Command {
        let file = self.file("sluice.yaml", &format!("{:#}\n", self.config));
        let binary = env!("CARGO_BIN_EXE_sluice");
        let mut command = if self.preamble.is_empty() {
            Command::new(binary)
        } else {
            let mut shell = Command::new("sh");
            shell.arg("-c").arg(format!("{}\nexec \"$@\"", self.preamble)).arg("sh").arg(binary);
            shell
        };
        command.args(["run", "--config"]).arg(file).args(&self.arguments);
        command.env_remove("SLUICE_LOG").env_remove("RUST_LOG").env_remove("NOTIFY_SOCKET");
        command.stdin(self.stdin.take().unwrap_or_else(Stdio::null));
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Starts it; `None`, with a note on standard error, if the host denies io_uring.
    pub(crate) fn start(mut self) -> Option<Proxy> {
        let mut child = self.command().spawn().unwrap();
        let stderr = child.stderr.take().unwrap();
        let log = Log::follow(stderr);
        let (config, folder) = (self.config.clone(), self.folder);
        let mut proxy = Proxy { child, log, folder, config, addresses: HashMap::new() };
        let listeners = self.config["listeners"].as_array().map_or(0, Vec::len);
        let ended = poll("the listeners", || {
            proxy.addresses = proxy.log.addresses();
            let ended = proxy.child.try_wait().unwrap();
            (proxy.addresses.len() == listeners).then_some(None).or(ended.map(Some))
        });
        if let Some(status) = ended {
            let said = poll("its last output", || proxy.log.is_over().then(|| proxy.log.text()));
            assert!(said.contains("io_uring is "), "ended with {status}: {said}");
            // Bypasses the test harness, which hides the output of passing tests.
            let _ = writeln!(std::io::stderr(), "skipped: {}", said.trim());
            return None;
        }
        if self.config["admin"].as_str().is_some_and(|address| address.starts_with("unix:")) {
            // The response comes from the control thread's loop, so signals are handled from here on.
            assert_eq!(proxy.admin("/healthz").text(), "ok\n");
        }
        Some(proxy)
    }

    /// Starts it without waiting.
    pub(crate) fn spawn(mut self) -> Starting {
        let mut child = self.command().spawn().unwrap();
        let log = Log::follow(child.stderr.take().unwrap());
        Starting { child, log, folder: self.folder }
    }

    /// Starts a proxy that must fail: exit code and output.
    pub(crate) fn fails(mut self) -> (Option<i32>, String) {
        let output = self.command().output().unwrap();
        let _ = std::fs::remove_dir_all(&self.folder);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }
}

/// A process that may not serve yet, killed when dropped.
pub(crate) struct Starting {
    child: Child,
    log: Log,
    folder: PathBuf,
}

impl Starting {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.id()).unwrap()), signal).unwrap();
    }

    /// Its exit code, once it has one.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        poll("the end of the process", || self.child.try_wait().unwrap()).code()
    }

    /// Waits for a line of its log with this message, unless it exits before.
    pub(crate) fn wait_for(&mut self, message: &str) {
        poll(message, || {
            assert_eq!(self.child.try_wait().unwrap(), None, "{}", self.log.text());
            (self.log.count(message) > 0).then_some(())
        });
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A running proxy, killed when dropped.
pub(crate) struct Proxy {
    child: Child,
    log: Log,
    pub(crate) folder: PathBuf,
    /// The configuration it was started with.
    pub(crate) config: Value,
    addresses: HashMap<String, String>,
}

impl Proxy {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The address of the only TCP listener.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address_of("main")
    }

    pub(crate) fn address_of(&self, listener: &str) -> SocketAddr {
        self.addresses[listener].parse().unwrap()
    }

    /// Replaces its configuration, and runs `sluice reload`: exit code and output.
    pub(crate) fn reload(&self, text: impl std::fmt::Display) -> (Option<i32>, String) {
        self.rewrite(text);
        self.command("reload", &[])
    }

    /// Replaces its configuration.
    pub(crate) fn rewrite(&self, text: impl std::fmt::Display) {
        let (file, new) = (self.folder.join("sluice.yaml"), self.folder.join("sluice.yaml.new"));
        std::fs::write(&new, text.to_string()).unwrap();
        std::fs::rename(new, file).unwrap();
    }

    /// Runs another `sluice` that sends a command to this one through its control socket.
    pub(crate) fn command(&self, verb: &str, arguments: &[&str]) -> (Option<i32>, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_sluice"))
            .args([verb, "--control"])
            .arg(self.folder.join("control.sock"))
            .args(arguments)
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    }

    /// The scheduling policy of each worker, as in proc(5).
    pub(crate) fn worker_policies(&self) -> Vec<String> {
        let stats = self.of_workers("stat");
        stats
            .iter()
            .map(|stat| stat.rsplit(')').next().unwrap().split(' ').nth(39).unwrap().to_owned())
            .collect()
    }

    /// The cores that each worker may use, as in proc(5), sorted.
    pub(crate) fn worker_cores(&self) -> Vec<String> {
        let mut all: Vec<_> = self.of_workers("status").iter().map(|status| allowed_cores(status)).collect();
        all.sort();
        all
    }

    /// The numbers of the workers' threads.
    pub(crate) fn worker_threads(&self) -> Vec<i32> {
        let stats = self.of_workers("stat");
        stats.iter().map(|stat| stat.split(' ').next().unwrap().parse().unwrap()).collect()
    }

    /// A file of proc(5) of each worker.
    fn of_workers(&self, file: &str) -> Vec<String> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        // A worker may exit just now.
        let read = |thread: std::fs::DirEntry| {
            let name = std::fs::read_to_string(thread.path().join("comm")).ok()?;
            name.starts_with("worker-").then(|| std::fs::read_to_string(thread.path().join(file)).ok())?
        };
        threads.filter_map(|thread| read(thread.ok()?)).collect()
    }

    /// Its private memory, in KB.
    pub(crate) fn memory_kb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// The address of a listener added after startup, from its log.
    pub(crate) fn added(&self, listener: &str) -> SocketAddr {
        poll(listener, || self.log.addresses().remove(listener)).parse().unwrap()
    }

    /// A new connection to the listener.
    pub(crate) fn connect(&self) -> Wire {
        Wire::connect(self.address())
    }

    /// One request on a new connection.
    pub(crate) fn ask(&self, request: impl AsRef<[u8]>) -> Message {
        self.connect().ask(request)
    }

    /// `GET target` on a new connection.
    pub(crate) fn get(&self, target: &str) -> Message {
        self.ask(format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n\r\n"))
    }

    /// A request to the admin listener.
    pub(crate) fn admin(&self, path: &str) -> Message {
        let mut wire = Wire::connect_unix(&self.folder.join("admin.sock"));
        wire.ask(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"))
    }

    /// The endpoint of this label, as the admin listener shows it.
    pub(crate) fn endpoint(&self, label: &str) -> Value {
        let clusters: Value = serde_json::from_slice(&self.admin("/clusters").body).unwrap();
        let all = clusters.as_array().unwrap().iter().flat_map(|c| c["endpoints"].as_array().unwrap());
        all.clone().find(|endpoint| endpoint["label"] == label).cloned().expect("no such endpoint")
    }

    /// The value of a metric, with labels in its name; 0 before it is first counted.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = self.admin("/metrics");
        let line = page.text().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().unwrap())
    }

    /// Waits for the access log's line of the request with this target.
    pub(crate) fn record(&self, target: &str) -> Value {
        self.records(1, target).remove(0)
    }

    /// Waits for `count` lines of this target.
    pub(crate) fn records(&self, count: usize, target: &str) -> Vec<Value> {
        poll(&format!("{count} records of {target:?}"), || {
            let mut found = lines(&std::fs::read_to_string(self.folder.join("access.log")).ok()?);
            // A request that was refused before its target was known has none.
            found.retain(|record| record["target"].as_str().unwrap_or_default() == target);
            (found.len() >= count).then_some(found)
        })
    }

    /// Status and reason in the record of this target.
    pub(crate) fn outcome(&self, target: &str) -> (u64, String) {
        let record = self.record(target);
        (record["status"].as_u64().unwrap(), record["reason"].as_str().unwrap_or("-").to_owned())
    }

    /// The address of the admin listener, from its log.
    pub(crate) fn admin_address(&self) -> String {
        let bound =
            lines(&self.log.text()).into_iter().find(|line| line["message"] == "the admin listener is bound");
        bound.unwrap()["address"].as_str().unwrap().to_owned()
    }

    /// Waits for a line of its log with this message.
    pub(crate) fn wait_for(&self, message: &str) {
        poll(message, || (self.log.count(message) > 0).then_some(()));
    }

    /// The first line of its log with this message.
    pub(crate) fn line(&self, message: &str) -> Value {
        poll(message, || lines(&self.log.text()).into_iter().find(|line| line["message"] == message))
    }

    /// The first line of its log whose message starts with this.
    pub(crate) fn line_beginning(&self, message: &str) -> Value {
        let begins = |line: &Value| line["message"].as_str().is_some_and(|said| said.starts_with(message));
        poll(message, || lines(&self.log.text()).into_iter().find(begins))
    }

    /// How often its log contains this message.
    pub(crate) fn said(&self, message: &str) -> usize {
        self.log.count(message)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.id()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    /// Waits until it exits.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let child = &mut self.child;
        poll("the end of the process", || child.try_wait().unwrap())
    }

    /// Whether it has not exited.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the proxy's log:\n{}", self.log.text());
            eprintln!("its access log:\n{}", read(&self.folder.join("access.log")));
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn lines(text: &str) -> Vec<Value> {
    // The last line may be incomplete.
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The process's standard error.
struct Log(Arc<Mutex<String>>);

impl Log {
    fn follow(stderr: ChildStderr) -> Self {
        let text = Arc::<Mutex<String>>::default();
        let shared = Arc::clone(&text);
        std::thread::spawn(move || {
            for line in BufReader::new(File::from(std::os::fd::OwnedFd::from(stderr))).lines() {
                let Ok(line) = line else { return };
                *shared.lock().unwrap() += &(line + "\n");
            }
        });
        Self(text)
    }

    /// Whether it is complete: the writer is the only other owner of the text.
    fn is_over(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }

    /// The bound addresses of listeners, by name.
    fn addresses(&self) -> HashMap<String, String> {
        let listening = lines(&self.text()).into_iter().filter(|line| line["message"] == "listening");
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        listening.map(|line| (text(&line["listener"]), text(&line["address"]))).collect()
    }

    fn count(&self, message: &str) -> usize {
        let said = |line: &Value| line["message"].as_str().is_some_and(|said| said.starts_with(message));
        lines(&self.text()).iter().filter(|line| said(line)).count()
    }
}

/// The cores that a thread may use, from its status in proc(5).
pub(crate) fn allowed_cores(status: &str) -> String {
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned()
}
