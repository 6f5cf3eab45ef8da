//! Serves the runner's connections by sessions of another version, message by message.

use std::collections::HashMap;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::translate::{Message, translate};

/// Interval between checks that the runner is still connected.
pub(super) const LOOK: Duration = Duration::from_millis(50);
const PIECE: usize = 64 * 1024;

/// A connection to the proxy, in another version.
pub(super) trait Session {
    /// Sends a request on a new stream and writes the response to the runner; returns whether both were completed, and
    /// others may follow.
    fn exchange(&mut self, message: &Message, client: &mut TcpStream) -> Result<bool>;
}

/// Connects to the proxy.
type Open = dyn Fn() -> Result<Box<dyn Session>> + Send + Sync;

/// Messages for the bytes of a case; anything else is a valid request, and is translated.
pub(super) struct Plans {
    pub(super) open: Box<Open>,
    pub(super) plans: HashMap<Vec<u8>, Vec<Message>>,
}

impl Plans {
    /// Serves one connection of the runner with one connection to the proxy. It closes after an incomplete response, so
    /// that this is visible.
    ///
    /// # Errors
    /// When either side breaks.
    pub(super) fn serve(&self, mut client: TcpStream, carried: &AtomicUsize) -> Result<()> {
        let mut session = (self.open)()?;
        let (mut bytes, mut piece) = (Vec::new(), vec![0; PIECE]);
        loop {
            let count = client.read(&mut piece)?;
            if count == 0 {
                return Ok(());
            }
            bytes.extend_from_slice(&piece[..count]);
            let planned = self.plans.get(&bytes);
            let messages = match planned {
                Some(messages) => messages.clone(),
                None if self.begins_a_plan(&bytes) => continue,
                None => translate(&bytes, true).map_err(|why| anyhow!(why))?,
            };
            bytes.clear();
            for message in &messages {
                let whole = session.exchange(message, &mut client)?;
                carried.fetch_add(1, Ordering::Relaxed);
                if !whole || message.last {
                    return Ok(());
                }
            }
            if planned.is_some() {
                return Ok(());
            }
        }
    }

    fn begins_a_plan(&self, bytes: &[u8]) -> bool {
        self.plans.keys().any(|plan| plan.starts_with(bytes))
    }
}

/// Whether the runner has closed.
pub(super) fn is_gone(client: &TcpStream) -> Result<bool> {
    client.set_nonblocking(true)?;
    let looked = client.peek(&mut [0]);
    client.set_nonblocking(false)?;
    Ok(match looked {
        Ok(count) => count == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    })
}
