//! Whose turn it is.

use std::sync::Arc;
use std::time::Duration;

use crate::fills::Fills;
use crate::{Outcome, ResponseWait, Ticket, Turn};

const LONG: Duration = Duration::from_secs(3600);

fn first(turn: Turn) -> Ticket {
    if let Turn::First(ticket) = turn { ticket } else { panic!("another one has gone") }
}

fn later(turn: Turn) -> ResponseWait {
    if let Turn::Later(waiting) = turn { waiting } else { panic!("nobody has gone") }
}

#[tokio::test]
async fn those_that_wait_are_told_and_the_next_one_goes() {
    let fills = Arc::new(Fills::new());
    for outcome in [Outcome::Stored, Outcome::Passed, Outcome::Failed(3), Outcome::Abandoned] {
        let ticket = first(fills.turn(b"a", LONG, false));
        let mut waiting = later(fills.turn(b"a", LONG, false));
        // Another key is another response.
        drop(first(fills.turn(b"b", LONG, false)));
        match outcome {
            Outcome::Abandoned => drop(ticket),
            outcome => ticket.settle(outcome),
        }
        assert_eq!(waiting.outcome().await, outcome);
        assert_eq!(fills.count(), 0);
    }
}

#[tokio::test]
async fn a_late_one_goes_as_well_and_the_first_response_counts() {
    let fills = Arc::new(Fills::new());
    let slow = first(fills.turn(b"a", Duration::ZERO, false));
    let mut waiting = later(fills.turn(b"a", Duration::ZERO, false));
    let quick = first(fills.turn(b"a", Duration::ZERO, true));
    later(fills.turn(b"a", LONG, true));
    // One that fails while another one may succeed is no outcome.
    slow.settle(Outcome::Failed(1));
    quick.settle(Outcome::Stored);
    assert_eq!(waiting.outcome().await, Outcome::Stored);
    let slow = first(fills.turn(b"a", Duration::ZERO, false));
    let quick = first(fills.turn(b"a", Duration::ZERO, true));
    let mut waiting = later(fills.turn(b"a", LONG, false));
    quick.settle(Outcome::Stored);
    assert_eq!(waiting.outcome().await, Outcome::Stored);
    // The next response is another one: who is late for the last has nothing to say about it.
    let next = first(fills.turn(b"a", LONG, false));
    let mut waiting = later(fills.turn(b"a", LONG, false));
    drop(slow);
    assert_eq!(fills.count(), 1);
    next.settle(Outcome::Passed);
    assert_eq!(waiting.outcome().await, Outcome::Passed);
    assert_eq!(fills.count(), 0);
}
