//! `sluice top`: what a running sluice does, live in a terminal, from `/status.json` of its admin listener.
//!
//! A process of its own that only reads. `source` asks, `app` is what keys do, `draw` how it looks, `text`
//! the plain table of `--once`.

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

/// What there is nothing to show for.
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
    /// The file with its token, if it asks for one.
    pub token_file: Option<PathBuf>,
    /// Show it once, as plain text, and end.
    pub once: bool,
    /// Show the document as it is.
    pub json: bool,
}

/// Shows it until it is told to end.
///
/// # Errors
/// A sentence about what is wrong: nobody answers, or this is no terminal.
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
