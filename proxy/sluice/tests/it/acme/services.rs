//! Services deployed with `--tls`: certificates that are issued, their own, and on demand.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::pebble::{Kind, Pebble, Ports, look};
use super::{attempts, issued, verify};
use crate::support::{Authority, Message, Origin, Proxy, Setup, ok, poll};

/// A proxy whose listeners serve services.
fn setup(origin: &Origin, ports: Ports, acme: Value) -> Setup {
    let listeners = json!([
        {"name": "main", "address": format!("127.0.0.1:{}", ports.http)},
        {"name": "secure", "address": format!("127.0.0.1:{}", ports.tls), "tls": {"services": true}},
    ]);
    let setup = Setup::to_origin(origin).with("listeners", listeners).with("acme", acme);
    let state = setup.folder.join("services.json").display().to_string();
    setup
        .with("routes", json!([{"name": "file", "hosts": ["file.test"], "cluster": "default"}]))
        .with("services", json!({"state_file": state}))
}

/// Runs a command on services through this control socket: exit code and output.
fn command(program: &Path, socket: &Path, line: &str) -> (Option<i32>, String) {
    let mut command = Command::new(program);
    command.args(line.split_whitespace()).env("SLUICE_CONTROL", socket).env("KAMAL_PROXY_SOCKET", socket);
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

fn sluice(proxy: &Proxy, line: &str) -> (Option<i32>, String) {
    command(Path::new(env!("CARGO_BIN_EXE_sluice")), &proxy.folder.join("control.sock"), line)
}

/// Runs a command that must succeed.
fn done(proxy: &Proxy, line: &str) {
    assert_eq!(sluice(proxy, line), (Some(0), String::new()), "{line}");
}

/// The result of curl with this scheme: status, Location, and the body.
fn fetch(ports: Ports, scheme: &str, host: &str, path: &str) -> String {
    let port = if scheme == "https" { ports.tls } else { ports.http };
    let mut curl = Command::new("curl");
    curl.args([
        "-sk",
        "-w",
        "%{http_code} %{redirect_url} ",
        "--resolve",
        &format!("{host}:{port}:127.0.0.1"),
    ]);
    let output = curl.arg(format!("{scheme}://{host}:{port}{path}")).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// An application: healthy on /up, and returns the scheme of the request.
fn app() -> Origin {
    Origin::answering(|request: &Message| match request.target() {
        "/up" => ok(""),
        target if target.starts_with("/may?") => {
            let good =
                target == "/may?key=1&host=good.example" && request.get("host") == Some("good.example");
            if good { ok("") } else { b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n".to_vec() }
        }
        _ => ok(&format!(" by {} ", request.get("x-forwarded-proto").unwrap_or_default())),
    })
}

#[test]
fn hosts_of_a_service_have_certificates_until_removed() {
    let (ports, origin, app) = (Ports::new(), Origin::saying("hi"), app());
    let Some(pebble) = Pebble::start(ports, &Kind::default()) else { return };
    let setup = setup(&origin, ports, pebble.config());
    let Some(proxy) = setup.start() else { return };
    assert!(look(ports.tls, "a.example").is_none(), "no certificate to serve");
    let deploy = format!("deploy web --target {} --host a.example,b.example --tls", app.endpoint);
    done(&proxy, &deploy);
    for name in ["a.example", "b.example"] {
        verify(&issued(ports, name), name, &pebble);
    }
    assert!(fetch(ports, "https", "a.example", "/x").contains(" by https"), "served");
    let sent = fetch(ports, "http", "b.example", "/x?y=1");
    assert!(sent.contains("301 https://b.example/x?y=1 "), "{sent}");
    done(&proxy, &format!("{deploy} --tls-redirect=false"));
    assert!(fetch(ports, "http", "a.example", "/x").contains(" by http "), "not redirected");
    assert!(sluice(&proxy, "list").1.contains("yes"));

    // A restart knows the service, and orders nothing.
    let config = proxy.config.clone();
    let folder = proxy.folder.clone();
    let kept = fs::read(folder.join("services.json")).unwrap();
    drop(proxy);
    let setup = super::services::setup(&origin, ports, pebble.config());
    fs::write(setup.folder.join("services.json"), kept).unwrap();
    let proxy = setup.start().unwrap();
    assert_eq!(proxy.config["acme"], config["acme"]);
    assert!(look(ports.tls, "a.example").unwrap().is_issued_for("a.example"));
    assert_eq!(proxy.said("no certificate yet"), 0);

    // A reload of the file does not affect it.
    assert_eq!(proxy.reload(&proxy.config).0, Some(0));
    assert!(look(ports.tls, "b.example").unwrap().is_issued_for("b.example"));
    done(&proxy, &format!("deploy web --target {} --host b.example --tls", app.endpoint));
    poll("the end of a.example", || {
        look(ports.tls, "a.example").filter(|shown| shown.names == ["b.example"])
    });
    done(&proxy, "remove web");
    poll("the end of b.example", || look(ports.tls, "b.example").is_none().then_some(()));
    assert_eq!((attempts(&proxy, "issued"), attempts(&proxy, "failed")), (0.0, 0.0));
}

#[test]
fn a_service_may_use_another_authority() {
    let (ports, origin, app) = (Ports::new(), Origin::saying("hi"), app());
    let Some(pebble) = Pebble::start(ports, &Kind::default()) else { return };
    let other = Pebble::start(ports, &Kind::default()).unwrap();
    let both = [pebble.ca_file(), other.ca_file()].map(|file| fs::read_to_string(file).unwrap()).concat();
    let mut acme = pebble.config();
    let ca_file = pebble.path("both.pem");
    fs::write(&ca_file, both).unwrap();
    acme["ca_file"] = json!(ca_file);
    let Some(proxy) = setup(&origin, ports, acme).start() else { return };
    let deploy = |name: &str| format!("deploy {name} --target {} --host {name}.example --tls", app.endpoint);
    done(&proxy, &deploy("a"));
    done(&proxy, &format!("{} --tls-acme-directory {}", deploy("b"), other.url));
    verify(&issued(ports, "a.example"), "a.example", &pebble);
    let first = issued(ports, "b.example");
    verify(&first, "b.example", &other);
    // Back to the configured authority: the other's certificate is served until a new one is issued.
    done(&proxy, &deploy("b"));
    let second = poll("a certificate of the first authority", || {
        let shown = look(ports.tls, "b.example").unwrap();
        assert!(shown.is_issued_for("b.example"), "{shown:?}");
        (shown != first).then_some(shown)
    });
    verify(&second, "b.example", &pebble);
    assert_eq!((attempts(&proxy, "issued"), attempts(&proxy, "failed")), (3.0, 0.0));
}

#[test]
fn a_service_brings_its_own_certificate() {
    let (ports, origin, app) = (Ports::new(), Origin::saying("hi"), app());
    let Some(proxy) = setup(&origin, ports, json!("off")).start() else { return };
    let authority = Authority::new();
    let identity = authority.identity(&["*.a.example"]);
    let (cert, key) = (proxy.folder.join("own.pem"), proxy.folder.join("own.key"));
    fs::write(&cert, &identity.cert_pem).unwrap();
    fs::write(&key, &identity.key_pem).unwrap();
    let deploy = |cert: &Path| {
        let files =
            format!("--tls-certificate-path {} --tls-private-key-path {}", cert.display(), key.display());
        format!("deploy web --target {} --host *.a.example --tls {files}", app.endpoint)
    };
    let (code, said) = sluice(&proxy, &deploy(Path::new("/nowhere/own.pem")));
    assert!(
        code == Some(1) && said.starts_with("Error: unable to load certificate\n/nowhere/own.pem"),
        "{said}"
    );
    assert_eq!(sluice(&proxy, "list").1.lines().count(), 1, "nothing is deployed");
    done(&proxy, &deploy(&cert));
    assert_eq!(look(ports.tls, "x.a.example").unwrap().names, ["*.a.example"]);
    assert!(fetch(ports, "https", "x.a.example", "/").contains("200 "), "served");

    // Without an authority no other certificate can be obtained.
    let (code, said) = sluice(&proxy, &format!("deploy b --target {} --host b.example --tls", app.endpoint));
    assert!(code == Some(1) && said.contains("no certificate authority is configured"), "{said}");
    // A certificate that is gone now does not block other services.
    fs::remove_file(&key).unwrap();
    done(&proxy, &format!("deploy plain --target {} --host plain.example", app.endpoint));
    assert_eq!(proxy.reload(&proxy.config).0, Some(0));
    assert!(fetch(ports, "http", "plain.example", "/").contains("200 "), "served");
}

#[test]
fn the_application_approves_on_demand_names() {
    let (ports, origin, app) = (Ports::new(), Origin::saying("hi"), app());
    let Some(pebble) = Pebble::start(ports, &Kind::default()) else { return };
    let Some(proxy) = setup(&origin, ports, pebble.config()).start() else { return };
    let deploy = format!("deploy web --target {} --tls --tls-on-demand-url", app.endpoint);
    let (code, said) = sluice(&proxy, &format!("{deploy} ftp://a.example/may"));
    assert!(code == Some(1) && said.contains("is not a URL"), "{said}");
    let (code, said) = sluice(&proxy, &format!("{deploy} /may --host a.example"));
    assert!(code == Some(1) && said.contains("cannot set hosts when using a TLS on-demand URL"), "{said}");
    done(&proxy, &format!("{deploy} /may?key=1"));
    assert!(look(ports.tls, "bad.example").is_none() && look(ports.tls, "good.example").is_none());
    issued(ports, "good.example");
    assert!(fetch(ports, "https", "good.example", "/").contains(" by https"), "served");
    assert!(!pebble.log().contains("bad.example"));
}

/// As Kamal runs it, with another authority than Let's Encrypt.
#[test]
fn kamal_proxy_serves_https() {
    let (ports, app) = (Ports::new(), app());
    let Some(pebble) = Pebble::start(ports, &Kind::default()) else { return };
    if Setup::to(&["127.0.0.1:1"]).start().is_none() {
        return;
    }
    let (program, socket) = (pebble.path("kamal-proxy"), pebble.path("kamal.sock"));
    symlink(env!("CARGO_BIN_EXE_sluice"), &program).unwrap();
    let mut run = Command::new(&program);
    run.args(["run", "--http-port", &ports.http.to_string(), "--https-port", &ports.tls.to_string()]);
    run.env_clear().env("HOME", pebble.path("home")).env("KAMAL_PROXY_SOCKET", &socket);
    run.env("ACME_DIRECTORY", &pebble.url).env("KAMAL_PROXY_ACME_CA_FILE", pebble.ca_file());
    let log = fs::File::create(pebble.path("kamal.log")).unwrap();
    let mut server = run.stdout(Stdio::null()).stderr(log).spawn().unwrap();
    poll("the control socket", || socket.exists().then_some(()));
    let deploy = format!("deploy web --target={} --host=a.example --tls", app.endpoint);
    assert_eq!(command(&program, &socket, &deploy), (Some(0), String::new()));
    verify(&issued(ports, "a.example"), "a.example", &pebble);
    assert!(fetch(ports, "https", "a.example", "/").contains(" by https"), "served");
    let home = pebble.path("home/.config/kamal-proxy/acme");
    assert!(home.is_dir(), "certificates are next to the state file");
    server.kill().unwrap();
    server.wait().unwrap();
}
