//! The steps of a client and an origin in one exchange, and what the client received.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::equivalence::shown;
use crate::proxy_support::{Message, Origin, PATIENCE, Peer, Wire, ok};

/// One step of the origin.
#[derive(Clone, Debug)]
pub(super) enum Act {
    /// One write, or as many as the kernel splits it into.
    Send(Vec<u8>),
    /// Receives the request's body.
    Body,
    /// Receives until the connection ends.
    Rest,
    /// Waits for the client's `Go`.
    AwaitGo,
    Close,
    Reset,
}

/// One step of the client.
#[derive(Clone, Debug)]
pub(super) enum Do {
    Send(Vec<u8>),
    /// Lets the origin continue.
    Go,
    /// Waits until the origin has finished its steps.
    AwaitOrigin,
    /// Receives a complete response.
    Response,
    /// Receives a response head.
    Head,
    /// Receives this many more bytes.
    Take(usize),
    /// Receives everything up to the end.
    Rest,
    /// The same where a reset may discard some of it.
    SomeRest,
    HalfClose,
    Reset,
    /// Another request on this connection, which gets its response.
    Another,
}

/// State shared by both sides of one exchange.
#[derive(Default)]
pub(super) struct Play {
    acts: Vec<Act>,
    told: Mutex<Told>,
    changed: Condvar,
}

#[derive(Default)]
struct Told {
    go: bool,
    done: bool,
}

impl Play {
    fn tell(&self, what: impl FnOnce(&mut Told)) {
        what(&mut self.told.lock().unwrap());
        self.changed.notify_all();
    }

    fn wait(&self, what: &str, told: impl Fn(&Told) -> bool) {
        let guard = self.told.lock().unwrap();
        let (guard, waited) = self.changed.wait_timeout_while(guard, PATIENCE, |now| !told(now)).unwrap();
        // Otherwise the other side would only report a poisoned lock.
        drop(guard);
        assert!(!waited.timed_out(), "timed out waiting for {what}");
    }
}

/// The exchanges to play, by the last word of their targets.
#[derive(Clone, Default)]
pub(super) struct Plays(Arc<Mutex<HashMap<String, Arc<Play>>>>);

impl Plays {
    /// Sets the origin's steps for the next requests for `name`.
    pub(super) fn set(&self, name: &str, acts: &[Act]) -> Arc<Play> {
        let play = Arc::new(Play { acts: acts.to_vec(), ..Play::default() });
        self.0.lock().unwrap().insert(name.to_owned(), Arc::clone(&play));
        play
    }

    /// An origin that plays them, and responds to anything else with the target.
    pub(super) fn origin(&self) -> Origin {
        let plays = self.clone();
        Origin::playing(move |mut peer| {
            while let Ok(mut request) = peer.try_head() {
                let name = request.target().rsplit('/').next().unwrap_or_default().to_owned();
                let play = plays.0.lock().unwrap().get(&name).cloned();
                match play {
                    Some(play) => {
                        let mut acts = play.acts.iter();
                        let last = acts.find_map(|act| perform(&mut peer, &mut request, act, &play));
                        play.tell(|told| told.done = true);
                        match last {
                            Some(Last::Reset) => return peer.reset(),
                            Some(Last::Close) => return,
                            None => {}
                        }
                    }
                    None => {
                        peer.body(&mut request, true);
                        if peer.try_send(ok(request.target())).is_err() {
                            return;
                        }
                    }
                }
            }
        })
    }
}

enum Last {
    Close,
    Reset,
}

fn perform(peer: &mut Peer, request: &mut Message, act: &Act, play: &Play) -> Option<Last> {
    match act {
        Act::Send(bytes) => peer.try_send(bytes).is_err().then_some(Last::Close),
        Act::Body => {
            peer.body(request, true);
            None
        }
        Act::Rest => {
            peer.rest();
            Some(Last::Close)
        }
        Act::AwaitGo => {
            play.wait("the client", |told| told.go);
            None
        }
        Act::Close => Some(Last::Close),
        Act::Reset => Some(Last::Reset),
    }
}

/// A connection, with a small receive buffer if one is given.
pub(super) fn connect(address: SocketAddr, receive_buffer: Option<usize>) -> Wire {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    if let Some(bytes) = receive_buffer {
        SockRef::from(&socket).set_recv_buffer_size(bytes).unwrap();
    }
    socket.connect(&address.into()).unwrap();
    TcpStream::from(socket).into()
}

/// Performs all steps; returns what was received.
pub(super) fn play(wire: Wire, does: &[Do], play: &Play) -> Vec<String> {
    let (mut seen, mut wire) = (Vec::new(), Some(wire));
    for one in does {
        if let Do::Reset = one {
            wire.take().unwrap().reset();
            continue;
        }
        if let Do::Go = one {
            play.tell(|told| told.go = true);
            continue;
        }
        let wire = wire.as_mut().expect("a reset comes last");
        match one {
            // The response may arrive, and the connection end, before everything is sent.
            Do::Send(bytes) => drop(wire.try_send(bytes)),
            Do::AwaitOrigin => play.wait("the origin", |told| told.done),
            Do::Response => seen.push(shown(&wire.response())),
            Do::Head => seen.push(shown(&wire.head())),
            Do::Take(count) => seen.push(text(&wire.take(*count))),
            Do::Rest => {
                let (bytes, clean) = wire.rest();
                seen.push(format!("to the end, clean: {clean}: {}", text(&bytes)));
            }
            Do::SomeRest => {
                wire.rest();
                seen.push("to some end".to_owned());
            }
            Do::HalfClose => wire.finish(),
            Do::Go | Do::Reset => {}
            Do::Another => seen
                .push(shown(&wire.ask("GET /another HTTP/1.1\r\nHost: a\r\nX-Request-Id: another\r\n\r\n"))),
        }
    }
    seen
}

fn text(bytes: &[u8]) -> String {
    format!("{} bytes {}", bytes.len(), String::from_utf8_lossy(bytes))
}
