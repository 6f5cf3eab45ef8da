//! A cache with a disk: what the next process has, however the one before has ended.

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{caching, get, is_hit, response};
use crate::support::{Origin, Proxy, poll, upgrade};

const FIELDS: &str = "Cache-Control: max-age=600\r\nCache-Tag: all\r\nETag: \"1\"\r\n";

/// A folder for files, removed at the end of the test.
struct Disk(PathBuf);

impl Disk {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("sluice-disk-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self(std::env::temp_dir().join(name))
    }

    fn cache(&self) -> Value {
        json!({"disk": {"folder": self.0}})
    }

    fn serve(&self, origin: &Origin) -> Option<Proxy> {
        let proxy = caching(origin, self.cache()).start()?;
        poll("the disk", || (proxy.said("the disk of a cache is open") == 1).then_some(()));
        Some(proxy)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Counts its requests in the body.
fn counting() -> Origin {
    let count = AtomicU32::new(0);
    Origin::answering(move |request| {
        let count = count.fetch_add(1, Ordering::Relaxed);
        response(FIELDS, format!("{} {count}", request.target()))
    })
}

fn post(proxy: &Proxy, target: &str) {
    let request = format!("POST {target} HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(proxy.ask(request).status(), 200);
}

fn events(proxy: &Proxy, event: &str) -> f64 {
    proxy.metric(&format!("sluice_cache_disk_events_total{{cache=\"pages\",event=\"{event}\"}}"))
}

fn written(proxy: &Proxy, count: f64) {
    poll("the files", || (events(proxy, "written") >= count).then_some(()));
}

fn kill(mut proxy: Proxy) {
    proxy.signal(Signal::SIGKILL);
    proxy.wait();
}

#[test]
fn a_restart_keeps_what_is_stored() {
    let (origin, disk) = (counting(), Disk::new());
    let Some(mut first) = disk.serve(&origin) else { return };
    let bodies = ["/a", "/b?c"].map(|target| get(&first, target, "").text().to_owned());
    first.signal(Signal::SIGTERM);
    assert_eq!(first.wait().code(), Some(0));
    let second = disk.serve(&origin).unwrap();
    let again = ["/a", "/b?c"].map(|target| get(&second, target, ""));
    assert!(again.iter().all(is_hit), "{again:?}");
    assert_eq!(again.map(|message| message.text().to_owned()), bodies);
    assert_eq!(origin.requests().len(), 2);
    assert_eq!(
        (events(&second, "read"), second.metric("sluice_cache_disk_files{cache=\"pages\"}")),
        (2.0, 2.0)
    );
    let listed = second.command("cache", &["list"]).1;
    assert!(listed.contains("1024.0 MiB") && !listed.contains("waiting"), "{listed}");
}

#[test]
fn a_file_answers_every_kind_of_request() {
    let (origin, disk) = (counting(), Disk::new());
    let Some(first) = disk.serve(&origin) else { return };
    for target in ["/head", "/range", "/condition", "/known"] {
        get(&first, target, "");
    }
    written(&first, 4.0);
    kill(first);
    let second = disk.serve(&origin).unwrap();
    let mut wire = second.connect();
    wire.send("HEAD /head HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let head = wire.head();
    assert!(head.status() == 200 && is_hit(&head), "{head:?}");
    let range = get(&second, "/range", "Range: bytes=1-5\r\n");
    assert!((range.status(), range.text()) == (206, "range") && is_hit(&range), "{range:?}");
    let condition = get(&second, "/condition", "If-None-Match: \"1\"\r\n");
    assert!(condition.status() == 304 && is_hit(&condition), "{condition:?}");
    // What is stored is not for everybody, but there it is.
    let known = get(&second, "/known", "Authorization: x\r\n");
    assert!(!is_hit(&known), "{known:?}");
    assert!(is_hit(&get(&second, "/known", "")));
}

#[test]
fn what_has_changed_does_not_come_back_after_a_kill() {
    let (origin, disk) = (counting(), Disk::new());
    let Some(first) = disk.serve(&origin) else { return };
    for target in ["/changed", "/tagged", "/same"] {
        get(&first, target, "");
    }
    written(&first, 3.0);
    post(&first, "/changed");
    kill(first);
    let second = disk.serve(&origin).unwrap();
    assert!(is_hit(&get(&second, "/same", "")));
    // Nobody has read it since.
    post(&second, "/tagged");
    kill(second);
    let third = disk.serve(&origin).unwrap();
    let hits = ["/changed", "/tagged", "/same"].map(|target| is_hit(&get(&third, target, "")));
    assert_eq!(hits, [false, false, true]);
    written(&third, 2.0);
    let (code, said) = third.command("cache", &["purge", "--tag", "all"]);
    assert_eq!(code, Some(0), "{said}");
    kill(third);
    let fourth = disk.serve(&origin).unwrap();
    let hits = ["/changed", "/tagged", "/same"].map(|target| is_hit(&get(&fourth, target, "")));
    assert_eq!(hits, [false; 3]);
}

#[test]
fn a_process_that_takes_over_has_the_files_of_the_one_before() {
    let (origin, disk) = (counting(), Disk::new());
    let Some(mut proxy) = disk.serve(&origin) else { return };
    let body = get(&proxy, "/a", "").text().to_owned();
    written(&proxy, 1.0);
    let next = upgrade(&proxy);
    assert_eq!(proxy.wait().code(), Some(0));
    poll("the disk", || (proxy.said("the disk of a cache is open") == 2).then_some(()));
    let message = get(&proxy, "/a", "");
    assert!(is_hit(&message) && message.text() == body, "{message:?}");
    drop(next);
}

#[test]
fn many_requests_for_a_file_read_it_once() {
    let (origin, disk) = (counting(), Disk::new());
    let Some(first) = disk.serve(&origin) else { return };
    let body = get(&first, "/a", "").text().to_owned();
    written(&first, 1.0);
    kill(first);
    let second = disk.serve(&origin).unwrap();
    let mut wires: Vec<_> = (0..50).map(|_| second.connect()).collect();
    wires.iter_mut().for_each(|wire| wire.send(super::request("/a", "")));
    for mut wire in wires {
        let message = wire.response();
        assert!(is_hit(&message) && message.text() == body, "{message:?}");
    }
    assert_eq!((events(&second, "read"), origin.requests().len()), (1.0, 1));
}

#[test]
fn a_reload_gives_a_cache_a_disk_and_takes_it() {
    let (origin, disk) = (counting(), Disk::new());
    let Some(proxy) = caching(&origin, json!({})).start() else { return };
    get(&proxy, "/a", "");
    let mut config = proxy.config.clone();
    config["caches"]["pages"] = disk.cache();
    assert_eq!(proxy.reload(&config).0, Some(0));
    poll("the disk", || (proxy.said("the disk of a cache is open") == 1).then_some(()));
    get(&proxy, "/a", "");
    written(&proxy, 1.0);
    // The folder is free for the next one.
    assert_eq!(proxy.reload(&proxy.config).0, Some(0));
    assert!(!is_hit(&get(&proxy, "/a", "")));
    assert_eq!(proxy.reload(&config).0, Some(0));
    poll("the disk", || (proxy.said("the disk of a cache is open") == 2).then_some(()));
    // Nobody has told it what has changed meanwhile.
    assert!(!is_hit(&get(&proxy, "/a", "")));
    assert!(is_hit(&get(&proxy, "/a", "")));
}

#[test]
fn a_folder_that_cannot_be_used_costs_nothing_but_the_files() {
    let (origin, disk) = (counting(), Disk::new());
    fs::write(&disk.0, "a file").unwrap();
    let Some(proxy) = caching(&origin, disk.cache()).start() else { return };
    poll("a warning", || (proxy.said("cannot use the disk of a cache") == 1).then_some(()));
    get(&proxy, "/a", "");
    assert!(is_hit(&get(&proxy, "/a", "")));
    post(&proxy, "/a");
    assert!(!is_hit(&get(&proxy, "/a", "")));
    fs::remove_file(&disk.0).unwrap();
    poll("the disk", || (proxy.said("the disk of a cache is open") == 1).then_some(()));
    // What came before is written as well.
    written(&proxy, 1.0);
    let _ = fs::remove_file(&disk.0);
}

#[test]
fn a_change_reaches_the_cache_of_a_reload_that_came_meanwhile() {
    let (told, go) = std::sync::mpsc::channel();
    let go = Mutex::new(go);
    let origin = Origin::answering(move |request| {
        if request.text() == "x" {
            go.lock().unwrap().recv().unwrap();
        }
        response(FIELDS, "body")
    });
    let Some(proxy) = caching(&origin, json!({})).start() else { return };
    let mut wire = proxy.connect();
    wire.send("POST /a HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\n\r\nx");
    poll("the request", || {
        proxy.endpoint(&origin.endpoint)["in_flight"].as_u64().filter(|count| *count == 1)
    });
    let mut config = proxy.config.clone();
    config["caches"]["pages"] = json!({"memory_max": "2m", "object_max": "10k"});
    assert_eq!(proxy.reload(&config).0, Some(0));
    get(&proxy, "/a", "");
    assert!(is_hit(&get(&proxy, "/a", "")));
    told.send(()).unwrap();
    assert_eq!(wire.response().status(), 200);
    assert!(!is_hit(&get(&proxy, "/a", "")));
}
