//! A request that changes something: what is kept of it is no longer right (RFC 9111 section 4.4).

use sluice_cache::{Removal, Resource};
use sluice_http::{RequestHead, ResponseHead};
use std::sync::Arc;

use crate::snapshot::{Snapshot, View};

/// A request with an unsafe method.
pub(crate) struct Change<'a> {
    view: &'a View,
    snapshot: &'a Snapshot,
    host: &'a [u8],
    target: &'a [u8],
}

impl<'a> Change<'a> {
    /// `None` if the request changes nothing, or if there are no caches: then nobody needs to look at its response. `host`
    /// is that of the request.
    pub(crate) fn of(
        view: &'a View,
        snapshot: &'a Snapshot,
        head: &'a RequestHead,
        host: &'a [u8],
    ) -> Option<Self> {
        let changes = !head.method().is_safe() && !snapshot.caches.is_empty();
        changes.then(|| Self { view, snapshot, host, target: head.path_and_query() })
    }

    /// Takes what has changed out of all caches, unless the response says that nothing has. Completes once their
    /// disks have removed it too.
    pub(crate) async fn forget(&self, response: &ResponseHead) {
        if !matches!(response.status(), 200..=399) {
            return;
        }
        let named = [&b"location"[..], b"content-location"].map(|name| response.get(name));
        let named =
            named.into_iter().flatten().filter_map(|location| target_of(location, self.host, self.target));
        // A reload may have made new caches since the request came.
        let current = self.view.current();
        let mut snapshots = vec![self.snapshot];
        if !std::ptr::eq(self.snapshot, &*current) {
            snapshots.push(&current);
        }
        let mut removals = Vec::new();
        for target in named.chain([self.target.to_vec()]) {
            for snapshot in &snapshots {
                removals.extend(self.forget_target(&target, snapshot));
            }
        }
        for removal in removals {
            removal.done().await;
        }
    }

    fn forget_target(&self, target: &[u8], snapshot: &Snapshot) -> Vec<Removal> {
        let mut removals = Vec::new();
        for store in snapshot.caches.values() {
            let is_kept_here =
                |cache: &Option<Arc<_>>| cache.as_ref().is_some_and(|cache| Arc::ptr_eq(cache, store));
            let routes = snapshot.routes.iter().filter(|entry| is_kept_here(&entry.cache));
            let keys: Vec<Vec<u8>> = routes
                .map(|entry| {
                    let mut key = Vec::new();
                    Resource { route: &entry.cache_scope, host: self.host, target }.write(&mut key);
                    key
                })
                .collect();
            let place = (&self.host.to_ascii_lowercase()[..], target);
            removals.extend(store.forget(place, keys.iter().map(Vec::as_slice)));
        }
        removals
    }
}

/// The path and query of a URL on this host; `base` is the target that it may be relative to. Another host may be one
/// that the application does not speak for.
fn target_of(location: &[u8], host: &[u8], base: &[u8]) -> Option<Vec<u8>> {
    const SCHEMES: [(&[u8], &[u8]); 3] = [(b"http://", b":80"), (b"https://", b":443"), (b"//", b"")];
    let location = without_fragment(location);
    let begins =
        |scheme: &[u8]| location.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme));
    let Some((scheme, port)) = SCHEMES.into_iter().find(|(scheme, _)| begins(scheme)) else {
        if location.starts_with(b"/") {
            return Some(location.to_vec());
        }
        let path = base.split(|byte| *byte == b'?').next().unwrap_or_default();
        let folder = path.iter().rposition(|byte| *byte == b'/').map_or(&b"/"[..], |slash| &path[..=slash]);
        return Some([folder, location].concat());
    };
    let rest = &location[scheme.len()..];
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let without_port = |name: &[u8]| name.strip_suffix(port).unwrap_or(name).to_ascii_lowercase();
    let slash = if rest[end..].starts_with(b"/") { &b""[..] } else { b"/" };
    (without_port(&rest[..end]) == without_port(host)).then(|| [slash, &rest[end..]].concat())
}

fn without_fragment(target: &[u8]) -> &[u8] {
    target.split(|byte| *byte == b'#').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_a_target_on_the_same_host() {
        for (location, wanted) in [
            ("/b?c#d", Some("/b?c")),
            ("http://a.test/b", Some("/b")),
            ("HTTPS://A.test:443/b", Some("/b")),
            ("//a.test", Some("/")),
            ("http://a.test?b", Some("/?b")),
            ("c?d", Some("/x/c?d")),
            ("http://b.test/b", None),
            ("http://a.test:81/b", None),
            ("http://a.test.b.test/", None),
        ] {
            let target = target_of(location.as_bytes(), b"a.test", b"/x/y?z=/");
            assert_eq!(target, wanted.map(|wanted| wanted.as_bytes().to_vec()), "{location}");
        }
    }
}
