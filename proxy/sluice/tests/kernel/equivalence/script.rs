//! The steps of the two ends of a connection, and what each of them may see as a result.

use proptest::prelude::*;

/// The largest number of bytes sent before anyone reads: it fits into any socket's buffer.
const UNREAD_MAX: usize = 8000;
/// Maximum pieces of one write; more would only take time.
const PIECES_MAX: usize = 1500;

/// One step of an end, after the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Writes `bytes` bytes, in pieces of at most `piece`.
    Write { bytes: usize, piece: usize },
    /// Waits until the other end has done this many of its steps.
    Await(usize),
    /// Waits until the other end has received everything that was written.
    AwaitDelivery,
    /// Waits until everything that the other end ever writes has arrived.
    AwaitAll,
    /// Waits for the other's end.
    AwaitEnd,
    /// Shuts down for writing. Also follows the last step of an end that does not end otherwise.
    HalfClose,
    /// Closes, with whatever is unread then.
    Close,
    /// Closes with SO_LINGER 0.
    Reset,
}

/// The behaviour of one end. It reads all the time.
#[derive(Clone, Debug)]
pub(super) struct End {
    pub(super) steps: Vec<Step>,
    /// The largest piece read at once: small ones make a slow reader.
    pub(super) read_piece: usize,
    /// Nothing is read before the other end has done this many of its steps.
    pub(super) read_after: usize,
}

impl End {
    pub(super) fn new(steps: impl Into<Vec<Step>>) -> Self {
        Self { steps: steps.into(), read_piece: 65_536, read_after: 0 }
    }

    pub(super) fn reading(self, read_piece: usize) -> Self {
        Self { read_piece, ..self }
    }

    pub(super) fn reading_after(self, read_after: usize) -> Self {
        Self { read_after, ..self }
    }

    /// Bytes that it writes in all.
    pub(super) fn total(&self) -> usize {
        self.steps.iter().map(|step| if let Step::Write { bytes, .. } = step { *bytes } else { 0 }).sum()
    }

    fn has(&self, step: Step) -> bool {
        self.steps.contains(&step)
    }

    /// Whether none of its written bytes are in flight when it resets.
    fn is_quiet(&self) -> bool {
        let written = self.steps.iter().rposition(|step| matches!(step, Step::Write { .. }));
        let delivered = self.steps.iter().rposition(|step| *step == Step::AwaitDelivery);
        written < delivered
    }

    /// How many of the first steps, up to `wanted`, complete without a reader.
    fn needing_no_reader(&self, wanted: usize) -> usize {
        let mut bytes_in_all = 0;
        let fits = |step: &&Step| {
            let Step::Write { bytes, piece } = step else { return false };
            bytes_in_all += bytes;
            bytes_in_all <= UNREAD_MAX && *piece >= 16
        };
        self.steps.iter().take(wanted).take_while(fits).count()
    }
}

/// How the bytes received by an end finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    Eof,
    Reset,
}

/// What an end may see.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    /// Everything that the other end wrote; otherwise some of it, from the first byte on.
    pub(super) whole: bool,
    /// Any of these; empty if the end does not wait for it.
    pub(super) last: &'static [Last],
    /// Whether the other end may be gone while this one still writes.
    pub(super) writes_may_fail: bool,
}

/// A connection from its first byte to its last: the connecting end, then the accepting one.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) ends: [End; 2],
}

impl Script {
    pub(super) fn new(active: End, passive: End) -> Self {
        Self { ends: [active, passive] }
    }

