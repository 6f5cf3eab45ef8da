//! Bound addresses. Sockets are created before privileges are dropped, one per worker where the kernel can share the
//! load. Workers accept from them (`thread/accept.rs` in the engine).

mod bind;
mod datagrams;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use crossbeam_utils::CachePadded;
use sluice_config as config;
pub use sluice_core::client_places::ClientPlace;
use sluice_core::client_places::Clients;
use sluice_core::tls::Terminator;
use sluice_http::{ListenerFields, Version};
use sluice_kernel::accept::Chooser;
use sluice_kernel::{KernelError, bans, socket};

use crate::quic::{Mailboxes, Origin};

pub use bind::{BACKLOG, BindError, Inherited, ReadySockets, bind_all, listen_all};
pub use datagrams::{bind as bind_datagrams, hold as hold_datagrams};

/// A listener and duplicates of its sockets, to pass on.
pub struct HeldSockets {
    /// The listener.
    pub listening: Arc<Listening>,
    /// Its TCP or unix sockets.
    pub sockets: Vec<OwnedFd>,
    /// Its UDP sockets.
    pub datagrams: Vec<OwnedFd>,
}

/// A bound address for its whole lifetime. Its configuration may change.
pub struct Listening {
    current: ArcSwap<ListenerState>,
    /// Whether only sluice holds its sockets. A service manager keeps those that it passes.
    pub is_own: bool,
    /// Whether this process already had sockets on its port.
    shares_port: bool,
    is_hidden: AtomicBool,
    is_starved: AtomicBool,
    is_chosen: AtomicBool,
}

/// A listener with one configuration. A connection keeps the configuration it started with.
pub struct ListenerState {
    /// Its configuration, with the address as bound.
    pub config: config::Listener,
    /// Host of a forwarded request that arrived without one (HTTP/1.0).
    pub authority: String,
    /// Value of Strict-Transport-Security in responses.
    pub hsts: Option<Box<[u8]>>,
    /// Value of Alt-Svc in responses over TCP.
    pub alt_svc: Option<Box<[u8]>>,
    terminator: Option<Arc<Terminator>>,
    /// State that outlives a configuration change.
    lasting: Arc<Lasting>,
}

#[derive(Default)]
struct Lasting {
    /// Apart from `closed`, which every connection reads.
    open: CachePadded<AtomicUsize>,
    closed: AtomicBool,
    clients: Arc<Clients>,
}

/// A listener from one worker's point of view.
pub struct Bound {
    /// State shared by all workers.
    pub listening: Arc<Listening>,
    /// This worker's socket; blocking.
    pub socket: OwnedFd,
    /// This worker's part of HTTP/3, if the listener speaks it.
    pub datagrams: Option<DatagramSockets>,
    /// Whether it already listened when sluice received it.
    listens: bool,
}

/// A worker's UDP sockets of a listener.
pub struct DatagramSockets {
    /// Bound to the address of the listener; several if there were more workers before.
    pub sockets: Vec<OwnedFd>,
    /// Which worker of which process it is.
    pub origin: Origin,
    /// Where it finds datagrams that others received for it.
    pub mailboxes: Mailboxes,
}

/// One of the connections that a listener may have open.
pub struct Admission {
    lasting: Arc<Lasting>,
    /// The same for its client, if connections of a client are limited.
    client: Option<ClientPlace>,
}

impl Listening {
    pub(crate) fn new(config: config::Listener, terminator: Option<Arc<Terminator>>, is_own: bool) -> Self {
        let state = ListenerState::new(config).with_tls(terminator);
        let [is_hidden, is_starved, is_chosen] = [(); 3].map(|()| AtomicBool::new(false));
        let current = ArcSwap::from_pointee(state);
        Self { current, is_own, shares_port: false, is_hidden, is_starved, is_chosen }
    }

    fn sharing_port(self, shares_port: bool) -> Self {
        Self { shares_port, ..self }
    }

    /// The configuration for connections accepted now.
    pub fn current(&self) -> Arc<ListenerState> {
        self.current.load_full()
    }

