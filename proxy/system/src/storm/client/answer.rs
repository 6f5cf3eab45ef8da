//! Reads one HTTP/1.1 response to its end and passes it to the judge piece by piece.

use tokio::io::AsyncRead;
use tokio::sync::Notify;

use super::super::plan::Method;
use super::judge::{End, Head, Judge};
use super::wire::{AnswerHead, Framing, Stop, Wire};

/// The connection knows whether this is allowed.
pub(super) const NOTHING: End = End::Nothing { excused: false };

/// Reads the response to the request of `judge`. `gate` is opened when the request's body may follow. Returns how it
/// ended, and whether another response may follow.
pub(super) async fn answer<R: AsyncRead + Unpin>(
    wire: &mut Wire<R>,
    judge: &mut Judge,
    gate: &Notify,
) -> (End, bool) {
    let mut begun = false;
    let head = loop {
        let head = match wire.head(judge.plan.method == Method::Head).await {
            Ok(head) => head,
            Err(stop) => return (stopped(stop, wire, judge, begun), false),
        };
        let status = head.status;
        let coding = head.coding.as_deref();
        let seen = Head { status, token: head.token.as_deref(), idle: head.idle, coding };
        if (100..=199).contains(&status) && status != 101 {
            begun = true;
            judge.interim(&seen);
            if judge.is_faulty() || judge.is_untellable() {
                return (End::Cut, false);
            }
            if status == 100 {
                gate.notify_one();
            }
            continue;
        }
        gate.notify_one();
        if !judge.head(&seen) {
            return (End::Cut, false);
        }
        break head;
    };
    match body(wire, judge, &head).await {
        Ok(()) => (End::Complete, !head.last && !judge.is_faulty() && !judge.is_untellable()),
        Err(Stop::Hang) => {
            judge.hang();
            (End::Cut, false)
        }
        Err(Stop::Unreadable) => {
            judge.unreadable(&wire.received);
            (End::Cut, false)
        }
        Err(Stop::End | Stop::Broken | Stop::Enough) => (End::Cut, false),
    }
}

/// What it means that no head arrived.
fn stopped<R>(stop: Stop, wire: &Wire<R>, judge: &mut Judge, begun: bool) -> End {
    match stop {
        Stop::Hang => judge.hang(),
        Stop::Unreadable => judge.unreadable(&wire.received),
        Stop::End | Stop::Broken if wire.received.is_empty() && !begun => return NOTHING,
        _ => {}
    }
    End::Cut
}

async fn body<R: AsyncRead + Unpin>(
    wire: &mut Wire<R>,
    judge: &mut Judge,
    head: &AnswerHead,
) -> Result<(), Stop> {
    match head.framing {
        Framing::None => Ok(()),
        Framing::Counted(bytes) => counted(wire, judge, bytes).await,
        Framing::Chunked => chunked(wire, judge).await,
        Framing::Close => loop {
            match counted(wire, judge, usize::MAX).await {
                Err(Stop::End) => return Ok(()),
                done => done?,
            }
        },
    }
}

async fn counted<R: AsyncRead + Unpin>(
    wire: &mut Wire<R>,
    judge: &mut Judge,
    bytes: usize,
) -> Result<(), Stop> {
    let mut left = bytes;
    while left > 0 {
        let data = wire.some(left).await?;
        left -= data.len();
        if !judge.body(&data) {
            return Err(Stop::Enough);
        }
    }
    Ok(())
}

async fn chunked<R: AsyncRead + Unpin>(wire: &mut Wire<R>, judge: &mut Judge) -> Result<(), Stop> {
    loop {
        let line = wire.line().await?;
        let line = String::from_utf8_lossy(&line);
        let size = line.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(size, 16).map_err(|_| Stop::Unreadable)?;
        if size == 0 {
            break;
        }
        counted(wire, judge, size).await?;
        if !wire.line().await?.is_empty() {
            return Err(Stop::Unreadable);
        }
    }
    while !wire.line().await?.is_empty() {}
    Ok(())
}
