//! The only layer of the images: a folder as a tar archive whose bytes depend only on the folder's content.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

/// The account of the image: see `config/packaging/rootfs.sh`.
const ACCOUNT: u64 = 1001;

/// Folders that it may write to.
const WRITABLE: [&str; 4] = ["run/sluice", "var/lib/sluice", "var/log/sluice", "home/kamal-proxy"];

/// The only file with capabilities.
const BINARY: &str = "usr/bin/sluice";

/// CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_PERFMON and CAP_BPF by their numbers in linux/capability.h: permitted, not
/// effective, as in the Containerfile.
const CAPABILITIES: [u32; 4] = [10, 12, 38, 39];

/// `struct vfs_cap_data`, revision 2 (linux/capability.h): the revision, then permitted and inheritable, twice, for 32
/// capabilities each; all little-endian.
const VFS_CAP_REVISION_2: u32 = 0x0200_0000;

/// A compressed layer, with its digests.
pub(super) struct Layer {
    /// SHA-256 of the archive.
    pub(super) diff_id: String,
    /// The archive, compressed by gzip.
    pub(super) compressed: Vec<u8>,
}

impl Layer {
    /// Packs the folder `root` into the archive `file`; every entry has the time `epoch`.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub(super) fn pack(root: &Path, file: &Path, epoch: u64) -> Result<Self> {
        let mut builder = Builder::new(File::create(file).with_context(|| file.display().to_string())?);
        let mut paths = Vec::new();
        walk(root, &mut paths)?;
        paths.sort();
        for path in paths {
            append(&mut builder, root, &path, epoch).with_context(|| path.display().to_string())?;
        }
        builder.into_inner()?.flush()?;
        let archive = fs::read(file)?;
        let mut gzip = GzBuilder::new().write(Vec::new(), Compression::best());
        gzip.write_all(&archive)?;
        Ok(Self { diff_id: digest(&archive), compressed: gzip.finish()? })
    }
}

/// A digest in the format of an OCI descriptor.
pub(super) fn digest(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    let text: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{text}")
}

fn walk(folder: &Path, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        paths.push(entry.path());
        if entry.file_type()?.is_dir() {
            walk(&entry.path(), paths)?;
        }
    }
    Ok(())
}

fn append(builder: &mut Builder<File>, root: &Path, path: &Path, epoch: u64) -> Result<()> {
    let name = path.strip_prefix(root)?;
    let found = fs::symlink_metadata(path)?;
    let mut header = Header::new_ustar();
    header.set_mtime(epoch);
    header.set_mode(found.permissions().mode() & 0o7777);
    let owner = if WRITABLE.iter().any(|folder| name.starts_with(folder)) { ACCOUNT } else { 0 };
    header.set_uid(owner);
    header.set_gid(owner);
    header.set_size(0);
    if found.is_symlink() {
        header.set_entry_type(EntryType::Symlink);
        header.set_mode(0o777);
        builder.append_link(&mut header, name, fs::read_link(path)?)?;
    } else if found.is_dir() {
        header.set_entry_type(EntryType::Directory);
        builder.append_data(&mut header, name, io::empty())?;
    } else {
        if name == Path::new(BINARY) {
            let value = capabilities();
            builder.append_pax_extensions([("SCHILY.xattr.security.capability", &value[..])])?;
        }
        header.set_size(found.len());
        builder.append_data(&mut header, name, File::open(path)?)?;
    }
    Ok(())
}

fn capabilities() -> Vec<u8> {
    let permitted = CAPABILITIES.iter().fold(0_u64, |set, one| set | 1 << one);
    let low = u32::try_from(permitted & 0xffff_ffff).unwrap_or_default();
    let high = u32::try_from(permitted >> 32).unwrap_or_default();
    [VFS_CAP_REVISION_2, low, 0, high, 0].iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_as_setcap_writes_them() {
        // `setcap cap_net_bind_service,cap_net_admin,cap_perfmon,cap_bpf+p`, read by getfattr.
        let expected = [0, 0, 0, 2, 0, 0x14, 0, 0, 0, 0, 0, 0, 0xc0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(capabilities(), expected);
    }

    #[test]
    fn the_same_folder_gives_the_same_bytes() {
        let folder = std::env::temp_dir().join(format!("sluice-layer-{}", std::process::id()));
        let root = folder.join("root");
        fs::create_dir_all(root.join("run/sluice")).unwrap();
        fs::write(root.join("file"), "text").unwrap();
        std::os::unix::fs::symlink("/file", root.join("link")).unwrap();
        let pack = |name: &str| Layer::pack(&root, &folder.join(name), 7).unwrap();
        let (one, other) = (pack("one"), pack("other"));
        assert_eq!((&one.diff_id, &one.compressed), (&other.diff_id, &other.compressed));
        let mut archive = tar::Archive::new(File::open(folder.join("one")).unwrap());
        let entries: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let path = entry.path().unwrap().display().to_string();
                (path, entry.header().uid().unwrap(), entry.header().mtime().unwrap())
            })
            .collect();
        let own = |path: &str, owner| (path.to_owned(), owner, 7);
        assert_eq!(entries, [own("file", 0), own("link", 0), own("run", 0), own("run/sluice", ACCOUNT)]);
        fs::remove_dir_all(folder).unwrap();
    }
}
