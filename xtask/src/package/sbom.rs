//! What the binary is made of, as CycloneDX 1.6 has it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sluice_testkit::workspace;

use super::{succeed, tool};

const CARGO_SBOM: &str = "0.10.0";

/// Writes `sluice-VERSION.cdx.json`.
///
/// # Errors
/// When it cannot be made, or names no component.
pub(super) fn write(folder: &Path) -> Result<()> {
    let mut command = Command::new(tool("cargo-sbom", CARGO_SBOM)?);
    command.args(["--cargo-package", "sluice", "--output-format", "cyclone_dx_json_1_6"]);
    let text = succeed(command.current_dir(workspace::root()))?;
    let mut document: Value = serde_json::from_str(&text).context("the list of components")?;
    ensure!(document["components"].as_array().is_some_and(|all| all.len() > 50), "hardly any component");
    // Of the moment, and in the order of a hash table; the same source is to give the same bytes.
    for (list, key) in [("components", "bom-ref"), ("dependencies", "ref")] {
        let items = document[list].as_array_mut().with_context(|| format!("no {list}"))?;
        items.sort_by(|one, other| one[key].as_str().cmp(&other[key].as_str()));
        for item in items {
            if let Some(names) = item.get_mut("dependsOn").and_then(Value::as_array_mut) {
                names.sort_by(|one, other| one.as_str().cmp(&other.as_str()));
            }
        }
    }
    if let Some(map) = document.as_object_mut() {
        map.remove("serialNumber");
    }
    if let Some(metadata) = document["metadata"].as_object_mut() {
        metadata.remove("timestamp");
    }
    let name = format!("sluice-{}.cdx.json", env!("CARGO_PKG_VERSION"));
    fs::write(folder.join(&name), format!("{document:#}\n")).context(name)
}
