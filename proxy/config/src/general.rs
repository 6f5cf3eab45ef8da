//! Reads listeners and the keys that concern the process as a whole.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use ipnet::IpNet;
use serde_yaml::Value;

use super::clusters::{address, checked};
use super::defaults::WORKERS;
use super::reader::{Fields, Item};
use super::{
    AccessLog, Address, ControlSocket, Http2, Limits, Listener, LogFormat, LogOutput, Protocol,
    ProxyProtocol, ServicesState, https, passthrough, text, tls,
};

/// Listeners in one configuration.
const LISTENERS_MAX: usize = 256;
/// Networks of trusted proxies; each request is compared with all of them.
const TRUSTED_MAX: usize = 1000;
/// Fields of an access log line: each known one, some twice.
const LOG_FIELDS_MAX: usize = 64;
/// Bytes of a user or group name (useradd(8) allows 32).
const ACCOUNT_BYTES_MAX: usize = 64;

/// Every listener, those with mistakes too, so that their indexes are those of the file.
pub(super) fn listeners(root: &mut Fields<'_>, limits: &Limits) -> Vec<Listener> {
    let Some(item) = root.get("listeners") else {
        return Vec::new();
    };
    item.list(LISTENERS_MAX).iter().map(|item| listener(item, limits)).collect()
}

fn listener(item: &Item<'_>, limits: &Limits) -> Listener {
    let mut fields = item.fields();
    let name = fields.get("name").and_then(|item| checked(&item, text::name));
    let address = fields.require("address", "host:port or unix:/path").and_then(|item| address(&item));
    // Reported already; the name says so to whoever compares listeners.
    let address = address.unwrap_or(Address::Name(String::new(), 0));
    let cluster = fields.text("cluster").map(str::to_owned);
    let protocol = fields.get("protocol").map_or(Protocol::Http, |item| {
        // A word that is unknown but comes with a cluster was meant to be tcp.
        let guess = if cluster.is_some() { Protocol::Tcp } else { Protocol::Http };
        item.one_of().unwrap_or(guess)
    });
    let proxy_protocol = fields.one_of("proxy_protocol", ProxyProtocol::Off);
    let tls = tls::tls(&mut fields);
    let redirect_to_https = https::redirect_to_https(&mut fields);
    let hsts = https::hsts(&mut fields);
    let http2 = fields.one_of("http2", Http2::Auto);
    let passthrough = passthrough::read(&mut fields, protocol);
    let limits = self::limits(&mut fields, limits);
    fields.finish();
    let name = name.unwrap_or_else(|| address.to_string());
    Listener {
        name,
        address,
        protocol,
        proxy_protocol,
        http2,
        cluster,
        passthrough,
        tls,
        redirect_to_https,
        hsts,
        limits,
    }
}

/// The limits below `fields`, each from `base` if it is not given.
pub(super) fn limits(fields: &mut Fields<'_>, base: &Limits) -> Limits {
    let mut limits = base.clone();
    if let Some(mut own) = fields.get("limits").map(|item| item.fields()) {
        limits.read_numbers(&mut own);
        if let Some(mut http2) = own.get("http2").map(|item| item.fields()) {
            limits.http2.read_numbers(&mut http2);
            http2.finish();
        }
        own.finish();
    }
    limits
}

/// `trusted_proxies`: networks or single addresses.
pub(super) fn trusted_proxies(root: &mut Fields<'_>) -> Vec<IpNet> {
    let Some(item) = root.get("trusted_proxies") else {
        return Vec::new();
    };
    item.list(TRUSTED_MAX).iter().filter_map(network).collect()
}

fn network(item: &Item<'_>) -> Option<IpNet> {
    let text = item.value.as_str().unwrap_or_default();
    let network = text.parse::<IpNet>().map(|network| network.trunc());
    let network = network.ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    if network.is_none() {
        item.wrong_kind("an address or a network such as 10.0.0.0/8");
    }
    network
}

/// `error_pages`: a file by status.
pub(super) fn error_pages(root: &mut Fields<'_>) -> BTreeMap<u16, PathBuf> {
    let mut pages = BTreeMap::new();
    let Some(item) = root.get("error_pages") else {
        return pages;
    };
    for (key, item) in item.entries(200) {
        let status = key.parse::<u16>().ok().filter(|status| (400..=599).contains(status));
        match (status, item.text()) {
            (Some(status), Some(file)) => {
                pages.insert(status, PathBuf::from(file));
            }
            (None, _) => item.mistake("this is no error status; write one from 400 to 599"),
            (_, None) => {}
        }
    }
    pages
}

