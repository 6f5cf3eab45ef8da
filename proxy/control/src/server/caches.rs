//! `/v1/caches`: what caches hold, and how an operator takes something out.

use hyper::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sluice_cache::Purge;
use sluice_engine::snapshot::Snapshot;

use crate::commands::{CACHES, Failure, read};

/// `POST /v1/caches/purge`: exactly one of the last four.
#[derive(Debug, Default, Serialize, Deserialize)]
struct PurgeRequest {
    /// The cache; all of them if none is named.
    cache: Option<String>,
    /// The URL of a response, or only its path and query, for every host.
    url: Option<String>,
    /// The beginning of URLs, in the same way.
    prefix: Option<String>,
    /// A word that the application has given in Cache-Tag or Surrogate-Key.
    tag: Option<String>,
    /// Everything.
    all: Option<bool>,
}

/// Carries out an operation on caches.
pub(super) async fn answer(
    snapshot: &Snapshot,
    method: &Method,
    path: &str,
    body: &[u8],
) -> Result<Value, Failure> {
    if *method == Method::GET && path == CACHES {
        let caches = snapshot.caches.values().map(|store| {
            json!({
                "name": store.name,
                "bytes": store.bytes(),
                "bytes_max": store.config().memory_bytes_max,
                "resources": store.resources(),
                "disk": store.on_disk().map(|disk| json!({
                    "is_open": disk.is_open,
                    "bytes": disk.bytes,
                    "bytes_max": store.config().disk.as_ref().map(|disk| disk.size_bytes_max),
                    "files": disk.files,
                })),
            })
        });
        return Ok(json!({ "caches": caches.collect::<Vec<_>>() }));
    }
    let request: PurgeRequest = read(body)?;
    let purge = purge(&request)?;
    let is_meant = |name: &String| request.cache.as_ref().is_none_or(|cache| cache == name);
    let meant: Vec<_> = snapshot.caches.iter().filter(|(name, _)| is_meant(name)).collect();
    if let Some(cache) = request.cache.as_ref().filter(|_| meant.is_empty()) {
        let known: Vec<_> = snapshot.caches.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "there are none".to_owned() } else { known.join(", ") };
        let message = format!("no route uses a cache named {cache:?}; those in use: {known}");
        return Err(Failure::new(StatusCode::NOT_FOUND, &message));
    }
    let (mut purged, mut removals) = (0, Vec::new());
    for (_, store) in meant {
        let (resources, removal) = store.purge(&purge);
        purged += resources;
        removals.extend(removal);
    }
    for removal in removals {
        removal.done().await;
    }
    tracing::info!(request = %String::from_utf8_lossy(body), purged, "an operator has purged caches");
    Ok(json!({ "purged": purged }))
}

fn purge(request: &PurgeRequest) -> Result<Purge, Failure> {
    let refused = |message: &str| Failure::new(StatusCode::UNPROCESSABLE_ENTITY, message);
    let tag = request.tag.as_ref().map(|tag| Ok(Purge::Tag(tag.trim().as_bytes().to_vec())));
    let place = |text: &Option<String>| text.as_ref().map(|text| place(text));
    let exact = place(&request.url).map(|place| place.map(|(host, target)| Purge::Exact { host, target }));
    let prefix =
        place(&request.prefix).map(|place| place.map(|(host, target)| Purge::Prefix { host, target }));
    let all = request.all.filter(|all| *all).map(|_| Ok(Purge::All));
    let mut given = [exact, prefix, tag, all].into_iter().flatten();
    match (given.next(), given.next()) {
        (Some(purge), None) => purge,
        _ => Err(refused("write one of url, prefix, tag, and all: true")),
    }
}

/// The host, and the path with its query, of a URL; without a host it stands for every one.
fn place(text: &str) -> Result<(Vec<u8>, Vec<u8>), Failure> {
    let refused = || {
        let message = format!(
            "{text:?} is not a URL; write one such as https://example.com/page, or /page for every host"
        );
        Failure::new(StatusCode::UNPROCESSABLE_ENTITY, &message)
    };
    let text = text.split('#').next().unwrap_or_default();
    let schemes = [("https://", Some(":443")), ("http://", Some(":80")), ("//", None)];
    let Some((rest, port)) =
        schemes.iter().find_map(|(scheme, port)| Some((text.strip_prefix(scheme)?, *port)))
    else {
        return match text.starts_with('/') {
            true => Ok((Vec::new(), text.as_bytes().to_vec())),
            false => Err(refused()),
        };
    };
    let (host, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    // Clients leave the port of the scheme out.
    let host = port.and_then(|port| host.strip_suffix(port)).unwrap_or(host).to_ascii_lowercase();
    let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
    match host.is_empty() || host.contains('@') {
        true => Err(refused()),
        false => Ok((host.into_bytes(), target.into_bytes())),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_host_and_a_target() {
        for (text, wanted) in [
            ("https://A.test/b?c#d", Some(("a.test", "/b?c"))),
            ("https://a.test:443", Some(("a.test", "/"))),
            ("http://a.test:443/", Some(("a.test:443", "/"))),
            ("http://a.test:80?b", Some(("a.test", "/?b"))),
            ("//a.test/b", Some(("a.test", "/b"))),
            ("/b?c", Some(("", "/b?c"))),
            ("a.test/b", None),
            ("https:///b", None),
            ("https://u@a.test/", None),
            ("", None),
        ] {
            let place = place(text).ok();
            let place = place.as_ref().map(|(host, target)| (&host[..], &target[..]));
            assert_eq!(place, wanted.map(|(host, target)| (host.as_bytes(), target.as_bytes())), "{text}");
        }
    }

    #[test]
    fn one_thing_is_purged_at_a_time() {
        let asked = |body: &str| purge(&read(body.as_bytes()).unwrap());
        assert_eq!(asked(r#"{"tag": " a "}"#).unwrap(), Purge::Tag(b"a".to_vec()));
        assert_eq!(asked(r#"{"all": true}"#).unwrap(), Purge::All);
        for refused in ["{}", r#"{"all": false}"#, r#"{"all": true, "tag": "a"}"#, r#"{"url": "a"}"#] {
            assert!(asked(refused).is_err(), "{refused}");
        }
    }
}
