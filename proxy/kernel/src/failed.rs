//! Errors of loading or using programs, with the step that failed.

use std::error::Error as StdError;
use std::io;

/// A step of loading or using the programs failed.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {}", chain(.source.as_ref()))]
pub struct ProgramError {
    /// The system call, file or step.
    pub call: &'static str,
    /// The error; includes the verifier's log, if the verifier failed.
    #[source]
    pub source: Box<dyn StdError + Send + Sync>,
}

impl ProgramError {
    /// The operating system's error, if a system call failed.
    #[must_use]
    pub fn os_error(&self) -> Option<&io::Error> {
        let mut next: Option<&(dyn StdError + 'static)> = Some(self.source.as_ref());
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref::<io::Error>() {
                return Some(found);
            }
            next = error.source();
        }
        None
    }
}

/// An error and its causes in one line. aya's errors do not repeat their causes.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

/// Adds the name of the failed call to an error.
pub(super) fn failed<E: Into<Box<dyn StdError + Send + Sync>>>(
    call: &'static str,
) -> impl FnOnce(E) -> ProgramError {
    move |error| ProgramError { call, source: error.into() }
}

pub(super) type Result<T> = std::result::Result<T, ProgramError>;
