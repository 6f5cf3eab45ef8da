//! TLS on both sides: certificates, which of them a client gets, and what is agreed on with it; whom a ClientHello asks
//! for; what sessions with endpoints are made from.
//!
//! Records are not made here; see `stream`. A `Terminator` is what a listener has of it, `Terminators` those of the
//! process, `CertificateStore` the certificates, which may change while all else stays.

mod certificate;
mod chain;
mod client;
pub mod crypto;
mod demand;
mod error;
mod folder;
mod outcome;
mod roots;
mod set;
mod store;
mod terminator;
mod terminators;
pub mod upstream;
pub mod verify;
#[cfg(test)]
mod tests;

pub use certificate::{Certificate, Pair, load};
pub use client::ClientIdentity;
pub use demand::{Demand, Wanted};
pub use error::TlsConfigError;
pub use outcome::{Handshake, HandshakeFailure};
pub use store::CHALLENGE_PROTOCOL;
pub use terminator::Terminator;
pub use terminators::{ByName, Planned, Terminators, now_unix_s};
pub use terminators::{Finding, check};
