//! Loads the program that turns banned clients away, and tells it who they are.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{HashMap, Map, MapData, MapError, PerCpuArray};
use aya::programs::SocketFilter;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::time::{ClockId, clock_gettime};
use sluice_ebpf::bans::{Client, names, of_v4, of_v6};
use socket2::{Domain, Socket, Type};

use super::KernelError;
use super::failed::{Result, failed};
use super::program::missing;
use super::socket;

/// Built by `cargo xtask build-ebpf`, and committed.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../proxy-ebpf/prebuilt/bans.bpf.o");

/// How long a connection on loopback may take at the start: less than the second after which TCP tries again.
const PATIENCE: Duration = Duration::from_millis(900);

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

    /// Connects to a listener that the program guards: as a client that is banned, as another one, and as the first one
    /// without its ban.
    fn try_out(&self) -> io::Result<()> {
        const BANNED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        self.guard(listener.as_fd()).map_err(|error| error.error)?;
        let address = listener.local_addr()?.into();
        let begin = |from: Ipv4Addr| -> io::Result<Socket> {
            let client = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            client.bind(&SocketAddr::from((from, 0)).into())?;
            client.set_nonblocking(true)?;
            match client.connect(&address) {
                Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
                _ => Ok(client),
            }
        };
        self.ban(BANNED.into(), Duration::from_secs(60)).map_err(io::Error::other)?;
        // The kernel takes the packets of loopback in order: once the second client is in, the first one would be.
        let tried = begin(BANNED).and_then(|banned| {
            let other = begin(Ipv4Addr::LOCALHOST)?;
            Ok((is_let_in(&other)?, banned.peer_addr().is_ok()))
        });
        self.pardon(BANNED.into()).map_err(io::Error::other)?;
        let (lets_others_in, lets_banned_in) = tried?;
        if lets_banned_in {
            return Err(io::Error::other("a client that is banned was let in"));
        }
        match lets_others_in && is_let_in(&begin(BANNED)?)? {
            true => Ok(()),
            false => Err(io::Error::other("a client that is not banned was turned away")),
        }
    }
}

/// Waits until a client is connected; false if it is not for too long. At once, except where the kernel leaves packets
/// to a thread of its own (ksoftirqd, often before Linux 6.5).
fn is_let_in(client: &Socket) -> io::Result<bool> {
    let patience = PollTimeout::try_from(PATIENCE).unwrap_or(PollTimeout::NONE);
    poll(&mut [PollFd::new(client.as_fd(), PollFlags::POLLOUT)], patience)?;
    Ok(client.peer_addr().is_ok())
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
