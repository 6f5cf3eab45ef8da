//! `sluice discover docker`, with answers as recorded from Podman 4.3.1.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::*;
use crate::support::{Dead, poll};

/// An engine, and the containers that it has.
struct Engine {
    containers: Arc<Mutex<Vec<Value>>>,
    socket: std::path::PathBuf,
    _origin: Origin,
}

impl Engine {
    fn start(folder: &Path) -> Self {
        let containers = Arc::<Mutex<Vec<Value>>>::default();
        let (listed, socket) = (Arc::clone(&containers), folder.join("engine.sock"));
        let origin = Origin::playing_unix(&socket, move |mut peer| {
            let Some(request) = peer.next() else { return };
            if request.target().starts_with("/containers/json?filters=%7B%22label%22%3A%5B%22sluice.host") {
                let body = json!(*listed.lock().unwrap()).to_string();
                let _ = peer.try_send(ok(&body));
                return;
            }
            assert!(request.target().starts_with("/events?filters="), "{}", request.target());
            let _ = peer.try_send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            let before = listed.lock().unwrap().clone();
            poll("a change", || (*listed.lock().unwrap() != before).then_some(()));
            let _ = peer.try_send("15\r\n{\"Type\":\"container\"}\n\r\n0\r\n\r\n");
        });
        Self { containers, socket, _origin: origin }
    }

    fn set(&self, containers: Vec<Value>) {
        *self.containers.lock().unwrap() = containers;
    }
}

/// A container in the host's network.
fn container(name: &str, created: u64, endpoint: &str) -> Value {
    let port = endpoint.rsplit_once(':').unwrap().1;
    json!({
        "Id": format!("{name}{created}"), "Names": [format!("/{name}-{created}")], "Image": "localhost/web:1",
        "Created": created, "Ports": [], "State": "running", "Status": "Up 2 seconds",
        "Labels": {"sluice.host": format!("{name}.test"), "sluice.service": name, "sluice.port": port},
        "NetworkSettings": {"Networks": null}, "Mounts": [], "HostConfig": {"NetworkMode": "host"},
    })
}

struct Discover(Child);

impl Drop for Discover {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn discover(proxy: &Proxy, engine: &Engine) -> Discover {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(["discover", "docker", "--remove-after", "100ms", "--socket"]).arg(&engine.socket);
    command.arg("--control").arg(proxy.folder.join("control.sock"));
    Discover(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// Waits until a host is answered like this.
fn wait_for(proxy: &Proxy, host: &str, status: u16, text: &str) {
    poll(&format!("{host}: {status} {text}"), || {
        let answer = proxy.ask(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        (answer.status() == status && answer.text().starts_with(text)).then_some(())
    });
}

#[test]
fn containers_with_labels_are_deployed_and_followed() {
    let (file, one, two, dead) = (Origin::saying("file"), app("one"), app("two"), Dead::new());
    let Some(proxy) = setup(&file).start() else { return };
    let engine = Engine::start(&proxy.folder);
    engine.set(vec![container("web", 1, &one.endpoint), container("api", 1, &two.endpoint)]);
    let discovering = discover(&proxy, &engine);
    wait_for(&proxy, "web.test", 200, "one");
    wait_for(&proxy, "api.test", 200, "two");
    // Another container takes over; one that never becomes healthy keeps nobody out.
    engine.set(vec![
        container("web", 2, &two.endpoint),
        container("web", 3, &dead.endpoint()),
        container("api", 1, &two.endpoint),
    ]);
    wait_for(&proxy, "web.test", 200, "two");
    // What others have deployed is left alone.
    done(&proxy, &format!("deploy mine --target {} --host mine.test", one.endpoint));
    engine.set(vec![container("web", 2, &two.endpoint)]);
    wait_for(&proxy, "api.test", 404, "");
    wait_for(&proxy, "mine.test", 200, "one");
    wait_for(&proxy, "web.test", 200, "two");
    // While nobody watches, everything stays, and the next one finds what has changed.
    drop(discovering);
    engine.set(vec![container("api", 4, &one.endpoint)]);
    wait_for(&proxy, "web.test", 200, "two");
    let _discovering = discover(&proxy, &engine);
    wait_for(&proxy, "api.test", 200, "one");
    wait_for(&proxy, "web.test", 404, "");
    wait_for(&proxy, "mine.test", 200, "one");
}
