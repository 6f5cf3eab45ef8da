//! Sends a buffered body, first from memory and then from its file.

use sluice_core::budget::Share;
use sluice_http::Trailers;
use sluice_net::buffers::{Appetite, Buffers, SMALL_BYTES};
use sluice_net::deadline::Deadline;
use sluice_net::stream::Writer;

use super::file::File;
use crate::opening::Opening;

/// A head and the complete body after it. The part in memory comes first and is sent by the caller, or by
/// [`Message::send`]; the rest is read from the file in the meantime.
pub(crate) struct Message {
    /// The part of head and body in memory. Empty while it is being sent.
    first: Vec<u8>,
    share: Share,
    file: Option<File>,
    /// Bytes after those of the file.
    after: Vec<u8>,
    /// Trailers, if they are not sent as bytes.
    trailers: Trailers,
    /// Bytes of the file that were passed to the writer.
    sent: u64,
    bytes: u64,
}

/// Why a message cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendError {
    /// The receiver is gone.
    Unwritable,
    /// The file cannot be read.
    Disk,
}

impl Message {
    pub(super) fn new(
        first: Vec<u8>,
        share: Share,
        (file, after): (Option<File>, Vec<u8>),
        trailers: Trailers,
    ) -> Self {
        let behind = file.as_ref().map_or(0, |file| file.bytes() + after.len() as u64);
        let bytes = first.len() as u64 + behind;
        Self { first, share, file, after, trailers, sent: 0, bytes }
    }

    /// The size of the whole message in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The trailers after it, if they are not sent as bytes.
    pub(crate) fn trailers(&self) -> &Trailers {
        &self.trailers
    }

    /// Whether there is a file with bytes that were not passed to a writer.
    pub(crate) fn has_rest(&self) -> bool {
        self.file.as_ref().is_some_and(|file| self.sent < file.bytes())
    }

    /// Whether a part of the file was passed to a writer, which has then sent everything before it.
    pub(crate) fn has_begun_rest(&self) -> bool {
        self.sent > 0
    }

    /// Takes the part in memory, to be sent. Sending then starts over.
    pub(crate) fn take_first(&mut self) -> Vec<u8> {
        self.sent = 0;
        std::mem::take(&mut self.first)
    }

    /// Sends everything once, after the head in `opening`. The last piece may still be in flight on return.
    pub(crate) async fn send(
        &mut self,
        mut opening: Opening,
        writer: &mut Writer,
        deadline: &Deadline,
        buffers: &Buffers,
    ) -> Result<(), SendError> {
        writer.settle(deadline).await.map_err(|_| SendError::Unwritable)?;
        opening.bytes = std::mem::take(&mut self.first);
        opening.submit(writer, (!self.has_rest()).then_some(&self.trailers));
        self.send_rest(writer, deadline, buffers, false).await?;
        writer.quieten(deadline).await.map_err(|_| SendError::Unwritable)?;
        writer.shrink(SMALL_BYTES);
        self.share.release();
        Ok(())
    }

    /// Sends the file after what was submitted before, which is kept if it may have to be sent again. The last piece
    /// may still be in flight on return.
    ///
    /// While a piece is being sent, only the next one is read.
    pub(crate) async fn send_rest(
        &mut self,
        writer: &mut Writer,
        deadline: &Deadline,
        buffers: &Buffers,
        keep: bool,
    ) -> Result<(), SendError> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let appetite = Appetite::new(buffers, Some(file.bytes()), SMALL_BYTES);
        let mut buf = Vec::new();
        while self.sent < file.bytes() {
            let read = file.read(buf, appetite.bytes(), self.sent).await;
            let mut piece = read.map_err(|_| SendError::Disk)?;
            let count = piece.len() as u64;
            if self.sent + count == file.bytes() {
                piece.extend_from_slice(&self.after);
            }
            writer.settle(deadline).await.map_err(|_| SendError::Unwritable)?;
            // No await from here to the submission: if dropped in between, a piece would be counted and lost.
            buf = match (self.sent, keep) {
                (0, true) => {
                    self.first = writer.take_sent();
                    Vec::new()
                }
                (0, false) => {
                    self.share.release();
                    writer.spare_for(appetite.bytes())
                }
                _ => writer.spare_for(appetite.bytes()),
            };
            self.sent += count;
            if self.has_rest() {
                writer.submit(piece, 0);
            } else {
                writer.submit_last(piece, 0, &self.trailers);
            }
        }
        Ok(())
    }
}
