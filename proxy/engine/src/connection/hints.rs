//! Early hints (RFC 8297): what a browser may fetch while the application is asked whether a stored response is right.

use std::sync::Arc;

use sluice_cache::StoredResponse;
use sluice_http::{Framing, ListenerFields, Method, ResponseForward};

use super::Connection;
use super::account::Account;
use super::cached::{Look, patience_ms};
use crate::opening::Opening;

/// Whether a client has got the hints for a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hints {
    Unsent,
    Sent,
}

impl Connection {
    /// Sends the links of a stored response, once for a request, if its cache and its client want that.
    pub(super) async fn send_hints(
        &mut self,
        stored: Option<&Arc<StoredResponse>>,
        look: &Look<'_>,
        account: &Account,
        hints: &mut Hints,
    ) {
        let Some(stored) = stored.filter(|_| *hints == Hints::Unsent && look.store.config().early_hints)
        else {
            return;
        };
        *hints = Hints::Sent;
        let edits = look.entry.response_edits.as_ref();
        if !self.understands_hints() || edits.is_some_and(|edits| edits.takes_out(b"link")) {
            return;
        }
        let Some(head) = stored.early_hints() else { return };
        self.io.deadline.set(patience_ms(look.entry));
        let settled = self.io.deadline.run(self.io.writer.settle(&self.io.deadline)).await;
        if !matches!(settled, Some(Ok(()))) {
            // The response will meet the same.
            return;
        }
        let forward = ResponseForward {
            framing: Framing::None,
            keep_alive: true,
            client_version: self.session.head.version(),
            request_method: self.session.head.method(),
            via: account.snapshot.config.via,
            is_encoded: false,
            upgrade: false,
            edits: None,
            extra: [None; 5],
            request_id: None,
            listener: ListenerFields::NONE,
        };
        let mut opening = Opening::to(&mut self.io.writer);
        opening.encode_response(&head, &forward);
        if let Ok(bytes) = opening.begin(&mut self.io.writer, false) {
            self.io.writer.submit(bytes, 0);
        }
    }

    /// Browsers understand them by HTTP/2 alone, and only for a page that is opened. Older clients take a 103 for the
    /// response.
    fn understands_hints(&self) -> bool {
        let head = &self.session.head;
        let mode = head.get(b"sec-fetch-mode");
        head.version().is_framed()
            && head.method() == Method::Get
            && mode.is_none_or(|mode| mode.eq_ignore_ascii_case(b"navigate"))
    }
}
