//! Examples for other programs, checked with the schemas of these programs; sluice's parts of them are checked by
//! sluice.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use sluice_testkit::{pinned, workspace};

/// The examples for Compose with its specification.
pub(super) fn compose(binary: &Path) -> Result<String> {
    for folder in ["compose", "compose-labels"].map(example) {
        let mut checker = Command::new(pinned::tool("check-jsonschema")?);
        checker.args(["--builtin-schema", "vendor.compose-spec"]).arg(folder.join("compose.yaml"));
        said(&mut checker)?;
        checks(binary, &folder.join("sluice.yaml"))?;
    }
    Ok("valid by the Compose specification".to_owned())
}

/// `config/examples/kubernetes` with the schemas of Kubernetes.
pub(super) fn kubernetes(binary: &Path) -> Result<String> {
    let manifest = example("kubernetes").join("sidecar.yaml");
    let mut checker = Command::new(pinned::tool("kubernetes-validate")?);
    said(checker.arg("--strict").arg(&manifest))?;
    let text = fs::read_to_string(&manifest)?;
    let file = workspace::scratch("examples")?.join("kubernetes.yaml");
    fs::write(&file, embedded(&text).context("no sluice.yaml is in the manifest")?)?;
    checks(binary, &file)?;
    Ok("valid by Kubernetes' own schemas".to_owned())
}

fn example(name: &str) -> PathBuf {
    workspace::root().join("config/examples").join(name)
}

/// The block after `sluice.yaml: |`, without its indentation.
fn embedded(manifest: &str) -> Option<String> {
    let (_, block) = manifest.split_once("  sluice.yaml: |\n")?;
    let lines = block.lines().map_while(|line| line.strip_prefix("    "));
    Some(lines.fold(String::new(), |text, line| text + line + "\n"))
}

fn checks(binary: &Path, file: &Path) -> Result<()> {
    said(Command::new(binary).args(["check", "--config"]).arg(file))
}

fn said(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| workspace::describe(command))?;
    if !output.status.success() {
        let text = [output.stdout, output.stderr].concat();
        bail!("{}: {}", workspace::describe(command), String::from_utf8_lossy(&text));
    }
    Ok(())
}
