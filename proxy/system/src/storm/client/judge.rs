//! Decides whether a client gets the response that its request asked for.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::super::findings::Outcome;
use super::super::mode::Conduct;
use super::super::plan::Plan;
use super::super::token::{Kind, Token};
use super::Context;
use super::decoder::Decoder;

/// sluice's own statuses if an origin gives no response.
const OWN_STATUSES: [u16; 3] = [502, 503, 504];
/// Its own pages are short.
const OWN_BYTES_MAX: usize = 4096;
const SHOWN_BYTES: usize = 64;

/// The source of the response.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Speaker {
    Origin,
    Sluice(u16),
    /// The origin, which had not seen the request.
    Idle,
}

/// Known properties of a response's head.
pub(super) struct Head<'a> {
    pub(super) status: u16,
    pub(super) token: Option<&'a [u8]>,
    /// Whether it is the 408 of an idle connection.
    pub(super) idle: bool,
    /// The coding of its body.
    pub(super) coding: Option<&'a [u8]>,
}

/// How a response ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// As its framing says.
    Complete,
    /// In a way that shows that something is missing.
    Cut,
    /// In order, before any byte; the client knows whether this is allowed.
    Nothing { excused: bool },
    /// Cancelled by the client.
    Abandoned,
}

/// Watches one request.
pub(super) struct Judge {
    context: Rc<Context>,
    pub(super) plan: Plan,
    /// How the request is sent, in words.
    manner: String,
    speaker: Option<Speaker>,
    /// Bytes of the body so far.
    offset: usize,
    /// The text of sluice's own response.
    text: Vec<u8>,
    /// Decodes the body.
    decoder: Decoder,
    untellable: bool,
    faulty: bool,
    /// How often something of the response has come.
    heard: Rc<Cell<u64>>,
    /// The error with which it ended, if any.
    error: Option<String>,
    /// Earlier responses on this connection, newest last, for examining a wrong one.
    history: Rc<RefCell<Vec<String>>>,
}

impl Judge {
    pub(super) fn new(
        context: &Rc<Context>,
        plan: Plan,
        manner: String,
        history: &Rc<RefCell<Vec<String>>>,
    ) -> Self {
        let (context, history) = (Rc::clone(context), Rc::clone(history));
        let (speaker, text) = (None, Vec::new());
        let (untellable, faulty) = (false, false);
        let (decoder, heard, error) = (Decoder::Plain, Rc::default(), None);
        Self {
            context,
            plan,
            manner,
            speaker,
            offset: 0,
            text,
            decoder,
            untellable,
            faulty,
            heard,
            error,
            history,
        }
    }

