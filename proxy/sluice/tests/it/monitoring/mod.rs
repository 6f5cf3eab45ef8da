//! The alert rules and the dashboard that are shipped: judged by promtool, and loaded by a real Prometheus.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::{Origin, Setup, Wire, free_port, poll};

const RULES: &str = include_str!("../../../../../config/monitoring/alerts.yml");
const DASHBOARD: &str = include_str!("../../../../../config/monitoring/grafana-dashboard.json");
const RULES_TEST: &str = include_str!("alerts-test.yml");

/// A program, if it is installed; otherwise says so.
fn program(name: &str) -> Option<&str> {
    let found = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_ok_and(|status| status.success()) {
        return Some(name);
    }
    let _ = writeln!(std::io::stderr(), "skipped: {name} is not installed");
    None
}

/// A folder with the rules, removed at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("sluice-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("alerts.yml"), RULES).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn every_alert_fires() {
    let Some(promtool) = program("promtool") else { return };
    let folder = Folder::new("alerts");
    fs::write(folder.0.join("alerts-test.yml"), RULES_TEST).unwrap();
    let mut test = Command::new(promtool);
    let output = test.args(["test", "rules", "alerts-test.yml"]).current_dir(&folder.0).output().unwrap();
    let said = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned();
    assert!(output.status.success(), "{said}");
    // An alert that the test does not name could never fire.
    for alert in RULES.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(RULES_TEST.contains(&format!("\"{alert}\"")), "{alert} is not tested");
    }
}

/// A Prometheus, killed when dropped.
struct Prometheus {
    child: Child,
    port: u16,
}

impl Prometheus {
    fn start(program: &str, folder: &Path, target: &str) -> Self {
        let config = format!(
            "global: {{scrape_interval: 200ms, evaluation_interval: 200ms}}\nrule_files: [alerts.yml]\n\
             scrape_configs: [{{job_name: sluice, static_configs: [{{targets: ['{target}']}}]}}]\n"
        );
        fs::write(folder.join("prometheus.yml"), config).unwrap();
        let port = free_port();
        let mut command = Command::new(program);
        command.arg(format!("--web.listen-address=127.0.0.1:{port}")).arg("--storage.tsdb.path=data");
        command.arg("--config.file=prometheus.yml").current_dir(folder).stdin(Stdio::null());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let prometheus = Self { child, port };
        poll("Prometheus", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
        prometheus
    }

    fn get(&self, path: &str) -> Value {
        let mut wire = Wire::connect(([127, 0, 0, 1], self.port).into());
        let answer = wire.ask(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
        serde_json::from_slice(&answer.body).unwrap_or_default()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[test]
fn prometheus_loads_the_rules_and_answers_the_dashboard() {
    let Some(program) = program("prometheus") else { return };
    let origin = Origin::saying("hi");
    let admin = format!("127.0.0.1:{}", free_port());
    let Some(proxy) = Setup::to_origin(&origin).with("admin", admin.as_str()).start() else { return };
    let folder = Folder::new("prometheus");
    let prometheus = Prometheus::start(program, &folder.0, &admin);
    poll("a scrape of sluice", || {
        assert_eq!(proxy.get("/").text(), "hi");
        let up = prometheus.get("/api/v1/query?query=up");
        (up["data"]["result"][0]["value"][1] == "1").then_some(())
    });
    let rules = poll("the rules evaluated", || {
        let groups = prometheus.get("/api/v1/rules");
        let rules = groups["data"]["groups"][0]["rules"].as_array()?.clone();
        rules.iter().all(|rule| rule["health"] != "unknown").then_some(rules)
    });
    assert_eq!(rules.len(), RULES.matches("- alert: ").count());
    assert!(rules.iter().all(|rule| rule["health"] == "ok"), "{rules:?}");

    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut wire = Wire::connect(admin.parse().unwrap());
    let page = wire.ask(format!("GET /metrics HTTP/1.1\r\nHost: {admin}\r\n\r\n")).text().to_owned();
    let mut queries = 0;
    for target in
        dashboard["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array().unwrap())
    {
        let query = target["expr"].as_str().unwrap();
        for name in query
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .filter(|name| name.starts_with("sluice_"))
        {
            // Certificates are counted once there are some.
            assert!(page.contains(name) || name.contains("certificate"), "{name} is not a metric");
        }
        let query = query.replace("$__rate_interval", "1m").replace("$instance", ".*");
        let answer = prometheus.get(&format!("/api/v1/query?query={}", encoded(&query)));
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        queries += 1;
    }
    assert!(queries > 15, "{queries}");
}
