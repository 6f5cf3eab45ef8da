//! Loads the embedded eBPF object, attaches it, and detaches it. It does not decide about its use; workers use it
//! through `marker`.
//!
//! Everything depends on descriptors of this process (closed on exec), so it ends with the process, however the process
//! ends. Only sockets that are already joined stay joined until they are closed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aya::Ebpf;
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, SockHash};
use aya::programs::{CgroupAttachMode, SchedClassifier, SkMsg, SockOps};
use sluice_ebpf::{Counter, Service, Settings, Wish, names};

pub use super::failed::ProgramError;
use super::failed::{Result, failed};
use super::marker::Descriptors;
pub use super::marker::{ClientSocket, Marker};
use super::probe::{Host, Sources};
pub use super::slots::{Lease, Slots};

/// Built by `cargo xtask build-ebpf`. It is committed, so that building sluice needs no eBPF toolchain.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../proxy-ebpf/prebuilt/bypass.bpf.o");

/// How much may be joined at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Joined bytes that one receiver may leave unread.
    pub budget_bytes: u32,
    /// Joined messages that one receiver may leave unread. Each costs the kernel about 1 KB.
    pub budget_messages: u32,
    /// Maximum number of ends: two per connection.
    pub ends_max: u32,
    /// Whether connections to other network namespaces are ever joined.
    pub any_namespace: bool,
    /// Whether clients on this host are joined, too.
    pub clients: bool,
    /// Maximum number of joined connections whose responses may go to clients without sluice; 0 disables this.
    pub slots_max: u32,
    /// Maximum number of clients to which such responses may go.
    pub direct_clients_max: u32,
}

impl Default for Limits {
    /// 64 KB and 64 messages kept the kernel's memory within 0.4 MB where an unlimited one used 500 MB.
    fn default() -> Self {
        Self {
            budget_bytes: 65_536,
            budget_messages: 64,
            ends_max: 16_384,
            any_namespace: false,
            clients: false,
            slots_max: 0,
            direct_clients_max: 1,
        }
    }
}

/// The loaded and attached programs. Dropping it detaches them.
pub struct Bypass {
    limits: Limits,
    slots: Option<Arc<Slots>>,
    counters: PerCpuArray<MapData, u64>,
    services: HashMap<MapData, Service, u32>,
    stop: Array<MapData, u32>,
    thrift: Array<MapData, u32>,
    for_markers: Descriptors,
    own: Marker,
    logs: Option<super::log::Records>,
    // Last, so that it drops last: the maps above come from it, and it owns the links.
    _programs: Ebpf,
}

impl Bypass {
    /// Loads the programs and attaches them to `cgroup`, a folder of a cgroup2. They see the connections that processes
    /// in and below it open and accept. Takes about 0.1 s. Linux 5.19 or later.
    ///
    /// # Errors
    /// A file cannot be read, or the kernel refuses a map, a program or an attachment.
    pub fn load(limits: Limits, cgroup: &Path) -> Result<Self> {
        let (offsets, memory) = super::types::bypass()?;
        let settings = Settings {
            budget_bytes: limits.budget_bytes,
            budget_messages: limits.budget_messages,
            any_namespace: u32::from(limits.any_namespace),
            clients: u32::from(limits.clients),
            direct: u32::from(limits.slots_max > 0),
            offsets,
            memory,
        };
        let cgroup = File::open(cgroup).map_err(failed("open the cgroup"))?;
        let level = super::log::level();
        let mut ebpf = super::loader::loader()
            .override_global(names::SETTINGS, &settings, true)
            .override_global(super::log::LEVEL, &level, false)
            .map_max_entries(names::ENDS, limits.ends_max)
            .map_max_entries(names::KNOWN, limits.ends_max)
            // The first slot stands for "none".
            .map_max_entries(names::SLOTS, limits.slots_max.saturating_add(1))
            .map_max_entries(names::CLIENTS, limits.direct_clients_max)
            .load(OBJECT)
            .map_err(failed("load the eBPF object"))?;
        super::give_back();
        let unread = attach(&mut ebpf, cgroup)?;
        let logs = super::log::Records::open(&mut ebpf).map_err(failed("open the eBPF log"))?;
        let mut maps = Maps(&mut ebpf);
        let for_markers = Descriptors {
            storage: maps.dup(names::STATE)?,
            known: maps.dup(names::KNOWN)?,
            clients: maps.dup(names::CLIENTS)?,
            unread,
        };
        let slots = match limits.slots_max {
            0 => None,
            count => Some(Arc::new(Slots::map(maps.dup(names::SLOTS)?, count)?)),
        };
        Ok(Self {
            limits,
            slots,
            counters: maps.take(names::COUNTERS)?,
            services: maps.take(names::SERVICES)?,
            stop: maps.take(names::STOP)?,
            thrift: maps.take(names::THRIFT)?,
            own: for_markers.marker()?,
            for_markers,
            logs,
            _programs: ebpf,
        })
    }

