//! A member of a fleet: what it has seen of the shared state, what it says of itself, and how it changes what is shared.
//!
//! Runs on the control thread. Nothing here is on the path of a request: a store that is away changes nothing but that
//! commands are refused.

mod bans;
mod rates;
mod report;
mod seal;
#[cfg(test)]
mod simulation;
pub(crate) mod state;
mod view;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sluice_config::Store;
use sluice_core::clock::unix_s;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

pub(crate) use bans::BanExchange;
pub(crate) use rates::{CLIENTS_MAX, RateExchange, RateReport};
pub(crate) use report::{ALL, Members, Readiness, Report, Shortfall, name_of};
pub(crate) use seal::Sealer;
use state::{Head, Keys, ServiceChange};
pub(crate) use view::{Board, SharedBoard};
pub use view::{FleetView, MemberView, Traffic};

use crate::store::{Client, Commit, Outcome, StoreError, Update, Watcher};

/// After a failure, and at most after many.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(10));
/// Between two reports that differ.
const REPORT_PACE: Duration = Duration::from_millis(50);
/// Between two renewals of the view.
const SHOW_PACE: Duration = Duration::from_secs(2);
/// How long a process that ends takes to say so.
const LEAVE_MAX: Duration = Duration::from_secs(1);
/// Between two attempts to make the same change.
const COMMIT_PACE: Duration = Duration::from_millis(300);
/// Between two looks at the members, at first and at most: a look costs the store as much as there are members.
const LOOK_PACE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// This member, and what it knows of the fleet.
pub(crate) struct Fleet {
    config: Store,
    /// Its key among the members: name, `/`, and a number of this process.
    pub(crate) member: String,
    keys: RefCell<Keys>,
    /// Why the store cannot be reached; `None` if it can.
    trouble: watch::Sender<Option<String>>,
    /// Whether a failure was logged since the last answer.
    is_failing: Cell<bool>,
    /// Grows with each change of the keys.
    seen: watch::Sender<u64>,
    report: watch::Sender<Report>,
    /// For commands; one after the other.
    client: Mutex<Client>,
    is_leaving: watch::Sender<bool>,
    /// Encrypts what the store must not read.
    sealer: Option<Sealer>,
    /// What the status page shows.
    pub(crate) board: Arc<Board>,
}

/// Why a change was not made.
#[derive(Debug)]
pub(crate) enum ChangeError {
    /// Something else has changed meanwhile.
    Conflict,
    /// The store cannot be reached, and nothing has changed.
    Unreachable(String),
    /// The store has refused it, and nothing has changed.
    Refused(String),
    /// The store has not said what has become of it.
    Unknown(String),
}

/// What the store has at a start, within the time that the configuration gives it.
pub(crate) async fn first(config: &Store) -> Option<Keys> {
    let limit = Duration::from_millis(config.first_timeout_ms);
    let read = async {
        let update = Watcher::new(config)?.next().await?;
        let Update::All(keys) = update else {
            return Err(StoreError::from("it did not begin with everything"));
        };
        Ok(keys)
    };
    let read = timeout(limit, read).await.unwrap_or_else(|_| Err("no answer in time".into()));
    read.inspect_err(|reason| {
        tracing::warn!(%reason, "the store cannot be reached; the last known services are served");
    })
    .ok()
}

impl Fleet {
    /// A member that has seen these keys, or nothing yet.
    ///
    /// # Errors
    /// A file that the configuration names cannot be used.
    pub(crate) fn new(config: &Store, keys: Option<Keys>) -> Result<Rc<Self>, StoreError> {
        let name = config.member.clone().unwrap_or_else(host_name);
        let report =
            Report { release: env!("CARGO_PKG_VERSION").to_owned(), since: unix_s(), ..Report::default() };
        Ok(Rc::new(Self {
            member: format!("{name}/{}", state::new_id()),
            keys: RefCell::new(keys.unwrap_or_default()),
            trouble: watch::Sender::new(Some("it has not answered yet".to_owned())),
            is_failing: Cell::new(false),
            seen: watch::Sender::new(0),
            report: watch::Sender::new(report),
            client: Mutex::new(Client::new(config)?),
            is_leaving: watch::Sender::new(false),
            sealer: config.key_file.as_deref().map(Sealer::read).transpose()?,
            board: Arc::default(),
            config: config.clone(),
        }))
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        name_of(&self.member)
    }

