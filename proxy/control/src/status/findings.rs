//! The findings of doctor at startup, for the status page.

use std::sync::Arc;

use sluice_config::{Config, Word};
use sluice_net::listener::ListenerState;
use sluice_ring::Engine;

use super::document::{Assist, Finding, Fixed, Listener};
use crate::doctor::{self, Assists};

/// What is known once startup is complete; configuration and certificates are filled in on request.
pub(crate) fn findings(
    config: &Config,
    listeners: &[Arc<ListenerState>],
    engine: Engine,
    assists: &Assists,
) -> Fixed {
    let listener = |state: &Arc<ListenerState>| Listener {
        name: state.config.name.clone(),
        address: state.config.address.to_string(),
        protocol: state.config.protocol.word().to_owned(),
    };
    let names = ["bypass", "direct_return", "splice", "bans", "accept_steering"];
    let assist = |(name, verdict): (&str, String)| Assist { name: name.to_owned(), verdict };
    Fixed {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        engine: engine.name().to_owned(),
        workers: config.worker_count(),
        listeners: listeners.iter().map(listener).collect(),
        certificates: Vec::new(),
        assists: names.into_iter().zip(assists.words()).map(assist).collect(),
        findings: doctor::at_start(config, assists).into_iter().map(finding).collect(),
        config: serde_json::Value::Null,
    }
}

fn finding((area, finding): (&'static str, doctor::Finding)) -> Finding {
    Finding {
        area: area.to_owned(),
        name: finding.name.to_owned(),
        status: finding.status.word().to_owned(),
        means: finding.means,
        remedy: finding.remedy,
    }
}
