//! What servers that push changes have in common: a list, then lines that change it, and the list again after a while.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use super::error::RemoteError;
use super::http::{Answer, Lines};

/// After this time, the list is read again: lines may be missing because nothing happens, or because their server is cut
/// off.
const LIFE: Duration = Duration::from_secs(60);
/// Between two lists, whatever ends the lines.
const LIST_PACE: Duration = Duration::from_secs(1);

/// The lines of a server, if they have begun.
pub(crate) struct ChangeStream {
    life: Duration,
    lines: Option<(Lines, Instant)>,
    begun: Option<Instant>,
}

impl Default for ChangeStream {
    fn default() -> Self {
        Self::living(LIFE)
    }
}

impl ChangeStream {
    /// One whose lines are believed for this long.
    pub(crate) fn living(life: Duration) -> Self {
        Self { life, lines: None, begun: None }
    }

    /// The lines that have arrived together; `None` if the list has to be read, after a pause if that was just done.
    /// Nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// The connection is lost, or a line is too long.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<String>>, RemoteError> {
        if let Some((lines, until)) = &mut self.lines
            && let Ok(first) = timeout_at(*until, lines.next()).await
            && let Some(first) = first?
        {
            let mut arrived = vec![first];
            while lines.has_line() {
                arrived.extend(lines.next().await?);
            }
            return Ok(Some(arrived));
        }
        self.lines = None;
        if let Some(begun) = self.begun {
            sleep_until(begun + LIST_PACE).await;
        }
        Ok(None)
    }

    /// From now on, changes are in this answer.
    pub(crate) fn begin(&mut self, answer: Answer) {
        let now = Instant::now();
        self.lines = Some((answer.lines(), now + self.life));
        self.begun = Some(now);
    }

    /// Reads the list next.
    pub(crate) fn end(&mut self) {
        self.lines = None;
    }
}
