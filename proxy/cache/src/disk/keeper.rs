//! The thread of a cache's disk.

use std::io;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use super::Shared;
use super::folder::{OpenFolder, sort_by_age};
use super::format::{self, FileName};
use super::index::{Entry, Index};
use super::purges::PURGES_MAX;
use super::state::{Ending, Task};
use super::writes::PendingWrite;
use crate::purge::Purge;

/// How often a folder is tried again that another process has, or that cannot be used.
const RETRY: Duration = Duration::from_secs(1);

/// Opens the folder, and does what there is to do until it is closed.
///
/// `told` hears of what other processes have taken out.
pub(super) fn run(shared: &Shared, told: &dyn Fn(&Purge)) {
    if let Some(folder) = open(shared, told) {
        let path = folder.path().display().to_string();
        let (files, bytes) = {
            let state = shared.state();
            (state.index.files(), state.index.bytes())
        };
        tracing::info!(folder = path, files, bytes, "the disk of a cache is open");
        work(shared, &folder);
        close(shared, folder);
    } else {
        end(shared);
        if shared.state().ending == Ending::Abandoned {
            shared.distrust();
        }
    }
    shared.state().is_over = true;
    shared.changed.notify_all();
}

/// Syncs everything, and notes that the folder is closed. The folder stays locked until the store ends, so that what
/// changes until then is removed before another process reads it.
fn close(shared: &Shared, folder: OpenFolder) {
    let is_abandoned = shared.state().ending == Ending::Abandoned;
    let mut synced = if is_abandoned { Ok(()) } else { folder.sync() };
    if end(shared) && synced.is_ok() {
        // Somebody has waited meanwhile.
        synced = folder.sync();
    }
    let closed = match is_abandoned || shared.is_distrusted.load(SeqCst) {
        true => Ok(()),
        false => synced.and_then(|()| folder.note_closed()),
    };
    if let Err(error) = closed {
        tracing::warn!(folder = %folder.path().display(), %error, "cannot close the disk of a cache");
    }
    if is_abandoned || shared.is_distrusted.load(SeqCst) {
        // It may have failed before.
        shared.distrust();
    }
    if !is_abandoned {
        *shared.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(folder);
    }
}

/// Ends the work; whether there was something that somebody has waited for.
fn end(shared: &Shared) -> bool {
    let mut has_worked = false;
    loop {
        let task = {
            let mut state = shared.state();
            let Some(task) = state.next_awaited() else {
                state.end();
                return has_worked;
            };
            task
        };
        has_worked = true;
        without_folder(shared, task);
    }
}

/// The folder, once no other process has it; `None` if it is not wanted any more.
fn open(shared: &Shared, told: &dyn Fn(&Purge)) -> Option<OpenFolder> {
    let (mut is_away_logged, mut is_error_logged) = (false, false);
    loop {
        let path = shared.folder.path().display();
        let opened =
            shared.folder.open(&|| _ = until(shared, Instant::now())).and_then(|folder| match folder {
                Some(folder) => list(shared, &folder, told).map(|()| Some(folder)),
                None => Ok(None),
            });
        match opened {
            Ok(Some(folder)) => return Some(folder),
            Ok(None) if !std::mem::replace(&mut is_away_logged, true) => {
                tracing::info!(folder = %path, "another process has the disk of a cache; waiting for its end");
            }
            Err(error) if !std::mem::replace(&mut is_error_logged, true) => {
                tracing::warn!(folder = %path, %error, "cannot use the disk of a cache; trying again each second");
            }
            Ok(None) | Err(_) => {}
        }
        if !until(shared, Instant::now() + RETRY) {
            return None;
        }
    }
}

/// Does what needs no folder, until then; false if nothing is wanted any more.
fn until(shared: &Shared, then: Instant) -> bool {
    loop {
        match without_folder(shared, shared.next(Some(then))) {
            Some(Task::End) => return false,
            _ if Instant::now() >= then => return true,
            _ => {}
        }
    }
}

/// Does a task that needs no folder; returns another one.
fn without_folder(shared: &Shared, task: Task) -> Option<Task> {
    match task {
        Task::Remove(removal) => {
            remove(shared, &removal.names);
            // The request that waits may be gone.
            removal.told.into_iter().for_each(|told| _ = told.send(()));
        }
        Task::NotePurge(purge, number, told) => {
            note(shared, (&purge, number));
            let _ = told.send(());
        }
        task => return Some(task),
    }
    None
}

