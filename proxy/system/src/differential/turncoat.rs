//! The origin for cases of responses: it answers each request of a case with the case's bytes, and any other one
//! correctly.

use std::collections::HashMap;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use nix::sys::socket::{setsockopt, sockopt};

use super::answers::ANSWER_FIELD;
use super::forwarded::{self, Forwarded, Found};
use super::grammar::Case;
use super::report::shown;
use super::server::{Server, receive};

/// Prefix of the target of a request that gets the bytes of a case.
pub(super) const CASE_PATH: &str = "/case";

/// What the origin does after the bytes of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It waits for the next request.
    Open,
    Close,
    Reset,
}

/// The response to one client's request.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) case: Case,
    pub(super) ending: Ending,
}

struct Book {
    token: String,
    numbers: AtomicU64,
    scripts: Mutex<HashMap<Ipv4Addr, Script>>,
    /// The numbers of regular responses, by client.
    answered: Mutex<HashMap<Ipv4Addr, u64>>,
    strays: Mutex<Vec<String>>,
}

/// The origin, listening.
pub(super) struct Turncoat {
    server: Server,
    book: Arc<Book>,
}

impl Turncoat {
    /// Starts it; requests carry `token` in the field that sluice adds.
    ///
    /// # Errors
    /// When no address can be bound.
    pub(super) fn start(token: &str) -> Result<Self> {
        let book = Arc::new(Book {
            token: token.to_owned(),
            numbers: AtomicU64::new(1),
            scripts: Mutex::default(),
            answered: Mutex::default(),
            strays: Mutex::default(),
        });
        let shared = Arc::clone(&book);
        Ok(Self { server: Server::start(move |stream| shared.serve(stream))?, book })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// Sets the response for the client at this address.
    pub(super) fn prepare(&self, client: Ipv4Addr, script: Script) {
        self.book.scripts.lock().unwrap_or_else(PoisonError::into_inner).insert(client, script);
    }

    /// Forgets the client; returns the number of the last regular response to it, if there was one.
    pub(super) fn settle(&self, client: Ipv4Addr) -> Option<u64> {
        self.book.scripts.lock().unwrap_or_else(PoisonError::into_inner).remove(&client);
        self.book.answered.lock().unwrap_or_else(PoisonError::into_inner).remove(&client)
    }

    /// Removes and returns the bytes that were no request of sluice.
    pub(super) fn take_strays(&self) -> Vec<String> {
        std::mem::take(&mut *self.book.strays.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Book {
    /// Serves one connection of sluice.
    fn serve(&self, mut stream: TcpStream) {
        if stream.set_nodelay(true).is_err() {
            return;
        }
        let mut received = Vec::new();
        loop {
            match forwarded::read(&received, &self.token) {
                Ok(Found::Whole(request, end)) => {
                    received.drain(..end);
                    if !self.answer(&mut stream, &request) {
                        return;
                    }
                }
                Err(super::wire::Halt::Invalid(reason)) => {
                    let text = format!("{reason}\n    {}", shown(&received));
                    return self.strays.lock().unwrap_or_else(PoisonError::into_inner).push(text);
                }
                _ if !receive(&mut stream, &mut received) => return,
                _ => {}
            }
        }
    }

    /// Answers a request; false if the connection should end.
    fn answer(&self, stream: &mut TcpStream, request: &Forwarded) -> bool {
        let script =
            self.scripts.lock().unwrap_or_else(PoisonError::into_inner).get(&request.client).cloned();
        match script.filter(|_| request.target.starts_with(CASE_PATH.as_bytes())) {
            Some(script) => play(stream, &script),
            None => stream.write_all(&self.proper(request)).is_ok(),
        }
    }

    fn proper(&self, request: &Forwarded) -> Vec<u8> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.answered.lock().unwrap_or_else(PoisonError::into_inner).insert(request.client, number);
        let body = format!("answer {number}\n");
        format!("HTTP/1.1 200 OK\r\n{ANSWER_FIELD}: {number}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            .into_bytes()
    }
}

fn play(stream: &mut TcpStream, script: &Script) -> bool {
    for write in script.case.writes() {
        // sluice may have refused the response and closed.
        if stream.write_all(write).is_err() {
            return false;
        }
        std::thread::yield_now();
    }
    if script.ending == Ending::Reset {
        // Without lingering, unsent bytes are discarded and the peer is reset.
        let at_once = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        let _ = setsockopt(stream, sockopt::Linger, &at_once);
    }
    script.ending == Ending::Open
}
