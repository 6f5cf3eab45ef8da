//! Requests to the servers that know what several hosts share: those of endpoints that are found, and of stores.

pub(crate) mod changes;
mod error;
pub(crate) mod etcd;
pub(crate) mod http;

pub(crate) use error::RemoteError;
