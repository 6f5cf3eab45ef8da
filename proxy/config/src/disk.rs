//! Checks that the files named by a configuration can be used. Apart from `load`, only this module accesses the disk.

use crate::Mistake;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::path::Path as KeyPath;
use super::problem::Problems;
use super::{Auth, CertificateFiles, Config, LogOutput, Tls, UpstreamTls};

/// Maximum bytes of an error page; error pages are kept in memory.
const PAGE_BYTES_MAX: u64 = 1 << 20;

/// Reports files that are missing or unreadable, and directories that are missing.
pub(super) fn check(config: &Config, problems: &Problems) {
    let root = KeyPath::root();
    for (status, page) in &config.error_pages {
        if let Err(message) = page_is_readable(page) {
            problems.add(&root.key("error_pages").key(&status.to_string()), message);
        }
    }
    for (index, route) in config.routes.iter().enumerate() {
        let path = root.key("routes").index(index).key("error_pages");
        for (status, page) in &route.error_pages {
            if let Err(message) = page_is_readable(page) {
                problems.add(&path.key(&status.to_string()), message);
            }
        }
    }
    for (index, route) in config.routes.iter().enumerate() {
        let root_of_files = route.files.iter().map(|files| &files.root);
        let path = root.key("routes").index(index).key("files").key("root");
        root_of_files.for_each(|folder| is_folder(folder, &path, problems));
        let path = root.key("routes").index(index).key("sendfile");
        if let Some(sendfile) = &route.sendfile {
            for (index, folder) in sendfile.roots.iter().enumerate() {
                is_folder(folder, &path.key("roots").index(index), problems);
            }
            for (prefix, folder) in &sendfile.accel {
                is_folder(folder, &path.key("accel").key(prefix), problems);
            }
        }
    }
    if let Some(file) = &config.admin_token_file {
        exists(file, &root.key("admin_token_file"), problems);
    }
    if let Some(file) = config.store.as_ref().and_then(|store| store.key_file.as_ref()) {
        exists(file, &root.key("store").key("key_file"), problems);
    }
    if let LogOutput::File(file) = &config.access_log.output {
        parent_exists(file, &root.key("access_log"), problems);
    }
    if let Some(qlog) = &config.qlog {
        is_folder(&qlog.folder, &root.key("qlog").key("folder"), problems);
    }
    if let Some(Err(message)) = config.debug_token_file.as_deref().map(super::read_token) {
        problems.add(&root.key("debug_token_file"), message);
    }
    for (name, cluster) in &config.clusters {
        if let Some(file) = &cluster.state_file {
            parent_exists(file, &root.key("clusters").key(name).key("state_file"), problems);
        }
        if let Some(file) = cluster.discover.as_ref().and_then(|discover| discover.memory_file.as_ref()) {
            let path = root.key("clusters").key(name).key("discover").key("memory_file");
            parent_exists(file, &path, problems);
        }
    }
    for (name, cluster) in &config.clusters {
        let path = root.key("clusters").key(name).key("tls");
        cluster.tls.iter().for_each(|tls| tls_files_exist(tls, &path, problems));
    }
    for (index, route) in config.routes.iter().enumerate() {
        if let Some(Auth::Basic(basic)) = &route.auth {
            exists(
                &basic.file,
                &root.key("routes").index(index).key("auth").key("basic").key("file"),
                problems,
            );
        }
    }
    for (index, listener) in config.listeners.iter().enumerate() {
        let path = root.key("listeners").index(index).key("tls");
        listener.tls.iter().for_each(|tls| certificates_exist(tls, &path, problems));
    }
    if let Err(message) = can_spool(config) {
        problems.add(&root.key("buffers").key("spool_directory"), message);
    }
}

fn certificates_exist(tls: &Tls, path: &KeyPath, problems: &Problems) {
    let certificates = path.key("certificates");
    for (index, files) in tls.certificates.iter().enumerate() {
        let path = certificates.index(index);
        match files {
            CertificateFiles::Pair { cert, key, ocsp } => {
                exists(cert, &path.key("cert"), problems);
                if key != cert {
                    exists(key, &path.key("key"), problems);
                }
                ocsp.iter().for_each(|file| exists(file, &path.key("ocsp"), problems));
            }
            CertificateFiles::Folder(folder) => exists(folder, &path.key("folder"), problems),
        }
    }
    let ca_file = tls.client_auth.ca_file.as_ref();
    ca_file.into_iter().for_each(|file| exists(file, &path.key("client_auth").key("ca_file"), problems));
}

