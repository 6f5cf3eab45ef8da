//! The events that a worker counts.

/// Something a worker counts that is not an exchange. The number of open or idle objects is the difference of two
/// events.
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
    /// A downstream connection left for another worker between two requests. It counts as neither closed nor accepted.
    DownstreamLeft,
    /// It arrived there.
    DownstreamMoved,
    /// An exchange started on a connection that had carried another before.
    DownstreamReused,
    /// An upstream connection was opened.
    UpstreamOpened,
    /// An upstream connection was closed.
    UpstreamClosed,
    /// A full TLS handshake with an endpoint.
    UpstreamTlsFull,
    /// A TLS session with an endpoint was resumed.
    UpstreamTlsResumed,
    /// An exchange used an upstream connection from the idle pool.
    UpstreamReused,
    /// An upstream connection was released to the idle pool.
    UpstreamParked,
    /// An upstream connection left the idle pool, for reuse or to be closed.
    UpstreamUnparked,
    /// A tunnel was opened.
    TunnelOpened,
    /// A tunnel was closed.
    TunnelClosed,
    /// Bytes tunnelled to the origin.
    TunnelBytesToUpstream,
    /// Bytes tunnelled to the client.
    TunnelBytesToDownstream,
    /// A tunnel was spliced.
    TunnelSpliced,
    /// Bytes that the kernel forwarded; they are included in the tunnelled bytes.
    TunnelBytesSpliced,
    /// A tunnel could not be spliced and was copied.
    SpliceFailed,
    /// A direction fell back to copying: its receiver was too slow.
    SpliceReturnedBudget,
    /// A direction fell back to copying: the eBPF program did not know its receiver, or no longer did.
    SpliceReturnedPeer,
    /// A direction fell back to copying: for a drain, or because its socket was joined in the middle of a transfer.
    SpliceReturnedDrain,
    /// The byte counts of a spliced tunnel did not match.
    SpliceMismatch,
    /// A connection that should have been joined was not, and was replaced by a TCP connection.
    BypassIncomplete,
    /// A connection could not be marked for joining.
    BypassUnmarked,
    /// Joined bytes stayed unread for too long.
    BypassStalled,
    /// A response went to the client by direct return.
    DirectReturned,
    /// A connection started HTTP/2.
    Http2Opened,
    /// A stream was opened on such a connection.
    Http2Stream,
    /// A stream was reset because its head cannot be expressed in HTTP/1.1.
    Http2Malformed,
    /// A connection was closed for a protocol violation.
    Http2ProtocolError,
    /// A connection completed its handshake for HTTP/3.
    Http3Opened,
    /// A stream was opened on such a connection.
    Http3Stream,
    /// A request was reset because its head cannot be expressed in HTTP/1.1, or its body has another length than declared.
    Http3Malformed,
    /// An HTTP/3 connection was closed for a protocol violation.
    Http3ProtocolError,
    /// A client had to prove its address before its handshake.
    Http3Retried,
    /// A client connected, and was refused.
    Http3Refused,
    /// A client was found at another address during its connection.
    Http3Migrated,
    /// A request was answered before the handshake was complete.
    Http3Early,
    /// One arrived before that, and had to wait.
    Http3EarlyWaited,
    /// A worker passed a datagram to the one that has its connection.
    Http3Forwarded,
    /// Packets that were sent on HTTP/3 connections.
    Http3PacketsSent,
    /// Of these, those that were found to be lost.
    Http3PacketsLost,
    /// The round-trip times of HTTP/3 connections at their end, in microseconds.
    Http3RttUs,
    /// How many connections that is the sum of.
    Http3Closed,
    /// A client cancelled too many requests: `limits.http3.resets_max`.
    Http3Resets,
    /// It sent too many frames that do nothing: `limits.http3.control_frames_max`.
    Http3ControlFrames,
    /// It changed or probed its address too often: `limits.http3.paths_max`.
    Http3Paths,
    /// It sent too many parts of streams that cannot be read: `limits.http3.unread_frames_max`.
    Http3Unread,
    /// It made sluice reset too many requests: `limits.http3.faults_max`.
    Http3Faults,
    /// A worker became a batch thread.
    BatchBegun,
    /// A worker became an ordinary thread because it waited too long for its core.
    BatchEnded,
    /// A worker began to stay on a core of its own.
    PlaceBegun,
    /// It no longer does.
    PlaceEnded,
    /// A worker began to rest, because another one serves all connections.
    RestBegun,
    /// It no longer does.
    RestEnded,
    /// A response came from a cache.
    CacheHit,
    /// A stale response came from a cache.
    CacheStale,
    /// A response came from a cache after the application had said that it has not changed.
    CacheRevalidated,
    /// A response of an application was kept.
    CacheStored,
    /// A response of an application was not kept.
    CacheMissed,
    /// A request could not have a response from the cache of its route.
    CacheBypassed,
    /// A response is encoded by gzip.
    EncodedGzip,
    /// A response is encoded by Zstandard.
    EncodedZstd,
    /// A response is encoded by Brotli.
    EncodedBrotli,
    /// A response is not encoded, because encoding takes more of the worker's time than it may.
    EncodingBusy,
    /// A response is not encoded, because the memory for encoding is used up.
    EncodingFull,
}

/// The number of events.
pub(super) const EVENTS: usize = Event::EncodingFull as usize + 1;
