//! Certificates of listeners: what is reported about them, and how they are replaced at run time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use serde_json::{Value, json};

use crate::support::{Origin, Proxy, Setup, poll};

/// Writes NAME.pem and NAME.key, replacing existing files.
fn write(folder: &Path, name: &str, params: &CertificateParams) {
    let key = KeyPair::generate().unwrap();
    for (end, text) in [("key", key.serialize_pem()), ("pem", params.self_signed(&key).unwrap().pem())] {
        let next = folder.join("next");
        fs::write(&next, text).unwrap();
        fs::rename(next, folder.join(format!("{name}.{end}"))).unwrap();
    }
}

fn of(host: &str) -> CertificateParams {
    CertificateParams::new(vec![host.to_owned()]).unwrap()
}

fn pair(folder: &Path, name: &str) -> Value {
    json!({"cert": folder.join(format!("{name}.pem")), "key": folder.join(format!("{name}.key"))})
}

/// A proxy with a second listener, which speaks TLS with the certificate in web.pem.
fn with_tls(setup: Setup, tls: Value) -> Setup {
    let listeners = json!([
        {"name": "main", "address": "127.0.0.1:0"},
        {"name": "secure", "address": "127.0.0.1:0", "tls": tls},
    ]);
    setup.with("listeners", listeners)
}

/// The names on the status page.
fn shown(proxy: &Proxy) -> Vec<String> {
    let document: Value = serde_json::from_slice(&proxy.admin("/status.json").body).unwrap();
    let certificates = document["fixed"]["certificates"].as_array().unwrap();
    certificates.iter().map(|one| one["names"][0].as_str().unwrap().to_owned()).collect()
}

fn expiry(proxy: &Proxy, name: &str) -> Option<f64> {
    let answer = proxy.admin("/metrics");
    let series = format!("sluice_tls_certificate_expiry_seconds{{listener=\"secure\",name=\"{name}\"}} ");
    answer.text().lines().find_map(|line| line.strip_prefix(series.as_str()))?.parse().ok()
}

#[test]
fn renewed_certificates_are_loaded_and_broken_ones_are_not() {
    let origin = Origin::saying("hi");
    let setup = Setup::to_origin(&origin);
    let folder = setup.folder.clone();
    let mut old = of("old.example");
    old.not_after = date_time_ymd(2100, 1, 1);
    write(&folder, "web", &old);
    let tls = json!({"certificates": [pair(&folder, "web")], "watch_interval_ms": 50});
    let Some(proxy) = with_tls(setup, tls).start() else { return };
    assert_eq!(shown(&proxy), ["old.example"]);
    assert_eq!(expiry(&proxy, "old.example"), Some(4_102_444_800.0));
    write(&folder, "web", &of("new.example"));
    poll("the new certificate", || (shown(&proxy) == ["new.example"]).then_some(()));
    fs::write(folder.join("web.pem"), "no certificate").unwrap();
    let line = proxy.line("cannot use a certificate; the previous one stays in use");
    assert!(line["problem"].as_str().unwrap().contains("web.pem: contains no certificate"), "{line}");
    assert_eq!(shown(&proxy), ["new.example"]);
    let (code, said) = proxy.reload(&proxy.config);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("listeners[1].tls.certificates[0]: ")
            && said.contains("web.pem: contains no certificate"),
        "{said}"
    );
    assert_eq!(shown(&proxy), ["new.example"]);
}

#[test]
fn a_reload_reads_certificates_at_once() {
    let origin = Origin::saying("hi");
    let setup = Setup::to_origin(&origin);
    let folder = setup.folder.clone();
    write(&folder, "a", &of("a.example"));
    write(&folder, "b", &of("b.example"));
    let tls = json!({"certificates": [pair(&folder, "a")], "watch_interval_ms": 0});
    let Some(proxy) = with_tls(setup, tls).start() else { return };
    write(&folder, "a", &of("again.example"));
    let mut config = proxy.config.clone();
    config["listeners"][1]["tls"]["certificates"] = json!([pair(&folder, "a"), pair(&folder, "b")]);
    assert_eq!(proxy.reload(&config).0, Some(0));
    let mut names = shown(&proxy);
    names.sort();
    assert_eq!(names, ["again.example", "b.example"]);
}

fn sluice(command: &str, folder: &Path, tls: &Value) -> Output {
    let config = json!({
        "listeners": [{"address": "127.0.0.1:0", "tls": tls}],
        "clusters": {"a": {"endpoints": ["127.0.0.1:1"]}},
        "control": "off",
    });
    let file = folder.join("sluice.yaml");
    fs::write(&file, format!("{config:#}\n")).unwrap();
    Command::new(env!("CARGO_BIN_EXE_sluice")).args([command, "--config"]).arg(file).output().unwrap()
}

