//! Files that are there whole or not at all: bounded reads, writes that a crash cannot cut, damaged ones set aside.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// For everybody, but for what the process masks.
const MODE: u32 = 0o666;

/// Reads a file of at most `bytes_max` bytes, and one more byte of a larger one; `None` if there is none.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    // Opening a pipe would wait for its other end.
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

/// Writes beside the file and renames over it, so that a reader or a crash meets the old or the new file whole.
/// Blocks until the bytes are on disk.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_as(path, bytes, MODE)
}

/// The same, for those to read that `mode` says, whatever the file was before.
pub fn write_as(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    // With the process in its name: at a restart the old and the new process may write at once.
    let temporary = beside(path, &format!(".{}.tmp", std::process::id()));
    let written = write_new(&temporary, bytes, mode).and_then(|()| fs::rename(&temporary, path));
    if let Err(error) = written {
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    // The rename is durable once the directory is.
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

/// Damaged files that are kept beside one another.
const DAMAGED_MAX: u32 = 10;

/// Renames a damaged file to `FILE.damaged`, or if there is one to `FILE.damaged.1` and so on; the name is returned. The
/// tenth takes the place of the one before.
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
    // Left by a process of the same id that died; `create_new` then follows no link put in its place.
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
