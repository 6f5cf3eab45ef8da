//! dnsmasq: addresses and services that change, an answer that there are none, and no answer.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::Result;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use sluice_testkit::process::{Process, bound, free_ports};
use sluice_testkit::workspace;

use super::{Applications, Scene};

/// # Errors
/// A request has failed, or sluice does not use what the DNS says.
pub(in super::super) fn records_change(binary: &Path) -> Result<String> {
    let folder = workspace::scratch("operate")?.join("dnsmasq");
    fs::create_dir_all(&folder)?;
    let applications = Applications::start("discovery-dns")?;
    let ports = applications.ports;
    let [port] = free_ports(Ipv4Addr::LOCALHOST.into())?;
    // dnsmasq reads services only when it starts.
    let services = |used: &[usize]| -> Result<Process> {
        let mut lines = format!(
            "port={port}\nlisten-address=127.0.0.1\nbind-interfaces\nno-resolv\nno-hosts\nlocal-ttl=1\n\
             keep-in-foreground\npid-file={}\nuser=root\naddress=/app.test/127.0.0.1\nlocal=/test/\n",
            folder.join("pid").display()
        );
        for one in used {
            lines.push_str(&format!("srv-host=_http._tcp.test,app.test,{},1,10\n", ports[*one]));
        }
        let file = folder.join("dnsmasq.conf");
        fs::write(&file, lines)?;
        let mut command = bound("dnsmasq");
        command.arg("-C").arg(&file);
        Process::start(
            "dnsmasq",
            &mut command,
            workspace::scratch("logs")?.join("discovery-dnsmasq.log"),
            Signal::SIGTERM,
        )
    };
    let mut dnsmasq = services(&[0, 1])?;
    let discover = json!({"dns": {
        "name": "_http._tcp.test", "record": "SRV", "servers": [format!("127.0.0.1:{port}")],
        // It may be asked before it listens.
        "interval_max": "1s",
    }});
    let mut scene = Scene::start("discovery-dns", binary, applications, &discover)?;
    scene.wait_for(&[0, 1])?;
    dnsmasq.stop()?;
    let mut dnsmasq = services(&[1, 2, 3])?;
    scene.wait_for(&[1, 2, 3])?;
    // There are none any more.
    dnsmasq.stop()?;
    let dnsmasq = services(&[])?;
    scene.wait_until("sluice_discovery_doubted", true)?;
    scene.wait_for(&[1, 2, 3])?;
    kill(Pid::from_raw(i32::try_from(dnsmasq.pid())?), Signal::SIGKILL)?;
    drop(dnsmasq);
    scene.wait_until("sluice_discovery_failing", true)?;
    scene.wait_for(&[1, 2, 3])?;
    let _dnsmasq = services(&[0, 3])?;
    scene.wait_for(&[0, 3])?;
    scene.finish()
}
