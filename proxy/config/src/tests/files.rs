//! The files under config/: all of them parse, and sluice.yaml documents every key.

use std::path::PathBuf;

use serde_yaml::Value;

use super::super::codec::Table;
use super::super::problem::Problems;
use super::super::{
    Acme, AcmeChallenge, AssistMode, CheckProtocol, ClientAuthMode, Config, DnsHook, Excess, Hsts, Http2,
    LogField, LogFormat, OnDemand, Protocol, ProxyProtocol, RecordType, SameSite, StartTls, Tls, Tracing,
    Word, load, parse, root,
};

fn directory() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../config"))
}

/// Every configuration file of the repository.
fn paths() -> Vec<PathBuf> {
    let mut files = vec![directory().join("sluice.yaml"), directory().join("minimal.yaml")];
    files.push(directory().join("packaging/sluice.yaml"));
    files.push(directory().join("packaging/container.yaml"));
    files.push(directory().join("examples/compose/sluice.yaml"));
    let examples =
        std::fs::read_dir(directory().join("examples")).unwrap().map(|entry| entry.unwrap().path());
    // The subdirectories contain files for other programs.
    files.extend(examples.filter(|path| path.is_file()));
    files
}

/// The contents of these files.
pub(super) fn texts() -> Vec<String> {
    paths().iter().map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

/// All of them, read like `sluice check` does, except for the files they name, which exist only on their target hosts.
pub(super) fn all() -> Vec<Config> {
    let read = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).unwrap();
        parse(&file.display().to_string(), &text, &[]).unwrap_or_else(|error| panic!("{error}"))
    };
    paths().iter().map(read).collect()
}

#[test]
fn every_shipped_file_has_no_mistakes() {
    assert_eq!(all().len(), 16);
}

#[test]
fn documented_file_starts_the_demo() {
    let config = load(&directory().join("sluice.yaml"), &[]).unwrap();
    assert_eq!(config.listeners[0].address.to_string(), "127.0.0.1:8080");
    assert_eq!(config.admin.unwrap().to_string(), "127.0.0.1:9901");
    let demo = config.demo_origin.unwrap();
    assert_eq!(config.clusters["demo"].endpoints[0].address.to_string(), demo.to_string());
}

/// A document that calls every reader.
pub(super) const EVERY_MAP: &str = "
limits: {http2: {}, http3: {}}
kernel: {}
caches: {a: {}}
file_cache: {}
compression: {}
buffers: {}
access_log: {}
access: [{}]
rate_limits: {a: {}}
tracing: {}
qlog: {}
store: {etcd: {client_certificate: {}}, consul: {}, redis: {}}
admin: {}
acme: {dns_hook: {}, external_account: {}}
listeners: [{http3: {}, tls: {certificates: [{}], client_auth: {}, acme: {on_demand: {}}}, redirect_to_https: {}, hsts: {}}, {protocol: tls-passthrough}]
routes:
  - {headers: [{}], query: [{}], not: {headers: [{}]}, access: {}, auth: {basic: {}}, redirect: {}, respond: {}, retry: {}, request_headers: {}, response_headers: {}, cors: {}, error_pages: {}}
  - {auth: {forward: {}}, files: {cache_control: [{}]}, sendfile: {accel: {/a: 1}}, compress: {}}
  - {auth: {jwt: {claims_to_headers: {}}}}
  - {auth: {certificate: {}}}
clusters:
  a: {endpoints: [{}], balance: {hash: {}}, affinity: {cookie: {}}, health_check: {}, ejection: {}, pool: {}, retry: {}, queue: {}, auto_limit: {}, tls: {client_certificate: {}}, discover: {dns: {}, consul: {}, etcd: {client_certificate: {}}, kubernetes: {}}}
";

