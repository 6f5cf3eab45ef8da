//! Looks up the file for a request.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use nix::sys::stat::{FileStat, SFlag, fstat};
use sluice_config::FileCache;
use sluice_core::clock;
use sluice_http::{Acceptance, Coding};
use sluice_ring as ring;

use super::name::Name;
use super::route::FileRoute;
use super::store::FileStore;
use super::stored::{Asked, Content, Identity, OpenFile, StoredFile};

/// How often a file is read that changes meanwhile.
const READS_MAX: usize = 3;
/// How often a file is opened that cannot be for the moment.
const OPENS_MAX: usize = 3;

/// What a request asks for.
pub(crate) struct Wanted<'a> {
    /// The files of its route.
    pub(crate) route: &'a FileRoute,
    /// The path, in its normal form.
    pub(crate) path: &'a [u8],
    /// The codings that the client takes.
    pub(crate) acceptance: Acceptance,
    /// What may be kept.
    pub(crate) limits: &'a FileCache,
    /// The number of workers that share it.
    pub(crate) workers: usize,
}

/// What was found.
pub(crate) enum Found {
    /// A file.
    File(Rc<StoredFile>),
    /// A folder, which the client has to name with a slash at the end.
    Folder,
    /// A folder to be listed.
    Listing(OwnedFd),
    /// Nothing that may be served.
    Nothing,
}

/// A file that is open.
struct Opened {
    file: OwnedFd,
    stat: FileStat,
}

impl Opened {
    fn is(&self, kind: SFlag) -> bool {
        self.stat.st_mode & SFlag::S_IFMT.bits() == kind.bits()
    }
}

impl Wanted<'_> {
    fn codings(&self) -> Vec<Coding> {
        match self.route.offered.is_empty() {
            true => Vec::new(),
            false => self.acceptance.ranked(&self.route.offered).collect(),
        }
    }
}

impl FileStore {
    /// What is known to be there without a look at the disk.
    fn recent(&self, wanted: &Wanted<'_>) -> Option<Rc<StoredFile>> {
        let file = self.get(&[&wanted.route.id.to_ne_bytes(), &marks(&wanted.codings()), wanted.path])?;
        let age_ms = clock::now_ms().saturating_sub(file.checked_ms.get());
        (age_ms < wanted.limits.recheck_ms && file.is_unchanged()).then_some(file)
    }

    /// Looks for the file.
    ///
    /// # Errors
    /// The disk or the process is in trouble; a name that is not there or must not be read is [`Found::Nothing`].
    pub(crate) async fn find(&self, wanted: &Wanted<'_>) -> io::Result<Found> {
        if let Some(file) = self.recent(wanted) {
            return Ok(Found::File(file));
        }
        // Boxed, because most requests do not need it.
        match Box::pin(self.look(wanted)).await {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                self.close_all();
                Box::pin(self.look(wanted)).await
            }
            found => found,
        }
    }

    async fn look(&self, wanted: &Wanted<'_>) -> io::Result<Found> {
        let config = &wanted.route.config;
        let folder = match self.folders.open(&config.root, wanted.limits.recheck_ms).await {
            Err(error) if is_absent(&error) => return Ok(Found::Nothing),
            folder => folder?,
        };
        for (path, is_path_itself) in wanted.route.candidates(wanted.path) {
            let Some(name) = Name::of(&path, wanted.route.serves_hidden) else { continue };
            if name.is_folder {
                if let Some(found) = self.in_folder(&folder, &name, wanted, is_path_itself).await? {
                    return Ok(found);
                }
                continue;
            }
            let Some(opened) = open(&folder, &name.relative).await? else { continue };
            if opened.is(SFlag::S_IFREG) {
                return self.load(&folder, &name.relative, opened, wanted).await.map(Found::File);
            }
            // Relative links on its page would otherwise lead to the folder above.
            if opened.is(SFlag::S_IFDIR) && is_path_itself && self.is_served(&folder, &name, wanted).await? {
                return Ok(Found::Folder);
            }
        }
        Ok(Found::Nothing)
    }

    /// The index of a folder, or the folder itself if it is to be listed.
    async fn in_folder(
        &self,
        folder: &ring::Fd,
        name: &Name,
        wanted: &Wanted<'_>,
        is_path_itself: bool,
    ) -> io::Result<Option<Found>> {
        if let Some(index) = &wanted.route.config.index {
            let name = name.with(index);
            if let Some(opened) = open(folder, &name).await?.filter(|opened| opened.is(SFlag::S_IFREG)) {
                return self.load(folder, &name, opened, wanted).await.map(|file| Some(Found::File(file)));
            }
        }
        if !wanted.route.config.listing || !is_path_itself {
            return Ok(None);
        }
        let name = if name.relative.is_empty() { b"." } else { &name.relative[..] };
        let opened = open(folder, name).await?.filter(|opened| opened.is(SFlag::S_IFDIR));
        Ok(opened.map(|opened| Found::Listing(opened.file)))
    }

    /// Whether there is a response for a folder.
    async fn is_served(&self, folder: &ring::Fd, name: &Name, wanted: &Wanted<'_>) -> io::Result<bool> {
        if wanted.route.config.listing {
            return Ok(true);
        }
        let Some(index) = &wanted.route.config.index else { return Ok(false) };
        Ok(open(folder, &name.with(index)).await?.is_some_and(|opened| opened.is(SFlag::S_IFREG)))
    }

    /// The file that was opened, or the encoded one beside it that the client prefers.
    async fn load(
        &self,
        folder: &ring::Fd,
        name: &[u8],
        opened: Opened,
        wanted: &Wanted<'_>,
    ) -> io::Result<Rc<StoredFile>> {
        let codings = wanted.codings();
        let (mut opened, mut chosen) = (opened, None);
        for coding in &codings {
            let encoded = [name, coding.ending().as_bytes()].concat();
            if let Some(found) = open(folder, &encoded).await?.filter(|found| found.is(SFlag::S_IFREG)) {
                (opened, chosen) = (found, Some(*coding));
                break;
            }
        }
        let asked = Asked {
            name,
            coding: chosen,
            varies: !wanted.route.offered.is_empty(),
            cache_control: wanted.route.cache_control(wanted.path),
        };
        let key = [&wanted.route.id.to_ne_bytes()[..], &marks(&codings), wanted.path];
        let identity = Identity::of(&opened.stat);
        if let Some(before) = self.get(&key).filter(|before| before.identity == identity) {
            before.checked_ms.set(clock::now_ms());
            return Ok(before);
        }
        let memory_max = wanted.limits.memory_bytes_max / wanted.workers.max(1) as u64;
        let object_max = wanted.limits.object_bytes_max.min(memory_max);
        let (file, is_settled) = read(&asked, opened, object_max).await?;
        let file = Rc::new(file);
        if is_settled {
            self.keep(&key, &file, wanted.limits, wanted.workers);
        }
        Ok(file)
    }
}

