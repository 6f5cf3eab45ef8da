//! Saved services load again, a damaged file is renamed, and a kill leaves the old or the new state.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::service::duration::GoDuration;
use crate::service::model::{Pause, PauseState};
use crate::service::rollout::Rollout;

/// A folder for one test, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("sluice-services-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn file(&self) -> StateFile {
        StateFile { path: self.0.join("services.json"), kamal: Some(self.0.join("kamal-proxy.state")) }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn without_a_file_there_are_no_services() {
    assert_eq!(Folder::new().file().load().unwrap().0, Services::default());
}

#[test]
fn a_damaged_file_is_set_aside() {
    for (content, said) in [
        ("{\"version\": 1, \"serv", "EOF while parsing"),
        ("", "EOF while parsing"),
        ("{\"version\": 2}", "it has version 2; this release reads version 1"),
        ("{\"version\": 1, \"services\": [{\"name\": \"\"}]}", "a service has no name"),
        ("{\"version\": 1, \"services\": [{\"name\": \"a\"}, {\"name\": \"a\"}]}", "twice"),
        ("{\"version\": 1, \"services\": [{\"name\": \"a\"}, {\"name\": \"b\"}]}", "host settings conflict"),
        (
            "{\"version\": 1, \"services\": [{\"name\": \"a\", \"pause_controller\": {\"state\": 3}}]}",
            "not a pause state",
        ),
    ] {
        let folder = Folder::new();
        let file = folder.file();
        std::fs::write(&file.path, content).unwrap();
        let error = file.load().unwrap_err().to_string();
        assert!(error.contains(said) && error.contains("services.json.damaged"), "{error}");
        assert_eq!(std::fs::read_to_string(folder.0.join("services.json.damaged")).unwrap(), content);
        assert_eq!(file.load().unwrap().0, Services::default());
    }
}

#[test]
fn kamal_proxys_state_is_imported_and_left_unchanged() {
    let folder = Folder::new();
    let file = folder.file();
    let kamal = file.kamal.clone().unwrap();
    // As written by kamal-proxy 0.9.2, plus one service in its legacy format.
    let content = r#"[{"name":"b","options":{"hosts":[""],"path_prefixes":["/"],"tls_enabled":false,
        "tls_certificate_path":"","tls_private_key_path":"","tls_redirect":true,"canonical_host":"",
        "acme_directory":"","acme_cache_path":"/srv/certs","error_page_path":"",
        "strip_prefix":true,"writer_affinity_timeout":1000000000,"read_targets_accept_websockets":false},
        "target_options":{"health_check_config":{"path":"/up","port":0,"interval":1000000000,
        "timeout":5000000000,"host":""},"response_timeout":30000000000,"buffer_requests":false,
        "buffer_responses":false,"max_memory_buffer_size":1048576,"max_request_body_size":0,
        "max_response_body_size":0,"log_request_headers":null,"log_response_headers":null,
        "forward_headers":true,"scope_cookie_paths":false},"active_targets":["127.0.0.1:1","127.0.0.1:2"],
        "active_readers":["127.0.0.1:3"],"rollout_targets":null,"rollout_readers":null,
        "pause_controller":{"state":2,"stop_message":"gone \u003cb\u003e","fail_after":0},
        "rollout_controller":null},
        {"name":"old","hosts":["example.com"],"path_prefixes":["/api"],"active_target":"web:80",
        "rollout_target":"","options":{},"target_options":{},"pause_controller":null,
        "rollout_controller":{"percentage":50,"percentage_split_point":2147483647.5,"allowlist":null}}]"#;
    std::fs::write(&kamal, content).unwrap();
    let services = file.load().unwrap().0;
    let service = services.get("b").unwrap();
    assert_eq!(service.targets(), ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]);
    assert_eq!(service.pause_controller, Pause::stopped("gone <b>".to_owned()));
    assert_eq!(service.target_options.response_timeout, GoDuration::from_secs(30));
    assert!(service.target_options.forward_headers);
    let old = services.get("old").unwrap();
    assert_eq!(
        (old.options.hosts.as_slice(), old.targets()),
        (&["example.com".to_owned()][..], vec!["web:80"])
    );
    assert_eq!(old.rollout_controller, Some(Rollout::new(50, Vec::new())));
    file.save(&services, None).unwrap();
    assert_eq!(std::fs::read_to_string(&kamal).unwrap(), content);
    std::fs::remove_file(&kamal).unwrap();
    assert_eq!(file.load().unwrap().0, services);
}

fn any_service() -> impl Strategy<Value = Service> {
    let state = prop_oneof![Just(PauseState::Running), Just(PauseState::Paused), Just(PauseState::Stopped)];
    let target = "[a-z]{2,8}:[1-9][0-9]{0,3}";
    let targets = || prop::collection::vec(target, 0..4);
    let rollout = prop::option::of((0..=100_i64, prop::collection::vec("\\PC{0,6}", 0..3)));
    ("\\PC{1,10}", state, "\\PC{0,20}", any::<i64>(), targets(), targets(), targets(), rollout, any::<bool>())
        .prop_map(|(name, state, message, nanos, active, readers, others, rollout, strip)| {
            let mut service = Service {
                active_targets: active,
                active_readers: readers,
                rollout_targets: others,
                pause_controller: Pause { state, stop_message: message, fail_after: GoDuration(nanos) },
                rollout_controller: rollout.map(|(percentage, list)| Rollout::new(percentage, list)),
                ..Service::default()
            };
            // A unique host for each: two services on one host are refused.
            service.options.hosts = vec![format!("{name}.test")];
            service.options.strip_prefix = strip;
            service.options.normalize();
            service.name = name;
            service
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn saved_services_load_again(services in prop::collection::vec(any_service(), 0..5)) {
        let services: Services = services.into_iter().collect();
        let folder = Folder::new();
        folder.file().save(&services, None).unwrap();
        prop_assert_eq!(folder.file().load().unwrap().0, services);
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = (parse(&bytes), parse_kamal(&bytes));
    }
}

/// Names the file for the process that [`after_a_kill_the_state_is_the_old_or_the_new`] kills.
const WRITES_TO: &str = "SLUICE_TEST_STATE";

fn numbered(number: usize) -> Services {
    let service = |index: usize| {
        let mut service = Service { name: format!("service-{number}-{index}"), ..Service::default() };
        service.options.hosts = vec![format!("{index}.test")];
        service.options.normalize();
        service
    };
    // Of varying size, so that a mixture of two states is detected.
    (0..1 + number % 2 * 40).map(service).collect()
}

#[test]
fn writer_process_for_the_kill_test() {
    let Some(path) = std::env::var_os(WRITES_TO) else {
        return;
    };
    let file = StateFile { path: path.into(), kamal: None };
    for number in 0.. {
        file.save(&numbered(number), None).unwrap();
        println!("written");
    }
}

#[test]
fn after_a_kill_the_state_is_the_old_or_the_new() {
    let folder = Folder::new();
    let file = StateFile { kamal: None, ..folder.file() };
    file.save(&numbered(0), None).unwrap();
    for round in 0..100_u32 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "service::state::tests::writer_process_for_the_kill_test", "--nocapture"])
            .env(WRITES_TO, &file.path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("written")), "the writer has ended");
        // Somewhere during the following writes; the exact moment is random.
        std::thread::sleep(Duration::from_micros(u64::from(round % 50) * 40));
        child.kill().unwrap();
        child.wait().unwrap();
        let services = file.load().unwrap().0;
        let whole = [1, 41].contains(&services.iter().count());
        assert!(whole, "round {round}: {} services", services.iter().count());
    }
}
