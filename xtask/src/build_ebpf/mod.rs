//! `cargo xtask build-ebpf`: builds the eBPF objects from source, byte for byte the same wherever they are built.
//!
//! The objects are committed, so you only need this to change `proxy-ebpf`. CI uses it to check that it was done.

mod linker;
mod toolchain;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use sluice_testkit::process::find_program;
use sluice_testkit::workspace::{describe, must, root, target};
use toolchain::Toolchain;

/// What to do with the objects.
#[derive(Args)]
pub(crate) struct Options {
    /// Change nothing; fail if a committed object does not match the source.
    #[arg(long)]
    check: bool,
    /// Where to build; to show that the location does not matter.
    #[arg(long, hide = true)]
    target_dir: Option<PathBuf>,
}

/// The programs, each in its own object: loading one does not load the other.
const PROGRAMS: [&str; 4] = ["bypass", "splice", "bans", "accept"];
const PREBUILT: &str = "proxy-ebpf/prebuilt";
/// The compiler of the committed objects: another compiler produces other bytes.
const BUILT_BY: &str = "proxy-ebpf/prebuilt/built-by.txt";
const TARGET: &str = "bpfel-unknown-none";
const PROFILE: &str = "ebpf";
/// Any version that supports BPF works: it only drops sections.
const OBJCOPY_VERSIONS: std::ops::RangeInclusive<u32> = 14..=30;

/// Builds, then writes or compares.
///
/// # Errors
/// A tool is missing, the build fails, or `--check` finds a different object.
pub(crate) fn build(options: &Options) -> Result<()> {
    let recorded = fs::read_to_string(root().join(BUILT_BY)).unwrap_or_default();
    let tools = match Tools::find(options.check.then_some(recorded.as_str())) {
        Ok(Some(tools)) => tools,
        Ok(None) => {
            println!("skipped: the object was built by {}, which is not installed", recorded.trim());
            return Ok(());
        }
        // The tools must be downloaded, which a mere check does not require.
        Err(error) if options.check => {
            println!("skipped: the toolchain is unavailable: {error:#}");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let Tools { objcopy, toolchain, linker } = tools;
    println!("building with {}", toolchain.version().trim());
    let folder = match &options.target_dir {
        Some(folder) => folder.clone(),
        None => target()?.join("ebpf"),
    };
    let built = compile(&toolchain, &linker, &folder)?;
    for program in PROGRAMS {
        let stripped = folder.join(format!("{program}.bpf.o"));
        must(Command::new(&objcopy).arg("--strip-debug").arg(built.join(program)).arg(&stripped))?;
        let object = fs::read(&stripped).with_context(|| stripped.display().to_string())?;
        ensure!(has_section(&object, ".BTF"), "the object has no type information (.BTF)");
        let committed = format!("{PREBUILT}/{program}.bpf.o");
        if options.check { compare(&object, &committed)? } else { write(&object, &committed)? }
    }
    if !options.check {
        fs::write(root().join(BUILT_BY), toolchain.version()).context(BUILT_BY)?;
    }
    Ok(())
}

/// The tools that build an object.
struct Tools {
    objcopy: PathBuf,
    toolchain: Toolchain,
    linker: PathBuf,
}

impl Tools {
    /// Finds them, and installs what is possible. `None` if the preferred compiler is unavailable.
    fn find(preferred: Option<&str>) -> Result<Option<Self>> {
        let objcopy = objcopy()?;
        let Some(toolchain) = Toolchain::find(preferred)? else {
            return Ok(None);
        };
        let linker = linker::prepare(&toolchain)?;
        Ok(Some(Self { objcopy, toolchain, linker }))
    }
}

fn write(object: &[u8], path: &str) -> Result<()> {
    fs::write(root().join(path), object).with_context(|| path.to_owned())?;
    println!("{path}: {} bytes", object.len());
    Ok(())
}

fn compare(object: &[u8], path: &str) -> Result<()> {
    let committed = fs::read(root().join(path)).with_context(|| path.to_owned())?;
    if object == committed {
        println!("{path}: the same {} bytes", object.len());
        return Ok(());
    }
    let at = object.iter().zip(&committed).position(|(built, kept)| built != kept);
    bail!(
        "{path} does not match the source: {} bytes instead of {}, first difference at {}; \
         run `cargo xtask build-ebpf` and commit",
        committed.len(),
        object.len(),
        at.unwrap_or_else(|| object.len().min(committed.len()))
    )
}

/// Section names are in a table, each between two NULs.
fn has_section(object: &[u8], name: &str) -> bool {
    let wanted = [name.as_bytes(), b"\0"].concat();
    object.windows(wanted.len()).any(|window| window == wanted)
}

/// Returns the folder of the objects with debug information, built by cargo in a clean environment.
fn compile(toolchain: &Toolchain, linker: &Path, folder: &Path) -> Result<PathBuf> {
    let mut command = toolchain.cargo();
    command
        .args(["build", "--locked", "--package", "sluice-ebpf", "--bins", "--features", "programs"])
        .args(["--profile", PROFILE, "--target", TARGET, "-Zbuild-std=core", "--target-dir"])
        .arg(folder)
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", linker)
        .env("CARGO_ENCODED_RUSTFLAGS", flags(toolchain, folder)?.join("\u{1f}"))
        .stdin(Stdio::null());
    println!("$ {}", describe(&command));
    must(&mut command)?;
    Ok(folder.join(TARGET).join(PROFILE))
}

/// Flags for the compiler. Without them, paths of this machine would get into the object.
fn flags(toolchain: &Toolchain, folder: &Path) -> Result<Vec<String>> {
    let architecture = std::env::consts::ARCH;
    let mut flags: Vec<String> = vec![
        // The layout of `pt_regs`. Our programs do not read it, but the bindings require a value. It is always the
        // same, so that the object is the same.
        "--cfg=bpf_target_arch=\"x86_64\"".to_owned(),
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
    ];
    ensure!(cfg!(target_endian = "little"), "the object is for little-endian machines, not {architecture}");
    // The later of two matches is used, so the target folder comes after the root that contains it.
    let mut renamed = vec![
        (root(), "/sluice"),
        (cargo_home()?, "/cargo"),
        (toolchain.library_source().to_path_buf(), "/rust"),
        (folder.to_path_buf(), "/target"),
    ];
    // The names of these folders depend on the crates' source, which must not make a difference.
    for sources in fs::read_dir(cargo_home()?.join("registry/src")).into_iter().flatten() {
        renamed.push((sources?.path(), "/crates"));
    }
    for (from, to) in renamed {
        let from = from.canonicalize().unwrap_or(from);
        flags.push(format!("--remap-path-prefix={}={to}", from.display()));
    }
    Ok(flags)
}

fn cargo_home() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("CARGO_HOME") {
        return Ok(folder.into());
    }
    let home = std::env::var_os("HOME").context("neither CARGO_HOME nor HOME is set")?;
    Ok(PathBuf::from(home).join(".cargo"))
}

fn objcopy() -> Result<PathBuf> {
    if let Some(found) = find_objcopy() {
        return Ok(found);
    }
    toolchain::install(&["llvm"])?;
    find_objcopy().context("llvm-objcopy is missing")
}

fn find_objcopy() -> Option<PathBuf> {
    find_program("llvm-objcopy").or_else(|| {
        OBJCOPY_VERSIONS.rev().find_map(|version| find_program(&format!("llvm-objcopy-{version}")))
    })
}
