//! How a connection ends: after its bytes, in one direction at a time, or abruptly.

use super::flow::{Flow, Got};
use super::pairs::Way;
use super::trial::{Checked, Found, Trial};

/// Connections that are closed in each direction.
const CLOSES: usize = 5;

/// Messages, then an immediate close: all of them arrive, then the end.
pub(super) fn close(trial: &mut Trial<'_>) -> Checked {
    for way in Way::BOTH {
        for _ in 0..CLOSES {
            let mut flow = last_words(trial, way)?;
            flow.close();
            flow.ends()?;
        }
    }
    Ok(())
}

/// The sender resets: the reader gets an error, and no bytes other than those sent.
pub(super) fn reset(trial: &mut Trial<'_>) -> Checked {
    for way in Way::BOTH {
        let mut flow = last_words(trial, way)?;
        flow.drain_all()?;
        flow.reset()?;
        match until_end(&mut flow)? {
            Got::Reset => {}
            _ => return Err(Found::new(format!("the end instead of a reset, {way}"))),
        }
        // Unread bytes may arrive before it, all or none. After them comes the reset again, or the end.
        let mut flow = last_words(trial, way)?;
        flow.reset()?;
        until_end(&mut flow)?;
    }
    Ok(())
}

/// One end sends everything and gets its response after that, like HTTP/1.0 clients.
pub(super) fn half_close(trial: &mut Trial<'_>) -> Checked {
    for first in Way::BOTH {
        let second = if first == Way::Out { Way::Back } else { Way::Out };
        let pair = trial.pair()?;
        let before = trial.mark()?;
        let (mut question, mut answer) = (trial.flow(&pair, first), trial.flow(&pair, second));
        question.send(trial.message())?;
        question.finish()?;
        for _ in 0..3 {
            answer.send(trial.message())?;
            answer.drain_all()?;
        }
        answer.send(trial.message())?;
        answer.finish()?;
        trial.joined(before, 5)?;
    }
    Ok(())
}

/// A connection whose ends only this flow holds, with some messages unread.
fn last_words(trial: &mut Trial<'_>, way: Way) -> Result<Flow, Found> {
    let pair = trial.pair()?;
    let before = trial.mark()?;
    let mut flow = trial.flow(&pair, way);
    let messages = trial.burst();
    for _ in 0..messages {
        flow.send(trial.part())?;
    }
    trial.joined(before, messages)?;
    Ok(flow)
}

/// Reads until the end or a reset.
fn until_end(flow: &mut Flow) -> Result<Got, Found> {
    loop {
        match flow.receive(usize::MAX)? {
            Got::Nothing => flow.wait_end()?,
            Got::Bytes(_) => {}
            end => return Ok(end),
        }
    }
}
