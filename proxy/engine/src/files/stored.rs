//! What is known of a file that was found.

use std::borrow::Cow;
use std::cell::Cell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::stat::{FileStat, fstat};
use sluice_core::clock;
use sluice_http::{Coding, Validators, http_date};
use sluice_ring as ring;

/// A file, and what responses say of it.
pub(crate) struct StoredFile {
    /// Its size in bytes.
    pub(crate) length: u64,
    /// Last-Modified, in seconds since 1970.
    modified_s: Option<u64>,
    /// Its media type.
    pub(crate) content_type: Cow<'static, str>,
    /// Its entity tag.
    pub(crate) etag: Vec<u8>,
    /// Further fields of its responses.
    pub(crate) fields: Vec<(&'static [u8], Vec<u8>)>,
    /// Its bytes.
    pub(crate) content: Content,
    /// What tells it from other files, and from itself before a change.
    pub(super) identity: Identity,
    /// When it was looked at.
    pub(super) checked_ms: Cell<u64>,
}

/// The bytes of a file.
pub(crate) enum Content {
    /// In memory.
    Memory(Box<[u8]>),
    /// On the disk.
    Open(OpenFile),
}

impl Content {
    /// The file, if it has to be read.
    pub(crate) fn file(&self) -> Option<&ring::Fd> {
        match self {
            Self::Open(open) => open.0.as_ref(),
            Self::Memory(_) => None,
        }
    }
}

/// An open file, which is closed outside the worker's thread.
pub(crate) struct OpenFile(Option<ring::Fd>);

impl OpenFile {
    pub(super) fn new(fd: ring::Fd) -> Self {
        Self(Some(fd))
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take().and_then(ring::Fd::into_inner) {
            ring::close(fd);
        }
    }
}

/// What changes when a file is replaced or written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: libc::dev_t,
    inode: libc::ino_t,
    size: libc::off_t,
    modified: (libc::time_t, i64),
    changed: (libc::time_t, i64),
}

impl Identity {
    pub(super) fn of(stat: &FileStat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size,
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    /// Whether it has just been written, so that a further change may not show in its times.
    pub(super) fn is_fresh(&self) -> bool {
        const TICK: Duration = Duration::from_millis(20);
        let (seconds, nanoseconds) = self.changed;
        let changed =
            Duration::new(u64::try_from(seconds).unwrap_or(0), u32::try_from(nanoseconds).unwrap_or(0));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.saturating_sub(changed) < TICK
    }

    pub(super) fn length(&self) -> u64 {
        u64::try_from(self.size).unwrap_or(0)
    }
}

/// How a file was asked for.
pub(super) struct Asked<'a> {
    /// Its name without the ending of a coding.
    pub(super) name: &'a [u8],
    /// The coding of its content.
    pub(super) coding: Option<Coding>,
    /// Whether another request for it may get another coding.
    pub(super) varies: bool,
    /// Cache-Control.
    pub(super) cache_control: Option<&'a [u8]>,
}

impl StoredFile {
    pub(super) fn new(asked: &Asked<'_>, identity: Identity, content: Content) -> Self {
        // RFC 9110 section 8.8.2.1: not later than Date.
        let modified_s =
            u64::try_from(identity.modified.0).ok().map(|modified| modified.min(clock::unix_s()));
        let etag = etag(&identity, asked.coding);
        let mut fields: Vec<(&'static [u8], Vec<u8>)> = vec![(b"ETag", etag.clone())];
        fields.extend(modified_s.map(|seconds| (&b"Last-Modified"[..], http_date(seconds).into_bytes())));
        fields.extend(asked.cache_control.map(|value| (&b"Cache-Control"[..], value.to_vec())));
        fields.extend(asked.varies.then(|| (&b"Vary"[..], b"Accept-Encoding".to_vec())));
        Self {
            length: match &content {
                Content::Memory(bytes) => bytes.len() as u64,
                Content::Open(_) => identity.length(),
            },
            modified_s,
            content_type: content_type(asked.name),
            etag,
            fields,
            content,
            identity,
            checked_ms: Cell::new(clock::now_ms()),
        }
        .encoded(asked.coding)
    }

    fn encoded(mut self, coding: Option<Coding>) -> Self {
        self.fields
            .extend(coding.map(|coding| (&b"Content-Encoding"[..], coding.name().as_bytes().to_vec())));
        self
    }

    /// Closes it at once, on the worker's thread.
    pub(super) fn close(self) {
        if let Content::Open(mut open) = self.content {
            drop(open.0.take());
        }
    }

    /// Whether it is what it was when it was looked at. What is in memory is.
    pub(super) fn is_unchanged(&self) -> bool {
        let Some(file) = self.content.file() else { return true };
        fstat(file).is_ok_and(|stat| Identity::of(&stat) == self.identity)
    }

    /// What conditional requests are compared with.
    pub(crate) fn validators(&self) -> Validators<'_> {
        Validators { etag: &self.etag, modified_s: self.modified_s }
    }

    /// Bytes that it takes, as far as they grow with what is asked for; `open` is the least for an open file.
    pub(super) fn weight(&self, open: u64) -> u64 {
        const OVERHEAD: u64 = 512;
        // A descriptor, and the kernel's memory of an open file.
        const DESCRIPTOR: u64 = 4096;
        match &self.content {
            Content::Memory(bytes) => bytes.len() as u64 + OVERHEAD,
            Content::Open(_) => DESCRIPTOR.max(open),
        }
    }
}

/// A strong tag of time and size, the same on every host that has the same file with the same time. A coding has its
/// own.
fn etag(identity: &Identity, coding: Option<Coding>) -> Vec<u8> {
    let (seconds, nanoseconds) = identity.modified;
    let suffix = coding.map_or_else(String::new, |coding| format!("-{}", coding.name()));
    format!("\"{seconds:x}-{nanoseconds:x}-{:x}{suffix}\"", identity.size).into_bytes()
}

/// The type by the ending of the name. Text is taken for UTF-8, like all of today's.
fn content_type(name: &[u8]) -> Cow<'static, str> {
    let name = String::from_utf8_lossy(name);
    let Some(kind) = mime_guess::from_path(&*name).first_raw() else {
        return Cow::Borrowed("application/octet-stream");
    };
    match kind {
        "text/html" => Cow::Borrowed("text/html; charset=utf-8"),
        "text/css" => Cow::Borrowed("text/css; charset=utf-8"),
        "text/javascript" | "application/javascript" => Cow::Borrowed("text/javascript; charset=utf-8"),
        text if text.starts_with("text/") => Cow::Owned(format!("{text}; charset=utf-8")),
        other => Cow::Borrowed(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_by_the_ending() {
        for (name, wanted) in [
            ("a/b.css", "text/css; charset=utf-8"),
            ("app.JS", "text/javascript; charset=utf-8"),
            ("app.mjs", "text/javascript; charset=utf-8"),
            ("a.html", "text/html; charset=utf-8"),
            ("a.txt", "text/plain; charset=utf-8"),
            ("a.svg", "image/svg+xml"),
            ("a.png", "image/png"),
            ("a.webp", "image/webp"),
            ("a.woff2", "font/woff2"),
            ("a.json", "application/json"),
            ("a.wasm", "application/wasm"),
            ("a.pdf", "application/pdf"),
            ("README", "application/octet-stream"),
            ("a.unknown-ending", "application/octet-stream"),
        ] {
            assert_eq!(content_type(name.as_bytes()), wanted, "{name}");
        }
    }
}
