//! The folder of a cache: its files, who may write to it, and whether what is there can be trusted. Blocks.
//!
//! What a process has done is seen by the next one, also after `kill -9`: the kernel keeps it. Only when the kernel itself has
//! stopped may a removal be lost that a client has heard of. So the folder remembers which boot of the machine has
//! written to it, and begins empty after another one, unless everything was on the disk when it was closed.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::format::{self, Description, FileName, HEADER_BYTES};
use crate::purge::Purge;

const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const STATE: &str = "state.json";
const LOCK: &str = "lock";
const PURGES: &str = "purges";
/// Before the name of a file that is not complete.
const UNFINISHED: &str = "new-";
/// The version of the files.
const FORMAT: u32 = 1;
/// The name of the kernel's present run.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What the folder says of itself.
#[derive(Debug, Serialize, Deserialize)]
struct FolderState {
    format: u32,
    /// The run of the kernel that has written to it.
    boot: String,
    /// Whether everything was on the disk when it was closed.
    is_closed: bool,
}

/// Where the files of a cache are.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    root: PathBuf,
    /// In the names of files that this cache begins: other processes may have the same number, in other containers.
    token: String,
}

/// A folder that no other process writes to.
#[derive(Debug)]
pub(super) struct OpenFolder {
    folder: Folder,
    /// Unlocked when it is closed.
    _lock: File,
}

/// A file that was found.
pub(super) struct Found {
    pub(super) name: FileName,
    pub(super) bytes: u64,
    written: SystemTime,
}

impl Folder {
    /// The folder of a cache of this name. Nothing is made yet.
    pub(super) fn new(folder: &Path, cache: &str) -> Self {
        static CACHES: AtomicU64 = AtomicU64::new(0);
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let token = format!("{since:x}-{}-{}", std::process::id(), CACHES.fetch_add(1, Relaxed));
        Self { root: folder.join(cache), token }
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.root
    }

    fn file(&self, name: FileName) -> PathBuf {
        let (folder, name) = name.parts();
        self.root.join(folder).join(name)
    }

    /// The whole file; `None` if there is none.
    pub(super) fn read(&self, name: FileName) -> io::Result<Option<Vec<u8>>> {
        absent_is_none(fs::read(self.file(name)))
    }

    /// What a file says of its responses; `None` if it is not one of ours.
    pub(super) fn describe(&self, name: FileName) -> io::Result<Option<Description>> {
        let mut file = File::open(self.file(name))?;
        let mut header = [0; HEADER_BYTES];
        file.read_exact(&mut header)?;
        let Some(length) = format::description_length(&header) else { return Ok(None) };
        let mut description = Vec::new();
        file.take(length as u64).read_to_end(&mut description)?;
        Ok(format::describe(&description))
    }

    /// Removes a file, if there is one. The next process does not see it either.
    pub(super) fn remove(&self, name: FileName) -> io::Result<()> {
        absent_is_none(fs::remove_file(self.file(name))).map(|_| ())
    }

    /// Notes what an operator takes out; returns the name of the note. Any process may write one.
    pub(super) fn note_purge(&self, purge: &Purge, number: u32) -> io::Result<PathBuf> {
        let purges = self.root.join(PURGES);
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&purges)?;
        let bytes = serde_json::to_vec(purge)?;
        let name = format!("{}-{number}.json", self.token);
        self.write_new(&bytes, &purges.join(name), false)
    }

    /// Writes a file under another name first, so that it is complete or absent.
    fn write_new(&self, bytes: &[u8], path: &Path, is_durable: bool) -> io::Result<PathBuf> {
        let new = self.root.join(format!("{UNFINISHED}{}", self.token));
        let written = OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(&new);
        let written = written.and_then(|mut file| {
            file.write_all(bytes)?;
            if is_durable { file.sync_all() } else { Ok(()) }
        });
        if let Err(error) = written.and_then(|()| fs::rename(&new, path)) {
            let _ = fs::remove_file(&new);
            return Err(error);
        }
        Ok(path.to_owned())
    }

    /// Makes the folder and takes it; `None` while another process has it.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(super) fn open(&self) -> io::Result<Option<OpenFolder>> {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&self.root)?;
        let lock = self.root.join(LOCK);
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(FILE_MODE).open(lock)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let folder = OpenFolder { folder: self.clone(), _lock: lock };
        folder.prepare()?;
        Ok(Some(folder))
    }
}

