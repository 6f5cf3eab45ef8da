//! What is shipped with the binary: the manual pages, the systemd unit, the package scripts, the container file.
//! Checked with external programs where they are installed.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{Origin, Setup};

const BINARY: &str = env!("CARGO_BIN_EXE_sluice");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn shipped(name: &str) -> PathBuf {
    root().join("config/packaging").join(name)
}

/// A folder that is removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("sluice-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs a program; `None`, with a note on standard error, if it is not installed.
fn judged(command: &mut Command) -> Option<Output> {
    match command.output() {
        Ok(output) => Some(output),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "skipped: {:?}: {error}", command.get_program());
            None
        }
    }
}

/// All output of a command.
fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

#[test]
fn manual_pages_have_no_warnings() {
    let folder = Folder::new("man");
    assert!(Command::new(BINARY).arg("man").arg(&folder.0).status().unwrap().success());
    let pages: Vec<PathBuf> = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(pages.len() > 8, "{pages:?}");
    for page in &pages {
        // Typeset with all warnings; the output is discarded.
        let Some(output) = judged(Command::new("groff").args(["-man", "-Tutf8", "-wall", "-z"]).arg(page))
        else {
            break;
        };
        assert_eq!((output.status.success(), said(&output)), (true, String::new()), "{}", page.display());
    }
    for page in &pages {
        let lint = ["-Tlint", "-Werror"];
        let Some(output) = judged(Command::new("mandoc").args(lint).arg(page)) else { break };
        assert_eq!((output.status.success(), said(&output)), (true, String::new()), "{}", page.display());
    }
}

#[test]
fn the_unit_is_accepted_by_systemd() {
    let folder = Folder::new("unit");
    let unit = fs::read_to_string(shipped("sluice.service")).unwrap();
    // Nothing is installed, and a missing binary would be an error.
    let unit = unit.replace("/usr/bin/sluice", BINARY);
    let file = folder.0.join("sluice.service");
    fs::write(&file, unit).unwrap();
    let verify = ["verify", "--man=no", "--recursive-errors=no"];
    let Some(output) = judged(Command::new("systemd-analyze").args(verify).arg(&file)) else { return };
    assert_eq!((output.status.success(), said(&output)), (true, String::new()));
    let security = ["security", "--offline=yes", "--no-pager", "--threshold=25"];
    let output = Command::new("systemd-analyze").args(security).arg(&file).output().unwrap();
    assert!(output.status.success(), "the unit is more exposed than 2.5:\n{}", said(&output));
}

#[test]
fn the_unit_has_exactly_the_capabilities_doctor_requires() {
    let unit = fs::read_to_string(shipped("sluice.service")).unwrap();
    let words = |key: &str| -> BTreeSet<String> {
        let line = unit.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.split(' ').map(str::to_owned).collect()
    };
    let report = Command::new(BINARY).args(["doctor", "--json"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    let asked = report["areas"]["capabilities"].as_object().unwrap().keys();
    let mut asked: BTreeSet<String> =
        asked.filter(|name| name.starts_with("cap_")).map(|name| name.to_ascii_uppercase()).collect();
    // It includes others on old kernels; binding ports below 1024 is unrelated to assists.
    asked.remove("CAP_SYS_ADMIN");
    asked.insert("CAP_NET_BIND_SERVICE".to_owned());
    assert_eq!(words("AmbientCapabilities="), asked);
    assert_eq!(words("CapabilityBoundingSet="), asked);
}

#[test]
fn files_listed_by_the_package_exist() {
    let manifest = fs::read_to_string(root().join("proxy/sluice/Cargo.toml")).unwrap();
    let listed = manifest.lines().filter_map(|line| line.trim().strip_prefix("[\"../../"));
    let listed: Vec<&str> = listed.map(|rest| rest.split('"').next().unwrap()).collect();
    assert!(listed.len() > 6, "{listed:?}");
    for name in listed {
        let path = root().join(
            name.replace("/*.md", "")
                .replace("/*.yaml", "")
                .replace("/*.bt", "")
                .replace("/*.yml", "")
                .replace("/*.json", ""),
        );
        assert!(path.exists(), "{name}");
    }
    for script in ["postinst", "prerm", "postrm"] {
        let path = shipped("debian").join(script);
        assert!(Command::new("sh").arg("-n").arg(&path).status().unwrap().success(), "{script}");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o111, 0o111, "{script}");
    }
}

#[test]
fn files_copied_by_the_container_exist() {
    let text = fs::read_to_string(shipped("Containerfile")).unwrap();
    let copied = text.lines().filter_map(|line| line.strip_prefix("COPY "));
    for line in copied.filter(|line| !line.starts_with("--from")) {
        let name = line.split(' ').next().unwrap();
        assert!(root().join(name).exists(), "{name}");
    }
    for line in ["ENTRYPOINT [\"sluice\"]", "CMD [\"run\", \"--config\", \"/etc/sluice/sluice.yaml\"]"] {
        assert!(text.lines().any(|one| one == line), "{line}");
    }
}

#[test]
fn the_account_is_accepted_by_systemd() {
    let folder = Folder::new("account");
    fs::create_dir(folder.0.join("etc")).unwrap();
    let root = format!("--root={}", folder.0.display());
    let made = judged(Command::new("systemd-sysusers").arg(root).arg(shipped("sysusers.conf")));
    let Some(output) = made else { return };
    assert!(output.status.success(), "{}", said(&output));
    let accounts = fs::read_to_string(folder.0.join("etc/passwd")).unwrap();
    assert!(accounts.starts_with("sluice:") && accounts.trim_end().ends_with("nologin"), "{accounts}");
}

#[test]
fn healthcheck_reports_whether_sluice_serves() {
    let origin = Origin::saying("hi");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let admin = format!("unix:{}", proxy.folder.join("admin.sock").display());
    let file = proxy.folder.join("sluice.yaml").display().to_string();
    for args in [["--admin", &admin], ["--config", &file]] {
        let output = Command::new(BINARY).arg("healthcheck").args(args).output().unwrap();
        assert_eq!((output.status.code(), said(&output)), (Some(0), "ok\n".to_owned()));
    }
    drop(proxy);
    let output = Command::new(BINARY).args(["healthcheck", "--admin", &admin]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("cannot be reached"), "{}", said(&output));
    let output = Command::new(BINARY).args(["healthcheck", "--config", "no/such.yaml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
