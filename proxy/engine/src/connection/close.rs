//! Closes a connection so that the client gets everything that was sent, and no truncated response looks complete.

use super::Connection;

/// The response to a connection beyond the limit, sent before anything is read.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\
    Connection: close\r\n\r\n";

impl Connection {
    /// Finishes pending sends, half-closes, and with `linger` reads and drops what the client still sends: closing with
    /// unread bytes resets the connection, which may cost the client its response (RFC 9112 9.6).
    pub(super) async fn close(&mut self, linger: bool) {
        self.io.deadline.set(self.limits().keep_alive_timeout_ms);
        if !matches!(self.io.deadline.run(self.io.writer.settle(&self.io.deadline)).await, Some(Ok(()))) {
            // A body that ends with the connection would look complete to a client that reads on.
            self.io.writer.stream().reset_on_close();
            return;
        }
        let linger = linger || !self.io.reader.data().is_empty();
        if !linger {
            self.io.writer.stream().say_goodbye();
            return;
        }
        self.io.writer.stream().shutdown_write();
        let mut budget = self.limits().drain_bytes_max;
        self.io.deadline.set(self.limits().drain_body_timeout_ms);
        loop {
            let pending = self.io.reader.data().len();
            budget = budget.saturating_sub(pending as u64);
            self.io.reader.consume(pending);
            if budget == 0 {
                return;
            }
            match self.io.deadline.run(self.io.reader.fill(sluice_net::buffers::SMALL_BYTES)).await {
                Some(Ok(count)) if count > 0 => {}
                _ => return,
            }
        }
    }

    /// Rejects a client because there are too many connections.
    pub(crate) async fn turn_away(mut self) {
        self.io.writer.submit(TOO_MANY.to_vec(), 0);
        self.close(true).await;
    }

    /// Closes without a clean end.
    pub(super) async fn abort(&mut self, reset: bool) {
        if reset {
            self.io.writer.stream().reset_on_close();
            return;
        }
        // The pending bytes belong to a message whose framing shows the truncation; finish sending them.
        self.io.deadline.set(self.limits().half_close_timeout_ms);
        let _ = self.io.deadline.run(self.io.writer.settle(&self.io.deadline)).await;
    }
}