/// Checks existence only: the user who runs the check may not be allowed to read the file. The start reports the rest.
fn exists(file: &Path, path: &KeyPath, problems: &Problems) {
    if fs::metadata(file).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        problems.add(path, format!("{} does not exist; create it first", file.display()));
    }
}

fn is_folder(folder: &Path, path: &KeyPath, problems: &Problems) {
    exists(folder, path, problems);
    if fs::metadata(folder).is_ok_and(|found| !found.is_dir()) {
        problems.add(path, format!("{} is not a directory; write the path of one", folder.display()));
    }
}

fn tls_files_exist(tls: &UpstreamTls, path: &KeyPath, problems: &Problems) {
    let shown = tls.client_certificate.as_ref();
    let below = path.key("client_certificate");
    let files = [
        (path.key("ca_file"), tls.ca_file.as_ref()),
        (below.key("cert"), shown.map(|files| &files.cert)),
        (below.key("key"), shown.map(|files| &files.key)),
    ];
    for (path, file) in files {
        file.into_iter().for_each(|file| exists(file, &path, problems));
    }
}

/// Whether bodies can be buffered in files, if a route may need it. Tests this by creating an unnamed file.
///
/// # Errors
/// A sentence about the configured folder.
pub fn can_spool(config: &Config) -> Result<(), Mistake> {
    let holds = config.routes.iter().any(|route| route.buffering.is_on());
    if !holds || config.buffers.spool_bytes_max == 0 {
        return Ok(());
    }
    let directory = config.buffers.directory();
    let shown = directory.display();
    if !directory.is_dir() {
        return Err(format!("the directory {shown} does not exist; create it first").into());
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let made = match open_unnamed(&options, &directory) {
        // Some filesystems do not support O_TMPFILE.
        Err(error) if lacks_unnamed_files(&error) => {
            let name = directory.join(format!(".sluice-check-{}", std::process::id()));
            options.create_new(true).open(&name).and_then(|_| fs::remove_file(&name))
        }
        made => made.map(drop),
    };
    made.map_err(|error| {
        format!("cannot create a file in {shown}: {error}; write a directory for temporary files").into()
    })
}

/// Creates an unnamed file, which disappears when it is closed.
#[cfg(target_os = "linux")]
fn open_unnamed(options: &OpenOptions, directory: &Path) -> io::Result<File> {
    options.clone().custom_flags(libc::O_TMPFILE | libc::O_EXCL).open(directory)
}

/// Only Linux has unnamed files, but a configuration can be checked on any system.
#[cfg(not(target_os = "linux"))]
fn open_unnamed(_: &OpenOptions, _: &Path) -> io::Result<File> {
    Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
}

/// Whether the error means that the filesystem does not support O_TMPFILE.
pub fn lacks_unnamed_files(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::ENOENT | libc::EINVAL))
}

fn page_is_readable(page: &Path) -> Result<(), Mistake> {
    let shown = page.display();
    let cannot = |error: std::io::Error| format!("{shown} cannot be read: {error}");
    // Checked before opening: opening a named pipe would block until it has a writer.
    let metadata = fs::metadata(page).map_err(cannot)?;
    if !metadata.is_file() {
        return Err(format!("{shown} is not a file; write the path of one").into());
    }
    if metadata.len() > PAGE_BYTES_MAX {
        return Err(format!("{shown} is larger than {PAGE_BYTES_MAX} bytes; make it smaller").into());
    }
    File::open(page).map_err(cannot)?;
    Ok(())
}

fn parent_exists(file: &Path, path: &KeyPath, problems: &Problems) {
    let parent = match file.parent() {
        Some(parent) if parent != Path::new("") => parent,
        Some(_) => Path::new("."),
        None => {
            return problems
                .add(path, format!("{} is a directory; write the path of a file", file.display()));
        }
    };
    if !parent.is_dir() {
        problems.add(path, format!("the directory {} does not exist; create it first", parent.display()));
    } else if file.is_dir() {
        problems.add(path, format!("{} is a directory; write the path of a file", file.display()));
    }
}
