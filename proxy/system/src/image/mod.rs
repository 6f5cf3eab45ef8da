//! `cargo xtask package --image`: the images of `config/packaging/Containerfile`, built without a container engine. The
//! script that the Containerfile runs creates the root folder; the settings of the images are read from the
//! Containerfile.

mod containerfile;
mod layer;
mod layout;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;
pub(crate) use containerfile::Stage;
use layer::Layer;
use sluice_testkit::ship::{self, Linking, Machine};
use sluice_testkit::workspace::{self, cargo, must};

/// Stages of the Containerfile that are images, each with the suffix of its tag.
const IMAGES: [(&str, &str); 2] = [("sluice", ""), ("kamal", "-kamal")];

/// Maximum size of a compressed image: pulling it on a small host should take a moment.
const BYTES_MAX: u64 = 40 << 20;

/// Build options.
#[derive(Args)]
pub(crate) struct Options {
    /// Use the debug binary, which builds ten times as fast: for testing the image, not for distribution.
    #[arg(long)]
    debug: bool,
}

/// Builds both images and prints their paths.
///
/// # Errors
/// When something cannot be built, or an image is too large.
pub(crate) fn package(options: &Options) -> Result<()> {
    let built = build(options.debug)?;
    ensure!(
        options.debug || built.bytes <= BYTES_MAX,
        "{} bytes are more than {BYTES_MAX}: {}",
        built.bytes,
        built.archive.display()
    );
    println!("image: {} ({} bytes)", built.archive.display(), built.bytes);
    println!("  podman or docker load -i FILE (Docker 25 or newer), or skopeo copy oci-archive:FILE …");
    Ok(())
}

/// The result of a build.
pub(crate) struct Built {
    /// An OCI layout in one file.
    pub(crate) archive: PathBuf,
    /// Bytes of it.
    pub(crate) bytes: u64,
    /// The binary in them.
    pub(crate) binary: PathBuf,
    /// The only layer of every image: a tar archive, not compressed.
    pub(crate) layer: PathBuf,
    /// The settings of each image, by its name.
    stages: Vec<Stage>,
}

impl Built {
    /// An image by the name of its stage.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn stage(&self, name: &str) -> Result<&Stage> {
        self.stages.iter().find(|stage| stage.name == name).with_context(|| format!("no stage {name}"))
    }
}

/// Builds the images from the release binary, or from one without optimization.
///
/// # Errors
/// When a step fails.
pub(crate) fn build(debug: bool) -> Result<Built> {
    let folder = workspace::scratch("image")?;
    let binary = static_binary(debug, &folder)?;
    let root = folder.join("root");
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| root.display().to_string())?;
    }
    let mut script = Command::new("sh");
    script.arg("config/packaging/rootfs.sh").arg(&binary).arg(&root).current_dir(workspace::root());
    must(&mut script)?;

    let epoch = ship::epoch();
    let layer = folder.join("layer.tar");
    let packed = Layer::pack(&root, &layer, epoch)?;
    let text = fs::read_to_string(workspace::root().join("config/packaging/Containerfile"))?;
    let stages: Vec<Stage> =
        IMAGES.iter().map(|(name, _)| Stage::read(&text, name)).collect::<Result<_>>()?;
    let images: Vec<_> = stages
        .iter()
        .zip(IMAGES)
        .map(|(stage, (_, suffix))| (format!("{}{suffix}", env!("CARGO_PKG_VERSION")), stage))
        .collect();
    let archive = folder.join("sluice-image.tar");
    layout::write(&packed, &images, epoch, &archive)?;
    let bytes = fs::metadata(&archive)?.len();
    Ok(Built { archive, bytes, binary, layer, stages })
}

/// Sluice, linked statically: the one that is shipped, or one without optimization.
fn static_binary(debug: bool, folder: &Path) -> Result<PathBuf> {
    let built = if debug { debug_binary()? } else { ship::binary(Machine::Native, Linking::Static)? };
    let binary = folder.join("sluice");
    ship::strip(Machine::Native, &built, &binary)?;
    Ok(binary)
}

/// Only its last step differs from the usual build: glibc, its allocator and all crates are the same.
fn debug_binary() -> Result<PathBuf> {
    let mut build = cargo(["rustc", "--package", "sluice", "--bin", "sluice", "--"]);
    must(build.args(["-C", "target-feature=+crt-static"]).stdin(Stdio::null()))?;
    Ok(workspace::target()?.join("debug/sluice"))
}
