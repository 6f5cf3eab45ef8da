//! The binary that needs nothing of its host, with what belongs beside it, in one archive.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sluice_testkit::ship::{self, Machine};
use sluice_testkit::workspace::{self, must};

use super::{succeed, write_pages};

/// Files of the source and where they lie in the archive.
const FILES: [(&str, &str); 8] = [
    ("LICENSE", "LICENSE"),
    ("README.md", "README.md"),
    ("config/sluice.yaml", "sluice.yaml"),
    ("config/sluice.schema.json", "sluice.schema.json"),
    ("config/openapi.yaml", "openapi.yaml"),
    ("config/packaging/sluice.service", "systemd/sluice.service"),
    ("config/packaging/sysusers.conf", "systemd/sysusers.conf"),
    ("config/packaging/logrotate", "logrotate"),
];

/// Packs `binary`, and the pages that `author` writes: the same binary, if it runs here.
///
/// # Errors
/// When a file cannot be read or written, or the binary needs a library.
pub(super) fn build(machine: Machine, binary: &Path, author: &Path, folder: &Path) -> Result<()> {
    let dynamic = succeed(Command::new("readelf").arg("--dynamic").arg(binary))?;
    ensure!(!dynamic.contains("NEEDED"), "it is not static:\n{dynamic}");
    let name = format!("sluice-{}-{}-linux", env!("CARGO_PKG_VERSION"), machine.name());
    let parent = workspace::scratch("archive")?;
    let root = parent.join(&name);
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    write_pages(author, &root.join("share"))?;
    copy(binary, &root.join("sluice"))?;
    for (from, to) in FILES {
        copy(&workspace::root().join(from), &root.join(to))?;
    }
    for entry in fs::read_dir(workspace::root().join("scripts"))? {
        let script = entry?.path();
        if script.extension().is_some_and(|extension| extension == "bt") {
            let name = script.file_name().context("a file has a name")?;
            copy(&script, &root.join("scripts").join(name))?;
        }
    }
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=u+rw,go+r-w,a+X"]);
    tar.arg(format!("--mtime=@{}", ship::epoch()));
    tar.args(["--use-compress-program=gzip --best --no-name", "--create", "--file"]);
    must(tar.arg(folder.join(format!("{name}.tar.gz"))).arg("--directory").arg(&parent).arg(&name))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().context("a file lies in a folder")?;
    fs::create_dir_all(folder)?;
    fs::copy(from, to).with_context(|| from.display().to_string()).map(drop)
}
