//! Drives one connection: accepts its streams, reads what else the client says, and ends it in order or for a fault.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sluice_config::Limits;
use sluice_core::metrics::Event;
use sluice_http::http3::{Http3Code, Settings};
use sluice_net::deadline::Deadline;
use sluice_net::quic::Ended;

use super::channel::Channel;
use super::link::Link;
use super::own_control::OwnControl;
use super::transport::TransportWatch;
use super::uni::UniStreams;

/// The time within which streams arrive that a client had opened before it received the GOAWAY.
const LAST_STREAMS: Duration = Duration::from_secs(5);
/// How often a client with an open request is asked for a sign of life. The idle timeout that it wants may be shorter than
/// the time that the application needs.
const PING: Duration = Duration::from_secs(10);
/// The largest number of a request stream: nothing is refused yet.
const ANY_STREAM: u64 = (1 << 62) - 4;

/// The parameters of a connection.
pub(crate) struct Terms<'a> {
    pub(crate) limits: &'a Limits,
    pub(crate) link: Rc<Link>,
}

/// How far a connection has been shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It accepts streams.
    Open,
    /// The client was told to open no more.
    GoingAway,
    /// The client was told which of its streams are served.
    Told,
    /// It was closed.
    Closed,
}

/// How long a connection may be quiet.
struct Quiet {
    /// Until when it may be without streams.
    silence: Deadline,
    /// Until when a client with streams is not asked for a sign of life.
    ping: Deadline,
    is_idle: bool,
}

struct Driver<'a> {
    limits: &'a Limits,
    link: &'a Rc<Link>,
    uni: UniStreams,
    control: OwnControl,
    transport: TransportWatch,
    quiet: Quiet,
    end: End,
    told_at: Option<Instant>,
    /// Whether the handshake is complete, or has failed.
    is_settled: bool,
    streams: u64,
    /// The number of the next stream that the client opens.
    next: u64,
}

