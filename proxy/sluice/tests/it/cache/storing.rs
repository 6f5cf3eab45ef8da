//! What is stored, and what clients get of it.

use serde_json::json;

use super::{answer, caching, get, is_hit, request, response, serve, told};
use crate::support::{Origin, assert_same, pattern};

#[test]
fn bodies_of_every_length_and_framing_come_from_the_cache() {
    let origin = Origin::answering(|request| {
        let length = request.target().trim_start_matches("/chunks/").trim_start_matches('/').parse().unwrap();
        let body = pattern(length);
        if !request.target().starts_with("/chunks/") {
            return response("Cache-Control: max-age=60\r\nX-Own: a\r\n", body);
        }
        let mut out =
            b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nX-Own: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                .to_vec();
        for piece in body.chunks(3001) {
            out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            out.extend_from_slice(piece);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"0\r\n\r\n");
        out
    });
    let Some(proxy) = serve(&origin, json!({})) else { return };
    let mut wire = proxy.connect();
    for how in ["/", "/chunks/"] {
        for length in [0, 1, 1000, 16_384, 16_385, 100_000, 1_000_000] {
            let target = format!("{how}{length}");
            let before = origin.requests().len();
            for round in 0..3 {
                let answer = wire.ask(request(&target, ""));
                assert_same(&answer.body, &pattern(length));
                assert_eq!(answer.get("x-own"), Some("a"));
                assert_eq!(is_hit(&answer), round > 0, "{target} {round} {}", told(&answer));
                assert_eq!(answer.get("age").is_some(), round > 0, "{target} {round}");
            }
            wire.send(request(&target, "").replace("GET", "HEAD"));
            let head = wire.head();
            assert_eq!(head.get("content-length"), Some(length.to_string().as_str()), "{target}");
            assert_eq!(origin.requests().len(), before + 1, "{target}");
        }
    }
    assert_eq!(proxy.metric("sluice_cache_responses_total{result=\"stored\"}"), 14.0);
    assert_eq!(proxy.metric("sluice_cache_responses_total{result=\"hit\"}"), 42.0);
}

#[test]
fn only_what_may_be_shared_is_stored() {
    let origin = Origin::answering(|request| {
        let fields = request.get("x-answer").unwrap_or_default().replace('|', "\r\n");
        answer(request.get("x-status").unwrap_or("200 OK"), &format!("{fields}\r\n"), "body")
    });
    let Some(proxy) = serve(&origin, json!({"object_max": "1k"})) else { return };
    let fresh = "X-Answer: Cache-Control: max-age=60";
    let cases = [
        (format!("{fresh}\r\n"), true),
        ("X-Answer: Expires: Thu, 01 Jan 2099 00:00:00 GMT\r\n".to_owned(), true),
        ("X-Answer: Cache-Control: s-maxage=60\r\n".to_owned(), true),
        ("X-Answer: Cache-Control: max-age=60, private\r\n".to_owned(), false),
        ("X-Answer: Cache-Control: max-age=60|Cache-Control: no-store\r\n".to_owned(), false),
        ("X-Answer: Cache-Control: max-age=60, no-cache\r\n".to_owned(), false),
        ("X-Answer: Cache-Control: max-age=0\r\n".to_owned(), false),
        ("X-Answer: X-Nothing: said\r\n".to_owned(), false),
        (format!("{fresh}|Set-Cookie: a=b\r\n"), false),
        (format!("{fresh}, no-cache=\"set-cookie\"|Set-Cookie: a=b\r\n"), true),
        (format!("{fresh}|Vary: *\r\n"), false),
        (format!("{fresh}|Vary: X-Forwarded-For\r\n"), false),
        (format!("{fresh}|Content-Type: text/event-stream\r\n"), false),
        (format!("{fresh}\r\nX-Status: 404 Not Found\r\n"), true),
        (format!("{fresh}\r\nX-Status: 500 Internal Server Error\r\n"), true),
        (format!("{fresh}\r\nAuthorization: Basic YTpi\r\n"), false),
        (format!("{fresh}, public\r\nAuthorization: Basic YTpi\r\n"), true),
        (format!("{fresh}\r\nCookie: a=b\r\n"), true),
        ("X-Answer: Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n".to_owned(), true),
        ("X-Answer: Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nCookie: a=b\r\n".to_owned(), false),
        // For caches like this one, whatever is said to others.
        (format!("{fresh}|CDN-Cache-Control: no-store\r\n"), false),
        ("X-Answer: Cache-Control: no-store|CDN-Cache-Control: max-age=60\r\n".to_owned(), true),
        (format!("{fresh}|CDN-Cache-Control: =broken\r\n"), true),
        // A site that may read it, where others may not.
        (format!("{fresh}|Access-Control-Allow-Origin: https://a\r\nOrigin: https://a\r\n"), false),
        (
            format!("{fresh}|Access-Control-Allow-Origin: https://a|Vary: Origin\r\nOrigin: https://a\r\n"),
            true,
        ),
        (format!("{fresh}|Access-Control-Allow-Origin: *\r\nOrigin: https://a\r\n"), true),
    ];
    for (at, (fields, is_stored)) in cases.iter().enumerate() {
        let target = format!("/{at}");
        let first = get(&proxy, &target, fields);
        assert!(!is_hit(&first), "{fields}");
        let second = get(&proxy, &target, fields);
        assert_eq!(is_hit(&second), *is_stored, "{fields} {}", told(&second));
        let sets = fields.contains("Set-Cookie");
        assert_eq!(first.get("set-cookie").is_some(), sets, "its client gets the cookie: {fields}");
        assert_eq!(second.get("set-cookie").is_some(), sets && !is_stored, "{fields}");
    }
}

