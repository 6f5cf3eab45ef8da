//! Services on the command line: deployed, paused, stopped, split and removed while requests are running.

mod containers;
mod deploys;
mod fields;
mod readme;
mod replay;
mod splits;
mod states;
mod targets;
mod upgrades;

use std::process::{Command, Output};

use serde_json::json;

use super::support::{Message, Origin, Proxy, Setup, Wire, ok};

/// A proxy whose file leaves all hosts but one to services, which are stored in its folder.
fn setup(origin: &Origin) -> Setup {
    let setup = Setup::to_origin(origin);
    let state = setup.folder.join("services.json").display().to_string();
    setup
        .with("routes", json!([{"name": "file", "hosts": ["file.test"], "cluster": "default"}]))
        .with("services", json!({"state_file": state}))
}

/// An application: healthy on /up, and responds with its name to everything else.
fn app(name: &'static str) -> Origin {
    Origin::answering(move |request| if request.target() == "/up" { ok("") } else { ok(name) })
}

/// Runs a command on services: exit code and output.
fn sluice(proxy: &Proxy, line: &str) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = command(proxy, line).output().unwrap();
    (status.code(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

fn command(proxy: &Proxy, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(line.split_whitespace()).env("SLUICE_CONTROL", proxy.folder.join("control.sock"));
    command
}

/// Runs a command that must succeed.
fn done(proxy: &Proxy, line: &str) {
    assert_eq!(sluice(proxy, line), (Some(0), String::new()), "{line}");
}

fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: svc.test\r\n\r\n")
}

fn ask(proxy: &Proxy, target: &str) -> Message {
    proxy.ask(get(target))
}

/// The text of a response, or its status if it is not 200.
fn said(message: &Message) -> String {
    if message.status() == 200 { message.text().to_owned() } else { message.status().to_string() }
}

/// Whether the other side has closed the connection.
fn is_closed(wire: &mut Wire) -> bool {
    wire.try_head().is_err()
}
