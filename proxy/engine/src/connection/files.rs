//! Responds with files of a route.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use sluice_core::clock;
use sluice_core::error::Reason;
use sluice_core::router::{encoded_path, normalised};
use sluice_http::{Acceptance, FieldEdits, Method};
use tokio::sync::Semaphore;

use super::account::Account;
use super::forward::sent_target;
use super::{Connection, Next};
use crate::body::Transfer;
use crate::exchange::ReplacedAnswer;
use crate::files::{
    Content, FileRoute, Found, Handoff, NamedFile, Plan, StoredFile, Wanted, WholeContent, page,
};
use crate::progress::Progress;
use crate::response::Local;
use crate::snapshot::{RouteEntry, Target};

/// Minimum interval between log messages about a failing disk, in milliseconds.
const REPORT_MS: u64 = 10_000;
/// How many folders may be read at the same time, each by a thread. More would wait for the same disk.
static LISTINGS: Semaphore = Semaphore::const_new(4);

impl Connection {
    /// Responds with a file of the route; `None` if there is none, and its action decides.
    pub(super) async fn serve_file(
        &mut self,
        files: &FileRoute,
        entry: &RouteEntry,
        account: &Account,
        transfer: &mut Transfer,
    ) -> Option<Next> {
        let head = &self.session.head;
        let is_local = matches!(entry.target, Target::Local);
        let is_upgrade = head.upgrade().is_some() && !is_local;
        if !matches!(head.method(), Method::Get | Method::Head) || is_upgrade {
            return self.refuse_method(entry, account, transfer).await;
        }
        let worker = Rc::clone(&self.worker);
        let target = sent_target(entry, head);
        let end = memchr::memchr(b'?', &target).unwrap_or(target.len());
        let mut path = normalised(&target[..end]).into_owned();
        let snapshot = &account.snapshot;
        let acceptance = Acceptance::of(head);
        let is_named_as_folder = normalised(head.path()).ends_with(b"/");
        let found = loop {
            let wanted = Wanted {
                route: files,
                path: &path,
                acceptance,
                limits: &snapshot.config.file_cache,
                workers: snapshot.workers,
            };
            let found = worker.resources().files.find(&wanted).await;
            if !matches!(found, Ok(Found::Folder)) || !is_named_as_folder {
                break found;
            }
            // The client's path has its slash, and `rewrite` has led to a folder without one.
            path.push(b'/');
        };
        match found {
            Ok(Found::File(file)) => Some(Box::pin(self.send_file(&file, entry, account, transfer)).await),
            Ok(Found::Folder) => Some(self.send_to_folder(account, transfer).await),
            Ok(Found::Listing(folder)) => {
                let path = normalised(self.session.head.path()).into_owned();
                // Reading a folder waits for the disk. An error would mean that the semaphore is closed; it never is.
                let turn = LISTINGS.acquire().await;
                let listed = tokio::task::spawn_blocking(move || page(folder, &path)).await;
                drop(turn);
                Some(match listed.map_err(std::io::Error::other).flatten() {
                    Ok(page) => {
                        let local = Local::content(200, "text/html; charset=utf-8", page, None);
                        self.answer_locally(account, &local, None, transfer).await
                    }
                    Err(error) => self.answer_failed_file(&error, account, transfer).await,
                })
            }
            Ok(Found::Nothing) => None,
            Err(error) => Some(self.answer_failed_file(&error, account, transfer).await),
        }
    }

    /// Only an application takes other methods than those that read.
    async fn refuse_method(
        &mut self,
        entry: &RouteEntry,
        account: &Account,
        transfer: &mut Transfer,
    ) -> Option<Next> {
        let is_read = matches!(self.session.head.method(), Method::Get | Method::Head);
        if is_read || !matches!(entry.target, Target::Local) {
            return None;
        }
        let reason = Reason::MethodNotAllowed;
        let local = Local::reason(reason).with_fields([(&b"Allow"[..], b"GET, HEAD".to_vec())]);
        Some(self.answer_locally(account, &local, Some(reason), transfer).await)
    }

    /// Sends the client to the path of a folder with a slash at its end.
    async fn send_to_folder(&mut self, account: &Account, transfer: &mut Transfer) -> Next {
        let (path, query) = self.session.head.split_target();
        let mut location = String::from_utf8_lossy(&encoded_path(&normalised(path))).into_owned();
        location.push('/');
        if !query.is_empty() {
            location.push('?');
            location.push_str(&String::from_utf8_lossy(query));
        }
        let local = Local::found_at(301, location);
        self.answer_locally(account, &local, None, transfer).await
    }

    async fn answer_failed_file(
        &mut self,
        error: &std::io::Error,
        account: &Account,
        transfer: &mut Transfer,
    ) -> Next {
        report(error, self.session.head.target());
        let reason = Reason::FileFailed;
        self.answer_locally(account, &Local::reason(reason), Some(reason), transfer).await
    }

