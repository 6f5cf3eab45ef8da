//! gRPC through sluice, with HTTP/2 on both sides: `cargo xtask test grpc`. The calls are grpc-go's interoperability
//! tests, between its own client and server, and those of our Python client.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use serde_json::json;
use sluice_testkit::process::{Process, bound, free_ports, sluice};
use sluice_testkit::{pinned, workspace};

use super::site::local;

const SERVER: &str = "grpc-interop-server";
const CLIENT: &str = "grpc-interop-client";
const PYTHON: &str = "grpcio";

/// Those that need neither TLS nor cloud credentials.
const CASES: &[&str] = &[
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "custom_metadata",
    "unimplemented_method",
    "unimplemented_service",
];

/// Every case, and every check of the Python client.
pub(super) fn calls(binary: &Path) -> Result<String> {
    let [server, client, python] = [pinned::tool(SERVER)?, pinned::tool(CLIENT)?, pinned::tool(PYTHON)?];
    let folder = workspace::scratch("operate")?.join("grpc");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let [address, origin] = free_ports(Ipv4Addr::LOCALHOST.into())?.map(local);
    let mut command = bound(server);
    command.args(["--port", &origin.port().to_string()]);
    let logs = workspace::scratch("logs")?;
    let mut server = Process::start(SERVER, &mut command, logs.join("grpc-server.log"), Signal::SIGTERM)?;
    server.wait_ready(origin)?;
    let config = json!({
        "listeners": [{"address": address, "http2": "prior_knowledge"}],
        "clusters": {"calls": {"protocol": "h2", "endpoints": [origin]}},
        "control": "off",
        "access_log": "off",
        "workers": 2,
    });
    let file = folder.join("sluice.yaml");
    fs::write(&file, format!("{config:#}\n"))?;
    let mut command = sluice(binary);
    command.arg("--config").arg(&file);
    let mut sluice = Process::start("sluice", &mut command, logs.join("grpc-sluice.log"), Signal::SIGTERM)?;
    sluice.wait_ready(address)?;
    for case in CASES {
        let port = address.port().to_string();
        let arguments = ["--server_host", "127.0.0.1", "--server_port", &port, "--test_case", case];
        said(&client, &arguments).with_context(|| format!("{case}\n{}", sluice.tail()))?;
    }
    let program = workspace::root().join("proxy/system/grpc/client.py").display().to_string();
    let checks = said(&python, &[&program, &address.to_string()])
        .with_context(|| format!("python\n{}", sluice.tail()))?;
    Ok(format!("{} cases in Go, {} in Python", CASES.len(), checks.trim()))
}

/// The output of a client that succeeds.
fn said(program: &Path, arguments: &[&str]) -> Result<String> {
    let output = bound(program).args(arguments).stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{text}{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(text)
}