    /// The limits it was loaded with.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// A worker's handle for joining its connections. Each worker has its own; they share nothing.
    ///
    /// # Errors
    /// No descriptor is available.
    pub fn marker(&self) -> Result<Marker> {
        self.for_markers.marker()
    }

    /// See [`Marker::is_joined`].
    ///
    /// # Errors
    /// The errors of [`Marker::is_joined`].
    pub fn is_joined(&self, socket: BorrowedFd<'_>) -> Result<bool> {
        self.own.is_joined(socket)
    }

    /// Joins clients on this host that connect to a listening TCP socket with the connections it accepts from now on.
    /// Requires [`Limits::clients`].
    ///
    /// # Errors
    /// The socket has no IP address, or the kernel has no room.
    pub fn serve_clients(&mut self, listener: BorrowedFd<'_>) -> Result<()> {
        let service = super::socket::service(listener).map_err(failed("getsockname of the listener"))?;
        self.services.insert(service, 0, 0).map_err(failed("bpf(BPF_MAP_UPDATE_ELEM)"))?;
        self.own.mark(listener, Wish::Clients, 0)
    }

    /// Allows responses to be sent directly to the connections that a listening TCP socket accepts from now on, where
    /// slots say so. Requires [`Limits::slots_max`].
    ///
    /// # Errors
    /// The kernel has no room.
    pub fn return_to_clients(&mut self, listener: BorrowedFd<'_>) -> Result<()> {
        self.own.mark(listener, Wish::Direct, 0)
    }

    /// The slots, if there are any.
    #[must_use]
    pub fn slots(&self) -> Option<&Arc<Slots>> {
        self.slots.as_ref()
    }

    /// Hands out no more slots: responses go through sluice, and everything else stays the same.
    pub fn give_up_slots(&mut self) {
        self.slots = None;
    }

    /// Every counter, summed over the CPUs.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn counters(&self) -> Result<[u64; Counter::COUNT]> {
        let mut sums = [0; Counter::COUNT];
        for (counter, sum) in Counter::ALL.iter().zip(&mut sums) {
            let values =
                self.counters.get(&(*counter as u32), 0).map_err(failed("bpf(BPF_MAP_LOOKUP_ELEM)"))?;
            *sum = values.iter().sum();
        }
        Ok(sums)
    }

    /// Stops joining connections. What others send to sluice on joined connections goes through TCP from now on, in
    /// order after the joined bytes. This is the first step of an orderly shutdown; connections may then end normally.
    /// What sluice sends to an application stays joined, because a mixture could confuse the application.
    ///
    /// # Errors
    /// The map cannot be written.
    pub fn stop_joining(&mut self) -> Result<()> {
        self.stop.set(0, 1, 0).map_err(failed("bpf(BPF_MAP_UPDATE_ELEM)"))
    }

    /// From now on, messages go through TCP while memory is short. This is off at first, because tests check other
    /// things, and a host may be short of memory when sluice starts.
    ///
    /// # Errors
    /// The map cannot be written.
    pub fn mind_memory(&mut self) -> Result<()> {
        self.thrift.set(0, 1, 0).map_err(failed("bpf(BPF_MAP_UPDATE_ELEM)"))
    }

    /// Discards what the programs have logged so far.
    pub fn discard_log(&mut self) {
        if let Some(logs) = &mut self.logs {
            logs.discard();
        }
    }

    /// The log records of the programs, if they were loaded with logging: see [`super::log`].
    pub fn take_log(&mut self) -> Option<super::log::Records> {
        self.logs.take()
    }
}

