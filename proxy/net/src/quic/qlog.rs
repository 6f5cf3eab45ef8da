//! Records connections as qlog files, which tools such as qvis show. A thread of its own writes them: a disk that stalls
//! stalls no worker.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use quinn_proto::{QlogConfig, QlogStream};
use sluice_config::Qlog;

/// Records that wait to be written; further ones are lost.
const WAITING_MAX: usize = 4096;
/// The extension that tools know for a sequence of JSON texts (RFC 7464).
const EXTENSION: &str = "sqlog";

/// What the thread is told: a record of a connection, or that there are no more.
enum Told {
    Record(u64, Vec<u8>),
    End(u64),
}

/// Records connections into a folder.
#[derive(Debug)]
pub struct QlogRecorder {
    config: Qlog,
    tell: SyncSender<Told>,
}

/// The one in use; another one begins when a reload changes its keys.
static RECORDER: Mutex<Option<Arc<QlogRecorder>>> = Mutex::new(None);

impl QlogRecorder {
    /// The recorder with these keys. Its thread ends with it.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn with(config: &Qlog) -> io::Result<Arc<Self>> {
        let mut recorder = RECORDER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = recorder.as_ref().filter(|known| known.config == *config) {
            return Ok(Arc::clone(known));
        }
        let (tell, told) = sync_channel(WAITING_MAX);
        let files = Files::new(config);
        std::thread::Builder::new().name("qlog".to_owned()).spawn(move || files.write(&told))?;
        let new = Arc::new(Self { config: config.clone(), tell });
        *recorder = Some(Arc::clone(&new));
        Ok(new)
    }

    /// A recording of a connection, if it is one of those that are recorded. `random` is from 0 to 1.
    pub fn record(&self, random: f64, title: String) -> Option<QlogStream> {
        if random >= self.config.sample_ratio {
            return None;
        }
        let record = Record { id: fastrand::u64(..), tell: self.tell.clone(), line: Vec::new() };
        let mut config = QlogConfig::default();
        config.writer(Box::new(record)).title(Some(title));
        config.into_stream()
    }
}

/// Gathers the pieces of a record, and passes it on.
struct Record {
    id: u64,
    tell: SyncSender<Told>,
    line: Vec<u8>,
}

impl Write for Record {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        if self.line.ends_with(b"\n") {
            // Lost if the disk does not keep up: the worker does not wait.
            let _ = self.tell.try_send(Told::Record(self.id, std::mem::take(&mut self.line)));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if let Err(TrySendError::Full(_)) = self.tell.try_send(Told::End(self.id)) {
            // The file stays open until it is the oldest.
            tracing::debug!("the disk does not keep up with qlog");
        }
    }
}

/// The files of the folder.
struct Files {
    config: Qlog,
    /// Those that are being written, with the bytes that they may still get.
    open: HashMap<u64, (File, u64)>,
    /// All of them, the oldest first, with the connection of those that this process has made.
    known: VecDeque<(PathBuf, Option<u64>)>,
    has_failed: bool,
}

impl Files {
    fn new(config: &Qlog) -> Self {
        let mut known = existing(&config.folder);
        known.sort_unstable();
        let known = known.into_iter().map(|path| (path, None)).collect();
        Self { config: config.clone(), open: HashMap::new(), known, has_failed: false }
    }

    fn write(mut self, told: &Receiver<Told>) {
        while let Ok(told) = told.recv() {
            match told {
                Told::End(id) => _ = self.open.remove(&id),
                Told::Record(id, line) => {
                    let written = self.put(id, &line);
                    let failed = written.is_err();
                    if let Err(error) = written
                        && !self.has_failed
                    {
                        let folder = self.config.folder.display();
                        tracing::warn!(%folder, %error, "connections of HTTP/3 cannot be recorded");
                    }
                    self.has_failed = failed;
                }
            }
        }
    }

    fn put(&mut self, id: u64, line: &[u8]) -> io::Result<()> {
        if !self.open.contains_key(&id) {
            // The first record of a file says what it is; the rest of one that was removed says nothing.
            if !line.windows(14).any(|part| part == b"\"qlog_version\"") {
                return Ok(());
            }
            self.begin(id)?;
        }
        let Some((file, left)) = self.open.get_mut(&id) else { return Ok(()) };
        let Some(rest) = left.checked_sub(line.len() as u64) else {
            *left = 0;
            return Ok(());
        };
        *left = rest;
        file.write_all(line)
    }

    fn begin(&mut self, id: u64) -> io::Result<()> {
        while self.known.len() >= self.config.files_max {
            let Some((path, connection)) = self.known.pop_front() else { break };
            connection.into_iter().for_each(|id| _ = self.open.remove(&id));
            // Somebody may have removed it.
            let _ = fs::remove_file(path);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let path = self.config.folder.join(format!("{now}-{id:016x}.{EXTENSION}"));
        let file = File::create_new(&path)?;
        self.known.push_back((path, Some(id)));
        self.open.insert(id, (file, self.config.file_bytes_max));
        Ok(())
    }
}

fn existing(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == EXTENSION))
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn files_are_bounded_in_size_and_number() {
        let folder = std::env::temp_dir().join(format!("sluice-qlog-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("1-old.sqlog"), "old").unwrap();
        fs::write(folder.join("notes.txt"), "mine").unwrap();
        let config = Qlog { folder: folder.clone(), sample_ratio: 1.0, file_bytes_max: 60, files_max: 2 };
        let mut files = Files::new(&config);
        let first = b"\x1e{\"qlog_version\":\"0.3\"}\n";
        for id in 1..=3 {
            files.put(id, first).unwrap();
            files.put(id, b"\x1e{\"name\":\"packet\"}\n").unwrap();
            files.put(id, &[b'x'; 30]).unwrap();
            files.put(id, b"y").unwrap();
        }
        let left = existing(&folder);
        assert_eq!(left.len(), 2, "{left:?}");
        for path in &left {
            let text = fs::read_to_string(path).unwrap();
            assert!(
                text.ends_with("packet\"}\n") && text.len() <= 60,
                "nothing after what had no room: {text}"
            );
        }
        assert_eq!(files.open.len(), 2);
        files.put(1, b"\x1e{\"name\":\"late\"}\n").unwrap();
        assert_eq!(existing(&folder).len(), 2, "the rest of a removed file");
        assert!(folder.join("notes.txt").exists());
        fs::remove_dir_all(folder).unwrap();
    }
}
