//! The manual pages: one per command, from clap's definitions, and `sluice.yaml(5)`, from the commented configuration;
//! and the schema, which uses the same comments.

mod commands;
mod keys;
mod reference;
mod roff;
mod schema;
mod yaml;

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;

pub(crate) use schema::schema;

/// The footer of each page.
const SOURCE: &str = concat!("sluice ", env!("CARGO_PKG_VERSION"));

/// The day of the last visible change; the day of the build would make every build different.
const DATE: &str = "2026-11-22";

/// Writes every page into `folder`, with the names that man(1) expects.
///
/// # Errors
/// When the folder or a file cannot be written.
pub(crate) fn write(command: Command, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (name, page) in commands::pages(command)? {
        fs::write(folder.join(name), page)?;
    }
    fs::write(folder.join("sluice.yaml.5"), yaml::page())
}

/// Writes the reference pages of the guide into `folder`.
///
/// # Errors
/// When the folder or a file cannot be written.
pub(crate) fn write_reference(command: Command, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join("configuration.md"), reference::keys())?;
    fs::write(folder.join("command-line.md"), reference::commands(command))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn committed_reference_is_current() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
        let pages = [
            ("configuration.md", reference::keys()),
            ("command-line.md", reference::commands(crate::cli::Cli::command())),
        ];
        for (name, page) in pages {
            assert!(fs::read_to_string(folder.join(name)).unwrap() == page, "run `cargo xtask docs`: {name}");
        }
    }
}
