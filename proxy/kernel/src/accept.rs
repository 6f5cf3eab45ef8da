//! Loads the program that gives each new connection to the worker with the fewest, and shares the counts with it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use aya::maps::Map;
use aya::programs::SocketFilter;
use sluice_ebpf::accept::{Load, names};
use socket2::{Domain, Socket, Type};

use super::KernelError;
use super::failed::{Result, failed};
use super::program::missing;
use super::socket;

/// Built by `cargo xtask build-ebpf`, and committed.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../proxy-ebpf/prebuilt/accept.bpf.o");

/// The loaded program, and the counts that it reads. The program remains at the sockets to which it was attached until
/// another one takes its place or they are closed.
pub struct Chooser {
    program: OwnedFd,
    loads: Loads,
}

/// The kernel's array in sluice's memory.
struct Loads {
    memory: NonNull<Load>,
    count: usize,
}

// SAFETY: the memory is shared with the kernel anyway, and a load consists only of atomics.
unsafe impl Send for Loads {}
// SAFETY: as above.
unsafe impl Sync for Loads {}

impl Chooser {
    /// Loads the program for a number of workers, and tries it on sockets of its own. Requires CAP_BPF; what follows
    /// requires nothing. Linux 5.5 or later.
    ///
    /// # Errors
    /// The kernel refuses the map or the program, or the program does not choose the worker with the fewest connections.
    pub fn load(workers: u32) -> Result<Self> {
        // Two for the trial.
        let count = workers.max(2);
        let mut ebpf = super::loader::loader()
            .map_max_entries(names::LOADS, count)
            .load(OBJECT)
            .map_err(failed("load the eBPF object"))?;
        super::give_back();
        let program: &mut SocketFilter = ebpf
            .program_mut(names::CHOOSE)
            .ok_or_else(|| missing(names::CHOOSE))?
            .try_into()
            .map_err(failed(names::CHOOSE))?;
        program.load().map_err(failed("bpf(BPF_PROG_LOAD) of socket_filter"))?;
        let program = program.fd().map_err(failed(names::CHOOSE))?.as_fd().try_clone_to_owned();
        let Some(Map::Array(map)) = ebpf.map(names::LOADS) else { return Err(missing(names::LOADS)) };
        let loads =
            Loads::map(map.fd().as_fd(), count as usize).map_err(failed("mmap of the workers' loads"))?;
        let chooser = Self { program: program.map_err(failed("dup the program"))?, loads };
        chooser.try_out().map_err(failed("try the program"))?;
        Ok(chooser)
    }

    /// The counts of the workers, in the order of their sockets. There are at least two.
    #[must_use]
    pub fn loads(&self) -> &[Load] {
        // SAFETY: the memory is mapped for as long as `self` lives, and has this many loads: it was mapped with this
        // length. Any bytes are a valid load of atomics, and the map's values are as large as a load.
        unsafe { std::slice::from_raw_parts(self.loads.memory.as_ptr(), self.loads.count) }
    }

    /// From now on, connections to the listening TCP sockets that share a port with this one go where the program says.
    /// They must have begun to listen in the order of the workers, and be as many.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn attach(&self, listener: BorrowedFd<'_>) -> std::result::Result<(), KernelError> {
        let option = (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_EBPF);
        let call = "setsockopt(SO_ATTACH_REUSEPORT_EBPF)";
        socket::set(listener, option, self.program.as_raw_fd(), call)
    }

    /// Connects to two listeners, of which one or the other has fewer connections.
    fn try_out(&self) -> io::Result<()> {
        let first = shared_listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let address = first.local_addr()?;
        let second = shared_listener(address)?;
        self.attach(first.as_fd()).map_err(|error| error.error)?;
        // Those of workers that there are not, so that none of them counts here.
        let loads = self.loads();
        let others = &loads[2..];
        others.iter().for_each(Load::add);
        let tried = [(&second, &loads[0]), (&first, &loads[1])].map(|(expected, busy)| {
            busy.add();
            let outcome = reaches(expected, address);
            busy.subtract();
            loads.iter().for_each(Load::take);
            outcome
        });
        others.iter().for_each(Load::subtract);
        for outcome in tried {
            if !outcome? {
                return Err(io::Error::other("a connection went to the socket with more connections"));
            }
        }
        Ok(())
    }
}

impl Loads {
    fn map(map: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        // SAFETY: the kernel chooses the addresses, so nothing else is there. It checks that the map is as large, and
        // keeps it for as long as the mapping exists.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                count * size_of::<Load>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(address.cast()).ok_or_else(|| io::Error::other("no address"))?;
        Ok(Self { memory, count })
    }
}

impl Drop for Loads {
    fn drop(&mut self) {
        // SAFETY: this is the range that `map` has mapped. `self` is being dropped, so no reference into it exists.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.count * size_of::<Load>()) };
    }
}

fn shared_listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    socket.listen(128)?;
    Ok(socket.into())
}

/// Whether a new connection waits at this listener. On loopback it is there when connect(2) returns.
fn reaches(listener: &TcpListener, address: SocketAddr) -> io::Result<bool> {
    let _client = TcpStream::connect(address)?;
    listener.set_nonblocking(true)?;
    match listener.accept() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Without the privilege there is no chooser, which is said.
    fn chooser(workers: u32) -> Option<Chooser> {
        Chooser::load(workers).inspect_err(|error| eprintln!("skipped: {error}")).ok()
    }

    fn group(count: usize) -> Vec<TcpListener> {
        let first = shared_listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = first.local_addr().unwrap();
        let rest = (1..count).map(|_| shared_listener(address).unwrap());
        let group: Vec<_> = std::iter::once(first).chain(rest).collect();
        group.iter().for_each(|listener| listener.set_nonblocking(true).unwrap());
        group
    }

    fn waiting(listener: &TcpListener) -> usize {
        std::iter::from_fn(|| listener.accept().ok()).count()
    }

    #[test]
    fn connections_are_spread_evenly_before_any_is_accepted() {
        let Some(chooser) = chooser(3) else { return };
        let group = group(3);
        chooser.attach(group[1].as_fd()).unwrap();
        let address = group[0].local_addr().unwrap();
        let _clients: Vec<_> = (0..30).map(|_| TcpStream::connect(address).unwrap()).collect();
        assert_eq!(group.iter().map(waiting).collect::<Vec<_>>(), [10, 10, 10]);
    }

    #[test]
    fn a_worker_with_more_connections_gets_none_until_the_others_have_as_many() {
        let Some(chooser) = chooser(2) else { return };
        let group = group(2);
        chooser.attach(group[0].as_fd()).unwrap();
        (0..6).for_each(|_| chooser.loads()[0].add());
        let address = group[0].local_addr().unwrap();
        let _clients: Vec<_> = (0..8).map(|_| TcpStream::connect(address).unwrap()).collect();
        assert_eq!([waiting(&group[0]), waiting(&group[1])], [1, 7]);
    }

    #[test]
    fn the_trial_leaves_no_trace() {
        let Some(chooser) = chooser(4) else { return };
        assert_eq!(chooser.loads().iter().map(Load::weight).collect::<Vec<_>>(), [0; 4]);
    }

    #[test]
    fn it_can_be_detached() {
        let Some(chooser) = chooser(2) else { return };
        let group = group(2);
        chooser.attach(group[0].as_fd()).unwrap();
        (0..1000).for_each(|_| chooser.loads()[0].add());
        socket::choose_by_address(group[1].as_fd());
        let address = group[0].local_addr().unwrap();
        let _clients: Vec<_> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
        assert!(waiting(&group[0]) > 0, "some by their address");
    }
}