    /// Responds with a file that the route has found.
    async fn send_file(
        &mut self,
        file: &StoredFile,
        entry: &RouteEntry,
        account: &Account,
        transfer: &mut Transfer,
    ) -> Next {
        let rendered = entry.templates.as_ref();
        let rendered = rendered.map(|templates| Box::new(self.render(templates, entry, account)));
        let edits = rendered.as_deref().map_or(entry.response_edits.as_ref(), |edits| Some(&edits.response));
        let keep_alive = self.continues_after(transfer);
        let sending = Sending { file, told: None, edits, patience_ms: patience_ms(entry) };
        match self.send(&sending, account, keep_alive, Progress::default()).await {
            Ok(true) if self.drain_body(transfer).await => Next::KeepAlive,
            Ok(_) => self.last_answer(transfer),
            Err(next) => next,
        }
    }

    /// Responds with the file that an application has named.
    #[expect(clippy::too_many_arguments, reason = "the parts of one exchange, which end here")]
    pub(super) async fn send_named(
        &mut self,
        handoff: &Handoff,
        told: &ReplacedAnswer,
        (edits, patience_ms): (Option<&FieldEdits>, u64),
        account: &Account,
        (transfer, progress): (&Transfer, Progress),
    ) -> Next {
        let Some(named) = &told.file else { return self.reject(account, Reason::SendfileRefused).await };
        let keep_alive = transfer.is_done() && self.may_continue();
        let worker = Rc::clone(&self.worker);
        let snapshot = &account.snapshot;
        let found = match handoff.locate(named) {
            Some((route, path)) => {
                let wanted = Wanted {
                    route,
                    path: &path,
                    acceptance: Acceptance::default(),
                    limits: &snapshot.config.file_cache,
                    workers: snapshot.workers,
                };
                worker.resources().files.find(&wanted).await
            }
            None => Ok(Found::Nothing),
        };
        let file = match found {
            Ok(Found::File(file)) => file,
            Ok(_) => return self.refuse_named(named, account, (keep_alive, transfer, progress)).await,
            Err(error) => {
                report(&error, self.session.head.target());
                return self.fail(account, progress, Reason::FileFailed, transfer).await;
            }
        };
        let sending = Sending { file: &file, told: Some(told), edits, patience_ms };
        match self.send(&sending, account, keep_alive, progress).await {
            Ok(true) => Next::KeepAlive,
            Ok(false) => self.last_answer(transfer),
            Err(next) => next,
        }
    }

    async fn refuse_named(
        &mut self,
        named: &NamedFile,
        account: &Account,
        (keep_alive, transfer, mut progress): (bool, &Transfer, Progress),
    ) -> Next {
        let route = account.route.map(|index| account.snapshot.routes[index as usize].config.name.as_str());
        if is_due() {
            tracing::warn!(
                route,
                file = named.shown(),
                "an application named a file that is not in the folders of sendfile, or cannot be read"
            );
        }
        let reason = Reason::SendfileRefused;
        let keep_alive = self.answer(account, &Local::reason(reason), keep_alive, &mut progress).await;
        self.record(account, &progress, Some(reason));
        if keep_alive { Next::KeepAlive } else { self.last_answer(transfer) }
    }

    /// Sends a file, or what its conditions come to; returns whether the connection may continue.
    async fn send(
        &mut self,
        sending: &Sending<'_>,
        account: &Account,
        keep_alive: bool,
        mut progress: Progress,
    ) -> Result<bool, Next> {
        let Sending { file, told, edits, .. } = *sending;
        let is_type = |field: &&(Vec<u8>, Vec<u8>)| field.0.eq_ignore_ascii_case(b"content-type");
        let edited = edits.and_then(|edits| edits.set.iter().find(is_type)).map(|(_, value)| &value[..]);
        let kind = edited.or(told.and_then(ReplacedAnswer::content_type)).map(String::from_utf8_lossy);
        let kind = kind.unwrap_or(Cow::Borrowed(&*file.content_type));
        let plan = self.plan(file, &kind, told);
        let kind = match &plan.boundary {
            Some(boundary) => format!("multipart/byteranges; boundary={boundary}").into(),
            None => kind,
        };
        let is_later = file.content.file().is_some();
        let local = match plan.has_content {
            true => Local::content(plan.status, &kind, body(file, &plan), is_later.then(|| plan.length())),
            false if plan.status == 304 => Local::content(304, "", &b""[..], None),
            false => Local::status(plan.status),
        };
        let is_answer = plan.has_content || plan.status == 304;
        let told_fields = told.filter(|_| is_answer).into_iter().flat_map(|told| told.fields.iter());
        let told_fields = told_fields.map(|(name, value)| (&name[..], &value[..]));
        let is_told = |name: &[u8]| told.is_some_and(|told| told.has(name));
        let own = fields(file, &plan).filter(|(name, _)| !is_told(name));
        let told_fields = told_fields.filter(|(name, _)| !name.eq_ignore_ascii_case(b"content-type"));
        let has_own_type = plan.boundary.is_some() || plan.status == 304;
        let edits_without = edits.filter(|_| has_own_type).map(without_type);
        let edits = edits_without.as_ref().or(edits).filter(|_| is_answer);
        let local = local.with_borrowed(own.chain(told_fields)).edited(edits);
        // The changes of an application's response have all fields of the route; a status alone gets them as usual.
        let local = if told.is_some() && is_answer { local.complete() } else { local };
        let is_sent = plan.has_content && self.session.head.method() != Method::Head;
        let Some(fd) = file.content.file().filter(|_| is_sent) else {
            let keep_alive = self.answer(account, &local, keep_alive, &mut progress).await;
            self.record(account, &progress, None);
            return Ok(keep_alive);
        };
        let Some(opening) = self.open_answer(account, &local, keep_alive, &mut progress).await else {
            self.record(account, &progress, Some(Reason::ClientGone));
            return Err(Next::Abort { reset: true });
        };
        self.io.deadline.set(sending.patience_ms);
        let sent = self.send_parts(opening, &plan, fd, &mut progress).await;
        self.record(account, &progress, sent.err());
        sent.map(|()| keep_alive).map_err(|_| Next::Abort { reset: true })
    }

