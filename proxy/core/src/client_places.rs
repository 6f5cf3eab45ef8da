//! How many places of something each client has: connections of a listener, passwords that wait.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::client::share;

/// The places of each client. At most as many entries as places.
#[derive(Default)]
pub struct Clients(Mutex<HashMap<IpAddr, usize>>);

/// One of the places that a client may have; dropping it frees the place.
pub struct ClientPlace {
    clients: Arc<Clients>,
    client: IpAddr,
}

impl Clients {
    /// One more place for a client; `None` if it has `most`.
    pub fn enter(clients: &Arc<Self>, client: IpAddr, most: usize) -> Option<ClientPlace> {
        let client = share(client);
        let mut open = clients.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(client).or_default();
        // Also if the limit was lowered: then there is an entry already.
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(ClientPlace { clients: Arc::clone(clients), client })
    }
}

impl Drop for ClientPlace {
    fn drop(&mut self) {
        let mut open = self.clients.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_for_each_client_and_freed() {
        let clients = Arc::new(Clients::default());
        let enter = |client: &str, most| Clients::enter(&clients, client.parse().unwrap(), most);
        let (one, two) = (enter("192.0.2.1", 2).unwrap(), enter("::ffff:192.0.2.1", 2).unwrap());
        assert!(enter("192.0.2.1", 2).is_none() && enter("192.0.2.2", 2).is_some());
        let _six = enter("2001:db8::1", 1).unwrap();
        assert!(enter("2001:db8::2", 1).is_none() && enter("2001:db8:0:1::2", 1).is_some());
        drop(one);
        assert!(enter("192.0.2.1", 1).is_none() && enter("192.0.2.1", 2).is_some());
        drop(two);
        assert_eq!(clients.0.lock().unwrap().len(), 1, "only the v6 client is left");
    }
}
