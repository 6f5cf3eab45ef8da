//! Excludes changes during a handover, and a handover during changes.
//!
//! The new process reads configuration and state while it starts. Changes made here meanwhile would be lost with this
//! process, and both would write the state file. So the second one is refused with the reason; nothing waits for an
//! operation that may take minutes.

use crate::handover::UpgradeError;
use std::cell::{Cell, RefCell};

/// The running changes of this process. Belongs to the control thread.
#[derive(Debug, Default)]
pub(super) struct Changes {
    under_way: RefCell<Vec<String>>,
    handing_over: Cell<bool>,
}

/// A running change, until it is dropped.
#[derive(Debug)]
pub(super) struct Change<'a> {
    changes: &'a Changes,
    what: String,
}

/// Another process is about to take over, or has done so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an upgrade is in progress; nothing has changed, try again when it has finished")]
pub(super) struct UpgradeUnderWay;

/// A running handover: until it is dropped, or permanently.
#[derive(Debug)]
pub(super) struct HandingOver<'a>(Option<&'a Changes>);

impl Changes {
    /// Starts a change, with a name such as `deploy of web`.
    ///
    /// # Errors
    /// When it would be lost.
    pub(super) fn begin(&self, what: String) -> Result<Change<'_>, UpgradeUnderWay> {
        if self.is_handing_over() {
            return Err(UpgradeUnderWay);
        }
        self.under_way.borrow_mut().push(what.clone());
        Ok(Change { changes: self, what })
    }

    /// Starts a handover.
    ///
    /// # Errors
    /// The change that prevents it.
    pub(super) fn hand_over(&self) -> Result<HandingOver<'_>, UpgradeError> {
        if self.is_handing_over() {
            return Err("another upgrade is in progress".into());
        }
        if let Some(change) = self.under_way.borrow().first() {
            return Err(format!(
                "{change} is in progress; nothing has changed, try again when it has finished"
            )
            .into());
        }
        self.handing_over.set(true);
        Ok(HandingOver(Some(self)))
    }

    /// Whether another process is about to take over, or has done so.
    pub(super) fn is_handing_over(&self) -> bool {
        self.handing_over.get()
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let mut under_way = self.changes.under_way.borrow_mut();
        if let Some(index) = under_way.iter().position(|what| *what == self.what) {
            under_way.swap_remove(index);
        }
    }
}

impl HandingOver<'_> {
    /// The other process has taken over: no more changes in this one.
    pub(super) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for HandingOver<'_> {
    fn drop(&mut self) {
        if let Some(changes) = self.0 {
            changes.handing_over.set(false);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn changes_and_handovers_exclude_each_other() {
        let changes = Changes::default();
        let [one, two] = ["deploy of web", "stop of web"].map(|what| changes.begin(what.to_owned()).unwrap());
        let said = changes.hand_over().unwrap_err();
        assert!(said.to_string().starts_with("deploy of web is in progress"), "{said}");
        drop(one);
        assert!(changes.hand_over().unwrap_err().to_string().starts_with("stop of web is in progress"));
        drop(two);
        let handing_over = changes.hand_over().unwrap();
        assert_eq!(changes.begin("deploy of web".to_owned()).unwrap_err(), UpgradeUnderWay);
        assert_eq!(changes.hand_over().unwrap_err(), "another upgrade is in progress".into());
        drop(handing_over);
        drop(changes.begin("deploy of web".to_owned()).unwrap());
        changes.hand_over().unwrap().keep();
        assert!(changes.begin("deploy of web".to_owned()).is_err());
    }
}
