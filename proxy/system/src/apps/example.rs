//! An example configuration, adapted to the ports of a test. Everything else in it stays as users read it.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_yaml::{Mapping, Value};

/// Uploads in the checks are larger than an API would allow.
const BODY_MAX: &str = "4g";

/// The text of `file` with its first listener on `listen`, admin on `admin` and every cluster on `origin`. With
/// `as_they_come`, responses may use direct return.
///
/// # Errors
/// When the file cannot be read or does not look like a configuration.
pub(super) fn adapt(
    file: &Path,
    listen: SocketAddr,
    admin: SocketAddr,
    origin: SocketAddr,
    as_they_come: bool,
) -> Result<String> {
    let name = file.display().to_string();
    let text = fs::read_to_string(file).with_context(|| name.clone())?;
    let mut config: Value = serde_yaml::from_str(&text).with_context(|| name.clone())?;
    rewrite(&mut config, listen, admin, origin).with_context(|| name.clone())?;
    if as_they_come {
        leave_answers(&mut config);
    }
    serde_yaml::to_string(&config).context(name)
}

fn rewrite(config: &mut Value, listen: SocketAddr, admin: SocketAddr, origin: SocketAddr) -> Result<()> {
    let config = config.as_mapping_mut().context("is not a mapping")?;
    let listeners =
        config.get_mut("listeners").and_then(Value::as_sequence_mut).context("has no list of listeners")?;
    ensure!(!listeners.is_empty(), "has no listener");
    listeners.truncate(1);
    let listener = listeners[0].as_mapping_mut().context("listeners[0]")?;
    set(listener, "address", listen.to_string());
    if let Some(limits) = listener.get_mut("limits").and_then(Value::as_mapping_mut) {
        set(limits, "body_max", BODY_MAX);
    }
    let clusters = config.get_mut("clusters").and_then(Value::as_mapping_mut).context("has no clusters")?;
    for (_, cluster) in clusters.iter_mut() {
        let cluster = cluster.as_mapping_mut().context("clusters")?;
        let endpoint = Value::from(origin.to_string());
        set(cluster, "endpoints", Value::Sequence(vec![endpoint]));
        cluster.remove("state_file");
    }
    set(config, "admin", admin.to_string());
    for key in ["user", "group", "error_pages"] {
        config.remove(key);
    }
    Ok(())
}

/// Removes edits of responses from all routes.
fn leave_answers(config: &mut Value) {
    let routes = config.get_mut("routes").and_then(Value::as_sequence_mut);
    for route in routes.into_iter().flatten().filter_map(Value::as_mapping_mut) {
        route.remove("response_headers");
    }
}

fn set(mapping: &mut Mapping, key: &str, value: impl Into<Value>) {
    mapping.insert(Value::from(key), value.into());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_addresses_and_host_specific_keys_change() {
        let text = "\
listeners: [{address: '0.0.0.0:80', limits: {body_max: 1}}, {address: '0.0.0.0:81'}]
routes: [{name: api, hosts: [api.example.com], cluster: api}]
clusters: {api: {endpoints: [a:1, {address: b:2, weight: 2}], state_file: /x, fail_open: true}}
user: www-data
";
        let mut config: Value = serde_yaml::from_str(text).unwrap();
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        rewrite(&mut config, address(1), address(2), address(3)).unwrap();
        let wanted = "\
listeners: [{address: '127.0.0.1:1', limits: {body_max: 4g}}]
routes: [{name: api, hosts: [api.example.com], cluster: api}]
clusters: {api: {endpoints: ['127.0.0.1:3'], fail_open: true}}
admin: 127.0.0.1:2
";
        assert_eq!(config, serde_yaml::from_str::<Value>(wanted).unwrap());
    }

    #[test]
    fn invalid_configurations_are_refused() {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let mut config: Value = serde_yaml::from_str("listeners: []").unwrap();
        assert!(rewrite(&mut config, address, address, address).is_err());
    }
}
