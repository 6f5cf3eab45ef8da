//! Direct return against a simulated kernel: the real [`Slot`] and [`Pool`](super::Pool), in any interleaving.
//!
//! A case is a list of numbers, each of which chooses who acts next: an application that sends part of a response, the
//! program's run for a message, the kernel that adds announced bytes to a client's send queue, sluice for one of its
//! clients, or the client itself. A run of the program is divided into steps, and between any two accesses to a slot
//! another actor may act, as another processor could: so sluice may act in the middle of `enter`, and a run in the
//! middle of `take_over`. Every byte carries its response and position, and is checked when it enters a send queue.
//! Weaker memory ordering than the program assumes is not modelled.

mod bytes;
mod ends;
mod program;
mod sluice;
mod world;

use std::cell::Cell;
use std::rc::Rc;
use std::vec::Vec;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{Line, Order, Phase, Slot};
use crate::word::Word;
use crate::word::watch::{self, Watch};
use world::World;

/// Number of choices of a case.
const LENGTH: usize = 6000;

fn play(choices: Vec<u8>) {
    let world = World::new(choices);
    world.play();
    world.come_to_rest();
}

/// Lets the program finish a message at one access to a slot.
struct Finishing {
    slot: Rc<Slot>,
    accesses: Cell<u32>,
    at: u32,
}

impl Watch for Finishing {
    fn before(&self) {
        if self.accesses.replace(self.accesses.get() + 1) == self.at {
            self.slot.leave_sent(1, 0);
        }
    }

    fn wrote(&self, _word: *const Word) {}
}

#[test]
fn the_program_cannot_enter_a_slot_after_takeover() {
    for at in 0..4 {
        let slot = Rc::new(Slot::default());
        slot.assign(7);
        slot.prepare(&Order {
            client: 1,
            client_socket: 0,
            sequence: 0,
            received: 0,
            body_bytes_min: 0,
            body_bytes_max: 9,
            hold: false,
            slack: 0,
            line: Line::default(),
        });
        slot.request_sent(7);
        assert_eq!(slot.enter(7), Some(Phase::Armed));
        watch::begin(Some(Rc::new(Finishing { slot: Rc::clone(&slot), accesses: Cell::new(0), at })));
        let phase = slot.take_over();
        watch::begin(None);
        assert!(matches!(phase, Phase::Busy | Phase::Left), "{phase:?} at access {at}");
        assert!(phase == Phase::Busy || slot.enter(7).is_none());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 500, ..ProptestConfig::default() })]

    #[test]
    fn a_response_reaches_only_its_client(choices in vec(any::<u8>(), LENGTH / 4..LENGTH)) {
        play(choices);
    }
}

/// Enough for some seconds, or the number in PROPTEST_CASES.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(900)
}
