//! Commands of the binary: their output and exit codes.

use std::process::{Command, Output};

fn sluice(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/sluice.yaml");

#[test]
fn check_says_ok() {
    let output = sluice(&["check", "--config", DEMO]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), format!("{DEMO}: ok\n").as_str()));
}

#[test]
fn check_prints_every_mistake_and_exits_with_2() {
    let output = sluice(&["check", "--config", DEMO, "--set", "via=1", "--set", "workers=0"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""));
    assert_eq!(
        text(&output.stderr),
        "--set: via: 1 is a number; write true or false\n\
         --set: workers: 0 is out of range; write auto, or a whole number from 1 to 256\n"
    );
    let missing = sluice(&["run", "--config", "no/such/file.yaml"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).starts_with("no/such/file.yaml: cannot be opened: "));
}

#[test]
fn config_prints_the_effective_configuration() {
    let output = sluice(&["config", "--config", DEMO, "--set", "clusters.demo.connect_timeout_ms=77"]);
    assert_eq!(output.status.code(), Some(0));
    let shown = text(&output.stdout);
    assert!(shown.contains("connect_timeout: 77ms\n") && shown.contains("response_timeout: 1m\n"));
    let back = sluice_config::parse("shown", shown, &[]).unwrap();
    assert_eq!(sluice_config::to_yaml(&back), shown);
}

#[test]
fn usage_errors_exit_with_2() {
    for args in [&[][..], &["nonsense"], &["run"], &["check"], &["check", "--config", DEMO, "--set", "x"]] {
        assert_eq!(sluice(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn version_and_completions() {
    let output = sluice(&["version"]);
    assert_eq!(text(&output.stdout), concat!("sluice ", env!("CARGO_PKG_VERSION"), "\n"));
    for shell in ["bash", "zsh", "fish"] {
        let output = sluice(&["completions", shell]);
        assert!(output.status.success() && text(&output.stdout).contains("sluice"), "{shell}");
    }
}
