//! Moves a connection to another worker between two requests.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use sluice_core::metrics::{Counted, Event};
use sluice_net::listener::{ClientPlace, ListenerState};
use sluice_net::stream::{self, Stream};

use super::{Connection, Io, Peer, Registration, Runners};
use crate::worker::{Call, Wait, Worker};

/// A connection that leaves its worker for another one. Nothing is under way on it.
pub(crate) struct MovedConnection {
    pub(crate) socket: OwnedFd,
    pub(crate) listener: Arc<ListenerState>,
    /// The address of the socket, or the one in a PROXY protocol header.
    pub(crate) client: SocketAddr,
    pub(crate) past: Past,
}

/// What a connection has been through.
#[derive(Default)]
pub(crate) struct Past {
    /// The number of exchanges that have started.
    exchanges: u64,
    /// Bytes sent in all: direct return counts from the first one.
    sent: u64,
    /// Its place among those of a client that a PROXY protocol header names.
    client_place: Option<Box<ClientPlace>>,
}

impl Past {
    /// Whether the connection is new: one that moves has carried an exchange.
    pub(crate) fn is_empty(&self) -> bool {
        self.exchanges == 0
    }
}

impl Connection {
    /// Continues a connection that comes from another worker.
    pub(crate) fn resume(worker: Rc<Worker>, runners: Rc<Runners>, moved: MovedConnection) -> Self {
        let MovedConnection { socket, listener, client, past } = moved;
        worker.metrics().count(Event::DownstreamMoved);
        let open = Counted::resume(worker.metrics(), Event::DownstreamClosed);
        let registration = Some(Registration::of(&worker, Wait::Own(Call::default()), &listener, open));
        let (stream, peer) = (Stream::from_socket(socket), Peer::at(client));
        let mut connection = Self { registration, ..Self::bare(worker, runners, listener, stream, peer) };
        connection.session.exchanges = past.exchanges;
        connection.io.writer.continue_after(past.sent);
        connection.client_place = past.client_place;
        connection
    }

    /// Whether it may move while it waits for its next message.
    pub(super) fn may_move(&self) -> bool {
        let Io { reader, .. } = &self.io;
        self.session.may_leave && reader.data().is_empty() && reader.stream().is_socket() && !self.is_ending()
    }

    /// Takes it apart, if nothing is under way. Otherwise, or if it has to end, it stays until its next exchange has
    /// ended. `None` if it is closed. Boxed, because the future of a connection keeps a place for it.
    pub(super) fn move_away(mut self: Box<Self>) -> Result<Option<Box<MovedConnection>>, Box<Self>> {
        let Io { reader, writer, deadline } = &mut self.io;
        let is_idle = stream::is_idle(reader, writer, deadline);
        if !is_idle || self.is_ending() {
            (self.session.may_leave, self.session.is_called_away) = (false, false);
            return Err(self);
        }
        self.peer.direct.leave(self.worker.direct(), &self.io.writer);
        let sent = self.io.writer.sent_in_all();
        let Self { worker, listener, io, peer, session, registration, client_place, .. } = *self;
        let Some(socket) = stream::into_socket((io.reader, io.writer)) else { return Ok(None) };
        worker.metrics().count(Event::DownstreamLeft);
        registration.into_iter().for_each(Registration::hand_on);
        let client = SocketAddr::new(peer.address, peer.port);
        let past = Past { exchanges: session.exchanges, sent, client_place };
        Ok(Some(Box::new(MovedConnection { socket, listener, client, past })))
    }
}
