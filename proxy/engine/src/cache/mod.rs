//! The part of the shared cache that exchanges need: the request whose response may be kept, what Cache-Status says, and
//! the client of a request that nobody waits for. `sluice-cache` has the rules and the store.

mod change;
mod fill;
mod key;
mod sink;
mod status;

pub(crate) use change::Change;
pub(crate) use fill::{CachePart, Fill, Judgement, Purpose};
pub(crate) use key::{is_plain_request, names_certificate, write_origin};
pub(crate) use sink::Sink;
pub(crate) use status::{CACHE_STATUS, CacheStatus};
