//! Bound addresses: made before privileges are dropped, one socket a worker where the kernel can share
//! the load. Workers accept from them (`worker/accept.rs`).

mod bind;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use sluice_config as config;
use sluice_core::tls::Terminator;
use sluice_kernel::socket;

pub use bind::{BACKLOG, BindError, Inherited, ReadySockets, bind_all, listen_all};

/// Another hold on the sockets of one listener, to pass them on by.
pub type HeldSockets = (Arc<Listening>, Vec<OwnedFd>);

/// A bound address for as long as it is; its configuration may change.
pub struct Listening {
    current: ArcSwap<ListenerState>,
    /// Whether nobody but sluice has its sockets; a service manager keeps those that it passes.
    pub is_own: bool,
    /// Whether this process had sockets on its port before.
    shares_port: bool,
    is_hidden: AtomicBool,
    is_starved: AtomicBool,
}

/// A listener by one configuration. Connections keep the one they began with.
pub struct ListenerState {
    /// Its configuration, its address as bound.
    pub config: config::Listener,
    /// Host of a forwarded request that came without one (HTTP/1.0).
    pub authority: String,
    /// What answers say in Strict-Transport-Security.
    pub hsts: Option<Box<[u8]>>,
    terminator: Option<Arc<Terminator>>,
    /// What stays when the configuration changes.
    lasting: Arc<Lasting>,
}

#[derive(Default)]
struct Lasting {
    open: AtomicUsize,
    closed: AtomicBool,
}

/// A listener as one worker has it.
pub struct Bound {
    /// What is shared.
    pub listening: Arc<Listening>,
    /// This worker's socket: blocking.
    pub socket: OwnedFd,
    /// Whether it listened when we got it.
    listens: bool,
}

/// One of the connections that a listener may have open.
pub struct Admission(Arc<Lasting>);

impl Listening {
    pub(crate) fn new(config: config::Listener, terminator: Option<Arc<Terminator>>, is_own: bool) -> Self {
        let state = ListenerState::new(config).with_tls(terminator);
        let (current, is_hidden, is_starved) = (ArcSwap::from_pointee(state), false.into(), false.into());
        Self { current, is_own, shares_port: false, is_hidden, is_starved }
    }

    fn sharing_port(self, shares_port: bool) -> Self {
        Self { shares_port, ..self }
    }

    /// The configuration that connections accepted now go by.
    pub fn current(&self) -> Arc<ListenerState> {
        self.current.load_full()
    }

    /// Has those that are accepted from now on go by another one. The address stays as bound.
    pub fn reconfigure(&self, config: config::Listener, terminator: Option<Arc<Terminator>>) {
        let now = self.current();
        let config = config::Listener { address: now.config.address.clone(), ..config };
        if config != now.config || terminator.is_some() {
            let lasting = Arc::clone(&now.lasting);
            let state = ListenerState { lasting, ..ListenerState::new(config) }.with_tls(terminator);
            self.current.store(Arc::new(state));
        }
    }

    /// Has new connections find another listener on the port, if there is one, and none otherwise, so that these sockets
    /// can be closed without a connection's being reset. Not those that somebody else may want to use again.
    pub fn hide(&self, sockets: &[OwnedFd]) {
        let is_ip = matches!(self.current().config.address, config::Address::Ip(_));
        if !self.is_own || !is_ip {
            return;
        }
        let hidden = sockets.iter().map(|socket| socket::hide(socket.as_fd())).fold(Ok(()), Result::and);
        if let Err(error) = &hidden {
            let name = &self.current().config.name;
            tracing::info!(listener = name, %error, "connections that come while it is closed may be reset");
        }
        self.is_hidden.store(hidden.is_ok(), Ordering::Relaxed);
    }

    /// Notes whether descriptors or memory are short, so that one of the workers says so. True if that is news.
    pub fn starve(&self, is_starved: bool) -> bool {
        self.is_starved.swap(is_starved, Ordering::Relaxed) != is_starved
    }

    /// Whether no new connection finds it any more, but for those whose handshake has begun.
    pub fn is_hidden(&self) -> bool {
        self.is_hidden.load(Ordering::Relaxed)
    }

    /// Notes that nothing more is accepted, so that open connections end after what is under way.
    pub fn close(&self) {
        self.current().lasting.closed.store(true, Ordering::Release);
    }
}

/// Keeps a hold on the sockets of every listener, in the order in which they were asked for.
///
/// # Errors
/// When there are no descriptors left.
pub fn hold(bound: &[Vec<Bound>]) -> io::Result<Vec<HeldSockets>> {
    let mut held: Vec<HeldSockets> = Vec::new();
    for Bound { listening, socket, .. } in bound.iter().flatten() {
        let socket = socket.try_clone()?;
        match held.iter_mut().find(|(known, _)| Arc::ptr_eq(known, listening)) {
            Some((_, sockets)) => sockets.push(socket),
            None => held.push((Arc::clone(listening), vec![socket])),
        }
    }
    Ok(held)
}

impl ListenerState {
    /// A listener that has accepted nothing.
    pub fn new(config: config::Listener) -> Self {
        let authority = match &config.address {
            config::Address::Unix(_) => "localhost".to_owned(),
            address => address.to_string(),
        };
        let hsts = config.hsts.map(|hsts| hsts.field_value().into_bytes().into());
        Self { config, authority, hsts, terminator: None, lasting: Arc::default() }
    }

    /// The same with this to terminate TLS; where the configuration asks for TLS it must be there.
    pub(crate) fn with_tls(self, terminator: Option<Arc<Terminator>>) -> Self {
        debug_assert_eq!(self.config.tls.is_some(), terminator.is_some(), "{}", self.config.name);
        Self { terminator, ..self }
    }

    /// What terminates TLS here, if it is TLS that is spoken.
    pub fn tls(&self) -> Option<&Arc<Terminator>> {
        self.terminator.as_ref()
    }

    /// Takes a place for one connection; `None` when all are taken.
    pub fn admit(&self) -> Option<Admission> {
        let admission = Admission(Arc::clone(&self.lasting));
        let before = self.lasting.open.fetch_add(1, Ordering::Relaxed);
        (before < self.config.limits.connections_max).then_some(admission)
    }

    /// Whether the listener is no more.
    pub fn is_closed(&self) -> bool {
        self.lasting.closed.load(Ordering::Acquire)
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}
