//! Stale responses: asked about, used meanwhile, and used in place of failures.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};

use serde_json::json;

use super::{answer, caching, get, is_hit, response, serve, told};
use crate::support::{Origin, ok, poll};

const TAGGED: &str = "Cache-Control: max-age=0\r\nETag: \"a\"\r\nX-Round: 1\r\n";

#[test]
fn the_application_says_that_nothing_has_changed() {
    let origin = Origin::answering(|request| match request.get("if-none-match") {
        None => response(TAGGED, "body"),
        Some(tag) => {
            assert_eq!(tag, "\"a\"");
            b"HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nX-Round: 2\r\nSet-Cookie: s=1\r\nCache-Control: max-age=0\r\n\r\n".to_vec()
        }
    });
    let Some(proxy) = serve(&origin, json!({})) else { return };
    assert_eq!(told(&get(&proxy, "/", "")), "sluice; fwd=uri-miss; stored");
    for _ in 0..2 {
        let answer =
            get(&proxy, "/", "If-None-Match: \"other\"\r\nRange: bytes=0-1\r\nIf-Range: \"other\"\r\n");
        assert_eq!((answer.status(), answer.text()), (200, "body"));
        assert_eq!((told(&answer), answer.get("x-round")), ("sluice; fwd=stale; fwd-status=304", Some("2")));
        // The cookie is for the one whose request it was.
        assert_eq!(answer.get("set-cookie"), Some("s=1"));
    }
    let same = get(&proxy, "/", "If-None-Match: \"a\"\r\n");
    assert_eq!((same.status(), same.body.len()), (304, 0));
    assert_eq!(origin.requests().len(), 4);
}

#[test]
fn a_new_response_takes_the_place_of_the_old_one() {
    let count = AtomicUsize::new(0);
    let origin = Origin::answering(move |_| {
        let round = count.fetch_add(1, SeqCst);
        match round {
            2 => answer("200 OK", "Cache-Control: private\r\n", "private"),
            _ => response("Cache-Control: max-age=0\r\nETag: \"a\"\r\n", format!("{round}")),
        }
    });
    let Some(proxy) = serve(&origin, json!({})) else { return };
    for wanted in ["0", "1", "private", "3", "4"] {
        assert_eq!(get(&proxy, "/", "").text(), wanted);
    }
    let asked: Vec<bool> = origin.requests().iter().map(|one| one.get("if-none-match").is_some()).collect();
    assert_eq!(asked, [false, true, true, false, true]);
}

#[test]
fn a_stale_response_is_used_while_one_request_asks() {
    let (go, gone) = mpsc::channel::<()>();
    let gone = Mutex::new(gone);
    let count = AtomicUsize::new(0);
    let origin = Origin::answering(move |_| {
        let round = count.fetch_add(1, SeqCst);
        if round == 1 {
            gone.lock().unwrap().recv().unwrap();
        }
        let age = if round == 0 { 0 } else { 60 };
        response(&format!("Cache-Control: max-age={age}, stale-while-revalidate=60\r\n"), format!("{round}"))
    });
    let Some(proxy) = serve(&origin, json!({})) else { return };
    assert_eq!(get(&proxy, "/", "").text(), "0");
    for _ in 0..5 {
        let answer = get(&proxy, "/", "");
        assert_eq!((answer.text(), told(&answer)), ("0", "sluice; hit; detail=stale"));
    }
    go.send(()).unwrap();
    poll("the new response", || (get(&proxy, "/", "").text() == "1").then_some(()));
    assert!(is_hit(&get(&proxy, "/", "")));
    assert_eq!(origin.requests().len(), 2);
    // Nobody has sent the second one: it is in no log.
    assert_eq!(proxy.metric("sluice_cache_responses_total{result=\"stored\"}"), 1.0);
}

#[test]
fn a_failing_application_is_covered_for() {
    let is_down = Arc::new(AtomicUsize::new(0));
    let down = Arc::clone(&is_down);
    let origin = Origin::playing(move |mut peer| {
        while let Some(request) = peer.next() {
            let state = down.load(SeqCst);
            if state == 2 {
                return;
            }
            let fields = match request.target() {
                "/strict" => "max-age=0, must-revalidate",
                "/errors" => "max-age=0, stale-if-error=60",
                _ => "max-age=0",
            };
            let fields = format!("Cache-Control: {fields}\r\nETag: \"a\"\r\n");
            let bytes = match state {
                0 => response(&fields, "body"),
                _ => answer("503 Service Unavailable", "", "down"),
            };
            peer.send(&bytes);
        }
    });
    let Some(proxy) = serve(&origin, json!({})) else { return };
    for target in ["/strict", "/errors", "/plain"] {
        assert_eq!(get(&proxy, target, "").text(), "body");
    }
    let status = |target: &str| {
        let answer = get(&proxy, target, "");
        (answer.status(), is_hit(&answer))
    };
    is_down.store(1, SeqCst);
    // Its own error is its answer, unless it has said otherwise before.
    assert_eq!(status("/strict"), (503, false));
    assert_eq!(status("/plain"), (503, false));
    assert_eq!(status("/errors"), (200, true));
    is_down.store(2, SeqCst);
    assert_eq!(status("/strict"), (502, false));
    assert_eq!(status("/plain"), (200, true));
    assert_eq!(status("/errors"), (200, true));
}

