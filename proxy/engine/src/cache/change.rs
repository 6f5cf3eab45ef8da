//! A request that changes something: what is kept of it is no longer right (RFC 9111 section 4.4).

use std::sync::Arc;

use sluice_cache::Resource;
use sluice_http::{RequestHead, ResponseHead};

use crate::snapshot::Snapshot;

/// A request with an unsafe method.
pub(crate) struct Change<'a> {
    snapshot: &'a Snapshot,
    host: &'a [u8],
    target: &'a [u8],
}

impl<'a> Change<'a> {
    /// `None` if the request changes nothing, or if there are no caches. `host` is that of the request.
    pub(crate) fn of(snapshot: &'a Snapshot, head: &'a RequestHead, host: &'a [u8]) -> Option<Self> {
        let changes = !head.method().is_safe() && !snapshot.caches.is_empty();
        changes.then(|| Self { snapshot, host, target: head.path_and_query() })
    }

    /// Takes what has changed out of all caches, unless the response says that nothing has.
    pub(crate) fn forget(&self, response: &ResponseHead) {
        if !matches!(response.status(), 200..=399) {
            return;
        }
        let named = [&b"location"[..], b"content-location"].map(|name| response.get(name));
        let named = named.into_iter().flatten().filter_map(|location| target_of(location, self.host));
        for target in named.chain([self.target]) {
            self.forget_target(target);
        }
    }

    fn forget_target(&self, target: &[u8]) {
        for store in self.snapshot.caches.values() {
            let is_kept_here =
                |cache: &Option<Arc<_>>| cache.as_ref().is_some_and(|cache| Arc::ptr_eq(cache, store));
            let routes = self.snapshot.routes.iter().filter(|entry| is_kept_here(&entry.cache));
            let keys: Vec<Vec<u8>> = routes
                .map(|entry| {
                    let mut key = Vec::new();
                    Resource { route: &entry.cache_scope, host: self.host, target }.write(&mut key);
                    key
                })
                .collect();
            store.forget((&self.host.to_ascii_lowercase(), target), keys.iter().map(Vec::as_slice));
        }
    }
}

/// The path and query of a URL on this host. Another host may be one that the application does not speak for.
fn target_of<'l>(location: &'l [u8], host: &[u8]) -> Option<&'l [u8]> {
    let rest = [&b"http://"[..], b"https://", b"//"].iter().find_map(|start| location.strip_prefix(*start));
    let Some(rest) = rest else { return location.starts_with(b"/").then(|| without_fragment(location)) };
    let end = rest.iter().position(|byte| *byte == b'/')?;
    rest[..end].eq_ignore_ascii_case(host).then(|| without_fragment(&rest[end..]))
}

fn without_fragment(target: &[u8]) -> &[u8] {
    target.split(|byte| *byte == b'#').next().unwrap_or_default()
}
