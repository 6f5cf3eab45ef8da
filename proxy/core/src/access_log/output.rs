//! Where lines are written: standard output, or a file that can be reopened. Blocking; only the writer thread uses it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Accepts whole batches of lines.
pub(super) trait Output: Send {
    /// Writes some of the bytes, as [`Write::write`] does.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Reopens the same path, after a rotation. On an error the old file stays in use.
    fn reopen(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Standard output or a file, unbuffered, so that after a failed write the number of written bytes is known exactly.
pub(super) struct Sink {
    /// `None` is standard output, which cannot be reopened.
    path: Option<PathBuf>,
    file: File,
}

impl Sink {
    /// Writes to standard output.
    pub(super) fn stdout() -> io::Result<Self> {
        Ok(Self { path: None, file: File::from(io::stdout().as_fd().try_clone_to_owned()?) })
    }

    /// Opens or creates a file and appends lines to it. The error names the file.
    pub(super) fn file(path: &Path) -> io::Result<Self> {
        Ok(Self { path: Some(path.to_path_buf()), file: open(path)? })
    }
}

impl Output for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn reopen(&mut self) -> io::Result<()> {
        if let Some(path) = &self.path {
            self.file = open(path)?;
        }
        Ok(())
    }
}

/// Turns a line, without its end, into what people read.
pub type ShowLine = fn(&[u8]) -> Vec<u8>;

/// A terminal, where people read.
pub(super) struct Terminal {
    pub(super) sink: Sink,
    pub(super) show: ShowLine,
}

impl Output for Terminal {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut shown = Vec::with_capacity(bytes.len());
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            shown.extend((self.show)(line));
            shown.push(b'\n');
        }
        self.sink.file.write_all(&shown)?;
        Ok(bytes.len())
    }
}

fn open(path: &Path) -> io::Result<File> {
    // Not world-readable: lines contain clients' addresses and query strings.
    let file = OpenOptions::new().append(true).create(true).mode(0o640).open(path);
    file.map_err(|error| {
        io::Error::new(error.kind(), format!("cannot open access log {}: {error}", path.display()))
    })
}
