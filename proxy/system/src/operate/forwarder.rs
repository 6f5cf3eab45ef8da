//! A TCP port of this host that forwards to a unix socket, for clients without unix sockets.

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::Result;

/// It forwards until it is dropped.
pub(super) struct Forwarder {
    pub(super) address: SocketAddr,
    stop: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Forwarder {
    /// Forwards to the process that listens at `path` when a client connects.
    ///
    /// # Errors
    /// When no port is available.
    pub(super) fn start(path: PathBuf) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let accepting = thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                let path = path.clone();
                // If no process listens, the client's connection is closed.
                thread::spawn(move || forward(client, &path));
            }
        });
        Ok(Self { address, stop, accepting: Some(accepting) })
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // It waits for a client.
        if TcpStream::connect(self.address).is_ok()
            && let Some(accepting) = self.accepting.take()
        {
            let _ = accepting.join();
        }
    }
}

fn forward(client: TcpStream, path: &Path) -> io::Result<()> {
    let server = UnixStream::connect(path)?;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
    });
    let (mut from_server, mut to_client) = (server, client);
    let copied = io::copy(&mut from_server, &mut to_client);
    // The other direction too, because its client may wait for this end.
    let _ = to_client.shutdown(Shutdown::Both);
    copied.map(drop)
}