    /// Counts what comes of the response.
    pub(super) fn heard(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.heard)
    }

    /// Records the error with which it ends, to be shown with a fault.
    pub(super) fn fails(&mut self, error: &dyn std::fmt::Display) {
        self.error = Some(format!(" ({error})"));
    }

    /// Checks the head of an interim response, of which only the token matters.
    pub(super) fn interim(&mut self, head: &Head<'_>) {
        self.look_at(head);
    }

    /// Checks the final head; returns whether the body is worth reading.
    pub(super) fn head(&mut self, head: &Head<'_>) -> bool {
        self.heard.set(self.heard.get() + 1);
        if head.idle {
            self.untellable = true;
            self.speaker = Some(Speaker::Idle);
            return true;
        }
        if !self.look_at(head) {
            return false;
        }
        let status = head.status;
        match head.coding.map(Decoder::of) {
            None => {}
            Some(Some(decoder)) if head.coding == self.plan.accepts.map(str::as_bytes) => {
                self.decoder = decoder
            }
            Some(_) => self.fault("it is encoded in a way that its client does not take"),
        }
        if head.token.is_some() {
            self.speaker = Some(Speaker::Origin);
            if status != self.plan.mode.status() {
                let expected = self.plan.mode.status();
                self.fault(&format!("status {status} instead of {expected}"));
            }
        } else {
            self.speaker = Some(Speaker::Sluice(status));
            if !OWN_STATUSES.contains(&status) {
                self.fault(&format!("sluice itself responds {status}"));
            }
        }
        !self.faulty
    }

    /// Whether the token is the request's.
    fn look_at(&mut self, head: &Head<'_>) -> bool {
        let Some(text) = head.token else {
            return true;
        };
        match Token::parse(text) {
            Some(token) if token == self.plan.token => true,
            Some(token) if token.kind() == Some(Kind::Untellable) && token.is_of(self.context.seed) => {
                self.untellable = true;
                false
            }
            token => {
                let whose = token.map(|token| self.describe(token)).unwrap_or_default();
                let text = String::from_utf8_lossy(text).into_owned();
                self.fault(&format!("a head with token {text}{whose}, status {}", head.status));
                false
            }
        }
    }

    /// Checks a piece of the body; returns whether to continue reading.
    pub(super) fn body(&mut self, data: &[u8]) -> bool {
        self.heard.set(self.heard.get() + 1);
        match self.decoder.decode(data) {
            Ok(decoded) => self.plain_body(&decoded.unwrap_or_else(|| data.to_vec())),
            Err(error) => {
                self.fault(&format!("the body cannot be decoded: {error}"));
                false
            }
        }
    }

    fn plain_body(&mut self, data: &[u8]) -> bool {
        match self.speaker {
            Some(Speaker::Origin) => {
                if let Some(at) = self.plan.token.difference(self.offset, data) {
                    let got = &data[at - self.offset..];
                    let expected = self.plan.token.body(at + SHOWN_BYTES).split_off(at);
                    let what = format!(
                        "byte {at} of the body differs\n    expected {}\n    got      {}{}",
                        shown(&expected),
                        shown(got),
                        self.whose(data)
                    );
                    self.fault(&what);
                } else if self.offset + data.len() > self.plan.answer_bytes() {
                    let (more, most) = (self.offset + data.len(), self.plan.answer_bytes());
                    self.fault(&format!("{more} bytes of body, but it has {most}"));
                }
            }
            _ => {
                self.text.extend_from_slice(data);
                if self.text.len() > OWN_BYTES_MAX || Token::find(&self.text, self.context.seed).is_some() {
                    let whose = self.whose(&self.text);
                    self.fault(&format!("bytes of an origin in sluice's own response{whose}"));
                }
            }
        }
        self.offset += data.len();
        !self.faulty
    }

    /// Bytes arrived that belong to no response.
    pub(super) fn surplus(&mut self, data: &[u8]) {
        let what = format!("bytes after the last response: {}{}", shown(data), self.whose(data));
        self.fault(&what);
    }

    /// Bytes that are not HTTP.
    pub(super) fn unreadable(&mut self, data: &[u8]) {
        let what = format!("not HTTP: {}{}", shown(data), self.whose(data));
        self.fault(&what);
    }

    /// Silence for longer than any time limit of sluice.
    pub(super) fn hang(&mut self) {
        self.fault(&format!("no further bytes, after {} bytes of body", self.offset));
    }

    pub(super) fn is_faulty(&self) -> bool {
        self.faulty
    }

    pub(super) fn is_untellable(&self) -> bool {
        self.untellable
    }

    /// Counts the request, after a last check.
    pub(super) fn end(mut self, end: End) {
        let right = self.plan.mode.conduct() == Conduct::Right;
        let broken_off = self.context.findings.is_broken_off(self.plan.token);
        let missing = self.plan.answer_bytes().checked_sub(self.offset).filter(|missing| *missing > 0);
        match (end, self.speaker) {
            _ if self.untellable => {}
            (End::Complete, Some(Speaker::Origin))
                if self.plan.answer_bytes() > 0 && !self.decoder.is_complete() =>
            {
                self.fault("it ends as if complete, but its coding does not");
            }
            (End::Complete, Some(Speaker::Origin)) => {
                if let Some(missing) = missing {
                    self.fault(&format!("it ends as if complete, but lacks {missing} bytes"));
                }
            }
            (End::Cut, _) if right && !broken_off => {
                self.fault(&format!(
                    "cut at byte {} of a body that the origin has sent completely",
                    self.offset
                ));
            }
            (End::Nothing { excused: false }, _) if right && !broken_off => self.fault("no response at all"),
            _ => {}
        }
        self.history.borrow_mut().push(format!("{} {end:?}", self.plan.target()));
        if self.faulty {
            return;
        }
        let outcome = match (end, self.speaker) {
            _ if self.untellable => Outcome::Untellable,
            (End::Abandoned, _) => Outcome::Abandoned,
            (End::Nothing { .. }, _) => Outcome::Unanswered,
            (End::Cut, _) => Outcome::Cut,
            (End::Complete, Some(Speaker::Sluice(status))) => Outcome::Refused(status),
            (End::Complete, _) => Outcome::Whole,
        };
        self.context.findings.count(self.plan.mode.name(), outcome);
    }

    fn fault(&mut self, what: &str) {
        // Consequences of the first fault add no information.
        if std::mem::replace(&mut self.faulty, true) {
            return;
        }
        let Plan { token, method, upload, expect, size, .. } = self.plan;
        let history = self.history.borrow();
        let before: Vec<&str> = history.iter().rev().take(3).map(String::as_str).collect();
        let elapsed = self.context.started.elapsed().as_millis();
        let error = self.error.as_deref().unwrap_or_default();
        self.context.findings.fault(format!(
            "  client {} {}, request {}, token {token}, after {elapsed} ms: {what}{error}\n    request: \
             {method:?} {} ({upload:?}, expect {expect}, {size} bytes); before on this connection: \
             {before:?}",
            token.client(),
            self.manner,
            token.number(),
            self.plan.target(),
        ));
    }

    /// The request that these bytes belong to, in words.
    fn whose(&self, data: &[u8]) -> String {
        let others = data.windows(16).filter_map(Token::parse);
        let mut others = others.filter(|token| token.is_of(self.context.seed) && *token != self.plan.token);
        others.next().map(|token| self.describe(token)).unwrap_or_default()
    }

    fn describe(&self, token: Token) -> String {
        if !token.is_of(self.context.seed) {
            return " (of no request of this run)".to_owned();
        }
        let plan = Plan::draw(token.with(Kind::Answer), &self.context.menu);
        let (client, number) = (token.client(), token.number());
        let kind = if token.kind() == Some(Kind::Answer) { "the response" } else { "surplus" };
        format!(
            "\n    it is {kind} of request {number} of client {client}: {:?} {}",
            plan.method,
            plan.target()
        )
    }
}

fn shown(data: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(&data[..data.len().min(SHOWN_BYTES)]))
}
