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

pub(crate) use source::Source;

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
}

/// Shows the document until the user quits.
///
/// # Errors
/// A sentence about what is wrong: no listener, or no terminal.
pub(crate) fn run(options: &Options) -> Result<(), TopError> {
    let source = Source::new(options.admin.clone(), options.token_file.as_deref())?;
    if !options.once {
        return terminal::run(source);
    }
    let text = if options.json {
        let document: serde_json::Value = source.fetch_as()?;
        format!("{document}\n")
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
