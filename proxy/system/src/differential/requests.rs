//! Judges one case of requests: what the client sent, what arrived at the strict origin, and the responses.

use super::mismatch::Mismatch;
use std::net::SocketAddr;

use super::answers::{self, Answer, Answers};
use super::client::{End, Heard};
use super::forwarded::TOKEN_FIELD;
use super::origin::{Arrived, EARLY_METHOD};
use super::sent::{self, Request, Sent};
use super::wire::{Field, Halt};

/// Names, in lower case and with `-` for `_`, of fields that need not arrive.
const NOT_FORWARDED: &[&str] = &[
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "http2-settings",
    "forwarded",
    "x-request-id",
    "x-request-start",
    "x-differential",
    "proxy",
    "client-ip",
    "front-end-https",
    "true-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-https",
    "x-original-host",
    "x-original-uri",
    "x-original-url",
    "x-real-ip",
    "x-rewrite-url",
    "x-scheme",
    "x-url-scheme",
];
/// Prefixes of further ones.
const NOT_FORWARDED_PREFIXES: &[&str] = &["x-forwarded", "x-client-cert", "client-cert", "proxy-"];
/// The first word of the HTTP/2 preface; sluice closes such a connection without a response.
const PREFACE_METHOD: &[u8] = b"PRI";

/// The result of a case without faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Passed {
    pub(super) forwarded: usize,
    /// The status of the refusal at the end, if there is one.
    pub(super) refused: Option<u16>,
    /// Whether the refused bytes are a valid request by the RFC.
    pub(super) is_strict: bool,
}

/// Judges a case.
///
/// # Errors
/// The fault in words.
pub(super) fn judge(
    bytes: &[u8],
    own: SocketAddr,
    arrived: &[Arrived],
    heard: &Heard,
) -> Result<Passed, Mismatch> {
    let sent = sent::read(bytes);
    // A request answered after its head may be cut or invalid after it.
    let early = arrived.last().is_some_and(|last| !last.is_whole) && sent.halt.is_some();
    if arrived.len() > sent.requests.len() + usize::from(early) {
        return Err(format!(
            "{} requests arrived, the bytes hold {} ({})",
            arrived.len(),
            sent.requests.len(),
            halt_text(&sent)
        )
        .into());
    }
    for (nth, (arrived, request)) in arrived.iter().zip(&sent.requests).enumerate() {
        same(request, own, arrived).map_err(|difference| format!("request {}: {difference}", nth + 1))?;
    }
    if heard.end == End::Silent {
        return Err("the connection was not closed".into());
    }
    let mut methods: Vec<&[u8]> = sent.requests.iter().map(|request| &request.method[..]).collect();
    methods.push(&sent.next_method);
    let answers = answers::read(&heard.bytes, &methods);
    judge_answers(&sent, arrived, heard, &answers)
}

fn judge_answers(
    sent: &Sent,
    arrived: &[Arrived],
    heard: &Heard,
    answers: &Answers,
) -> Result<Passed, Mismatch> {
    if let Some(halt) = &answers.halt {
        return Err(format!("response {}: {halt:?}", answers.answers.len() + 1).into());
    }
    let refusals: Vec<&Answer> = answers.answers.iter().filter(|answer| answer.number().is_none()).collect();
    let numbers: Vec<u64> = answers.answers.iter().filter_map(Answer::number).collect();
    let expected: Vec<u64> = arrived.iter().map(|arrived| arrived.number).collect();
    // A reset may overtake responses that were sent.
    let is_early = arrived.last().is_some_and(|last| !last.is_whole);
    let may_lack = heard.end == End::Reset || is_early && numbers.len() + 1 == expected.len();
    let agree = numbers == expected || may_lack && expected.starts_with(&numbers);
    if !agree {
        return Err(format!("requests {expected:?} arrived, responses {numbers:?} came back").into());
    }
    let refused = match refusals[..] {
        [] => None,
        [refusal] if answers.answers.last().is_some_and(|last| last.number().is_none()) => Some(refusal),
        _ => return Err("a response of sluice's own that is not the last".into()),
    };
    if let Some(refusal) = refused {
        if !refusal.is_last {
            return Err(format!("a {} that does not close the connection", refusal.status).into());
        }
        if matches!(refusal.status, 500 | 502..=504) {
            return Err(format!("a {} although an origin responds", refusal.status).into());
        }
    }
    let is_preface = sent.next_method == PREFACE_METHOD;
    // If the origin did not wait for the body, sluice may close after the response; it must if only that ends it.
    let is_early = arrived.last().is_some_and(|last| last.request.method == EARLY_METHOD);
    let closes_early =
        answers.answers.last().is_some_and(|last| last.is_close_delimited || last.is_last && is_early);
    if refused.is_none()
        && heard.end == End::Closed
        && arrived.len() < sent.requests.len()
        && !(is_preface || closes_early)
    {
        return Err(format!(
            "{} of {} requests got no response",
            sent.requests.len() - arrived.len(),
            sent.requests.len()
        )
        .into());
    }
    let is_strict = refused.is_some() && arrived.len() < sent.requests.len();
    Ok(Passed { forwarded: arrived.len(), refused: refused.map(|refusal| refusal.status), is_strict })
}

fn halt_text(sent: &Sent) -> String {
    match &sent.halt {
        None => "nothing more follows".to_owned(),
        Some(Halt::Short) => "the next one is incomplete".to_owned(),
        Some(Halt::Invalid(reason)) => format!("the next one is invalid: {reason}"),
    }
}

