//! What a worker counts one by one.

/// Something a worker counts that is not an exchange. What is open or idle is the difference of two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A downstream connection was accepted.
    DownstreamAccepted,
    /// A downstream connection that had been accepted was closed.
    DownstreamClosed,
    /// A downstream connection was refused by a limit. It counts as neither accepted nor closed.
    DownstreamRejected,
    /// A downstream connection was handed to another worker.
    DownstreamHanded,
    /// An exchange began on a connection that had carried another before.
    DownstreamReused,
    /// An upstream connection was opened.
    UpstreamOpened,
    /// An upstream connection was closed.
    UpstreamClosed,
    /// A TLS session with an endpoint began anew.
    UpstreamTlsFull,
    /// A TLS session with an endpoint was resumed.
    UpstreamTlsResumed,
    /// An exchange went over an upstream connection from the idle pool.
    UpstreamReused,
    /// An upstream connection was put into the idle pool.
    UpstreamParked,
    /// An upstream connection left the idle pool, for reuse or to be closed.
    UpstreamUnparked,
    /// A tunnel began.
    TunnelOpened,
    /// A tunnel ended.
    TunnelClosed,
    /// Bytes tunnelled to the origin.
    TunnelBytesToUpstream,
    /// Bytes tunnelled to the client.
    TunnelBytesToDownstream,
    /// A tunnel was spliced.
    TunnelSpliced,
    /// Bytes that the kernel passed on; they are among those tunnelled.
    TunnelBytesSpliced,
    /// A tunnel could not be spliced and was copied.
    SpliceFailed,
    /// A direction came back to sluice: its receiver was too slow.
    SpliceReturnedBudget,
    /// A direction came back: its receiver was not or no longer known to the kernel's program.
    SpliceReturnedPeer,
    /// A direction came back: for a drain, or as its socket was joined in the middle of something.
    SpliceReturnedDrain,
    /// A spliced tunnel's books did not agree.
    SpliceMismatch,
    /// A connection that should have been joined was not, and was replaced by one by TCP.
    BypassIncomplete,
    /// A connection could not be marked to be joined.
    BypassUnmarked,
    /// Joined bytes stayed unread for too long.
    BypassStalled,
    /// An answer went past sluice.
    DirectReturned,
    /// A connection began to speak HTTP/2.
    Http2Opened,
    /// A stream of such a connection was opened.
    Http2Stream,
    /// A stream was reset for a head that could not be said in HTTP/1.1.
    Http2Malformed,
    /// A connection was ended for breaking the protocol.
    Http2ProtocolError,
    /// A worker became a batch thread.
    BatchBegun,
    /// One became an ordinary thread, for it waited too long for its core.
    BatchEnded,
}

/// How many there are.
pub(super) const EVENTS: usize = Event::BatchEnded as usize + 1;
