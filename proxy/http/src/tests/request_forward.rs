//! What the endpoint receives of a request.

use super::strict::{StrictHead, assert_clean_request, read_strictly};
use super::*;

const NEUTRAL: RequestForward<'_> = RequestForward {
    path_and_query: b"/",
    host: b"a.example",
    framing: Framing::None,
    client_ip: b"192.0.2.1",
    proto: b"http",
    trusted: false,
    request_id: b"made-here",
    request_start: b"t=1.000",
    continued: false,
    via: false,
    upgrade: None,
    dropped: &[],
    is_early: false,
    traceparent: None,
    identity: None,
    edits: None,
};

fn forward_with<'a>(bytes: &[u8], change: impl FnOnce(&mut RequestForward<'a>)) -> StrictHead {
    let (head, framing) = read_request(bytes).unwrap();
    let mut forward: RequestForward<'a> = RequestForward { framing, ..NEUTRAL };
    change(&mut forward);
    let mut out = Vec::new();
    encode_request(&mut out, &head, &forward);
    let forwarded = read_strictly(&out);
    assert_clean_request(&forwarded);
    forwarded
}

fn forward(fields: &[u8]) -> StrictHead {
    forward_with(&get_with(fields), |_| {})
}

#[test]
fn a_request_is_rendered_in_full() {
    let bytes = b"POST http://A.example/x?y HTTP/1.1\r\nAccept: *\r\nHost: a.example\r\nContent-Length: 05\r\nx-A:b\r\n\r\n";
    let (head, framing) = read_request(bytes).unwrap();
    let mut out = b"kept".to_vec();
    let forward =
        RequestForward { framing, path_and_query: head.path_and_query(), host: head.host(), ..NEUTRAL };
    encode_request(&mut out, &head, &forward);
    let expected = "keptPOST /x?y HTTP/1.1\r\nHost: A.example\r\nAccept: *\r\nx-A: b\r\n\
        X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: A.example\r\n\
        X-Request-Id: made-here\r\nX-Request-Start: t=1.000\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

#[test]
fn only_a_met_expectation_is_removed() {
    let expectant = post_with(b"Expect: 100-Continue\r\nContent-Length: 4\r\n");
    assert_eq!(forward_with(&expectant, |_| {}).value("expect"), "100-Continue");
    let told = forward_with(&expectant, |forward| forward.continued = true);
    assert!(told.fields.iter().all(|field| field.0 != "expect"));
}

#[test]
fn hop_by_hop_request_fields_are_removed() {
    let forwarded = forward(
        b"Connection: keep-alive, X-Hop, x-other\r\nX-HOP: 1\r\nX-Other: 2\r\nKeep-Alive: timeout=5\r\nTE: trailers\r\n\
          Proxy-Connection: keep-alive\r\nProxy-Authorization: x\r\nProxy-Authenticate: x\r\nUpgrade: a\r\n\
          HTTP2-Settings: x\r\nProxy: http://evil\r\nTrailer: x\r\nX-Stays: 3\r\nX_Forwarded_For: 6\r\n",
    );
    let names: Vec<&str> = forwarded.fields.iter().map(|field| field.0.as_str()).collect();
    let own = ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-request-id", "x-request-start"];
    assert_eq!(names, [["host", "x-stays"].as_slice(), own.as_slice()].concat());
}

#[test]
fn nominated_framing_and_routing_fields_are_kept() {
    let bytes = post_with(
        b"Connection: Host, Content-Length, Transfer-Encoding, X-Forwarded-For, X-Forwarded-Proto\r\nContent-Length: 4\r\n",
    );
    let forwarded = forward_with(&bytes, |_| {});
    assert_eq!(forwarded.value("content-length"), "4");
    assert_eq!(forwarded.value("x-forwarded-for"), "192.0.2.1");
    let told = get_with(b"Connection: X-Forwarded-For\r\nX-Forwarded-For: 198.51.100.7\r\n");
    let forwarded = forward_with(&told, |forward| forward.trusted = true);
    assert_eq!(forwarded.value("x-forwarded-for"), "198.51.100.7, 192.0.2.1");
}

const TOLD: &[u8] =
    b"X-Forwarded-For: 198.51.100.7\r\nX-Forwarded-For: 198.51.100.8\r\nX-Forwarded-Proto: https\r\n\
    X-Forwarded-Host: outer\r\nX-Request-Start: t=0.500\r\nForwarded: for=x\r\n";

#[test]
fn forwarded_fields_of_an_untrusted_peer_are_replaced() {
    let forwarded = forward(TOLD);
    assert_eq!(forwarded.value("x-forwarded-for"), "192.0.2.1");
    assert_eq!(forwarded.value("x-forwarded-proto"), "http");
    assert_eq!(forwarded.value("x-forwarded-host"), "a.example");
    assert_eq!(forwarded.value("x-request-start"), "t=1.000");
    assert_eq!(forwarded.values("forwarded").len(), 0);
}

#[test]
fn forwarded_fields_of_a_trusted_peer_are_kept() {
    let forwarded = forward_with(&get_with(TOLD), |forward| forward.trusted = true);
    assert_eq!(forwarded.value("x-forwarded-for"), "198.51.100.7, 198.51.100.8, 192.0.2.1");
    assert_eq!(forwarded.value("x-forwarded-proto"), "https");
    assert_eq!(forwarded.value("x-forwarded-host"), "outer");
    assert_eq!(forwarded.value("x-request-start"), "t=0.500");
    assert_eq!(forwarded.value("forwarded"), "for=x");
}

#[test]
fn peer_without_an_address_adds_none() {
    let forwarded = forward_with(&get_with(TOLD), |forward| {
        forward.trusted = true;
        forward.client_ip = b"";
    });
    assert_eq!(forwarded.value("x-forwarded-for"), "198.51.100.7, 198.51.100.8");
    let forwarded = forward_with(&get_with(b""), |forward| forward.client_ip = b"");
    assert_eq!(forwarded.values("x-forwarded-for").len(), 0);
}

#[test]
fn well_formed_request_id_of_a_trusted_peer_is_kept() {
    let forward = |fields: &[u8]| forward_with(&get_with(fields), |forward| forward.trusted = true);
    let longest = "a".repeat(128);
    for id in ["aZ09_.-", &longest] {
        let fields = format!("X-Request-Id: {id}\r\n");
        assert_eq!(forward(fields.as_bytes()).value("x-request-id"), id);
    }
    for fields in [
        "X-Request-Id:\r\n".to_owned(),
        "X-Request-Id: a b\r\n".to_owned(),
        "X-Request-Id: a\"\r\n".to_owned(),
        "X-Request-Id: a\r\nX-Request-Id: b\r\n".to_owned(),
        "Connection: x-request-id\r\nX-Request-Id: a\r\n".to_owned(),
        format!("X-Request-Id: {longest}a\r\n"),
    ] {
        assert_eq!(forward(fields.as_bytes()).value("x-request-id"), "made-here", "{fields}");
    }
}

#[test]
fn claims_of_an_untrusted_peer_are_removed() {
    let claims = b"X-Request-Id: mine\r\nX-Forwarded-Ssl: on\r\nX-Forwarded-Scheme: https\r\nX-Forwarded-Port: 443\r\n\
        X-Forwarded-Prefix: /a\r\nX-Forwarded-Server: b\r\nFront-End-Https: on\r\nX-Real-IP: 10.0.0.1\r\n\
        X-Url-Scheme: https\r\nX-Client-Cert-Verified: yes\r\nClient-Cert: :MII:\r\nX-Kept: 1\r\n";
    let claimed = |forwarded: &StrictHead| {
        forwarded.fields.iter().filter(|(name, _)| name.starts_with("x-forwarded-s")).count()
            + [
                "x-forwarded-port",
                "x-forwarded-prefix",
                "front-end-https",
                "x-real-ip",
                "x-url-scheme",
                "x-kept",
            ]
            .into_iter()
            .chain(["x-client-cert-verified", "client-cert"])
            .map(|name| forwarded.values(name).len())
            .sum::<usize>()
    };
    let forwarded = forward(claims);
    assert_eq!((claimed(&forwarded), forwarded.value("x-request-id")), (1, "made-here".to_owned()));
    let forwarded = forward_with(&get_with(claims), |forward| forward.trusted = true);
    assert_eq!((claimed(&forwarded), forwarded.value("x-request-id")), (11, "mine".to_owned()));
    let shown: &[(&'static [u8], Vec<u8>)] = &[(b"X-Client-Cert-Verified", b"no".to_vec())];
    let forwarded = forward_with(&get_with(claims), |forward| {
        forward.trusted = true;
        forward.identity = Some(shown);
    });
    assert_eq!(
        (forwarded.value("x-client-cert-verified"), forwarded.values("client-cert").len()),
        ("no".to_owned(), 0)
    );
}

#[test]
fn claims_with_underscores_are_always_removed() {
    for trusted in [false, true] {
        let bytes = get_with(b"X_Forwarded_Ssl: on\r\nX-Forwarded_Scheme: https\r\nx_real_ip: a\r\nX_Client_Cert_Subject: b\r\n");
        let forwarded = forward_with(&bytes, |forward| forward.trusted = trusted);
        assert!(forwarded.fields.iter().all(|(name, _)| !name.contains('_')), "{:?}", forwarded.fields);
    }
}

#[test]
fn request_framing_is_rendered_anew() {
    let forwarded = forward_with(&post_with(b"transfer-encoding:  Chunked\r\nTrailer: X-Sum\r\n"), |_| {});
    assert_eq!(forwarded.value("transfer-encoding"), "chunked");
    assert_eq!(forwarded.value("trailer"), "X-Sum");
    let nominated = b"Transfer-Encoding: chunked\r\nConnection: Trailer\r\nTrailer: X-Sum\r\n";
    assert_eq!(forward_with(&post_with(nominated), |_| {}).values("trailer").len(), 0);
    let forwarded = forward_with(&post_with(b"Content-Length: 0\r\n"), |_| {});
    assert_eq!(forwarded.value("content-length"), "0");
    let forwarded = forward_with(&post_with(b""), |_| {});
    assert_eq!(forwarded.values("content-length").len(), 0);
}

#[test]
fn expectations_are_forwarded_if_they_can_be_met() {
    let with_body = post_with(b"Expect: 100-continue\r\nContent-Length: 1\r\n");
    assert_eq!(forward_with(&with_body, |_| {}).value("expect"), "100-continue");
    assert_eq!(forward(b"Expect: 200-ok\r\n").value("expect"), "200-ok");
    assert_eq!(
        forward(b"Expect: 100-continue\r\n").values("expect").len(),
        0,
        "there is no body to wait for"
    );
    let old = b"POST / HTTP/1.0\r\nHost: a\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n";
    assert_eq!(forward_with(old, |_| {}).values("expect").len(), 0, "ignored in HTTP/1.0");
}

#[test]
fn upgrade_request_is_rendered_anew() {
    let bytes =
        get_with(b"Connection: Upgrade, keep-alive\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n");
    let forwarded = forward_with(&bytes, |forward| forward.upgrade = Some(b"websocket"));
    assert_eq!(
        (forwarded.value("connection"), forwarded.value("upgrade")),
        ("upgrade".into(), "websocket".into())
    );
    assert_eq!(forwarded.value("sec-websocket-key"), "k");
}

#[test]
fn early_requests_say_so_once() {
    let early = |head: &[u8]| forward_with(head, |forward| forward.is_early = true);
    assert_eq!(early(&get_with(b"")).value("early-data"), "1");
    for told in [&b"Early-Data: 1\r\n"[..], b"early-data: 0\r\n", b"Early-Data: 0\r\nEarly-Data: 0\r\n"] {
        assert_eq!(early(&get_with(told)).values("early-data"), [b"1"]);
    }
    let forwarded = forward_with(&get_with(b"Early-Data: 1\r\n"), |_| ());
    assert_eq!(forwarded.value("early-data"), "1", "of a client in front");
}

#[test]
fn http2_request_keeps_te_trailers_and_has_its_version_in_via() {
    let rendered = |head: &RequestHead| {
        let mut out = Vec::new();
        encode_request(&mut out, head, &RequestForward { via: true, ..NEUTRAL });
        String::from_utf8(out).unwrap()
    };
    let parts = RequestParts {
        version: Version::Http2,
        method: b"GET",
        target: b"/",
        authority: Some(b"a"),
        ended: true,
        websocket: None,
    };
    let mut head = RequestHead::new();
    head.assemble(&parts, [(&b"te"[..], &b"trailers"[..])].into_iter(), &LIMITS).unwrap();
    assert!(rendered(&head).ends_with("Via: 2.0 sluice\r\nConnection: te\r\nTE: trailers\r\n\r\n"));
    // In HTTP/1.1, TE is hop-by-hop.
    let (head, _) = read_request(&get_with(b"TE: Trailers\r\n")).unwrap();
    assert!(rendered(&head).ends_with("Via: 1.1 sluice\r\n\r\n"));
}

#[test]
fn via_is_appended() {
    let forwarded = forward_with(&get_with(b"Via: 1.0 outer\r\n"), |forward| forward.via = true);
    assert_eq!(forwarded.values("via"), [b"1.0 outer".as_slice(), b"1.1 sluice"]);
}

#[test]
fn edits_are_applied_last_and_keep_framing() {
    let pair = |name: &str, value: &str| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
    let edits = FieldEdits {
        remove: ["x-gone", "host", "content-length", "x-request-start"]
            .map(|name| name.as_bytes().to_vec())
            .into(),
        set: vec![
            pair("X-Set", "new"),
            pair("x-forwarded-proto", "https"),
            pair("Host", "evil"),
            pair("Connection", "x"),
            pair("X-Bad", "a\r\nb: c"),
            pair("X Bad", "a"),
        ],
        add: vec![pair("X-Added", "2"), pair("Transfer-Encoding", "chunked"), pair("Content_Length", "9")],
        unless: None,
        cookies: None,
    };
    let bytes =
        post_with(b"X-Gone: 1\r\nX-Gone: 2\r\nx-set: old\r\nX-Bad: 1\r\nX-Added: 1\r\nContent-Length: 3\r\n");
    let forwarded = forward_with(&bytes, |forward| forward.edits = Some(&edits));
    assert_eq!(forwarded.values("x-gone").len() + forwarded.values("x-request-start").len(), 0);
    assert_eq!(forwarded.value("x-set"), "new");
    assert_eq!(forwarded.value("x-forwarded-proto"), "https");
    assert_eq!(forwarded.value("x-bad"), "1");
    assert_eq!(forwarded.values("x-added"), [b"1", b"2"]);
    assert_eq!(forwarded.value("host"), "a.example");
    assert_eq!(forwarded.value("content-length"), "3");
    assert!(FieldEdits::default().is_empty() && !edits.is_empty());
}

#[test]
fn dropped_fields_are_removed_and_traceparent_is_replaced() {
    let fields = get_with(b"TraceParent: a\r\ntracestate: b\r\nX-Trace: c\r\nTRACEPARENT: d\r\n");
    let untouched = forward_with(&fields, |_| {});
    assert_eq!(untouched.values("traceparent"), [b"a", b"d"]);
    let ours = |forward: &mut RequestForward<'_>| {
        forward.dropped = &[b"traceparent", b"x-absent"];
        forward.traceparent = Some(b"ours");
    };
    let replaced = forward_with(&fields, ours);
    assert_eq!(replaced.values("traceparent"), [b"ours"]);
    assert_eq!((replaced.values("tracestate").len(), replaced.values("x-trace").len()), (1, 1));
    let edits = FieldEdits { remove: vec![b"traceparent".to_vec()], ..FieldEdits::default() };
    let removed = forward_with(&fields, |forward| {
        forward.dropped = &[b"traceparent"];
        forward.traceparent = Some(b"ours");
        forward.edits = Some(&edits);
    });
    assert_eq!(removed.values("traceparent").len(), 0, "the route's edits take precedence");
}

#[test]
fn only_the_proxy_sets_identity_fields() {
    let lies = b"X-Client-Cert-Verified: SUCCESS\r\nx_client_cert_subject: CN=root\r\nClient-Cert: :AAAA:\r\nX-A: b\r\n";
    let kept = forward_with(&get_with(lies), |forward| forward.trusted = true);
    assert_eq!(
        kept.value("x-client-cert-verified"),
        "SUCCESS",
        "a trusted proxy has verified the certificate"
    );
    let none: &[(&'static [u8], Vec<u8>)] = &[];
    let own: [(&'static [u8], Vec<u8>); 1] = [(b"X-Client-Cert-Verified", b"NONE".to_vec())];
    for (identity, expected) in [(none, vec![]), (&own[..], vec!["NONE".to_owned()])] {
        let told = forward_with(&get_with(lies), |forward| forward.identity = Some(identity));
        let about = told.fields.iter().filter(|field| field.0.contains("client"));
        assert_eq!(
            about.map(|field| String::from_utf8_lossy(&field.1).into_owned()).collect::<Vec<_>>(),
            expected
        );
        assert_eq!(told.value("x-a"), "b");
    }
}