impl OpenFolder {
    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.folder.root
    }

    /// The run of the kernel, or nothing that any other run is equal to.
    fn boot() -> Option<String> {
        fs::read_to_string(BOOT_ID).ok().map(|boot| boot.trim().to_owned()).filter(|boot| !boot.is_empty())
    }

    /// Removes what cannot be trusted, and says that it is in use.
    fn prepare(&self) -> io::Result<()> {
        let state = absent_is_none(fs::read(self.folder.root.join(STATE)))?;
        let state: Option<FolderState> = state.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let is_trusted = state.is_some_and(|state| {
            state.format == FORMAT && (state.is_closed || Self::boot().is_some_and(|boot| boot == state.boot))
        });
        for entry in fs::read_dir(&self.folder.root)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(UNFINISHED) {
                fs::remove_file(entry.path())?;
            }
            let is_ours = name == PURGES || is_part(&name);
            if is_ours && !is_trusted {
                fs::remove_dir_all(entry.path())?;
            }
        }
        self.note_state(false)
    }

    fn note_state(&self, is_closed: bool) -> io::Result<()> {
        let state = FolderState { format: FORMAT, boot: Self::boot().unwrap_or_default(), is_closed };
        self.folder.write_new(&serde_json::to_vec(&state)?, &self.folder.root.join(STATE), true)?;
        File::open(&self.folder.root)?.sync_all()
    }

    /// Writes a file in place of the one that is there.
    pub(super) fn write(&self, name: FileName, bytes: &[u8]) -> io::Result<()> {
        let path = self.folder.file(name);
        match self.folder.write_new(bytes, &path, false) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let parent = path.parent().unwrap_or(&self.folder.root);
                DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(parent)?;
                self.folder.write_new(bytes, &path, false).map(|_| ())
            }
            written => written.map(|_| ()),
        }
    }

    /// The folders with files.
    pub(super) fn parts(&self) -> io::Result<Vec<PathBuf>> {
        let mut parts = Vec::new();
        for entry in fs::read_dir(&self.folder.root)? {
            let entry = entry?;
            if is_part(&entry.file_name().to_string_lossy()) {
                parts.push(entry.path());
            }
        }
        Ok(parts)
    }

    /// The files of such a folder. What is not one of ours stays, and is not counted.
    pub(super) fn files_of(&self, part: &Path) -> io::Result<Vec<Found>> {
        let folder = part.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut found = Vec::new();
        for entry in fs::read_dir(part)? {
            let entry = entry?;
            let name = FileName::from_parts(&folder, &entry.file_name().to_string_lossy());
            let metadata = entry.metadata().ok().filter(fs::Metadata::is_file);
            found.extend(name.zip(metadata).map(|(name, metadata)| Found {
                name,
                bytes: metadata.len(),
                written: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            }));
        }
        Ok(found)
    }

    /// What operators have taken out, and where that is noted.
    pub(super) fn purges(&self) -> io::Result<Vec<(Purge, PathBuf)>> {
        let Some(entries) = absent_is_none(fs::read_dir(self.folder.root.join(PURGES)))? else {
            return Ok(Vec::new());
        };
        let mut purges = Vec::new();
        for entry in entries {
            let path = entry?.path();
            // What cannot be read may have meant anything.
            let purge = serde_json::from_slice(&fs::read(&path)?).unwrap_or(Purge::All);
            purges.push((purge, path));
        }
        Ok(purges)
    }

    /// Has everything written to the disk, and says so: what is there can be trusted after the next boot.
    pub(super) fn close(&self) -> io::Result<()> {
        nix::unistd::syncfs(File::open(&self.folder.root)?)?;
        self.note_state(true)
    }
}

/// The files that were written last come last.
pub(super) fn sort_by_age(found: &mut [Found]) {
    found.sort_unstable_by_key(|found| found.written);
}

fn is_part(name: &str) -> bool {
    name.len() == 2 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn absent_is_none<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
