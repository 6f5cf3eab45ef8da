//! Configured routes. Types only; `routes` reads them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{
    Access, Auth, Buffering, Compress, Conditions, Cors, Exceptions, Files, Retry, RouteDirect, Sendfile,
};

/// A match rule and its action.
///
/// Many fields: one for each key of a route.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Name shown in logs and metrics.
    pub name: String,
    /// Hosts, exact or `*.suffix`, in lower case; empty is any.
    pub hosts: Vec<String>,
    /// Path prefix, on segment boundaries; `/` is any.
    pub path_prefix: String,
    /// The whole path, in place of a prefix.
    pub path: Option<String>,
    /// A regular expression that is searched in the path, in place of a prefix.
    pub path_regex: Option<String>,
    /// What else must hold.
    pub conditions: Conditions,
    /// Requests that it leaves out.
    pub not: Exceptions,
    /// The clients that may use it; the others are refused.
    pub access: Option<Access>,
    /// Names of the rate limits that its requests count for.
    pub rate_limits: Vec<String>,
    /// Who may use it; `None` is everybody.
    pub auth: Option<Auth>,
    /// The action for a request that matches.
    pub action: Action,
    /// Files that it responds with before its action is asked.
    pub files: Option<Files>,
    /// Files that its application may name for sluice to send.
    pub sendfile: Option<Sendfile>,
    /// Remove `path_prefix` from the target before forwarding.
    pub strip_prefix: bool,
    /// The target sent upstream in place of the client's; see `RewriteTemplate`.
    pub rewrite: Option<String>,
    /// Put in front of the target before forwarding, after `strip_prefix`; without a slash at its end.
    pub add_prefix: Option<String>,
    /// Host sent upstream instead of the client's.
    pub host_rewrite: Option<String>,
    /// Which responses are encoded; `None` is none.
    pub compress: Option<Compress>,
    /// The cache of its responses; `None` is none.
    pub cache: Option<String>,
    /// What browsers are told about scripts of other sites.
    pub cors: Option<Cors>,
    /// Files used as the body of our own responses on this route, by status, in place of those of all routes.
    pub error_pages: BTreeMap<u16, PathBuf>,
    /// Overrides for which statuses of the application they are used.
    pub error_pages_for: Option<Vec<(u16, u16)>>,
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
    /// Overrides the cluster's body idle timeout, in milliseconds; a route to files without a cluster has 1 minute.
    pub body_idle_timeout_ms: Option<u64>,
    /// Overrides the cluster's retry policy.
    pub retry: Option<Retry>,
}

impl Route {
    /// Whether it is a rule that keeps requests from applications.
    pub fn is_rule(&self) -> bool {
        !matches!(self.action, Action::Cluster(_))
            || self.access.is_some()
            || self.auth.is_some()
            || !self.rate_limits.is_empty()
    }

    /// Its texts with variables, each with the key that has it.
    pub fn texts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let edits =
            [("request_headers", &self.request_headers), ("response_headers", &self.response_headers)];
        let of_edits = edits.into_iter().flat_map(|(key, edits)| {
            edits.set.iter().chain(&edits.add).map(move |(_, text)| (key, text.as_str()))
        });
        let of_action = match &self.action {
            Action::Redirect { location, .. } => Some(("redirect.location", location.as_str())),
            Action::Respond { body, is_template: true, .. } => Some(("respond.template", body.as_str())),
            Action::Cluster(_) | Action::Files | Action::Respond { .. } => None,
        };
        of_action.into_iter().chain(of_edits)
    }
}

/// The action of a route.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Forward to a cluster.
    Cluster(String),
    /// Respond with a file of `files`, and with 404 if there is none.
    Files,
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
        /// Whether the body has variables.
        is_template: bool,
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
