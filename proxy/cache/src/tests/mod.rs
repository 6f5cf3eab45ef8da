//! The rules by tables, and the store by its bounds.
#![allow(clippy::unwrap_used)]

mod disk;
mod fills;
mod rules;
mod store;

use bytes::Bytes;
use sluice_config::Cache;
use sluice_http::{HeadLimits, HeadScanner, RequestHead, ResponseHead, Scan};

use crate::{Admission, Caller, ExchangeTimes, Refusal, RequestFacts, Store, StoredResponse};

const LIMITS: HeadLimits = HeadLimits { head_bytes_max: 65_536, headers_max: 99, target_bytes_max: 65_536 };
/// Sun, 06 Nov 1994 08:49:37 GMT.
const NOW_MS: u64 = 784_111_777_000;

pub(crate) fn request(fields: &str) -> RequestHead {
    let bytes = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n").into_bytes();
    assert!(matches!(HeadScanner::new().scan(&bytes, &LIMITS), Ok(Scan::Complete(_))));
    let mut head = RequestHead::new();
    head.parse(&bytes, &LIMITS).unwrap();
    head
}

fn response(status: u16, fields: &str) -> ResponseHead {
    let bytes = format!("HTTP/1.1 {status} X\r\n{fields}\r\n").into_bytes();
    let mut head = ResponseHead::new();
    head.parse(&bytes, &LIMITS).unwrap();
    head
}

fn caller(request: &RequestHead) -> Caller<'_> {
    let has_credentials = request.get(b"authorization").is_some();
    Caller { request, origin: b"http", has_credentials }
}

fn asked<'r>(request: &'r RequestHead) -> RequestFacts<'r> {
    RequestFacts {
        caller: caller(request),
        is_ours: &|name| name == b"x-ours",
        is_dropped: &|name| name == b"x-dropped",
    }
}

const WHEN: ExchangeTimes = ExchangeTimes { asked_ms: NOW_MS, received_ms: NOW_MS };

pub(crate) fn admitted(
    request: &RequestHead,
    status: u16,
    fields: &str,
    config: &Cache,
) -> Result<Admission, Refusal> {
    Admission::of(&asked(request), &response(status, fields), WHEN, config)
}

fn stored_for(request: &RequestHead, fields: &str, body: usize) -> Option<std::sync::Arc<StoredResponse>> {
    let admission = admitted(request, 200, fields, &Cache::default()).ok()?;
    let room = Store::new("a", &Cache::default()).room(Some(body as u64)).unwrap();
    Some(admission.complete(Bytes::from(vec![b'a'; body]), room).unwrap().stored)
}
