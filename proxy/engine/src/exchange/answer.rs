//! What the client is told in the head of an answer beside what the origin said.

use std::sync::Arc;

use sluice_core::cluster::Endpoint;
use sluice_http::{Framing, RequestHead, ResponseForward, ResponseHead};

use super::Policy;
use crate::debug;
use crate::opening::Opening;
use crate::progress::Progress;

/// What the answer has to fit.
pub(super) struct Answer<'a> {
    pub(super) request: &'a RequestHead,
    pub(super) keep_alive: bool,
    pub(super) endpoint: Option<Arc<Endpoint>>,
    /// Of the listener.
    pub(super) hsts: Option<&'a [u8]>,
}

impl Answer<'_> {
    /// Name and value of the field that says which endpoint answers, each if there is one.
    fn endpoint_field<'a>(&'a self, policy: &'a Policy<'_>) -> (Option<&'a [u8]>, Option<&'a [u8]>) {
        let label = self.endpoint.as_ref().map(|endpoint| endpoint.label.as_bytes());
        (policy.cluster.config.endpoint_header.as_ref().map(String::as_bytes), label)
    }

    /// Writes a final head as the client gets it: edited as its route says, and with what says who answered.
    #[expect(clippy::too_many_arguments, reason = "a pure step of the download, with what that has")]
    pub(super) fn encode_final(
        &self,
        out: &mut Opening,
        head: &ResponseHead,
        policy: &Policy<'_>,
        progress: &Progress,
        (framing, keep_alive): (Framing, bool),
    ) {
        let (field, label) = self.endpoint_field(policy);
        let debug = policy.request.debug.as_ref().map(|facts| facts.fields(progress));
        let [timing, facts] = debug_fields(debug.as_ref());
        let forward = ResponseForward {
            via: policy.via,
            edits: policy.response_edits,
            extra: [field.zip(label), timing, facts],
            ..forward_head(self, framing, keep_alive)
        };
        out.encode_response(head, &forward);
    }
}

pub(super) fn forward_head<'a>(
    answer: &Answer<'a>,
    framing: Framing,
    keep_alive: bool,
) -> ResponseForward<'a> {
    ResponseForward {
        framing,
        keep_alive,
        client_version: answer.request.version(),
        request_method: answer.request.method(),
        via: false,
        upgrade: false,
        edits: None,
        extra: [None; 3],
        hsts: answer.hsts,
    }
}

/// What a field list has of the fields that were asked for.
pub(super) fn debug_fields(fields: Option<&debug::Fields>) -> [Option<(&[u8], &[u8])>; 2] {
    fields.map_or([None; 2], |fields| fields.each().map(Some))
}
