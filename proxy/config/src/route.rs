//! Routes as configured. Types only; `routes` reads them.

use super::{Buffering, Retry, RouteDirect};

/// A match rule and what follows from it.
///
/// Many fields: one for each key of a route.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Name shown in logs and metrics.
    pub name: String,
    /// Names of the listeners that it holds for; empty is any.
    pub listeners: Vec<String>,
    /// Hosts, exact or `*.suffix`, lower case; empty is any.
    pub hosts: Vec<String>,
    /// Path prefix, on segment borders; `/` is any.
    pub path_prefix: String,
    /// Methods; empty is any.
    pub methods: Vec<String>,
    /// Field conditions, all of which must hold.
    pub headers: Vec<HeaderMatch>,
    /// What to do with a request that matches.
    pub action: Action,
    /// Take `path_prefix` off the target before forwarding.
    pub strip_prefix: bool,
    /// Host sent upstream in place of the client's.
    pub host_rewrite: Option<String>,
    /// Edits of the request head.
    pub request_headers: HeaderEdits,
    /// Edits of the response head.
    pub response_headers: HeaderEdits,
    /// Whether answers may go straight out of the client's socket.
    pub direct_return: RouteDirect,
    /// Whether bodies are held back until they are whole, and how large they may be.
    pub buffering: Buffering,
    /// In place of the cluster's response timeout, in milliseconds.
    pub response_timeout_ms: Option<u64>,
    /// In place of the cluster's body idle timeout, in milliseconds.
    pub body_idle_timeout_ms: Option<u64>,
    /// In place of the cluster's retry policy.
    pub retry: Option<Retry>,
}

/// One field condition.
#[derive(Clone, Debug, PartialEq)]
pub struct HeaderMatch {
    /// Field name, lower case.
    pub name: String,
    /// Exact value; `None` asks only that the field is there.
    pub value: Option<String>,
}

/// What a route does.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Forward to a cluster.
    Cluster(String),
    /// Answer with a redirect.
    Redirect {
        /// 301, 302, 303, 307 or 308.
        status: u16,
        /// The Location; `{host}`, `{path}` and `{query}` stand for the request's (`{query}` with its `?`).
        location: String,
    },
    /// Answer with a fixed response.
    Respond {
        /// Status code.
        status: u16,
        /// Body bytes.
        body: String,
        /// Content-Type of the body.
        content_type: String,
    },
}

/// Changes to a head, done in this order: remove, set, add.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeaderEdits {
    /// Names to take out, lower case.
    pub remove: Vec<String>,
    /// Fields that replace all of the same name.
    pub set: Vec<(String, String)>,
    /// Fields to append.
    pub add: Vec<(String, String)>,
}
