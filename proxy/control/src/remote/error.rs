//! Why a server has no answer.

use derive_more::{Display, From};

/// Why a server has no answer that can be used, in a sentence for the log.
#[derive(Clone, Debug, Display, From)]
#[from(String, &str)]
pub(crate) struct RemoteError(String);
