//! The beginning of a session.

use std::future::poll_fn;
use std::io;

use rustls::ProtocolVersion;

use super::Session;

/// Room for the plain bytes behind a handshake.
const PLAIN_BYTES: usize = 8 * 1024;

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The connection broke, or ended in the middle.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// What the peer sent was not acceptable to us, or ours to it.
    #[error("{0}")]
    Tls(rustls::Error),
}

impl Session {
    /// Runs the handshake. Its last message of ours may still be leaving, or leave with the first bytes that are sent.
    /// The caller bounds the time.
    ///
    /// # Errors
    /// The peer has been sent the alert that fits.
    pub async fn handshake(&self) -> Result<(), HandshakeError> {
        loop {
            if let Some(error) = self.proceed() {
                // The alert, which tells more than the close.
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

    /// Whether all is agreed on. The last word of TLS 1.2 is the server's, and the client waits for it.
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

    /// Has rustls take what has come.
    fn proceed(&self) -> Option<rustls::Error> {
        let mut state = self.state.borrow_mut();
        state.feed();
        state.failed.clone()
    }

    /// Whether the peer has ended the session before it began.
    fn is_over(&self) -> bool {
        let mut state = self.state.borrow_mut();
        state.failed.is_none() && state.tls.is_handshaking() && state.has_ended()
    }
}
