//! Which stored responses an operator takes out.

use serde::{Deserialize, Serialize};

use super::key::Resource;
use super::stored::StoredResponse;

/// What is taken out of a cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purge {
    /// Everything.
    All,
    /// The response for a host, with its path and query, in all its variants; of every host if that is empty.
    Exact {
        /// In lower case, with its port if requests have one.
        host: Vec<u8>,
        /// Path and query.
        target: Vec<u8>,
    },
    /// Those whose path and query begin with this text.
    Prefix {
        /// In lower case, with its port if requests have one.
        host: Vec<u8>,
        /// The beginning of path and query.
        target: Vec<u8>,
    },
    /// Those that the application has given this word, in Cache-Tag or Surrogate-Key.
    Tag(Vec<u8>),
}

impl Purge {
    /// Whether it takes out what is kept under a key.
    pub(crate) fn takes<'s>(
        &self,
        key: &[u8],
        mut variants: impl Iterator<Item = &'s StoredResponse>,
    ) -> bool {
        let (of_host, of_target) = Resource::place(key);
        match self {
            Self::All => true,
            Self::Exact { host, target } => (host.is_empty() || host == of_host) && target == of_target,
            Self::Prefix { host, target } => {
                (host.is_empty() || host == of_host) && of_target.starts_with(target)
            }
            Self::Tag(tag) => variants.any(|stored| stored.tags.contains(tag)),
        }
    }
}