    fn plan(&self, file: &StoredFile, kind: &str, told: Option<&ReplacedAnswer>) -> Plan {
        let head = &self.session.head;
        let is_read = matches!(head.method(), Method::Get | Method::Head);
        match told {
            // What is said of a failure, or in response to a change, is not what a client may have already.
            Some(told) if !is_of_content(told.status) || !is_read => Plan::all(file.length, told.status),
            _ => {
                let boundary = || format!("{:032x}", self.worker.with_random(|random| random.u128(..)));
                let content = WholeContent { validators: file.validators(), length: file.length, kind };
                Plan::new(&content, head, clock::unix_s(), boundary)
            }
        }
    }
}

/// A file to be sent.
struct Sending<'a> {
    file: &'a StoredFile,
    /// What the application has said of it.
    told: Option<&'a ReplacedAnswer>,
    /// The changes of the route.
    edits: Option<&'a FieldEdits>,
    /// How long the client may take nothing of it, in milliseconds.
    patience_ms: u64,
}

/// Whether an application's status is of the whole content. It knows nothing of ranges of a file that it does not send.
fn is_of_content(status: u16) -> bool {
    matches!(status, 200 | 206 | 416)
}

/// The changes for a response whose type is not that of the file: the one of several ranges, and one without content.
fn without_type(edits: &FieldEdits) -> FieldEdits {
    let is_other = |name: &[u8]| !name.eq_ignore_ascii_case(b"content-type");
    let mut edits = edits.clone();
    edits.remove.retain(|name| is_other(name));
    edits.set.retain(|(name, _)| is_other(name));
    edits.add.retain(|(name, _)| is_other(name));
    edits
}

/// The part of the body that is in memory.
fn body<'f>(file: &'f StoredFile, plan: &'f Plan) -> Cow<'f, [u8]> {
    let Content::Memory(bytes) = &file.content else { return Cow::Borrowed(&[]) };
    let mut pieces = plan.pieces(bytes);
    match (pieces.next(), pieces.next()) {
        (None, _) => Cow::Borrowed(&[]),
        (Some(only), None) => Cow::Borrowed(only),
        (Some(_), Some(_)) => Cow::Owned(plan.pieces(bytes).collect::<Vec<_>>().concat()),
    }
}

/// The fields of a response. A 304 has those that caches may need (RFC 9110 section 15.4.5).
fn fields<'f>(file: &'f StoredFile, plan: &'f Plan) -> impl Iterator<Item = (&'f [u8], &'f [u8])> {
    const OF_CACHES: [&[u8]; 3] = [b"ETag", b"Cache-Control", b"Vary"];
    let is_sent = |name: &[u8]| plan.has_content || (plan.status == 304 && OF_CACHES.contains(&name));
    let own = file.fields.iter().filter(move |(name, _)| is_sent(name));
    let ranges = matches!(plan.status, 200 | 206 | 416).then_some((&b"Accept-Ranges"[..], &b"bytes"[..]));
    let content_range = plan.content_range.as_deref().map(|range| (&b"Content-Range"[..], range));
    own.map(|(name, value)| (*name, &value[..])).chain(ranges).chain(content_range)
}

/// How long a client may take nothing of a file, in milliseconds.
pub(super) fn patience_ms(entry: &RouteEntry) -> u64 {
    let of_cluster = match &entry.target {
        Target::Cluster(cluster) => cluster.config.body_idle_timeout_ms,
        Target::Service(_) | Target::Local => sluice_config::Cluster::default().body_idle_timeout_ms,
    };
    entry.config.body_idle_timeout_ms.unwrap_or(of_cluster)
}

/// Logs that a file cannot be read, at limited intervals.
pub(super) fn report(error: &std::io::Error, target: &[u8]) {
    if is_due() {
        let target = String::from_utf8_lossy(target);
        tracing::error!(%error, %target, "the file for a request cannot be read");
    }
}

/// Whether the last message about a file was long enough ago.
fn is_due() -> bool {
    static NEXT_MS: AtomicU64 = AtomicU64::new(0);
    let now = clock::now_ms();
    let due = |next: u64| (now >= next).then_some(now + REPORT_MS);
    NEXT_MS.fetch_update(Relaxed, Relaxed, due).is_ok()
}
