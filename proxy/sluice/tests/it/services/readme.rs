//! The examples of kamal-proxy's README and its command tests, with requests between them: the output must be the same,
//! and the same application must respond. If SLUICE_TEST_KAMAL_PROXY names its binary, it is tested too.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::replay::{Server, folder, kamal_proxy, skip};
use crate::support::{Origin, Setup, free_port, ok, poll};

const README: &str = include_str!("readme.txt");

/// The two applications of the README.
struct Web(Origin, Origin);

impl Web {
    fn start() -> Self {
        let web = |name: &'static str| {
            Origin::answering(move |request| match request.target() {
                "/sick" => b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n".to_vec(),
                target => ok(&format!("{name} {target}")),
            })
        };
        Self(web("web-1"), web("web-2"))
    }

    /// A line with the addresses of the applications here; the port for health checks is the other one's.
    fn here(&self, line: &str) -> String {
        let other = self.1.endpoint.rsplit_once(':').unwrap().1;
        line.replace("web-1:3000", &self.0.endpoint)
            .replace("web-2:3000", &self.1.endpoint)
            .replace("port 8080", &format!("port {other}"))
    }
}

/// The response: the status, and the application's text.
fn curl(port: u16, url: &str) -> String {
    let (host, path) = url.split_once('/').unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap();
    if status == "200" { format!("200 {body}") } else { status.to_owned() }
}

fn replay(server: &Server, port: u16) {
    let web = Web::start();
    let blocks = README.split("\n$ ").skip(1);
    let mut count = 0;
    for block in blocks {
        let mut lines = block.lines().take_while(|line| !line.is_empty());
        let command = lines.next().unwrap();
        let wanted: Vec<&str> = lines.collect();
        count += 1;
        if let Some(url) = command.strip_prefix("curl ") {
            assert_eq!([curl(port, url).as_str()], *wanted, "{command}");
            continue;
        }
        let line = command.strip_prefix("kamal-proxy ").unwrap();
        let (mut said, code) = server.ask(&web.here(line));
        // Help texts differ; the results of the targets' last checks are additional lines.
        said.truncate(wanted.len() - 1);
        said.push(format!("rc {code}"));
        assert_eq!(said, wanted, "{command}");
    }
    assert!(count > 40, "{count} steps");
}

/// Starts a server in each of the three ways of the README, and replays its examples on the first.
fn as_in_the_readme(program: PathBuf, name: &str) {
    let ways = [("", "--http-port"), ("HTTP_PORT", ""), ("KAMAL_PROXY_HTTP_PORT", "")];
    for (variable, flag) in ways {
        let port = free_port();
        let text = port.to_string();
        let arguments = if flag.is_empty() { vec![] } else { vec![flag, &text] };
        let environment = if variable.is_empty() { vec![] } else { vec![(variable, text.as_str())] };
        let folder = folder(&format!("{name}-{variable}"));
        let server = Server::start_with(program.clone(), &folder, &arguments, &environment);
        poll("the port", || TcpStream::connect(("127.0.0.1", port)).ok());
        if variable.is_empty() {
            replay(&server, port);
        } else {
            assert_eq!(curl(port, "app.example.com/"), "404", "{variable}");
        }
    }
}

fn link(folder: &Path) -> PathBuf {
    std::fs::create_dir_all(folder).unwrap();
    let link = folder.join("kamal-proxy");
    symlink(env!("CARGO_BIN_EXE_sluice"), &link).unwrap();
    link
}

#[test]
fn sluice_passes_kamal_proxys_readme() {
    if Setup::to(&["127.0.0.1:1"]).start().is_none() {
        return;
    }
    let folder = folder("readme-link");
    as_in_the_readme(link(&folder), "readme");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn kamal_proxy_passes_its_readme() {
    match kamal_proxy() {
        Some(program) => as_in_the_readme(program, "readme-kamal"),
        None => skip(),
    }
}
