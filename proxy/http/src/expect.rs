//! The Expect field. Who sends the 100 is decided elsewhere.

use super::grammar::members;

/// What Expect asks for (RFC 9110 section 10.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expect {
    /// Nothing; also for HTTP/1.0, whose expectations must be ignored.
    None,
    /// An interim 100 before the body is sent.
    Continue,
    /// `100-continue` mixed with something else, or repeated: it cannot be met.
    Failed,
    /// One expectation unknown here; it is the origin's to judge.
    Other,
}

const CONTINUE: &[u8] = b"100-continue";

/// What an Expect field asks for; `None` stands for several fields.
pub(crate) fn read_expect(value: Option<&[u8]>) -> Expect {
    match value {
        Some(value) if value.eq_ignore_ascii_case(CONTINUE) => Expect::Continue,
        // Found anywhere in the value: some origins look for it so, and would wait for a body that waits for us.
        Some(value) if mentions_continue(value) || members(value).count() > 1 => Expect::Failed,
        Some(_) => Expect::Other,
        None => Expect::Failed,
    }
}

fn mentions_continue(value: &[u8]) -> bool {
    value.windows(CONTINUE.len()).any(|part| part.eq_ignore_ascii_case(CONTINUE))
}
