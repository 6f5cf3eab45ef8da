//! What sluice does with a slot.

use super::{Miss, Order, PHASE, Phase, Slot};

impl Slot {
    /// For sluice, outside of [`Phase::Busy`] and [`Phase::Running`]: gives the slot to a connection.
    pub fn assign(&self, owner: u64) {
        let word = self.phase.get_acquire();
        self.owner.set(owner);
        self.phase.set_release((word & !PHASE).wrapping_add(PHASE + 1) | Phase::Idle as u64);
    }

    /// For sluice, where nothing is expected of the program: says where the next answer goes.
    pub fn prepare(&self, order: &Order) {
        self.client.set(order.client);
        self.client_socket.set(order.client_socket);
        self.sequence.set(u64::from(order.sequence));
        self.received.set(u64::from(order.received));
        self.body_bytes_min.set(u64::from(order.body_bytes_min));
        self.body_bytes_max.set(order.body_bytes_max);
        self.hold.set(u64::from(order.hold));
        self.slack.set(order.slack);
        for word in [&self.sent, &self.status, &self.total, &self.first_ns, &self.last_ns] {
            word.set(0);
        }
        self.reason.set(0);
        self.held.set(0);
        self.gap_ns.set(0);
        self.last_bytes.set(0);
        let word = self.phase.get_acquire();
        self.phase.set_release((word & !PHASE) | Phase::Prepared as u64);
    }

    /// For sluice: takes a head over that is kept, for its body does not come. False if it has gone on meanwhile.
    #[must_use]
    pub fn let_head_go(&self) -> bool {
        let let_go = self.step(Phase::Held, Phase::Left);
        if let_go {
            self.reason.set(Miss::Late as u64);
        }
        let_go
    }

    /// For sluice: takes over what has not been sent, which may be a head that is kept. The phase then: [`Phase::Left`], or [`Phase::Busy`] if the
    /// program has it at this moment, or [`Phase::Done`].
    pub fn take_over(&self) -> Phase {
        loop {
            let phase = self.phase();
            if !matches!(phase, Phase::Prepared | Phase::Armed | Phase::Running | Phase::Held) {
                return phase;
            }
            // If not, the program has gone on meanwhile, and perhaps to one of these phases.
            if self.step(phase, Phase::Left) {
                self.reason.set(Miss::Wanted as u64);
                return Phase::Left;
            }
        }
    }
}
