//! Reads listeners and the keys of the whole process.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Net};
use serde_yaml::Value;

use super::clusters::{LOOPBACK, STATUSES_MAX, address, address_shape, status_range};
use super::codec::{Codec, Map, Or, Own, Table, map, word};
use super::defaults::WORKERS;
use super::out::{Out, file, list};
use super::problem::quote;
use super::reader::{Fields, Item};
use super::shape::{Key, Shape};
use super::{
    AccessLog, Address, ControlSocket, Hsts, Http2, Http3, Limits, Listener, LogField, LogFormat, LogOutput,
    Passthrough, Protocol, ProxyProtocol, RedirectToHttps, Template, Word, http3, https, passthrough, text,
    tls,
};

/// Maximum number of listeners.
const LISTENERS_MAX: usize = 256;
/// Maximum number of error pages: the number of error statuses.
const PAGES_MAX: usize = 200;
/// Maximum number of trusted networks; each request is compared with all of them.
pub(super) const TRUSTED_MAX: usize = 1000;
/// Maximum number of access log fields: more than there are known ones.
const LOG_FIELDS_MAX: usize = 64;
/// Maximum length of the name of such a field, in bytes: each line has it.
const LOG_NAME_BYTES_MAX: usize = 64;
/// Maximum bytes of a user or group name (useradd(8) allows 32).
const ACCOUNT_BYTES_MAX: usize = 64;

/// Reads every listener. Listeners with mistakes are kept, so that indexes match the file.
pub(super) fn listeners(root: &mut Fields<'_>, limits: &Limits) -> Vec<Listener> {
    let Some(item) = root.get("listeners") else {
        return Vec::new();
    };
    item.list(LISTENERS_MAX).iter().map(|item| listener(item, limits)).collect()
}

/// The host of a listener whose address is only a port.
const ANY: &str = "0.0.0.0";

fn listener(item: &Item<'_>, limits: &Limits) -> Listener {
    let mut fields = item.fields();
    let name = fields.get("name").and_then(|item| item.checked(text::name));
    let address = fields.require("address", "host:port or unix:/path").and_then(|item| address(&item, ANY));
    // Reported already; the empty name is a placeholder that later checks skip.
    let address = address.unwrap_or(Address::Name(String::new(), 0));
    let cluster = fields.text("cluster").map(str::to_owned);
    let protocol = fields.get("protocol").map_or(Protocol::Http, |item| {
        // An unknown protocol together with a cluster most likely means tcp.
        let guess = if cluster.is_some() { Protocol::Tcp } else { Protocol::Http };
        item.one_of().unwrap_or(guess)
    });
    let proxy_protocol = fields.one_of("proxy_protocol", ProxyProtocol::Off);
    let tls = tls::tls(&mut fields);
    let redirect_to_https = fields.get("redirect_to_https").and_then(|item| REDIRECT.read(&item)).flatten();
    let hsts = fields.get("hsts").and_then(|item| HSTS.read(&item)).flatten();
    let http2 = fields.one_of("http2", Http2::Auto);
    let http3 = fields.get("http3").and_then(|item| HTTP3.read(&item)).flatten();
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
        http3,
        cluster,
        passthrough,
        tls,
        redirect_to_https,
        hsts,
        limits,
    }
}

const REDIRECT: Or<Own<RedirectToHttps>> = Or("off", https::REDIRECT);
const HSTS: Or<Map<Hsts>> = Or("off", map());
const HTTP3: Or<Own<Http3>> = Or("off", http3::HTTP3);

/// Every listener, with all defaults.
pub(super) fn write_listeners(listeners: &[Listener]) -> Value {
    list(listeners, |listener| {
        let mut out = Out::default();
        out.put("name", listener.name.as_str());
        out.put("address", listener.address.to_string());
        out.put("protocol", listener.protocol.word());
        out.put("proxy_protocol", listener.proxy_protocol.word());
        out.put("http2", listener.http2.word());
        out.put_some("http3", HTTP3.write(&listener.http3));
        out.put_some("cluster", listener.cluster.clone());
        out.put("tls", tls::write(listener.tls.as_ref()));
        out.put_some("redirect_to_https", REDIRECT.write(&listener.redirect_to_https));
        out.put_some("hsts", HSTS.write(&listener.hsts));
        listener.passthrough.iter().for_each(|passthrough| passthrough.write_keys(&mut out));
        out.put("limits", listener.limits.written());
        out.done()
    })
}

