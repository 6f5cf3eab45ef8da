//! A running response: if the origin is stopped during it, its client may see a cut, and only then.

use std::sync::Arc;

use super::super::findings::Findings;
use super::super::token::Token;

/// Records that a response was broken off, unless it was completed in a way that sluice is responsible for:
/// [`Answering::done`].
pub(super) struct Answering {
    findings: Arc<Findings>,
    token: Token,
    done: bool,
}

impl Answering {
    pub(super) fn new(findings: &Arc<Findings>, token: Token) -> Self {
        Self { findings: Arc::clone(findings), token, done: false }
    }

    pub(super) fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        if !self.done {
            self.findings.break_off(self.token);
        }
    }
}
