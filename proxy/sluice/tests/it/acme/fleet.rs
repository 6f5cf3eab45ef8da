//! Certificates that the members of a fleet share, by a real Redis.

use std::fs;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::pebble::{Kind, Pebble, Ports, look};
use super::{attempts, issued, verify};
use crate::psql::program;
use crate::support::{Origin, Proxy, Setup, free_port, poll};

const KEY: &str = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFG=\n";

/// A Redis in memory, killed when dropped.
struct Redis {
    child: Child,
    port: u16,
}

impl Redis {
    /// Starts one; `None`, with a note on standard error, if it is not installed.
    fn start() -> Option<Self> {
        let program = program("redis-server")?;
        let port = free_port();
        let mut command = Command::new(program);
        command.args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        poll("Redis", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
        Some(Self { child, port })
    }

    /// Everything that it has, as text.
    fn dump(&self) -> String {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &self.port.to_string(), "hgetall", "fleet:values"]);
        String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The members of a fleet, by their names.
struct Fleet<'f> {
    origin: &'f Origin,
    pebble: &'f Pebble,
    redis: &'f Redis,
}

impl Fleet<'_> {
    /// Starts a member with these names, on these ports.
    fn member(&self, name: &str, ports: Ports, names: &[&str], challenge: &str) -> Option<Proxy> {
        let key = self.pebble.path("fleet.key");
        fs::write(&key, KEY).unwrap();
        let mut acme = self.pebble.config();
        acme["state_folder"] = json!(self.pebble.path(&format!("state-{name}")));
        acme["challenge"] = challenge.into();
        let store: Value = json!({
            "redis": {"address": format!("127.0.0.1:{}", self.redis.port), "prefix": "fleet:"},
            "member": name, "key_file": key, "member_ttl": "3s",
        });
        let tls = json!({"acme": {"names": names}});
        let listeners = json!([
            {"name": "main", "address": format!("127.0.0.1:{}", ports.http)},
            {"name": "secure", "address": format!("127.0.0.1:{}", ports.tls), "tls": tls},
        ]);
        let setup = Setup::to_origin(self.origin).with("listeners", listeners).with("acme", acme);
        setup.with("store", store).start()
    }
}

/// Orders on a member that the authority does not ask, and looks at what a third one serves.
fn one_certificate(challenge: &str) {
    let (asked, origin) = (Ports::new(), Origin::saying("hi"));
    let Some(pebble) = Pebble::start(asked, &Kind::default()) else { return };
    let Some(redis) = Redis::start() else { return };
    let fleet = Fleet { origin: &origin, pebble: &pebble, redis: &redis };
    let [second, third] = [Ports::new(), Ports::new()];
    // The authority asks this one, which has no such name.
    let Some(first) = fleet.member("web1", asked, &["other.example"], challenge) else { return };
    issued(asked, "other.example");
    let ordering = fleet.member("web2", second, &["a.example"], challenge).unwrap();
    let shown = issued(second, "a.example");
    verify(&shown, "a.example", &pebble);
    let late = fleet.member("web3", third, &["a.example", "other.example"], challenge).unwrap();
    assert_eq!(look(third.tls, "a.example").unwrap().chain, shown.chain, "at once, and the same");
    assert_eq!(late.said("no certificate yet"), 0);
    let all = [&first, &ordering, &late].map(|proxy| attempts(proxy, "issued"));
    assert_eq!(all, [1.0, 1.0, 0.0]);
    let accounts = [&first, &ordering, &late].map(|proxy| proxy.said("created an ACME account"));
    assert_eq!(accounts, [1, 0, 0]);
    let dump = redis.dump();
    assert!(dump.contains("a.example"), "{dump}");
    assert!(!dump.contains("PRIVATE KEY") && !dump.contains("CERTIFICATE"), "{dump}");
}

#[test]
fn http_01_by_another_member() {
    one_certificate("http-01");
}

#[test]
fn tls_alpn_01_by_another_member() {
    one_certificate("tls-alpn-01");
}

#[test]
fn members_that_start_together_order_once() {
    let (asked, origin) = (Ports::new(), Origin::saying("hi"));
    let Some(pebble) = Pebble::start(asked, &Kind::default()) else { return };
    let Some(redis) = Redis::start() else { return };
    let fleet = Fleet { origin: &origin, pebble: &pebble, redis: &redis };
    let ports = [asked, Ports::new(), Ports::new()];
    let members: Vec<_> = ports
        .iter()
        .zip(["web1", "web2", "web3"])
        .map(|(ports, name)| fleet.member(name, *ports, &["a.example", "b.example"], "http-01").unwrap())
        .collect();
    for name in ["a.example", "b.example"] {
        let shown = ports.map(|ports| issued(ports, name));
        assert!(shown.iter().all(|one| one.chain == shown[0].chain), "{name}");
    }
    let orders: f64 = members.iter().map(|member| attempts(member, "issued")).sum();
    assert!((orders - 2.0).abs() < f64::EPSILON, "{orders} orders for two names");
    let accounts: usize = members.iter().map(|member| member.said("created an ACME account")).sum();
    assert_eq!(accounts, 1);
}
