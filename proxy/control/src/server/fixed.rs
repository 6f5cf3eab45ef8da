//! Keys that cannot change while the process runs.

use sluice_config::{self as config, AssistMode, Config};
use sluice_net::quic::QuicProcess;

/// Sets the fixed keys of a new configuration to their current values; returns a sentence for each that differs.
pub(super) fn keep(old: &Config, new: &mut Config) -> Vec<String> {
    let mut changes = Vec::new();
    let mut fix = |key: &str, changed: bool| {
        if changed {
            changes.push(format!("{key}: the new value requires a restart"));
        }
    };
    fix("workers", old.worker_count() != new.worker_count());
    fix("runtime", old.runtime != new.runtime);
    fix("worker_scheduling", old.worker_scheduling != new.worker_scheduling);
    fix("worker_placement", old.worker_placement != new.worker_placement);
    fix("kernel", old.kernel != new.kernel);
    fix("admin", old.admin != new.admin);
    fix("admin_metrics_only", old.admin_metrics_only != new.admin_metrics_only);
    fix("admin_token_file", old.admin_token_file != new.admin_token_file);
    fix("tracing", !same_tracing(old, new));
    fix("control", old.control != new.control);
    fix("access_log", old.access_log != new.access_log);
    fix("user", old.user != new.user);
    fix("group", old.group != new.group);
    fix("services", old.services != new.services);
    fix("store", old.store != new.store);
    fix("demo_origin", old.demo_origin != new.demo_origin);
    // It is read when the first listener gets HTTP/3.
    if QuicProcess::has_begun() {
        fix("http3_secret_file", old.http3_secret_file != new.http3_secret_file);
    }
    let buffers = old.limits.body_buffers_bytes_max;
    fix("limits.body_buffers_max", buffers != new.limits.body_buffers_bytes_max);
    new.limits.body_buffers_bytes_max = buffers;
    // The program is loaded at the start, if a limit bans then.
    if old.kernel.bans == AssistMode::Auto && !old.bans_clients() && new.bans_clients() {
        changes.push(
            "kernel.bans: workers turn banned clients away; the kernel does after a restart".to_owned(),
        );
    }
    new.workers = old.workers;
    new.runtime = old.runtime;
    new.worker_scheduling = old.worker_scheduling;
    new.worker_placement = old.worker_placement;
    new.kernel = old.kernel;
    new.admin.clone_from(&old.admin);
    new.admin_metrics_only = old.admin_metrics_only;
    new.admin_token_file.clone_from(&old.admin_token_file);
    new.control.clone_from(&old.control);
    let sample_ratio = new.tracing.as_ref().map(|tracing| tracing.sample_ratio);
    new.tracing.clone_from(&old.tracing);
    if let (Some(tracing), Some(sample_ratio)) = (&mut new.tracing, sample_ratio) {
        tracing.sample_ratio = sample_ratio;
    }
    new.access_log.clone_from(&old.access_log);
    new.user.clone_from(&old.user);
    new.group.clone_from(&old.group);
    new.services.clone_from(&old.services);
    new.store.clone_from(&old.store);
    new.demo_origin = old.demo_origin;
    changes
}

/// Whether spans go to the same collector; the sample ratio may change.
fn same_tracing(old: &Config, new: &Config) -> bool {
    match (&old.tracing, &new.tracing) {
        (Some(old), Some(new)) => *old == config::Tracing { sample_ratio: old.sample_ratio, ..new.clone() },
        (old, new) => old == new,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn fixed_keys_stay_and_are_reported() {
        let read = |more: &str| {
            let text = format!(
                "listeners: [{{address: '127.0.0.1:1'}}]\nclusters: {{a: {{endpoints: ['127.0.0.1:2']}}}}\n{more}"
            );
            config::parse("test.yaml", &text, &[]).unwrap()
        };
        let old = read("workers: 2\nadmin: '127.0.0.1:3'\n");
        let mut new = read("workers: 3\nadmin: '127.0.0.1:3'\nvia: true\n");
        assert_eq!(keep(&old, &mut new), ["workers: the new value requires a restart"]);
        assert_eq!((new.workers, new.via), (2, true));
        assert!(keep(&old, &mut new).is_empty());
    }
}