#[test]
fn a_full_queue_is_covered_for() {
    let (go, gone) = mpsc::channel::<()>();
    let gone = Mutex::new(gone);
    let origin = Origin::answering(move |request| {
        if request.target().starts_with("/slow") {
            gone.lock().unwrap().recv().unwrap();
            return ok("slow");
        }
        response("Cache-Control: max-age=0\r\nETag: \"a\"\r\n", "page")
    });
    let setup = caching(&origin, json!({}))
        .with("clusters.default.max_in_flight", 1)
        .with("clusters.default.queue.max_length", 1);
    let Some(proxy) = setup.start() else { return };
    assert_eq!(get(&proxy, "/page", "").text(), "page");
    let mut slow: Vec<_> = (0..2).map(|_| proxy.connect()).collect();
    slow.iter_mut()
        .zip(["/slow1", "/slow2"])
        .for_each(|(wire, target)| wire.send(super::request(target, "")));
    let (mut first, mut second) = (slow.remove(0), slow.remove(0));
    crate::overload::wait_for_queue(&proxy, 1.0);
    let answer = get(&proxy, "/page", "");
    assert_eq!((answer.text(), told(&answer)), ("page", "sluice; hit; detail=stale"));
    assert_eq!(get(&proxy, "/unknown", "").status(), 503);
    for wire in [&mut first, &mut second] {
        go.send(()).unwrap();
        assert_eq!(wire.response().text(), "slow");
    }
}

#[test]
fn a_change_takes_out_what_it_changes() {
    let origin = Origin::answering(|request| {
        let is_change = !request.line.starts_with("GET");
        match request.target() {
            "/refused" if is_change => answer("409 Conflict", "", ""),
            "/list" if is_change => {
                answer("201 Created", "Location: http://a.test/item?a=1\r\nContent-Location: /other\r\n", "")
            }
            "/elsewhere" if is_change => answer("201 Created", "Location: http://b.test/kept\r\n", ""),
            _ => response("Cache-Control: max-age=60\r\n", "body"),
        }
    });
    let Some(proxy) = serve(&origin, json!({})) else { return };
    let change = |method: &str, target: &str| {
        proxy.ask(format!("{method} {target} HTTP/1.1\r\nHost: A.test\r\nContent-Length: 1\r\n\r\na"))
    };
    let all = ["/list", "/item?a=1", "/other", "/kept", "/refused"];
    let look = |all: &[&str]| all.iter().map(|target| is_hit(&get(&proxy, target, ""))).collect::<Vec<_>>();
    look(&all);
    assert_eq!(look(&all), [true; 5]);
    change("POST", "/refused");
    change("PUT", "/elsewhere");
    assert_eq!(look(&all), [true; 5]);
    change("POST", "/list");
    assert_eq!(look(&all), [false, false, false, true, true]);
    for method in ["PUT", "DELETE", "PATCH", "M-SEARCH"] {
        change(method, "/kept");
        assert_eq!(look(&["/kept"]), [false], "{method}");
    }
}

#[test]
fn a_change_counts_whatever_becomes_of_its_response() {
    let origin = Origin::playing(|mut peer| {
        while let Some(request) = peer.next() {
            if request.line.starts_with("GET") {
                peer.send(response("Cache-Control: max-age=60\r\n", "body"));
                continue;
            }
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n");
            if request.target() == "/held" {
                peer.send("0123456789");
            }
        }
    });
    let routes = json!([
        {"name": "held", "path": "/held", "methods": ["POST"], "cluster": "default", "buffer_responses": "on"},
        {"name": "app", "cluster": "default", "cache": "pages"}
    ]);
    let Some(proxy) = caching(&origin, json!({})).with("routes", routes).start() else { return };
    for target in ["/held", "/broken"] {
        get(&proxy, target, "");
        assert!(is_hit(&get(&proxy, target, "")), "{target}");
        let mut wire = proxy.connect();
        wire.send(format!("POST {target} HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\n\r\na"));
        assert_eq!(wire.head().status(), 200);
        drop(wire);
        assert!(!is_hit(&get(&proxy, target, "")), "{target}");
    }
}
