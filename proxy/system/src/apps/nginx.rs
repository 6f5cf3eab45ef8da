//! nginx with one worker, serving files of four sizes.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use sluice_testkit::nginx::temp_paths;
use sluice_testkit::process::{Process, find_program};

use super::rig::{Place, Rig};
use super::uploads::TRICKLES;
use super::wire::Wire;
use super::{App, checks, clients, curl};

const HELLO: &str = "hello from nginx";
const FILES: &[(&str, usize)] =
    &[("1kb.bin", 1 << 10), ("64kb.bin", 64 << 10), ("1mb.bin", 1 << 20), ("8mb.bin", 8 << 20)];

/// See `config/examples/nginx-static.yaml`.
pub(super) const APP: App = App {
    name: "nginx",
    example: "nginx-static.yaml",
    sources: "nginx",
    host: "localhost",
    prefix: "",
    path: "/index.html",
    hello: HELLO,
    large: "/1mb.bin",
    compared: &["/index.html", "/no-such-path", "/1kb.bin", "/64kb.bin"],
    slow: &[
        "/64kb.bin",
        "/1mb.bin",
        "/64kb.bin",
        "/1mb.bin",
        "/64kb.bin",
        "/1mb.bin",
        "/64kb.bin",
        "/8mb.bin",
    ],
    programs: &["nginx", "curl", "wrk", "sha256sum"],
    tool: None,
    start,
    checks: &[
        checks::CHECKS,
        &[
            ("files", files),
            ("range", range),
            ("not_modified", not_modified),
            ("trickled_uploads", trickled_uploads),
            ("load", |rig| checks::load(rig, "/1kb.bin")),
            ("load_64kb", |rig| checks::load(rig, "/64kb.bin")),
            ("load_1mb", |rig| checks::load(rig, "/1mb.bin")),
        ],
        clients::CHECKS,
    ],
};

fn start(place: &Place) -> Result<Process> {
    let program = find_program("nginx").context("nginx")?;
    let html = place.folder.join("html");
    fs::create_dir_all(&html)?;
    fs::write(html.join("index.html"), format!("{HELLO}\n"))?;
    for (name, size) in FILES {
        fs::write(html.join(name), pattern(*size))?;
    }
    let output = Command::new(&program).arg("-V").output().context("nginx -V")?;
    let built = String::from_utf8_lossy(&output.stderr).into_owned();
    let folder = place.folder.display().to_string();
    let user = if geteuid().is_root() { "user root;" } else { "" };
    let template = fs::read_to_string(place.sources.join("nginx.conf"))?;
    let config = template
        .replace("@TEMP_PATHS@", &temp_paths(&built))
        .replace("@FOLDER@", &folder)
        .replace("@USER@", user)
        .replace("@ADDRESS@", &place.address.to_string());
    let file = place.folder.join("nginx.conf");
    fs::write(&file, config)?;

    let mut command = place.command(program);
    command.arg("-p").arg(&place.folder).arg("-c").arg(&file);
    let mut process = Process::start("nginx", &mut command, place.log.clone(), Signal::SIGQUIT)?;
    process.wait_ready(place.address)?;
    Ok(process)
}

fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|i| (i * 31 + i / 251) as u8).collect()
}

/// Every file arrives completely.
fn files(rig: &Rig) -> Result<String> {
    let got = rig.place.folder.join("got.bin");
    for (name, size) in FILES {
        let path = format!("/{name}");
        let answer = curl::curl(rig, &["--output", &got.display().to_string()], &[&path])?;
        ensure!(answer.status == 200, "{name}: status {}", answer.status);
        ensure!(fs::read(&got)? == pattern(*size), "{name}: bytes differ");
    }
    Ok(String::new())
}

/// Bodies sent in pieces arrive completely in the files where nginx stores them. nginx asks the kernel how many bytes
/// are available. The example allows only GET and HEAD, and a GET may have a body.
fn trickled_uploads(rig: &Rig) -> Result<String> {
    let mut wire = Wire::connect(rig)?;
    for trickle in TRICKLES {
        let body = trickle.body();
        trickle.send(rig, &mut wire, "GET", &body)?;
        let answer = wire.reply().with_context(|| trickle.to_string())?;
        ensure!(answer.status() == 200, "{trickle}: {}", answer.head);
        let file = answer.field("x-body-file").with_context(|| format!("{trickle}: {}", answer.head))?;
        ensure!(fs::read(&file).context(file)? == body, "{trickle}: bytes differ");
    }
    Ok(format!("{} uploads on one connection", TRICKLES.len()))
}

/// A range is forwarded (RFC 9110 14).
fn range(rig: &Rig) -> Result<String> {
    let got = rig.place.folder.join("range.bin");
    let args = ["--range", "1000-1999", "--output", &got.display().to_string()];
    let answer = curl::curl(rig, &args, &["/64kb.bin"])?;
    ensure!(answer.status == 206, "status {}", answer.status);
    ensure!(fs::read(&got)? == pattern(2000)[1000..], "bytes differ");
    Ok(String::new())
}

/// A 304 has no body and keeps the connection usable (RFC 9110 15.4.5).
fn not_modified(rig: &Rig) -> Result<String> {
    let head = curl::curl(rig, &["--head"], &["/64kb.bin"])?.text;
    let tag = head
        .lines()
        .find_map(|line| line.split_once(": ").filter(|(name, _)| name.eq_ignore_ascii_case("etag")))
        .with_context(|| format!("no ETag: {head}"))?
        .1;
    let condition = format!("If-None-Match: {tag}");
    let answer = curl::curl(rig, &["--header", &condition], &["/64kb.bin", "/64kb.bin"])?;
    ensure!(answer.status == 304, "status {}", answer.status);
    ensure!(answer.size == 0, "{} bytes of body", answer.size);
    ensure!(answer.connects == [1, 0], "connections made: {:?}", answer.connects);
    Ok(String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_modules_get_no_directive() {
        let paths = temp_paths("configure arguments: --without-http_scgi_module --with-x");
        assert!(paths.contains("uwsgi_temp_path @FOLDER@/uwsgi;"));
        assert!(!paths.contains("scgi_temp_path @FOLDER@/scgi;\n") && !paths.ends_with("/scgi;"));
    }
}
