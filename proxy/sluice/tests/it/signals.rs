//! Signals, from the first moment on.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::Pid;

use super::support::{Origin, Setup, Wire, free_port, poll};
use super::upgrade::Stray;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// A client that finds the port open, such as a deploy script, finds everything else as well.
#[test]
fn the_port_opens_last() {
    let origin = Origin::saying("here");
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let setup = Setup::to_origin(&origin).with("listeners.0.address", address.to_string());
    let control = setup.folder.join("control.sock");
    let found = std::thread::spawn(move || {
        let client = poll("the port", || TcpStream::connect(address).ok());
        let control = UnixStream::connect(control).expect("the control socket is there");
        let pid = getsockopt(&control, PeerCredentials).unwrap().pid();
        // None of them kills it, or loses the request.
        for signal in [Signal::SIGHUP, Signal::SIGUSR1] {
            kill(Pid::from_raw(pid), signal).unwrap();
        }
        assert_eq!(Wire::from(client).ask(GET).text(), "here");
    });
    let Some(proxy) = setup.start() else { return };
    found.join().unwrap();
    proxy.wait_for("configuration applied");
}

#[test]
fn signals_during_startup_are_handled_afterwards() {
    let origin = Origin::saying("here");
    for (signal, code) in [
        (Signal::SIGHUP, None),
        (Signal::SIGUSR1, None),
        (Signal::SIGTERM, Some(0)),
        (Signal::SIGQUIT, Some(0)),
    ] {
        let mut child = Setup::to_origin(&origin).spawn();
        let caught = format!("/proc/{}/status", child.id());
        let bit = 1_u64 << (signal as i32 - 1);
        poll("the handlers", || {
            let status = std::fs::read_to_string(&caught).unwrap();
            let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
            (u64::from_str_radix(mask.trim(), 16).unwrap() & bit != 0).then_some(())
        });
        child.signal(signal);
        match code {
            Some(code) => assert_eq!(child.wait(), Some(code), "{signal}"),
            None => child.wait_for("listening"),
        }
    }
}

#[test]
fn sigquit_drains() {
    let origin = Origin::saying("here");
    let Some(mut proxy) = Setup::to_origin(&origin).start() else { return };
    assert_eq!(proxy.get("/").text(), "here");
    proxy.signal(Signal::SIGQUIT);
    assert_eq!(proxy.wait().code(), Some(0));
    assert_eq!((proxy.said("draining"), proxy.said("drained")), (1, 1));
}

#[test]
fn sigusr2_upgrades() {
    let origin = Origin::saying("here");
    let Some(mut proxy) = Setup::to_origin(&origin).start() else { return };
    proxy.signal(Signal::SIGUSR2);
    let taken = proxy.line("the new process has taken over");
    let _next = Stray(taken["pid"].as_i64().unwrap().try_into().unwrap());
    assert_eq!(proxy.wait().code(), Some(0));
    assert_eq!(proxy.get("/").text(), "here");
}
