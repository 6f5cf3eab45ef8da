//! Files that are to be removed: first those for which somebody waits.

use std::collections::HashSet;

use tokio::sync::oneshot;

use super::format::FileName;

/// Files for which nobody waits that are removed at a time.
const BATCH: usize = 64;

/// Files that are removed together.
#[derive(Debug, Default)]
pub(super) struct RemovalBatch {
    pub(super) names: Vec<FileName>,
    /// The senders that report the removal.
    pub(super) told: Vec<oneshot::Sender<()>>,
}

/// All files that are to be removed.
#[derive(Debug, Default)]
pub(super) struct PendingRemovals {
    awaited: RemovalBatch,
    others: HashSet<FileName>,
    /// The files that are being removed.
    running: Vec<FileName>,
}

impl PendingRemovals {
    /// Has a file removed when there is time.
    pub(super) fn add(&mut self, name: FileName) {
        self.others.insert(name);
    }

    pub(super) fn extend(&mut self, names: impl IntoIterator<Item = FileName>) {
        self.others.extend(names);
    }

    /// Has files removed for which somebody waits: those that may exist, or are about to be removed anyway. `None` if there
    /// are none.
    pub(super) fn wait_for(
        &mut self,
        names: impl Iterator<Item = (FileName, bool)>,
    ) -> Option<oneshot::Receiver<()>> {
        let before = self.awaited.names.len();
        for (name, may_exist) in names {
            if self.others.remove(&name) | may_exist
                || self.running.contains(&name)
                || self.awaited.names.contains(&name)
            {
                self.awaited.names.push(name);
            }
        }
        (self.awaited.names.len() > before).then(|| {
            let (told, wait) = oneshot::channel();
            self.awaited.told.push(told);
            wait
        })
    }

    /// The next files. Those before are gone.
    pub(super) fn next(&mut self) -> Option<RemovalBatch> {
        self.running.clear();
        let batch = match self.awaited.names.is_empty() {
            false => std::mem::take(&mut self.awaited),
            true => {
                RemovalBatch { names: self.others.iter().take(BATCH).copied().collect(), told: Vec::new() }
            }
        };
        batch.names.iter().for_each(|name| _ = self.others.remove(name));
        self.running.clone_from(&batch.names);
        (!batch.names.is_empty()).then_some(batch)
    }
}
