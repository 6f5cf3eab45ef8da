//! The same bytes arrive on every path: TCP, joined, copied by sluice, or spliced.
//!
//! One table of scripts, and as many random ones as PROPTEST_CASES specifies, each played through every conduit on real
//! sockets. Both ends must see the bytes and ends that the script allows; where TCP itself leaves the outcome open,
//! `Script::expected` allows more than one.

mod conduit;
mod http;
mod origin;
mod play;
mod script;

use std::cell::RefCell;

use proptest::test_runner::{Config, TestCaseError, TestRunner};

use conduit::Conduit;
pub(crate) use http::shown;
use play::{content, play};
use script::Step::{Await, AwaitAll, AwaitDelivery, AwaitEnd, Close, HalfClose, Reset, Write};
use script::{End, Script};

/// Enough to meet each kind of step and end several times, within seconds.
const CASES: u32 = 40;

/// One write of this many bytes at once.
fn whole(bytes: usize) -> script::Step {
    Write { bytes, piece: usize::MAX }
}

fn pieces(bytes: usize, piece: usize) -> script::Step {
    Write { bytes, piece }
}

fn sizes_around(edge: usize) -> Script {
    let writes: Vec<_> = (edge - 1..=edge + 1).map(whole).collect();
    Script::new(End::new(writes.clone()), End::new(writes))
}

/// Named connections.
fn table() -> Vec<(&'static str, Script)> {
    let nothing = || End::new([]);
    let large = |piece| End::new([pieces(300_000, piece)]);
    vec![
        ("nothing at all", Script::new(nothing(), nothing())),
        ("a byte in each direction", Script::new(End::new([whole(1)]), End::new([whole(1)]))),
        (
            "two thousand bytes one by one",
            Script::new(End::new([pieces(2000, 1)]), End::new([pieces(2000, 1)])),
        ),
        ("large in both directions at once", Script::new(large(1000), large(60_000))),
        ("large in both directions, in single writes", Script::new(large(usize::MAX), large(usize::MAX))),
        ("around 64 KB", sizes_around(65_536)),
        ("around 128 KB", sizes_around(131_072)),
        (
            "slow readers",
            Script::new(
                End::new([pieces(40_000, 500)]).reading(7),
                End::new([pieces(40_000, 4000)]).reading(100),
            ),
        ),
        (
            "read only after everything was sent",
            Script::new(
                End::new([pieces(2000, 100), whole(5000)]).reading_after(2),
                End::new([pieces(7000, 300), pieces(900, 100)]).reading_after(2),
            ),
        ),
        (
            "request and response, four times",
            Script::new(
                End::new([
                    whole(300),
                    Await(2),
                    whole(1),
                    Await(4),
                    pieces(70_000, 9000),
                    Await(6),
                    whole(9),
                ]),
                End::new([
                    Await(1),
                    whole(90_000),
                    Await(3),
                    whole(1),
                    Await(5),
                    pieces(10, 1),
                    Await(7),
                    whole(2),
                ]),
            ),
        ),
        (
            "a response after the half-close",
            Script::new(
                End::new([whole(5000), HalfClose]),
                End::new([Await(2), AwaitAll, pieces(200_000, 7000)]),
            ),
        ),
        (
            "the accepting end half-closes first and continues to read",
            Script::new(
                End::new([Await(2), AwaitEnd, pieces(200_000, 3000)]),
                End::new([whole(10), HalfClose]),
            ),
        ),
        (
            "closed after everything arrived",
            Script::new(large(5000), End::new([whole(100), AwaitAll, Close])),
        ),
        (
            "closed with bytes unread",
            Script::new(End::new([whole(500), Await(1)]), End::new([Await(1), Close])),
        ),
        ("closed while receiving", Script::new(large(3000), End::new([whole(10), Close]))),
        (
            "reset by the connecting end, with nothing in flight",
            Script::new(
                End::new([whole(5000), AwaitDelivery, AwaitAll, Reset]),
                End::new([pieces(90_000, 4000), AwaitEnd]),
            ),
        ),
        (
            "reset by the accepting end, with nothing in flight",
            Script::new(
                End::new([pieces(90_000, 4000), AwaitEnd]),
                End::new([whole(5000), AwaitDelivery, AwaitAll, Reset]),
            ),
        ),
        (
            "reset with bytes unread",
            Script::new(End::new([whole(5000), Reset]), End::new([AwaitEnd]).reading_after(2)),
        ),
        (
            "reset while receiving",
            Script::new(End::new([whole(1), Reset]), End::new([pieces(300_000, 900), AwaitEnd])),
        ),
        (
            "reset by the accepting end while receiving",
            Script::new(End::new([pieces(300_000, 900), AwaitEnd]), End::new([whole(1), Reset])),
        ),
        (
            "reset by the accepting end after the other's half-close",
            Script::new(
                End::new([whole(10), HalfClose]),
                End::new([whole(10), AwaitDelivery, AwaitAll, Reset]),
            ),
        ),
        (
            "reset by the connecting end after the other's half-close",
            Script::new(
                End::new([whole(10), AwaitDelivery, AwaitAll, Await(2), Reset]),
                End::new([whole(10), HalfClose]),
            ),
        ),
    ]
}

