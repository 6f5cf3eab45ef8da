//! Sends the parts of a file after the head of its response.

use std::io;
use std::rc::Rc;

use sluice_core::error::Reason;
use sluice_http::{ByteRange, Trailers};
use sluice_net::buffers::{Appetite, SMALL_BYTES};
use sluice_ring as ring;

use super::Connection;
use super::files::report;
use crate::files::Plan;
use crate::opening::Opening;
use crate::progress::Progress;

/// Bytes that are looked at and sent at once, so that others have their turn.
const STEP_BYTES: u64 = 512 * 1024;

/// What has happened to a file that has no more bytes.
const SHORTER: &str = "it became shorter while it was sent";

impl Connection {
    /// Sends the head and all parts. The last bytes may still be in flight on return.
    ///
    /// # Errors
    /// Why the body is not complete.
    pub(super) async fn send_parts(
        &mut self,
        opening: Opening,
        plan: &Plan,
        file: &ring::Fd,
        progress: &mut Progress,
    ) -> Result<(), Reason> {
        let out = opening.begin(&mut self.io.writer, false).map_err(|_| Reason::ClientGone)?;
        match plan.only_part().filter(|_| self.io.writer.stream().is_socket()) {
            Some(part) => self.send_pages(out, part, file, progress).await,
            None => self.copy_parts(out, plan, file, progress).await,
        }
    }

    /// Sends the kernel's pages of a file, and reads those that are not in memory.
    async fn send_pages(
        &mut self,
        mut out: Vec<u8>,
        part: ByteRange,
        file: &ring::Fd,
        progress: &mut Progress,
    ) -> Result<(), Reason> {
        let (mut at, end) = (part.first, part.last + 1);
        let mut appetite = None;
        let worker = Rc::clone(&self.worker);
        while at < end {
            let step = STEP_BYTES.min(end - at);
            if ring::is_resident(file, at, step) == Some(true) {
                let head = std::mem::take(&mut out);
                let io = &mut self.io;
                let sent =
                    io.deadline.run(io.writer.send_file(head, file, at..at + step, &io.deadline)).await;
                sent.ok_or(Reason::ClientStalled)?.map_err(|error| self.blame(&error))?;
                progress.bytes_out += step;
                at += step;
                if at < end {
                    tokio::task::yield_now().await;
                }
                continue;
            }
            let buffers = &worker.resources().buffers;
            let appetite =
                appetite.get_or_insert_with(|| Appetite::new(buffers, Some(end - at), SMALL_BYTES));
            let step = step.min(appetite.bytes() as u64);
            let range = ByteRange { first: at, last: at + step - 1 };
            out = self.copy_range(out, range, file, progress).await?;
            at += step;
            if at == end || out.len() >= SMALL_BYTES {
                self.submit(std::mem::take(&mut out), at == end).await?;
            }
        }
        self.quieten().await
    }

    /// Sends all parts by reading them.
    async fn copy_parts(
        &mut self,
        mut out: Vec<u8>,
        plan: &Plan,
        file: &ring::Fd,
        progress: &mut Progress,
    ) -> Result<(), Reason> {
        let worker = Rc::clone(&self.worker);
        let appetite = Appetite::new(&worker.resources().buffers, Some(plan.length()), SMALL_BYTES);
        for (before, part) in &plan.parts {
            out.extend_from_slice(before);
            let (mut at, end) = (part.first, part.last + 1);
            while at < end {
                let step = (appetite.bytes() as u64).min(end - at);
                out = self
                    .copy_range(out, ByteRange { first: at, last: at + step - 1 }, file, progress)
                    .await?;
                at += step;
                if at < end {
                    self.submit(out, false).await?;
                    out = self.io.writer.spare_for(appetite.bytes());
                }
            }
        }
        out.extend_from_slice(&plan.end);
        self.submit(out, true).await?;
        self.quieten().await
    }

    /// Appends a range of the file to `out`.
    async fn copy_range(
        &self,
        mut out: Vec<u8>,
        range: ByteRange,
        file: &ring::Fd,
        progress: &mut Progress,
    ) -> Result<Vec<u8>, Reason> {
        let mut at = range.first;
        while at <= range.last {
            let missing = usize::try_from(range.last - at + 1).unwrap_or(usize::MAX);
            out.reserve(missing);
            let outcome;
            (outcome, out) = ring::read_at(file, out, missing, at).await;
            match outcome {
                Ok(0) => {
                    self.report(&io::Error::other(SHORTER));
                    return Err(Reason::FileFailed);
                }
                Ok(count) => at += count as u64,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.report(&error);
                    return Err(Reason::FileFailed);
                }
            }
        }
        progress.bytes_out += range.length();
        Ok(out)
    }

    /// Starts sending when everything before it has been sent.
    pub(super) async fn submit(&mut self, bytes: Vec<u8>, is_last: bool) -> Result<(), Reason> {
        let settled = self.io.deadline.run(self.io.writer.settle(&self.io.deadline)).await;
        settled.ok_or(Reason::ClientStalled)?.map_err(|_| Reason::ClientGone)?;
        match is_last {
            true => self.io.writer.submit_last(bytes, 0, Trailers::NONE),
            false => self.io.writer.submit(bytes, 0),
        }
        Ok(())
    }

    pub(super) async fn quieten(&mut self) -> Result<(), Reason> {
        let sent = self.io.deadline.run(self.io.writer.quieten(&self.io.deadline)).await;
        self.io.writer.shrink(SMALL_BYTES);
        sent.ok_or(Reason::ClientStalled)?.map_err(|_| Reason::ClientGone)
    }

    /// Whether the file or the client is to blame.
    fn blame(&self, error: &io::Error) -> Reason {
        match error.raw_os_error() {
            None if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.report(&io::Error::other(SHORTER));
                Reason::FileFailed
            }
            Some(libc::EIO | libc::EINVAL | libc::ENOMEM) => {
                self.report(error);
                Reason::FileFailed
            }
            _ => Reason::ClientGone,
        }
    }

    fn report(&self, error: &io::Error) {
        report(error, self.session.head.target());
    }
}
