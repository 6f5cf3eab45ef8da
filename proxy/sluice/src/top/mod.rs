//! `sluice top`: live statistics of a running sluice in a terminal, from `/status.json` of its admin listener.
//!
//! A separate process that only reads. `source` requests the document, `app` handles keys, `draw` draws the screen,
//! `text` prints the plain table of `--once`.

mod app;
mod draw;
mod format;
mod rows;
mod source;
mod terminal;
mod text;
#[cfg(test)]
mod tests;

use std::io::Write;
use std::path::PathBuf;

use sluice_config::Address;

/// Why nothing can be shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, derive_more::From)]
#[error("{0}")]
#[from(String, &'static str)]
pub(crate) struct TopError(String);

use crate::fleet_table::table;
pub(crate) use source::Source;

/// How often the fleet is looked for.
const FLEET_TRIES: u32 = 12;
/// Between two looks.
const FLEET_PACE: std::time::Duration = std::time::Duration::from_millis(500);

/// What to show.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The admin listener.
    pub admin: Address,
    /// The file with its token, if it requires one.
    pub token_file: Option<PathBuf>,
    /// Print the document once as plain text, and exit.
    pub once: bool,
    /// Print the document as it is.
    pub json: bool,
    /// Show the members of the fleet.
    pub fleet: bool,
}

/// Shows the document until the user quits.
///
/// # Errors
/// A sentence about what is wrong: no listener, or no terminal.
pub(crate) fn run(options: &Options) -> Result<(), TopError> {
    let source = Source::new(options.admin.clone(), options.token_file.as_deref())?;
    if !options.once {
        return terminal::run(source, options.fleet);
    }
    let text = if options.json {
        let document: serde_json::Value = source.fetch_as()?;
        format!("{document}\n")
    } else if options.fleet {
        fleet_table(&source)?
    } else {
        text::table(&source.fetch()?)
    };
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(format!("cannot print: {error}").into())
        }
        _ => Ok(()),
    }
}

/// The table of the fleet. sluice asks the store once somebody looks, so the first documents may lack it.
fn fleet_table(source: &Source) -> Result<String, TopError> {
    for _ in 0..FLEET_TRIES {
        let document = source.fetch()?;
        if let Some(fleet) = document.fleet.filter(|fleet| !fleet.members.is_empty()) {
            return Ok(table(&fleet));
        }
        std::thread::sleep(FLEET_PACE);
    }
    Err("it is no member of a fleet, or the store does not answer; see sluice list --fleet".into())
}
