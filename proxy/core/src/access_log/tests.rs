//! The log from handle to file: batches, overflow, rotation, failing disks.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::{env, fs, process};

use sluice_config::{LogField, LogFormat};

use super::*;

/// A directory that is removed at the end of the test.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("sluice-access-log-{}-{}", process::id(), NEXT.fetch_add(1, SeqCst));
        let dir = env::temp_dir().join(name);
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn config(output: LogOutput) -> config::AccessLog {
    config::AccessLog {
        output,
        format: LogFormat::Ltsv,
        fields: vec![LogField::Target],
        variables: Vec::new(),
    }
}

fn start(path: &Path) -> (AccessLog, Arc<Metrics>) {
    let metrics = Metrics::new();
    let log = AccessLog::start(&config(LogOutput::File(path.into())), Arc::clone(&metrics)).unwrap();
    (log, metrics)
}

fn record(target: &str) -> ExchangeRecord<'_> {
    ExchangeRecord { target: target.as_bytes(), ..ExchangeRecord::sample() }
}

#[test]
fn every_line_of_every_worker_arrives_whole() {
    let dir = Dir::new();
    let path = dir.file("access.log");
    let (log, metrics) = start(&path);
    let threads = [0, 1, 2].map(|worker| {
        let handle = log.worker();
        std::thread::spawn(move || {
            (0..5_000).for_each(|n| handle.log(&record(&format!("/{worker}/{n}"))));
        })
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    log.close();
    let text = fs::read_to_string(&path).unwrap();
    for worker in 0..3 {
        let prefix = format!("target:/{worker}/");
        let lines = text.lines().filter_map(|line| line.strip_prefix(&prefix));
        assert!(lines.eq((0..5_000).map(|n| n.to_string())), "worker {worker}");
    }
    assert_eq!(metrics.access_log_dropped(), 0);
}

#[test]
fn reopen_leaves_the_renamed_file_and_starts_a_new_one() {
    let dir = Dir::new();
    let (path, rotated) = (dir.file("access.log"), dir.file("access.log.1"));
    let (log, metrics) = start(&path);
    let handle = log.worker();
    handle.log(&record("/one"));
    handle.flush();
    wait_for(|| fs::read_to_string(&path).unwrap() == "target:/one\n");
    fs::rename(&path, &rotated).unwrap();
    log.reopen();
    wait_for(|| path.exists());
    handle.log(&record("/two"));
    handle.flush();
    log.close();
    assert_eq!(fs::read_to_string(&rotated).unwrap(), "target:/one\n");
    assert_eq!(fs::read_to_string(&path).unwrap(), "target:/two\n");
    handle.log(&record("/late"));
    drop(handle);
    assert_eq!(metrics.access_log_dropped(), 1);
}

#[test]
fn a_reopen_that_fails_keeps_the_old_file() {
    let dir = Dir::new();
    let sub = dir.file("logs");
    fs::create_dir(&sub).unwrap();
    let (log, _metrics) = start(&sub.join("access.log"));
    fs::rename(&sub, dir.file("moved")).unwrap();
    log.reopen();
    log.worker().log(&record("/still"));
    log.close();
    assert_eq!(fs::read_to_string(dir.file("moved").join("access.log")).unwrap(), "target:/still\n");
}

/// Yields until `done` returns true. Only the test runner limits the wait.
fn wait_for(done: impl Fn() -> bool) {
    while !done() {
        std::thread::yield_now();
    }
}

/// Accepts nothing until the test permits it.
struct Gate {
    permits: Receiver<()>,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Output for Gate {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.permits.recv();
        self.written.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
}

#[test]
fn a_full_queue_drops_and_counts_without_blocking() {
    let (permit, permits) = mpsc::channel();
    let written = Arc::new(Mutex::default());
    let gate = Gate { permits, written: Arc::clone(&written) };
    let metrics = Metrics::new();
    let log = AccessLog::start_on(Box::new(gate), &config(LogOutput::Stdout), Arc::clone(&metrics)).unwrap();
    let handle = log.worker();
    let total = 4 * QUEUE_BATCHES;
    for n in 0..total {
        handle.log(&record(&format!("/{n}")));
        handle.flush();
    }
    let dropped = metrics.access_log_dropped() as usize;
    // At most the queued batches and the writer's current batch are kept.
    assert!(dropped >= total - QUEUE_BATCHES - 1, "{dropped}");
    drop(permit);
    drop(handle);
    log.close();
    let written = String::from_utf8(written.lock().unwrap().clone()).unwrap();
    assert_eq!(written.lines().count() + dropped, total);
}

#[test]
fn a_full_disk_counts_every_line() {
    let (log, metrics) = start(Path::new("/dev/full"));
    let handle = log.worker();
    for _ in 0..3 {
        handle.log(&record("/lost"));
        handle.log(&record("/lost"));
        handle.flush();
    }
    log.close();
    assert_eq!(metrics.access_log_dropped(), 6);
}

/// Accepts a few bytes, then returns an error, then accepts bytes again.
struct Flaky {
    room: Vec<usize>,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Output for Flaky {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = match self.room.pop() {
            Some(0) => return Err(io::ErrorKind::StorageFull.into()),
            Some(room) => room.min(bytes.len()),
            None => bytes.len(),
        };
        self.written.lock().unwrap().extend_from_slice(&bytes[..n]);
        Ok(n)
    }
}

#[test]
fn a_torn_line_is_terminated_before_the_next_line() {
    let written = Arc::new(Mutex::default());
    let flaky = Flaky { room: vec![0, 18], written: Arc::clone(&written) };
    let metrics = Metrics::new();
    let log = AccessLog::start_on(Box::new(flaky), &config(LogOutput::Stdout), Arc::clone(&metrics)).unwrap();
    let handle = log.worker();
    ["/whole", "/torn", "/lost"].iter().for_each(|target| handle.log(&record(target)));
    handle.flush();
    handle.log(&record("/next"));
    drop(handle);
    log.close();
    let written = String::from_utf8(written.lock().unwrap().clone()).unwrap();
    assert_eq!(written, "target:/whole\ntarg\ntarget:/next\n");
    assert_eq!(metrics.access_log_dropped(), 2);
}

#[test]
fn off_does_nothing_and_the_error_names_a_missing_directory() {
    let log = AccessLog::start(&config(LogOutput::Off), Metrics::new()).unwrap();
    let handle = log.worker();
    assert!(!handle.is_on());
    handle.log(&record("/"));
    log.reopen();
    log.close();
    let missing = LogOutput::File("/nonexistent/access.log".into());
    let error = AccessLog::start(&config(missing), Metrics::new()).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/access.log"), "{error}");
}
