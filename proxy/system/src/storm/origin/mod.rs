//! The origins: servers that behave as each request's target says, and can be stopped at any time.

mod guard;
mod http1;
mod http2;
mod script;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::sleep;

use super::findings::Findings;

/// The protocol of an origin.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// One address and its protocol.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) address: SocketAddr,
    pub(super) protocol: Protocol,
}

/// Origins on their own thread, which ends when this is dropped.
pub(super) struct Origins {
    restarts: Vec<UnboundedSender<Duration>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Origins {
    /// Starts them all.
    ///
    /// # Errors
    /// When an address cannot be bound.
    pub(super) fn start(places: &[Place], findings: &Arc<Findings>) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build().context("runtime")?;
        let mut restarts = Vec::new();
        let mut listening = Vec::new();
        for place in places {
            let (sender, receiver) = unbounded_channel();
            restarts.push(sender);
            let listener = runtime.block_on(TcpListener::bind(place.address)).context("bind an origin")?;
            listening.push((*place, listener, receiver));
        }
        let findings = Arc::clone(findings);
        let thread = thread::spawn(move || {
            LocalSet::new().block_on(&runtime, async move {
                let mut origins = JoinSet::new();
                for (place, listener, restarts) in listening {
                    origins.spawn_local(run(place, listener, restarts, Arc::clone(&findings)));
                }
                while let Some(ended) = origins.join_next().await {
                    ended??;
                }
                Ok(())
            })
        });
        Ok(Self { restarts, thread: Some(thread) })
    }

    /// Stops one at any point, and makes it listen again after `pause`.
    pub(super) fn restart(&self, index: usize, pause: Duration) {
        // If its thread has ended, this is reported at the end.
        let _ = self.restarts[index % self.restarts.len()].send(pause);
    }

    /// Stops them.
    ///
    /// # Errors
    /// When one could not listen again.
    pub(super) fn stop(mut self) -> Result<()> {
        self.restarts.clear();
        let thread = self.thread.take().context("stopped twice")?;
        thread.join().map_err(|_| anyhow!("the origins panicked"))?
    }
}

impl Drop for Origins {
    fn drop(&mut self) {
        self.restarts.clear();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves until restarts can no longer be requested.
async fn run(
    place: Place,
    listener: TcpListener,
    mut restarts: UnboundedReceiver<Duration>,
    findings: Arc<Findings>,
) -> Result<()> {
    let mut listener = listener;
    loop {
        let mut connections = JoinSet::new();
        let pause = tokio::select! {
            pause = restarts.recv() => pause,
            () = accept(place, &listener, &findings, &mut connections) => None,
        };
        let Some(pause) = pause else {
            return Ok(());
        };
        drop(listener);
        // Connections end with their tasks.
        connections.shutdown().await;
        sleep(pause).await;
        listener = TcpListener::bind(place.address).await.context("bind an origin again")?;
    }
}

async fn accept(
    place: Place,
    listener: &TcpListener,
    findings: &Arc<Findings>,
    connections: &mut JoinSet<()>,
) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // For example out of descriptors: clients keep waiting.
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        let findings = Arc::clone(findings);
        connections.spawn_local(async move {
            // If a connection breaks, its client sees it too.
            let _ = match place.protocol {
                Protocol::Http1 => http1::serve(stream, findings).await,
                Protocol::Http2 => http2::serve(stream, findings).await,
            };
        });
    }
}
