//! Threads that compare passwords, so that a worker never waits for one.

use std::future::Future;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use tokio::sync::oneshot;

/// Passwords that wait; each takes some tens of milliseconds. Beyond it, requests get 503.
const WAITING_MAX: usize = 256;

/// A password to compare.
struct Job {
    compare: Box<dyn FnOnce() -> bool + Send>,
    answer: oneshot::Sender<bool>,
}

/// The threads. They end when this is dropped.
pub struct Hasher(SyncSender<Job>);

/// As many passwords wait as possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

impl Hasher {
    /// Starts the threads: one for every second core, so that half of them stay for other work.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start() -> io::Result<Self> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let receiver = Arc::new(Mutex::new(receiver));
        for number in 0..cores.div_ceil(2) {
            let receiver = Arc::clone(&receiver);
            thread::Builder::new().name(format!("password-{number}")).spawn(move || work(&receiver))?;
        }
        Ok(Self(sender))
    }

    /// Has a thread compare a password; resolves to whether it is the right one. Dropping the future gives it up.
    ///
    /// # Errors
    /// When too many wait.
    pub(super) fn compare(
        &self,
        compare: Box<dyn FnOnce() -> bool + Send>,
    ) -> Result<impl Future<Output = bool> + use<>, Busy> {
        let (answer, outcome) = oneshot::channel();
        self.0.try_send(Job { compare, answer }).map_err(|_| Busy)?;
        Ok(async move { outcome.await.unwrap_or(false) })
    }
}

fn work(jobs: &Mutex<Receiver<Job>>) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { compare, answer }) = job else { return };
        // Its client may have left.
        if !answer.is_closed() {
            let _ = answer.send(compare());
        }
    }
}