    /// Sets the configuration for connections accepted from now on. The address stays as bound.
    pub fn reconfigure(&self, config: config::Listener, terminator: Option<Arc<Terminator>>) {
        let now = self.current();
        let config = config::Listener { address: now.config.address.clone(), ..config };
        if config != now.config || terminator.is_some() {
            let lasting = Arc::clone(&now.lasting);
            let state = ListenerState { lasting, ..ListenerState::new(config) }.with_tls(terminator);
            self.current.store(Arc::new(state));
        }
    }

    /// Makes new connections reach another listener on the port, or none, so that closing these sockets resets no
    /// connection. Does nothing for sockets that a service manager may use again.
    pub fn hide(&self, sockets: &[OwnedFd]) {
        let is_ip = matches!(self.current().config.address, config::Address::Ip(_));
        if !self.is_own || !is_ip {
            return;
        }
        let hidden = sockets.iter().map(|socket| socket::hide(socket.as_fd())).fold(Ok(()), Result::and);
        if let Err(error) = &hidden {
            let name = &self.current().config.name;
            tracing::info!(listener = name, %error, "connections that arrive during the close may be reset");
        }
        self.is_hidden.store(hidden.is_ok(), Ordering::Relaxed);
    }

    /// Makes the kernel give each connection to the worker with the fewest. `sockets` are those of the workers, in the
    /// order in which they were bound.
    ///
    /// # Errors
    /// The kernel refuses it: it chooses by the addresses, and workers hand connections to each other.
    pub fn choose_by(&self, chooser: &Chooser, sockets: &[OwnedFd]) -> Result<(), KernelError> {
        let Some(first) = sockets.first() else { return Ok(()) };
        let attached = chooser.attach(first.as_fd());
        self.is_chosen.store(attached.is_ok(), Ordering::Relaxed);
        attached
    }

    /// Whether the kernel chooses the worker by its connections.
    pub fn is_chosen(&self) -> bool {
        self.is_chosen.load(Ordering::Relaxed)
    }

    /// Lets banned clients connect to a socket again, so that sluice sees them.
    pub fn let_everybody_in(socket: BorrowedFd<'_>) {
        bans::unguard(socket);
    }

    /// Records whether descriptors or memory are short. Returns whether this changed, so that only one worker logs it.
    pub fn starve(&self, is_starved: bool) -> bool {
        self.is_starved.swap(is_starved, Ordering::Relaxed) != is_starved
    }

    /// Whether new connections no longer reach it, except those whose handshake has begun.
    pub fn is_hidden(&self) -> bool {
        self.is_hidden.load(Ordering::Relaxed)
    }

    /// Records that nothing more is accepted, so that open connections close after their current exchange.
    pub fn close(&self) {
        self.current().lasting.closed.store(true, Ordering::Release);
    }
}

/// Duplicates the sockets of every listener, in the order in which the listeners were bound.
///
/// # Errors
/// No descriptors are left.
pub fn hold(bound: &[Vec<Bound>]) -> io::Result<Vec<HeldSockets>> {
    let mut listeners: Vec<&Arc<Listening>> = Vec::new();
    for Bound { listening, .. } in bound.iter().flatten() {
        if !listeners.iter().any(|known| Arc::ptr_eq(known, listening)) {
            listeners.push(listening);
        }
    }
    let hold = |listening: &Arc<Listening>| {
        let is_of = |bound: &&Bound| Arc::ptr_eq(&bound.listening, listening);
        // The first of each worker, then the second of each: as `bind_all` has dealt them out.
        let mut sockets: Vec<_> = bound.iter().flat_map(|own| own.iter().filter(is_of).enumerate()).collect();
        sockets.sort_by_key(|(round, _)| *round);
        let sockets =
            sockets.into_iter().map(|(_, bound)| bound.socket.try_clone()).collect::<io::Result<_>>()?;
        let of_listener = bound.iter().flatten().filter(is_of);
        let datagrams = datagrams::hold(of_listener.filter_map(|bound| bound.datagrams.as_ref()))?;
        Ok(HeldSockets { listening: Arc::clone(listening), sockets, datagrams })
    };
    listeners.into_iter().map(hold).collect()
}

