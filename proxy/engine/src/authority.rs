//! Servers that decide about requests, or publish keys: what they are asked, and what they say. The control plane asks
//! them.

use std::sync::Arc;

use sluice_config::{ForwardAuth, JwtAuth};
use sluice_core::auth::jwt::KeyStore;
use tokio::sync::oneshot;

/// Fields as they are sent.
pub type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// Asks servers.
pub trait Authority: Send + Sync {
    /// Asks about a request whose head has these fields. Dropping the receiver gives the question up.
    fn ask(&self, whom: &Arc<ForwardAuth>, fields: Fields) -> oneshot::Receiver<Result<Opinion, AskError>>;

    /// Fetches keys, unless somebody does already, and ends the attempt. Returns at once.
    fn fetch(&self, whom: &JwtAuth, keys: &Arc<KeyStore>);
}

/// What a server says about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opinion {
    /// The request may pass.
    Allowed {
        /// Fields for the application.
        request: Fields,
        /// Fields for the client.
        response: Fields,
    },
    /// The client gets this response.
    Refused {
        /// Its status.
        status: u16,
        /// Its fields, except those that frame it.
        fields: Fields,
        /// Its body.
        body: Vec<u8>,
    },
}

/// Why there is no opinion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskError {
    /// It did not answer in time.
    Timeout,
    /// It cannot be reached, or its response cannot be used; the log says why.
    Failed,
}
