//! Loads the program that turns banned clients away, and tells it who they are.

use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{HashMap, Map, MapData, MapError, PerCpuArray};
use aya::programs::SocketFilter;
use nix::time::{ClockId, clock_gettime};
use sluice_ebpf::bans::{Client, names, of_v4, of_v6};
use socket2::{Domain, SockRef, Socket, Type};

use super::KernelError;
use super::failed::{Result, failed};
use super::program::missing;
use super::socket;

/// Built by `cargo xtask build-ebpf`, and committed.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../proxy-ebpf/prebuilt/bans.bpf.o");

/// The loaded program. It remains at the sockets to which it was attached until they are closed.
pub struct Door {
    program: OwnedFd,
    banned: Mutex<HashMap<MapData, Client, u64>>,
    dropped: PerCpuArray<MapData, u64>,
}

impl Door {
    /// Loads the program with room for `clients_max` clients, and tries it on sockets of its own. Requires CAP_BPF;
    /// what follows requires nothing. Linux 5.8 or later.
    ///
    /// # Errors
    /// The kernel refuses a map or the program, or the program does not stop a client.
    pub fn load(clients_max: u32) -> Result<Self> {
        let mut ebpf = super::loader::loader()
            .map_max_entries(names::BANNED, clients_max)
            .load(OBJECT)
            .map_err(failed("load the eBPF object"))?;
        super::give_back();
        let program: &mut SocketFilter = ebpf
            .program_mut(names::DOOR)
            .ok_or_else(|| missing(names::DOOR))?
            .try_into()
            .map_err(failed(names::DOOR))?;
        program.load().map_err(failed("bpf(BPF_PROG_LOAD) of socket_filter"))?;
        let program = program.fd().map_err(failed(names::DOOR))?.as_fd().try_clone_to_owned();
        let door = Self {
            program: program.map_err(failed("dup the program"))?,
            banned: Mutex::new(take(&mut ebpf, names::BANNED)?),
            dropped: take(&mut ebpf, names::DROPPED)?,
        };
        door.try_out().map_err(failed("try the program"))?;
        Ok(door)
    }

    /// Turns a client away for some time at all sockets to which the program is attached. The clients that came
    /// last are kept if there are too many.
    ///
    /// # Errors
    /// The map cannot be written. Before Linux 5.19 that requires CAP_BPF where `unprivileged_bpf_disabled` is set.
    pub fn ban(&self, client: IpAddr, left: Duration) -> Result<()> {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_err(failed("clock_gettime"))?;
        let until = Duration::from(now).saturating_add(left);
        let until = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        let mut banned = self.banned.lock().unwrap_or_else(PoisonError::into_inner);
        banned.insert(key(client), until, 0).map_err(failed("bpf(BPF_MAP_UPDATE_ELEM)"))
    }

    /// Lets a client connect again.
    ///
    /// # Errors
    /// The map cannot be written.
    pub fn pardon(&self, client: IpAddr) -> Result<()> {
        let mut banned = self.banned.lock().unwrap_or_else(PoisonError::into_inner);
        match banned.remove(&key(client)) {
            Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
            Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed("bpf(BPF_MAP_DELETE_ELEM)")(error)),
        }
    }

    /// Attaches the program to a listening TCP socket.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn guard(&self, listener: BorrowedFd<'_>) -> std::result::Result<(), KernelError> {
        let option = (libc::SOL_SOCKET, libc::SO_ATTACH_BPF);
        socket::set(listener, option, self.program.as_raw_fd(), "setsockopt(SO_ATTACH_BPF)")
    }

    /// Packets that were dropped. A client that is turned away repeats its first packet some times.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn dropped(&self) -> Result<u64> {
        let counts = self.dropped.get(&0, 0).map_err(failed("bpf(BPF_MAP_LOOKUP_ELEM)"))?;
        Ok(counts.iter().sum())
    }

    /// Connects to a listener that the program guards: once before the client is banned, once while it is, once after
    /// it.
    fn try_out(&self) -> io::Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        self.guard(listener.as_fd()).map_err(|error| error.error)?;
        let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
        let address = listener.local_addr()?.into();
        // On loopback, the kernel has answered when the call returns.
        let begin = || -> io::Result<(Socket, bool)> {
            let client = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            client.set_nonblocking(true)?;
            match client.connect(&address) {
                Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
                _ => {}
            }
            let is_connected = SockRef::from(&client).peer_addr().is_ok();
            Ok((client, is_connected))
        };
        let (_before, lets_in) = begin()?;
        self.ban(loopback, Duration::from_secs(60)).map_err(io::Error::other)?;
        let turned_away = begin();
        self.pardon(loopback).map_err(io::Error::other)?;
        let (_during, is_in) = turned_away?;
        let (_after, lets_in_again) = begin()?;
        match (lets_in && lets_in_again, is_in) {
            (_, true) => Err(io::Error::other("a client that is banned was let in")),
            (false, false) => Err(io::Error::other("a client that is not banned was turned away")),
            (true, false) => Ok(()),
        }
    }
}

/// Lets everyone connect to a listening socket again, whatever was attached to it.
pub fn unguard(listener: BorrowedFd<'_>) {
    // It fails if nothing is attached.
    let _ = socket::set(listener, (libc::SOL_SOCKET, libc::SO_DETACH_BPF), 0, "setsockopt(SO_DETACH_BPF)");
}

fn take<M: TryFrom<Map, Error = MapError>>(ebpf: &mut Ebpf, name: &'static str) -> Result<M> {
    ebpf.take_map(name).ok_or_else(|| missing(name))?.try_into().map_err(failed(name))
}

fn key(client: IpAddr) -> Client {
    match client.to_canonical() {
        IpAddr::V4(v4) => of_v4(v4.octets()),
        IpAddr::V6(v6) => {
            let [a, b, c, d, e, f, g, h, ..] = v6.octets();
            of_v6([a, b, c, d, e, f, g, h])
        }
    }
}
