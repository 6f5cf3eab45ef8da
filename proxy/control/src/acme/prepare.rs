//! The certificates that listeners serve before the first order: stored ones, and self-signed ones for names without
//! any. Blocks.

use crate::acme::AcmeError;
use std::collections::BTreeSet;
use std::sync::Arc;

use sluice_config::{Config, ListenerAcme};
use sluice_core::tls::{ByName, Demand, Terminator};

use super::folder::Folder;
use super::{Acme, made};

impl Acme {
    /// Installs certificates in the TLS terminator of each listener. Must run before the listener is open, so that
    /// every client finds a certificate.
    ///
    /// # Errors
    /// When there is no folder for account and certificates.
    pub(crate) fn prepare(&self, config: &Config, terminators: &ByName) -> Result<(), AcmeError> {
        let wants: Vec<_> = config
            .listeners
            .iter()
            .filter_map(|listener| {
                let acme = listener.tls.as_ref()?.acme.as_ref();
                Some((listener, terminators.get(&listener.name)?, acme))
            })
            .collect();
        let acme = config.acme.as_ref().filter(|_| wants.iter().any(|(_, _, acme)| acme.is_some()));
        let folder = acme.map(|acme| Folder::of(config, acme)).transpose()?;
        if let Some(folder) = &folder {
            folder.make()?;
        }
        for (listener, terminator, acme) in &wants {
            let on_demand = acme.is_some_and(|acme| acme.on_demand.is_some());
            let demand = on_demand.then(|| Demand::new(listener.name.clone(), self.wants.clone()));
            terminator.store().set_demand(demand);
        }
        let (Some(folder), Some(wanted)) = (folder, acme) else {
            return Ok(());
        };
        let wants: Vec<_> =
            wants.into_iter().filter_map(|(_, terminator, acme)| Some((terminator, acme?))).collect();
        let listed: BTreeSet<&str> =
            wants.iter().flat_map(|(_, acme)| &acme.names).map(String::as_str).collect();
        for (terminator, acme) in &wants {
            for name in &acme.names {
                let other =
                    acme.directories.get(name).map(|directory| wanted.with_directory(directory.clone()));
                let other = other.map(|other| Folder::of(config, &other)).transpose()?;
                if let Some(other) = &other {
                    other.make()?;
                }
                serve_listed(other.as_ref().unwrap_or(&folder), terminator, name);
            }
            serve_others(&folder, terminator, acme, &listed);
        }
        Ok(())
    }

    /// The same on a blocking thread.
    ///
    /// # Errors
    /// As above.
    pub(crate) async fn prepare_reload(
        self: &Arc<Self>,
        config: &Config,
        terminators: &ByName,
    ) -> Result<(), AcmeError> {
        let (acme, config, terminators) = (Arc::clone(self), config.clone(), terminators.clone());
        let prepared = tokio::task::spawn_blocking(move || acme.prepare(&config, &terminators)).await;
        prepared.map_err(|error| format!("reading certificates failed: {error}"))?
    }
}

fn serve_listed(folder: &Folder, terminator: &Terminator, name: &str) {
    if serve_kept(folder, terminator, name) || terminator.store().has(name) {
        return;
    }
    let put = made::placeholder(name)
        .and_then(|made| Ok(terminator.store().put(&[name.to_owned()], made, made::SOURCE)?));
    match put {
        Ok(()) => {
            tracing::warn!(name, "no certificate yet; serving a self-signed one until it is issued");
        }
        Err(error) => {
            tracing::warn!(name, "no certificate yet, and cannot create a self-signed one: {error}")
        }
    }
}

/// Installs the stored certificates of on-demand names.
fn serve_others(folder: &Folder, terminator: &Terminator, acme: &ListenerAcme, listed: &BTreeSet<&str>) {
    let Some(on_demand) = &acme.on_demand else { return };
    let names = folder.names(on_demand.names_max + listed.len());
    for name in names.iter().filter(|name| !listed.contains(name.as_str())) {
        serve_kept(folder, terminator, name);
    }
}

fn serve_kept(folder: &Folder, terminator: &Terminator, name: &str) -> bool {
    let store = terminator.store();
    let source = folder.source();
    if store.issued(name).is_some_and(|issued| issued.source == source) {
        return true;
    }
    let Some(kept) = folder.certificate(name) else {
        return false;
    };
    let put = store.put(&[name.to_owned()], Arc::clone(&kept.certified), &source);
    put.inspect_err(|error| tracing::warn!(name, "{error}")).is_ok()
}
