//! The listeners of the process, and how they change.

use crate::server::ReloadError;
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use sluice_config::{self as config, Address, ProxyProtocol};
use sluice_core::tls::{Planned, Terminators};
use sluice_engine::bypass;
use sluice_engine::thread::Command;
use sluice_kernel::accept::Chooser;
use sluice_net::listener::{
    self, Bound, DatagramSockets, HeldSockets, Listening, ReadySockets, bind_datagrams, hold_datagrams,
};
use tokio::sync::mpsc;

use crate::handover::{PassedSockets, Role};

/// Maximum wait for sockets to close: three times what workers normally need.
const CLOSING_MAX: Duration = Duration::from_secs(1);
const CLOSING_TICK: Duration = Duration::from_millis(5);

/// All listeners, and the workers that accept from them.
pub(super) struct Listeners {
    served: RefCell<Vec<Served>>,
    workers: Vec<mpsc::UnboundedSender<Command>>,
    /// Gives each connection to one of them.
    chooser: Option<Arc<Chooser>>,
    bypass: Option<Arc<bypass::Control>>,
    /// The TLS terminators of the listeners.
    pub(super) terminators: Arc<Terminators>,
}

/// A listener, and its configured address.
#[derive(Clone)]
pub(super) struct Served {
    configured: Address,
    listening: Arc<Listening>,
    sockets: Arc<Vec<OwnedFd>>,
    datagrams: Arc<Vec<OwnedFd>>,
}

/// Listeners whose sockets the workers may not have closed yet.
#[must_use]
pub(super) struct Closing(Vec<Weak<Listening>>);

/// What was bound for a new configuration.
pub(super) struct Opened {
    /// New listeners, by worker.
    bound: Vec<Vec<Bound>>,
    held: Vec<HeldSockets>,
    /// UDP sockets of existing listeners that did not speak HTTP/3 before.
    datagrams: Vec<(Arc<Listening>, ByWorker)>,
}

/// The UDP sockets of each worker.
type ByWorker = Vec<Option<DatagramSockets>>;

/// The wanted listeners, each with its existing counterpart.
pub(super) type Plan = Vec<(config::Listener, Option<Served>)>;

impl Served {
    fn new(configured: Address, held: HeldSockets) -> Self {
        let HeldSockets { listening, sockets, datagrams } = held;
        Self { configured, listening, sockets: Arc::new(sockets), datagrams: Arc::new(datagrams) }
    }
}

impl Closing {
    /// Resolves when the sockets are closed, so that their addresses are free. The wait is limited: a worker that
    /// cannot accept pending connections, for lack of descriptors, closes late.
    pub(super) async fn closed(self) {
        let is_open = |listening: &Weak<Listening>| listening.strong_count() > 0;
        let over = Instant::now() + CLOSING_MAX;
        while self.0.iter().any(is_open) && Instant::now() < over {
            tokio::time::sleep(CLOSING_TICK).await;
        }
    }
}

impl Listeners {
    pub(super) fn new(
        configured: &[config::Listener],
        held: Vec<HeldSockets>,
        (workers, chooser): (Vec<mpsc::UnboundedSender<Command>>, Option<Arc<Chooser>>),
        bypass: Option<Arc<bypass::Control>>,
        terminators: Arc<Terminators>,
    ) -> Self {
        let served = configured.iter().zip(held);
        let served = served.map(|(config, held)| Served::new(config.address.clone(), held)).collect();
        Self { served: RefCell::new(served), workers, chooser, bypass, terminators }
    }

    /// Assigns existing listeners to the wanted ones: by address, preferring the same name.
    pub(super) fn plan(&self, wanted: &[config::Listener]) -> Plan {
        let mut known = self.served.borrow().clone();
        let mut take = |wanted: &config::Listener| {
            let fits = |served: &Served| served.configured == wanted.address;
            let named = |served: &Served| served.listening.current().config.name == wanted.name;
            let index = known.iter().position(|served| fits(served) && named(served));
            let index = index.or_else(|| known.iter().position(fits))?;
            Some(known.remove(index))
        };
        wanted.iter().map(|wanted| (wanted.clone(), take(wanted))).collect()
    }

