//! Which kernel assists may be used, and how workers are scheduled. Whether this host can give them is for `kernel::probe` and `doctor`.

use super::names::words;

/// What each kernel assist may do.
///
/// Many fields: one for each key of `kernel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelAssists {
    /// Upstream connections on this host, joined past loopback TCP.
    pub bypass: AssistMode,
    /// Clients on this host, joined with sluice in the same way.
    pub bypass_downstream: Switch,
    /// Joined bytes that one receiver may have unread; more goes by TCP. A request is joined if it is whole and at
    /// most half of it.
    pub bypass_budget_bytes: u32,
    /// Joined messages that one receiver may have unread.
    pub bypass_budget_messages: u32,
    /// Connections joined at once; further ones go by TCP.
    pub bypass_connections_max: u32,
    /// For how long an application may leave joined bytes unread, in milliseconds, before it is left alone
    /// for a while.
    pub bypass_stall_ms: u64,
    /// Answers over joined connections that go straight out of the client's socket.
    pub direct_return: AssistMode,
    /// Smaller bodies come to sluice.
    pub direct_return_bytes_min: u32,
    /// Exchanges that a worker may have under way with their answers going past it, for smaller ones to do so, too;
    /// `None` is as many as there are, and few where workers preempt others.
    pub direct_return_calm_max: Option<u32>,
    /// Larger ones come to sluice.
    pub direct_return_bytes_max: u64,
    /// From which request of a client's connection on.
    pub direct_return_from_request: u64,
    /// For how long the kernel may keep a head that an application sends apart from its body, in milliseconds, so
    /// that both leave at once; 0: not at all.
    pub direct_return_hold_ms: u64,
    /// After so many bodies in a row, of a path, that followed their heads at once.
    pub direct_return_hold_after: u32,
    /// Clients' connections at once that answers may go to past sluice.
    pub direct_return_clients_max: u32,
    /// Tunnels, whose two connections are joined in the kernel.
    pub splice: AssistMode,
    /// Bytes in one direction after which a tunnel is joined.
    pub splice_after_bytes: u64,
    /// Bytes of one direction that may be on their way in the kernel; more brings it back to be copied.
    pub splice_budget_bytes: u32,
    /// The same in pieces.
    pub splice_budget_pieces: u32,
    /// Tunnels spliced at once; further ones are copied.
    pub splice_tunnels_max: u32,
}

/// Whether something that is not for everybody is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Switch {
    /// It is not.
    #[default]
    Off,
    /// It is.
    On,
}

words!(Switch {
    Off = "off",
    On = "on",
});

/// Whether connections to an endpoint may be joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndpointBypass {
    /// Where it is on this host.
    #[default]
    Auto,
    /// Never.
    Off,
}

words!(EndpointBypass {
    Auto = "auto",
    Off = "off",
});

/// Whether a route's answers may go past sluice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RouteDirect {
    /// Where that is used at all, and nothing is changed in them.
    #[default]
    Auto,
    /// Never.
    Off,
}

words!(RouteDirect {
    Auto = "auto",
    Off = "off",
});

/// Whether one assist is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AssistMode {
    /// Used where this host can and it helps: bytes are copied otherwise, which is slower but never wrong.
    #[default]
    Auto,
    /// Not used.
    Off,
    /// Sluice does not start without it.
    Required,
}

words!(AssistMode {
    Auto = "auto",
    Off = "off",
    Required = "required",
});

/// The engine that workers do their I/O with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Runtime {
    /// `io_uring` where it is allowed, otherwise `epoll`; sluice logs which, and why.
    #[default]
    Auto,
    /// io_uring by sluice's own driver. Sluice does not start where io_uring is denied.
    IoUring,
    /// io_uring by tokio-uring (linux 6.6). Sluice does not start where io_uring is denied.
    TokioUring,
    /// epoll by tokio, which every host has.
    Epoll,
}

words!(Runtime {
    Auto = "auto",
    IoUring = "io_uring",
    TokioUring = "tokio_uring",
    Epoll = "epoll",
});

/// How the kernel's scheduler treats workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerScheduling {
    /// One that is woken preempts nobody (`SCHED_BATCH`): whoever woke it, an application or a client, comes to its end
    /// first, and the worker then finds more to do at once.
    #[default]
    Batch,
    /// As any thread.
    Normal,
}

words!(WorkerScheduling {
    Batch = "batch",
    Normal = "normal",
});
