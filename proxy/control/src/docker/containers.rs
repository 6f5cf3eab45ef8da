//! From containers and their labels to services and their targets.

use std::collections::BTreeMap;
use std::net::IpAddr;

use derive_more::{Display, From};
use serde_json::{Value, json};

use super::engine::Container;

/// Why a container cannot be deployed.
#[derive(Debug, Display, From)]
struct LabelError(String);

/// Targets of one service.
const TARGETS_MAX: usize = 1000;
/// Services.
const SERVICES_MAX: usize = 1000;

/// What containers ask for.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Wanted {
    /// The bodies of deploys, by the name of the service.
    pub(super) services: BTreeMap<String, Value>,
    /// Containers that are left out, and why.
    pub(super) mistakes: Vec<String>,
}

/// What these containers ask for. One with a mistake in its labels is left out.
pub(super) fn services(containers: &[Container], prefix: &str) -> Wanted {
    let mut groups: BTreeMap<String, Vec<&Container>> = BTreeMap::new();
    for container in containers.iter().filter(|one| is_ready(one)) {
        groups.entry(format!("{prefix}{}", service_of(container))).or_default().push(container);
    }
    let Wanted { mut services, mut mistakes } = Wanted::default();
    if groups.len() > SERVICES_MAX {
        mistakes.push(format!("there are more than {SERVICES_MAX} services"));
    }
    for (name, mut group) in groups.into_iter().take(SERVICES_MAX) {
        // The newest says how the service is deployed.
        group.sort_by_key(|one| (-one.created, one.id.clone()));
        let mut targets: Vec<String> = Vec::new();
        for container in group.iter().take(TARGETS_MAX) {
            match target(container) {
                Ok(target) => targets.push(target),
                Err(error) => mistakes.push(format!("{}: {error}", name_of(container))),
            }
        }
        targets.sort();
        targets.dedup();
        let Some(newest) = group.first().filter(|_| !targets.is_empty()) else { continue };
        match request(newest, &targets) {
            Ok(request) => _ = services.insert(name, request),
            Err(error) => mistakes.push(format!("{}: {error}", name_of(newest))),
        }
    }
    Wanted { services, mistakes }
}

/// Whether it runs and is not known to be unwell. Docker says its health only in a text for people.
fn is_ready(container: &Container) -> bool {
    let is_unwell = ["(unhealthy)", "(health: starting)", "(starting)"];
    container.state == "running" && !is_unwell.iter().any(|one| container.status.contains(one))
}

fn label<'c>(container: &'c Container, name: &str) -> Option<&'c str> {
    let value = container.labels.as_ref()?.get(&format!("sluice.{name}"))?.trim();
    (!value.is_empty()).then_some(value)
}

fn name_of(container: &Container) -> &str {
    let name = container.names.as_ref().and_then(|names| names.first());
    name.map_or(container.id.as_str(), |name| name.trim_start_matches('/'))
}

/// The service that a container belongs to: by our label, by those of compose, otherwise it is one of its own.
fn service_of(container: &Container) -> String {
    if let Some(name) = label(container, "service") {
        return name.to_owned();
    }
    let compose = |key: &str| container.labels.as_ref()?.get(&format!("com.docker.compose.{key}"));
    match (compose("project"), compose("service")) {
        (Some(project), Some(service)) => format!("{project}-{service}"),
        _ => name_of(container).to_owned(),
    }
}

/// Where it listens: at its own address, otherwise at the port that it publishes, or that it has in the host's network.
fn target(container: &Container) -> Result<String, LabelError> {
    let port = port(container)?;
    let networks = container.network_settings.as_ref().and_then(|settings| settings.networks.as_ref());
    let wanted = label(container, "network");
    let addresses =
        networks.into_iter().flatten().filter(|(name, _)| wanted.is_none_or(|wanted| wanted == *name));
    let addresses = addresses.flat_map(|(_, network)| [&network.ip_address, &network.ipv6_address]);
    let address = addresses.flatten().find_map(|address| address.parse::<IpAddr>().ok());
    match (address, wanted) {
        (Some(IpAddr::V4(address)), _) => return Ok(format!("{address}:{port}")),
        (Some(IpAddr::V6(address)), _) => return Ok(format!("[{address}]:{port}")),
        (None, Some(wanted)) => return Err(format!("it has no address in the network {wanted:?}").into()),
        (None, None) => {}
    }
    let published = container.ports.iter().flatten().find(|one| one.private_port == port);
    // Docker calls the host's network so; Podman says nothing of it.
    let is_of_the_host = networks.is_none_or(|networks| networks.is_empty() || networks.contains_key("host"));
    match published.and_then(|one| one.public_port) {
        Some(public) => Ok(format!("127.0.0.1:{public}")),
        None if is_of_the_host => Ok(format!("127.0.0.1:{port}")),
        None => Err("it has no address, and does not publish its port".to_owned().into()),
    }
}

fn port(container: &Container) -> Result<u16, LabelError> {
    if let Some(text) = label(container, "port") {
        let port = text.parse().ok().filter(|port| *port > 0);
        return port.ok_or_else(|| format!("sluice.port: {text:?} is not a port").into());
    }
    let tcp = container.ports.iter().flatten().filter(|port| port.kind == "tcp" || port.kind.is_empty());
    let mut ports: Vec<_> = tcp.map(|port| port.private_port).collect();
    ports.sort_unstable();
    ports.dedup();
    match ports[..] {
        [port] => Ok(port),
        [] => Err("it exposes no port; write the label sluice.port".to_owned().into()),
        _ => Err(format!("it exposes {} ports; write the label sluice.port", ports.len()).into()),
    }
}

