//! Loads the splice program and adds pairs of sockets to it. It moves no byte and ends no stream; `tunnel` does.
//!
//! Everything depends on descriptors of this process (closed on exec), so it ends with the process. A socket that was
//! added stays in the program's map until it is closed: removing it could lose bytes in flight.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use aya::Ebpf;
use aya::maps::{HashMap, Map, MapData, MapError, RingBuf, SockHash};
use aya::programs::SkSkb;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sluice_ebpf::splice::{Gate, Ledger, Limits as Budget, names};

use super::tcp;

use super::failed::failed;
pub use super::program::ProgramError;
use super::program::missing;

/// Built by `cargo xtask build-ebpf`. It is committed, so that building sluice needs no eBPF toolchain.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../proxy-ebpf/prebuilt/splice.bpf.o");

const LOOKUP: &str = "bpf(BPF_MAP_LOOKUP_ELEM)";
const UPDATE: &str = "bpf(BPF_MAP_UPDATE_ELEM)";
const BPF_NOEXIST: u64 = 1;

type Result<T> = std::result::Result<T, ProgramError>;

/// How much may be in flight in the kernel at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of one direction that may wait for the kernel's worker. A piece of at most 64 KB may be added on top.
    pub budget_bytes: u32,
    /// Pieces that may wait for it. Each costs the kernel about 1 KB in addition to its bytes.
    pub budget_pieces: u32,
    /// Maximum number of sockets: two per tunnel.
    pub sockets_max: u32,
}

impl Default for Limits {
    /// 1 MB: at times, a sender on this host is some hundred KB ahead of the kernel's worker.
    fn default() -> Self {
        Self { budget_bytes: 1 << 20, budget_pieces: 1024, sockets_max: 16_384 }
    }
}

/// The loaded program. After this is dropped, the program is unloaded with the last socket in its map.
pub struct Splice {
    sockets: OwnedFd,
    gates: OwnedFd,
    ledgers: OwnedFd,
    bells: Option<Bells>,
    // It owns the maps to which the descriptors above refer.
    _programs: Ebpf,
}

impl Splice {
    /// Loads the program and attaches it to its map, which contains no socket yet. Linux 5.19 or later.
    ///
    /// # Errors
    /// A file cannot be read, or the kernel refuses a map or the program.
    pub fn load(limits: Limits) -> Result<Self> {
        let budget = Budget {
            budget_bytes: limits.budget_bytes,
            budget_pieces: limits.budget_pieces,
            offsets: super::types::send_buffer()?,
        };
        let mut ebpf = super::loader::loader()
            .override_global(names::LIMITS, &budget, true)
            .map_max_entries(names::SOCKETS, limits.sockets_max)
            .map_max_entries(names::GATES, limits.sockets_max)
            .map_max_entries(names::LEDGERS, limits.sockets_max)
            .load(OBJECT)
            .map_err(failed("load the eBPF object"))?;
        super::give_back();
        attach(&mut ebpf)?;
        let ring = ebpf.take_map(names::BELLS).ok_or_else(|| missing(names::BELLS))?;
        Ok(Self {
            sockets: descriptor(&ebpf, names::SOCKETS)?,
            gates: descriptor(&ebpf, names::GATES)?,
            ledgers: descriptor(&ebpf, names::LEDGERS)?,
            bells: Some(Bells { ring: ring.try_into().map_err(failed(names::BELLS))? }),
            _programs: ebpf,
        })
    }

    /// A worker's handle for adding its sockets. Each worker has its own; they share nothing.
    ///
    /// # Errors
    /// No descriptor is available.
    pub fn handle(&self) -> Result<Handle> {
        Ok(Handle {
            sockets: Map::SockHash(reopen(&self.sockets)?).try_into().map_err(failed(names::SOCKETS))?,
            gates: Map::HashMap(reopen(&self.gates)?).try_into().map_err(failed(names::GATES))?,
            ledgers: Map::HashMap(reopen(&self.ledgers)?).try_into().map_err(failed(names::LEDGERS))?,
        })
    }

    /// The notifications about bytes that were left to sluice. There is only one reader.
    pub fn take_bells(&mut self) -> Option<Bells> {
        self.bells.take()
    }
}

fn attach(ebpf: &mut Ebpf) -> Result<()> {
    let sockets: SockHash<&MapData, u64> = ebpf
        .map(names::SOCKETS)
        .ok_or_else(|| missing(names::SOCKETS))?
        .try_into()
        .map_err(failed(names::SOCKETS))?;
    let sockets = sockets.fd().try_clone().map_err(failed("dup the map"))?;
    let verdict: &mut SkSkb = ebpf
        .program_mut(names::VERDICT)
        .ok_or_else(|| missing(names::VERDICT))?
        .try_into()
        .map_err(failed(names::VERDICT))?;
    verdict.load().map_err(failed("bpf(BPF_PROG_LOAD) of sk_skb"))?;
    verdict.attach(&sockets).map_err(failed("bpf(BPF_PROG_ATTACH) of sk_skb"))?;
    Ok(())
}