    /// The engine.
    pub(crate) fn engine(&self) -> &'static str {
        self.config.engine().map_or("none", |engine| engine.name())
    }

    /// Encrypts what the store must not read, if there is a key.
    pub(crate) fn sealer(&self) -> Option<&Sealer> {
        self.sealer.as_ref()
    }

    /// Why the store cannot be reached; `None` if it can.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.borrow().clone()
    }

    /// The keys as last seen.
    pub(crate) fn keys(&self) -> std::cell::Ref<'_, Keys> {
        self.keys.borrow()
    }

    /// Whether the store has ever answered.
    pub(crate) fn has_seen(&self) -> bool {
        *self.seen.borrow() > 0
    }

    /// Waits a while for the first answer of the store, right after a start.
    pub(crate) async fn until_seen(&self) {
        let mut seen = self.seen.subscribe();
        let _ = timeout(self.confirm_timeout(), seen.wait_for(|seen| *seen > 0)).await;
    }

    /// Resolves when the keys have changed since the last call with this receiver.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.seen.subscribe()
    }

    /// Changes what this member says of itself.
    pub(crate) fn say(&self, change: impl FnOnce(&mut Report)) {
        self.report.send_if_modified(|report| {
            let before = report.clone();
            change(report);
            let (version, failed) = (report.applied, report.failed.len() as u64);
            self.board.note(|status| (status.version, status.failed) = (version, failed));
            *report != before
        });
    }

    /// Follows the shared state without end.
    pub(crate) async fn follow(&self) {
        let mut backoff = BACKOFF.0;
        loop {
            let mut watcher = match Watcher::new(&self.config) {
                Ok(watcher) => watcher,
                Err(error) => {
                    self.fail(&error);
                    sleep(backoff).await;
                    backoff = (backoff * 2).min(BACKOFF.1);
                    continue;
                }
            };
            loop {
                match watcher.next().await {
                    Ok(update) => {
                        backoff = BACKOFF.0;
                        self.take(update);
                    }
                    Err(error) => {
                        self.fail(&error);
                        break;
                    }
                }
            }
            // Members do not come back all at once.
            sleep(backoff.mul_f64(0.5 + fastrand::f64())).await;
            backoff = (backoff * 2).min(BACKOFF.1);
        }
    }

    fn take(&self, update: Update) {
        {
            let mut keys = self.keys.borrow_mut();
            match update {
                Update::All(all) => *keys = all,
                Update::Changes(changes) => {
                    for (key, item) in changes {
                        match item {
                            Some(item) => drop(keys.insert(key, item)),
                            None => drop(keys.remove(&key)),
                        }
                    }
                }
            }
        }
        self.board.note(|status| status.is_failing = false);
        self.is_failing.set(false);
        if self.trouble.send_replace(None).is_some() {
            tracing::info!(engine = self.engine(), member = self.name(), "the store answers");
        }
        self.seen.send_modify(|seen| *seen += 1);
    }

    fn fail(&self, error: &StoreError) {
        self.board.note(|status| status.is_failing = true);
        self.trouble.send_replace(Some(error.to_string()));
        if !self.is_failing.replace(true) {
            tracing::warn!(%error, "the store cannot be reached; what was last known is served");
        }
    }

    /// Says what this member reports until it leaves, so that others count on it.
    pub(crate) async fn announce(&self) {
        let mut client = match Client::new(&self.config) {
            Ok(client) => client,
            Err(error) => return tracing::error!(%error, "the fleet does not hear from this member"),
        };
        let mut leaving = self.is_leaving.subscribe();
        tokio::select! {
            () = self.keep_announcing(&mut client) => {}
            _ = leaving.wait_for(|is_leaving| *is_leaving) => {}
        }
        client.leave().await;
    }

    async fn keep_announcing(&self, client: &mut Client) {
        let third = Duration::from_millis(self.config.member_ttl_ms) / 3;
        let mut reports = self.report.subscribe();
        let (mut backoff, mut is_heard) = (BACKOFF.0, true);
        loop {
            let said = serde_json::to_vec(&*reports.borrow_and_update()).unwrap_or_default();
            match client.announce(&self.member, &said).await {
                Ok(()) => {
                    (backoff, is_heard) = (BACKOFF.0, true);
                    let _ = timeout(third, reports.changed()).await;
                    // What changes at once is said at once.
                    sleep(REPORT_PACE).await;
                }
                Err(error) => {
                    // Once for each time; that the store is away is said elsewhere.
                    if std::mem::replace(&mut is_heard, false) && self.trouble().is_none() {
                        tracing::warn!(%error, "the fleet may not hear from this member");
                    }
                    sleep(backoff.mul_f64(0.5 + fastrand::f64())).await;
                    backoff = (backoff * 2).min(third);
                }
            }
        }
    }

    /// Says that this member is gone, or lets others find out.
    pub(crate) async fn leave(&self) {
        if self.is_leaving.send_replace(true) {
            return;
        }
        let _ = timeout(LEAVE_MAX, self.is_leaving.closed()).await;
    }

    /// The members, as the store has them.
    ///
    /// # Errors
    /// They are not known.
    pub(crate) async fn members(&self) -> Result<Members, StoreError> {
        Ok(Members::of(&self.client.lock().await.members().await?))
    }

    /// The fleet as people see it. While the store is away, with the members that were last seen.
    pub(crate) async fn view(&self) -> FleetView {
        // A store that is away is not asked: others may wait for it already.
        let members = match self.trouble() {
            Some(trouble) => Err(StoreError::from(trouble)),
            None => self.members().await,
        };
        let trouble = self.trouble().or_else(|| members.as_ref().err().map(ToString::to_string));
        let head = Head::of(&self.keys()).unwrap_or_default();
        let about = (self.name(), self.engine());
        let view = match members {
            Ok(members) => FleetView::new(about, trouble, head, &members),
            Err(_) => {
                let members = self.board.last().members;
                FleetView { members, ..FleetView::new(about, trouble, head, &Members::default()) }
            }
        };
        self.board.show(view.clone());
        view
    }

    /// Renews the view of the status page while somebody looks at it, without end.
    pub(crate) async fn show(&self) {
        loop {
            if self.board.is_wanted() {
                self.view().await;
            }
            sleep(SHOW_PACE).await;
        }
    }

    /// Makes a change, by one attempt.
    ///
    /// # Errors
    /// It may not be made.
    pub(crate) async fn try_commit(&self, commit: &Commit) -> Result<Outcome, StoreError> {
        self.client.lock().await.commit(commit).await
    }

    /// Makes a change that may be made twice.
    ///
    /// # Errors
    /// It may not be made.
    pub(crate) async fn commit(&self, commit: &Commit) -> Result<Outcome, StoreError> {
        let until = Instant::now() + self.confirm_timeout();
        loop {
            let made = self.try_commit(commit).await;
            match made {
                Ok(outcome) => return Ok(outcome),
                Err(error) if error.is_refusal() || Instant::now() >= until => return Err(error),
                Err(_) => sleep(COMMIT_PACE).await,
            }
        }
    }

    /// Makes a change of services, if nothing else has changed meanwhile.
    ///
    /// # Errors
    /// Why it is not made, or not known to be.
    pub(crate) async fn change(&self, change: &ServiceChange) -> Result<(), ChangeError> {
        if let Some(trouble) = self.trouble() {
            return Err(ChangeError::Unreachable(trouble));
        }
        let until = Instant::now() + self.confirm_timeout();
        let mut doubt = None;
        loop {
            let made = self.try_commit(&change.commit).await;
            match made {
                Ok(Outcome::Made) => return Ok(()),
                Ok(Outcome::Conflict) if doubt.is_none() => return Err(ChangeError::Conflict),
                // What is in the way may be the change itself, from an attempt that was not answered.
                Ok(Outcome::Conflict) => {
                    return match self.sees(until, |head| head.version >= change.version).await {
                        Some(head) if head.has(&change.id) => Ok(()),
                        Some(_) => Err(ChangeError::Conflict),
                        None => Err(ChangeError::Unknown("the state has not been seen since".to_owned())),
                    };
                }
                Err(error) if error.is_refusal() && doubt.is_none() => {
                    return Err(ChangeError::Refused(error.to_string()));
                }
                Err(error) if Instant::now() >= until => return Err(ChangeError::Unknown(error.to_string())),
                Err(error) => doubt = Some(error),
            }
            sleep(COMMIT_PACE).await;
        }
    }

    /// Waits until another head is there than the one that a change was made after; tells whether it is.
    pub(crate) async fn sees_another(&self, item_version: u64, until: Instant) -> bool {
        let is_another = |keys: &Keys| (Head::item_version(keys) != item_version).then_some(());
        self.until_keys(until, is_another).await.is_some()
    }

    /// Where the store is, so that a host that moves to another one is noticed.
    pub(crate) fn place(&self) -> String {
        self.config
            .engine()
            .map(|engine| format!("{} {}", engine.name(), engine.prefix()))
            .unwrap_or_default()
    }

    /// Waits until the head is as wanted.
    pub(crate) async fn sees(&self, until: Instant, is_wanted: impl Fn(&Head) -> bool) -> Option<Head> {
        self.until_keys(until, |keys| Head::of(keys).filter(&is_wanted)).await
    }

    /// Waits until the keys have what is looked for.
    pub(crate) async fn until_keys<T>(&self, until: Instant, find: impl Fn(&Keys) -> Option<T>) -> Option<T> {
        let mut changes = self.changes();
        loop {
            changes.borrow_and_update();
            let found = find(&self.keys());
            if found.is_some() {
                return found;
            }
            timeout_at(until, changes.changed()).await.ok()?.ok()?;
        }
    }

    /// Looks at the members until nothing is missing, a member has failed, or the time is over. Returns what is missing
    /// then.
    pub(crate) async fn until_nothing_is_missing(
        &self,
        patience: Duration,
        missing: impl Fn(&Members) -> Shortfall,
    ) -> Shortfall {
        let until = Instant::now() + patience;
        let mut pace = LOOK_PACE.0;
        let mut last = Shortfall { silent: BTreeSet::from([self.name().to_owned()]), ..Shortfall::default() };
        loop {
            if let Ok(Ok(members)) = timeout_at(until, self.members()).await {
                last = missing(&members);
                if last.is_nothing() || !last.failed.is_empty() {
                    return last;
                }
            }
            if Instant::now() >= until {
                return last;
            }
            sleep(pace.min(until - Instant::now())).await;
            pace = (pace * 5 / 4).min(LOOK_PACE.1);
        }
    }

    /// How long a command waits for members beyond its own time limits.
    pub(crate) fn confirm_timeout(&self) -> Duration {
        Duration::from_millis(self.config.confirm_timeout_ms)
    }
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let is_plain = |byte: &char| byte.is_ascii_alphanumeric() || matches!(byte, '-' | '_' | '.');
    let name: String = name.trim().chars().filter(is_plain).take(64).collect();
    if name.is_empty() { "sluice".to_owned() } else { name }
}