/// The codings, in order, as a part of a key.
fn marks(codings: &[Coding]) -> [u8; 4] {
    let mut marks = [0; 4];
    for (mark, coding) in marks.iter_mut().zip(codings) {
        *mark = *coding as u8 + 1;
    }
    marks
}

/// Opens a name below a folder; `None` if it is not there, or must not be read.
async fn open(folder: &ring::Fd, name: &[u8]) -> io::Result<Option<Opened>> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    for _ in 0..OPENS_MAX {
        match ring::open_beneath(folder, name.clone()).await {
            Err(error) if is_absent(&error) => return Ok(None),
            // A name on its way has changed meanwhile, or another server has a lease of the file.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            file => {
                let file = file?;
                let stat = fstat(&file)?;
                return Ok(Some(Opened { file, stat }));
            }
        }
    }
    Ok(None)
}

/// Whether an error means that there is nothing to serve: no such name, one that leads out of the folder, or one that
/// sluice's user may not read.
fn is_absent(error: &io::Error) -> bool {
    use libc::{EACCES, ELOOP, ENAMETOOLONG, ENODEV, ENOENT, ENOTDIR, ENXIO, EPERM, EXDEV};
    let absent = [ENOENT, ENOTDIR, ENAMETOOLONG, ELOOP, EXDEV, EACCES, EPERM, ENXIO, ENODEV];
    error.raw_os_error().is_some_and(|code| absent.contains(&code))
}

/// Reads a file of at most `object_max` bytes into memory. Also returns whether it stayed the same meanwhile.
async fn read(asked: &Asked<'_>, opened: Opened, object_max: u64) -> io::Result<(StoredFile, bool)> {
    let Opened { file, mut stat } = opened;
    let file = ring::Fd::from(file);
    for _ in 0..READS_MAX {
        let identity = Identity::of(&stat);
        let length = identity.length();
        if length > object_max {
            return Ok((StoredFile::new(asked, identity, Content::Open(OpenFile::new(file))), true));
        }
        let bytes = read_whole(&file, usize::try_from(length).unwrap_or(0)).await?;
        stat = fstat(&file)?;
        if Identity::of(&stat) == identity {
            // Files of some virtual filesystems are shorter than they say; they are as long as what was read.
            let is_settled = bytes.len() as u64 == length && !identity.is_fresh();
            return Ok((StoredFile::new(asked, identity, Content::Memory(bytes.into())), is_settled));
        }
    }
    // Somebody writes to it all the time; the client gets what a plain read would give.
    let content = Content::Open(OpenFile::new(file));
    Ok((StoredFile::new(asked, Identity::of(&stat), content), false))
}

/// Up to `length` bytes from the start of a file.
async fn read_whole(file: &ring::Fd, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let (offset, missing) = (bytes.len() as u64, length - bytes.len());
        let outcome;
        (outcome, bytes) = ring::read_at(file, bytes, missing, offset).await;
        match outcome {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}
