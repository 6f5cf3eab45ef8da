//! The built binary with a `tcp` listener whose tunnels are spliced.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::wait_for;

/// Maximum wait for a byte in these tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running sluice, and the listener of its origin.
pub(crate) struct Proxy {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    origin: TcpListener,
    folder: PathBuf,
}

impl Proxy {
    /// Starts one that splices tunnels after this many bytes.
    pub(crate) fn splicing(after_bytes: u64) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("sluice-splice-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let origin = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let config = json!({
            "listeners": [
                {"name": "main", "address": "127.0.0.1:0", "protocol": "tcp", "cluster": "default"},
            ],
            "clusters": {"default": {"endpoints": [origin.local_addr().unwrap().to_string()]}},
            "access_log": {"output": folder.join("access.log"), "format": "json"},
            "admin": format!("unix:{}", folder.join("admin.sock").display()),
            "workers": 2,
            "kernel": {"bypass": "off", "splice": "required", "splice_after_bytes": after_bytes},
        });
        let file = folder.join("sluice.yaml");
        fs::write(&file, format!("{config:#}\n")).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_sluice"))
            .args(["run", "--config"])
            .arg(file)
            .env_remove("SLUICE_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let line = lines.find(|line| line.contains("\"listening\"")).expect("it listens");
        let line: Value = serde_json::from_str(&line).unwrap();
        let address = line["address"].as_str().unwrap().parse().unwrap();
        // Later lines are part of the test's output.
        std::thread::spawn(move || lines.for_each(|line| eprintln!("{line}")));
        let proxy = Self { child, address, origin, folder };
        // Signals are handled once the control thread answers.
        wait_for("a response", || proxy.try_metric("sluice_splice_mismatches_total").is_some());
        proxy
    }

    /// A tunnel: its client and its server.
    pub(crate) fn tunnel(&self) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(self.address).unwrap();
        let server = self.origin.accept().unwrap().0;
        for socket in [&client, &server] {
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.set_write_timeout(Some(PATIENCE)).unwrap();
        }
        (client, server)
    }

    /// The access log once it has this many lines.
    pub(crate) fn records(&self, count: usize) -> Vec<Value> {
        let read = || fs::read_to_string(self.folder.join("access.log")).unwrap_or_default();
        wait_for("the access log", || read().lines().count() >= count);
        read().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// A metric's value.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        self.try_metric(name).unwrap_or_else(|| panic!("no {name}"))
    }

    /// The same, for a process that may have exited.
    pub(crate) fn try_metric(&self, name: &str) -> Option<u64> {
        let mut admin = UnixStream::connect(self.folder.join("admin.sock")).ok()?;
        admin.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        admin.read_to_string(&mut text).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line?.trim().parse().ok()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.folder.join("access.log")).unwrap_or_default();
            log.lines().filter(|line| !line.contains("\"reason\":null")).for_each(|line| eprintln!("{line}"));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