/// Serves a connection whose handshake is complete, or which has early data, until all its streams have ended and nothing is left to send. Each
/// stream is passed to `open`.
pub(crate) async fn serve(terms: &Terms<'_>, mut open: impl FnMut(Rc<Channel>)) {
    let (limits, link) = (terms.limits, &terms.link);
    link.metrics.count(Event::Http3Opened);
    let silence = Deadline::new(Duration::from_millis(limits.keep_alive_timeout_ms));
    let settings = Settings { field_section_bytes_max: limits.head_bytes_max as u64 };
    let mut driver = Driver {
        limits,
        link,
        uni: UniStreams::default(),
        control: OwnControl::new(&settings),
        transport: TransportWatch::new(link),
        quiet: Quiet { silence, ping: Deadline::new(PING), is_idle: true },
        end: End::Open,
        told_at: None,
        is_settled: false,
        streams: 0,
        next: 0,
    };
    poll_fn(|cx| driver.poll(cx, &mut open)).await;
    driver.transport.finish(link);
    // The streams notice the end.
    poll_fn(|cx| {
        link.control.register(cx);
        if link.control.live() > 0 { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
}

impl Driver<'_> {
    /// Ready when the connection has ended.
    fn poll(&mut self, cx: &mut Context<'_>, open: &mut impl FnMut(Rc<Channel>)) -> Poll<()> {
        self.link.control.register(cx);
        loop {
            let has_ended = self.link.connection.poll_drive(cx) == Poll::Ready(Ended);
            self.is_settled = self.is_settled || self.link.look_for_handshake();
            if has_ended {
                return Poll::Ready(());
            }
            if let Some(error) = self.link.connection.lost() {
                self.link.count_violation(&error);
                return Poll::Pending;
            }
            self.transport.look(self.link);
            self.link.look_for_abuse();
            let accepted = self.accept(open);
            self.uni.poll(cx, self.link, self.next);
            self.control.send(cx, self.link);
            self.link.send_rests(cx);
            self.look_for_ends();
            self.let_go();
            let must_go_on = self.poll_silence(cx);
            if !accepted && !must_go_on {
                // What was written since is sent now.
                match self.link.connection.poll_drive(cx) {
                    Poll::Ready(Ended) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
        }
    }

    /// Accepts the streams that were opened. Returns whether there were any.
    fn accept(&mut self, open: &mut impl FnMut(Rc<Channel>)) -> bool {
        let mut any = false;
        while let Some(id) = self.link.connection.accept_uni() {
            self.uni.add(id);
            any = true;
        }
        while let Some(id) = self.link.connection.accept() {
            any = true;
            self.streams += 1;
            self.next = u64::from(id) + 4;
            self.link.metrics.count(Event::Http3Stream);
            let is_late = self.told_at.is_some_and(|at| at.elapsed() > LAST_STREAMS);
            if is_late && self.end == End::GoingAway {
                self.end = End::Told;
                self.control.go_away(u64::from(id));
            }
            if self.end == End::Told && !self.link.is_leaving.get() {
                self.link.connection.reset(id, Http3Code::RequestRejected.number());
                self.link.connection.stop(id, Http3Code::RequestRejected.number());
                continue;
            }
            open(Channel::open(self.link, id));
        }
        any
    }

    /// Whether responses are still on their way: a close would cut them off.
    fn is_delivering(&mut self) -> bool {
        self.undelivered() > 0 && self.transport.has_sent(self.link)
    }

    /// Closes the connection of a client that has said that it leaves, and that has everything. Some clients wait for it.
    fn let_go(&mut self) {
        if self.link.is_leaving.get() && self.link.control.live() == 0 && self.end == End::Open {
            // Its last requests may have been overtaken.
            self.end = End::Told;
            self.quiet.silence.set(self.limits.half_close_timeout_ms);
        }
    }

    /// Streams of which the client has not acknowledged everything.
    fn undelivered(&self) -> usize {
        // The control stream never ends.
        self.link.connection.undelivered().saturating_sub(usize::from(self.control.is_open()))
    }

    /// Acts on requests to end the connection.
    fn look_for_ends(&mut self) {
        let enough = self.streams >= self.limits.requests_per_connection_max;
        if self.end == End::Open && (enough || self.link.control.is_ending()) {
            self.tell();
        }
    }

    /// Tells the client to open no more streams. Those that are on their way are still served.
    fn tell(&mut self) {
        self.end = End::GoingAway;
        self.told_at = Some(Instant::now());
        self.control.go_away(ANY_STREAM);
        if self.quiet.is_idle {
            self.quiet.silence.set(self.limits.half_close_timeout_ms);
        }
    }

    /// Ends what is silent for too long. Streams have separate deadlines. Returns whether there is something to send.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> bool {
        let quiet = &mut self.quiet;
        let idle = self.link.control.live() == 0;
        if idle != quiet.is_idle {
            quiet.is_idle = idle;
            let told = self.end != End::Open;
            let limits = self.limits;
            quiet.silence.set(if told { limits.half_close_timeout_ms } else { limits.keep_alive_timeout_ms });
            quiet.ping.touch();
        }
        if !idle {
            if quiet.ping.poll_elapsed(cx).is_ready() {
                self.link.connection.ping();
                quiet.ping.touch();
                return true;
            }
            return false;
        }
        if quiet.silence.poll_elapsed(cx).is_pending() {
            return false;
        }
        quiet.silence.set(self.limits.half_close_timeout_ms);
        if self.is_delivering() {
            return true;
        }
        match self.end {
            End::Open => self.tell(),
            End::GoingAway => {
                self.end = End::Told;
                self.control.go_away(self.next);
            }
            End::Told => {
                self.end = End::Closed;
                self.link.connection.close(Http3Code::NoError.number(), b"");
            }
            End::Closed => {}
        }
        true
    }
}
