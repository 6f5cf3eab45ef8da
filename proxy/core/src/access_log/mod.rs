//! The access log: one line per exchange, formatted by its worker, written in batches by a dedicated thread.
//!
//! A worker never blocks on the log. When the writer cannot keep up, lines are dropped and counted. sluice does not
//! rotate the file: rename it and call [`AccessLog::reopen`].

mod clock;
mod escape;
mod format;
mod output;
#[cfg(test)]
mod tests;
mod writer;

use std::cell::RefCell;
use std::io::{self, IsTerminal};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use format::Formatter;
pub use output::ShowLine;
use output::{Output, Sink, Terminal};
use sluice_config::{self as config, LogFormat, LogOutput};
use writer::{Message, Wishes, Writer};

use crate::metrics::Metrics;
use crate::record::ExchangeRecord;

/// Size in bytes at which a worker hands its batch to the writer.
const BATCH_BYTES: usize = 32 << 10;

/// Batches queued for the writer, over all workers: about 2 MiB of lines.
const QUEUE_BATCHES: usize = 64;

/// How long closing waits for the writer. A pipe that nobody reads must not keep the process from exiting.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The access log of the process.
#[derive(Debug)]
pub struct AccessLog {
    config: config::AccessLog,
    metrics: Arc<Metrics>,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    queue: SyncSender<Message>,
    wishes: Arc<Wishes>,
    /// Disconnected when the writer thread has ended.
    ended: Mutex<Receiver<()>>,
}

impl AccessLog {
    /// Opens the output and starts the writer thread. Does neither when the log is off.
    ///
    /// # Errors
    /// When the file cannot be opened (the error names it) or the thread cannot be started.
    pub fn start(config: &config::AccessLog, metrics: Arc<Metrics>) -> io::Result<Self> {
        Self::start_for_people(config, metrics, None)
    }

    /// The same; JSON lines go through `show` if standard output is a terminal.
    ///
    /// # Errors
    /// As for [`AccessLog::start`].
    pub fn start_for_people(
        config: &config::AccessLog,
        metrics: Arc<Metrics>,
        show: Option<ShowLine>,
    ) -> io::Result<Self> {
        let output: Box<dyn Output> = match (&config.output, show) {
            (LogOutput::Off, _) => {
                return Ok(Self { config: config.clone(), metrics, running: None });
            }
            (LogOutput::Stdout, Some(show))
                if config.format == LogFormat::Json && io::stdout().is_terminal() =>
            {
                Box::new(Terminal { sink: Sink::stdout()?, show })
            }
            (LogOutput::Stdout, _) => Box::new(Sink::stdout()?),
            (LogOutput::File(path), _) => Box::new(Sink::file(path)?),
        };
        Self::start_on(output, config, metrics)
    }

    fn start_on(
        output: Box<dyn Output>,
        config: &config::AccessLog,
        metrics: Arc<Metrics>,
    ) -> io::Result<Self> {
        let (queue, receiver) = mpsc::sync_channel(QUEUE_BATCHES);
        let (end, ended) = mpsc::channel::<()>();
        let wishes = Arc::new(Wishes::default());
        let writer = Writer {
            output,
            queue: receiver,
            wishes: Arc::clone(&wishes),
            metrics: Arc::clone(&metrics),
            torn: false,
            failing: false,
        };
        std::thread::Builder::new().name("access-log".into()).spawn(move || {
            let _end = end;
            writer.run();
        })?;
        let running = Running { queue, wishes, ended: Mutex::new(ended) };
        Ok(Self { config: config.clone(), metrics, running: Some(running) })
    }

    /// Returns a handle for one worker thread.
    pub fn worker(&self) -> AccessLogHandle {
        let worker = self.running.as_ref().map(|running| Worker {
            formatter: Formatter::new(&self.config),
            batch: Vec::new(),
            lines: 0,
            queue: running.queue.clone(),
            metrics: Arc::clone(&self.metrics),
        });
        AccessLogHandle { worker: worker.map(RefCell::new) }
    }

    /// Makes the writer reopen the file, after a rotation. Queued batches go into the new file.
    pub fn reopen(&self) {
        if let Some(running) = &self.running {
            // Sequentially consistent, so that a writer that has just made room sees the flag before it sleeps.
            running.wishes.reopen.store(true, SeqCst);
            // A full queue wakes the writer as well.
            let _ = running.queue.try_send(Message::Wake);
        }
    }

    /// Writes the batches that were handed over and ends the writer, waiting 5 s at most. Workers flush before this;
    /// later lines are dropped and counted.
    pub fn close(&self) {
        let Some(running) = &self.running else { return };
        // See `reopen`.
        running.wishes.close.store(true, SeqCst);
        let _ = running.queue.try_send(Message::Wake);
        let ended = running.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(CLOSE_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("timed out while writing the last lines of the access log");
        }
    }
}

/// One worker's handle to the access log. Does nothing when the log is off.
#[derive(Debug)]
pub struct AccessLogHandle {
    // Borrowed within one call only, never across an await.
    worker: Option<RefCell<Worker>>,
}

#[derive(Debug)]
struct Worker {
    formatter: Formatter,
    batch: Vec<u8>,
    lines: u64,
    queue: SyncSender<Message>,
    metrics: Arc<Metrics>,
}

impl AccessLogHandle {
    /// Whether lines are written at all; if not, the caller need not build the record.
    pub fn is_on(&self) -> bool {
        self.worker.is_some()
    }

    /// Adds the line of an exchange to the batch.
    pub fn log(&self, record: &ExchangeRecord<'_>) {
        let Some(worker) = &self.worker else { return };
        let mut worker = worker.borrow_mut();
        let Worker { formatter, batch, lines, .. } = &mut *worker;
        formatter.line(batch, record);
        *lines += 1;
        if batch.len() >= BATCH_BYTES {
            worker.hand_over();
        }
    }

    /// Hands the batch to the writer. Call it several times a second, and before the worker ends.
    pub fn flush(&self) {
        if let Some(worker) = &self.worker {
            worker.borrow_mut().hand_over();
        }
    }
}

impl Drop for AccessLogHandle {
    fn drop(&mut self) {
        self.flush();
    }
}

impl Worker {
    fn hand_over(&mut self) {
        if self.lines == 0 {
            return;
        }
        let lines = std::mem::take(&mut self.lines);
        // The next batch will be about as long as this one; a quiet worker keeps no large buffer.
        let next = Vec::with_capacity(self.batch.len());
        let batch = std::mem::replace(&mut self.batch, next);
        match self.queue.try_send(Message::Lines(batch, lines)) {
            Ok(()) => {}
            Err(TrySendError::Full(message) | TrySendError::Disconnected(message)) => {
                self.metrics.count_access_log_dropped(lines);
                if let Message::Lines(mut batch, _) = message {
                    batch.clear();
                    self.batch = batch;
                }
            }
        }
    }
}
