//! How a connection ends: after its bytes, in one direction at a time, or at once.

use super::flow::{Flow, Got};
use super::pairs::Way;
use super::trial::{Checked, Found, Trial};

/// Connections that are closed each way.
const CLOSES: usize = 5;

/// Messages, then the close at once: all come, then the end.
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

/// The sender resets: the reader is told, and gets nothing but what was sent.
pub(super) fn reset(trial: &mut Trial<'_>) -> Checked {
    for way in Way::BOTH {
        let mut flow = last_words(trial, way)?;
        flow.drain_all()?;
        flow.reset()?;
        match until_end(&mut flow)? {
            Got::Reset => {}
            _ => return Err(Found::new(format!("the end in place of a reset, {way}"))),
        }
        // With bytes unread these may come before it, all or none; what follows is the reset again, or the end.
        let mut flow = last_words(trial, way)?;
        flow.reset()?;
        until_end(&mut flow)?;
    }
    Ok(())
}

/// One end says all it has to say and is answered after that, as HTTP/1.0 clients are.
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

/// A connection of which nobody else holds an end, with some messages unread.
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

/// Reads until the end, of either kind.
fn until_end(flow: &mut Flow) -> Result<Got, Found> {
    loop {
        match flow.receive(usize::MAX)? {
            Got::Nothing => flow.wait_end()?,
            Got::Bytes(_) => {}
            end => return Ok(end),
        }
    }
}