/// Makes the kernel give each connection to the worker with the fewest, at every listener that has one socket for each
/// of the `workers`. Elsewhere, or if the kernel refuses it, workers hand connections to each other.
pub fn choose_by(chooser: &Chooser, held: &[HeldSockets], workers: usize) {
    if workers == 1 {
        return;
    }
    for HeldSockets { listening, sockets, .. } in held {
        let listener = &listening.current().config;
        let is_ip = matches!(listener.address, config::Address::Ip(_));
        if !is_ip || sockets.len() != workers || !sockets.iter().all(bind::is_first()) {
            continue;
        }
        if let Err(error) = listening.choose_by(chooser, sockets) {
            tracing::warn!(listener = listener.name, %error, "workers hand connections to each other here");
        }
    }
}

impl ListenerState {
    /// A listener that has not accepted a connection.
    pub fn new(config: config::Listener) -> Self {
        let authority = match &config.address {
            config::Address::Unix(_) => "localhost".to_owned(),
            address => address.to_string(),
        };
        let hsts = config.hsts.map(|hsts| hsts.field_value().into_bytes().into());
        let port = match &config.address {
            config::Address::Ip(ip) => ip.port(),
            config::Address::Name(_, port) => *port,
            config::Address::Unix(_) => 0,
        };
        let alt_svc = config.http3.map(|http3| http3.alt_svc(port));
        let alt_svc = alt_svc.map(|value| value.into_bytes().into());
        Self { config, authority, hsts, alt_svc, terminator: None, lasting: Arc::default() }
    }

    /// Adds the TLS terminator, which must be present if and only if the configuration enables TLS.
    pub(crate) fn with_tls(self, terminator: Option<Arc<Terminator>>) -> Self {
        debug_assert_eq!(self.config.tls.is_some(), terminator.is_some(), "{}", self.config.name);
        Self { terminator, ..self }
    }

    /// What it says in responses over a version of HTTP. With HTTP/3, nobody needs to learn of it.
    pub fn fields(&self, version: Version) -> ListenerFields<'_> {
        let alt_svc = self.alt_svc.as_deref().filter(|_| version != Version::Http3);
        ListenerFields { hsts: self.hsts.as_deref(), alt_svc }
    }

    /// The TLS terminator, if the listener uses TLS.
    pub fn tls(&self) -> Option<&Arc<Terminator>> {
        self.terminator.as_ref()
    }

    /// Whether both are states of one listener.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.lasting, &other.lasting)
    }

    /// Admits one connection; `None` if `connections_max` are open.
    pub fn admit(&self) -> Option<Admission> {
        let admission = Admission { lasting: Arc::clone(&self.lasting), client: None };
        let before = self.lasting.open.fetch_add(1, Ordering::Relaxed);
        (before < self.config.limits.connections_max).then_some(admission)
    }

    /// A place for one more connection of a client.
    ///
    /// # Errors
    /// When the client has `connections_per_client_max` open.
    pub fn enter(&self, client: IpAddr) -> Result<Option<ClientPlace>, TooManyConnections> {
        match self.config.limits.connections_per_client_max {
            0 => Ok(None),
            most => Clients::enter(&self.lasting.clients, client, most).map(Some).ok_or(TooManyConnections),
        }
    }

    /// Whether the listener has closed.
    pub fn is_closed(&self) -> bool {
        self.lasting.closed.load(Ordering::Acquire)
    }
}

/// A client has as many connections open as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client has too many connections")]
pub struct TooManyConnections;

impl Admission {
    /// The same with the place of its client.
    pub fn with_client(mut self, client: Option<ClientPlace>) -> Self {
        self.client = client;
        self
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.lasting.open.fetch_sub(1, Ordering::Relaxed);
        drop(self.client.take());
    }
}
