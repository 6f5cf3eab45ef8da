//! What a transfer is told by those who hold its body until it is whole.

use super::{BodyError, Transfer};

impl Transfer {
    /// Has the body leave as it is, without chunks; what frames it is decided once it is whole.
    pub(crate) fn unframe(&mut self) {
        self.chunked = false;
    }

    /// Takes no more than `bytes_max` bytes, if that is less than before.
    ///
    /// # Errors
    /// `TooLarge` if more are declared.
    pub(crate) fn limit(&mut self, bytes_max: u64) -> Result<(), BodyError> {
        self.bytes_max = self.bytes_max.min(bytes_max);
        match self.remaining() {
            Some(bytes) if self.bytes.saturating_add(bytes) > self.bytes_max => Err(BodyError::TooLarge),
            _ => Ok(()),
        }
    }
}
