//! Connections that do not belong to sluice are not joined.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use nix::unistd::{Gid, Uid, getppid, setgid, setgroups, setuid};
use sluice_ebpf::Counter;
use socket2::{Domain, Protocol, Socket, Type};

use crate::leftovers::{all_kinds, held, process};
use crate::proxy_support::{Origin, Setup};
use crate::support::{Pair, Rig};

const ADDRESS: &str = "SLUICE_KERNEL_CONNECT";
const BESIDE: &str = "SLUICE_KERNEL_BESIDE";
const USER: &str = "SLUICE_KERNEL_USER";

#[test]
#[ignore = "needs root and BPF"]
fn our_own_unmarked_connection_is_not_joined() {
    let rig = Rig::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut active = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut passive = listener.accept().unwrap().0;
    active.write_all(b"hello").unwrap();
    passive.read_exact(&mut [0; 5]).unwrap();
    assert!(!rig.bypass.is_joined(active.as_fd()).unwrap());
    assert!(!rig.bypass.is_joined(passive.as_fd()).unwrap());
    assert_eq!(rig.counts(), "", "nothing was counted");
}

/// Runs the function below in a separate process, as root or nobody, which connects from a port next to `pair`'s.
/// Returns its output, and whether it was joined.
fn stranger(rig: &Rig, listener: &TcpListener, pair: &Pair, user: &str) -> (String, bool) {
    let mut stranger = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "strangers::process_that_connects"])
        .env(ADDRESS, listener.local_addr().unwrap().to_string())
        .env(BESIDE, pair.active.local_addr().unwrap().port().to_string())
        .env(USER, user)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut passive = listener.accept().unwrap().0;
    let mut text = String::new();
    passive.read_to_string(&mut text).unwrap();
    assert!(stranger.wait().unwrap().success());
    (text, rig.is_joined(&passive))
}

#[test]
#[ignore = "needs root and BPF"]
fn another_process_is_not_joined_next_to_a_joined_pair() {
    let mut rig = Rig::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let pair = rig.pair(&listener, address);
    for user in ["root", "nobody"] {
        assert_eq!(stranger(&rig, &listener, &pair, user), ("hello".to_owned(), false), "{user}");
    }
    assert_eq!(rig.count(Counter::PairsJoined), 1, "{}", rig.counts());
    assert_eq!(rig.count(Counter::MessagesJoined), 0, "{}", rig.counts());
}

/// Not a test: started by the one above. Tries everything by which sluice's own sockets might be recognised.
#[test]
#[ignore = "started by another test"]
fn process_that_connects() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let address: SocketAddr = address.parse().unwrap();
    let beside: u16 = std::env::var(BESIDE).unwrap().parse().unwrap();
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    // Setting a mark requires privileges; a mark set before they are dropped stays.
    socket.set_mark(1).unwrap();
    if std::env::var(USER).unwrap() == "nobody" {
        setgroups(&[]).unwrap();
        setgid(Gid::from_raw(65_534)).unwrap();
        setuid(Uid::from_raw(65_534)).unwrap();
        assert!(std::fs::read_to_string(format!("/proc/{}/environ", getppid())).is_err(), "still root");
    }
    let near = (1..200).filter_map(|step| beside.checked_add(step));
    let bound = near
        .into_iter()
        .any(|port| socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into()).is_ok());
    assert!(bound, "no port beside {beside} is free");
    socket.connect(&address.into()).unwrap();
    TcpStream::from(socket).write_all(b"hello").unwrap();
}

/// Descriptors of BPF objects that a process would pass to a program it starts.
fn inherited(process: &str) -> Vec<String> {
    let files = fs::read_dir(format!("/proc/{process}/fdinfo")).unwrap();
    // A descriptor may be closed by now.
    let texts = files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap_or_default());
    let object = |text: &String| ["map_id:", "prog_id:", "link_id:"].iter().any(|name| text.contains(name));
    let stays_open = |text: &String| {
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        i32::from_str_radix(flags.trim(), 8).unwrap() & libc::O_CLOEXEC == 0
    };
    texts.filter(|text| object(text) && stays_open(text)).collect()
}

#[test]
#[ignore = "needs root and BPF"]
fn no_descriptor_is_inherited() {
    let origin = Origin::saying("hi");
    let setup = Setup::to_origin(&origin).with("kernel.bypass", "required");
    let proxy = setup.with("kernel.bypass_downstream", "on").start().unwrap();
    assert_eq!(proxy.get("/").text(), "hi");
    let process = process(&proxy);
    assert!(all_kinds(&held(&process)));
    assert_eq!(inherited(&process), Vec::<String>::new());
    let _rig = Rig::new();
    let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // Its response proves that the new program runs: descriptors are closed a little after the start is reported.
    child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let objects = held(&child.id().to_string());
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(objects, Vec::new());
}

/// A process that could read the maps could see who communicates with whom; one that could write them could join
/// itself.
#[test]
#[ignore = "needs root and BPF"]
fn other_processes_cannot_access_the_maps() {
    let origin = Origin::saying("hi");
    let proxy = Setup::to_origin(&origin).with("kernel.bypass", "required").start().unwrap();
    let objects = held(&process(&proxy));
    let shows = |kind: &str, id: &str, user: &[&str]| {
        let words = [user, &["bpftool", kind, "show", "id", id]].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().expect("it runs").success()
    };
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    for (kind, id) in &objects {
        assert!(shows(kind, id, &[]), "{kind} {id}");
        assert!(!shows(kind, id, &nobody), "{kind} {id}");
    }
    assert!(all_kinds(&objects));
}
