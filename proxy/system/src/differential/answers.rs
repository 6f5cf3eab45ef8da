//! What a client receives: responses exactly as sluice writes them, one for each request.

use super::wire::{Cursor, Dialect, Field, Halt, Read, invalid, is_text, length, values};

/// The field in which our origin names the request it responds to.
pub(super) const ANSWER_FIELD: &str = "X-Answer";

/// One final response.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) reason: Vec<u8>,
    pub(super) fields: Vec<Field>,
    pub(super) body: Vec<u8>,
    pub(super) trailers: Vec<Field>,
    /// Whether its body ends with the connection.
    pub(super) is_close_delimited: bool,
    /// Whether it says that it is the last.
    pub(super) is_last: bool,
}

/// All responses of one connection.
pub(super) struct Answers {
    pub(super) answers: Vec<Answer>,
    /// Why the following bytes are not a response; none if nothing follows.
    pub(super) halt: Option<Halt>,
}

impl Answer {
    /// The number given by our origin; none if sluice created it.
    pub(super) fn number(&self) -> Option<u64> {
        let value = values(&self.fields, ANSWER_FIELD).first().copied()?;
        std::str::from_utf8(value).ok()?.parse().ok()
    }
}

/// Parses `bytes`, the responses to requests with these methods, in order.
pub(super) fn read(bytes: &[u8], methods: &[&[u8]]) -> Answers {
    let mut cursor = Cursor::new(bytes, Dialect::Sluice);
    let mut answers = Vec::new();
    let mut halt = None;
    while !cursor.is_at_end() && halt.is_none() {
        let method = methods.get(answers.len()).copied().unwrap_or(b"GET");
        match answer(&mut cursor, method) {
            Ok(answer) => answers.push(answer),
            Err(reason) => halt = Some(reason),
        }
    }
    Answers { answers, halt }
}

/// A final response after any number of interim ones.
fn answer(cursor: &mut Cursor<'_>, method: &[u8]) -> Read<Answer> {
    loop {
        let (status, reason) = status_line(cursor)?;
        let fields = cursor.fields()?;
        let is_last = match values(&fields, "connection")[..] {
            [] | [b"keep-alive"] => false,
            [b"close"] => true,
            _ => return invalid("Connection that sluice does not write"),
        };
        if status == 101 {
            return invalid("a 101 that no client may get");
        }
        let is_interim = status < 200;
        if (is_interim || status == 204)
            && fields.iter().any(|field| field.is("content-length") || field.is("transfer-encoding"))
        {
            return invalid("framing of a response that has no body");
        }
        if is_interim {
            continue;
        }
        let mut answer = Answer {
            status,
            reason,
            fields,
            body: Vec::new(),
            trailers: Vec::new(),
            is_close_delimited: false,
            is_last,
        };
        body(cursor, method, &mut answer)?;
        return Ok(answer);
    }
}

fn status_line(cursor: &mut Cursor<'_>) -> Read<(u16, Vec<u8>)> {
    let line = cursor.line()?;
    let parts = line.strip_prefix(b"HTTP/1.1 ").and_then(|rest| rest.split_at_checked(3));
    let Some((status, [b' ', reason @ ..])) = parts else {
        return invalid("status line that sluice does not write");
    };
    let status = std::str::from_utf8(status).ok().and_then(|text| text.parse().ok());
    match status {
        Some(status @ 100..=599) if is_text(reason) => Ok((status, reason.to_vec())),
        _ => invalid("status or reason that sluice does not write"),
    }
}

fn body(cursor: &mut Cursor<'_>, method: &[u8], answer: &mut Answer) -> Read<()> {
    let lengths = values(&answer.fields, "content-length");
    let codings = values(&answer.fields, "transfer-encoding");
    if lengths.len() + codings.len() > 1 {
        return invalid("more than one framing field");
    }
    // If sluice closes after a refusal, it may respond in any way: it may not know the method.
    let is_refusal = answer.is_last && answer.number().is_none() && answer.status >= 400;
    if matches!(answer.status, 204 | 304) || method == b"HEAD" && (!is_refusal || cursor.is_at_end()) {
        return Ok(());
    }
    match (lengths.first().copied(), codings.first().copied()) {
        (Some(value), _) => answer.body = cursor.counted(length(value)?)?,
        (_, Some(b"chunked")) => (answer.body, answer.trailers) = cursor.chunked()?,
        (_, Some(_)) => return invalid("Transfer-Encoding that sluice does not write"),
        (None, None) if answer.is_last => {
            answer.is_close_delimited = true;
            answer.body = cursor.rest().to_vec();
            cursor.at += answer.body.len();
        }
        (None, None) => return invalid("a response without an end on a connection that stays open"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str, methods: &[&[u8]]) -> (usize, Option<Halt>) {
        let answers = read(text.replace('\n', "\r\n").as_bytes(), methods);
        (answers.answers.len(), answers.halt)
    }

    #[test]
    fn responses_are_separated_by_their_framing() {
        let counted = "HTTP/1.1 200 OK\nContent-Length: 1\n\nx";
        let head = "HTTP/1.1 200 OK\nContent-Length: 1\n\n";
        let interim = "HTTP/1.1 103 Early Hints\nA: b\n\n";
        assert_eq!(count(&format!("{head}{interim}{counted}"), &[b"HEAD", b"GET"]), (2, None));
        assert_eq!(count(&format!("{counted}H"), &[]), (1, Some(Halt::Short)));
        for text in [
            "HTTP/1.1 200 OK\n\n",
            "HTTP/1.0 200 OK\nContent-Length: 0\n\n",
            "HTTP/1.1 204 No Content\nContent-Length: 0\n\n",
        ] {
            assert!(matches!(count(text, &[]), (0, Some(Halt::Invalid(_)))), "{text}");
        }
    }
}