#[test]
fn what_is_too_large_passes_whole() {
    let origin = Origin::answering(|request| {
        let body = pattern(300_000);
        if request.target() == "/length" {
            return response("Cache-Control: max-age=60\r\n", body);
        }
        let head = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\n\r\n";
        [head.as_bytes(), format!("{:x}\r\n", body.len()).as_bytes(), &body, b"\r\n0\r\n\r\n"].concat()
    });
    let Some(proxy) = serve(&origin, json!({"memory_max": "1m", "object_max": "64k"})) else { return };
    for target in ["/length", "/chunks"] {
        for _ in 0..2 {
            let answer = get(&proxy, target, "");
            assert!(!is_hit(&answer), "{target}");
            assert_same(&answer.body, &pattern(300_000));
        }
    }
}

#[test]
fn memory_is_bounded_and_what_is_asked_for_often_stays() {
    let origin = Origin::answering(|_| response("Cache-Control: max-age=60\r\n", pattern(10_000)));
    let Some(proxy) = serve(&origin, json!({"memory_max": "1m", "object_max": "64k"})) else { return };
    let mut wire = proxy.connect();
    for at in 0..2000 {
        if at % 5 == 0 {
            wire.ask(request("/often", ""));
        }
        wire.ask(request(&format!("/{at}"), ""));
    }
    assert!(is_hit(&wire.ask(request("/often", ""))));
    let of_often = origin.requests().iter().filter(|request| request.target() == "/often").count();
    assert!(of_often < 20, "{of_often}");
    assert!(proxy.metric("sluice_cache_bytes{cache=\"pages\"}") <= f64::from(1 << 20));
}

#[test]
fn each_language_and_each_way_to_come_has_its_own() {
    let origin = Origin::answering(|request| {
        let body = format!("{:?} {:?}", request.get("accept-language"), request.get("x-forwarded-proto"));
        response("Cache-Control: max-age=60\r\nVary: Accept-Language\r\n", body)
    });
    let setup = caching(&origin, json!({"variants_max": 2})).with("trusted_proxies", json!(["127.0.0.1"]));
    let Some(proxy) = setup.start() else { return };
    let ask = |fields: &str| get(&proxy, "/", fields);
    for (fields, is_stored) in [
        ("Accept-Language: de, en\r\n", false),
        ("Accept-Language: DE,en\r\n", true),
        ("", false),
        ("", true),
        ("Accept-Language: de, en\r\n", true),
        // The oldest of three leaves.
        ("Accept-Language: fr\r\n", false),
        ("Accept-Language: de, en\r\n", false),
        ("X-Forwarded-Proto: https\r\n", false),
        ("X-Forwarded-Proto: https\r\n", true),
        ("X-Forwarded-Proto: https\r\nX-Real-IP: 9.9.9.9\r\nX-Forwarded-For: 9.9.9.9\r\n", true),
        ("X-Forwarded-Proto: https\r\nX-Forwarded-Prefix: /a\r\n", false),
    ] {
        let answer = ask(fields);
        assert_eq!(is_hit(&answer), is_stored, "{fields:?} {}", told(&answer));
    }
    assert_ne!(ask("Accept-Language: fr\r\n").body, ask("Accept-Language: de\r\n").body);
}

