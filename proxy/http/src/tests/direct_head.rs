//! The heads that direct return forwards from the kernel equal those that sluice would send, byte for byte.

use proptest::prelude::*;
use sluice_ebpf::head::{Head, parse_text};

use super::odd_heads::{odd_head, usual_head};
use super::*;

/// The defaults of a cluster.
const DEFAULTS: HeadLimits =
    HeadLimits { head_bytes_max: 65_536, headers_max: 200, target_bytes_max: usize::MAX };

/// The head as the kernel sends it to the client, with the id's line unless the application has sent one.
fn sent(bytes: &[u8], head: &Head, id: Option<&[u8]>) -> Vec<u8> {
    let mut from = head.status_line_bytes as usize;
    let mut out = bytes[..from].to_vec();
    if let Some(id) = id.filter(|_| head.has_request_id == 0) {
        out.extend_from_slice(&[b"X-Request-Id: ", id, b"\r\n"].concat());
    }
    for cut in &head.cuts[..head.cut_count as usize] {
        let start = cut.start as usize;
        out.extend_from_slice(&bytes[from..start]);
        from = start + cut.bytes as usize;
    }
    out.extend_from_slice(&bytes[from..head.head_bytes as usize]);
    out
}

/// sluice's rendering of the head at the start of `bytes`.
fn rendered(bytes: &[u8], found: &Head, request_id: Option<&[u8]>) -> Vec<u8> {
    let scanned =
        HeadScanner::for_response().scan(bytes, &DEFAULTS).expect("sluice finds the end of the head");
    assert_eq!(scanned, Scan::Complete(found.head_bytes as usize));
    let mut head = ResponseHead::new();
    head.parse(&bytes[..found.head_bytes as usize], &DEFAULTS).expect("sluice accepts the head");
    let framing = response_framing(&head, Method::Get).expect("the length is valid");
    assert_eq!(framing, Framing::Length(found.content_length));
    assert_eq!((u32::from(head.status()), head.fields().count() as u32), (found.status, found.fields));
    assert!(head.keep_alive() && head.version() == Version::Http11 && head.upgrade().is_none());
    let mut out = Vec::new();
    encode_response(
        &mut out,
        &head,
        &ResponseForward {
            request_id,
            framing,
            keep_alive: true,
            client_version: Version::Http11,
            request_method: Method::Get,
            via: false,
            is_encoded: false,
            upgrade: false,
            edits: None,
            extra: [None; 5],
            listener: ListenerFields::NONE,
        },
    );
    out
}

/// Asserts the rule, and returns whether the head was accepted.
fn holds(bytes: &[u8]) -> bool {
    let Ok(found) = parse_text(bytes) else { return false };
    for id in [None, Some(&b"0123456789abcdef0123456789abcdef"[..])] {
        let (sent, expected) = (sent(bytes, &found, id), rendered(bytes, &found, id));
        assert_eq!(sent.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }
    true
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn accepted_head_equals_what_sluice_would_send(bytes in odd_head()) {
        holds(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn bytes_after_the_head_change_nothing(bytes in odd_head(), end: prop::sample::Index) {
        let end = end.index(bytes.len() + 1);
        let part = parse_text(&bytes[..end]);
        if let Ok(found) = part {
            prop_assert_eq!(parse_text(&bytes), Ok(found));
        }
    }

    #[test]
    fn usual_heads_are_accepted(head in usual_head()) {
        prop_assert!(holds(&head), "{:?}: {}", parse_text(&head), head.escape_ascii());
    }
}
