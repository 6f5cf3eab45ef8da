//! A service of Kubernetes: its EndpointSlices, by a list and a watch.

use std::collections::{BTreeMap, HashSet};

use http::HeaderMap;
use serde::Deserialize;
use sluice_config::{Endpoint, HttpUrl, KubernetesSource};

use super::value::endpoint;
use crate::remote::RemoteError;
use crate::remote::changes::ChangeStream;
use crate::remote::http::{Answer, PATIENCE, Servers, add_secret, secret};

/// The endpoints of a service.
pub(super) struct Kubernetes {
    config: KubernetesSource,
    servers: Servers,
    slices: BTreeMap<String, Slice>,
    changes: ChangeStream,
    most: usize,
}

#[derive(Deserialize)]
struct List {
    metadata: ListMeta,
    items: Option<Vec<Slice>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: serde_json::Value,
}

#[derive(Deserialize)]
struct Slice {
    metadata: Meta,
    endpoints: Option<Vec<Member>>,
    ports: Option<Vec<Port>>,
}

#[derive(Deserialize)]
struct Meta {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct Member {
    #[serde(default)]
    addresses: Vec<String>,
    #[serde(default)]
    conditions: Conditions,
    hints: Option<Hints>,
}

#[derive(Default, Deserialize)]
struct Conditions {
    ready: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Hints {
    for_zones: Option<Vec<Zone>>,
}

#[derive(Deserialize)]
struct Zone {
    name: String,
}

#[derive(Deserialize)]
struct Port {
    name: Option<String>,
    port: Option<u16>,
}

impl Kubernetes {
    /// With at most this many slices.
    ///
    /// # Errors
    /// There is no API server, or a file cannot be used.
    pub(super) fn new(config: &KubernetesSource, most: usize) -> Result<Self, RemoteError> {
        let url = config.url.clone().map_or_else(of_this_pod, Ok)?;
        let servers = Servers::new(vec![url], Some(&config.ca_file), None)?;
        Ok(Self {
            config: config.clone(),
            servers,
            slices: BTreeMap::new(),
            changes: ChangeStream::default(),
            most,
        })
    }

    /// See [`super::source::Finder::next`].
    pub(super) async fn next(&mut self) -> Result<Vec<Endpoint>, RemoteError> {
        if let Some(lines) = self.changes.next().await? {
            for line in lines {
                self.take(&line)?;
            }
            self.check_size()?;
            return Ok(self.list());
        }
        let answer = self.ask("").await?.whole().await?;
        let list: List = serde_json::from_str(&answer).map_err(garbage)?;
        let slices = list.items.unwrap_or_default();
        self.slices = slices.into_iter().map(|slice| (slice.metadata.name.clone(), slice)).collect();
        let version: String =
            list.metadata.resource_version.chars().filter(char::is_ascii_alphanumeric).collect();
        let watch = format!("&watch=1&allowWatchBookmarks=true&resourceVersion={version}");
        self.check_size()?;
        self.changes.begin(self.ask(&watch).await?);
        Ok(self.list())
    }

    /// One slice has up to a thousand endpoints.
    fn check_size(&self) -> Result<(), RemoteError> {
        if self.slices.len() > self.most {
            return Err(format!("more than {} slices", self.most).into());
        }
        Ok(())
    }

    async fn ask(&self, further: &str) -> Result<Answer, RemoteError> {
        let KubernetesSource { namespace, service, token_file, .. } = &self.config;
        let mut headers = HeaderMap::new();
        // Kubernetes replaces it every hour.
        add_secret(&mut headers, "authorization", &format!("Bearer {}", secret(token_file)?))?;
        let target = format!(
            "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?\
             labelSelector=kubernetes.io%2Fservice-name%3D{service}{further}"
        );
        self.servers.get(&target, &headers, PATIENCE).await
    }

    /// Takes a line of the watch.
    fn take(&mut self, line: &str) -> Result<(), RemoteError> {
        let event: Event = serde_json::from_str(line).map_err(garbage)?;
        if event.kind == "ERROR" {
            return Err(format!("the watch has failed: {}", event.object).into());
        }
        if event.kind == "BOOKMARK" {
            return Ok(());
        }
        let slice: Slice = serde_json::from_value(event.object).map_err(garbage)?;
        let name = slice.metadata.name.clone();
        match event.kind.as_str() {
            "DELETED" => _ = self.slices.remove(&name),
            _ => _ = self.slices.insert(name, slice),
        }
        Ok(())
    }

