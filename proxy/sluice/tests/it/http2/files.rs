//! Files of a route by HTTP/2.

use serde_json::json;

use super::client::{ask, get, talk, to};
use crate::support::{Setup, assert_same, pattern};

#[test]
fn files_arrive_whole_on_many_streams_at_once() {
    let setup = Setup::to(&[]).without("clusters").with("listeners.0.http2", "prior_knowledge");
    let root = setup.folder.join("public");
    std::fs::create_dir_all(&root).unwrap();
    let (large, medium) = (pattern(2_000_003), pattern(40_000));
    for (name, content) in [("large", &large[..]), ("medium", &medium), ("small", b"s"), ("none", b"")] {
        std::fs::write(root.join(name), content).unwrap();
    }
    let Some(proxy) = setup.with("routes", json!([{"files": {"root": root}}])).start() else { return };
    talk(&proxy, async |sender| {
        let (large_answer, medium_answer, small, none, head, part) = tokio::join!(
            get(&sender, "/large"),
            get(&sender, "/medium"),
            get(&sender, "/small"),
            get(&sender, "/none"),
            ask(&sender, to("/large").method("HEAD").body(()).unwrap()),
            ask(&sender, to("/large").header("range", "bytes=1000000-1999999").body(()).unwrap()),
        );
        assert_same(&large_answer.body, &large);
        assert_same(&medium_answer.body, &medium);
        assert_eq!((small.status(), &small.body[..]), (200, &b"s"[..]));
        assert_eq!((none.status(), none.body.len()), (200, 0));
        assert_eq!((head.get("content-length"), head.body.len()), (Some("2000003"), 0));
        assert_eq!(part.status(), 206);
        assert_same(&part.body, &large[1_000_000..2_000_000]);
        let tag = large_answer.get("etag").unwrap();
        let same = ask(&sender, to("/large").header("if-none-match", tag).body(()).unwrap()).await;
        assert_eq!((same.status(), same.body.len()), (304, 0));
        assert_eq!(get(&sender, "/nothing").await.status(), 404);
    });
}
