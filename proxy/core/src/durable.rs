//! Files that are complete or absent: size-limited reads, writes that a crash cannot truncate, and renaming of damaged
//! files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Readable and writable by all, before the process's umask.
const MODE: u32 = 0o666;

/// Reads a file of at most `bytes_max` bytes, and one byte more of a larger file, so that the caller can tell. `None`
/// if the file does not exist.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    // Opening a FIFO would wait for its other end.
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => {}
        Ok(_) => return Err(io::Error::other("it is not a regular file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Writes a temporary file in the same directory and renames it over the target, so that a reader sees the old or the
/// new file complete, even after a crash. Blocks until the bytes are on disk.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_as(path, bytes, MODE)
}

/// As [`write()`], with the permissions of `mode`, whatever the old file had.
pub fn write_as(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    // The name contains the process id: during a restart, the old and the new process may write at once.
    let temporary = beside(path, &format!(".{}.tmp", std::process::id()));
    let written = write_new(&temporary, bytes, mode).and_then(|()| fs::rename(&temporary, path));
    if let Err(error) = written {
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    // The rename is durable once the directory is synced.
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

/// The maximum number of damaged files kept in one directory for one file.
const DAMAGED_MAX: u32 = 10;

/// Renames a damaged file to `FILE.damaged`, or if that exists to `FILE.damaged.1` and so on, and returns the new name.
/// When all ten names are taken, the last one is overwritten.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let names = (0..DAMAGED_MAX).map(|number| match number {
        0 => beside(path, ".damaged"),
        _ => beside(path, &format!(".damaged.{number}")),
    });
    let names: Vec<_> = names.collect();
    let free = names.iter().find(|name| fs::symlink_metadata(name).is_err()).or(names.last());
    let aside = free.cloned().unwrap_or_else(|| beside(path, ".damaged"));
    fs::rename(path, &aside)?;
    Ok(aside)
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    // A file left by a dead process with the same id. After its removal, `create_new` follows no link in its place.
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