/// Reads which files there are.
fn list(shared: &Shared, folder: &OpenFolder, told: &dyn Fn(&Purge)) -> io::Result<()> {
    let mut found = Vec::new();
    for part in folder.parts()? {
        found.extend(folder.files_of(&part)?);
        // Somebody may wait for a removal.
        until(shared, Instant::now());
    }
    sort_by_age(&mut found);
    let mut purges = folder.purges()?;
    if purges.len() > PURGES_MAX {
        // It takes too long to look at each file so often.
        folder.empty(&|| _ = until(shared, Instant::now()))?;
        found.clear();
        purges = Vec::new();
        told(&Purge::All);
        shared.state().purge(&Purge::All);
    }
    // There may be many, and workers wait for the lock.
    let config = shared.state().index.config().clone();
    let mut index = Index::new(&config);
    found.into_iter().for_each(|found| index.insert(found.name, Entry::new(found.bytes, 0)));
    let foreign: Vec<Purge> = purges.iter().map(|(purge, _)| purge.clone()).collect();
    // First, so that nothing that they take is stored together with what comes later.
    foreign.iter().for_each(told);
    shared.state().open(index, purges);
    Ok(())
}

fn work(shared: &Shared, folder: &OpenFolder) {
    loop {
        match without_folder(shared, shared.next(None)) {
            Some(Task::Write(name, pending)) => write(shared, folder, name, &pending),
            Some(Task::Look(name)) => look(shared, name),
            Some(Task::Wait(_)) => finish_purges(shared),
            Some(Task::End) => return finish_purges(shared),
            Some(Task::Remove(_) | Task::NotePurge(..)) | None => {}
        }
    }
}

fn remove(shared: &Shared, names: &[FileName]) {
    for name in names {
        if let Err(error) = shared.folder.remove(*name) {
            shared.counts.failed.log(&error, shared.folder.path());
            // Nobody reads it in this process. The next one must not trust what is there.
            shared.distrust();
        }
    }
}

fn note(shared: &Shared, (purge, number): (&Purge, u32)) {
    let noted = shared.folder.note_purge(purge, number);
    let noted = noted.inspect_err(|error| {
        shared.counts.failed.log(error, shared.folder.path());
        shared.distrust();
    });
    shared.state().purges.noted(number, noted.ok());
}

fn write(shared: &Shared, folder: &OpenFolder, name: FileName, pending: &PendingWrite) {
    let responses = pending.responses.iter().map(|stored| &**stored).filter(|stored| stored.is_worth_file());
    let bytes = format::encode(&pending.key, responses).map_err(io::Error::other);
    let written = bytes.and_then(|bytes| folder.write(name, &bytes).map(|()| bytes.len() as u64));
    let file = match written {
        Ok(bytes) => {
            shared.counts.written.add();
            Some((bytes, pending.purges))
        }
        Err(error) => {
            shared.counts.failed.log(&error, shared.folder.path());
            None
        }
    };
    shared.state().written(name, file);
}

/// Removes a file if a purge takes it.
fn look(shared: &Shared, name: FileName) {
    let described = shared.folder.describe(name);
    let mut state = shared.state();
    let Some(entry) = state.index.peek(name) else { return };
    let is_kept = match described {
        Ok(Some(description)) => {
            let key = description.key().to_vec();
            description.heads().is_some_and(|heads| !state.purges.take(&key, heads.iter(), entry))
        }
        Ok(None) | Err(_) => false,
    };
    if !is_kept {
        state.drop_purged(name);
    }
}

/// Purges that have looked at all files are done.
fn finish_purges(shared: &Shared) {
    let done = shared.state().purges.take_done();
    for note in done.into_iter().filter_map(|purge| purge.note) {
        let removed = std::fs::remove_file(note);
        let _ = removed.inspect_err(|error| shared.counts.failed.log(error, shared.folder.path()));
    }
}

impl Shared {
    /// What is next; waits for it until then, or until it is due.
    fn next(&self, then: Option<Instant>) -> Task {
        // The task before is done, so the disk works.
        self.is_hung.store(false, SeqCst);
        let mut state = self.state();
        loop {
            let task = state.next();
            let Task::Wait(due) = task else { return task };
            if state.purges.has_done() {
                return task;
            }
            let now = Instant::now();
            let until = [due, then].into_iter().flatten().min();
            if then.is_some_and(|then| then <= now) {
                return task;
            }
            state = match until {
                Some(until) => {
                    let left = until.saturating_duration_since(now);
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}
