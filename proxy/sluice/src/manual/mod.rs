//! The manual pages: a page a command, from what clap knows, and `sluice.yaml(5)`, from the commented configuration;
//! and the schema, whose keys are explained by the same comments.

mod commands;
mod keys;
mod roff;
mod schema;
mod yaml;

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;

pub(crate) use schema::schema;

/// What stands at the foot of each page.
const SOURCE: &str = concat!("sluice ", env!("CARGO_PKG_VERSION"));

/// The day of the last change that readers would notice; that of the build would make each build another one.
const DATE: &str = "2026-11-22";

/// Writes every page into `folder`, named as man(1) looks for them.
///
/// # Errors
/// When the folder cannot be made or a file cannot be written.
pub(crate) fn write(command: Command, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (name, page) in commands::pages(command)? {
        fs::write(folder.join(name), page)?;
    }
    fs::write(folder.join("sluice.yaml.5"), yaml::page())
}
