//! `cargo xtask tidy`: house rules that no compiler checks: imports, names, places of unsafe code, text. Changes
//! nothing.

mod imports;
mod layers;
mod links;
mod names;
mod sizes;
mod source;
mod text;

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use sluice_testkit::workspace;
use source::Source;

/// A file to check: its path from the root, with `/`, and its text.
struct Document {
    path: String,
    text: String,
}

/// Checks every file of the project.
///
/// # Errors
/// A problem is found, or git or a file cannot be read.
pub(crate) fn tidy() -> Result<()> {
    let documents = documents()?;
    let mut problems = Vec::new();
    documents.iter().for_each(|document| text::check(document, &mut problems));
    let rust = documents.iter().filter(|document| document.path.ends_with(".rs"));
    let sources: Vec<_> = rust.map(|document| Source::new(&document.path, &document.text)).collect();
    sources.iter().for_each(|source| names::check(source, &mut problems));
    sources.iter().for_each(|source| names::check_errors(source, &mut problems));
    sources.iter().for_each(|source| sizes::check(source, &mut problems));
    imports::check(&sources, &mut problems);
    layers::check(&documents, &mut problems);
    links::check(&documents, &mut problems);
    names::check_siblings(&documents, &mut problems);

    for problem in &problems {
        eprintln!("tidy: {problem}");
    }
    if !problems.is_empty() {
        bail!("tidy found {} problems", problems.len());
    }
    println!("tidy: {} files, nothing found", documents.len());
    Ok(())
}

/// All existing text files that git tracks or would add.
fn documents() -> Result<Vec<Document>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(workspace::root())
        .output()
        .context("git ls-files")?;
    ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    let mut documents = Vec::new();
    for name in output.stdout.split(|&byte| byte == 0) {
        let path = String::from_utf8_lossy(name).into_owned();
        let file = workspace::root().join(&path);
        // A tracked file may be deleted in the work tree. A link's target is checked where it is.
        if path.is_empty() || !fs::symlink_metadata(&file).is_ok_and(|meta| meta.is_file()) {
            continue;
        }
        let bytes = fs::read(&file).with_context(|| path.clone())?;
        if let (false, Ok(text)) = (bytes.contains(&0), String::from_utf8(bytes)) {
            documents.push(Document { path, text });
        }
    }
    Ok(documents)
}
