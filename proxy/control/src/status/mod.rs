//! What is shown of a running sluice: a document, made once a second on the control thread.
//!
//! [`document`] is its schema, `sampler` makes it from the counters, `live` hands it to readers, and [`page`] is
//! what browsers show it with. It only reads: nothing here changes anything, and workers never wait for it.

pub mod document;
mod findings;
mod history;
mod live;
pub mod page;
mod sampler;
#[cfg(test)]
pub(crate) mod tests;

pub use document::Document;
pub(crate) use findings::findings;
pub(crate) use live::{Live, Sources, run};