    /// The endpoints that are ready: those with a hint for this zone, if there are any and all have hints. Kubernetes gives
    /// hints to all or to none; some without are of a change that is under way, and kube-proxy ignores the others then.
    fn list(&self) -> Vec<Endpoint> {
        let (mut all, mut near, mut have_hints) = (Vec::new(), Vec::new(), true);
        let mut seen = HashSet::new();
        for slice in self.slices.values() {
            let Some(port) = self.port(slice.ports.as_deref().unwrap_or_default()) else { continue };
            let ready = slice.endpoints.iter().flatten().filter(|one| one.conditions.ready != Some(false));
            for member in ready {
                // All addresses of one are of the same pod.
                let found = member.addresses.first().and_then(|address| endpoint(address, port, 1));
                let Some(found) = found.filter(|found| seen.insert(found.address.clone())) else { continue };
                have_hints &= member
                    .hints
                    .as_ref()
                    .is_some_and(|hints| hints.for_zones.as_ref().is_some_and(|zones| !zones.is_empty()));
                let mut zones = member.hints.iter().filter_map(|hints| hints.for_zones.as_ref()).flatten();
                if zones.any(|zone| Some(&zone.name) == self.config.zone.as_ref()) {
                    near.push(found.clone());
                }
                all.push(found);
            }
        }
        if near.is_empty() || !have_hints { all } else { near }
    }

    fn port(&self, ports: &[Port]) -> Option<u16> {
        let wanted = self.config.port.as_deref();
        let is_wanted = |port: &&Port| match wanted {
            None => true,
            Some(wanted) => {
                port.name.as_deref() == Some(wanted)
                    || port.port.is_some_and(|port| port.to_string() == wanted)
            }
        };
        ports.iter().find(is_wanted)?.port
    }
}

/// The API server as pods find it.
fn of_this_pod() -> Result<HttpUrl, RemoteError> {
    let variable = |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set; write url"));
    let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    HttpUrl::parse(&format!("https://{host}:{port}/"), "/").map_err(|error| error.to_string().into())
}

fn garbage(error: serde_json::Error) -> String {
    format!("not what Kubernetes answers: {error}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn source(port: Option<&str>, zone: Option<&str>) -> Kubernetes {
        let config = KubernetesSource {
            port: port.map(str::to_owned),
            zone: zone.map(str::to_owned),
            url: Some(HttpUrl::parse("http://127.0.0.1:1/", "/").unwrap()),
            ..KubernetesSource::default()
        };
        Kubernetes::new(&config, 100).unwrap()
    }

    fn listed(source: &Kubernetes) -> Vec<String> {
        source.list().iter().map(|one| one.address.to_string()).collect()
    }

    /// As recorded from `kubectl get --raw` of version 1.31, shortened.
    const SLICE: &str = r#"{"type":"ADDED","object":{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1",
        "metadata":{"name":"web-abc12","namespace":"default","resourceVersion":"1234"},"addressType":"IPv4",
        "endpoints":[
          {"addresses":["10.1.0.7"],"conditions":{"ready":true,"serving":true,"terminating":false},
           "nodeName":"a","zone":"eu-1a","hints":{"forZones":[{"name":"eu-1a"}]}},
          {"addresses":["10.1.0.8"],"conditions":{"ready":false,"serving":false,"terminating":true}},
          {"addresses":["10.1.0.9"],"conditions":{},"zone":"eu-1b","hints":{"forZones":[{"name":"eu-1b"}]}}],
        "ports":[{"name":"metrics","protocol":"TCP","port":9100},{"name":"http","protocol":"TCP","port":8080}]}}"#;

    #[test]
    fn endpoints_that_are_ready_are_used_by_port_and_zone() {
        let mut any = source(None, None);
        any.take(SLICE).unwrap();
        assert_eq!(listed(&any), ["10.1.0.7:9100", "10.1.0.9:9100"]);
        let mut named = source(Some("http"), Some("eu-1b"));
        named.take(SLICE).unwrap();
        assert_eq!(listed(&named), ["10.1.0.9:8080"]);
        let mut far = source(Some("8080"), Some("us-1"));
        far.take(SLICE).unwrap();
        assert_eq!(listed(&far), ["10.1.0.7:8080", "10.1.0.9:8080"]);
        // One lacks a hint.
        let mut partly = source(Some("http"), Some("eu-1b"));
        partly.take(&SLICE.replace("false", "true")).unwrap();
        assert_eq!(listed(&partly), ["10.1.0.7:8080", "10.1.0.8:8080", "10.1.0.9:8080"]);
        far.take(&SLICE.replace("ADDED", "DELETED")).unwrap();
        assert!(listed(&far).is_empty());
        far.take(r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}"#).unwrap();
        assert!(far.take(r#"{"type":"ERROR","object":{"code":410,"reason":"Expired"}}"#).is_err());
        assert!(far.take("garbage").is_err());
    }

    #[test]
    fn slices_without_anything_are_none() {
        let mut source = source(None, None);
        source
            .take(r#"{"type":"ADDED","object":{"metadata":{"name":"a"},"endpoints":null,"ports":null}}"#)
            .unwrap();
        assert!(listed(&source).is_empty());
    }
}
