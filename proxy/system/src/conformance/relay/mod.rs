//! Sits between a runner and the proxy: accepts the runner's HTTP/1.1 and speaks something else to the proxy.

mod answer;
mod http2;
mod http3;
mod plans;
mod tls;
mod translate;

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt};

use http2::Http2Session;
use http3::Http3Session;
use plans::{Plans, Session};
use rustls::ClientConfig;
use tls::Client;
pub(super) use translate::{Message, translate};

/// Accepts until it is dropped; running connections end by themselves.
pub(super) struct Relay {
    pub(super) address: SocketAddr,
    stopped: Arc<AtomicBool>,
    carried: Carried,
}

/// How many connections or requests reached the proxy in the relay's protocol.
type Carried = Arc<AtomicUsize>;

/// Handles each connection; errors show in the runner's verdict.
type Serve = dyn Fn(TcpStream, &AtomicUsize) -> Result<()> + Send + Sync;

/// The cases as messages, by their bytes.
pub(super) type Planned = HashMap<Vec<u8>, Vec<Message>>;

impl Relay {
    /// The same bytes, over TLS.
    ///
    /// # Errors
    /// When it cannot listen.
    pub(super) fn tls(proxy: SocketAddr, config: Arc<ClientConfig>) -> Result<Self> {
        let client = Client { proxy, config };
        Self::start(Arc::new(move |runner, carried| client.serve(runner, carried)))
    }

    /// The same messages, in HTTP/2 by prior knowledge.
    ///
    /// # Errors
    /// As [`Self::tls`].
    pub(super) fn http2(proxy: SocketAddr, plans: Planned) -> Result<Self> {
        Self::by_message(Box::new(move || Ok(Box::new(Http2Session::open(proxy)?))), plans)
    }

    /// The same messages, in HTTP/3.
    ///
    /// # Errors
    /// As [`Self::tls`], or the client's configuration does not suit.
    pub(super) fn http3(proxy: SocketAddr, config: &ClientConfig, plans: Planned) -> Result<Self> {
        let config = http3::config(config)?;
        Self::by_message(Box::new(move || Ok(Box::new(Http3Session::open(proxy, &config)?))), plans)
    }

    fn by_message(
        open: Box<dyn Fn() -> Result<Box<dyn Session>> + Send + Sync>,
        plans: Planned,
    ) -> Result<Self> {
        let plans = Plans { open, plans };
        Self::start(Arc::new(move |runner, carried| plans.serve(runner, carried)))
    }

    /// Listens, and serves each connection on its own thread.
    fn start(serve: Arc<Serve>) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("relay")?;
        let address = listener.local_addr()?;
        let stopped = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stopped);
        let carried = Carried::default();
        let count = Arc::clone(&carried);
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                if flag.load(Ordering::Relaxed) {
                    return;
                }
                let (serve, count) = (Arc::clone(&serve), Arc::clone(&count));
                thread::spawn(move || drop(serve(client, &count)));
            }
        });
        Ok(Self { address, stopped, carried })
    }

    /// How much was carried so far.
    pub(super) fn carried(&self) -> usize {
        self.carried.load(Ordering::Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        // Wakes the accept, which then checks the flag.
        drop(TcpStream::connect(self.address));
    }
}

/// Closes with a reset, so that the reader sees that something is missing.
fn reset(stream: &TcpStream) -> io::Result<()> {
    let now = nix::libc::linger { l_onoff: 1, l_linger: 0 };
    setsockopt(stream, sockopt::Linger, &now).map_err(io::Error::from)
}
