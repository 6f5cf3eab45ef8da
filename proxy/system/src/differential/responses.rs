//! Judges one case of responses: what the origin sent, and what the client received for this request and the next one.

use super::answers::{self, Answer, Answers};
use super::client::{End, Heard};
use super::mismatch::Mismatch;
use super::offered::{self, Offered};
use super::turncoat::{Ending, Script};
use super::wire::{Field, Halt, Read};

/// The result of a case without faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passed {
    /// The response arrived as it was sent.
    Same,
    /// sluice refused an invalid response.
    Refused,
    /// sluice refused a response that the RFC allows.
    RefusedByChoice,
    /// The client saw that the response was cut.
    Cut,
}

/// Judges a case.
///
/// # Errors
/// The fault in words.
pub(super) fn judge(
    script: &Script,
    method: &[u8],
    own: Option<u64>,
    heard: &Heard,
) -> Result<Passed, Mismatch> {
    let offered = offered::read(&script.case.bytes, method, script.ending == Ending::Close);
    if heard.end == End::Silent {
        return Err("the connection was not closed".into());
    }
    let answers = answers::read(&heard.bytes, &[method, b"GET"]);
    if answers.answers.len() > 2 {
        return Err("more responses than requests".into());
    }
    let passed = match first(&offered, heard, &answers) {
        // A reset may overtake bytes sent before it.
        Err(_) if script.ending == Ending::Reset && is_cut(&answers, heard) => Passed::Cut,
        passed => passed?,
    };
    next(own, heard, &answers)?;
    Ok(passed)
}

/// The response to the case's own request.
fn first(offered: &Read<Offered>, heard: &Heard, answers: &Answers) -> Result<Passed, Mismatch> {
    let Some(answer) = answers.answers.first() else {
        return match (&answers.halt, offered) {
            // A cut response was forwarded as far as it arrived.
            (Some(Halt::Short), Err(_)) => Ok(Passed::Cut),
            (Some(Halt::Short), Ok(_)) => Err("a complete response was cut".into()),
            (Some(Halt::Invalid(reason)), _) => {
                Err(format!("the client received no response: {reason}").into())
            }
            // A response whose head was not sent yet needs no cut: sluice can still refuse it.
            (None, _) => Err("the client received nothing".into()),
        };
    };
    if is_refusal(answer) {
        return Ok(if offered.is_ok() { Passed::RefusedByChoice } else { Passed::Refused });
    }
    let whole = !(answer.is_close_delimited && heard.end == End::Reset);
    match offered {
        Ok(offered) if !whole => {
            Err(format!("a complete response of {} bytes ended with a reset", offered.answer.body.len())
                .into())
        }
        Ok(offered) => same(&offered.answer, answer).map(|()| Passed::Same),
        Err(_) if !whole => Ok(Passed::Cut),
        Err(Halt::Short) => Err("a cut response arrived as complete".into()),
        Err(Halt::Invalid(reason)) => {
            Err(format!("an invalid response ({reason}) arrived as a valid one").into())
        }
    }
}

/// Whether the client saw that the first response is incomplete.
fn is_cut(answers: &Answers, heard: &Heard) -> bool {
    match answers.answers.first() {
        None => answers.halt == Some(Halt::Short),
        Some(answer) => answer.is_close_delimited && heard.end == End::Reset,
    }
}

/// Whether sluice created the response.
fn is_refusal(answer: &Answer) -> bool {
    matches!(answer.status, 502 | 504) && answer.fields.iter().any(|field| field.is("x-sluice-reason"))
}

/// Whether it is the only X-Request-Id of the response, and may be the one that sluice adds.
fn is_request_id(field: &Field, received: &Answer) -> bool {
    let is_id = |field: &&Field| field.is("x-request-id");
    let is_hex = field.value.len() == 32 && field.value.iter().all(u8::is_ascii_hexdigit);
    is_id(&field) && is_hex && received.fields.iter().filter(is_id).count() == 1
}

fn same(sent: &Answer, received: &Answer) -> Result<(), Mismatch> {
    if sent.status != received.status {
        return Err(format!("status {} arrived as {}", sent.status, received.status).into());
    }
    // If the origin gives no reason phrase, sluice adds one.
    if sent.reason != received.reason && !sent.reason.is_empty() {
        return Err(format!(
            "reason {} arrived as {}",
            sent.reason.escape_ascii(),
            received.reason.escape_ascii()
        )
        .into());
    }
    if sent.body != received.body {
        return Err(
            format!("body {} arrived as {}", sent.body.escape_ascii(), received.body.escape_ascii()).into()
        );
    }
    if let Some(trailer) = received.trailers.iter().find(|trailer| !sent.trailers.contains(trailer)) {
        return Err(format!("the trailer {} arrived, but was not sent", trailer.name.escape_ascii()).into());
    }
    let unasked = received.fields.iter().find(|field| {
        let ours =
            ["content-length", "transfer-encoding", "connection", "via"].iter().any(|name| field.is(name));
        !ours && !is_request_id(field, received) && !sent.fields.contains(field)
    });
    match unasked {
        Some(field) => Err(format!("{} arrived, but was not sent", field.name.escape_ascii()).into()),
        None => Ok(()),
    }
}

