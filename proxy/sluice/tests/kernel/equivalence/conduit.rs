//! The paths that bytes can take.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use serde_json::json;
use sluice_ebpf::Counter;
use sluice_kernel::program::Limits;

use crate::proxy_support::{Proxy, Setup};
use crate::support::{Pair, Rig};

/// Connects the connecting end with the accepting end.
pub(super) struct Conduit {
    pub(super) name: &'static str,
    listener: TcpListener,
    way: Way,
}

enum Way {
    Plain,
    Joined(Box<Rig>),
    Through(Proxy),
}

impl Conduit {
    fn new(name: &'static str, way: impl FnOnce(SocketAddr) -> Way) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let way = way(listener.local_addr().unwrap());
        Self { name, listener, way }
    }

    /// Every path that this version and host support; prints which are not supported.
    pub(super) fn all() -> Vec<Self> {
        let tiny = Limits { budget_bytes: 3000, budget_messages: 4, ..Limits::default() };
        let mut all = vec![
            Self::new("plain TCP", |_| Way::Plain),
            Self::new("joined", |_| Way::Joined(Box::new(Rig::new()))),
            Self::new("joined, with a tiny budget", |_| Way::Joined(Box::new(Rig::with(tiny)))),
            Self::new("copied by sluice", |address| Way::Through(tcp(address).start().unwrap())),
        ];
        if splices() {
            let spliced = |address| tcp(address).with("kernel.splice", "required");
            all.push(Self::new("spliced by sluice", |address| {
                Way::Through(spliced(address).start().unwrap())
            }));
            if knows("splice_after_bytes") {
                let at_once = |address| spliced(address).with("kernel.splice_after_bytes", 0);
                all.push(Self::new("spliced at once", |address| {
                    Way::Through(at_once(address).start().unwrap())
                }));
            }
        } else {
            // Bypasses the test harness, which hides the output of passing tests.
            let _ = writeln!(
                std::io::stderr(),
                "skipped: spliced by sluice: not in this version or on this host"
            );
        }
        all
    }

    /// Fails if bytes did not take this path.
    pub(super) fn check_used(&self) {
        match &self.way {
            Way::Plain => {}
            Way::Joined(rig) => {
                assert!(rig.count(Counter::MessagesJoined) > 0, "{}: {}", self.name, rig.counts());
                assert!(rig.count(Counter::BytesPassed) > 0, "{}: {}", self.name, rig.counts());
            }
            Way::Through(proxy) => {
                let path = if self.name.starts_with("spliced") { "splice" } else { "copy" };
                // Tunnels have no target.
                let records = proxy.records(1, "");
                assert!(records.iter().any(|record| record["path"] == path), "{}: no {path}", self.name);
            }
        }
    }

    /// A connection: the connecting end, and the accepting one.
    pub(super) fn open(&mut self) -> [TcpStream; 2] {
        let address = self.listener.local_addr().unwrap();
        match &mut self.way {
            Way::Plain => {
                let active = TcpStream::connect(address).unwrap();
                [active, self.listener.accept().unwrap().0]
            }
            Way::Joined(rig) => {
                let Pair { active, passive } = rig.pair(&self.listener, address);
                [active, passive]
            }
            Way::Through(proxy) => {
                let active = TcpStream::connect(proxy.address()).unwrap();
                [active, self.listener.accept().unwrap().0]
            }
        }
    }
}

fn tcp(origin: SocketAddr) -> Setup {
    let listener = json!({"name": "main", "address": "127.0.0.1:0", "protocol": "tcp", "cluster": "default"});
    Setup::to(&[&origin.to_string()]).with("listeners", json!([listener])).with("kernel.bypass", "off")
}

/// Whether sluice would start with splice required.
fn splices() -> bool {
    let setup = Setup::to(&["127.0.0.1:1"]);
    let config = json!({
        "listeners": [{"name": "main", "address": "127.0.0.1:0", "cluster": "default", "protocol": "tcp"}],
        "clusters": {"default": {"endpoints": ["127.0.0.1:1"]}},
        "kernel": {"bypass": "off", "splice": "required"},
    });
    let file = setup.file("doctor.yaml", &config.to_string());
    let doctor = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(["doctor", "--config"])
        .arg(file)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let _ = std::fs::remove_dir_all(&setup.folder);
    doctor.status.success()
}

/// Whether the effective configuration has this key.
fn knows(key: &str) -> bool {
    let setup = Setup::to(&["127.0.0.1:1"]);
    let config = json!({
        "listeners": [{"name": "main", "address": "127.0.0.1:0"}],
        "clusters": {"default": {"endpoints": ["127.0.0.1:1"]}},
    });
    let file = setup.file("shown.yaml", &config.to_string());
    let shown = Command::new(env!("CARGO_BIN_EXE_sluice")).args(["config", "--config"]).arg(file).output();
    let _ = std::fs::remove_dir_all(&setup.folder);
    String::from_utf8_lossy(&shown.unwrap().stdout).contains(key)
}
