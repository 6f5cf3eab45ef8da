//! The origin's side: follows the plan of each request, and checks that spoiled connections are not reused.

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::World;
use super::line::{Head, Line};
use super::plan::{Deed, Plan, stray};

/// Serves one connection for as long as it lasts.
pub(super) fn serve(stream: TcpStream, world: &Arc<World>) {
    // Broken connections are part of the test.
    let Ok(mut line) = Line::patient(stream) else { return };
    loop {
        match exchange(&mut line, world) {
            Ok(Next::Exchange) => {}
            Ok(Next::Reset) => return line.reset(),
            Ok(Next::Close) | Err(_) => return,
        }
    }
}

enum Next {
    Exchange,
    Close,
    Reset,
}

fn exchange(line: &mut Line, world: &World) -> io::Result<Next> {
    let Some(head) = line.head()? else { return Ok(Next::Close) };
    let id = head.line.split(['/', ' ']).find_map(|word| word.parse().ok()).ok_or(ErrorKind::InvalidData)?;
    let plan = Plan::of(world.rules, id);
    let early = plan.deed == Deed::Early;
    if !early && !read_upload(line, &head)? {
        return Ok(Next::Close);
    }
    let next = answer(line, &plan, world)?;
    if early && !read_upload(line, &head)? {
        return Ok(Next::Close);
    }
    Ok(next)
}

fn read_upload(line: &mut Line, head: &Head) -> io::Result<bool> {
    line.skip(head.number("content-length").map_or(0, |bytes| bytes as usize))
}

fn answer(line: &mut Line, plan: &Plan, world: &World) -> io::Result<Next> {
    if let Deed::Cut { at, reset } = plan.deed {
        let mut left = at;
        for bytes in plan.writes() {
            let now = left.min(bytes.len());
            if now > 0 {
                line.send(&bytes[..now])?;
            }
            left -= now;
        }
        return Ok(if reset { Next::Reset } else { Next::Close });
    }
    for bytes in plan.writes() {
        line.send(&bytes)?;
        if plan.deed == Deed::Slow {
            thread::sleep(Duration::from_micros(plan.id % 3000));
        }
    }
    match plan.deed {
        Deed::SurplusAfter { pause_us } => {
            if pause_us > 0 {
                thread::sleep(Duration::from_micros(pause_us));
            }
            line.send(&stray("after", plan.id))?;
            world.note_stray(plan.id);
            spoilt(line, plan, world)?;
            Ok(Next::Close)
        }
        Deed::CloseAfter | Deed::LastOne | Deed::UntilClose => Ok(Next::Close),
        _ => Ok(Next::Exchange),
    }
}

/// A request here must have been sent before the stray response arrived; otherwise the connection should not have been
/// used.
fn spoilt(line: &mut Line, plan: &Plan, world: &World) -> io::Result<()> {
    if let Some(head) = line.head()?
        && head.number("x-sent").is_none_or(|sent| world.is_stray_before(plan.id, sent))
    {
        world.fault(format!(
            "a connection with an unrequested response was reused: {plan:?}, {:?}",
            head.line
        ));
    }
    Ok(())
}
