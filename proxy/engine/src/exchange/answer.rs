//! The fields that are added to the head of a response.

use sluice_core::cluster::Endpoint;
use sluice_http::{Framing, ListenerFields, RequestHead, ResponseForward, ResponseHead};

use super::Policy;
use super::encoded::EncodedAnswer;
use crate::cache::{CACHE_STATUS, CacheStatus, Change};
use crate::debug;
use crate::opening::Opening;
use crate::progress::Progress;

/// What the response depends on.
pub(super) struct Answer<'a> {
    pub(super) request: &'a RequestHead,
    /// What the request changes in caches.
    pub(super) change: Option<&'a Change<'a>>,
    pub(super) keep_alive: bool,
    pub(super) endpoint: &'a Endpoint,
    /// What the listener says.
    pub(super) listener: ListenerFields<'a>,
}

impl Answer<'_> {
    /// Name and value of the field that names the endpoint, if the cluster has one.
    fn endpoint_field<'a>(&'a self, policy: &'a Policy<'_>) -> Option<(&'a [u8], &'a [u8])> {
        let field = policy.cluster.config.endpoint_header.as_ref()?;
        Some((field.as_bytes(), self.endpoint.label.as_bytes()))
    }

    /// Encodes a final head for the client: with the route's edits, and with the field that names the endpoint.
    #[expect(clippy::too_many_arguments, reason = "a pure step of the download, with its parts")]
    pub(super) fn encode_final(
        &self,
        out: &mut Opening,
        head: &ResponseHead,
        policy: &Policy<'_>,
        progress: &Progress,
        (framing, keep_alive): (Framing, bool),
        encoded: Option<&EncodedAnswer>,
    ) {
        let field = self.endpoint_field(policy);
        let debug = policy.request.debug.as_ref().map(|facts| facts.fields(progress));
        let [timing, facts] = debug_fields(debug.as_ref());
        let status = policy.cache.status().map(CacheStatus::value);
        let is_removed = policy.response_edits.is_some_and(|edits| edits.takes_out(CACHE_STATUS));
        let status = status.as_ref().filter(|_| !is_removed).map(|value| (CACHE_STATUS, &value[..]));
        let forward = ResponseForward {
            via: policy.via,
            request_id: policy.request.request_id.as_deref(),
            edits: encoded.map(|encoded| &encoded.edits).or(policy.response_edits),
            is_encoded: encoded.is_some_and(EncodedAnswer::is_encoded),
            extra: [field, timing, facts, status, None],
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
        request_id: None,
        is_encoded: false,
        upgrade: false,
        edits: None,
        extra: [None; 5],
        listener: answer.listener,
    }
}

/// The debug fields as entries of a field list.
pub(super) fn debug_fields(fields: Option<&debug::Fields>) -> [Option<(&[u8], &[u8])>; 2] {
    fields.map_or([None; 2], |fields| fields.each().map(Some))
}
