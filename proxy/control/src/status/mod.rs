//! The state of a running sluice for display: a document created once a second on the control thread.
//!
//! [`document`] is its schema, `sampler` creates it from the counters, `live` serves it to readers, and [`page`] shows
//! it in browsers. Read-only: nothing here changes anything, and workers never wait for it.

pub mod document;
mod findings;
mod history;
mod live;
pub mod page;
mod sampler;
mod traffic;
#[cfg(test)]
pub(crate) mod tests;

pub use document::Document;
pub(crate) use findings::findings;
pub(crate) use live::{Live, Sources, run};
pub(crate) use traffic::TrafficTrack;
