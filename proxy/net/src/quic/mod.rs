//! QUIC for clients (RFC 9000): connections on a UDP socket, and their streams.
//!
//! `quinn-proto` is the protocol, without I/O and without a clock. Here it gets both: [`Endpoint`] is one worker's socket
//! of a listener, [`Connection`] one connection on it. All of it runs on the worker's thread, so nothing is locked.
//!
//! Every packet names its connection, by an identifier that sluice has chosen (`identifier`). It says which worker has
//! the connection, so packets that reach another worker, because the client has changed its address, find their way.

mod allowance;
mod connection;
mod endpoint;
mod identifier;
mod keys;
mod mailbox;
mod path;
mod process;
mod qlog;
mod settings;
mod socket;
mod tokens;

pub use connection::{Connection, Ended, StreamFault};
pub use endpoint::{Admit, Close, Endpoint, Verdict};
pub(crate) use identifier::LAYOUT;
pub use identifier::Origin;
pub use keys::QuicKeys;
pub use mailbox::{Datagram, Mailboxes, mailboxes};
pub use process::{QuicEstate, QuicProcess, receive_from_next, receive_relayed};
pub use qlog::QlogRecorder;
pub use quinn_proto::{ConnectionError, ConnectionStats, ServerConfig, StreamId, TransportErrorCode, VarInt};
pub use settings::{first_window, recorded, server_config};