/// The shape of `listeners`.
pub(super) fn listeners_shape() -> Shape {
    let mut keys = vec![
        Key::optional("name", Shape::TEXT),
        Key::required("address", address_shape()),
        Key::optional("protocol", word::<Protocol>().shape()),
        Key::optional("proxy_protocol", word::<ProxyProtocol>().shape()),
        Key::optional("http2", word::<Http2>().shape()),
        Key::optional("http3", HTTP3.shape()),
        Key::optional("cluster", Shape::TEXT),
        Key::optional("tls", tls::shape()),
        Key::optional("redirect_to_https", REDIRECT.shape()),
        Key::optional("hsts", HSTS.shape()),
        Key::optional("limits", map::<Limits>().shape()),
    ];
    keys.extend(Passthrough::keys());
    Shape::some(Shape::Map(keys), LISTENERS_MAX)
}

/// The limits in `fields`; missing keys come from `base`.
pub(super) fn limits(fields: &mut Fields<'_>, base: &Limits) -> Limits {
    let mut limits = base.clone();
    if let Some(item) = fields.get("limits") {
        map().read_into(&mut limits, &item);
    }
    limits
}

/// A network or a single address.
pub(super) const NETWORK: Own<IpNet> =
    Own { read: network, write: |network| network.to_string().into(), shape: || Shape::TEXT };

/// A network, or an address as a network of its own, in the form that clients are compared in.
pub fn network_of(text: &str) -> Option<IpNet> {
    let network = text.parse::<IpNet>().map(|network| network.trunc());
    network.ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from)).map(canonical)
}

fn network(item: &Item<'_>) -> Option<IpNet> {
    let network = network_of(item.value.as_str().unwrap_or_default());
    if network.is_none() {
        item.wrong_kind("an address or a network such as 10.0.0.0/8");
    }
    network
}

/// Clients are compared in their canonical form, so an IPv4 network that is written as an IPv6 one would match none.
fn canonical(network: IpNet) -> IpNet {
    let mapped = match network {
        IpNet::V6(v6) if v6.prefix_len() >= 96 => {
            v6.network().to_ipv4_mapped().map(|v4| (v4, v6.prefix_len() - 96))
        }
        _ => None,
    };
    mapped.and_then(|(address, length)| Ipv4Net::new(address, length).ok()).map_or(network, IpNet::V4)
}

/// Error pages by status.
pub(super) const ERROR_PAGES: Own<BTreeMap<u16, PathBuf>> = Own {
    read: |item| Some(error_pages(item)),
    write: |pages| {
        let pages = pages.iter().map(|(status, page)| (Value::from(*status), file(page)));
        Value::Mapping(pages.collect())
    },
    shape: || Shape::entries(Shape::TEXT, PAGES_MAX),
};

/// Statuses of applications whose responses are replaced.
pub(super) const REPLACED: Own<Vec<(u16, u16)>> = Own {
    read: |item| {
        let ranges = item.list(STATUSES_MAX);
        Some(ranges.iter().filter_map(|item| status_range(item, 400, "502-504")).collect())
    },
    write: |ranges| list(ranges, |(low, high)| Value::from(format!("{low}-{high}"))),
    shape: || Shape::list(Shape::AnyOf(vec![Shape::Integer(400, 599), Shape::TEXT]), STATUSES_MAX),
};

fn error_pages(item: &Item<'_>) -> BTreeMap<u16, PathBuf> {
    let mut pages = BTreeMap::new();
    for (key, item) in item.entries(PAGES_MAX) {
        let status = key.parse::<u16>().ok().filter(|status| (400..=599).contains(status));
        match (status, item.text()) {
            (Some(status), Some(file)) => {
                pages.insert(status, PathBuf::from(file));
            }
            (None, _) => item.mistake("this is not an error status; write one from 400 to 599"),
            (_, None) => {}
        }
    }
    pages
}

/// Off, stdout, a path, or a map with one of these as `output`.
pub(super) const ACCESS_LOG: Own<AccessLog> =
    Own { read: |item| Some(access_log(item)), write: write_access_log, shape: access_log_shape };

fn access_log(item: &Item<'_>) -> AccessLog {
    let mut log = AccessLog::default();
    if !item.value.is_mapping() {
        log.output = log_output(item).unwrap_or(log.output);
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
                item.mistake("the list is empty; write at least one field, or output: off");
            }
        }
    }
    if let Some(item) = fields.get("variables") {
        if log.format == LogFormat::Combined {
            item.mistake("the fields of the combined format are fixed; take them out");
        }
        log.variables = item.entries(LOG_FIELDS_MAX).into_iter().filter_map(log_variable).collect();
    }
    fields.finish();
    log
}