/// A folder that is removed with the test.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn check_and_startup_report_the_file_and_the_problem() {
    let folder = Folder(std::env::temp_dir().join(format!("sluice-certificates-{}", std::process::id())));
    let folder = &folder.0;
    fs::create_dir_all(folder).unwrap();
    let mut old = of("a.example");
    (old.not_before, old.not_after) = (date_time_ymd(2019, 1, 1), date_time_ymd(2020, 1, 1));
    write(folder, "old", &old);
    write(folder, "other", &of("a.example"));
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let output = sluice("check", folder, &json!({"certificates": [pair(folder, "old")]}));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("warning: listeners[0].tls.certificates[0]: ") && said.contains("old.pem: expired"),
        "{said}"
    );
    let mixed = json!({"cert": folder.join("old.pem"), "key": folder.join("other.key")});
    for (command, code) in [("check", 2), ("run", 1)] {
        let output = sluice(command, folder, &json!({"certificates": [mixed]}));
        let said = text(&output.stderr);
        if said.contains("io_uring") {
            eprintln!("skipped: {said}");
            return;
        }
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains("listeners[0].tls.certificates[0]: "), "{said}");
        assert!(said.contains("other.key: the key does not match"), "{said}");
    }
}

#[test]
fn missing_files_are_reported_with_lines_and_other_mistakes() {
    let folder = Folder(std::env::temp_dir().join(format!("sluice-missing-{}", std::process::id())));
    fs::create_dir_all(&folder.0).unwrap();
    let file = folder.0.join("sluice.yaml");
    let text = "listeners:\n- address: 127.0.0.1:0\n  tls:\n    certificates:\n    - cert: /no/a.pem\n      key: /no/a.key\n\
                \x20   - folder: /no/folder\nclusters: {a: {endpoints: [\"127.0.0.1:1\"]}}\n\
                routes: [{cluster: a, path_prefix: b}]\n";
    fs::write(&file, text).unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_sluice")).args(["check", "--config"]).arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    let file = file.display();
    let certificates = "listeners[0].tls.certificates";
    for wanted in [
        format!("{file}:5: {certificates}[0].cert: /no/a.pem does not exist; create it first"),
        format!("{file}:6: {certificates}[0].key: /no/a.key does not exist; create it first"),
        format!("{file}:7: {certificates}[1].folder: /no/folder does not exist; create it first"),
        format!("{file}:9: routes[0].path_prefix: "),
    ] {
        assert!(said.lines().any(|line| line.starts_with(&wanted)), "{wanted}\n{said}");
    }
}

#[test]
fn a_plain_listener_redirects_to_https() {
    let origin = Origin::saying("hi");
    let Some(proxy) = Setup::to_origin(&origin).with("listeners.0.redirect_to_https", "on").start() else {
        return;
    };
    let ask = |request: &str| proxy.connect().ask(request);
    let cases = [
        ("GET /a?b=c HTTP/1.1\r\nHost: a.example:8080\r\n\r\n", 301, "https://a.example/a?b=c"),
        ("HEAD / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", 301, "https://[::1]/"),
        ("POST /x HTTP/1.1\r\nHost: a.example\r\nContent-Length: 2\r\n\r\nhi", 308, "https://a.example/x"),
        ("OPTIONS * HTTP/1.1\r\nHost: a.example\r\n\r\n", 308, "https://a.example/"),
    ];
    for (request, status, location) in cases {
        let answer = ask(request);
        assert_eq!((answer.status(), answer.get("location")), (status, Some(location)), "{request}");
        assert_eq!(answer.get("strict-transport-security"), None, "not over http (RFC 6797 7.2)");
    }
    assert_eq!(ask("GET / HTTP/1.0\r\n\r\n").status(), 400, "without a host there is no target");
    let by_https = "GET / HTTP/1.1\r\nHost: a.example\r\nX-Forwarded-Proto: https\r\n\r\n";
    assert_eq!(ask(by_https).status(), 301, "any client can claim this");
    let mut config = proxy.config.clone();
    config["listeners"][0]["redirect_to_https"] = json!({"port": 8443});
    assert_eq!(proxy.reload(&config).0, Some(0));
    let answer = ask("GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(answer.get("location"), Some("https://a.example:8443/a"));
    config["trusted_proxies"] = json!(["127.0.0.1"]);
    assert_eq!(proxy.reload(&config).0, Some(0));
    assert_eq!(ask(by_https).text(), "hi", "a trusted proxy that terminates TLS is believed");
}
