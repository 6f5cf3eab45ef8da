//! What the programs count, by number in the kernel and by name in metrics.

/// Index into the counters map. Every message counts as joined, or under one reason why it was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Counter {
    /// Pairs whose ends were both added to the map.
    PairsJoined,
    /// Pairs whose accepted end was closed.
    PairsClosed,
    /// Ends that the kernel or a check refused: ULP, MPTCP, no room, other sequence numbers.
    EndsRefused,
    /// Messages that bypassed TCP.
    MessagesJoined,
    /// Their bytes.
    BytesJoined,
    /// Bytes of the messages that went through TCP although their socket is in the map.
    BytesPassed,
    /// Bytes of the pages in which responses were gathered, beyond the responses' own bytes.
    SlackBytes,
    /// Through TCP: joining was stopped.
    Stopped,
    /// Through TCP: the other end is not there yet, or no longer there.
    NoPeer,
    /// Through TCP: the sender has shut down, and a joined byte would arrive after the FIN.
    SenderShutDown,
    /// Through TCP: bytes sent through TCP are still unread, and a joined byte would overtake them.
    TcpUnread,
    /// Through TCP: the receiver waits for more than one byte (SO_RCVLOWAT), and joined bytes would not wake it.
    LowWatermark,
    /// Through TCP: too many bytes are unread.
    ByteBudget,
    /// Through TCP: too many messages are unread.
    MessageBudget,
    /// Through TCP: messages to an application stay on TCP once one went through it.
    AfterTcp,
    /// Through TCP: when returning to joining, a process is inside a call on the receiver.
    ReaderInside,
    /// Through TCP: the receiver has left the map.
    RedirectFailed,
    /// Through TCP: another protocol uses the stream of the application's socket.
    Ulp,
    /// Through TCP, which can wait for memory: memory is short.
    MemoryPressure,
}

impl Counter {
    /// Number of counters.
    pub const COUNT: usize = Self::ALL.len();

    /// All counters, in the order of their numbers.
    pub const ALL: [Self; 19] = [
        Self::PairsJoined,
        Self::PairsClosed,
        Self::EndsRefused,
        Self::MessagesJoined,
        Self::BytesJoined,
        Self::BytesPassed,
        Self::SlackBytes,
        Self::Stopped,
        Self::NoPeer,
        Self::SenderShutDown,
        Self::TcpUnread,
        Self::LowWatermark,
        Self::ByteBudget,
        Self::MessageBudget,
        Self::AfterTcp,
        Self::ReaderInside,
        Self::RedirectFailed,
        Self::Ulp,
        Self::MemoryPressure,
    ];

    /// The counters that say why a message went through TCP.
    pub const FALLBACKS: &[Self] = Self::ALL.split_at(7).1;

    /// The name in metrics and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PairsJoined => "pairs_joined",
            Self::PairsClosed => "pairs_closed",
            Self::EndsRefused => "ends_refused",
            Self::MessagesJoined => "messages_joined",
            Self::BytesJoined => "bytes_joined",
            Self::BytesPassed => "bytes_passed",
            Self::SlackBytes => "slack_bytes",
            Self::Stopped => "stopped",
            Self::NoPeer => "no_peer",
            Self::SenderShutDown => "sender_shut_down",
            Self::TcpUnread => "tcp_unread",
            Self::LowWatermark => "low_watermark",
            Self::ByteBudget => "byte_budget",
            Self::MessageBudget => "message_budget",
            Self::AfterTcp => "after_tcp",
            Self::ReaderInside => "reader_inside",
            Self::RedirectFailed => "redirect_failed",
            Self::Ulp => "ulp",
            Self::MemoryPressure => "memory_pressure",
        }
    }
}
