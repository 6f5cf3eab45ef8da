//! State files on disk, each test in its own directory.
#![allow(clippy::unwrap_used)]

use std::fs;

use sluice_config::Balance;
use sluice_core::cluster::fake::seed;

use super::*;

struct Directory(PathBuf);

impl Directory {
    fn new(test: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("sluice-state-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Directory(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("state.json")
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn cluster(name: &str, file: &Path, checked: bool) -> Arc<Cluster> {
    let mut config = sluice_core::cluster::fake::config(Balance::LeastRequests, false);
    config.state_file = Some(file.to_owned());
    config.health_check = checked.then(crate::health::tests::config);
    Arc::new(Cluster::new(name, config, vec![seed(1), seed(2)]))
}

fn health(cluster: &Cluster) -> Vec<(bool, u64)> {
    let endpoints = cluster.endpoints();
    endpoints.iter().map(|endpoint| (endpoint.active_health(), endpoint.health_since_unix_s())).collect()
}

#[test]
fn health_survives_in_a_shared_file() {
    let directory = Directory::new("shared");
    let make = || ["a", "b"].map(|name| cluster(name, &directory.file(), true));
    let before = make();
    before[0].endpoints()[1].set_active_health(false, 77);
    before[1].endpoints()[0].set_active_health(false, 88);
    save(&before);
    let after = make();
    restore(&after);
    assert_eq!(health(&after[0]), [(true, 0), (false, 77)]);
    assert_eq!(health(&after[1]), [(false, 88), (true, 0)]);
    assert_eq!(directory.names(), ["state.json"]);
}

#[test]
fn a_missing_file_is_ignored() {
    let directory = Directory::new("missing");
    let clusters = [cluster("a", &directory.file(), true)];
    restore(&clusters);
    assert_eq!(health(&clusters[0]), [(true, 0), (true, 0)]);
    assert!(directory.names().is_empty());
}

#[test]
fn a_damaged_file_is_set_aside() {
    let later = br#"{"version": 2, "clusters": []}"#.to_vec();
    let large = vec![b' '; FILE_BYTES_MAX as usize + 1];
    let half = br#"{"version": 1, "clusters": {"a": {"192.0.2.1:1": {"hea"#.to_vec();
    for content in [later, large, half, Vec::new(), vec![0xff, 0]] {
        let directory = Directory::new("damaged");
        fs::write(directory.file(), &content).unwrap();
        let clusters = [cluster("a", &directory.file(), true)];
        restore(&clusters);
        assert_eq!(health(&clusters[0]), [(true, 0), (true, 0)]);
        assert_eq!(directory.names(), ["state.json.damaged"]);
        assert_eq!(fs::read(directory.0.join("state.json.damaged")).unwrap(), content);
        save(&clusters);
        assert!(read(&directory.file()).unwrap().is_some());
    }
}

#[test]
fn a_directory_in_place_of_the_file_is_left_alone() {
    let directory = Directory::new("folder");
    fs::create_dir(directory.file()).unwrap();
    let clusters = [cluster("a", &directory.file(), true)];
    restore(&clusters);
    save(&clusters);
    assert_eq!(directory.names(), ["state.json"]);
}

#[test]
fn a_cluster_without_checks_keeps_no_state() {
    let directory = Directory::new("unchecked");
    let checked = [cluster("a", &directory.file(), true)];
    checked[0].endpoints()[0].set_active_health(false, 5);
    save(&checked);
    let unchecked = [cluster("a", &directory.file(), false)];
    restore(&unchecked);
    assert_eq!(health(&unchecked[0]), [(true, 0), (true, 0)]);
}

#[tokio::test]
async fn only_changes_are_written() {
    let directory = Directory::new("changes");
    let cluster = cluster("a", &directory.file(), true);
    let mut written = Written::new((directory.file(), vec![Arc::clone(&cluster)]));
    written.write_if_changed().await;
    fs::remove_file(directory.file()).unwrap();
    written.write_if_changed().await;
    assert!(directory.names().is_empty());
    cluster.endpoints()[0].set_active_health(false, 9);
    written.write_if_changed().await;
    let state = read(&directory.file()).unwrap().unwrap();
    assert_eq!(state, State::of(&[cluster]));
}

#[tokio::test(start_paused = true)]
async fn run_writes_and_retries() {
    let directory = Directory::new("running");
    let folder = directory.0.join("later");
    let cluster = cluster("a", &folder.join("state.json"), true);
    let running = tokio::spawn(run(vec![cluster]));
    tokio::time::sleep(WRITE_PERIOD * 3).await;
    fs::create_dir(&folder).unwrap();
    while !folder.join("state.json").exists() {
        tokio::time::sleep(WRITE_PERIOD).await;
    }
    running.abort();
}
