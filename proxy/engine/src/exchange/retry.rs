//! Whether a request is sent again after its exchange failed.

/// The basis of the decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// Nothing of a response was received.
    pub(super) silent: bool,
    /// The connection may have died without a fault: it had served other requests before.
    pub(super) reused: bool,
    /// The endpoint reported that it did nothing about the request (RFC 9113 section 8.7).
    pub(super) refused: bool,
    /// The endpoint never read the joined bytes: it was sluice's choice to send them past TCP.
    pub(super) unread: bool,
    /// The request is complete in memory or in a file.
    pub(super) replayable: bool,
    /// Its method is idempotent (RFC 9110 section 9.2.2), or the connection took no byte of it.
    pub(super) repeatable: bool,
    /// The pending send has ended, so its buffer can be used again.
    pub(super) settled: bool,
    /// Retries that the route still allows.
    pub(super) retries_left: u32,
    /// The response is an error with which the request goes to another endpoint; it may be repeated, and one is left.
    pub(super) turned_back: bool,
}

/// The decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryVerdict {
    /// Report the failure to the client.
    Final,
    /// Send it again, and count a retry.
    Again,
    /// Send it again by TCP. A trial does not count as a retry.
    AgainUnjoined,
    /// Send it to another endpoint, and count a retry.
    Elsewhere,
}

/// Makes the decision. A request that an endpoint may have acted on is never sent twice, unless acting twice is
/// harmless.
pub(super) fn may_retry(facts: Facts) -> RetryVerdict {
    let harmless = facts.silent && facts.replayable && facts.repeatable && facts.settled;
    match harmless {
        _ if facts.turned_back && facts.replayable && facts.settled => RetryVerdict::Elsewhere,
        true if facts.unread => RetryVerdict::AgainUnjoined,
        true if facts.retries_left > 0 && (facts.reused || facts.refused) => RetryVerdict::Again,
        _ => RetryVerdict::Final,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dead pooled connection, and a request that may be sent again.
    const DEAD: Facts = Facts {
        silent: true,
        reused: true,
        refused: false,
        unread: false,
        replayable: true,
        repeatable: true,
        settled: true,
        retries_left: 1,
        turned_back: false,
    };

    #[test]
    fn retry_decisions_follow_the_table() {
        use RetryVerdict::{Again, AgainUnjoined, Elsewhere, Final};
        let cases = [
            (DEAD, Again),
            (Facts { silent: false, ..DEAD }, Final),
            (Facts { replayable: false, ..DEAD }, Final),
            (Facts { repeatable: false, ..DEAD }, Final),
            (Facts { settled: false, ..DEAD }, Final),
            (Facts { retries_left: 0, ..DEAD }, Final),
            // If a fresh connection dies, the endpoint is at fault.
            (Facts { reused: false, ..DEAD }, Final),
            (Facts { reused: false, refused: true, ..DEAD }, Again),
            (Facts { refused: true, retries_left: 0, ..DEAD }, Final),
            (Facts { unread: true, ..DEAD }, AgainUnjoined),
            (Facts { unread: true, reused: false, retries_left: 0, ..DEAD }, AgainUnjoined),
            (Facts { unread: true, repeatable: false, ..DEAD }, Final),
            (Facts { turned_back: true, silent: false, reused: false, ..DEAD }, Elsewhere),
            (Facts { turned_back: true, silent: false, settled: false, ..DEAD }, Final),
        ];
        for (facts, expected) in cases {
            assert_eq!(may_retry(facts), expected, "{facts:?}");
        }
    }
}
