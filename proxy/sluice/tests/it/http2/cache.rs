//! Stored responses by HTTP/2.

use serde_json::json;

use super::client::{ask, get, talk, to};
use crate::support::{Origin, Setup, assert_same, pattern};

#[test]
fn stored_responses_arrive_whole_on_many_streams_at_once() {
    let origin = Origin::answering(|request| {
        let body = match request.target() {
            "/away" => return b"HTTP/1.1 302 Found\r\nCache-Control: max-age=60\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n".to_vec(),
            "/none" => return b"HTTP/1.1 204 No Content\r\nCache-Control: max-age=60\r\n\r\n".to_vec(),
            "/large" => pattern(900_000),
            _ => pattern(10),
        };
        let head = format!(
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nETag: \"a\"\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        [head.as_bytes(), &body].concat()
    });
    let setup = Setup::to_origin(&origin)
        .with("listeners.0.http2", "prior_knowledge")
        .with("caches", json!({"pages": {}}))
        .with("routes", json!([{"cluster": "default", "cache": "pages"}]));
    let Some(proxy) = setup.start() else { return };
    talk(&proxy, async |sender| {
        for _ in 0..3 {
            let (large, again, small, away, none, head, part) = tokio::join!(
                get(&sender, "/large"),
                get(&sender, "/large"),
                get(&sender, "/small"),
                get(&sender, "/away"),
                get(&sender, "/none"),
                ask(&sender, to("/small").method("HEAD").body(()).unwrap()),
                ask(&sender, to("/small").header("range", "bytes=2-4").body(()).unwrap()),
            );
            assert_same(&large.body, &pattern(900_000));
            assert_same(&again.body, &pattern(900_000));
            assert_same(&small.body, &pattern(10));
            assert_eq!((away.status(), away.get("location"), away.body.len()), (302, Some("/b"), 0));
            assert_eq!((none.status(), none.body.len()), (204, 0));
            assert_eq!((head.get("content-length"), head.body.len()), (Some("10"), 0));
            assert!(part.status() == 206 || part.status() == 200);
            let same = ask(&sender, to("/small").header("if-none-match", "\"a\"").body(()).unwrap()).await;
            assert_eq!((same.status(), same.body.len()), (304, 0));
        }
    });
    let of_large = origin.requests().iter().filter(|request| request.target() == "/large").count();
    assert_eq!(of_large, 1);
}
