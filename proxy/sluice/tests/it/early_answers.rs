//! Responses before the request is complete: Expect, refusals, and bodies in both directions at once.

use crate::support::{Origin, Setup, ok, pattern};

#[test]
fn a_refused_expectation_closes_the_connection() {
    let origin = Origin::playing(|mut peer| {
        peer.try_head().unwrap();
        peer.send("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno");
        peer.expect_end();
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = proxy.connect();
    let answer =
        client.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!((answer.status(), answer.text()), (403, "no"));
    assert_eq!(answer.get("connection"), Some("close"), "a body may or may not follow");
    client.finish();
    client.expect_end();
}

#[test]
fn an_expectation_without_a_route_gets_no_100() {
    let origin = Origin::saying("");
    let routes = serde_json::json!([{"path_prefix": "/app", "cluster": "default"}]);
    let Some(proxy) = Setup::to_origin(&origin).with("routes", routes).start() else { return };
    let mut client = proxy.connect();
    let answer =
        client.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!((answer.status(), answer.get("connection")), (404, Some("close")), "no 100 comes first");
    client.finish();
    client.expect_end();
}

#[test]
fn an_unread_body_is_drained_up_to_the_limit() {
    let origin = Origin::saying("");
    let setup = Setup::to_origin(&origin)
        .with("routes", serde_json::json!([{"path_prefix": "/app", "cluster": "default"}]))
        .with("limits.drain_bytes_max", 1000);
    let Some(proxy) = setup.start() else { return };
    let post = |length: usize| {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
        [head.into_bytes(), pattern(length)].concat()
    };
    let mut client = proxy.connect();
    for _ in 0..2 {
        let answer = client.ask(post(1000));
        assert_eq!((answer.status(), answer.get("connection")), (404, None));
    }
    let answer = client.ask(post(1001));
    assert_eq!((answer.status(), answer.get("connection")), (404, Some("close")));
    client.expect_end();
    assert_eq!(origin.connections(), 0);
}

#[test]
fn nothing_after_the_last_request_is_served() {
    let origin = Origin::answering(|request| ok(request.target()));
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = proxy.connect();
    client.send(
        "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n\
         GET /3 HTTP/1.1\r\nHost: a\r\n\r\n",
    );
    assert_eq!((client.response().text(), client.response().text()), ("/1", "/2"));
    client.expect_end();
    assert_eq!(origin.requests().len(), 2);
}

#[test]
fn bodies_flow_in_both_directions_at_once() {
    let origin = Origin::playing(|mut peer| {
        let mut request = peer.try_head().unwrap();
        peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        while let Some(chunk) = peer.chunk(&mut request) {
            peer.send([format!("{:x}\r\n", chunk.len()).as_bytes(), &chunk, b"\r\n"].concat());
        }
        peer.send("0\r\n\r\n");
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = proxy.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    let mut head = client.head();
    for n in 0..20 {
        let word = format!("word {n}");
        client.send(format!("{:x}\r\n{word}\r\n", word.len()));
        assert_eq!(client.chunk(&mut head).unwrap(), word.into_bytes(), "before the next is sent");
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.chunk(&mut head), None);
}

#[test]
fn a_complete_response_ends_a_running_upload() {
    let origin = Origin::playing(|mut peer| {
        peer.try_head().unwrap();
        peer.send(ok("enough"));
        peer.rest();
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    for _ in 0..2 {
        let mut client = proxy.connect();
        let answer = client.ask("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n");
        assert_eq!((answer.text(), answer.get("connection")), ("enough", Some("close")));
        client.send("1\r\nx\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n");
        client.finish();
        client.expect_end();
    }
    assert_eq!(origin.connections(), 2, "a connection in the middle of a body is not used again");
}
