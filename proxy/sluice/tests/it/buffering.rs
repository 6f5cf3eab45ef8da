//! Routes that buffer bodies: slow clients and readers do not occupy endpoints, and no files are left behind.

use std::sync::mpsc;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{Origin, Proxy, Setup, Wire, assert_same, ok, pattern, poll};

/// Bytes of a body in memory, unless a test sets another value.
const MEMORY: usize = 20_000;

const SPOOL: &str = "sluice_spool_bytes";

/// A route that buffers requests and responses, with further keys; files go to the test's own folder.
fn holding(origin: &Origin, more: Value) -> Setup {
    let mut route = json!({
        "cluster": "default",
        "buffer_requests": "on",
        "buffer_responses": "on",
        "buffer_memory_bytes": MEMORY,
    });
    for (key, value) in more.as_object().unwrap() {
        route[key] = value.clone();
    }
    let setup = Setup::to_origin(origin).with("routes", json!([route]));
    let spool = setup.folder.join("spool");
    std::fs::create_dir(&spool).unwrap();
    setup.with("buffers", json!({"spool_directory": spool}))
}

/// Bodies in chunks of many sizes.
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

/// A message with the request or status line and fields of `head`, and its body in the requested framing.
fn message(head: &str, body: &[u8], in_chunks: bool) -> Vec<u8> {
    if in_chunks {
        [format!("{head}Transfer-Encoding: chunked\r\n\r\n").as_bytes(), &chunked(body)].concat()
    } else {
        [format!("{head}Content-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
    }
}

/// Responds with the received body, chunked if the target says so.
fn echo() -> Origin {
    Origin::answering(|request| {
        message("HTTP/1.1 200 OK\r\n", &request.body, request.target().contains("answer-chunked"))
    })
}

/// Waits until the counters and the folder show no buffered bodies, and no descriptors have leaked.
fn is_clean(proxy: &Proxy, descriptors: f64) {
    for name in [SPOOL, "sluice_buffer_memory_bytes"] {
        poll(name, || (proxy.metric(name) == 0.0).then_some(()));
    }
    assert_eq!(std::fs::read_dir(proxy.folder.join("spool")).unwrap().count(), 0, "files with a name");
    poll("descriptors", || (proxy.metric("process_open_fds") <= descriptors).then_some(()));
}

#[test]
fn buffered_bodies_arrive_complete_in_each_framing_and_direction() {
    let origin = echo();
    let setup = holding(&origin, json!({})).with("clusters.default.pool", json!({"idle_timeout_ms": 60_000}));
    let Some(proxy) = setup.start() else { return };
    let mut client = proxy.connect();
    client.ask(message("POST / HTTP/1.1\r\nHost: a\r\n", b"first", false));
    let descriptors = proxy.metric("process_open_fds");
    for size in [0, 1, MEMORY - 1, MEMORY, MEMORY + 1, 10_000_000] {
        let body = pattern(size);
        for (in_chunks, target) in
            [(false, "/"), (true, "/"), (false, "/answer-chunked"), (true, "/answer-chunked")]
        {
            let before = proxy.metric("sluice_spool_files_total");
            let mut sender = client.twin();
            let request = message(&format!("POST {target} HTTP/1.1\r\nHost: a\r\n"), &body, in_chunks);
            let sending = std::thread::spawn(move || sender.send(request));
            let answer = client.response();
            sending.join().unwrap();
            let length = size.to_string();
            for message in [&answer, &origin.last()] {
                assert_same(&message.body, &body);
                let framing = (message.get("content-length"), message.get("transfer-encoding"));
                assert_eq!(framing, (Some(length.as_str()), None), "{in_chunks} {target}");
            }
            let files = if size > MEMORY { 2.0 } else { 0.0 };
            assert_eq!(proxy.metric("sluice_spool_files_total") - before, files, "{size}");
        }
    }
    let connections = origin.connections();
    // Bodies that are not complete in memory never use joined connections, so there may be one connection of each kind.
    assert!(connections <= 2, "{connections} connections were used");
    is_clean(&proxy, descriptors + (connections - 1) as f64);
}

#[test]
fn origins_get_only_complete_requests() {
    let origin = echo();
    let Some(proxy) = holding(&origin, json!({})).with("clusters.default.max_in_flight", 1).start() else {
        return;
    };
    let body = pattern(MEMORY * 3);
    let mut slow = proxy.connect();
    let request = message("POST /slow HTTP/1.1\r\nHost: a\r\n", &body, false);
    let (first, last) = request.split_at(request.len() - 1);
    slow.send(first);
    poll("the file", || (proxy.metric(SPOOL) > 0.0).then_some(()));
    // The only slot is free for others meanwhile.
    for _ in 0..3 {
        assert_eq!(proxy.get("/quick").status(), 200);
    }
    assert!(origin.requests().iter().all(|request| request.target() == "/quick"));
    slow.send(last);
    assert_same(&slow.response().body, &body);
    assert_eq!(origin.last().target(), "/slow");
}

/// Bytes of an X-Request-Id line.
const ID_BYTES: usize = "X-Request-Id: \r\n".len() + 32;

#[test]
fn a_slow_reader_does_not_occupy_a_slot() {
    const SIZE: usize = 10_000_000;
    let answer = message("HTTP/1.1 200 OK\r\n", &pattern(SIZE), false);
    let origin = Origin::answering(move |request| match request.target() {
        "/large" => answer.clone(),
        _ => ok("small"),
    });
    let setup = holding(&origin, json!({})).with("clusters.default.max_in_flight", 1);
    let Some(proxy) = setup.start() else { return };
    let mut slow = proxy.connect();
    slow.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(slow.head().status(), 200);
    for _ in 0..3 {
        assert_eq!(proxy.get("/small").text(), "small");
    }
    poll("nothing in flight", || (proxy.endpoint(&origin.endpoint)["in_flight"] == 0).then_some(()));
    assert!(proxy.metric(SPOOL) > 9_000_000.0);
    assert_same(&slow.take(SIZE), &pattern(SIZE));
    assert_eq!(slow.ask("GET /small HTTP/1.1\r\nHost: a\r\n\r\n").text(), "small");
    assert_eq!(proxy.record("/large")["bytes_out"].as_u64().unwrap() as usize, SIZE + 45 + ID_BYTES);
}

#[test]
fn a_disconnected_client_leaves_no_files() {
    let (go, going) = mpsc::channel::<()>();
    let going = std::sync::Mutex::new(going);
    let origin = Origin::playing(move |mut peer| {
        while let Some(request) = peer.next() {
            if request.target() != "/half" {
                peer.send(ok("ready"));
                continue;
            }
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n");
            peer.send(pattern(1_000_000));
            let _ = going.lock().unwrap().recv();
        }
    });
    let Some(proxy) = holding(&origin, json!({})).start() else { return };
    assert_eq!(proxy.get("/").text(), "ready");
    let descriptors = proxy.metric("process_open_fds");
    let body = pattern(1_000_000);
    let part = |length: usize| format!("POST /gone HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
    for end in [Wire::reset, drop::<Wire>] {
        let mut client = proxy.connect();
        client.send([part(2_000_000).as_bytes(), &body].concat());
        poll("the request's file", || (proxy.metric(SPOOL) > 900_000.0).then_some(()));
        end(client);
        is_clean(&proxy, descriptors);
        let mut client = proxy.connect();
        client.send("GET /half HTTP/1.1\r\nHost: a\r\n\r\n");
        poll("the answer's file", || (proxy.metric(SPOOL) > 900_000.0).then_some(()));
        end(client);
        for name in [SPOOL, "sluice_buffer_memory_bytes"] {
            poll(name, || (proxy.metric(name) == 0.0).then_some(()));
        }
        go.send(()).unwrap();
        is_clean(&proxy, descriptors);
    }
    assert_eq!(proxy.outcome("/half"), (499, "client_gone".to_owned()));
    assert!(origin.requests().iter().all(|request| request.target() != "/gone"));
}

#[test]
fn a_kill_during_bodies_leaves_no_files() {
    let origin = echo();
    let Some(mut proxy) = holding(&origin, json!({})).start() else { return };
    let mut client = proxy.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n");
    client.send(pattern(1_000_000));
    poll("the file", || (proxy.metric(SPOOL) > 900_000.0).then_some(()));
    proxy.signal(Signal::SIGKILL);
    proxy.wait();
    assert_eq!(std::fs::read_dir(proxy.folder.join("spool")).unwrap().count(), 0);
}

#[test]
fn beyond_the_spool_limit_only_new_bodies_fail() {
    let body = pattern(1_000_000);
    let answer = message("HTTP/1.1 200 OK\r\n", &body, false);
    let origin = Origin::answering(move |request| match request.target() {
        "/large" => answer.clone(),
        _ => ok("small"),
    });
    let setup = holding(&origin, json!({})).with("buffers.spool_bytes_max", 1_500_000);
    let Some(proxy) = setup.start() else { return };
    let request = |target: &str| message(&format!("POST {target} HTTP/1.1\r\nHost: a\r\n"), &body, false);
    let mut slow = proxy.connect();
    let first = request("/first");
    slow.send(&first[..900_000]);
    poll("the first file", || (proxy.metric(SPOOL) > 800_000.0).then_some(()));
    let mut refused = proxy.connect();
    // sluice may close before it has read everything.
    let _ = refused.try_send(request("/second"));
    let answer = refused.response();
    assert_eq!((answer.status(), answer.get("x-sluice-reason")), (503, Some("request_buffer_full")));
    assert_eq!(proxy.outcome("/second"), (503, "request_buffer_full".to_owned()));
    let answer = proxy.get("/large");
    assert_eq!((answer.status(), answer.get("x-sluice-reason")), (500, Some("response_buffer_full")));
    assert_eq!(proxy.endpoint(&origin.endpoint)["failures"], 0, "it is not the endpoint's fault");
    slow.send(&first[900_000..]);
    assert_eq!(slow.response().text(), "small");
    assert_same(&origin.last().body, &body);
    poll(SPOOL, || (proxy.metric(SPOOL) == 0.0).then_some(()));
    assert_same(&proxy.get("/large").body, &body);
}

#[test]
fn a_spool_file_at_the_size_limit_fails_only_its_request() {
    let answer = message("HTTP/1.1 200 OK\r\n", &pattern(300_000), false);
    let origin = Origin::answering(move |request| match request.target() {
        "/large" => answer.clone(),
        _ => ok("small"),
    });
    // In blocks of 512 bytes; some shells use 1024.
    let Some(proxy) = holding(&origin, json!({})).after("ulimit -f 200").start() else { return };
    let answer = proxy.get("/large");
    assert_eq!((answer.status(), answer.get("x-sluice-reason")), (500, Some("response_spool_failed")));
    let mut client = proxy.connect();
    let _ = client.try_send(message("POST /up HTTP/1.1\r\nHost: a\r\n", &pattern(300_000), true));
    assert_eq!(client.response().get("x-sluice-reason"), Some("request_spool_failed"));
    proxy.wait_for("a spool file cannot be written");
    assert_eq!(proxy.get("/").text(), "small");
    poll(SPOOL, || (proxy.metric(SPOOL) == 0.0).then_some(()));
}

#[test]
fn an_unusable_spool_directory_is_a_mistake() {
    let origin = echo();
    for folder in ["/proc", "/nonexistent"] {
        let setup = holding(&origin, json!({})).with("buffers.spool_directory", folder);
        let (code, said) = setup.fails();
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("buffers.spool_directory: ") && said.contains(folder), "{said}");
    }
    let idle = json!({"buffer_requests": "off", "buffer_responses": "off"});
    let idle = holding(&origin, idle).with("buffers.spool_directory", "/nonexistent");
    assert!(idle.start().is_none_or(|proxy| proxy.get("/").status() == 200), "nothing is buffered");
}

#[test]
fn a_client_that_expects_100_gets_it() {
    let origin = echo();
    let Some(proxy) = holding(&origin, json!({"request_body_bytes_max": 50_000})).start() else { return };
    let head = |length| {
        format!("PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n")
    };
    let mut client = proxy.connect();
    client.send(head(50_000));
    assert_eq!(client.head().status(), 100);
    assert_eq!(origin.connections(), 0);
    client.send(pattern(50_000));
    assert_same(&client.response().body, &pattern(50_000));
    assert_eq!(origin.last().get("expect"), None, "sluice has met the expectation");
    let refused = proxy.ask(head(50_001));
    assert_eq!((refused.status(), refused.get("x-sluice-reason")), (413, Some("body_too_large")));
}

#[test]
fn a_request_that_grows_too_large_is_refused_and_closed() {
    let origin = echo();
    let Some(proxy) = holding(&origin, json!({"request_body_bytes_max": 50_000})).start() else { return };
    let mut client = proxy.connect();
    let request = message("POST / HTTP/1.1\r\nHost: a\r\n", &pattern(50_001), true);
    client.send(&request);
    assert_eq!(client.response().status(), 413);
    client.expect_end();
    assert_eq!(origin.connections(), 0);
    poll(SPOOL, || (proxy.metric(SPOOL) == 0.0).then_some(()));
}

#[test]
fn event_streams_are_not_buffered() {
    let (go, going) = mpsc::channel::<()>();
    let going = std::sync::Mutex::new(going);
    let origin = Origin::playing(move |mut peer| {
        while peer.next().is_some() {
            peer.send("HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\n");
            peer.send("Transfer-Encoding: chunked\r\n\r\n7\r\nfirst\n\n\r\n");
            let _ = going.lock().unwrap().recv();
            peer.send("0\r\n\r\n");
        }
    });
    let Some(proxy) = holding(&origin, json!({})).start() else { return };
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut head = client.head();
    assert_eq!(client.chunk(&mut head).unwrap(), b"first\n\n");
    go.send(()).unwrap();
    assert_eq!(client.chunk(&mut head), None);
}

#[test]
fn upgrades_and_bodiless_responses_are_not_buffered() {
    let origin = Origin::playing(|mut peer| {
        while let Some(request) = peer.next() {
            if request.get("upgrade").is_some() {
                peer.send("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
                let said = peer.take(4);
                return peer.send(said);
            }
            match request.line.split(' ').next() {
                Some("HEAD") => peer.send("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"),
                _ => peer.send("HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n"),
            }
        }
    });
    let Some(proxy) = holding(&origin, json!({})).start() else { return };
    let mut client = proxy.connect();
    client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.head().get("content-length"), Some("99"));
    assert_eq!(client.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").status(), 304);
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
    assert_eq!(client.head().status(), 101);
    client.send("ping");
    assert_eq!(client.take(4), b"ping");
}

#[test]
fn an_incomplete_buffered_response_is_a_clean_502() {
    let origin = Origin::playing(|mut peer| {
        peer.next();
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n");
        peer.send(pattern(60_000));
    });
    let Some(proxy) = holding(&origin, json!({})).start() else { return };
    let answer = proxy.get("/cut");
    assert_eq!((answer.status(), answer.get("x-sluice-reason")), (502, Some("response_truncated")));
    poll(SPOOL, || (proxy.metric(SPOOL) == 0.0).then_some(()));
}