    /// What that end may see. More than one outcome is allowed only where TCP itself leaves it open.
    pub(super) fn expected(&self, at: usize) -> Expected {
        let (own, other) = (&self.ends[at], &self.ends[1 - at]);
        if own.has(Step::Close) || own.has(Step::Reset) {
            // It does not wait to see how the other one ends, and has what it waited for.
            return Expected { whole: own.has(Step::AwaitAll), last: &[], writes_may_fail: false };
        }
        if other.has(Step::Reset) {
            // Bytes in flight may be lost with the reset, or arrive before it.
            let quiet = other.is_quiet();
            return Expected {
                whole: quiet,
                last: self.reset(at),
                writes_may_fail: !other.has(Step::AwaitAll),
            };
        }
        if other.has(Step::Close) && own.total() > 0 && !other.has(Step::AwaitAll) {
            // To TCP, closing with unread bytes is a reset, which may discard bytes in flight; between joined ends,
            // whose unread bytes TCP does not know, it is an end.
            return Expected { whole: false, last: &[Last::Eof, Last::Reset], writes_may_fail: true };
        }
        Expected { whole: true, last: &[Last::Eof], writes_may_fail: false }
    }

    fn reset(&self, at: usize) -> &'static [Last] {
        let own = &self.ends[at];
        if at == 1 && !own.has(Step::AwaitEnd) {
            // sluice treats a client's reset as an end once the origin has ended: the client had everything.
            return &[Last::Reset, Last::Eof];
        }
        &[Last::Reset]
    }
}

fn write() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![
        4 => 1_usize..100,
        4 => 100_usize..5000,
        2 => prop_oneof![Just(65_536_usize), Just(131_072)].prop_flat_map(|edge| edge - 2..=edge + 2),
        2 => 5000_usize..300_000,
    ];
    let piece =
        prop_oneof![1 => 1_usize..16, 3 => 16_usize..2000, 2 => 2000_usize..70_000, 1 => Just(usize::MAX)];
    (bytes, piece).prop_map(|(bytes, piece)| Step::Write { bytes, piece: piece.max(bytes / PIECES_MAX) })
}

/// Steps, each with the distance to the other end's step that it waits for, if it waits.
fn steps() -> impl Strategy<Value = Vec<(Step, Option<usize>)>> {
    let step = prop_oneof![8 => write(), 1 => Just(Step::AwaitDelivery)];
    prop::collection::vec((step, prop::option::weighted(0.3, 0_usize..3)), 0..6)
}

fn read_piece() -> impl Strategy<Value = usize> {
    prop_oneof![1 => 64_usize..500, 2 => 500_usize..5000, 2 => Just(65_536)]
}

/// How the first end finishes; the other one ends in order.
fn ending() -> impl Strategy<Value = Vec<Step>> {
    use Step::{AwaitAll, AwaitDelivery, Close, HalfClose, Reset};
    prop_oneof![
        4 => Just(vec![HalfClose]),
        2 => Just(vec![AwaitAll, Close]),
        1 => Just(vec![Close]),
        2 => Just(vec![AwaitDelivery, AwaitAll, Reset]),
        1 => Just(vec![Reset]),
    ]
}

/// Waits only for earlier steps, counted over both ends in turn, so that there are no cycles.
fn with_waits(steps: Vec<(Step, Option<usize>)>, others: usize, second: usize) -> Vec<Step> {
    let mut done = Vec::new();
    for (step, wait) in steps {
        if let Some(back) = wait {
            let target = (done.len() + second).saturating_sub(back).min(others);
            done.push(Step::Await(target));
        }
        done.push(step);
    }
    done
}

/// Any connection.
pub(super) fn any() -> impl Strategy<Value = Script> {
    let ends = (steps(), steps(), read_piece(), read_piece(), 0_usize..4, 0_usize..4);
    (ends, ending(), 0_usize..2).prop_map(|((first, second, read_a, read_b, after_a, after_b), last, who)| {
        let lengths = [first.len(), second.len()];
        let active = End::new(with_waits(first, lengths[1], 0)).reading(read_a);
        let passive = End::new(with_waits(second, lengths[0], 1)).reading(read_b);
        let mut ends = [active, passive];
        // A reset must come before the other's end for its outcome to be certain.
        if last.contains(&Step::Reset) {
            ends[1 - who].steps.push(Step::AwaitEnd);
        }
        ends[who].steps.extend(last);
        ends[0].read_after = ends[1].needing_no_reader(after_a);
        ends[1].read_after = ends[0].needing_no_reader(after_b);
        Script { ends }
    })
}
