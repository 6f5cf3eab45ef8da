//! Which kernel assists may be used, and how workers are scheduled. `kernel::probe` and `doctor` determine what this
//! host supports.

use super::names::words;

/// The kernel assists.
///
/// Many fields: one for each key of `kernel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelAssists {
    /// Joins connections to endpoints on this host, which bypasses loopback TCP.
    pub bypass: AssistMode,
    /// Joins connections from clients on this host in the same way.
    pub bypass_downstream: Switch,
    /// Joined bytes that a receiver may have unread; the rest is sent over TCP. A request is joined if it is complete
    /// and takes at most half of this.
    pub bypass_budget_bytes: u32,
    /// Joined messages that a receiver may have unread.
    pub bypass_budget_messages: u32,
    /// Maximum number of joined connections; further ones use TCP.
    pub bypass_connections_max: u32,
    /// How long an application may leave joined bytes unread, in milliseconds, before its connections are not joined
    /// for a while.
    pub bypass_stall_ms: u64,
    /// Sends responses from joined connections directly through the client's socket.
    pub direct_return: AssistMode,
    /// Smaller bodies are copied by sluice.
    pub direct_return_bytes_min: u32,
    /// While up to this number of exchanges of a worker wait for responses, smaller bodies use direct return too; `None`:
    /// the engine's own number.
    pub direct_return_calm_max: Option<u32>,
    /// Larger bodies are copied by sluice.
    pub direct_return_bytes_max: u64,
    /// The first request of a client connection that may use direct return, counted from 1.
    pub direct_return_from_request: u64,
    /// How long the kernel may hold a response head that an application sends separately from its body, in
    /// milliseconds, so that both leave together; 0 disables this.
    pub direct_return_hold_ms: u64,
    /// How many bodies of a path must follow their heads at once, in a row, before heads are held.
    pub direct_return_hold_after: u32,
    /// Maximum number of client connections that use direct return.
    pub direct_return_clients_max: u32,
    /// Joins the two connections of a tunnel in the kernel.
    pub splice: AssistMode,
    /// Bytes in one direction after which a tunnel is spliced.
    pub splice_after_bytes: u64,
    /// Bytes of one direction that may be in flight in the kernel; beyond it the tunnel falls back to copying.
    pub splice_budget_bytes: u32,
    /// The same limit in messages.
    pub splice_budget_pieces: u32,
    /// Maximum number of spliced tunnels; further ones are copied.
    pub splice_tunnels_max: u32,
    /// Turns banned clients away in the kernel.
    pub bans: AssistMode,
    /// Maximum number of clients that the kernel turns away; workers turn the others away.
    pub bans_clients_max: u32,
    /// Gives each connection to the worker that has the fewest.
    pub accept_steering: AssistMode,
    /// Gives QUIC packets to the worker that has their connection, also after the client's address has changed.
    pub quic_steering: AssistMode,
}

/// Whether an optional feature is enabled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Switch {
    /// Disabled.
    #[default]
    Off,
    /// Enabled.
    On,
}

words!(Switch {
    Off = "off",
    On = "on",
});

/// Whether connections to an endpoint may be joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndpointBypass {
    /// If the endpoint is on this host.
    #[default]
    Auto,
    /// Never.
    Off,
}

words!(EndpointBypass {
    Auto = "auto",
    Off = "off",
});

/// Whether responses of a route may use direct return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RouteDirect {
    /// If direct return is enabled and the route does not change responses.
    #[default]
    Auto,
    /// Never.
    Off,
}

words!(RouteDirect {
    Auto = "auto",
    Off = "off",
});

/// Mode of one assist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AssistMode {
    /// Used if this host supports it and it helps. Otherwise bytes are copied: slower, but correct.
    #[default]
    Auto,
    /// Not used.
    Off,
    /// sluice does not start without it.
    Required,
}

words!(AssistMode {
    Auto = "auto",
    Off = "off",
    Required = "required",
});

/// The I/O engine of the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Runtime {
    /// `io_uring` if it is allowed, otherwise `epoll`; sluice logs which, and why.
    #[default]
    Auto,
    /// io_uring with sluice's own driver. sluice does not start if io_uring is denied.
    IoUring,
    /// io_uring with tokio-uring (Linux 6.6). sluice does not start if io_uring is denied.
    TokioUring,
    /// epoll with tokio, which every host supports.
    Epoll,
}

words!(Runtime {
    Auto = "auto",
    IoUring = "io_uring",
    TokioUring = "tokio_uring",
    Epoll = "epoll",
});

/// How the kernel schedules worker threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerScheduling {
    /// `SCHED_BATCH`: a woken worker does not preempt its waker. The application or client that woke it finishes first,
    /// and the worker then finds more work at once.
    #[default]
    Batch,
    /// The default policy of threads (`SCHED_OTHER`).
    Normal,
}

words!(WorkerScheduling {
    Batch = "batch",
    Normal = "normal",
});

/// Which cores worker threads run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerPlacement {
    /// A busy batch worker with many connections stays on a core of its own, if there is one for each worker. Otherwise
    /// the kernel chooses.
    #[default]
    Spread,
    /// The kernel chooses.
    Kernel,
}

words!(WorkerPlacement {
    Spread = "spread",
    Kernel = "kernel",
});
