//! What the code that buffers a body changes in its transfer.

use super::{BodyError, Transfer};

impl Transfer {
    /// Sends the body without chunks; its framing is decided once the body is complete.
    pub(crate) fn unframe(&mut self) {
        self.chunked = false;
    }

    /// Lowers the maximum to `bytes_max` bytes, if that is less than before.
    ///
    /// # Errors
    /// `TooLarge` if more bytes are declared.
    pub(crate) fn limit(&mut self, bytes_max: u64) -> Result<(), BodyError> {
        self.bytes_max = self.bytes_max.min(bytes_max);
        match self.remaining() {
            Some(bytes) if self.bytes.saturating_add(bytes) > self.bytes_max => Err(BodyError::TooLarge),
            _ => Ok(()),
        }
    }
}