/// A field of the log with a text of its own.
fn log_variable((name, item): (String, Item<'_>)) -> Option<(String, String)> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if name.is_empty() || name.len() > LOG_NAME_BYTES_MAX || !name.bytes().all(is_plain) {
        item.mistake(format!(
            "{} is not a name of a field; write up to {LOG_NAME_BYTES_MAX} lower-case letters, digits and _",
            quote(&name)
        ));
        return None;
    }
    if LogField::ALL.iter().any(|field| field.word() == name) {
        item.mistake("the log has a field of this name; write another one");
        return None;
    }
    let text = item.any_text()?.to_owned();
    Template::read(&text).map_err(|mistake| item.mistake(mistake)).ok()?;
    Some((name, text))
}

fn write_access_log(log: &AccessLog) -> Value {
    let mut out = Out::default();
    let output = match &log.output {
        LogOutput::Off => Value::from("off"),
        LogOutput::Stdout => Value::from("stdout"),
        LogOutput::File(path) => file(path),
    };
    out.put("output", output);
    out.put("format", log.format.word());
    if log.format != LogFormat::Combined {
        out.put("fields", list(&log.fields, |field| Value::from(field.word())));
        let mut variables = Out::default();
        log.variables.iter().for_each(|(name, text)| variables.put(name, text.as_str()));
        out.put("variables", variables.done());
    }
    out.done()
}

fn access_log_shape() -> Shape {
    let output = || Shape::AnyOf(vec![Shape::words(&["off", "stdout"]), Shape::Matching("/")]);
    let keys = vec![
        Key::optional("output", output()),
        Key::optional("format", word::<LogFormat>().shape()),
        Key::optional("fields", Shape::some(word::<LogField>().shape(), LOG_FIELDS_MAX)),
        Key::optional("variables", Shape::entries(Shape::Text { least: 0 }, LOG_FIELDS_MAX)),
    ];
    Shape::AnyOf(vec![output(), Shape::Map(keys)])
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

/// Off, an address, or a map with `address`.
pub(super) const ADMIN: Own<Option<Address>> = Own {
    read: |item| Some(admin(item)),
    write: |address| address.as_ref().map_or("off".to_owned(), ToString::to_string).into(),
    shape: || {
        let address = Shape::Map(vec![Key::required("address", address_shape().or_off())]);
        Shape::AnyOf(vec![address_shape(), address]).or_off()
    },
};

fn admin(item: &Item<'_>) -> Option<Address> {
    if item.is_off() {
        return None;
    }
    if !item.value.is_mapping() {
        return address(item, LOOPBACK);
    }
    let mut fields = item.fields();
    let given = fields.require("address", "host:port, unix:/path or off");
    fields.finish();
    given.filter(|item| !item.is_off()).and_then(|item| address(&item, LOOPBACK))
}

/// `auto`, `off`, or the path of a unix socket.
pub(super) const CONTROL: Own<ControlSocket> = Own {
    read: |item| Some(control(item)),
    write: |control| match control {
        ControlSocket::Auto => "auto".into(),
        ControlSocket::Off => "off".into(),
        ControlSocket::At(path) => format!("unix:{}", path.display()).into(),
    },
    shape: || Shape::AnyOf(vec![Shape::words(&["auto", "off"]), Shape::Matching("^unix:/")]),
};

fn control(item: &Item<'_>) -> ControlSocket {
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

/// A loopback address, because the demo origin serves anyone.
pub(super) const DEMO_ORIGIN: Own<SocketAddr> =
    Own { read: demo_origin, write: |address| address.to_string().into(), shape: address_shape };

fn demo_origin(item: &Item<'_>) -> Option<SocketAddr> {
    match address(item, LOOPBACK)? {
        Address::Ip(address) if address.ip().is_loopback() => Some(address),
        other => {
            item.mistake(format!("{other} is not on loopback; write 127.0.0.1:port"));
            None
        }
    }
}

/// `auto`, stored as 0, or a number.
pub(super) const WORKER_COUNT: Own<usize> = Own {
    read: |item| match item.value.as_str() {
        Some("auto") => Some(0),
        _ => item.number(WORKERS, "auto, or a whole number").map(|number| number as usize),
    },
    write: |count| if *count == 0 { "auto".into() } else { (*count).into() },
    shape: || {
        let count = Shape::Integer(*WORKERS.start(), *WORKERS.end());
        Shape::AnyOf(vec![count, Shape::words(&["auto"])])
    },
};

/// The name of a user or a group.
pub(super) fn account(name: &str) -> text::Check {
    let plain = |c: char| c.is_alphanumeric() || "._-$".contains(c);
    if name.len() <= ACCOUNT_BYTES_MAX && name.chars().all(plain) {
        return Ok(());
    }
    Err(format!("{} is not an account name; write one such as www-data", super::problem::quote(name)).into())
}
