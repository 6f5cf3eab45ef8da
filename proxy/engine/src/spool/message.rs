//! Sends a held body on, from memory and then from its file.

use sluice_core::budget::Share;
use sluice_http::Trailers;
use sluice_net::buffers::{Appetite, Buffers, SMALL_BYTES};
use sluice_net::deadline::Deadline;
use sluice_net::stream::Writer;

use super::file::File;
use crate::opening::Opening;

/// A head and the whole body behind it. What is in memory comes first and is sent by the caller, or by
/// [`Message::send`]; the rest is read from the file meanwhile.
pub(crate) struct Message {
    /// Head and body as far as they are in memory. Empty while it is sent.
    first: Vec<u8>,
    share: Share,
    file: Option<File>,
    /// What comes behind the file.
    after: Vec<u8>,
    /// Trailers, where they are no bytes.
    trailers: Trailers,
    /// Bytes of the file that were handed to the writer.
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

    /// Bytes of all of it.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The trailers behind it, where they are no bytes.
    pub(crate) fn trailers(&self) -> &Trailers {
        &self.trailers
    }

    /// Whether there is a file, and bytes of it that no writer has.
    pub(crate) fn has_rest(&self) -> bool {
        self.file.as_ref().is_some_and(|file| self.sent < file.bytes())
    }

    /// Whether part of the file was handed to a writer, which has sent all before it then.
    pub(crate) fn has_begun_rest(&self) -> bool {
        self.sent > 0
    }

    /// The part in memory, to be sent. What was sent of the file is forgotten.
    pub(crate) fn take_first(&mut self) -> Vec<u8> {
        self.sent = 0;
        std::mem::take(&mut self.first)
    }

    /// Sends all of it, for once, behind what `opening` has of a head. The last piece may still be under way when this
    /// returns.
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

    /// Sends the file behind what was submitted before, which is kept if it may have to be sent again. The last piece
    /// may still be under way when this returns.
    ///
    /// While a piece leaves the next one is read, never more.
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
            // From here to the submission nothing waits: dropped in between, a piece would be counted and lost.
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
