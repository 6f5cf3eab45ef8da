//! TLS as a listener has it: certificates, which of them a client gets, and what is agreed on with it.
//!
//! Records are not made here; see `stream`. A `Terminator` is what a listener has of it, `Terminators` those of the
//! process, `CertificateStore` the certificates, which may change while all else stays.

mod certificate;
mod chain;
mod client;
mod folder;
mod outcome;
mod set;
#[allow(dead_code, reason = "certificates that are got at run time come next")]
mod store;
mod terminator;
mod terminators;
#[cfg(test)]
mod tests;

pub(crate) use certificate::Certificate;
pub(crate) use client::ClientIdentity;
pub use outcome::{Handshake, HandshakeFailure};
pub(crate) use terminator::Terminator;
pub use terminators::{Finding, check};
pub(crate) use terminators::{Planned, Terminators, now_unix_s};
