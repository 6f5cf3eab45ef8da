//! A shared HTTP cache: what may be stored and used again (RFC 9111), and where it is kept.
//!
//! The rules are pure: `directives` and `freshness` read what messages say, `admission` decides what is stored and what
//! a 304 changes, [`StoredResponse`] how it may be used. [`Store`] keeps responses for all workers, and lets one request go to
//! the application while others for the same resource wait. The engine sends requests and responses.
#![forbid(unsafe_code)]

mod admission;
mod asked;
mod body;
mod directives;
mod disk;
mod encoded;
mod fills;
mod freshness;
mod hints;
mod key;
mod purge;
mod room;
mod store;
mod stored;
#[cfg(test)]
mod tests;
mod vary;

pub use admission::{Admission, NewResponse, Refusal};
pub use asked::{Caller, RequestFacts};
pub use body::Body;
pub use disk::{DiskCounts, Removal};
pub use encoded::{EncodedBody, Encoding};
pub use fills::{Outcome, ResponseWait, Ticket, Turn};
pub use freshness::ExchangeTimes;
pub use key::{Resource, is_canonical};
pub use purge::Purge;
pub use room::Room;
pub use store::{BackgroundPlace, Epoch, Loading, Lookup, Store};
pub use stored::{StoredResponse, Use};
