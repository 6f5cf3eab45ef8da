//! Decisions for requests, with the cases of kamal-proxy's own tests.

#![allow(clippy::unwrap_used)]

use sluice_config as config;

use super::*;
use crate::cluster::fake::seed;
use crate::service::duration::GoDuration;
use crate::service::model::Pause;

const NOW_MS: u64 = 1_000_000;

fn cluster(name: &str) -> Arc<Cluster> {
    Arc::new(Cluster::new(name, config::Cluster::default(), vec![seed(1)]))
}

fn slot(name: &str, readers: bool) -> Arc<Slot> {
    Arc::new(Slot::new(cluster(name), readers.then(|| cluster(&format!("{name} readers")))))
}

fn entry(readers: bool, change: impl FnOnce(&mut Service)) -> ServiceEntry {
    let mut service = Service { name: "web".to_owned(), ..Service::default() };
    change(&mut service);
    let gate = Arc::new(Gate::new(service.pause_controller.clone()));
    let rollout = service.rollout_controller.is_some().then(|| slot("rollout", readers));
    ServiceEntry::new(&service, slot("active", readers), rollout, gate).unwrap()
}

fn view<'a>(method: &'a str, target: &'a str, cookies: &'a [&'a [u8]]) -> RequestView<'a> {
    let target = target.as_bytes();
    let path = target.split(|byte| *byte == b'?').next().unwrap();
    let (method, host) = (method.as_bytes(), b"a.test".as_slice());
    RequestView {
        method,
        host,
        path,
        target,
        cookies,
        is_secure: false,
        websocket: false,
        unix_ms: NOW_MS,
        now_ms: 0,
    }
}

/// The decision for a request, as text.
fn chosen(entry: &ServiceEntry, request: &RequestView<'_>) -> String {
    match entry.choose(request) {
        Choice::Redirect(location) => format!("to {location}"),
        Choice::Well => "well".to_owned(),
        Choice::Wait(patience) => format!("wait {patience:?}"),
        Choice::Stopped(message) => format!("stopped {message}"),
        Choice::Forward(Forward { cluster, affinity: Some(for_ms), .. }) => {
            format!("{} {for_ms:?}", cluster.name)
        }
        Choice::Forward(Forward { cluster, .. }) => cluster.name.clone(),
    }
}

#[test]
fn a_canonical_host_comes_first() {
    let entry = entry(false, |service| {
        service.options.canonical_host = "www.test".to_owned();
        service.pause_controller = Pause::stopped(String::new());
    });
    assert_eq!(chosen(&entry, &view("GET", "/x?y=1", &[])), "to http://www.test/x?y=1");
    let canonical = RequestView { host: b"WWW.test", ..view("GET", "/x", &[]) };
    assert_eq!(chosen(&entry, &canonical), "stopped ");
}

#[test]
fn plain_requests_are_redirected_to_https_if_the_service_has_tls() {
    let with = |redirect: bool, canonical: &str| {
        entry(false, |service| {
            service.options.tls_enabled = true;
            service.options.tls_redirect = redirect;
            service.options.canonical_host = canonical.to_owned();
        })
    };
    let plain = || view("GET", "/x?y=1", &[]);
    let secure = || RequestView { is_secure: true, ..plain() };
    assert_eq!(chosen(&with(true, ""), &plain()), "to https://a.test/x?y=1");
    assert_eq!(chosen(&with(true, ""), &secure()), "active");
    assert_eq!(chosen(&with(true, "www.test"), &plain()), "to https://www.test/x?y=1");
    assert_eq!(chosen(&with(true, "www.test"), &secure()), "to https://www.test/x?y=1");
    assert_eq!(chosen(&with(false, ""), &plain()), "active");
    assert_eq!(chosen(&with(false, "www.test"), &plain()), "to http://www.test/x?y=1");
    let nowhere = RequestView { host: b"", ..plain() };
    assert_eq!(chosen(&with(true, ""), &nowhere), "active");
}

#[test]
fn paused_and_stopped_services_serve_only_health_checks() {
    for (pause, other) in [
        (Pause::paused(GoDuration::from_secs(3)), "wait 3s"),
        (Pause::stopped("back at 5".to_owned()), "stopped back at 5"),
    ] {
        let entry = entry(false, |service| service.pause_controller = pause);
        assert_eq!(chosen(&entry, &view("GET", "/", &[])), other);
        assert_eq!(chosen(&entry, &view("POST", "/up", &[])), other);
        assert_eq!(chosen(&entry, &view("GET", "/up?x", &[])), "well");
        assert_eq!(chosen(&entry, &view("HEAD", "/up", &[])), "well");
        entry.gate.set(Pause::default());
        assert_eq!(chosen(&entry, &view("GET", "/up", &[])), "active");
    }
}

#[test]
fn the_cookie_selects_the_rollout() {
    let rollout = |list: &[&str]| {
        let list = list.iter().map(|&value| value.to_owned()).collect();
        entry(false, |service| service.rollout_controller = Some(Rollout::new(0, list)))
    };
    let entry = rollout(&["one"]);
    assert_eq!(chosen(&entry, &view("GET", "/", &[b"kamal-rollout=one"])), "rollout");
    assert_eq!(chosen(&entry, &view("GET", "/", &[b"a=1", b"b=2; kamal-rollout=one"])), "rollout");
    assert_eq!(chosen(&entry, &view("GET", "/", &[b"kamal-rollout=two"])), "active");
    assert_eq!(chosen(&entry, &view("GET", "/", &[])), "active");
}

#[test]
fn reads_go_to_readers() {
    let readers = entry(true, |_| {});
    for (method, goes) in [
        ("GET", "active readers"),
        ("HEAD", "active readers"),
        ("POST", "active 1s"),
        ("DELETE", "active 1s"),
        ("OPTIONS", "active 1s"),
    ] {
        assert_eq!(chosen(&readers, &view(method, "/", &[])), goes, "{method}");
    }
    let websocket = RequestView { websocket: true, ..view("GET", "/", &[]) };
    assert_eq!(chosen(&readers, &websocket), "active 1s");
    let welcome = entry(true, |service| service.options.read_targets_accept_websockets = true);
    assert_eq!(chosen(&welcome, &websocket), "active readers");
    let without = entry(true, |service| service.options.writer_affinity_timeout = GoDuration(0));
    assert_eq!(chosen(&without, &view("POST", "/", &[])), "active");
    assert_eq!(chosen(&entry(false, |_| {}), &view("POST", "/", &[])), "active");
}

#[test]
fn a_client_that_has_written_reads_from_writers_for_a_while() {
    let entry = entry(true, |_| {});
    for (cookie, goes) in [
        ("kamal-writer=1000001", "active"),
        ("kamal-writer=1000000", "active readers"),
        ("kamal-writer=junk", "active readers"),
        ("kamal-writer=-5", "active readers"),
    ] {
        assert_eq!(chosen(&entry, &view("GET", "/", &[cookie.as_bytes()])), goes, "{cookie}");
    }
}

#[test]
fn writers_serve_reads_if_all_readers_are_unhealthy() {
    let entry = entry(true, |_| {});
    for endpoint in entry.active.readers.as_ref().unwrap().endpoints().iter() {
        endpoint.set_active_health(false, 0);
    }
    assert_eq!(chosen(&entry, &view("GET", "/", &[])), "active");
}

#[test]
fn the_writer_cookie_matches_kamal_proxys() {
    let cookie = writer_cookie(1_700_000_000_500, Duration::from_millis(1500));
    let wanted = "kamal-writer=1700000002000; Path=/; Expires=Tue, 14 Nov 2023 22:13:23 GMT; HttpOnly";
    assert_eq!(cookie, wanted);
}