/// The difference between what arrived and what was sent, if any.
fn same(sent: &Request, own: SocketAddr, arrived: &Arrived) -> Result<(), Mismatch> {
    let is_whole = arrived.is_whole;
    let arrived = &arrived.request;
    // If an HTTP/1.0 request names no host, sluice uses its own address.
    let own = own.to_string().into_bytes();
    let host = if sent.host.is_empty() { &own } else { &sent.host };
    for (what, sent, arrived) in [
        ("method", &sent.method, &arrived.method),
        ("target", &sent.target, &arrived.target),
        ("host", host, &arrived.host),
        ("body", &sent.body, &arrived.body),
    ] {
        if sent != arrived && (is_whole || what != "body") {
            return Err(
                format!("{what} {} arrived as {}", sent.escape_ascii(), arrived.escape_ascii()).into()
            );
        }
    }
    same_fields(sent, &sent.fields, &arrived.fields, may_be_missing)?;
    if let Some(trailer) = arrived.trailers.iter().find(|field| field.is(TOKEN_FIELD)) {
        return Err(
            format!("{}, which the route sets, arrived as a trailer", trailer.name.escape_ascii()).into()
        );
    }
    // sluice forwards few trailers, and none that affect framing.
    same_fields(sent, &sent.trailers, &arrived.trailers, |_| true)
}

/// Whether the fields that arrived are those that were sent, in order, without some that may be missing.
fn same_fields(
    request: &Request,
    sent: &[Field],
    arrived: &[Field],
    may_be_missing: impl Fn(&[u8]) -> bool,
) -> Result<(), Mismatch> {
    let options = sent::connection_options(&request.fields).unwrap_or_default();
    let is_nominated = |field: &Field| options.iter().any(|option| option.eq_ignore_ascii_case(&field.name));
    let mut left = arrived.iter().peekable();
    for field in sent {
        if left.peek() == Some(&field) {
            if is_nominated(field) {
                return Err(
                    format!("{} arrived, though Connection names it", field.name.escape_ascii()).into()
                );
            }
            left.next();
        } else if !(may_be_missing(&field.name) || is_nominated(field)) {
            return Err(format!("{} did not arrive", field.name.escape_ascii()).into());
        }
    }
    match left.next() {
        Some(field) => Err(format!("{} arrived, but was not sent", field.name.escape_ascii()).into()),
        None => Ok(()),
    }
}

fn may_be_missing(name: &[u8]) -> bool {
    let fold = |byte: &u8| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    let name: Vec<u8> = name.iter().map(fold).collect();
    NOT_FORWARDED.iter().any(|other| name == other.as_bytes())
        || NOT_FORWARDED_PREFIXES.iter().any(|prefix| name.starts_with(prefix.as_bytes()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::forwarded::{self, Found};
    use super::*;

    const OWN: &str = "X-Differential: t\r\nX-Forwarded-For: 127.64.0.1\r\nX-Forwarded-Proto: http\r\n\
        X-Request-Id: 1\r\nX-Request-Start: t=1.000\r\n";
    const SENT: &str = "GET /a HTTP/1.1\r\nHost: a\r\nB: c\r\nConnection: d\r\nD: e\r\n\r\n";
    const ANSWER: &str = "HTTP/1.1 200 OK\r\nX-Answer: 1\r\nContent-Length: 0\r\n\r\n";
    const REFUSAL: &str = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

    fn arrived(number: u64, start: &str) -> Arrived {
        let text = format!("{start}{OWN}\r\n");
        let Ok(Found::Whole(request, _)) = forwarded::read(text.as_bytes(), "t") else { panic!("{text}") };
        Arrived { number, request, is_whole: true }
    }

    fn is_fault(sent: &str, arrived: &[Arrived], answered: &str) -> bool {
        let heard = Heard { bytes: answered.as_bytes().to_vec(), end: End::Closed };
        judge(sent.as_bytes(), "127.0.0.1:1".parse().unwrap(), arrived, &heard).is_err()
    }

    #[test]
    fn exactly_the_sent_requests_must_arrive() {
        let good = arrived(1, "GET /a HTTP/1.1\r\nHost: a\r\nB: c\r\n");
        assert!(!is_fault(SENT, std::slice::from_ref(&good), ANSWER));
        assert!(is_fault(SENT, &[good.clone(), arrived(2, "GET /b HTTP/1.1\r\nHost: a\r\n")], ANSWER));
        for other in ["GET /b HTTP/1.1\r\nHost: a\r\nB: c\r\n", "GET /a HTTP/1.1\r\nHost: b\r\nB: c\r\n"] {
            assert!(is_fault(SENT, &[arrived(1, other)], ANSWER), "{other}");
        }
        for fields in ["", "B: c\r\nD: e\r\n", "B: c\r\nF: g\r\n", "B: c, d\r\n"] {
            assert!(
                is_fault(SENT, &[arrived(1, &format!("GET /a HTTP/1.1\r\nHost: a\r\n{fields}"))], ANSWER),
                "{fields}"
            );
        }
    }

    #[test]
    fn each_request_must_get_its_own_response() {
        let good = [arrived(1, "GET /a HTTP/1.1\r\nHost: a\r\nB: c\r\n")];
        assert!(is_fault(SENT, &good, ""));
        assert!(is_fault(SENT, &good, &ANSWER.replace("Answer: 1", "Answer: 2")));
        assert!(is_fault(SENT, &good, &ANSWER.repeat(2)));
        assert!(is_fault(SENT, &[], &REFUSAL.replace("Connection: close\r\n", "")));
        assert!(is_fault(SENT, &[], &REFUSAL.replace("400", "502")));
        assert!(is_fault(SENT, &[], ""));
        assert!(!is_fault(SENT, &[], REFUSAL));
    }
}
