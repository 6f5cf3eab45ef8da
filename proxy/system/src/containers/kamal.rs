//! The image as Kamal's proxy: the commands of Kamal 2 in its order, as `lib/kamal/commands/proxy.rb` and
//! `commands/app/proxy.rb` of Kamal 2.12 make them. `docker run` and `docker exec` are crun's here.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::json;
use sluice_testkit::identity::Identity;
use sluice_testkit::pinned;
use sluice_testkit::process::Process;
use sluice_testkit::workspace;

use super::bundle::{Container, Setting};
use crate::image::Built;

/// The name by which Kamal executes it.
const PROGRAM: &str = "kamal-proxy";
/// Where Kamal mounts the volume `kamal-proxy-config`.
const VOLUME: &str = "/home/kamal-proxy/.config/kamal-proxy";
/// The account of the image, to which a volume that Docker makes belongs.
const ACCOUNT: u32 = 1001;
const NAME: &str = "a.example";
const ROUNDS: usize = 300;
const POLL: Duration = Duration::from_millis(100);

/// What Kamal's `deploy_options` come to for a role with `proxy: {ssl: …, hosts: [a.example, b.example]}`.
const DEPLOY: &[&str] = &[
    "--host=a.example",
    "--host=b.example",
    "--deploy-timeout=30s",
    "--drain-timeout=30s",
    "--health-check-path=/",
    "--buffer-requests",
    "--buffer-responses",
    "--log-request-header=Cache-Control",
    "--log-request-header=Last-Modified",
    "--log-request-header=User-Agent",
];

/// Without TLS: `kamal proxy boot`, `deploy`, `details`, `remove`.
pub(super) fn plain(built: &Built) -> Result<String> {
    let container = Container::start("kamal", built, built.stage("kamal")?, &Setting::default())?;
    let status = container.status("http://127.0.0.1:80/")?;
    ensure!(status == "404", "{status} before the first deploy\n{}", container.log()?);
    let _application = application(&container, "kamal")?;
    container.exec(&[PROGRAM, "deploy", "web", "--target=127.0.0.1:3000", "--health-check-path=/"])?;
    let status = container.status("http://127.0.0.1:80/puma.yaml")?;
    ensure!(status == "200", "{status} after the deploy");
    let listed = container.exec(&[PROGRAM, "list"])?;
    ensure!(listed.contains("web"), "{listed}");
    container.exec(&[PROGRAM, "remove", "web"])?;
    container.stop()?;
    Ok("deployed, served, removed".to_owned())
}

/// With certificates by ACME: boot, deploy, details, logs, maintenance and live, a second deploy, reboot, remove.
pub(super) fn https(built: &Built) -> Result<String> {
    let folder = workspace::scratch("containers")?.join("kamal-volume");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    chown(&folder, Some(ACCOUNT), Some(ACCOUNT))?;
    let identity = Identity::make(&folder, &pinned::tool("openssl")?)?;
    let setting = || Setting {
        volume: Some((folder.clone(), VOLUME)),
        environment: vec![
            "ACME_DIRECTORY=https://127.0.0.1:14000/dir".to_owned(),
            format!("ACME_CA_FILE={VOLUME}/certificate.pem"),
        ],
        ..Setting::default()
    };
    let container = Container::start("kamal-https", built, built.stage("kamal")?, &setting())?;
    let status = container.status("http://127.0.0.1:80/")?;
    ensure!(status == "404", "{status} before the first deploy\n{}", container.log()?);
    let authority = authority(&container, &folder, &identity)?;
    let running = application(&container, "kamal-https")?;
    let deploy = [&[PROGRAM, "deploy", "app-web", "--target=127.0.0.1:3000", "--tls"], DEPLOY].concat();
    container.exec(&deploy)?;
    let issuer = issued(&container)?;
    redirects(&container)?;
    let listed = container.exec(&[PROGRAM, "list"])?;
    ensure!(listed.contains("app-web") && listed.contains("yes"), "{listed}");
    ensure!(fetch(&container, &["-A", "replay", "/puma.yaml"])? == "200", "not served");
    until("the request in the log", || Ok(container.log()?.contains("\"req_user_agent\":\"replay\"")))?;
    container.exec(&[PROGRAM, "stop", "app-web", "--drain-timeout=30s", "--message=back soon"])?;
    ensure!(fetch(&container, &["/puma.yaml"])? == "503", "not in maintenance");
    container.exec(&[PROGRAM, "resume", "app-web"])?;
    container.exec(&deploy)?;
    ensure!(fetch(&container, &["/"])? == "200", "not live");
    drop((running, authority));
    container.stop()?;

    // `kamal proxy reboot`: another container on the same volume, and nobody to issue anything.
    let container = Container::start("kamal-reboot", built, built.stage("kamal")?, &setting())?;
    let status = container.status("http://127.0.0.1:80/")?;
    ensure!(status == "404" || status == "301", "{status} after the reboot\n{}", container.log()?);
    let _running = application(&container, "kamal-reboot")?;
    ensure!(issued(&container)? == issuer, "another certificate after the reboot\n{}", container.log()?);
    // The target was away when the proxy looked first: it is asked again and again.
    let mut status = String::new();
    let is_served = || {
        status = fetch(&container, &["/puma.yaml"])?;
        Ok(status == "200")
    };
    until("an answer after the reboot", is_served)
        .with_context(|| format!("{status}\n{}", container.log().unwrap_or_default()))?;
    container.exec(&[PROGRAM, "remove", "app-web"])?;
    container.stop()?;
    Ok("deployed with --tls, redirected, in maintenance, rebooted, removed".to_owned())
}

