//! How bytes arrive and leave: streams over a socket of the ring, a TLS session, or an exchange on a shared connection,
//! and the listeners that accept them.

pub mod buffers;
pub mod deadline;
pub mod listener;
pub mod quic;
pub mod stream;
