//! Bodies in both directions: every framing, every kind of end; nothing is lost or delayed.

use std::sync::mpsc;

use serde_json::json;

use crate::support::{Origin, Setup, assert_same, ok, pattern, poll};

const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\n";

#[test]
fn large_bodies_arrive_complete_in_each_framing_and_direction() {
    const SIZE: usize = 2 << 20;
    let body = pattern(SIZE);
    let answer = body.clone();
    let origin = Origin::answering(move |request| match request.target() {
        "/length" => {
            [format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n").into_bytes(), answer.clone()]
                .concat()
        }
        _ => [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(), chunked(&answer)].concat(),
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = proxy.connect();
    for target in ["/length", "/chunked"] {
        let mut sender = client.twin();
        let head = format!("POST {target} HTTP/1.1\r\nHost: a\r\n");
        let message = match target {
            "/length" => {
                [format!("{head}Content-Length: {SIZE}\r\n\r\n").into_bytes(), body.clone()].concat()
            }
            _ => [format!("{head}Transfer-Encoding: chunked\r\n\r\n").into_bytes(), chunked(&body)].concat(),
        };
        let sending = std::thread::spawn(move || sender.send(message));
        assert_same(&client.response().body, &body);
        sending.join().unwrap();
        assert_same(&origin.last().body, &body);
    }
    assert_eq!(origin.connections(), 1, "one connection carried all");
}

/// Chunks of many sizes, so that their boundaries fall anywhere in a buffer.
fn chunked(mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut size = 1;
    while !body.is_empty() {
        let (chunk, rest) = body.split_at(size.min(body.len()));
        out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
        (body, size) = (rest, (size * 3 + 1) % 40_009 + 1);
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}

#[test]
fn chunks_are_reframed_and_trailers_are_forwarded() {
    let origin = Origin::answering(|_| {
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n\
          003;n=\"v\"\r\nabc\r\n1\r\nd\r\n0;last\r\nX-Sum: 9\r\nContent-Length: 5\r\n\r\n"
            .to_vec()
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let answer = proxy.ask(format!(
        "{POST}Transfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n\
         2 ; ext=1\r\nhe\r\n0003\r\nllo\r\n000\r\nX-Sum: 7\r\nHost: evil\r\nTransfer-Encoding: gzip\r\n\r\n"
    ));
    let request = origin.last();
    for (message, body, sum) in [(&request, "hello", "7"), (&answer, "abcd", "9")] {
        assert_eq!(message.text(), body);
        assert_eq!(
            message.trailers,
            [("X-Sum".to_owned(), sum.to_owned())],
            "fields for framing or routing are dropped"
        );
        assert!(!message.extended, "chunk extensions are dropped");
        assert_eq!((message.get("trailer"), message.get("content-length")), (Some("x-sum"), None));
    }
}

#[test]
fn responses_without_a_body_keep_the_connection_in_sync() {
    let origin = Origin::answering(|request| match request.target() {
        "/head" | "/304" if request.line.starts_with("HEAD") => {
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n".to_vec()
        }
        "/chunked" => b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(),
        "/204" => b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
        "/304" => b"HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Length: 99\r\n\r\n".to_vec(),
        "/empty" => b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec(),
        _ => ok("body"),
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = proxy.connect();
    client.send("HEAD /head HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = client.head();
    assert_eq!((head.status(), head.get("content-length")), (200, Some("5")));
    client.send("HEAD /chunked HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.head().status(), 200);
    for (target, status, length) in
        [("/204", 204, None), ("/304", 304, Some("99")), ("/empty", 200, Some("0"))]
    {
        let answer = client.ask(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(
            (answer.status(), answer.get("content-length"), answer.text()),
            (status, length, ""),
            "{target}"
        );
    }
    assert_eq!(client.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").text(), "body");
    assert_eq!(origin.connections(), 1);
}

#[test]
fn bytes_after_a_bodiless_response_are_never_the_next_response() {
    let origin = Origin::answering(|request| match request.target() {
        "/204" => {
            b"HTTP/1.1 204 No Content\r\nContent-Length: 36\r\n\r\nHTTP/1.1 200 OK\r\nX-Smuggled: 1\r\n\r\n"
                .to_vec()
        }
        _ => ok("body"),
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = proxy.connect();
    let answer = client.ask("GET /204 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((answer.status(), answer.get("content-length")), (204, None));
    assert_eq!(client.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").text(), "body");
    assert_eq!(origin.connections(), 2, "the connection with unrequested bytes was closed");
}

#[test]
fn a_response_delimited_by_close_is_forwarded() {
    let origin = Origin::playing(|mut peer| {
        let request = peer.next().unwrap();
        let version = if request.target() == "/1.0" { "1.0" } else { "1.1" };
        peer.send(format!("HTTP/{version} 200 OK\r\n\r\nuntil "));
        peer.send("the end");
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = proxy.connect();
    for target in ["/1.0", "/1.1"] {
        let answer = client.ask(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!((answer.get("transfer-encoding"), answer.text()), (Some("chunked"), "until the end"));
    }
    let old = proxy.ask("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_eq!((old.get("transfer-encoding"), old.get("connection")), (None, Some("close")));
    assert_eq!(old.text(), "until the end");
}

#[test]
fn chunks_reach_an_http_1_0_client_without_their_framing() {
    let origin = Origin::answering(|_| {
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\nX: y\r\n\r\n"
            .to_vec()
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let answer = proxy.ask("GET / HTTP/1.0\r\n\r\n");
    assert_eq!((answer.get("transfer-encoding"), answer.text()), (None, "hello"));
}

#[test]
fn a_reset_is_never_a_clean_end() {
    let cases = [
        ("/close", "1.1", "half"),
        ("/close", "1.0", "half"),
        ("/length", "1.1", "half"),
        ("/chunked", "1.1", "4\r\nhalf\r\n"),
        ("/chunked", "1.0", "4\r\nhalf\r\n"),
    ];
    let (go, gate) = mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let origin = Origin::playing(move |mut peer| {
        let request = peer.next().unwrap();
        let framing = match request.target().split('?').next().unwrap() {
            "/length" => "Content-Length: 100\r\n",
            "/chunked" => "Transfer-Encoding: chunked\r\n",
            _ => "",
        };
        peer.send(format!(
            "HTTP/1.1 200 OK\r\n{framing}\r\n{}",
            request.get("x-body").unwrap().replace('|', "\r\n")
        ));
        // Otherwise the reset would overtake the bytes.
        gate.lock().unwrap().recv().unwrap();
        peer.reset();
    });
    let setup =
        Setup::to_origin(&origin).with("clusters.default.ejection", json!({"consecutive_failures": 0}));
    let Some(proxy) = setup.start() else { return };
    for (target, version, body) in cases {
        let mut client = proxy.connect();
        let body = body.replace("\r\n", "|");
        client.send(format!("GET {target}?{version} HTTP/{version}\r\nHost: a\r\nX-Body: {body}\r\n\r\n"));
        client.head();
        go.send(()).unwrap();
        let (rest, clean) = client.rest();
        let rest = String::from_utf8(rest).unwrap();
        // A close within a counted or chunked body shows that it is cut; otherwise only a reset does.
        assert!(!rest.ends_with("0\r\n\r\n"), "{target} HTTP/{version}: {rest:?}");
        assert_eq!(clean, version == "1.1", "{target} HTTP/{version}: {rest:?}");
        let outcome = proxy.outcome(&format!("{target}?{version}"));
        assert_eq!(outcome, (200, "response_truncated".to_owned()));
    }
}

#[test]
fn interim_responses_are_forwarded_before_the_final_one() {
    let origin = Origin::playing(|mut peer| {
        let mut request = peer.try_head().unwrap();
        assert_eq!(request.get("expect"), Some("100-continue"));
        peer.send("HTTP/1.1 100 Continue\r\n\r\n");
        peer.body(&mut request, true);
        peer.send("HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n");
        peer.send(ok(request.text()));
        assert!(peer.next().is_none());
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = proxy.connect();
    let first = client.ask(format!("{POST}Content-Length: 5\r\nExpect: 100-continue\r\n\r\n"));
    assert_eq!((first.status(), first.fields.len()), (100, 0));
    let hints = client.ask("hello");
    assert_eq!((hints.status(), hints.get("link")), (103, Some("</a>; rel=preload")));
    assert_eq!(client.response().text(), "hello");
}

#[test]
fn an_http_1_0_client_gets_no_interim_response() {
    let origin = Origin::answering(|_| {
        [b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n".to_vec(), ok("final")].concat()
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    assert_eq!(proxy.ask("GET / HTTP/1.0\r\n\r\n").text(), "final");
}

#[test]
fn too_many_interim_responses_are_a_502() {
    let origin = Origin::answering(|request| {
        let count = request.target()[1..].parse().unwrap();
        [b"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(count), ok("final")].concat()
    });
    let setup = Setup::to_origin(&origin).with("clusters.default.interim_responses_max", 3);
    let Some(proxy) = setup.start() else { return };
    for (target, last) in [("/3", 200), ("/4", 502)] {
        let mut client = proxy.connect();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        for _ in 0..3 {
            assert_eq!(client.response().status(), 103);
        }
        assert_eq!(client.response().status(), last, "{target}");
    }
    assert_eq!(proxy.outcome("/4"), (502, "too_many_interim".to_owned()));
}

#[test]
fn an_origin_may_refuse_a_body_it_has_not_read() {
    let origin = Origin::playing(|mut peer| {
        peer.try_head().unwrap();
        peer.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig");
        peer.finish();
        // Closing with unread bytes would reset the connection before the response has been read.
        peer.rest();
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = proxy.connect();
    client.send(format!("{POST}Content-Length: 100000000\r\n\r\nfirst"));
    let answer = client.response();
    assert_eq!((answer.status(), answer.text(), answer.get("connection")), (413, "big", Some("close")));
    // The client may still send for a while without losing the response; then its connection ends.
    poll("the end of the upload", || client.try_send(vec![0; 1 << 16]).err());
}

#[test]
fn pipelined_responses_come_in_order() {
    let origin = Origin::answering(|request| ok(&format!("{}:{}", request.target(), request.text())));
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = proxy.connect();
    let requests: String = (0..40)
        .map(|n| match n % 3 {
            0 => format!("GET /{n} HTTP/1.1\r\nHost: a\r\n\r\n"),
            1 => format!("POST /{n} HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nGET "),
            _ => format!("PUT /{n} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nPO\r\n2\r\nST\r\n0\r\n\r\n"),
        })
        .collect();
    client.send(requests);
    for n in 0..40 {
        let body = ["", "GET ", "POST"][n % 3];
        assert_eq!(client.response().text(), format!("/{n}:{body}"));
    }
}

#[test]
fn a_half_closed_client_still_gets_its_responses() {
    let origin = Origin::answering(|request| ok(request.target()));
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = proxy.connect();
    client.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n");
    client.finish();
    assert_eq!((client.response().text(), client.response().text()), ("/1", "/2"));
    client.expect_end();
}

#[test]
fn the_first_bytes_of_a_stream_are_forwarded_at_once() {
    let (go, gate) = mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let origin = Origin::playing(move |mut peer| {
        peer.next().unwrap();
        peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        for n in 0..5 {
            gate.lock().unwrap().recv().unwrap();
            peer.send(format!("8\r\ndata: {n}\n\r\n"));
        }
        peer.send("0\r\n\r\n");
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut head = client.head();
    for n in 0..5 {
        go.send(()).unwrap();
        assert_eq!(
            client.chunk(&mut head).unwrap(),
            format!("data: {n}\n").into_bytes(),
            "before the next one is sent"
        );
    }
    assert_eq!(client.chunk(&mut head), None);
}

#[test]
fn uploads_are_forwarded_as_they_arrive() {
    let (seen, arrivals) = mpsc::channel();
    let origin = Origin::playing(move |mut peer| {
        let mut request = peer.try_head().unwrap();
        while let Some(chunk) = peer.chunk(&mut request) {
            seen.send(chunk).unwrap();
        }
        peer.send(ok("done"));
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = proxy.connect();
    client.send(format!("{POST}Transfer-Encoding: chunked\r\n\r\n"));
    for n in 0..5 {
        client.send(format!("1\r\n{n}\r\n"));
        assert_eq!(arrivals.recv().unwrap(), n.to_string().into_bytes());
    }
    assert_eq!(client.ask("0\r\n\r\n").text(), "done");
}
