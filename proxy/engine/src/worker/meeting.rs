//! The core that the workers of the process share, if they do: the one that the first of them has chosen.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Who is there. Locked when a worker comes or goes, seconds apart.
struct Meeting {
    core: usize,
    workers: usize,
}

static MEETING: Mutex<Meeting> = Mutex::new(Meeting { core: 0, workers: 0 });

/// One worker's part in it; dropping it leaves.
pub(super) struct MeetingSeat {
    /// The core.
    pub(super) core: usize,
}

impl MeetingSeat {
    /// Joins those that are there, or begins on this core.
    pub(super) fn take(core: usize) -> Self {
        let mut meeting = lock();
        if meeting.workers == 0 {
            meeting.core = core;
        }
        meeting.workers += 1;
        Self { core: meeting.core }
    }
}

impl Drop for MeetingSeat {
    fn drop(&mut self) {
        lock().workers -= 1;
    }
}

fn lock() -> MutexGuard<'static, Meeting> {
    MEETING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_meet_where_the_first_one_sits() {
        let (first, second) = (MeetingSeat::take(3), MeetingSeat::take(1));
        assert_eq!((first.core, second.core), (3, 3));
        drop(first);
        assert_eq!(MeetingSeat::take(1).core, 3, "one is still there");
        drop(second);
        assert_eq!(MeetingSeat::take(1).core, 1);
    }
}
