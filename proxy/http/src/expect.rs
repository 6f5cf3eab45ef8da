//! The Expect field. The engine decides who sends the 100.

use super::grammar::members;

/// What Expect requests (RFC 9110 section 10.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expect {
    /// Nothing. Also for HTTP/1.0, whose expectations must be ignored.
    None,
    /// An interim 100 before the body is sent.
    Continue,
    /// `100-continue` combined with something else, or repeated: it cannot be met.
    Failed,
    /// One unknown expectation, which the endpoint has to judge.
    Other,
}

const CONTINUE: &[u8] = b"100-continue";

/// What an Expect field requests. `None` stands for several fields.
pub(crate) fn read_expect(value: Option<&[u8]>) -> Expect {
    match value {
        Some(value) if value.eq_ignore_ascii_case(CONTINUE) => Expect::Continue,
        // Search the whole value: some origins do, and would then wait for a body while the client waits for a 100.
        Some(value) if mentions_continue(value) || members(value).count() > 1 => Expect::Failed,
        Some(_) => Expect::Other,
        None => Expect::Failed,
    }
}

fn mentions_continue(value: &[u8]) -> bool {
    value.windows(CONTINUE.len()).any(|part| part.eq_ignore_ascii_case(CONTINUE))
}
