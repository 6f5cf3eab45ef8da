//! Streams: bytes arrive, without TCP, completely and in order.

use sluice_ebpf::Counter;

use super::flow::{Flow, Got, wait_any};
use super::pairs::Way;
use super::trial::{Checked, Found, Trial, to_usize};

/// Requests and responses of an echo.
const ECHOES: u64 = 32;
/// How often the budget overflows and is read out.
const FLOODS: u64 = 4;
/// Maximum number of messages in a flood: a larger budget does not overflow.
const FLOOD_MAX: u64 = 2048;
/// Bytes of the large transfer, in each direction.
const TRANSFER: usize = 2 << 20;

/// Both ends of a connection are joined, and a message in each direction bypasses TCP.
pub(super) fn join(trial: &mut Trial<'_>) -> Checked {
    let before = trial.mark()?;
    let pair = trial.pair()?;
    for way in Way::BOTH {
        let mut flow = trial.flow(&pair, way);
        flow.send(1)?;
        flow.drain_all()?;
    }
    trial.joined(before, 2)
}

/// Small messages back and forth: none is lost, changed or returned to its sender, and none goes through TCP.
pub(super) fn echo(trial: &mut Trial<'_>) -> Checked {
    let pair = trial.pair()?;
    let before = trial.mark()?;
    let (mut out, mut back) = (trial.flow(&pair, Way::Out), trial.flow(&pair, Way::Back));
    let mut random = fastrand::Rng::with_seed(2);
    for _ in 0..ECHOES {
        for flow in [&mut out, &mut back] {
            flow.send(random.usize(1..=trial.message()))?;
            flow.drain_all()?;
        }
    }
    trial.joined(before, ECHOES * 2)
}

/// The reader pauses until the budget overflows, so that bytes go through TCP after joined ones, and then continues.
pub(super) fn order(trial: &mut Trial<'_>) -> Checked {
    let pair = trial.pair()?;
    let before = trial.mark()?;
    let (mut out, mut back) = (trial.flow(&pair, Way::Out), trial.flow(&pair, Way::Back));
    let mut random = fastrand::Rng::with_seed(3);
    let mut overflowed = false;
    for _ in 0..FLOODS {
        for flow in [&mut out, &mut back] {
            overflowed |= flood(flow, trial, &mut random)?;
        }
        for flow in [&mut back, &mut out] {
            flow.drain(|| random.usize(1..=8192))?;
        }
        // By either path, one at a time: the sender sees that the budget is free again.
        for flow in [&mut out, &mut back] {
            flow.send(random.usize(1..=trial.message()))?;
            flow.drain_all()?;
        }
    }
    trial.joined(before, 1)?;
    match trial.grown(before)? {
        Some(grown) if overflowed && grown.of(Counter::BytesPassed) == 0 => {
            Err(Found::new(format!("no message exceeded the budget (counted: {grown})")))
        }
        _ => Ok(()),
    }
}

/// Sends to a reader that does not read. Returns whether that was more than the budget.
fn flood(flow: &mut Flow, trial: &Trial<'_>, random: &mut fastrand::Rng) -> Result<bool, Found> {
    let (bytes, messages) = trial.budget();
    let (mut sent, mut taken) = (0, 0);
    while sent < FLOOD_MAX.min(messages.saturating_add(8)) {
        // Some are larger than a TCP packet on other links, and than what may be joined at all.
        let size = random.usize(1..=trial.message() * 2);
        let took = flow.try_send(size)?;
        taken += took as u64;
        sent += 1;
        if took < size {
            break;
        }
    }
    Ok(taken > bytes || sent > messages)
}

/// A few megabytes in both directions at once, as fast as they are accepted.
pub(super) fn transfer(trial: &mut Trial<'_>) -> Checked {
    let pair = trial.pair()?;
    let before = trial.mark()?;
    let size = to_usize(16_384);
    let mut flows = Way::BOTH.map(|way| (trial.flow(&pair, way), TRANSFER));
    while flows.iter().any(|(flow, rest)| *rest > 0 || flow.unread() > 0) {
        let mut moved = false;
        for (flow, rest) in &mut flows {
            if *rest > 0 {
                let taken = flow.try_send(size.min(*rest))?;
                *rest -= taken;
                moved |= taken > 0;
            }
        }
        for (flow, _) in &mut flows {
            match flow.receive(usize::MAX)? {
                Got::Bytes(_) => moved = true,
                Got::Nothing => {}
                Got::End | Got::Reset => return Err(Found::new("the stream ended during a transfer")),
            }
        }
        if !moved {
            let asked: Vec<_> = flows.iter().map(|(flow, rest)| (flow, *rest > 0)).collect();
            wait_any(&asked, trial.deadline)?;
        }
    }
    for (flow, _) in &mut flows {
        flow.finish()?;
    }
    // If the budget is smaller than a piece, all of this goes through TCP.
    let fits = trial.budget().0 >= size as u64;
    trial.joined(before, u64::from(fits))
}
