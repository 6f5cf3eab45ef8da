//! Requests that must not be forwarded: hostile framing, and requests beyond a limit (RFC 9112 sections 2 to 7).

use serde_json::json;

use crate::support::{Message, Origin, Proxy, Setup, ok};

/// Sends bytes that must be refused: one response with this status, then the end of the connection.
fn refused(proxy: &Proxy, what: &str, bytes: &[u8]) -> (u16, Message) {
    let mut client = proxy.connect();
    client.send(bytes);
    let answer = client.response();
    assert_eq!(answer.get("connection"), Some("close"), "{what}");
    let (rest, clean) = client.rest();
    assert_eq!((String::from_utf8_lossy(&rest).as_ref(), clean), ("", true), "{what}: after the response");
    (answer.status(), answer)
}

/// Sends each of `cases` on its own connection, followed by a request that must not be served either; the origin sees
/// nothing of them.
fn all_refused(status: u16, cases: &[(&str, &str)]) {
    let origin = Origin::saying("smuggled");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    for (what, bytes) in cases {
        let bytes = format!("{bytes}GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(refused(&proxy, what, bytes.as_bytes()).0, status, "{what}");
    }
    assert_eq!(origin.connections(), 0, "an origin was connected");
    assert_eq!(proxy.get("/").text(), "smuggled", "the proxy continues");
}

#[test]
fn contradictory_framing_is_refused() {
    all_refused(
        400,
        &[
            (
                "CL.TE",
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            ),
            (
                "TE.CL",
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
            ),
            ("two lengths", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n"),
            ("equal lengths", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n"),
            ("list of lengths", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0, 0\r\n\r\n"),
            ("signed length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +0\r\n\r\n"),
            ("negative length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n"),
            ("hexadecimal length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x0\r\n\r\n"),
            ("empty length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: \r\n\r\n"),
            ("enormous length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551616\r\n\r\n"),
            ("unknown coding", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n"),
            (
                "two codings",
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            ),
            (
                "chunked twice",
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
            ),
            (
                "chunked not last",
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
            ),
            (
                "two fields of coding",
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
            ),
            (
                "vertical tab in coding",
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
            ),
            (
                "quoted coding",
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
            ),
            (
                "coding in HTTP/1.0",
                "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            ),
            ("body of TRACE", "TRACE / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"),
        ],
    );
}

#[test]
fn malformed_heads_are_refused() {
    all_refused(
        400,
        &[
            ("bare LF", "GET / HTTP/1.1\nHost: a\n\n"),
            ("bare LF between fields", "GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n"),
            ("bare CR", "GET / HTTP/1.1\r\nHost: a\r\nX: y\rZ: z\r\n\r\n"),
            ("NUL", "GET / HTTP/1.1\r\nHost: a\r\nX: y\0z\r\n\r\n"),
            ("obs-fold", "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n"),
            ("fold before the first field", "GET / HTTP/1.1\r\n X: y\r\nHost: a\r\n\r\n"),
            ("space before the colon", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 5\r\n\r\n"),
            ("tab before the colon", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding\t: chunked\r\n\r\n"),
            ("no colon", "GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n"),
            ("empty name", "GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n"),
            ("name with a byte above ASCII", "GET / HTTP/1.1\r\nHost: a\r\nX\u{e9}: x\r\n\r\n"),
            ("control byte in a value", "GET / HTTP/1.1\r\nHost: a\r\nX: \x01\r\n\r\n"),
            ("two spaces in the line", "GET  / HTTP/1.1\r\nHost: a\r\n\r\n"),
            ("space in the target", "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n"),
            ("fragment", "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n"),
            ("relative target", "GET a HTTP/1.1\r\nHost: a\r\n\r\n"),
            ("asterisk without OPTIONS", "GET * HTTP/1.1\r\nHost: a\r\n\r\n"),
            ("another scheme", "GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n"),
            ("invalid method", "G(T / HTTP/1.1\r\nHost: a\r\n\r\n"),
            ("lower-case version", "GET / http/1.1\r\nHost: a\r\n\r\n"),
            ("HTTP/0.9", "GET /\r\n\r\n"),
            ("TLS", "\x16\x03\x01\x02\0\x01\0\r\n\r\n"),
            (
                "lookalike of framing",
                "POST / HTTP/1.1\r\nHost: a\r\nContent_Length: 5\r\nTransfer_Encoding: chunked\r\n\r\n",
            ),
            ("Connection that is not a list", "GET / HTTP/1.1\r\nHost: a\r\nConnection: \"x\"\r\n\r\n"),
        ],
    );
}

#[test]
fn a_doubtful_host_is_refused() {
    all_refused(
        400,
        &[
            ("none", "GET / HTTP/1.1\r\n\r\n"),
            ("two", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
            ("two alike", "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"),
            ("empty", "GET / HTTP/1.1\r\nHost: \r\n\r\n"),
            ("list", "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n"),
            ("space", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n"),
            ("path", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"),
            ("userinfo", "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n"),
            ("invalid port", "GET / HTTP/1.1\r\nHost: a:b\r\n\r\n"),
            ("port too large", "GET / HTTP/1.1\r\nHost: a:65536\r\n\r\n"),
            ("broken IPv6", "GET / HTTP/1.1\r\nHost: [::1\r\n\r\n"),
            ("disagrees with the target", "GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n"),
            ("disagrees by port", "GET http://a:1/ HTTP/1.1\r\nHost: a:2\r\n\r\n"),
        ],
    );
}

#[test]
fn chunk_faults_in_the_first_bytes_never_reach_an_origin() {
    const HEAD: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let cases = [
        ("no size", "\r\nx\r\n0\r\n\r\n"),
        ("size with 0x", "0x1\r\nx\r\n0\r\n\r\n"),
        ("negative size", "-1\r\nx\r\n0\r\n\r\n"),
        ("size with a space in front", " 1\r\nx\r\n0\r\n\r\n"),
        ("size beyond 64 bits", "10000000000000001\r\nx\r\n0\r\n\r\n"),
        ("size ended by LF", "1\nx\r\n0\r\n\r\n"),
        ("data ended by LF", "1\r\nx\n0\r\n\r\n"),
        ("data longer than its size", "1\r\nxy\r\n0\r\n\r\n"),
        ("CR in an extension", "1;a\rb\r\nx\r\n0\r\n\r\n"),
        ("LF in an extension", "1;a\nb\r\nx\r\n0\r\n\r\n"),
        ("trailer without colon", "0\r\nx\r\n\r\n"),
        ("folded trailer", "0\r\nx: y\r\n z\r\n\r\n"),
        ("trailer ended by LF", "0\r\nx: y\n\r\n"),
    ];
    let whole: Vec<_> = cases.iter().map(|(what, body)| (*what, format!("{HEAD}{body}"))).collect();
    let whole: Vec<_> = whole.iter().map(|(what, bytes)| (*what, bytes.as_str())).collect();
    all_refused(400, &whole);
}

#[test]
fn a_fault_late_in_a_body_ends_both_connections() {
    let origin = Origin::playing(|mut peer| {
        let mut request = peer.try_head().unwrap();
        assert_eq!(peer.chunk(&mut request).unwrap(), b"good");
        peer.expect_end();
        peer.reset();
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = proxy.connect();
    client.send("POST /late HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n");
    crate::support::poll("the origin's connection", || (origin.connections() == 1).then_some(()));
    client.send("zero\r\n\r\n");
    let answer = client.response();
    assert_eq!((answer.status(), answer.get("connection")), (400, Some("close")));
    client.expect_end();
    assert_eq!(proxy.outcome("/late"), (400, "bad_body".to_owned()));
    assert_eq!(origin.requests().len(), 0, "it did not become a complete request");
}

#[test]
fn limits_are_exact_to_the_byte() {
    let origin = Origin::saying("");
    let limits = json!({
        "head_bytes_max": 1000, "headers_max": 10, "target_bytes_max": 100, "body_bytes_max": 1000,
        "chunk_line_bytes_max": 50, "trailer_bytes_max": 100,
    });
    let Some(proxy) = Setup::to_origin(&origin).with("limits", limits).start() else { return };
    let head = |bytes: usize| {
        let start = "GET / HTTP/1.1\r\nHost: a\r\nX: ";
        format!("{start}{}\r\n\r\n", "x".repeat(bytes - start.len() - 4))
    };
    let fields = |count: usize| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(count - 1));
    let target = |bytes: usize| format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(bytes - 1));
    let body =
        |n: usize| format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {n}\r\n\r\n{}", "x".repeat(n));
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunks = |n: usize| format!("{chunked}{}0\r\n\r\n", "1\r\nx\r\n".repeat(n));
    let exact = [head(1000), fields(10), target(100), body(1000), chunks(1000)];
    for request in &exact {
        assert_eq!(proxy.ask(request).status(), 200, "{request}");
    }
    assert_eq!(origin.requests().len(), exact.len());
    let line = format!("{chunked}1;{}\r\nx\r\n0\r\n\r\n", "x".repeat(100));
    let trailers = format!("{chunked}0\r\nX: {}\r\n\r\n", "x".repeat(100));
    let over = [
        (431, "head", head(1001)),
        (431, "fields", fields(11)),
        (414, "target", target(101)),
        (413, "length", body(1001)),
        (413, "chunks", chunks(1001)),
        (400, "chunk line", line),
        (400, "trailers", trailers),
    ];
    for (status, what, request) in over {
        assert_eq!(refused(&proxy, what, request.as_bytes()).0, status, "{what}");
    }
    assert_eq!(origin.requests().len(), exact.len(), "no request beyond a limit was forwarded");
}

#[test]
fn an_endless_head_is_refused_at_the_limit() {
    let origin = Origin::saying("");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let line = format!("GET /{}", "x".repeat(40_000));
    assert_eq!(refused(&proxy, "endless target", line.as_bytes()).0, 414);
    let fields = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "x".repeat(40_000));
    assert_eq!(refused(&proxy, "endless field", fields.as_bytes()).0, 431);
    assert_eq!(origin.connections(), 0);
}

#[test]
fn unsupported_requests_have_their_own_status() {
    let origin = Origin::saying("");
    let routes = json!([
        {"path_prefix": "/only", "methods": ["GET", "HEAD"], "cluster": "default"},
        {"hosts": ["a.test"], "path_prefix": "/any", "cluster": "default"},
    ]);
    let Some(proxy) = Setup::to_origin(&origin).with("routes", routes).start() else { return };
    let connect = refused(&proxy, "CONNECT", b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n");
    assert_eq!((connect.0, connect.1.get("x-sluice-reason")), (501, Some("not_implemented")));
    for line in ["GET / HTTP/2.0", "GET / HTTP/1.2", "PRI * HTTP/2.0"] {
        let request = format!("{line}\r\nHost: a\r\n\r\n");
        assert_eq!(refused(&proxy, line, request.as_bytes()).0, 505, "{line}");
    }
    let expectation =
        "POST /any HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\nExpect: 100-continue, x\r\n\r\n";
    assert_eq!(refused(&proxy, "expectation", expectation.as_bytes()).0, 417);

    let mut client = proxy.connect();
    let allowed = client.ask("DELETE /only HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert_eq!((allowed.status(), allowed.get("allow")), (405, Some("GET, HEAD")));
    let missing = client.ask("POST /none HTTP/1.1\r\nHost: a.test\r\nContent-Length: 2\r\n\r\nhi");
    assert_eq!((missing.status(), missing.get("x-sluice-reason")), (404, Some("no_route")));
    assert_eq!(client.ask("GET /any HTTP/1.1\r\nHost: b.test\r\n\r\n").status(), 404);
    assert_eq!(
        client.ask("GET /any HTTP/1.1\r\nHost: a.test\r\n\r\n").status(),
        200,
        "the connection was kept"
    );
}

#[test]
fn empty_lines_before_a_request_are_ignored() {
    let origin = Origin::saying("hi");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = proxy.connect();
    for _ in 0..2 {
        assert_eq!(client.ask("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n").text(), "hi");
    }
}

#[test]
fn hostile_responses_become_502_and_their_connection_is_not_reused() {
    let cases = [
        (
            "both framings",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        ("two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx"),
        ("bad length", "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"),
        ("unknown coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n"),
        ("coding in HTTP/1.0", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("bad chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n"),
        ("bare LF", "HTTP/1.1 200 OK\nContent-Length: 0\n\n"),
        ("obs-fold", "HTTP/1.1 200 OK\r\nX: y\r\n z\r\nContent-Length: 0\r\n\r\n"),
        ("space before the colon", "HTTP/1.1 200 OK\r\nContent-Length : 0\r\n\r\n"),
        ("no HTTP", "SSH-2.0-OpenSSH\r\n\r\n"),
        ("status of two digits", "HTTP/1.1 20 OK\r\n\r\n"),
        ("status beyond 599", "HTTP/1.1 600 OK\r\n\r\n"),
        ("HTTP/2", "HTTP/2 200 OK\r\n\r\n"),
    ];
    let origin = Origin::answering(move |request| match request.target()[1..].parse::<usize>() {
        Ok(index) => cases[index].1.into(),
        Err(_) => ok("good"),
    });
    let setup =
        Setup::to_origin(&origin).with("clusters.default.ejection", json!({"consecutive_failures": 0}));
    let Some(proxy) = setup.start() else { return };
    for (index, (what, _)) in cases.iter().enumerate() {
        let answer = proxy.get(&format!("/{index}"));
        assert_eq!((answer.status(), answer.get("x-sluice-reason")), (502, Some("bad_response")), "{what}");
        assert_eq!(proxy.get("/good").text(), "good", "after {what}");
    }
    assert_eq!(origin.connections(), cases.len() + 1, "each fault closes its connection");
}
