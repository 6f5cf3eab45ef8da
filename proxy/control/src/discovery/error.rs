//! Why a source has no list.

use derive_more::{Display, From};

/// Why a source has no list, in a sentence for the log.
#[derive(Debug, Display, From)]
#[from(String, &str)]
pub(crate) struct SourceError(String);
