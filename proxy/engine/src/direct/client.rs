//! A downstream connection as the destination of direct returns.

use sluice_core::metrics::Unarmed;
use sluice_kernel::program::ClientSocket;
use sluice_kernel::tcp::{self, UnsentMax};
use sluice_net::stream::Writer;

use super::Direct;

/// Whether the connection can be a destination.
#[derive(Debug, Default)]
pub(crate) enum Client {
    /// Not known yet.
    #[default]
    Untried,
    /// No.
    Out,
    /// Yes.
    In(ClientSocket),
}

impl Client {
    /// Its socket, for the exchange with this number on the connection (from 1).
    pub(crate) fn socket(
        &mut self,
        direct: &Direct,
        writer: &mut Writer,
        exchange: u64,
    ) -> Result<ClientSocket, Unarmed> {
        if matches!(self, Self::Untried) && exchange >= direct.from_request {
            *self = Self::Out;
            if let Some(socket) = enter(direct, writer) {
                *self = Self::In(socket);
            }
        }
        match self {
            Self::In(socket) => Ok(*socket),
            Self::Untried => Err(Unarmed::First),
            Self::Out => Err(Unarmed::Socket),
        }
    }

    /// Records the slack that an exchange has left in its send queue.
    pub(crate) fn keep_slack(&mut self, slack: u64) {
        if let Self::In(socket) = self {
            socket.slack = slack;
        }
    }

    /// Makes it an ordinary connection permanently: it becomes a tunnel. Everything sent to it must have been observed
    /// in its send queue.
    pub(crate) fn leave(&mut self, direct: Option<&Direct>, writer: &Writer) {
        if let (Self::In(socket), Some(direct)) = (&self, direct) {
            direct.remove_client(socket.cookie);
            if let Some(socket) = writer.stream().fd() {
                // A closed socket may refuse this, and does not need it.
                let _ = tcp::set_unsent_max(socket, UnsentMax::Namespace);
            }
        }
        *self = Self::Out;
    }
}

fn enter(direct: &Direct, writer: &mut Writer) -> Option<ClientSocket> {
    let stream = writer.stream().clone();
    let added = direct.add_client(stream.fd()?);
    let socket = added
        .inspect_err(|error| tracing::debug!(%error, "cannot use direct return for a client"))
        .ok()??;
    if writer.count_passed() {
        return Some(socket);
    }
    direct.remove_client(socket.cookie);
    None
}
