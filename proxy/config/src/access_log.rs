//! Access log settings: output, format and fields. Writes no log.

use std::path::PathBuf;

use super::names::{Word, words};

/// Where and how exchanges are logged.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessLog {
    /// Where lines go.
    pub output: LogOutput,
    /// Format of a line.
    pub format: LogFormat,
    /// Which fields, in order. Not used by `combined`, whose fields are fixed.
    pub fields: Vec<LogField>,
    /// Further fields: names, and texts with variables.
    pub variables: Vec<(String, String)>,
}

/// Where access log lines go.
#[derive(Clone, Debug, PartialEq)]
pub enum LogOutput {
    /// Nowhere.
    Off,
    /// Standard output.
    Stdout,
    /// Appended to a file, reopened on SIGUSR1.
    File(PathBuf),
}

/// Format of an access log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// Labelled tab-separated values (ltsv.org).
    Ltsv,
    /// The Apache combined format.
    Combined,
}

/// A field of an access log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the documented keys of config/sluice.yaml")]
pub enum LogField {
    Time,
    RequestId,
    Listener,
    Client,
    Method,
    Host,
    Target,
    Protocol,
    Status,
    Route,
    Cluster,
    Endpoint,
    BytesIn,
    BytesOut,
    DurationMs,
    QueueMs,
    ConnectMs,
    UpstreamMs,
    TransferMs,
    Path,
    Retries,
    Reason,
    User,
    UserAgent,
    Referer,
}

impl Default for AccessLog {
    /// JSON with every field on standard output, which container runtimes and systemd collect.
    fn default() -> Self {
        Self {
            output: LogOutput::Stdout,
            format: LogFormat::Json,
            fields: LogField::ALL.to_vec(),
            variables: Vec::new(),
        }
    }
}

words!(LogFormat {
    Json = "json",
    Ltsv = "ltsv",
    Combined = "combined",
});

words!(LogField {
    Time = "time",
    RequestId = "request_id",
    Listener = "listener",
    Client = "client",
    Method = "method",
    Host = "host",
    Target = "target",
    Protocol = "protocol",
    Status = "status",
    Route = "route",
    Cluster = "cluster",
    Endpoint = "endpoint",
    BytesIn = "bytes_in",
    BytesOut = "bytes_out",
    DurationMs = "duration_ms",
    QueueMs = "queue_ms",
    ConnectMs = "connect_ms",
    UpstreamMs = "upstream_ms",
    TransferMs = "transfer_ms",
    Path = "path",
    Retries = "retries",
    Reason = "reason",
    User = "user",
    UserAgent = "user_agent",
    Referer = "referer",
});