/// An application within the container's network; it listens.
fn application(container: &Container, name: &str) -> Result<Process> {
    let mut application = container.entering("python3");
    application.args(["-m", "http.server", "3000", "--bind", "127.0.0.1"]);
    application.current_dir(workspace::root().join("config/examples"));
    let log = workspace::scratch("logs")?.join(format!("container-{name}-application.log"));
    let application = Process::start("application", &mut application, log, Signal::SIGTERM)?;
    let ask = ["-s", "-o", "/dev/null", "http://127.0.0.1:3000/"];
    until("the application", || Ok(container.within("curl", &ask).is_ok())).context(application.tail())?;
    Ok(application)
}

/// Pebble and its name server within the container's network.
fn authority(container: &Container, folder: &Path, identity: &Identity) -> Result<[Process; 2]> {
    let file = folder.join("pebble.json");
    let config = json!({"pebble": {
        "listenAddress": "127.0.0.1:14000",
        "managementListenAddress": "127.0.0.1:15000",
        "certificate": identity.certificate,
        "privateKey": identity.key,
        "httpPort": 80,
        "tlsPort": 443,
        "profiles": {"default": {"description": "the only one", "validityPeriod": 90 * 86_400}},
    }});
    fs::write(&file, config.to_string())?;
    let log = |name: &str| -> Result<PathBuf> {
        Ok(workspace::scratch("logs")?.join(format!("container-{name}.log")))
    };
    let program = |name: &str| pinned::tool(name).map(|path| path.display().to_string());
    let mut names = container.entering(&program("pebble-challtestsrv")?);
    names.args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", "", "-defaultIPv6", ""]);
    names.args(["-dnsserver", "127.0.0.1:8053", "-management", "127.0.0.1:8055"]);
    let mut pebble = container.entering(&program("pebble")?);
    pebble.arg("-config").arg(&file).args(["-dnsserver", "127.0.0.1:8053"]).env("PEBBLE_VA_NOSLEEP", "1");
    let names = Process::start("names", &mut names, log("names")?, Signal::SIGTERM)?;
    let pebble = Process::start("pebble", &mut pebble, log("pebble")?, Signal::SIGTERM)?;
    let ask = ["-sk", "-o", "/dev/null", "https://127.0.0.1:14000/dir"];
    until("Pebble", || Ok(container.within("curl", &ask).is_ok())).context(pebble.tail())?;
    Ok([names, pebble])
}

/// Looks again and again until it is so.
fn until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    for _ in 0..ROUNDS {
        if is_so()? {
            return Ok(());
        }
        thread::sleep(POLL);
    }
    bail!("{what}: waited in vain")
}

/// Waits for a certificate of the authority; who issued it, and its number.
fn issued(container: &Container) -> Result<String> {
    let ask = format!(
        "echo | openssl s_client -connect 127.0.0.1:443 -servername {NAME} 2>/dev/null \
         | openssl x509 -noout -issuer -serial"
    );
    let mut said = String::new();
    let look = || {
        said = container.within("sh", &["-c", &ask]).unwrap_or_default();
        Ok(said.contains("Pebble"))
    };
    until("a certificate", look).with_context(|| container.log().unwrap_or_default())?;
    Ok(said)
}

/// The status of an answer by HTTPS; the last word is the path.
fn fetch(container: &Container, words: &[&str]) -> Result<String> {
    let (path, options) = words.split_last().expect("a path");
    let resolve = format!("{NAME}:443:127.0.0.1");
    let url = format!("https://{NAME}{path}");
    let args =
        ["-sk", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "60", "--resolve", &resolve, &url];
    container.within("curl", &[options, &args].concat())
}

fn redirects(container: &Container) -> Result<()> {
    let args = ["-s", "-o", "/dev/null", "-w", "%{http_code} %{redirect_url}", "-H", "Host: b.example"];
    let said = container.within("curl", &[&args[..], &["http://127.0.0.1/x?y=1"]].concat())?;
    ensure!(said == "301 https://b.example/x?y=1", "{said}");
    Ok(())
}