    /// Reads the certificates of the wanted listeners; applies nothing yet.
    ///
    /// # Errors
    /// What cannot be served.
    pub(super) async fn plan_tls(&self, wanted: &[config::Listener]) -> Result<Planned, ReloadError> {
        let (terminators, wanted) = (Arc::clone(&self.terminators), wanted.to_vec());
        // A file may be on a disk that stalls.
        let planned = tokio::task::spawn_blocking(move || terminators.plan(&wanted)).await;
        Ok(planned.map_err(|error| format!("reading certificates failed: {error}"))??)
    }

    /// The same for the existing listeners; applies nothing yet.
    ///
    /// # Errors
    /// When it panics.
    pub(super) async fn plan_tls_again(
        &self,
        listeners: &[config::Listener],
    ) -> Result<Planned, ReloadError> {
        let (terminators, listeners) = (Arc::clone(&self.terminators), listeners.to_vec());
        let planned = tokio::task::spawn_blocking(move || terminators.plan_again(&listeners)).await;
        Ok(planned.map_err(|error| format!("reading certificates failed: {error}"))?)
    }

    /// Binds the new addresses; accepts on none of them yet.
    pub(super) fn open(&self, plan: &Plan, tls: &Planned) -> Result<Opened, ReloadError> {
        let new: Vec<_> =
            plan.iter().filter(|(_, known)| known.is_none()).map(|(config, _)| config.clone()).collect();
        let served = self.served.borrow();
        let ours = served.iter().filter_map(|served| match served.listening.current().config.address {
            Address::Ip(address) => Some(address.port()),
            _ => None,
        });
        let mut nothing = |_: &_| ReadySockets::default();
        let bound = listener::bind_all(&new, self.workers.len(), &mut nothing, &ours.collect(), tls);
        let bound = bound.map_err(|error| error.to_string())?;
        listener::listen_all(&bound).map_err(|error| error.to_string())?;
        let held = listener::hold(&bound).map_err(|error| error.to_string())?;
        if let Some(chooser) = &self.chooser {
            listener::choose_by(chooser, &held, self.workers.len());
        }
        let datagrams = self.open_datagrams(plan)?;
        Ok(Opened { bound, held, datagrams })
    }

    fn open_datagrams(&self, plan: &Plan) -> Result<Vec<(Arc<Listening>, ByWorker)>, ReloadError> {
        let begins = |(config, known): &&(config::Listener, Option<Served>)| {
            config.http3.is_some() && known.as_ref().is_some_and(|known| known.datagrams.is_empty())
        };
        let mut opened = Vec::new();
        for (config, known) in plan.iter().filter(begins) {
            let Some(known) = known else { continue };
            let address = known.listening.current().config.address.clone();
            let sockets = bind_datagrams(&address, &known.configured, self.workers.len(), Vec::new());
            let name = &config.name;
            let failed = |error: io::Error| {
                let hint = match error.kind() {
                    io::ErrorKind::AddrInUse => {
                        "; if HTTP/3 was turned off a moment ago, its last connections still use the port: reload \
                         again when they have ended"
                    }
                    _ => "",
                };
                format!("listener {name} cannot serve HTTP/3 on {address}: {error}{hint}")
            };
            opened.push((Arc::clone(&known.listening), sockets.map_err(failed)?));
        }
        Ok(opened)
    }

    /// Makes the workers accept from new listeners and stop accepting from unwanted ones; returns the latter.
    pub(super) fn switch(&self, plan: Plan, tls: &Planned, opened: Opened) -> Closing {
        self.terminators.switch(tls);
        let Opened { bound, held, datagrams } = opened;
        if let Some(bypass) = &self.bypass {
            bound.iter().flatten().for_each(|bound| bypass.serve(bound));
        }
        let mut new_ones = held.into_iter();
        let mut served = Vec::new();
        for (config, known) in plan {
            if let Some(known) = &known {
                known.listening.reconfigure(config.clone(), tls.of(&config.name));
                if config.proxy_protocol != ProxyProtocol::Off {
                    known.sockets.iter().for_each(|socket| Listening::let_everybody_in(socket.as_fd()));
                }
            }
            let known = known.map(|known| self.without_datagrams(known, config.http3.is_some()));
            let new = |held: HeldSockets| {
                announce(&held.listening);
                Served::new(config.address, held)
            };
            served.extend(known.or_else(|| new_ones.next().map(new)));
        }
        for (worker, bounds) in self.workers.iter().zip(bound) {
            // A worker that has exited ends the process.
            bounds.into_iter().for_each(|bound| drop(worker.send(Command::Listen(bound))));
        }
        datagrams.into_iter().for_each(|(listening, sockets)| {
            self.serve_datagrams(&mut served, &listening, sockets);
        });
        let before = self.served.replace(served);
        let served = self.served.borrow();
        let stays =
            |gone: &Served| served.iter().any(|served| Arc::ptr_eq(&served.listening, &gone.listening));
        let close = |gone: Served| {
            let Served { listening, sockets, datagrams, .. } = gone;
            listening.hide(&sockets);
            // The socket is closed once the workers have closed their descriptors.
            drop((sockets, datagrams));
            self.close(&listening);
            Arc::downgrade(&listening)
        };
        Closing(before.into_iter().filter(|gone| !stays(gone)).map(close).collect())
    }

