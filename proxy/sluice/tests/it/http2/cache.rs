//! Stored responses by HTTP/2.

use std::future::poll_fn;

use bytes::Bytes;
use h2::client::SendRequest;
use serde_json::json;

use super::client::{answer, ask, get, talk, to};
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

#[test]
fn links_of_a_kept_page_come_before_the_page() {
    let origin = Origin::answering(|request| {
        let links = "Link: </a.css>; rel=preload; as=style, </next>; rel=next\r\n";
        let head = format!("Cache-Control: no-cache\r\nETag: \"1\"\r\n{links}");
        match request.get("if-none-match") {
            Some(_) => format!("HTTP/1.1 304 Not Modified\r\n{head}\r\n").into_bytes(),
            None => format!("HTTP/1.1 200 OK\r\n{head}Content-Length: 4\r\n\r\npage").into_bytes(),
        }
    });
    let serve = |is_on: bool| {
        let setup = Setup::to_origin(&origin)
            .with("listeners.0.http2", "prior_knowledge")
            .with("caches", json!({"pages": {"early_hints": is_on}}))
            .with("routes", json!([{"cluster": "default", "cache": "pages"}]));
        setup.start()
    };
    let Some(proxy) = serve(true) else { return };
    let hints = async |sender: &SendRequest<Bytes>, mode: &str| {
        let mut sender = sender.clone().ready().await.unwrap();
        let request = to("/").header("sec-fetch-mode", mode).body(()).unwrap();
        let (mut response, _) = sender.send_request(request, true).unwrap();
        let hints = poll_fn(|cx| response.poll_informational(cx)).await.map(Result::unwrap);
        let links = hints.map(|head| {
            assert_eq!(head.status().as_u16(), 103);
            let links = head.headers().get_all("link").iter();
            links.map(|link| link.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        });
        assert_eq!(&answer(response.await.unwrap()).await.unwrap().body[..], b"page");
        links
    };
    let wanted = Some(vec!["</a.css>; rel=preload; as=style".to_owned()]);
    talk(&proxy, async |sender| {
        assert_eq!(hints(&sender, "navigate").await, None, "nothing is known yet");
        assert_eq!(hints(&sender, "navigate").await, wanted);
        assert_eq!(hints(&sender, "cors").await, None, "a script does not look at it");
    });
    let proxy = serve(false).unwrap();
    talk(&proxy, async |sender| {
        assert_eq!((hints(&sender, "navigate").await, hints(&sender, "navigate").await), (None, None));
    });
}
