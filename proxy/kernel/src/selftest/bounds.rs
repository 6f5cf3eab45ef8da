//! What joining must not do: use more memory than its budget, or join connections that were not marked.

use sluice_ebpf::Counter;
use socket2::SockRef;

use super::flow::Flow;
use super::pairs::{Counts, Way};
use super::trial::{Checked, Found, Trial, refused};

/// Socket buffer of both ends for TCP, in bytes, so that it fills soon.
const BUFFER: usize = 65_536;
/// If a sender gets this many bytes accepted, nothing limits it.
const TAKEN_MAX: usize = 32 << 20;
/// Bytes of a message that fills the budget of bytes, if the budget of messages is large.
const LARGE: usize = 1000;
/// Maximum number of one-byte messages: a larger budget of messages is not reached here.
const SMALL_MAX: u64 = 4096;

/// Nothing reads: joined bytes stay within the budget, TCP stops the sender, and then everything arrives.
pub(super) fn slow_reader(trial: &mut Trial<'_>) -> Checked {
    for way in Way::BOTH {
        fill(trial, way, LARGE, u64::MAX)?;
        fill(trial, way, 1, SMALL_MAX.min(trial.budget().1.saturating_add(8)))?;
    }
    Ok(())
}

/// Sends a message that may be joined, then more until nothing is accepted any more, or up to `messages`.
fn fill(trial: &mut Trial<'_>, way: Way, size: usize, messages: u64) -> Checked {
    let pair = trial.pair()?;
    let before = trial.mark()?;
    let mut flow = trial.flow(&pair, way);
    shrink(&flow)?;
    flow.send(size.min(trial.message()))?;
    let mut sent = 1;
    while sent < messages && flow.try_send(size)? > 0 {
        sent += 1;
        if flow.unread() > TAKEN_MAX {
            return Err(Found::new(format!(
                "{} bytes were accepted with nothing read, {way}",
                flow.unread()
            )));
        }
    }
    trial.joined(before, 1)?;
    if let Some(grown) = trial.grown(before)? {
        within(&grown, trial.budget())?;
    }
    flow.finish()
}

fn shrink(flow: &Flow) -> Checked {
    SockRef::from(flow.sender()?).set_send_buffer_size(BUFFER).map_err(refused("setsockopt"))?;
    SockRef::from(&*flow.to).set_recv_buffer_size(BUFFER).map_err(refused("setsockopt"))
}

fn within(grown: &Counts, (bytes, messages): (u64, u64)) -> Checked {
    if grown.of(Counter::BytesJoined) <= bytes && grown.of(Counter::MessagesJoined) <= messages {
        return Ok(());
    }
    Err(Found::new(format!("more than {bytes} bytes or {messages} messages were unread (counted: {grown})")))
}

/// A connection to the same listener that was not marked is not joined, next to one that is.
pub(super) fn stranger(trial: &mut Trial<'_>) -> Checked {
    let _joined = trial.pair()?;
    let before = trial.mark()?;
    let (pair, joined) = trial.stranger()?;
    if joined {
        return Err(Found::new("an unmarked connection was joined"));
    }
    for way in Way::BOTH {
        let mut flow = trial.flow(&pair, way);
        flow.send(trial.message())?;
        flow.finish()?;
    }
    match trial.grown(before)? {
        Some(grown) if grown.of(Counter::MessagesJoined) > 0 => {
            Err(Found::new(format!("its messages bypassed TCP (counted: {grown})")))
        }
        _ => Ok(()),
    }
}
