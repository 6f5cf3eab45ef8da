//! Errors of commands, in the words of kamal-proxy where it has the same error.

use sluice_config::WEIGHT;

/// Why a command failed; nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// service not found
    #[error("service not found")]
    NotFound,
    /// another service serves one of its hosts and paths
    #[error("host settings conflict with another service")]
    HostInUse,
    /// neither a service nor a cluster of the configuration file has this name
    #[error("no service or cluster is named {0:?}")]
    NobodyOfThatName(String),
    /// none of its targets has this name
    #[error("{name} has no target {target:?}; it has {known}")]
    NoSuchTarget {
        /// The service or the cluster.
        name: String,
        /// The requested target.
        target: String,
        /// The existing targets.
        known: String,
    },
    /// without this target, no target would take requests
    #[error("{target} is the last target of {name} that takes requests; {instead}")]
    LastTarget {
        /// The service or the cluster.
        name: String,
        /// The target to be disabled.
        target: String,
        /// What to do instead.
        instead: String,
    },
    /// a split was set for a rollout without targets
    #[error("rollout target not set")]
    RolloutTargetNotSet,
    /// a target that is not `host:port`
    #[error("{0} :invalid host pattern")]
    InvalidTarget(String),
    /// a deploy without targets
    #[error("no target is given")]
    NoTarget,
    /// text that cannot be sent in the head of a message
    #[error("{0}: use ASCII without blanks; percent-encode other characters")]
    Unsendable(&'static str),
    /// not every target became healthy in time
    #[error("target failed to become healthy within configured timeout ({timeout})")]
    Unhealthy {
        /// The deploy timeout, as Go writes it.
        timeout: String,
        /// The outcome of the last check of each target that failed.
        last: Vec<String>,
    },
    /// the folder of error pages cannot be used
    #[error("unable to load error pages")]
    ErrorPages(String),
    /// an automatic certificate for a wildcard host
    #[error("automatic TLS does not support wildcards")]
    WildcardTls,
    /// the certificate of a service cannot be used
    #[error("unable to load certificate")]
    Certificate(String),
    /// a feature that sluice does not have yet
    #[error("{0}")]
    NotYet(String),
    /// a weight that is out of range
    #[error(
        "weight {weight} is not between {least} and {most}; to send a target no requests, disable it",
        least = WEIGHT.start(),
        most = WEIGHT.end()
    )]
    Weight {
        /// The requested weight.
        weight: u32,
    },
    /// an option with an invalid value
    #[error("{0}")]
    Invalid(String),
    /// the configuration file uses the same name
    #[error("the configuration file has a {what} {name:?}; deploy under another name")]
    InConfiguration {
        /// `cluster` or `route`.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// another process is taking over
    #[error("{0}")]
    Busy(String),
    /// the store of the fleet is away
    #[error("the store of the fleet cannot be reached; nothing has changed")]
    Store(String),
    /// the store of the fleet was asked, and has not answered
    #[error("the store of the fleet has not confirmed the change; look at the services before you try again")]
    Unconfirmed(String),
    /// members of the fleet are behind
    #[error("not every member of the fleet {what}")]
    NotEverywhere {
        /// What they have not done.
        what: &'static str,
        /// What is missing of each.
        missing: Vec<String>,
    },
    /// the state cannot be saved
    #[error("cannot write the state file: {0}")]
    State(#[from] std::io::Error),
}

impl ServiceError {
    /// Details beyond kamal-proxy's words, one line each.
    pub fn details(&self) -> Vec<String> {
        match self {
            ServiceError::Unhealthy { last, .. } => last.clone(),
            ServiceError::ErrorPages(what)
            | ServiceError::Certificate(what)
            | ServiceError::Store(what)
            | ServiceError::Unconfirmed(what) => vec![what.clone()],
            ServiceError::NotEverywhere { missing, .. } => missing.clone(),
            _ => Vec::new(),
        }
    }

    /// The HTTP status for this error in the control API.
    pub fn status(&self) -> u16 {
        match self {
            ServiceError::NotFound
            | ServiceError::NobodyOfThatName(_)
            | ServiceError::NoSuchTarget { .. } => 404,
            ServiceError::HostInUse
            | ServiceError::LastTarget { .. }
            | ServiceError::Busy(_)
            | ServiceError::RolloutTargetNotSet
            | ServiceError::InConfiguration { .. } => 409,
            // The request violates the API's schema.
            ServiceError::InvalidTarget(_)
            | ServiceError::NoTarget
            | ServiceError::Weight { .. }
            | ServiceError::Unsendable(_) => 400,
            // The request is valid, but cannot be carried out. sluice has not failed: the deployed targets failed, or
            // cannot be served.
            ServiceError::Unhealthy { .. }
            | ServiceError::WildcardTls
            | ServiceError::Invalid(_)
            | ServiceError::ErrorPages(_)
            | ServiceError::Certificate(_)
            | ServiceError::NotYet(_) => 422,
            ServiceError::State(_) => 500,
            ServiceError::Store(_) => 503,
            ServiceError::Unconfirmed(_) | ServiceError::NotEverywhere { .. } => 504,
        }
    }
}
