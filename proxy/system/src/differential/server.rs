//! A listener with one thread per connection, stopped when dropped. The handler determines the protocol.

use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::Result;

/// Address of our origins. Not the address of sluice, nor that of a client.
const IP: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
const READ_BYTES: usize = 16 * 1024;

/// A running listener.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    ends: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    /// Accepts until the server is dropped; each connection has its own thread for as long as the peer keeps it open.
    ///
    /// # Errors
    /// When no address can be bound.
    pub(super) fn start(handler: impl Fn(TcpStream) + Send + Sync + 'static) -> Result<Self> {
        let listener = TcpListener::bind((IP, 0))?;
        let address = listener.local_addr()?;
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        let handler = Arc::new(handler);
        let accepting = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let handler = Arc::clone(&handler);
                thread::spawn(move || handler(stream));
            }
        });
        Ok(Self { address, ends, accepting: Some(accepting) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // Wakes the accept; if this fails it has ended already.
        let woken = TcpStream::connect(self.address).is_ok();
        if let (true, Some(accepting)) = (woken, self.accepting.take()) {
            let _ = accepting.join();
        }
    }
}

/// Appends the next bytes; false at the end of the stream.
pub(super) fn receive(stream: &mut TcpStream, received: &mut Vec<u8>) -> bool {
    let mut buffer = [0; READ_BYTES];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return false,
            Ok(count) => {
                received.extend_from_slice(&buffer[..count]);
                return true;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
}
