//! The thread that writes batches of lines, so that no worker blocks on a disk or a pipe.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, TryRecvError};

use super::output::Output;
use crate::metrics::Metrics;

/// What a worker or the control plane sends to the writer.
pub(super) enum Message {
    /// Whole lines, and their number.
    Lines(Vec<u8>, u64),
    /// A flag changed.
    Wake,
}

/// Requests from the control plane. They are flags because the queue may be full.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    /// Reopen the file before the next write.
    pub(super) reopen: AtomicBool,
    /// End when the queue is empty.
    pub(super) close: AtomicBool,
}

/// The writer thread's state.
pub(super) struct Writer {
    pub(super) output: Box<dyn Output>,
    pub(super) queue: Receiver<Message>,
    pub(super) wishes: Arc<Wishes>,
    pub(super) metrics: Arc<Metrics>,
    /// The last write stopped within a line.
    pub(super) torn: bool,
    /// The last write failed, and the failure was logged.
    pub(super) failing: bool,
}

impl Writer {
    /// Writes until every sender is gone, or until `close` is set and the queue is empty.
    pub(super) fn run(mut self) {
        while let Some(message) = self.next() {
            if self.wishes.reopen.swap(false, SeqCst) {
                match self.output.reopen() {
                    Ok(()) => self.torn = false,
                    Err(error) => {
                        tracing::warn!(%error, "cannot reopen the access log; it continues in the old file")
                    }
                }
            }
            if let Message::Lines(bytes, lines) = message {
                self.write(&bytes, lines);
            }
        }
    }

    fn next(&self) -> Option<Message> {
        match self.queue.try_recv() {
            Ok(message) => Some(message),
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) if self.wishes.close.load(SeqCst) => None,
            Err(TryRecvError::Empty) => self.queue.recv().ok(),
        }
    }

    fn write(&mut self, bytes: &[u8], lines: u64) {
        let (written, result) = self.write_all(bytes);
        match result {
            Ok(()) if self.failing => {
                self.failing = false;
                tracing::info!("the access log can be written again");
            }
            Ok(()) => {}
            Err(error) => {
                let whole = memchr::memchr_iter(b'\n', &bytes[..written]).count() as u64;
                self.metrics.count_access_log_dropped(lines.saturating_sub(whole));
                // Logged once, not for each batch: a full disk would fill the other log as well.
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(%error, "cannot write the access log; lines are dropped and counted");
                }
            }
        }
    }

    /// Writes all bytes, after terminating a line that an earlier failure left torn. Returns how many were written.
    fn write_all(&mut self, bytes: &[u8]) -> (usize, io::Result<()>) {
        if self.torn {
            match write_all(&mut *self.output, b"\n") {
                (_, Ok(())) => self.torn = false,
                (_, Err(error)) => return (0, Err(error)),
            }
        }
        let (written, result) = write_all(&mut *self.output, bytes);
        self.torn = written > 0 && bytes[written - 1] != b'\n';
        (written, result)
    }
}

fn write_all(output: &mut dyn Output, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < bytes.len() {
        match output.write(&bytes[written..]) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(n) => written += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, Ok(()))
}
