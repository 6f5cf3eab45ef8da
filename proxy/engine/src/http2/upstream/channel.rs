//! One exchange on a shared connection, as a [`stream::Channel`].

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use ::http::uri::Scheme;
use bytes::Bytes;
use h2::client::SendRequest;
use sluice_net::stream::{self, Peer, Verdict};

use super::Shared;
use super::receiving::Receiving;
use super::sending::Sending;

/// An exchange that is given up after hearing nothing for as long makes its connection suspect.
const SUSPECT_AFTER: Duration = Duration::from_secs(1);

struct Directions {
    sending: Sending,
    /// Since the head has gone out.
    receiving: Option<Receiving>,
    /// The head could not be sent, so nothing was.
    failed: bool,
    /// Who waits for the head to be sent.
    reader: Option<Waker>,
    /// When the head was sent, and how much the connection had received by then.
    begun: Option<(Instant, u32)>,
}

/// A stream of a shared connection: it is there when its request is sent.
pub(crate) struct Channel {
    shared: Rc<Shared>,
    ways: RefCell<Directions>,
}

impl Channel {
    pub(super) fn new(shared: &Rc<Shared>, sender: SendRequest<Bytes>, scheme: Scheme) -> Rc<Self> {
        shared.control.enter();
        let sending = Sending::new(sender, scheme);
        let ways = Directions { sending, receiving: None, failed: false, reader: None, begun: None };
        Rc::new(Self { shared: Rc::clone(shared), ways: RefCell::new(ways) })
    }

    /// Whether the connection has said nothing at all since the request was sent on it, for so long that it may be dead
    /// without our knowing.
    fn is_suspect(&self, ways: &Directions) -> bool {
        let awaited = ways.receiving.as_ref().is_some_and(Receiving::is_awaited);
        let silent = |(at, received): (Instant, u32)| {
            received == self.shared.received.get() && at.elapsed() >= SUSPECT_AFTER
        };
        awaited && ways.begun.is_some_and(silent)
    }
}

impl stream::Channel for Channel {
    fn peer(&self) -> Peer {
        Peer::Endpoint
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        let ways = &mut *self.ways.borrow_mut();
        match &mut ways.receiving {
            Some(receiving) => receiving.poll(cx, buf),
            None if ways.failed => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            None => {
                ways.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn push(&self, buf: &mut Vec<u8>, start: usize) -> io::Result<usize> {
        let ways = &mut *self.ways.borrow_mut();
        let mut begun = None;
        let outcome = ways.sending.push(&buf[start..], &mut begun);
        if let Some(begun) = begun {
            ways.receiving = Some(Receiving::new(begun));
            ways.begun = Some((Instant::now(), self.shared.received.get()));
        }
        ways.failed = ways.receiving.is_none();
        ways.reader.take().into_iter().for_each(Waker::wake);
        outcome
    }

    fn poll_room(&self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<()>> {
        self.ways.borrow_mut().sending.poll_room(cx, wanted)
    }

    fn verdict(&self) -> Option<Verdict> {
        let ways = self.ways.borrow();
        let ended = |way: fn(&Receiving) -> bool| ways.receiving.as_ref().is_some_and(way);
        match () {
            () if ways.failed || ended(Receiving::is_refused) => Some(Verdict::Refused),
            () if ended(Receiving::is_cancelled) => Some(Verdict::Cancelled),
            () => None,
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let suspect = self.is_suspect(&self.ways.borrow());
        let ways = self.ways.get_mut();
        if !(ways.sending.is_done() && ways.receiving.as_ref().is_some_and(Receiving::is_whole)) {
            ways.sending.cancel();
        }
        if suspect {
            self.shared.control.end();
        }
        self.shared.control.leave();
    }
}
