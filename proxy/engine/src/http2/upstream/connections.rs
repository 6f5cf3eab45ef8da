//! One worker's connections to endpoints that use HTTP/2.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use sluice_core::cluster::Endpoint;

use super::{Channel, SharedConnection};
use crate::endpoint::LocalEndpoint;

/// By endpoint, the oldest connection first: the others become idle when fewer are needed.
#[derive(Default)]
pub(crate) struct Connections {
    all: RefCell<HashMap<u32, EndpointConnections>>,
}

struct EndpointConnections {
    endpoint: LocalEndpoint,
    connections: Vec<Rc<SharedConnection>>,
}

impl EndpointConnections {
    fn prune(&mut self) {
        self.connections.retain(|connection| connection.is_of_use());
    }
}

impl Connections {
    /// Starts an exchange on a connection that has room for one. Returns the endpoint as well, as this worker holds it.
    pub(crate) fn begin(&self, endpoint: &Endpoint) -> Option<(LocalEndpoint, Rc<Channel>)> {
        let mut all = self.all.borrow_mut();
        let held = all.get_mut(&endpoint.id)?;
        held.prune();
        let channel = held.connections.iter().find_map(SharedConnection::begin)?;
        Some((held.endpoint.clone(), channel))
    }

    /// A connection that is being opened.
    pub(crate) fn opening(&self, endpoint: &Endpoint) -> Option<Rc<SharedConnection>> {
        let all = self.all.borrow();
        all.get(&endpoint.id)?.connections.iter().find(|connection| connection.is_opening()).cloned()
    }

    /// Adds a connection.
    pub(crate) fn add(&self, endpoint: &Arc<Endpoint>, connection: &Rc<SharedConnection>) {
        let mut all = self.all.borrow_mut();
        let new = || EndpointConnections { endpoint: endpoint.into(), connections: Vec::new() };
        all.entry(endpoint.id).or_insert_with(new).connections.push(Rc::clone(connection));
    }

    /// Removes connections that have ended, and makes connections to endpoints that have left end with their last
    /// exchange.
    pub(crate) fn reap(&self) {
        self.all.borrow_mut().retain(|_, held| {
            if held.endpoint.is_draining() {
                held.connections.iter().for_each(|connection| connection.control.end());
            }
            held.prune();
            !held.connections.is_empty()
        });
    }

    /// Makes all connections end with their last exchange.
    pub(crate) fn clear(&self) {
        for held in self.all.take().into_values() {
            held.connections.iter().for_each(|connection| connection.control.end());
        }
    }
}
