//! The archive that a kernel unpacks as its initial file system: cpio in its "newc" format, not compressed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_755;
const LINK: u32 = 0o120_777;
/// Header plus name, and content, are each padded to a multiple of this.
const ALIGNMENT: usize = 4;
const HEADER_BYTES: usize = 110;

/// The entry at a path.
enum Entry {
    Folder,
    /// A copy of this file; all files are executable.
    File(PathBuf),
    Text(String),
    /// A symbolic link.
    Link(String),
}

/// Files by path, without a leading slash; a folder precedes its content, as the kernel requires.
#[derive(Default)]
pub(super) struct Archive(BTreeMap<PathBuf, Entry>);

impl Archive {
    /// An empty folder.
    pub(super) fn folder(&mut self, path: impl AsRef<Path>) {
        self.put(path.as_ref(), Entry::Folder);
    }

    /// A copy of `source`.
    pub(super) fn file(&mut self, path: impl AsRef<Path>, source: impl Into<PathBuf>) {
        self.put(path.as_ref(), Entry::File(source.into()));
    }

    /// A file with this text.
    pub(super) fn text(&mut self, path: impl AsRef<Path>, text: impl Into<String>) {
        self.put(path.as_ref(), Entry::Text(text.into()));
    }

    /// A symbolic link.
    pub(super) fn link(&mut self, path: impl AsRef<Path>, to: &str) {
        self.put(path.as_ref(), Entry::Link(to.to_owned()));
    }

    fn put(&mut self, path: &Path, entry: Entry) {
        let path = path.strip_prefix("/").unwrap_or(path);
        for folder in path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty()) {
            self.0.entry(folder.to_path_buf()).or_insert(Entry::Folder);
        }
        self.0.insert(path.to_path_buf(), entry);
    }

    /// Writes the archive.
    ///
    /// # Errors
    /// When a file cannot be read, or `out` cannot be written.
    pub(super) fn write(&self, out: &mut impl Write) -> Result<()> {
        for (number, (path, entry)) in (1..).zip(&self.0) {
            let name = path.display().to_string();
            let (mode, content) = match entry {
                Entry::Folder => (FOLDER, Vec::new()),
                Entry::File(source) => {
                    (FILE, fs::read(source).with_context(|| source.display().to_string())?)
                }
                Entry::Text(text) => (FILE, text.clone().into_bytes()),
                Entry::Link(to) => (LINK, to.clone().into_bytes()),
            };
            record(out, number, mode, &name, &content).context(name)?;
        }
        Ok(record(out, 0, 0, "TRAILER!!!", &[])?)
    }
}

/// The fields are hexadecimal text; owner, time and devices are 0.
fn record(out: &mut impl Write, number: u32, mode: u32, name: &str, content: &[u8]) -> io::Result<()> {
    let size = u32::try_from(content.len()).map_err(|_| io::Error::other("too large for a cpio archive"))?;
    write!(out, "070701{number:08X}{mode:08X}{:016X}{:08X}{:08X}{size:08X}{:032X}", 0, 1, 0, 0)?;
    write!(out, "{:08X}{:08X}{name}\0", name.len() + 1, 0)?;
    pad(out, HEADER_BYTES + name.len() + 1)?;
    out.write_all(content)?;
    pad(out, content.len())
}

fn pad(out: &mut impl Write, written: usize) -> io::Result<()> {
    out.write_all(&[0; ALIGNMENT][..written.next_multiple_of(ALIGNMENT) - written])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn folders_come_first_and_everything_is_aligned() {
        let mut archive = Archive::default();
        archive.text("/etc/hosts", "hello");
        archive.link("sbin", "bin");
        let mut bytes = Vec::new();
        archive.write(&mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let starts: Vec<usize> = text.match_indices("070701").map(|(at, _)| at).collect();
        assert_eq!(starts.len(), 4);
        assert!(starts.iter().all(|at| at % ALIGNMENT == 0));
        let names: Vec<&str> =
            starts.iter().map(|at| text[at + HEADER_BYTES..].split('\0').next().unwrap()).collect();
        assert_eq!(names, ["etc", "etc/hosts", "sbin", "TRAILER!!!"]);
        // Mode and size of the file.
        assert_eq!(&text[starts[1] + 14..starts[1] + 22], "000081ED");
        assert_eq!(&text[starts[1] + 54..starts[1] + 62], "00000005");
    }
}