    /// Makes the workers serve HTTP/3 on a listener that they serve already.
    fn serve_datagrams(&self, served: &mut [Served], listening: &Arc<Listening>, sockets: ByWorker) {
        // Without duplicates, an upgrade binds the port again.
        let held = hold_datagrams(sockets.iter().flatten()).unwrap_or_default();
        let known = served.iter_mut().find(|served| Arc::ptr_eq(&served.listening, listening));
        if let Some(known) = known {
            known.datagrams = Arc::new(held);
        }
        for (worker, sockets) in self.workers.iter().zip(sockets) {
            if let Some(sockets) = sockets {
                let _ = worker.send(Command::ServeDatagrams(Arc::clone(listening), sockets));
            }
        }
    }

    /// The same listener; if it has HTTP/3 no longer, its connections end after what is under way.
    fn without_datagrams(&self, known: Served, has_http3: bool) -> Served {
        if has_http3 || known.datagrams.is_empty() {
            return known;
        }
        for worker in &self.workers {
            let _ = worker.send(Command::CloseDatagrams(Arc::clone(&known.listening)));
        }
        Served { datagrams: Arc::default(), ..known }
    }

    fn close(&self, listening: &Arc<Listening>) {
        listening.close();
        tracing::info!(listener = listening.current().config.name, "stopped listening");
        if let Address::Unix(path) = &listening.current().config.address {
            // No one can connect through it any more; a failure to remove it does no harm.
            let _ = std::fs::remove_file(path);
        }
        for worker in &self.workers {
            let _ = worker.send(Command::Close(Arc::clone(listening)));
        }
    }

    /// Makes the kernel choose by the connections of these workers again, after another process has had the sockets.
    pub(super) fn choose_again(&self) {
        let Some(chooser) = &self.chooser else { return };
        for Served { listening, sockets, .. } in self.served.borrow().iter() {
            if listening.is_chosen()
                && let Err(error) = listening.choose_by(chooser, sockets)
            {
                let name = &listening.current().config.name;
                tracing::warn!(listener = name, %error, "workers hand connections to each other here");
            }
        }
    }

    /// Closes this thread's descriptors of all listening sockets, so that the workers' are the last.
    pub(super) fn release(&self) {
        self.served.take();
    }

    /// The sockets to pass to another process.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(super) fn pass(&self) -> io::Result<Vec<(PassedSockets, Vec<OwnedFd>)>> {
        let pass = |served: &Served| {
            let name = served.listening.current().config.name.clone();
            let (configured, are_own) = (served.configured.to_string(), served.listening.is_own);
            let passed = PassedSockets { role: Role::Listener, name, configured, are_own };
            let sockets = served.sockets.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>()?;
            let datagrams =
                served.datagrams.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>()?;
            let of_datagrams = PassedSockets { role: Role::Datagrams, ..passed.clone() };
            Ok([(passed, sockets), (of_datagrams, datagrams)])
        };
        let passed = self.served.borrow().iter().map(pass).collect::<io::Result<Vec<_>>>()?;
        Ok(passed.into_iter().flatten().filter(|(_, sockets)| !sockets.is_empty()).collect())
    }
}

/// Logs what is served where.
pub(super) fn announce(listening: &Arc<Listening>) {
    let listener = &listening.current().config;
    tracing::info!(listener = listener.name, address = %listener.address, "listening");
}
