//! The configuration as values again, every default spelled out: for `sluice config` and the admin listener.
//!
//! What it writes reads back to an equal configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_yaml::{Mapping, Value};

use super::emit_acme;
use super::emit_cluster::cluster;
use super::emit_tls;
use super::out::{Out, file, list, texts};
use super::{
    AccessLog, Action, Buffering, Buffers, Config, ControlSocket, HeaderEdits, KernelAssists, Limits,
    Listener, LogFormat, LogOutput, Route, ServicesState, Tracing, Word,
};

/// The whole configuration.
pub(super) fn config(config: &Config) -> Value {
    let mut out = Out::default();
    out.put("listeners", list(&config.listeners, listener));
    out.put("routes", list(&config.routes, route));
    let mut clusters = Out::default();
    for (name, one) in &config.clusters {
        clusters.put(name, cluster(one));
    }
    out.put("clusters", clusters.done());
    out.put("limits", limits(&config.limits));
    out.put("trusted_proxies", list(&config.trusted_proxies, |network| Value::from(network.to_string())));
    out.put("via", config.via);
    out.put("error_pages", error_pages(&config.error_pages));
    out.put("access_log", access_log(&config.access_log));
    out.put("tracing", config.tracing.as_ref().map_or(Value::from("off"), tracing));
    out.put_some("debug_token_file", config.debug_token_file.as_deref().map(file));
    out.put("admin", config.admin.as_ref().map_or("off".to_owned(), ToString::to_string));
    out.put("control", control(&config.control));
    out.put_some("admin_token_file", config.admin_token_file.as_deref().map(file));
    out.put("services", services(&config.services));
    out.put("acme", config.acme.as_ref().map_or(Value::from("off"), emit_acme::acme));
    out.put("workers", if config.workers == 0 { Value::from("auto") } else { Value::from(config.workers) });
    out.put("worker_scheduling", config.worker_scheduling.word());
    out.put_some("user", config.user.clone());
    out.put_some("group", config.group.clone());
    out.put("buffers", buffers(&config.buffers));
    out.put("kernel", kernel(config.kernel));
    config.write_numbers(&mut out.0);
    out.put("demo_origin", config.demo_origin.map_or("off".to_owned(), |address| address.to_string()));
    out.done()
}

fn services(services: &ServicesState) -> Value {
    let mut out = Out::default();
    out.put_some("state_file", services.state_file.as_deref().map(file));
    out.put_some("kamal_state_file", services.kamal_state_file.as_deref().map(file));
    out.done()
}

fn control(control: &ControlSocket) -> String {
    match control {
        ControlSocket::Auto => "auto".to_owned(),
        ControlSocket::Off => "off".to_owned(),
        ControlSocket::At(path) => format!("unix:{}", path.display()),
    }
}

fn buffers(buffers: &Buffers) -> Value {
    let mut out = Out::default();
    out.put_some("spool_directory", buffers.spool_directory.as_deref().map(file));
    buffers.write_numbers(&mut out.0);
    out.done()
}

fn buffering(out: &mut Out, buffering: &Buffering) {
    out.put("buffer_requests", buffering.buffer_requests.word());
    out.put("buffer_responses", buffering.buffer_responses.word());
    buffering.write_numbers(&mut out.0);
}

fn tracing(tracing: &Tracing) -> Value {
    let mut out = Out::default();
    out.put("otlp_endpoint", tracing.otlp_endpoint.to_string());
    out.put("service_name", tracing.service_name.as_str());
    out.put("sample_ratio", tracing.sample_ratio);
    tracing.write_numbers(&mut out.0);
    out.done()
}

fn kernel(kernel: KernelAssists) -> Value {
    let mut out = Out::default();
    out.put("bypass", kernel.bypass.word());
    out.put("bypass_downstream", kernel.bypass_downstream.word());
    out.put("direct_return", kernel.direct_return.word());
    out.put("direct_return_calm_max", kernel.direct_return_calm_max.map_or(Value::from("auto"), Value::from));
    kernel.write_numbers(&mut out.0);
    out.put("splice", kernel.splice.word());
    out.done()
}

fn error_pages(files: &BTreeMap<u16, PathBuf>) -> Value {
    let mut pages = Mapping::new();
    for (status, page) in files {
        pages.insert(Value::from(*status), file(page));
    }
    Value::Mapping(pages)
}

fn limits(limits: &Limits) -> Value {
    let mut out = Out::default();
    limits.write_numbers(&mut out.0);
    let mut http2 = Out::default();
    limits.http2.write_numbers(&mut http2.0);
    out.put("http2", http2.done());
    out.done()
}

fn listener(listener: &Listener) -> Value {
    let mut out = Out::default();
    out.put("name", listener.name.as_str());
    out.put("address", listener.address.to_string());
    out.put("protocol", listener.protocol.word());
    out.put("proxy_protocol", listener.proxy_protocol.word());
    out.put("http2", listener.http2.word());
    out.put_some("cluster", listener.cluster.clone());
    emit_tls::listener(&mut out, listener);
    if let Some(passthrough) = &listener.passthrough {
        super::passthrough::emit(&mut out, passthrough);
    }
    out.put("limits", limits(&listener.limits));
    out.done()
}

fn route(route: &Route) -> Value {
    let mut out = Out::default();
    out.put("name", route.name.as_str());
    out.put("listeners", texts(&route.listeners));
    out.put("hosts", texts(&route.hosts));
    out.put("path_prefix", route.path_prefix.as_str());
    out.put("methods", texts(&route.methods));
    let headers = list(&route.headers, |header| {
        let mut out = Out::default();
        out.put("name", header.name.as_str());
        out.put_some("value", header.value.clone());
        out.done()
    });
    out.put("headers", headers);
    action(&mut out, &route.action);
    out.put("strip_prefix", route.strip_prefix);
    out.put_some("host_rewrite", route.host_rewrite.clone());
    out.put("request_headers", edits(&route.request_headers));
    out.put("response_headers", edits(&route.response_headers));
    out.put("direct_return", route.direct_return.word());
    buffering(&mut out, &route.buffering);
    out.put_some("response_timeout_ms", route.response_timeout_ms);
    out.put_some("body_idle_timeout_ms", route.body_idle_timeout_ms);
    if let Some(retry) = &route.retry {
        let mut inner = Out::default();
        retry.write_numbers(&mut inner.0);
        out.put("retry", inner.done());
    }
    out.done()
}

fn action(out: &mut Out, action: &Action) {
    let mut inner = Out::default();
    match action {
        Action::Cluster(name) => out.put("cluster", name.as_str()),
        Action::Redirect { status, location } => {
            inner.put("status", *status);
            inner.put("location", location.as_str());
            out.put("redirect", inner.done());
        }
        Action::Respond { status, body, content_type } => {
            inner.put("status", *status);
            inner.put("body", body.as_str());
            inner.put("content_type", content_type.as_str());
            out.put("respond", inner.done());
        }
    }
}

fn edits(edits: &HeaderEdits) -> Value {
    let pairs = |pairs: &[(String, String)]| {
        let mut out = Out::default();
        for (name, value) in pairs {
            out.put(name, value.as_str());
        }
        out.done()
    };
    let mut out = Out::default();
    out.put("remove", texts(&edits.remove));
    out.put("set", pairs(&edits.set));
    out.put("add", pairs(&edits.add));
    out.done()
}

fn access_log(log: &AccessLog) -> Value {
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
    }
    out.done()
}