#[test]
fn parts_and_conditions_are_answered_from_the_whole() {
    let origin = Origin::answering(|_| {
        response(
            "Cache-Control: max-age=60\r\nETag: \"a\"\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Type: text/css\r\n",
            pattern(50_000),
        )
    });
    let Some(proxy) = serve(&origin, json!({})) else { return };
    // Without anything stored, a condition does not keep the response from being stored.
    let first = get(&proxy, "/", "If-None-Match: \"a\"\r\n");
    assert_eq!((first.status(), told(&first)), (304, "sluice; fwd=uri-miss; stored"));
    assert_eq!(origin.last().get("if-none-match"), None);
    for (fields, status) in [
        ("", 200),
        ("If-None-Match: W/\"a\"\r\n", 304),
        ("If-None-Match: \"b\"\r\n", 200),
        ("If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n", 304),
        ("Range: bytes=10-19\r\n", 206),
        ("Range: bytes=-5\r\n", 206),
        ("Range: bytes=1-2,40000-49999\r\n", 206),
        ("Range: bytes=50000-\r\n", 416),
        ("Range: bytes=10-19\r\nIf-Range: \"b\"\r\n", 200),
        ("Range: bytes=10-19\r\nIf-Range: \"a\"\r\n", 206),
    ] {
        let answer = get(&proxy, "/", fields);
        assert_eq!(answer.status(), status, "{fields}");
        assert!(is_hit(&answer), "{fields}");
        match status {
            200 => assert_same(&answer.body, &pattern(50_000)),
            304 => assert_eq!((answer.get("etag"), answer.get("content-type")), (Some("\"a\""), None)),
            _ => {}
        }
    }
    let part = get(&proxy, "/", "Range: bytes=10-19\r\n");
    assert_same(&part.body, &pattern(50_000)[10..20]);
    assert_eq!(part.get("content-range"), Some("bytes 10-19/50000"));
    assert_eq!(origin.requests().len(), 1);
    // A part is not the whole.
    let other = get(&proxy, "/other", "Range: bytes=10-19\r\n");
    assert_eq!(told(&other), "sluice; fwd=uri-miss");
    assert_eq!(origin.last().get("range"), Some("bytes=10-19"));
}

#[test]
fn stored_responses_are_encoded_and_changed_for_each_client() {
    let text = "some text that shrinks ".repeat(500);
    let sent = text.clone();
    let origin = Origin::answering(move |request| {
        assert_eq!(request.get("accept-encoding"), Some("identity"));
        let fields =
            "Cache-Control: max-age=60\r\nContent-Type: text/html\r\nVary: Accept-Encoding\r\nX-Old: a\r\n";
        response(fields, &sent)
    });
    let route = json!([{"cluster": "default", "cache": "pages", "compress": {},
        "response_headers": {"remove": ["X-Old"], "set": {"X-Who": "{client_ip}", "X-Path": "{path}"}}}]);
    let setup = caching(&origin, json!({})).with("compression", json!({"cpu_percent_max": 100}));
    let Some(proxy) = setup.with("routes", route).start() else { return };
    for coding in [None, Some("gzip"), Some("br"), Some("zstd"), None] {
        let fields = coding.map_or_else(String::new, |coding| format!("Accept-Encoding: {coding}\r\n"));
        let answer = get(&proxy, "/page", &fields);
        assert_eq!(answer.get("content-encoding"), coding);
        assert_eq!((answer.get("x-path"), answer.get("x-old")), (Some("/page"), None));
        assert_eq!(answer.all("vary"), ["Accept-Encoding"]);
        match coding {
            None => assert_eq!(answer.text(), text),
            Some(_) => assert!(answer.body.len() < text.len() / 4),
        }
    }
    assert_eq!(origin.requests().len(), 1);
}

#[test]
fn a_reload_keeps_what_is_stored_unless_it_is_too_much() {
    let origin = Origin::answering(|_| response("Cache-Control: max-age=60\r\n", pattern(100_000)));
    let Some(proxy) = serve(&origin, json!({"memory_max": "16m"})) else { return };
    let mut wire = proxy.connect();
    for at in 0..50 {
        wire.ask(request(&format!("/{at}"), ""));
    }
    let hits = |proxy: &crate::support::Proxy| {
        let mut wire = proxy.connect();
        (0..50)
            .filter(|at| is_hit(&wire.ask(request(&format!("/{at}"), "Cache-Control: only-if-cached\r\n"))))
            .count()
    };
    let mut other = proxy.config.clone();
    other["caches"]["pages"]["heuristic_max"] = json!("1m");
    assert_eq!(proxy.reload(&other).0, Some(0));
    assert_eq!(hits(&proxy), 50);
    other["caches"]["pages"]["memory_max"] = json!("1m");
    other["caches"]["pages"]["object_max"] = json!("200k");
    assert_eq!(proxy.reload(&other).0, Some(0));
    assert!(proxy.metric("sluice_cache_bytes{cache=\"pages\"}") <= f64::from(1 << 20));
}

#[test]
fn a_stored_response_belongs_to_each_request_anew() {
    let origin = Origin::answering(|_| {
        let fields = "Cache-Control: max-age=60\r\nX-Request-Id: of-the-first\r\nServer-Timing: db\r\n";
        response(fields, "body")
    });
    let Some(proxy) = serve(&origin, json!({})) else { return };
    let first = get(&proxy, "/", "");
    assert_eq!((first.get("x-request-id"), first.get("server-timing")), (Some("of-the-first"), Some("db")));
    let second = get(&proxy, "/", "");
    assert!(is_hit(&second) && second.get("x-request-id").unwrap().len() == 32);
    assert_eq!(second.get("server-timing"), None);
    assert!(second.get("date").is_some());
}
