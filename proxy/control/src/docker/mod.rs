//! What `sluice discover docker` does: it deploys the containers that have labels for it, by the control socket.
//!
//! It is a process of its own, so that the proxy needs no access to the socket of Docker, which is as good as root.

mod containers;
mod engine;
mod keeper;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use containers::Wanted;
use engine::Engine;
use keeper::Keeper;
use tokio::signal::unix::{SignalKind, signal};

/// Between two looks at what is deployed: sluice may have been restarted.
const LOOK: Duration = Duration::from_secs(5);
/// After an event, for those that follow it.
const PACE: Duration = Duration::from_millis(100);
/// After a failure of the engine, and at most after many.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));

/// What is discovered, and where it is deployed.
#[derive(Clone, Debug)]
pub struct DockerOptions {
    /// The socket of Docker or Podman.
    pub socket: PathBuf,
    /// The control socket of sluice.
    pub control: PathBuf,
    /// What the names of its services begin with. Others are left alone.
    pub prefix: String,
    /// How long a service stays after its last container has gone.
    pub remove_after: Duration,
}

/// Follows the containers until the process is asked to end.
///
/// # Errors
/// The process cannot wait for anything.
pub fn run(options: &DockerOptions) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(async {
        let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        tokio::select! {
            () = follow(options) => {}
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        Ok(())
    });
    // A deploy may be under way; sluice completes it.
    runtime.shutdown_background();
    done
}

async fn follow(options: &DockerOptions) {
    let engine = Engine::new(&options.socket);
    let mut keeper = Keeper::new(options);
    let mut backoff = BACKOFF.0;
    let mut is_failing = false;
    let mut said: Vec<String> = Vec::new();
    loop {
        let (mut events, listed) = match tokio::try_join!(engine.events(), engine.containers()) {
            Ok(found) => found,
            Err(error) => {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!(%error, "Docker does not answer; what is deployed stays");
                }
                keeper.work_for(backoff).await;
                backoff = (backoff * 2).min(BACKOFF.1);
                continue;
            }
        };
        if std::mem::replace(&mut is_failing, false) {
            tracing::info!("Docker answers again");
        }
        backoff = BACKOFF.0;
        let Wanted { services, mistakes } = containers::services(&listed, &options.prefix);
        for mistake in mistakes.iter().filter(|mistake| !said.contains(mistake)) {
            tracing::warn!("a container is left out: {mistake}");
        }
        said = mistakes;
        keeper.want(services);
        // An event says only that something has changed.
        tokio::select! {
            event = events.next() => {
                if let Err(error) = event {
                    tracing::debug!(%error, "the events of Docker have ended");
                }
                keeper.work_for(PACE).await;
            }
            () = keeper.work_for(LOOK) => {}
        }
    }
}
