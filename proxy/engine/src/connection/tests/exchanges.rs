//! Exchanges on a network without faults: every response complete, in order, and once.

use std::rc::Rc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::client::{Manner, Outcome, Shared, converse, stays_open};
use super::exchange::{Exchange, any_length, exchange, memory, short};
use super::origin::{Script, Seen, serve};
use super::*;

/// Runs the exchanges over as many connections as needed.
async fn play(exchanges: Vec<Exchange>, behaviours: (Behaviour, Behaviour), pipelines: bool) {
    play_through("", exchanges, behaviours, pipelines).await;
}

/// The same with buffered bodies, `memory` bytes of them in memory.
async fn hold(
    memory: usize,
    mut exchanges: Vec<Exchange>,
    behaviours: (Behaviour, Behaviour),
    pipelines: bool,
) {
    exchanges.iter_mut().for_each(|exchange| exchange.held = (true, true));
    play_through(&holding(memory), exchanges, behaviours, pipelines).await;
}

async fn play_through(
    route: &str,
    exchanges: Vec<Exchange>,
    (behaviour, upstream): (Behaviour, Behaviour),
    pipelines: bool,
) {
    let exchanges: Shared = Rc::new(exchanges);
    let script = Script::new(&exchanges);
    let shared = Rc::clone(&script);
    let (network, origins) = network(upstream, move |number, end| {
        serve(Rc::clone(&shared), end, upstream.seed ^ number as u64, [None, None])
    });
    let proxy = Proxy::with_route(route, ("", ""), network);
    let mut next = 0;
    while next < exchanges.len() {
        let seed = behaviour.seed.wrapping_add(next as u64);
        let end = proxy.connect(Behaviour { seed, ..behaviour });
        let manner = Manner { seed, pipelines, faults: [None, None] };
        let outcomes = converse(end, &exchanges, next, manner).await;
        let whole = outcomes.iter().all(|outcome| *outcome == Outcome::Whole);
        assert!(whole && !outcomes.is_empty(), "from {next}: {outcomes:?}");
        next += outcomes.len();
        let last = &exchanges[next - 1];
        let closed = next < exchanges.len() && stays_open(last) && last.answer.early.is_none();
        assert!(!closed, "the connection was closed without reason after exchange {}", next - 1);
    }
    proxy.finish().await;
    ended(&origins).await;
    let seen = script.seen.take();
    assert_eq!(seen.len(), exchanges.len(), "requests that origins received");
    for (tag, (seen, exchange)) in seen.iter().zip(exchanges.iter()).enumerate() {
        check(seen, exchange, tag);
    }
}

fn check(seen: &Seen, exchange: &Exchange, tag: usize) {
    assert_eq!(seen.tag, tag, "requests out of order");
    let asked = exchange.asked(tag);
    if exchange.answer.early.is_some() {
        assert!(asked.starts_with(&seen.body));
        return;
    }
    assert!(seen.whole && seen.body == asked, "request {tag} did not arrive as it was sent");
    let trailers = exchange.body.as_ref().map_or_else(Vec::new, |body| body.trailers(tag));
    assert_eq!(seen.trailers, trailers);
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn short_exchanges_in_small_pieces_are_complete_and_in_order(
        exchanges in vec(exchange(short()), 1..8),
        behaviours in (rough(), rough()),
        pipelines: bool,
    ) {
        run(play(exchanges, behaviours, pipelines));
    }

    #[test]
    fn exchanges_of_any_length_are_complete_and_in_order(
        exchanges in vec(exchange(any_length()), 1..6),
        behaviours in (usual(), usual()),
        pipelines: bool,
    ) {
        run(play(exchanges, behaviours, pipelines));
    }
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn short_buffered_bodies_are_complete_and_in_order(
        memory in memory(),
        exchanges in vec(exchange(short()), 1..6),
        behaviours in (rough(), rough()),
        pipelines: bool,
    ) {
        run(hold(memory, exchanges, behaviours, pipelines));
    }

    #[test]
    fn buffered_bodies_of_any_length_are_complete_and_in_order(
        memory in memory(),
        exchanges in vec(exchange(any_length()), 1..5),
        behaviours in (usual(), usual()),
        pipelines: bool,
    ) {
        run(hold(memory, exchanges, behaviours, pipelines));
    }
}

/// The last piece of a response may be larger than what the client's side accepts at once.
#[test]
fn the_last_piece_of_a_response_is_sent_completely() {
    for length in [17_000, 40_000, 64_000, 65_536, 100_000] {
        let slow = Behaviour { capacity: 5000, ..CALM };
        run(play(vec![Exchange::get(length), Exchange::get(1)], (slow, CALM), false));
    }
}

/// As above, for a request.
#[test]
fn the_last_piece_of_a_request_is_sent_completely() {
    for length in [17_000, 40_000, 64_000, 65_536, 100_000] {
        let slow = Behaviour { capacity: 5000, ..CALM };
        run(play(vec![Exchange::post(length), Exchange::get(1)], (CALM, slow), false));
    }
}
