//! What can be wrong with a command, in the words of kamal-proxy where it has them.

use sluice_config::WEIGHT;

/// Why a command changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// service not found
    #[error("service not found")]
    NotFound,
    /// another service serves one of its hosts and paths
    #[error("host settings conflict with another service")]
    HostInUse,
    /// neither a service nor a cluster of the configuration file has the name
    #[error("there is no service and no cluster {0:?}")]
    NobodyOfThatName(String),
    /// none of its targets is called so
    #[error("{name} has no target {target:?}; it has {known}")]
    NoSuchTarget {
        /// The service or the cluster.
        name: String,
        /// What was asked for.
        target: String,
        /// What there is.
        known: String,
    },
    /// without it nothing would take requests
    #[error("{target} is the last target of {name} that takes requests; {instead}")]
    LastTarget {
        /// The service or the cluster.
        name: String,
        /// What was to be disabled.
        target: String,
        /// What to do.
        instead: String,
    },
    /// the split of a rollout without targets
    #[error("rollout target not set")]
    RolloutTargetNotSet,
    /// a target that is no `host:port`
    #[error("{0} :invalid host pattern")]
    InvalidTarget(String),
    /// a deploy of nothing
    #[error("no target is given")]
    NoTarget,
    /// a text that has no place in the head of a message
    #[error("{0}: write ASCII without blanks; percent-encode what is not")]
    Unsendable(&'static str),
    /// not every target got healthy in time
    #[error("target failed to become healthy within configured timeout ({timeout})")]
    Unhealthy {
        /// The deploy timeout, as Go writes it.
        timeout: String,
        /// What the last check of each target that failed said.
        last: Vec<String>,
    },
    /// the folder of error pages cannot be used
    #[error("unable to load error pages")]
    ErrorPages(String),
    /// a certificate for a wildcard
    #[error("automatic TLS does not support wildcards")]
    WildcardTls,
    /// the certificate of a service cannot be used
    #[error("unable to load certificate")]
    Certificate(String),
    /// what sluice does not do yet
    #[error("{0}")]
    NotYet(String),
    /// a weight that no target can have
    #[error(
        "a weight is from {least} to {most}, and {weight} is not; a target that is to take no requests is disabled",
        least = WEIGHT.start(),
        most = WEIGHT.end()
    )]
    Weight {
        /// What was asked for.
        weight: u32,
    },
    /// an option whose value cannot be used
    #[error("{0}")]
    Invalid(String),
    /// the configuration file has something of the same name
    #[error("{what} {name:?} is in the configuration file; deploy under another name")]
    InConfiguration {
        /// `cluster` or `route`.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// another process is taking over
    #[error("{0}")]
    Busy(String),
    /// the state cannot be kept
    #[error("the state file cannot be written: {0}")]
    State(#[from] std::io::Error),
}

impl ServiceError {
    /// What can be said beyond kamal-proxy's words; a line each.
    pub fn details(&self) -> Vec<String> {
        match self {
            ServiceError::Unhealthy { last, .. } => last.clone(),
            ServiceError::ErrorPages(what) | ServiceError::Certificate(what) => vec![what.clone()],
            _ => Vec::new(),
        }
    }

    /// The HTTP status of the control API that stands for it.
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
            // Against the API's schema.
            ServiceError::InvalidTarget(_)
            | ServiceError::NoTarget
            | ServiceError::Weight { .. }
            | ServiceError::Unsendable(_) => 400,
            // Well said, and cannot be done. Nothing of ours has failed: what was to be deployed did, or is no way to
            // serve.
            ServiceError::Unhealthy { .. }
            | ServiceError::WildcardTls
            | ServiceError::Invalid(_)
            | ServiceError::ErrorPages(_)
            | ServiceError::Certificate(_)
            | ServiceError::NotYet(_) => 422,
            ServiceError::State(_) => 500,
        }
    }
}