/// The response to the next request, which must be its own.
fn next(own: Option<u64>, heard: &Heard, answers: &Answers) -> Result<(), Mismatch> {
    let is_over = |answer: &Answer| answer.is_last || answer.is_close_delimited;
    match &answers.answers[..] {
        [] => Ok(()),
        [first] if is_over(first) && answers.halt.is_none() => Ok(()),
        // The client sent another request, and the connection was reset before its response.
        [_] if heard.end == End::Reset => Ok(()),
        [_] => Err(format!("the next request got no response: {:?}", answers.halt).into()),
        [first, ..] if is_over(first) => Err("a response after the last one".into()),
        [_, second, ..] if second.number().is_some() && second.number() == own => match second.body {
            _ if answers.halt.is_some() => Err("surplus after the response to the next request".into()),
            ref body if Some(body) == own.map(|own| format!("answer {own}\n").into_bytes()).as_ref() => {
                Ok(())
            }
            _ => Err("the next request got its own response with another body".into()),
        },
        [_, second, ..] if is_refusal(second) => Ok(()),
        [_, second, ..] => {
            Err(format!("the next request got the response of another one, a {}", second.status).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::grammar::Case;
    use super::*;

    const SENT: &str = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nA: b\r\n\r\nx";
    const OWN: &str = "HTTP/1.1 200 OK\r\nX-Answer: 7\r\nContent-Length: 9\r\n\r\nanswer 7\n";
    const REFUSAL: &str =
        "HTTP/1.1 502 Bad Gateway\r\nX-Sluice-Reason: bad_response\r\nContent-Length: 0\r\n\r\n";

    fn judged(sent: &str, received: &str, end: End) -> Result<Passed, Mismatch> {
        let script = Script { case: Case::whole(sent.into()), ending: Ending::Close };
        judge(&script, b"GET", Some(7), &Heard { bytes: received.into(), end })
    }

    #[test]
    fn a_response_arrives_as_sent_or_is_refused() {
        let good = format!("{SENT}{OWN}");
        assert_eq!(judged(SENT, &good, End::Closed), Ok(Passed::Same));
        for (from, to) in [
            ("A: b", "C: d"),
            ("\r\n\r\nx", "\r\n\r\ny"),
            ("200 OK\r\nContent-Length: 1", "201 OK\r\nContent-Length: 1"),
        ] {
            assert!(judged(SENT, &good.replace(from, to), End::Closed).is_err(), "{to}");
        }
        let id = format!("OK\r\nX-Request-Id: {}", "0".repeat(32));
        assert_eq!(judged(SENT, &good.replacen("OK", &id, 1), End::Closed), Ok(Passed::Same));
        for wrong in [format!("{id}0"), format!("{id}\r\nX-Request-Id: {}", "1".repeat(32))] {
            assert!(judged(SENT, &good.replacen("OK", &wrong, 1), End::Closed).is_err(), "{wrong}");
        }
        assert_eq!(judged(SENT, &format!("{REFUSAL}{OWN}"), End::Closed), Ok(Passed::RefusedByChoice));
        let cut = SENT.replace("Length: 1", "Length: 2");
        assert_eq!(judged(&cut, &format!("{REFUSAL}{OWN}"), End::Closed), Ok(Passed::Refused));
        assert_eq!(judged(&cut, &cut, End::Closed), Ok(Passed::Cut));
        assert!(judged(&cut, &good, End::Closed).is_err());
    }

    #[test]
    fn a_cut_that_only_a_close_would_show_is_a_reset() {
        let cut = SENT.replace("Length: 1", "Length: 2");
        let passed_on = "HTTP/1.1 200 OK\r\nA: b\r\nConnection: close\r\n\r\nx";
        assert!(judged(&cut, passed_on, End::Closed).is_err());
        assert_eq!(judged(&cut, passed_on, End::Reset), Ok(Passed::Cut));
    }

    #[test]
    fn the_next_request_must_get_its_own_response() {
        for other in [OWN.replace('7', "8"), SENT.to_owned(), format!("{OWN}H"), OWN.repeat(2), String::new()]
        {
            assert!(judged(SENT, &format!("{SENT}{other}"), End::Closed).is_err(), "{other}");
        }
    }
}
