//! Configured routes. Types only; `routes` reads them.

use super::{Buffering, Retry, RouteDirect};

/// A match rule and its action.
///
/// Many fields: one for each key of a route.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Name shown in logs and metrics.
    pub name: String,
    /// Names of the listeners that it applies to; empty is any.
    pub listeners: Vec<String>,
    /// Hosts, exact or `*.suffix`, in lower case; empty is any.
    pub hosts: Vec<String>,
    /// Path prefix, on segment boundaries; `/` is any.
    pub path_prefix: String,
    /// Methods; empty is any.
    pub methods: Vec<String>,
    /// Field conditions; all of them must hold.
    pub headers: Vec<HeaderMatch>,
    /// The action for a request that matches.
    pub action: Action,
    /// Remove `path_prefix` from the target before forwarding.
    pub strip_prefix: bool,
    /// Host sent upstream instead of the client's.
    pub host_rewrite: Option<String>,
    /// Edits of the request head.
    pub request_headers: HeaderEdits,
    /// Edits of the response head.
    pub response_headers: HeaderEdits,
    /// Whether responses may use direct return.
    pub direct_return: RouteDirect,
    /// Whether bodies are buffered, and how large they may be.
    pub buffering: Buffering,
    /// Overrides the cluster's response timeout, in milliseconds.
    pub response_timeout_ms: Option<u64>,
    /// Overrides the cluster's body idle timeout, in milliseconds.
    pub body_idle_timeout_ms: Option<u64>,
    /// Overrides the cluster's retry policy.
    pub retry: Option<Retry>,
}

/// One field condition.
#[derive(Clone, Debug, PartialEq)]
pub struct HeaderMatch {
    /// Field name in lower case.
    pub name: String,
    /// Exact value; `None` only requires that the field is present.
    pub value: Option<String>,
}

/// The action of a route.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Forward to a cluster.
    Cluster(String),
    /// Respond with a redirect.
    Redirect {
        /// 301, 302, 303, 307 or 308.
        status: u16,
        /// The Location; `{host}`, `{path}` and `{query}` stand for the request's (`{query}` includes its `?`).
        location: String,
    },
    /// Respond with a fixed response.
    Respond {
        /// Status code.
        status: u16,
        /// Body bytes.
        body: String,
        /// Content-Type of the body.
        content_type: String,
    },
}

/// Changes to a head, in this order: remove, set, add.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeaderEdits {
    /// Names to remove, in lower case.
    pub remove: Vec<String>,
    /// Fields that replace all fields of the same name.
    pub set: Vec<(String, String)>,
    /// Fields to append.
    pub add: Vec<(String, String)>,
}
