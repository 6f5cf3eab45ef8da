//! Lines of a file: all of them, the last ones, or new ones across rotation and truncation.

use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::show::Printer;

/// Maximum bytes kept of a line. Our lines are shorter; a file without newlines must not fill the memory.
const LINE_BYTES_MAX: usize = 1 << 20;
/// Bytes per read when reading backwards.
const BLOCK_BYTES: u64 = 64 << 10;
/// How often a file is checked for new lines, in milliseconds: soon enough for a viewer, and cheap.
const LOOK_MS: u16 = 100;

/// Reads the next line, without its newline; false at the end. The last line may have no newline.
pub(super) fn next(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut seen = false;
    loop {
        let available = match input.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            available => available?,
        };
        if available.is_empty() {
            return Ok(seen);
        }
        seen = true;
        let end = memchr::memchr(b'\n', available);
        let taken = end.unwrap_or(available.len());
        let kept = taken.min(LINE_BYTES_MAX.saturating_sub(line.len()));
        line.extend_from_slice(&available[..kept]);
        input.consume(taken + usize::from(end.is_some()));
        if end.is_some() {
            return Ok(true);
        }
    }
}

/// Shows a file from its start.
pub(super) fn all(file: File, printer: &mut Printer<impl Write>) -> io::Result<()> {
    let mut input = BufReader::new(file);
    let mut line = Vec::new();
    while next(&mut input, &mut line)? {
        printer.line(&line)?;
    }
    Ok(())
}

/// The position after the last newline.
pub(super) fn end_of_lines(file: &mut File) -> io::Result<u64> {
    let mut at = file.seek(SeekFrom::End(0))?;
    while at > 0 {
        let block = block_before(file, &mut at)?;
        if let Some(last) = memchr::memrchr(b'\n', &block) {
            return Ok(at + last as u64 + 1);
        }
    }
    Ok(0)
}

/// Shows the last matching lines before `end`, read backwards.
pub(super) fn last(
    file: &mut File,
    count: usize,
    end: u64,
    printer: &mut Printer<impl Write>,
) -> io::Result<()> {
    let mut at = end.min(file.seek(SeekFrom::End(0))?);
    let mut kept: Vec<Vec<u8>> = Vec::new();
    // The rest of a line whose start has not been read yet.
    let mut tail: Vec<u8> = Vec::new();
    while at > 0 && kept.len() < count {
        let mut block = block_before(file, &mut at)?;
        block.extend_from_slice(&tail);
        let first = memchr::memchr(b'\n', &block).map_or(block.len(), |first| first + 1);
        let begin = if at == 0 { 0 } else { first };
        let lines = block[begin..].split(|byte| *byte == b'\n').rev().filter(|line| printer.wants(line));
        kept.extend(lines.take(count - kept.len()).map(<[u8]>::to_vec));
        // Lines that are too long lose their end.
        block.truncate(begin.min(LINE_BYTES_MAX));
        tail = block;
    }
    kept.iter().rev().try_for_each(|line| printer.line(line))
}

/// Reads the block that ends at `at`, and moves `at` to its start.
fn block_before(file: &mut File, at: &mut u64) -> io::Result<Vec<u8>> {
    let size = BLOCK_BYTES.min(*at);
    *at -= size;
    file.seek(SeekFrom::Start(*at))?;
    let mut block = Vec::new();
    file.take(size).read_to_end(&mut block)?;
    Ok(block)
}

/// Waits for a short time; true if the reader of our output has gone meanwhile.
pub(super) fn wait() -> io::Result<bool> {
    let stdout = io::stdout();
    let mut wanted = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
    match poll(&mut wanted, PollTimeout::from(LOOK_MS)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A file that is followed.
pub(super) struct Follower {
    path: PathBuf,
    input: BufReader<File>,
    identity: (u64, u64),
    position: u64,
    /// A line that is still incomplete.
    partial: Vec<u8>,
}

impl Follower {
    /// Continues after `position`.
    pub(super) fn new(path: &Path, mut file: File, position: u64) -> io::Result<Self> {
        file.seek(SeekFrom::Start(position))?;
        let identity = identity(&file.metadata()?);
        let (path, partial) = (path.to_owned(), Vec::new());
        Ok(Self { path, input: BufReader::new(file), identity, position, partial })
    }

    /// Shows new lines, and switches to another file if the path now names one.
    pub(super) fn read(&mut self, printer: &mut Printer<impl Write>) -> io::Result<()> {
        self.drain(printer)?;
        if self.input.get_ref().metadata()?.len() < self.position {
            // Truncated in place: its current content is new.
            self.finish(printer)?;
            self.position = self.input.seek(SeekFrom::Start(0))?;
            self.drain(printer)?;
        }
        // While no file has this name, the old one may still be written to.
        let Ok(now) = std::fs::metadata(&self.path) else {
            return Ok(());
        };
        if identity(&now) == self.identity {
            return Ok(());
        }
        let Ok(file) = File::open(&self.path) else {
            return Ok(());
        };
        // The new file is created after the last write to the old one, so the rest of the old one is read first.
        self.drain(printer)?;
        self.finish(printer)?;
        *self = Self::new(&self.path, file, 0)?;
        self.drain(printer)
    }

    /// Shows all complete lines.
    fn drain(&mut self, printer: &mut Printer<impl Write>) -> io::Result<()> {
        loop {
            let available = self.input.fill_buf()?;
            if available.is_empty() {
                return Ok(());
            }
            let end = memchr::memchr(b'\n', available);
            let taken = end.map_or(available.len(), |end| end + 1);
            let kept = end.unwrap_or(taken).min(LINE_BYTES_MAX.saturating_sub(self.partial.len()));
            self.partial.extend_from_slice(&available[..kept]);
            self.input.consume(taken);
            self.position += taken as u64;
            if end.is_some() {
                let line = std::mem::take(&mut self.partial);
                printer.line(&line)?;
            }
        }
    }

    /// Shows an incomplete line that will not be completed any more.
    fn finish(&mut self, printer: &mut Printer<impl Write>) -> io::Result<()> {
        let line = std::mem::take(&mut self.partial);
        printer.line(&line)
    }
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}
