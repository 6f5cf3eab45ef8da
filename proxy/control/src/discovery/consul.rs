//! A service of Consul, by blocking queries of its agent.

use std::time::Duration;

use http::HeaderMap;
use serde::Deserialize;
use sluice_config::{ConsulSource, Endpoint};
use tokio::time::{Instant, sleep_until};

use super::value::endpoint;
use crate::remote::RemoteError;
use crate::remote::http::{PATIENCE, Servers, add_secret, secret};

/// How long the agent waits for a change.
const WAIT: Duration = Duration::from_secs(55);

/// Between two questions that the agent answers at once.
const UNINDEXED_PACE: Duration = Duration::from_secs(1);

/// The instances of a service.
pub(super) struct Consul {
    config: ConsulSource,
    servers: Servers,
    /// What was seen last.
    index: u64,
    /// When it was asked last.
    asked: Option<Instant>,
    most: usize,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Instance {
    node: Node,
    service: Service,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Node {
    #[serde(default)]
    address: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Service {
    #[serde(default)]
    address: String,
    #[serde(default)]
    port: u16,
    #[serde(default)]
    weights: Weights,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Weights {
    passing: u64,
}

impl Default for Weights {
    fn default() -> Self {
        Self { passing: 1 }
    }
}

impl Consul {
    /// With at most about this many instances.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(super) fn new(config: &ConsulSource, most: usize) -> Result<Self, RemoteError> {
        let servers = Servers::new(vec![config.url.clone()], config.ca_file.as_deref(), None)?;
        Ok(Self { config: config.clone(), servers, index: 0, asked: None, most })
    }

    /// See [`super::source::Finder::next`].
    pub(super) async fn next(&mut self) -> Result<Vec<Endpoint>, RemoteError> {
        if self.index == 0
            && let Some(asked) = self.asked
        {
            // Without an index, the agent does not wait.
            sleep_until(asked + UNINDEXED_PACE).await;
        }
        self.asked = Some(Instant::now());
        let mut headers = HeaderMap::new();
        if let Some(path) = &self.config.token_file {
            // It may have been replaced.
            add_secret(&mut headers, "x-consul-token", &secret(path)?)?;
        }
        let patience = if self.index == 0 { PATIENCE } else { WAIT + WAIT / 16 + PATIENCE };
        let answer = self.servers.get(&self.target(), &headers, patience).await?;
        let index = answer.header("x-consul-index").and_then(|index| index.parse().ok()).unwrap_or(0);
        let list = read(&answer.whole().await?, self.most)?;
        // An index that goes back has been reset, as Consul's documentation says of blocking queries.
        self.index = if index < self.index { 0 } else { index };
        Ok(list)
    }

    fn target(&self) -> String {
        let ConsulSource { service, tags, passing_only, datacenter, .. } = &self.config;
        let mut target =
            format!("/v1/health/service/{service}?index={}&wait={}s", self.index, WAIT.as_secs());
        if *passing_only {
            target.push_str("&passing=1");
        }
        for tag in tags {
            target.push_str("&tag=");
            target.push_str(tag);
        }
        if let Some(datacenter) = datacenter {
            target.push_str("&dc=");
            target.push_str(datacenter);
        }
        target
    }
}

fn read(text: &str, most: usize) -> Result<Vec<Endpoint>, RemoteError> {
    let instances: Vec<serde_json::Value> =
        serde_json::from_str(text).map_err(|error| format!("not what Consul answers: {error}"))?;
    // One that cannot be read does not hide the others.
    let instances = instances.into_iter().filter_map(|one| serde_json::from_value::<Instance>(one).ok());
    let instances: Vec<_> = instances.collect();
    let list = instances.iter().filter_map(|instance| {
        let Service { address, port, weights } = &instance.service;
        let host = if address.is_empty() { &instance.node.address } else { address };
        endpoint(host, *port, weights.passing)
    });
    // More would be refused.
    Ok(list.take(most + 1).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_where_they_say_or_where_their_node_is() {
        let text = r#"[
            {"Node": {"Address": "10.0.0.1"}, "Service": {"Address": "", "Port": 80, "Weights": {"Passing": 3}}},
            {"Node": {"Address": "10.0.0.2"}, "Service": {"Address": "fd00::2", "Port": 81}},
            {"Node": {"Address": "10.0.0.3"}, "Service": {"Address": "app.example", "Port": 82}},
            {"Node": {"Address": "10.0.0.4"}, "Service": {"Port": 0}}]"#;
        let list = read(text, 10).unwrap();
        let list: Vec<_> = list.iter().map(|one| (one.address.to_string(), one.weight)).collect();
        let wanted = [("10.0.0.1:80", 3), ("[fd00::2]:81", 1), ("app.example:82", 1)];
        assert_eq!(list, wanted.map(|(address, weight)| (address.to_owned(), weight)));
        assert!(read("[1]", 10).unwrap().is_empty());
        for garbage in ["", "{}", "null", "<html>"] {
            assert!(read(garbage, 10).is_err(), "{garbage}");
        }
    }
}