/// The body of a deploy.
fn request(container: &Container, targets: &[String]) -> Result<Value, LabelError> {
    let list = |name: &str| -> Vec<String> {
        let values = label(container, name).unwrap_or_default().split(',').map(str::trim);
        values.filter(|value| !value.is_empty()).map(str::to_owned).collect()
    };
    // A star stands for every host, as in `sluice list`.
    let hosts: Vec<_> =
        list("host").into_iter().map(|host| if host == "*" { String::new() } else { host }).collect();
    let mut options = json!({"hosts": hosts, "path_prefixes": list("path")});
    if let Some(tls) = label(container, "tls") {
        options["tls_enabled"] = flag("tls", tls)?.into();
    }
    let mut target_options = json!({});
    if let Some(path) = label(container, "health") {
        target_options["health_check_config"] = json!({"path": path});
    }
    if let Some(limit) = label(container, "max_in_flight") {
        target_options["max_in_flight"] = match limit.parse::<u32>() {
            Ok(number) => number.into(),
            Err(_) => limit.into(),
        };
    }
    Ok(json!({"targets": targets, "options": options, "target_options": target_options}))
}

fn flag(name: &str, text: &str) -> Result<bool, LabelError> {
    match text {
        "true" | "1" | "yes" => Ok(true),
        "false" | "0" | "no" => Ok(false),
        other => Err(format!("sluice.{name}: {other:?} is neither true nor false").into()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(text: &str) -> BTreeMap<String, Value> {
        wanted(text).services
    }

    fn wanted(text: &str) -> Wanted {
        services(&serde_json::from_str::<Vec<Container>>(text).unwrap(), "docker-")
    }

    #[test]
    fn labels_say_what_is_deployed() {
        let found = read(
            r#"[
            {"Id":"a","Names":["/web-1"],"State":"running","Status":"Up 2 seconds","Created":1,
             "Labels":{"sluice.host":"a.example, b.example","sluice.service":"web"},
             "Ports":[{"PrivatePort":3000,"Type":"tcp"}],
             "NetworkSettings":{"Networks":{"bridge":{"IPAddress":"172.17.0.2"}}}},
            {"Id":"b","Names":["/web-2"],"State":"running","Status":"Up 1 second (healthy)","Created":2,
             "Labels":{"sluice.host":"a.example","sluice.service":"web","sluice.health":"/ok","sluice.max_in_flight":"4",
                       "sluice.tls":"true","sluice.path":"/api"},
             "Ports":[{"PrivatePort":3000,"Type":"tcp"}],
             "NetworkSettings":{"Networks":{"bridge":{"IPAddress":"172.17.0.3"}}}},
            {"Id":"c","Names":["/web-3"],"State":"running","Status":"Up (health: starting)",
             "Labels":{"sluice.host":"a.example","sluice.service":"web"}},
            {"Id":"d","Names":["/api"],"State":"running","Status":"Up",
             "Labels":{"sluice.host":"*","com.docker.compose.project":"shop","com.docker.compose.service":"api"},
             "Ports":[{"PrivatePort":80,"PublicPort":8080,"Type":"tcp"}],
             "NetworkSettings":{"Networks":{"slirp":{"IPAddress":""}}}}]"#,
        );
        let names: Vec<_> = found.keys().map(String::as_str).collect();
        assert_eq!(names, ["docker-shop-api", "docker-web"]);
        let web = &found["docker-web"];
        assert_eq!(web["targets"], json!(["172.17.0.2:3000", "172.17.0.3:3000"]));
        // As the newest says.
        assert_eq!(
            web["options"],
            json!({"hosts": ["a.example"], "path_prefixes": ["/api"], "tls_enabled": true})
        );
        assert_eq!(
            web["target_options"],
            json!({"health_check_config": {"path": "/ok"}, "max_in_flight": 4})
        );
        let api = &found["docker-shop-api"];
        assert_eq!((&api["targets"], &api["options"]["hosts"]), (&json!(["127.0.0.1:8080"]), &json!([""])));
    }

    #[test]
    fn containers_with_mistakes_are_left_out() {
        let one = |rest: &str| {
            read(&format!(r#"[{{"Id":"a","Names":null,"State":"running","Status":"Up",{rest}}}]"#))
        };
        let network = r#""NetworkSettings":{"Networks":{"n":{"IPAddress":"10.0.0.2"}}}"#;
        assert!(one(&format!(r#""Labels":{{"sluice.host":"a"}},{network}"#)).is_empty(), "no port");
        assert!(one(&format!(r#""Labels":{{"sluice.host":"a","sluice.port":"0"}},{network}"#)).is_empty());
        let unknown =
            r#""Labels":{"sluice.host":"a","sluice.port":"80"},"NetworkSettings":{"Networks":{"n":{}}}"#;
        assert!(one(unknown).is_empty(), "no address");
        let of_the_host = one(r#""Labels":{"sluice.host":"a","sluice.port":"80"}"#);
        assert_eq!(of_the_host["docker-a"]["targets"], json!(["127.0.0.1:80"]));
        let elsewhere =
            format!(r#""Labels":{{"sluice.host":"a","sluice.port":"80","sluice.network":"m"}},{network}"#);
        assert!(one(&elsewhere).is_empty());
        let tls =
            format!(r#""Labels":{{"sluice.host":"a","sluice.port":"80","sluice.tls":"maybe"}},{network}"#);
        assert!(one(&tls).is_empty());
        let said = wanted(r#"[{"Id":"a","State":"running","Labels":{"sluice.host":"a"}}]"#).mistakes;
        assert_eq!(said, ["a: it exposes no port; write the label sluice.port"]);
        let good = format!(r#""Labels":{{"sluice.host":"a","sluice.port":"80"}},{network}"#);
        assert_eq!(one(&good)["docker-a"]["targets"], json!(["10.0.0.2:80"]));
    }
}
