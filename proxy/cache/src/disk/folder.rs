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
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::format::{self, Description, FileName, HEADER_BYTES};
use crate::purge::Purge;

const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const STATE: &str = "state.json";
const LOCK: &str = "lock";
const PURGES: &str = "purges";
/// Before the name of a file that is not complete.
const UNFINISHED: &str = ".sluice-new-";
/// After that, whoever has begun such a file has ended.
const UNFINISHED_MAX: Duration = Duration::from_secs(60);
/// The length of the state, which is written in place of the last one: a full disk has no room for another file.
const STATE_BYTES: usize = 256;
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

    /// The whole file, of so many bytes at most; `None` if there is none.
    pub(super) fn read(&self, name: FileName, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = absent_is_none(open_regular(&self.file(name)))? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(bytes_max).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// Has the next process begin with nothing. Works on a full disk.
    pub(super) fn distrust(&self) -> io::Result<()> {
        absent_is_none(fs::remove_file(self.root.join(STATE))).map(|_| ())
    }

    /// What a file says of its responses; `None` if it is not one of ours.
    pub(super) fn describe(&self, name: FileName) -> io::Result<Option<Description>> {
        let mut file = open_regular(&self.file(name))?;
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

    /// Makes the folder and takes it; `None` while another process has it. `pause` is called now and then: many files may
    /// be removed.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(super) fn open(&self, pause: &dyn Fn()) -> io::Result<Option<OpenFolder>> {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&self.root)?;
        let lock = self.root.join(LOCK);
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(FILE_MODE).open(lock)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let folder = OpenFolder { folder: self.clone(), _lock: lock };
        folder.prepare(pause)?;
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
    fn prepare(&self, pause: &dyn Fn()) -> io::Result<()> {
        let state = absent_is_none(fs::read(self.folder.root.join(STATE)))?;
        let state: Option<FolderState> = state.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let is_trusted = state.is_some_and(|state| {
            state.format == FORMAT && (state.is_closed || Self::boot().is_some_and(|boot| boot == state.boot))
        });
        self.remove_unfinished()?;
        if !is_trusted {
            self.empty(pause)?;
        }
        self.note_state(false)
    }

    /// Removes files that nobody goes on with.
    fn remove_unfinished(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder.root)? {
            let entry = entry?;
            let is_old = || {
                let modified = entry.metadata().and_then(|metadata| metadata.modified());
                modified.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > UNFINISHED_MAX))
            };
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) && is_old() {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }

    /// Removes all files of ours, and nothing else.
    pub(super) fn empty(&self, pause: &dyn Fn()) -> io::Result<()> {
        for part in self.parts()? {
            pause();
            for found in self.files_of(&part)? {
                self.folder.remove(found.name)?;
            }
            // What others have put there stays.
            let _ = fs::remove_dir(&part);
        }
        for (_, note) in self.purges()? {
            fs::remove_file(note)?;
        }
        Ok(())
    }

    fn note_state(&self, is_closed: bool) -> io::Result<()> {
        let state = FolderState { format: FORMAT, boot: Self::boot().unwrap_or_default(), is_closed };
        let mut text = serde_json::to_vec(&state)?;
        text.resize(STATE_BYTES.max(text.len()), b' ');
        let path = self.folder.root.join(STATE);
        let old = OpenOptions::new().write(true).open(&path);
        match absent_is_none(old)? {
            Some(mut file) if file.metadata()?.len() == text.len() as u64 => {
                file.write_all(&text)?;
                file.sync_all()?;
            }
            _ => _ = self.folder.write_new(&text, &path, true)?,
        }
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
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder && is_part(&entry.file_name().to_string_lossy()) {
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
        let folder = self.folder.root.join(PURGES);
        if !folder.is_dir() {
            return Ok(Vec::new());
        }
        let mut purges = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let path = entry.path();
            if !entry.file_type()?.is_file() {
                continue;
            }
            // What cannot be read may have meant anything.
            let purge = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
            let purge = purge.unwrap_or(Purge::All);
            purges.push((purge, path));
        }
        Ok(purges)
    }

    /// Has everything written to the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(nix::unistd::syncfs(File::open(&self.folder.root)?)?)
    }

    /// Says that everything is on the disk: what is there can be trusted after the next boot. Not if somebody has said that
    /// it cannot be trusted at all.
    pub(super) fn note_closed(&self) -> io::Result<()> {
        if self.folder.root.join(STATE).exists() { self.note_state(true) } else { Ok(()) }
    }
}

/// The files that were written last come last.
pub(super) fn sort_by_age(found: &mut [Found]) {
    found.sort_unstable_by_key(|found| found.written);
}

fn is_part(name: &str) -> bool {
    name.len() == 2 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Opens a file, and nothing that waits for somebody at its other end.
fn open_regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

fn absent_is_none<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
