//! The start of a session.

use std::future::poll_fn;
use std::io;

use rustls::ProtocolVersion;

use super::Session;

/// Room for plaintext bytes that follow a handshake.
const PLAIN_BYTES: usize = 8 * 1024;

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The connection broke or ended before the handshake was complete.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A message of the peer was not acceptable to us, or one of ours to it.
    #[error("{0}")]
    Tls(rustls::Error),
}

impl Session {
    /// Runs the handshake. Our last handshake message may still be in progress, or be sent with the first data. The
    /// caller limits the time.
    ///
    /// # Errors
    /// The handshake failed. The peer has been sent the matching alert.
    pub async fn handshake(&self) -> Result<(), HandshakeError> {
        loop {
            if let Some(error) = self.proceed() {
                // Send the alert, which tells more than the close.
                drop(self.flush().await);
                return Err(HandshakeError::Tls(error));
            }
            if self.is_done() {
                return Ok(());
            }
            self.flush().await?;
            poll_fn(|cx| self.state.borrow_mut().poll_records(cx, &self.below, PLAIN_BYTES)).await?;
            if self.is_over() {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }

    /// Whether the handshake is complete. In TLS 1.2 the server sends the last message, and the client waits for it.
    fn is_done(&self) -> bool {
        let mut state = self.state.borrow_mut();
        if state.tls.is_handshaking() {
            return false;
        }
        if state.tls.protocol_version() == Some(ProtocolVersion::TLSv1_2) {
            state.transmit(&self.below, true);
        }
        true
    }

    /// Feeds the received records to rustls, and returns its error.
    fn proceed(&self) -> Option<rustls::Error> {
        let mut state = self.state.borrow_mut();
        state.feed();
        state.failed.clone()
    }

    /// Whether the peer ended the session before the handshake was complete.
    fn is_over(&self) -> bool {
        let mut state = self.state.borrow_mut();
        state.failed.is_none() && state.tls.is_handshaking() && state.has_ended()
    }
}
