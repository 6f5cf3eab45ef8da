//! Exchanges with one fault: nothing is lost, duplicated or invented, no truncated message looks complete, and
//! everything ends.

use std::rc::Rc;

use proptest::collection::vec;
use proptest::prelude::*;
use tokio::time::Instant;

use super::client::{Manner, Outcome, Shared, converse};
use super::exchange::{Exchange, any_length, exchange, memory, short};
use super::origin::{Script, serve};
use super::peer::{Fault, Kind, STALL};
use super::*;

const TIMEOUTS: &str = "response_timeout_ms: 30000, body_idle_timeout_ms: 20000, \
    ejection: {consecutive_failures: 0}, retry: {attempts_max: 1},";

/// Longer than the sum of all timeouts, and shorter than a stall.
const PATIENCE: Duration = Duration::from_secs(150);

/// The side whose connection has the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Culprit {
    Client,
    /// The origin, on the connection with this number.
    Origin(usize),
}

/// The fault of one case.
#[derive(Clone, Copy, Debug)]
struct Mishap {
    culprit: Culprit,
    reading: bool,
    fault: Fault,
}

impl Mishap {
    /// The faults of reading and of writing on a connection of `side`.
    fn at(self, side: Culprit) -> [Option<Fault>; 2] {
        let here = Some(self.fault).filter(|_| side == self.culprit);
        if self.reading { [here, None] } else { [None, here] }
    }
}

fn mishap() -> impl Strategy<Value = Mishap> {
    let culprit = prop_oneof![2 => Just(Culprit::Client), 3 => (0usize..3).prop_map(Culprit::Origin)];
    let kind = prop_oneof![Just(Kind::Reset), Just(Kind::Close), Just(Kind::HalfClose), Just(Kind::Stall)];
    let after = prop_oneof![1usize..300, 1usize..3000, 1usize..100_000];
    (culprit, any::<bool>(), kind, after).prop_map(|(culprit, reading, kind, after)| Mishap {
        culprit,
        reading,
        fault: Fault { after, kind },
    })
}

/// Runs the exchanges over one connection.
async fn play(exchanges: Vec<Exchange>, behaviours: (Behaviour, Behaviour), pipelines: bool, mishap: Mishap) {
    play_through("", exchanges, behaviours, pipelines, mishap).await;
}

async fn play_through(
    route: &str,
    exchanges: Vec<Exchange>,
    behaviours: (Behaviour, Behaviour),
    pipelines: bool,
    mishap: Mishap,
) {
    let exchanges: Shared = Rc::new(exchanges);
    let script = Script::new(&exchanges);
    let shared = Rc::clone(&script);
    let (network, origins) = network(behaviours.1, move |number, end| {
        let faults = mishap.at(Culprit::Origin(number));
        serve(Rc::clone(&shared), end, behaviours.1.seed ^ number as u64, faults)
    });
    let proxy = Proxy::with_route(route, ("", TIMEOUTS), network);
    let begun = Instant::now();
    let manner = Manner { seed: behaviours.0.seed, pipelines, faults: mishap.at(Culprit::Client) };
    let outcomes = converse(proxy.connect(behaviours.0), &exchanges, 0, manner).await;
    let stalled = if mishap.culprit == Culprit::Client { STALL } else { Duration::ZERO };
    assert!(begun.elapsed() < PATIENCE + stalled, "{outcomes:?} only after {:?}", begun.elapsed());
    proxy.finish().await;
    ended(&origins).await;
    for (outcome, exchange) in outcomes.iter().zip(exchanges.iter()) {
        check_outcome(*outcome, exchange, mishap);
    }
    check_requests(&script, &outcomes);
}

/// Checks that an outcome is allowed.
fn check_outcome(outcome: Outcome, exchange: &Exchange, mishap: Mishap) {
    let ends = matches!(mishap.fault.kind, Kind::Close | Kind::HalfClose);
    match (outcome, mishap.culprit) {
        (Outcome::Whole | Outcome::Cut | Outcome::None, _) => {}
        (Outcome::Local(400), Culprit::Client) if ends => {}
        (Outcome::Local(408), Culprit::Client) if mishap.fault.kind == Kind::Stall => {}
        (Outcome::Local(502 | 504), Culprit::Origin(_)) => {}
        // Indistinguishable from a complete response.
        (Outcome::Short, Culprit::Origin(_)) if ends => {}
        _ => panic!("{outcome:?} of {exchange:?} after {mishap:?}"),
    }
}

/// What origins received is what was sent, or its beginning, and no more often than allowed.
fn check_requests(script: &Script, outcomes: &[Outcome]) {
    let all = script.seen.borrow();
    for (tag, exchange) in script.exchanges.iter().enumerate() {
        let asked = exchange.asked(tag);
        let seen: Vec<_> = all.iter().filter(|seen| seen.tag == tag).collect();
        let most = if exchange.is_idempotent() { 2 } else { 1 };
        assert!(seen.len() <= most, "request {tag} was delivered {} times", seen.len());
        for seen in &seen {
            assert!(asked.starts_with(&seen.body), "request {tag} was not delivered as it was sent");
            assert!(!seen.whole || seen.body == asked, "a part of request {tag} looked complete");
        }
        let answered = matches!(outcomes.get(tag), Some(Outcome::Whole | Outcome::Short));
        assert!(!answered || !seen.is_empty(), "a response to request {tag}, which no origin received");
    }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn short_exchanges_survive_or_fail_visibly(
        exchanges in vec(exchange(short()), 1..6),
        behaviours in (rough(), rough()),
        pipelines: bool,
        mishap in mishap(),
    ) {
        run(play(exchanges, behaviours, pipelines, mishap));
    }

    #[test]
    fn exchanges_of_any_length_survive_or_fail_visibly(
        exchanges in vec(exchange(any_length()), 1..5),
        behaviours in (usual(), usual()),
        pipelines: bool,
        mishap in mishap(),
    ) {
        run(play(exchanges, behaviours, pipelines, mishap));
    }

    #[test]
    fn buffered_exchanges_survive_or_fail_visibly(
        memory in memory(),
        mut exchanges in vec(exchange(any_length()), 1..5),
        behaviours in (usual(), usual()),
        pipelines: bool,
        mishap in mishap(),
    ) {
        exchanges.iter_mut().for_each(|exchange| exchange.held = (true, true));
        run(play_through(&holding(memory), exchanges, behaviours, pipelines, mishap));
    }
}