/// Plays a script through a conduit; returns what is wrong with the result.
fn fault(conduit: &mut Conduit, script: &Script) -> Option<String> {
    let seen = play(script, conduit.open());
    for (at, seen) in seen.iter().enumerate() {
        let (expected, wanted) = (script.expected(at), content(&script.ends[1 - at], 1 - at));
        let differs = seen.bytes.iter().zip(&wanted).position(|(got, sent)| got != sent);
        let length = seen.bytes.len();
        let complete = if expected.whole { length == wanted.len() } else { length <= wanted.len() };
        let ended = match seen.last {
            Some(last) if !expected.last.is_empty() => expected.last.contains(&last),
            Some(_) => true,
            None => expected.last.is_empty(),
        };
        let wrote = expected.writes_may_fail || !seen.write_failed;
        if differs.is_some() || !complete || !ended || !wrote {
            return Some(format!(
                "{}, end {at}: {length} bytes of {}, first difference {differs:?}, {:?}, write failed: {}; \
                 expected {expected:?}",
                conduit.name,
                wanted.len(),
                seen.last,
                seen.write_failed
            ));
        }
    }
    None
}

/// As many cases as PROPTEST_CASES specifies, otherwise `cases`.
fn config(cases: u32) -> Config {
    let wanted = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    // A smaller script is more informative, but shrinking a stuck one takes time.
    Config {
        cases: wanted.unwrap_or(cases),
        max_shrink_time: 60_000,
        failure_persistence: None,
        ..Config::default()
    }
}

#[test]
#[ignore = "needs root and BPF"]
fn every_tcp_script_is_equivalent() {
    let mut conduits = Conduit::all();
    let mut faults = Vec::new();
    for (name, script) in table() {
        faults.extend(conduits.iter_mut().filter_map(|conduit| {
            let fault = fault(conduit, &script)?;
            Some(format!("{name}: {fault}"))
        }));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    conduits.iter().for_each(Conduit::check_used);
}

#[test]
#[ignore = "needs root and BPF"]
fn random_scripts_are_equivalent() {
    let mut conduits = Conduit::all();
    let conduits = RefCell::new(&mut conduits);
    let played = TestRunner::new(config(CASES)).run(&script::any(), |script| {
        for conduit in conduits.borrow_mut().iter_mut() {
            if let Some(fault) = fault(conduit, &script) {
                eprintln!("{fault}: {script:?}");
                return Err(TestCaseError::fail(fault));
            }
        }
        Ok(())
    });
    if let Err(error) = played {
        panic!("{error}");
    }
}
