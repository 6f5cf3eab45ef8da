//! Where a client is. Its address may be forged until it has shown that it receives there, which the protocol checks
//! (RFC 9000 section 9.3), and goes back to the last one if it does not.
//!
//! quinn-proto does not say when an address has passed that check. While it checks one, it tells the congestion controller
//! of no acknowledgement; so one that the controller is told of after a change proves the new address. Time proves nothing:
//! the check lasts for three timeouts, which a client can make as long as it likes.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig};
use quinn_proto::{Connection, RttEstimator};

/// The address in use, and the one that is known.
pub(super) struct ObservedPath {
    /// Where the client is known to be.
    settled: SocketAddr,
    /// The address in use, and the acknowledgements that the controller knew of when it came into use.
    current: (SocketAddr, u64),
    /// PATH_RESPONSE frames that had arrived when this was last looked at.
    responses: u64,
    /// How often the address in use has changed.
    changes: u64,
}

impl ObservedPath {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { settled: address, current: (address, 0), responses: 0, changes: 0 }
    }

    /// Where the client is known to be.
    pub(super) fn settled(&self) -> SocketAddr {
        self.settled
    }

    /// Changes of the address in use since this was last asked.
    pub(super) fn take_changes(&mut self) -> u64 {
        std::mem::take(&mut self.changes)
    }

    /// Looks at the address in use. Call it after everything that may have changed it.
    pub(super) fn observe(&mut self, connection: &mut Connection) {
        let address = connection.remote_address();
        if address == self.settled && address == self.current.0 {
            return;
        }
        self.see(address, acknowledged(connection));
        if address != self.settled {
            let responses = connection.stats().frame_rx.path_response;
            if std::mem::replace(&mut self.responses, responses) != responses {
                // Its acknowledgement tells whether that was the right one.
                connection.ping();
            }
        }
    }

    fn see(&mut self, address: SocketAddr, acknowledged: u64) {
        if address != self.current.0 {
            self.current = (address, acknowledged);
            self.changes += 1;
        } else if acknowledged > self.current.1 {
            self.settled = address;
        }
    }
}

/// The acknowledgements that the controller of the path in use knows of.
fn acknowledged(connection: &Connection) -> u64 {
    let controller = connection.congestion_state().clone_box().into_any();
    controller.downcast::<Witness>().map_or(0, |witness| witness.acknowledged)
}

/// Makes controllers that count acknowledgements.
pub(super) struct WitnessConfig;

impl ControllerFactory for WitnessConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let inner = Arc::new(CubicConfig::default()).build(now, current_mtu);
        Box::new(Witness { inner, acknowledged: 0 })
    }
}

/// CUBIC (RFC 9438), and a count.
struct Witness {
    inner: Box<dyn Controller>,
    acknowledged: u64,
}

impl Controller for Witness {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.acknowledged += 1;
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost_bytes: u64) {
        self.inner.on_congestion_event(now, sent, is_persistent, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.inner.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self { inner: self.inner.clone_box(), acknowledged: self.acknowledged })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_counts_once_something_was_acknowledged_after_its_check() {
        let address = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
        let mut path = ObservedPath::new(address(1));
        // Forged, back after the check has failed, and forged again: nothing is acknowledged meanwhile.
        for (port, acknowledged) in [(1, 7), (2, 7), (2, 7), (1, 7), (2, 9), (2, 9), (3, 9), (3, 9)] {
            path.see(address(port), acknowledged);
            assert_eq!(path.settled(), address(1));
        }
        path.see(address(3), 10);
        assert_eq!(path.settled(), address(3));
        assert_eq!((path.take_changes(), path.take_changes()), (4, 0));
        // Another controller begins at 0.
        path.see(address(4), 0);
        assert_eq!(path.settled(), address(3));
        path.see(address(4), 1);
        assert_eq!(path.settled(), address(4));
    }
}
