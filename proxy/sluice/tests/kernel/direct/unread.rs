//! Clients that keep sending requests and read nothing: memory, not only bytes, is limited.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use socket2::{Domain, Protocol, Socket, Type};

use super::{LANDED, exchanges, missed, returning};
use crate::proxy_support::{Origin, Setup, Wire};
use crate::support::wait_for;

const CLIENTS: usize = 4;
const REQUESTS: usize = 250;
const RECEIVE_BUFFER: usize = 2304;
/// Allowed memory beyond their bytes for the responses to one client: while its own buffer fills, and then in its
/// queue.
const SLACK_MAX: f64 = 3.0 * 262_144.0;
/// Its second line is cut out, so the response consists of two pieces.
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 10\r\n\r\n0123456789";

#[test]
#[ignore = "needs root and BPF"]
fn unread_small_responses_take_limited_memory() {
    let asked = Arc::<AtomicUsize>::default();
    let counter = Arc::clone(&asked);
    let origin = Origin::answering(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
        ANSWER.to_vec()
    });
    let proxy = returning(Setup::to_origin(&origin), 0).start().unwrap();
    let mut clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
            socket.set_recv_buffer_size(RECEIVE_BUFFER).unwrap();
            socket.connect(&proxy.address().into()).unwrap();
            Wire::from(std::net::TcpStream::from(socket))
        })
        .collect();
    for turn in 0..REQUESTS {
        for (number, client) in clients.iter_mut().enumerate() {
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            wait_for("the request to come to the origin", || {
                asked.load(Ordering::Relaxed) > turn * CLIENTS + number
            });
        }
    }
    for client in &mut clients {
        for _ in 0..REQUESTS {
            let answer = client.response();
            assert_eq!((answer.status(), answer.text()), (200, "0123456789"));
        }
    }
    let (returned, slack) = (exchanges(&proxy), proxy.metric("sluice_bypass_slack_bytes_total"));
    assert_eq!(returned > 0.0, LANDED, "{}", missed(&proxy));
    assert!(slack <= CLIENTS as f64 * SLACK_MAX, "{slack} bytes for {returned} responses");
    let refused = proxy.metric("sluice_direct_return_missed_total{reason=\"slack\"}");
    assert_eq!(refused > 0.0, LANDED, "{slack} bytes for {returned} responses: {}", missed(&proxy));
}
