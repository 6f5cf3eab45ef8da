//! The strict origin: accepts exactly what sluice writes, stores it by client, and responds to each request with a
//! number.

use std::collections::HashMap;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;

use super::answers::ANSWER_FIELD;
use super::forwarded::{self, Forwarded, Found};
use super::report::shown;
use super::server::{Server, receive};
use super::wire::Halt;

/// The method of requests that get their response after their head. Their bodies are still read: if the rest does not
/// arrive, or something else does, the connection must not be used again.
pub(super) const EARLY_METHOD: &[u8] = b"PUT";

/// A request and the number of its response.
#[derive(Clone, Debug)]
pub(super) struct Arrived {
    pub(super) number: u64,
    pub(super) request: Forwarded,
    /// Whether its body has arrived too.
    pub(super) is_whole: bool,
}

/// State shared by the connections.
struct Book {
    token: String,
    numbers: AtomicU64,
    arrived: Mutex<HashMap<Ipv4Addr, Vec<Arrived>>>,
    strays: Mutex<Vec<String>>,
}

/// The origin, listening.
pub(super) struct Origin {
    server: Server,
    book: Arc<Book>,
}

/// The progress of the request on a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Waiting,
    /// A 100 was sent.
    Continued,
    /// The response with this number was sent; the body is still arriving.
    Answered(u64),
}

impl Origin {
    /// Starts it; requests carry `token` in the field that sluice adds.
    ///
    /// # Errors
    /// When no address can be bound.
    pub(super) fn start(token: &str) -> Result<Self> {
        let book = Arc::new(Book {
            token: token.to_owned(),
            numbers: AtomicU64::new(1),
            arrived: Mutex::default(),
            strays: Mutex::default(),
        });
        let shared = Arc::clone(&book);
        Ok(Self { server: Server::start(move |stream| shared.serve(stream))?, book })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// Removes and returns the requests of this client, in order of arrival.
    pub(super) fn take(&self, client: Ipv4Addr) -> Vec<Arrived> {
        let mut arrived = self.book.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let mut requests = arrived.remove(&client).unwrap_or_default();
        requests.sort_by_key(|request| request.number);
        requests
    }

    /// Removes and returns all remaining requests, by client.
    pub(super) fn take_all(&self) -> HashMap<Ipv4Addr, Vec<Arrived>> {
        std::mem::take(&mut *self.book.arrived.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Removes and returns the bytes that were no request of sluice, each with the reason and the bytes before.
    pub(super) fn take_strays(&self) -> Vec<String> {
        std::mem::take(&mut *self.book.strays.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Book {
    /// Serves one connection of sluice.
    fn serve(&self, mut stream: TcpStream) {
        let mut received = Vec::new();
        let mut last = Vec::new();
        let mut progress = Progress::Waiting;
        loop {
            match forwarded::read(&received, &self.token) {
                Ok(Found::Whole(request, end)) => {
                    last = received.drain(..end).collect();
                    match std::mem::replace(&mut progress, Progress::Waiting) {
                        Progress::Answered(number) => self.complete(number, request),
                        _ if stream.write_all(&self.note(request, true).1).is_err() => return,
                        _ => {}
                    }
                    continue;
                }
                Ok(Found::Head(request))
                    if progress == Progress::Waiting && request.method == EARLY_METHOD =>
                {
                    let (number, answer) = self.note(request, false);
                    progress = Progress::Answered(number);
                    if stream.write_all(&answer).is_err() {
                        return;
                    }
                }
                Ok(Found::Head(request)) if progress == Progress::Waiting && request.expects_continue => {
                    progress = Progress::Continued;
                    if stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").is_err() {
                        return;
                    }
                }
                Ok(Found::Head(_)) | Err(Halt::Short) => {}
                Err(Halt::Invalid(reason)) => return self.stray(&reason, &received, &last),
            }
            if !receive(&mut stream, &mut received) {
                break;
            }
        }
        let cut = matches!(forwarded::read(&received, &self.token), Ok(Found::Head(_)));
        if !(received.is_empty() || cut) {
            self.stray("a head that ends with its connection", &received, &last);
        }
    }

    /// Stores a request and returns its response, with its number.
    fn note(&self, request: Forwarded, is_whole: bool) -> (u64, Vec<u8>) {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let is_head = request.method == b"HEAD";
        let body = format!("answer {number}\n");
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        arrived.entry(request.client).or_default().push(Arrived { number, request, is_whole });
        drop(arrived);
        let head = format!("HTTP/1.1 200 OK\r\n{ANSWER_FIELD}: {number}\r\n");
        let (framing, body) = match number % 2 {
            0 => {
                ("Transfer-Encoding: chunked".to_owned(), format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()))
            }
            _ => (format!("Content-Length: {}", body.len()), body),
        };
        let body = if is_head { "" } else { &body };
        (number, format!("{head}{framing}\r\n\r\n{body}").into_bytes())
    }

    /// Adds the body of a request that was answered before, unless its case has been judged already.
    fn complete(&self, number: u64, request: Forwarded) {
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let known =
            arrived.get_mut(&request.client).and_then(|all| all.iter_mut().find(|one| one.number == number));
        if let Some(known) = known {
            *known = Arrived { number, request, is_whole: true };
        }
    }

    fn stray(&self, reason: &str, bytes: &[u8], last: &[u8]) {
        let text = format!("{reason}\n    {}\n  behind\n    {}", shown(bytes), shown(last));
        self.strays.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
}