/// `access_log`: off, stdout, a path, or a map with these as `output`.
pub(super) fn access_log(root: &mut Fields<'_>) -> AccessLog {
    let mut log = AccessLog::default();
    let Some(item) = root.get("access_log") else {
        return log;
    };
    if !item.value.is_mapping() {
        log.output = log_output(&item).unwrap_or(log.output);
        return log;
    }
    let mut fields = item.fields();
    if let Some(output) = fields.get("output").and_then(|item| log_output(&item)) {
        log.output = output;
    }
    log.format = fields.one_of("format", log.format);
    if let Some(item) = fields.get("fields") {
        if log.format == LogFormat::Combined {
            item.mistake("the fields of the combined format are fixed; take them out");
        } else {
            log.fields = item.list(LOG_FIELDS_MAX).iter().filter_map(Item::one_of).collect();
            if item.value.as_sequence().is_some_and(Vec::is_empty) {
                item.mistake("no field is here; write at least one, or output: off");
            }
        }
    }
    fields.finish();
    log
}

fn log_output(item: &Item<'_>) -> Option<LogOutput> {
    if item.is_off() {
        return Some(LogOutput::Off);
    }
    match item.value {
        Value::String(text) if text == "stdout" => Some(LogOutput::Stdout),
        Value::String(text) if text.contains('/') => Some(LogOutput::File(PathBuf::from(text))),
        _ => {
            item.not_one_of(&["off", "stdout", "a path with a /"]);
            None
        }
    }
}

/// `admin`: off, an address, or a map with `address`.
pub(super) fn admin(root: &mut Fields<'_>) -> Option<Address> {
    let item = root.get("admin")?;
    if item.is_off() {
        return None;
    }
    if !item.value.is_mapping() {
        return address(&item);
    }
    let mut fields = item.fields();
    let given = fields.require("address", "host:port, unix:/path or off");
    fields.finish();
    given.filter(|item| !item.is_off()).and_then(|item| address(&item))
}

/// `control`: auto, off, or the path of a unix socket.
pub(super) fn control(root: &mut Fields<'_>) -> ControlSocket {
    let Some(item) = root.get("control") else {
        return ControlSocket::Auto;
    };
    if item.is_off() {
        return ControlSocket::Off;
    }
    if item.value.as_str() == Some("auto") {
        return ControlSocket::Auto;
    }
    match item.value.as_str().and_then(|text| text.strip_prefix("unix:")) {
        Some(path) if path.starts_with('/') => ControlSocket::At(PathBuf::from(path)),
        _ => {
            item.not_one_of(&["auto", "off", "unix:/path"]);
            ControlSocket::Auto
        }
    }
}

/// `services`: where deployed services are kept.
pub(super) fn services(root: &mut Fields<'_>) -> ServicesState {
    let mut state = ServicesState::default();
    if let Some(mut fields) = root.get("services").map(|item| item.fields()) {
        state.state_file = fields.text("state_file").map(PathBuf::from);
        state.kamal_state_file = fields.text("kamal_state_file").map(PathBuf::from);
        fields.finish();
    }
    state
}

/// `demo_origin`: off or a loopback address, for it answers anything to anyone.
pub(super) fn demo_origin(root: &mut Fields<'_>) -> Option<SocketAddr> {
    let item = root.get("demo_origin").filter(|item| !item.is_off())?;
    match address(&item)? {
        Address::Ip(address) if address.ip().is_loopback() => Some(address),
        other => {
            item.mistake(format!("{other} is not on loopback; write 127.0.0.1:port"));
            None
        }
    }
}

/// `workers`: auto, which is 0 here, or a number.
pub(super) fn workers(root: &mut Fields<'_>) -> usize {
    match root.get("workers") {
        Some(item) if item.value.as_str() != Some("auto") => {
            item.number(WORKERS, "auto, or a whole number").map_or(0, |number| number as usize)
        }
        _ => 0,
    }
}

/// `user` or `group`.
pub(super) fn account(root: &mut Fields<'_>, key: &'static str) -> Option<String> {
    let item = root.get(key)?;
    checked(&item, |name| {
        let plain = |c: char| c.is_alphanumeric() || "._-$".contains(c);
        if name.len() <= ACCOUNT_BYTES_MAX && name.chars().all(plain) {
            return Ok(());
        }
        Err(format!("{} is not an account name; write one such as www-data", super::problem::quote(name)))
    })
}
