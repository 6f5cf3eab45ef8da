//! Moves a connection to another worker between two requests.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use sluice_core::metrics::{Counted, Event};
use sluice_net::listener::{ClientPlace, ListenerState};
use sluice_net::stream::{self, Stream};

use super::{Connection, Peer, Registration, Runners};
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
    /// Its place among those of a client that a PROXY protocol header names.
    client_place: Option<Box<ClientPlace>>,
}

impl Past {
    /// Whether the connection is on its first worker.
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
        connection.client_place = past.client_place;
        connection
    }

    /// Whether its wait for a message has ended so that it can move.
    pub(super) fn is_called_away(&self) -> bool {
        self.session.is_called_away && !self.is_ending()
    }

    /// Whether it is to leave its worker as soon as nothing is under way on it.
    pub(super) fn shall_move(&self) -> bool {
        self.worker.sheds()
            && self.session.may_leave
            && self.io.reader.stream().is_socket()
            && !self.is_ending()
    }

    /// Takes it apart, if nothing is under way. Otherwise it stays until its next exchange has ended. Boxed, because the
    /// future of a connection keeps a place for it.
    pub(super) fn move_away(mut self: Box<Self>) -> Result<Option<Box<MovedConnection>>, Box<Self>> {
        if !stream::is_bare(&self.io.reader, &mut self.io.writer, &self.io.deadline) {
            (self.session.may_leave, self.session.is_called_away) = (false, false);
            return Err(self);
        }
        self.peer.direct.leave(self.worker.direct(), &self.io.writer);
        let Self { worker, listener, io, peer, session, registration, client_place, .. } = *self;
        let Some(socket) = stream::into_socket((io.reader, io.writer)) else { return Ok(None) };
        worker.metrics().count(Event::DownstreamLeft);
        registration.into_iter().for_each(Registration::hand_on);
        let client = SocketAddr::new(peer.address, peer.port);
        let past = Past { exchanges: session.exchanges, client_place };
        Ok(Some(Box::new(MovedConnection { socket, listener, client, past })))
    }
}
