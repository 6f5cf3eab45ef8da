//! TLS on both sides: certificates, the choice of a certificate for a client, and the negotiated parameters; the name
//! requested in a ClientHello; the parameters of sessions with endpoints.
//!
//! TLS records are processed elsewhere; see `stream`. A `Terminator` belongs to a listener, `Terminators` to the
//! process. A `CertificateStore` has the certificates, which may change while everything else stays.

mod certificate;
mod chain;
mod client;
pub mod crypto;
mod demand;
mod error;
mod folder;
mod outcome;
mod resumption;
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
pub use resumption::take_recognised;
pub use roots::system_roots;
pub use store::CHALLENGE_PROTOCOL;
pub use terminator::{Handshaking, Terminator};
pub use terminators::{ByName, Planned, Terminators, now_unix_s};
pub use terminators::{Finding, check};