fn descriptor(ebpf: &Ebpf, name: &'static str) -> Result<OwnedFd> {
    match ebpf.map(name) {
        Some(Map::SockHash(data) | Map::HashMap(data)) => {
            data.fd().as_fd().try_clone_to_owned().map_err(failed("dup the map"))
        }
        _ => Err(missing(name)),
    }
}

fn reopen(fd: &OwnedFd) -> Result<MapData> {
    let fd = fd.try_clone().map_err(failed("dup the map"))?;
    MapData::from_fd(fd).map_err(failed("bpf(BPF_OBJ_GET_INFO_BY_FD)"))
}

/// Adds sockets to the program and reads its accounts.
pub struct Handle {
    sockets: SockHash<MapData, u64>,
    gates: HashMap<MapData, u64, Gate>,
    ledgers: HashMap<MapData, u64, Ledger>,
}

impl Handle {
    /// Joins two sockets: from now on, bytes that one receives leave through the other. Returns their cookies.
    ///
    /// When this is called, neither socket may have an unread byte or a receive in progress: the program takes whole
    /// pieces, and a partly read piece would be sent twice.
    ///
    /// # Errors
    /// A socket is not an established TCP connection, or is in a map already. Both then continue as before: if one is
    /// already in the program's map, all its bytes are left to sluice.
    pub fn join(&mut self, ends: [BorrowedFd<'_>; 2]) -> Result<[u64; 2]> {
        for end in ends {
            if !tcp::is_plain(end).map_err(failed("getsockopt(SO_PROTOCOL)"))? {
                return Err(failed("join")(io::Error::from(io::ErrorKind::Unsupported)));
            }
        }
        let cookie = |end| tcp::cookie(end).map_err(|error| failed(error.call)(error.error));
        let cookies = [cookie(ends[0])?, cookie(ends[1])?];
        let joined = self.try_join(ends, cookies);
        if joined.is_err() {
            self.leave(cookies);
        }
        joined.map(|()| cookies)
    }

    fn try_join(&mut self, ends: [BorrowedFd<'_>; 2], cookies: [u64; 2]) -> Result<()> {
        let [first, second] = cookies;
        for (own, peer) in [(first, second), (second, first)] {
            self.ledgers.insert(own, Ledger::default(), BPF_NOEXIST).map_err(failed(UPDATE))?;
            self.gates.insert(own, Gate { peer, open: 1 }, BPF_NOEXIST).map_err(failed(UPDATE))?;
        }
        for (end, cookie) in ends.iter().zip(cookies) {
            self.sockets.insert(cookie, end.as_raw_fd(), BPF_NOEXIST).map_err(failed(UPDATE))?;
        }
        Ok(())
    }

    /// Leaves everything that the socket receives from now on to sluice. What the program took before is in the ledger
    /// once the socket's lock has been taken again.
    ///
    /// # Errors
    /// The map cannot be written.
    pub fn close(&mut self, cookie: u64) -> Result<()> {
        self.gates.insert(cookie, Gate { peer: 0, open: 0 }, 0).map_err(failed(UPDATE))
    }

    /// What happened to the bytes that a socket received.
    ///
    /// # Errors
    /// The socket was not joined.
    pub fn ledger(&self, cookie: u64) -> Result<Ledger> {
        self.ledgers.get(&cookie, 0).map_err(failed(LOOKUP))
    }

    /// Removes a pair whose sockets are about to be closed.
    pub fn leave(&mut self, cookies: [u64; 2]) {
        for cookie in cookies {
            // They may already be absent, which is fine.
            let _ = self.gates.remove(&cookie);
            let _ = self.ledgers.remove(&cookie);
        }
    }

    /// Number of entries in the maps: sockets, gates, ledgers.
    ///
    /// # Errors
    /// A map cannot be read.
    pub fn entries(&self) -> Result<[usize; 3]> {
        Ok([count(self.sockets.keys())?, count(self.gates.keys())?, count(self.ledgers.keys())?])
    }
}

fn count(mut keys: impl Iterator<Item = std::result::Result<u64, MapError>>) -> Result<usize> {
    keys.try_fold(0, |count, key| key.map(|_| count + 1)).map_err(failed("bpf(BPF_MAP_GET_NEXT_KEY)"))
}

/// Splice notifications: cookies of sockets whose bytes are left to sluice from now on.
pub struct Bells {
    ring: RingBuf<MapData>,
}

impl Bells {
    /// Blocks until there is a notification.
    ///
    /// # Errors
    /// Waiting failed.
    pub fn wait(&mut self) -> io::Result<u64> {
        loop {
            if let Some(bytes) = self.ring.next()
                && let Ok(raw) = (*bytes).try_into()
            {
                return Ok(u64::from_ne_bytes(raw));
            }
            // SAFETY: `self.ring` owns this descriptor and outlives the borrow, which ends in this iteration.
            let fd = unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) };
            match poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::NONE) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}