/// The maps taken out of the object, so that each has its type from then on.
struct Maps<'a>(&'a mut Ebpf);

impl Maps<'_> {
    fn take<M: TryFrom<Map, Error = MapError>>(&mut self, name: &'static str) -> Result<M> {
        let map = self.0.take_map(name).ok_or_else(|| missing(name))?;
        map.try_into().map_err(failed(name))
    }

    /// Duplicates the descriptor of a map that stays in the object.
    fn dup(&self, name: &'static str) -> Result<OwnedFd> {
        let data = match self.0.map(name) {
            Some(Map::SkStorage(data) | Map::HashMap(data) | Map::SockHash(data) | Map::Array(data)) => data,
            _ => return Err(missing(name)),
        };
        data.fd().as_fd().try_clone_to_owned().map_err(failed("dup the map"))
    }
}

pub(super) fn missing(name: &'static str) -> ProgramError {
    failed(name)(io::Error::new(io::ErrorKind::NotFound, "not in the eBPF object"))
}

/// Attaches first the program that decides about each message, then the one that adds sockets to the map. Returns the
/// program that sluice runs itself.
fn attach(ebpf: &mut Ebpf, cgroup: File) -> Result<OwnedFd> {
    let unread: &mut SchedClassifier = program(ebpf, names::UNREAD)?;
    unread.load().map_err(failed("bpf(BPF_PROG_LOAD) of the classifier"))?;
    let unread = unread.fd().map_err(failed(names::UNREAD))?.as_fd().try_clone_to_owned();
    let unread = unread.map_err(failed("dup the program"))?;
    let ends: SockHash<&MapData, u64> =
        ebpf.map(names::ENDS).ok_or_else(|| missing(names::ENDS))?.try_into().map_err(failed(names::ENDS))?;
    let ends = ends.fd().try_clone().map_err(failed("dup the map"))?;
    let send: &mut SkMsg = program(ebpf, names::SEND)?;
    send.load().map_err(failed("bpf(BPF_PROG_LOAD) of sk_msg"))?;
    send.attach(&ends).map_err(failed("bpf(BPF_PROG_ATTACH) of sk_msg"))?;
    let track: &mut SockOps = program(ebpf, names::TRACK)?;
    track.load().map_err(failed("bpf(BPF_PROG_LOAD) of sock_ops"))?;
    // A link always coexists with programs that others have attached here and below, and takes no flag for this.
    track.attach(cgroup, CgroupAttachMode::Single).map_err(failed("bpf(BPF_LINK_CREATE) of sock_ops"))?;
    Ok(unread)
}

fn program<'a, P>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut P>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = aya::programs::ProgramError>,
{
    ebpf.program_mut(name).ok_or_else(|| missing(name))?.try_into().map_err(failed(name))
}

/// Where a cgroup2 is mounted.
///
/// # Errors
/// No cgroup2 is mounted.
pub fn cgroup2() -> Result<PathBuf> {
    let found = Host::read(&Sources::host()).cgroups.unified;
    found.ok_or_else(|| {
        failed("/proc/mounts")(io::Error::new(io::ErrorKind::NotFound, "no cgroup2 is mounted"))
    })
}
