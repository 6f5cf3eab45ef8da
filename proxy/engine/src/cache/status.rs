//! Cache-Status (RFC 9211): where a response comes from.

use std::fmt::Write;

use sluice_core::metrics::Event;

/// The name of the field.
pub(crate) const CACHE_STATUS: &[u8] = b"Cache-Status";

/// Where a response comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheStatus {
    /// From the cache, where it is fresh for so many more seconds.
    Hit(u64),
    /// From the cache, stale.
    Stale,
    /// From the cache, after the application has said that it has not changed.
    Revalidated,
    /// From the application: nothing fits.
    Miss {
        /// Why, as section 2.2 names it.
        why: &'static str,
        /// Whether it is kept.
        is_stored: bool,
    },
    /// From the application, without a look at the cache, and why.
    Bypassed(&'static str),
}

impl CacheStatus {
    /// The value of the field.
    pub(crate) fn value(self) -> Vec<u8> {
        // The longest fits.
        let mut value = String::with_capacity(48);
        value.push_str("sluice; ");
        // Writing into a String cannot fail.
        _ = match self {
            Self::Hit(ttl) => write!(value, "hit; ttl={ttl}"),
            Self::Stale => write!(value, "hit; detail=stale"),
            Self::Revalidated => write!(value, "fwd=stale; fwd-status=304"),
            Self::Miss { why, is_stored: true } => write!(value, "fwd={why}; stored"),
            Self::Miss { why, is_stored: false } | Self::Bypassed(why) => write!(value, "fwd={why}"),
        };
        value.into_bytes()
    }

    /// What is counted.
    pub(crate) fn event(self) -> Event {
        match self {
            Self::Hit(_) => Event::CacheHit,
            Self::Stale => Event::CacheStale,
            Self::Revalidated => Event::CacheRevalidated,
            Self::Miss { is_stored: true, .. } => Event::CacheStored,
            Self::Miss { is_stored: false, .. } => Event::CacheMissed,
            Self::Bypassed(_) => Event::CacheBypassed,
        }
    }
}
