//! What the programs count, by number in the kernel and by name in metrics.

/// Index into the counters map. Every message counts as joined, or under the one reason why it was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Counter {
    /// Pairs whose both ends came into the map.
    PairsJoined,
    /// Pairs whose accepted end was closed.
    PairsClosed,
    /// Ends that the kernel or a check kept out of the map: ULP, MPTCP, no room, other sequence numbers.
    EndsRefused,
    /// Messages that went past TCP.
    MessagesJoined,
    /// Their bytes.
    BytesJoined,
    /// Bytes of the messages that went by TCP though their socket is in the map.
    BytesPassed,
    /// Bytes of the pages that answers were gathered in, beyond their own.
    SlackBytes,
    /// By TCP: joining was ended.
    Stopped,
    /// By TCP: the other end is not there, no longer or not yet.
    NoPeer,
    /// By TCP: the sender has shut down, and a joined byte would come after the FIN.
    SenderShutDown,
    /// By TCP: bytes sent by TCP are still unread, and a joined byte would overtake them.
    TcpUnread,
    /// By TCP: the receiver waits for more than a byte (SO_RCVLOWAT), which joined bytes do not wake.
    LowWatermark,
    /// By TCP: too many bytes unread.
    ByteBudget,
    /// By TCP: too many messages unread.
    MessageBudget,
    /// By TCP: what goes to an application does not come back from TCP.
    AfterTcp,
    /// By TCP: coming back while somebody is inside a call on the receiver.
    ReaderInside,
    /// By TCP: the receiver has left the map.
    RedirectFailed,
    /// By TCP: another protocol is in the stream of the application's socket.
    Ulp,
    /// By TCP, which can wait for it: memory is short.
    MemoryPressure,
}

impl Counter {
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// All, in the order of their numbers.
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

    /// Those that say why a message went by TCP.
    pub const FALLBACKS: &[Self] = Self::ALL.split_at(7).1;

    /// Its name in metrics and logs.
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
