//! sluice's operations on a slot.

use super::{Miss, Order, PHASE, Phase, Slot};

impl Slot {
    /// For sluice, outside [`Phase::Busy`] and [`Phase::Running`]: assigns the slot to a connection.
    pub fn assign(&self, owner: u64) {
        let word = self.phase.get_acquire();
        self.owner.set(owner);
        self.phase.set_release((word & !PHASE).wrapping_add(PHASE + 1) | Phase::Idle as u64);
    }

    /// For sluice, while the program has nothing to do: writes where the next response goes.
    pub fn prepare(&self, order: &Order) {
        self.client.set(order.client);
        self.client_socket.set(order.client_socket);
        self.sequence.set(u64::from(order.sequence));
        self.received.set(u64::from(order.received));
        self.body_bytes_min.set(u64::from(order.body_bytes_min));
        self.body_bytes_max.set(order.body_bytes_max);
        self.hold.set(u64::from(order.hold));
        self.slack.set(order.slack);
        self.line.set(&order.line);
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

    /// For sluice: takes over a kept head because its body does not arrive. False if the head was forwarded meanwhile.
    #[must_use]
    pub fn let_head_go(&self) -> bool {
        let let_go = self.step(Phase::Held, Phase::Left);
        if let_go {
            self.reason.set(Miss::Late as u64);
        }
        let_go
    }

    /// For sluice: takes over what has not been sent, which may be a kept head. Returns the phase: [`Phase::Left`], or
    /// [`Phase::Busy`] if the program owns the slot right now, or [`Phase::Done`].
    pub fn take_over(&self) -> Phase {
        loop {
            let phase = self.phase();
            if !matches!(phase, Phase::Prepared | Phase::Armed | Phase::Running | Phase::Held) {
                return phase;
            }
            // If this fails, the program has changed the phase meanwhile, possibly to another of these phases.
            if self.step(phase, Phase::Left) {
                self.reason.set(Miss::Wanted as u64);
                return Phase::Left;
            }
        }
    }
}