#[test]
fn documented_file_has_every_key_and_keyword() {
    let tree: Value = serde_yaml::from_str(EVERY_MAP).unwrap();
    let problems = Problems::default();
    root::read(&tree, &problems);
    let keys = problems.keys();
    let mut wanted: Vec<&str> = keys.iter().map(String::as_str).collect();
    assert!(wanted.len() > 80, "{wanted:?}");
    wanted.extend(LogField::ALL.iter().map(|field| field.word()));
    wanted.extend(LogFormat::ALL.iter().map(|format| format.word()));
    wanted.extend(Protocol::ALL.iter().flat_map(|protocol| protocol.word().split('-')));
    wanted.extend(StartTls::ALL.iter().map(|protocol| protocol.word()));
    wanted.extend(ProxyProtocol::ALL.iter().map(|protocol| protocol.word()));
    wanted.extend(ClientAuthMode::ALL.iter().map(|mode| mode.word()));
    wanted.extend(Http2::ALL.iter().map(|mode| mode.word()));
    wanted.extend(AcmeChallenge::ALL.iter().flat_map(|challenge| challenge.word().split('-')));
    wanted.extend(AssistMode::ALL.iter().map(|mode| mode.word()));
    wanted.extend(SameSite::ALL.iter().map(|site| site.word()));
    wanted.extend(CheckProtocol::ALL.iter().map(|protocol| protocol.word()));
    wanted.extend(RecordType::ALL.iter().map(|record| record.word()));
    wanted.extend(Excess::ALL.iter().map(|excess| excess.word()));
    wanted.extend(["least_requests", "round_robin", "random_two", "client_address"]);

    let text = std::fs::read_to_string(directory().join("sluice.yaml")).unwrap();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words: std::collections::HashSet<&str> = text.split(|c| !is_part(c)).collect();
    let missing: Vec<&str> = wanted.into_iter().filter(|key| !words.contains(key)).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

/// Uncomments each line that shows a key of this map with its default.
fn uncommented(text: &str, map: &str) -> String {
    // Two spaces before the sign belong to a listener.
    let start = text.find(&format!("\n# {map}:")).unwrap() + 1;
    let lines = text[start..].lines().take_while(|line| !line.is_empty());
    lines.filter(|line| line.starts_with("# ")).map(|line| format!("{}\n", &line[2..])).collect()
}

/// A number as it is written, with its unit if it has one.
fn as_written(value: &Value) -> Option<String> {
    let text = value.as_str().filter(|text| {
        text.starts_with(|c: char| c.is_ascii_digit()) && text.ends_with(|c: char| c.is_ascii_lowercase())
    });
    value.as_u64().map(|number| number.to_string()).or(text.map(str::to_owned))
}

/// Every number of a table with its default.
fn numbers(table: &impl Table) -> Vec<(String, String)> {
    let written = table.written();
    let pairs = written.as_mapping().unwrap().iter();
    pairs.filter_map(|(key, value)| Some((key.as_str()?.to_owned(), as_written(value)?))).collect()
}

#[test]
fn documented_defaults_are_the_defaults() {
    let text = std::fs::read_to_string(directory().join("sluice.yaml")).unwrap();
    let shown = ["limits", "access_log", "buffers", "kernel"].map(|map| uncommented(&text, map)).concat();
    let shown = shown + &uncommented(&text, "tracing").replace("tracing: off", "tracing:");
    let config = super::read(&format!("{}{shown}", super::GOOD));
    assert_eq!((config.limits, config.access_log), (Config::default().limits, Config::default().access_log));
    assert_eq!((config.kernel, config.buffers), (Config::default().kernel, Config::default().buffers));
    assert_eq!(config.tracing, Some(Tracing::default()));

    let tables = [numbers(&Tls::default()), numbers(&Hsts::default()), numbers(&Acme::default())];
    for (key, value) in tables.into_iter().flatten() {
        assert!(text.contains(&format!("#   {key}: {value} ")), "{key}: {value}");
    }
    for (key, value) in numbers(&DnsHook::default()).into_iter().chain(numbers(&OnDemand::default())) {
        assert!(text.contains(&format!(" {key}: {value} ")), "{key}: {value}");
    }

    for (key, value) in super::super::root::write(&Config {
        clusters: [("demo".to_owned(), Default::default())].into(),
        ..Config::default()
    })["clusters"]["demo"]
        .as_mapping()
        .unwrap()
    {
        let key = key.as_str().unwrap();
        if let Some(number) = as_written(value) {
            assert!(text.contains(&format!("# {key}: {number}")), "{key}: {number}");
        }
    }
}
