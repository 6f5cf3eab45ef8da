//! High load, and clients that must not be kept out by it: many connections, slow handshakes and bodies, a greedy
//! client, a stopped process, readers of the admin listener, names and tokens from outside.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

use crate::overload::{Gate, wait_for_queue};
use crate::process::gated;
use crate::support::{Authority, Origin, Proxy, RUNTIME, Setup, Wire, ok, poll};

const GET: &str = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
const OPEN: &str = "sluice_downstream_connections_open";
/// Below the default limit of open descriptors, because both ends are in this process.
const MANY: usize = 100;

fn in_flight(proxy: &Proxy, origin: &Origin) -> Value {
    proxy.endpoint(&origin.endpoint)["in_flight"].clone()
}

#[test]
fn many_connections_at_once_are_served_and_forgotten() {
    let origin = Origin::saying("hi");
    let Some(proxy) = Setup::to_origin(&origin).with("workers", 2).start() else { return };
    for _ in 0..3 {
        let mut clients: Vec<_> = (0..MANY).map(|_| proxy.connect()).collect();
        clients.iter_mut().for_each(|client| client.send(GET));
        for client in &mut clients {
            assert_eq!(client.response().text(), "hi");
        }
        assert_eq!(proxy.metric(OPEN), MANY as f64);
        clients.into_iter().for_each(Wire::reset);
        poll("all to be gone", || (proxy.metric(OPEN) == 0.0).then_some(()));
    }
    poll("nothing in flight", || (in_flight(&proxy, &origin) == 0).then_some(()));
    assert_eq!(proxy.get("/").text(), "hi");
}

/// Responds to `/`, and waits for the rest of anything else.
fn patient() -> Origin {
    Origin::playing(|mut peer| {
        while let Ok(head) = peer.try_head() {
            match head.target() {
                "/" => peer.send(ok("hi")),
                _ => drop(peer.rest()),
            }
        }
    })
}

#[test]
fn slow_bodies_delay_no_one_else_and_time_out() {
    for held in ["off", "on"] {
        let origin = patient();
        let setup = Setup::to_origin(&origin)
            .with("routes", json!([{"cluster": "default", "buffer_requests": held}]))
            .with("clusters.default.body_idle_timeout_ms", 1000);
        let Some(proxy) = setup.start() else { return };
        let mut slow: Vec<_> = (0..MANY).map(|_| proxy.connect()).collect();
        for client in &mut slow {
            client.send("POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nx");
        }
        for _ in 0..10 {
            assert_eq!(proxy.get("/").text(), "hi");
        }
        for client in &mut slow {
            assert_eq!(client.response().status(), 408);
        }
        drop(slow);
        poll("nothing in flight", || (in_flight(&proxy, &origin) == 0).then_some(()));
        poll("all to be gone", || (proxy.metric(OPEN) == 0.0).then_some(()));
        for gauge in ["sluice_spool_bytes", "sluice_buffer_memory_bytes"] {
            assert_eq!(proxy.metric(gauge), 0.0, "{gauge}");
        }
        assert_eq!(proxy.get("/").text(), "hi");
    }
}

/// The first flight of a client as bytes.
fn hello(client: &Arc<ClientConfig>) -> Vec<u8> {
    let name = ServerName::try_from("a.test").unwrap();
    let mut session = ClientConnection::new(Arc::clone(client), name).unwrap();
    let mut bytes = Vec::new();
    session.write_tls(&mut bytes).unwrap();
    bytes
}

#[test]
fn slow_handshakes_delay_no_one_else_and_time_out() {
    let (origin, authority) = (Origin::saying("hi"), Authority::new());
    let (identity, client) = (authority.identity(&["a.test"]), Arc::new(authority.client()));
    let setup = Setup::to_origin(&origin);
    let certificate = json!({
        "cert": setup.file("a.pem", &identity.cert_pem),
        "key": setup.file("a.key", &identity.key_pem),
    });
    let tls = json!({"certificates": [certificate], "handshake_timeout_ms": 3000});
    let Some(proxy) = setup.with("listeners.0.tls", tls).start() else { return };
    let good = || {
        let mut wire = Wire::connect_tls(proxy.address(), "a.test", &client).unwrap();
        assert_eq!(wire.ask(GET).text(), "hi");
    };
    let hello = hello(&client);
    // A third sends byte by byte, a third stops within its ClientHello, a third does not read the response.
    let mut slow: Vec<_> = (0..MANY).map(|_| proxy.connect()).collect();
    for byte in hello[..60].chunks(1) {
        slow.iter_mut().step_by(3).for_each(|wire| wire.send(byte));
    }
    good();
    slow.iter_mut().skip(1).step_by(3).for_each(|wire| wire.send(&hello[..hello.len() - 1]));
    slow.iter_mut().skip(2).step_by(3).for_each(|wire| wire.send(&hello));
    good();
    for wire in &mut slow {
        // Perhaps an alert.
        let _ = wire.rest();
    }
    let ended = "sluice_tls_handshake_failures_total{reason=\"timed_out\"}";
    poll("the counts", || (proxy.metric(ended) == MANY as f64).then_some(()));
    good();
}

/// Sends a request from this client address.
fn ask_from(proxy: &Proxy, address: [u8; 4], target: &str) -> Wire {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((address, 0)).into()).unwrap();
    socket.connect(&proxy.address().into()).unwrap();
    let mut wire = Wire::from(TcpStream::from(socket));
    wire.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
    wire
}

#[test]
fn a_greedy_client_gives_way_in_a_full_queue() {
    let (greedy, other) = ([127, 0, 0, 2], [127, 0, 0, 3]);
    let gate = Gate::new();
    let rules = json!({"max_length": 4, "fair_by_client": true, "order": "fifo"});
    let Some(proxy) = gate.setup().with("clusters.default.queue", rules).start() else { return };
    let mut first = ask_from(&proxy, greedy, "/0");
    assert_eq!(gate.next(), "/0");
    let mut waiting = Vec::new();
    for n in 1..=4 {
        waiting.push(ask_from(&proxy, greedy, &format!("/{n}")));
        wait_for_queue(&proxy, f64::from(n));
    }
    let mut polite = ask_from(&proxy, other, "/polite");
    let crowded_out = waiting.pop().unwrap().response();
    assert_eq!((crowded_out.status(), crowded_out.get("x-sluice-reason")), (503, Some("queue_full")));
    // A client with as many waiting requests as the others cannot displace theirs.
    let refused = ask_from(&proxy, greedy, "/5").response();
    assert_eq!((refused.status(), refused.get("x-sluice-reason")), (503, Some("queue_full")));
    gate.answer();
    assert_eq!(first.response().text(), "/0");
    let next = [gate.next(), {
        gate.answer();
        gate.next()
    }];
    assert!(next.iter().any(|target| target == "/polite"), "it has its turn: {next:?}");
    (0..3).for_each(|_| gate.answer());
    assert_eq!(polite.response().text(), "/polite");
    for (mut wire, target) in waiting.into_iter().zip(["/1", "/2", "/3"]) {
        assert_eq!(wire.response().text(), target);
    }
}

/// Stores the pid of the shell, which the process keeps.
fn numbered(setup: Setup) -> Setup {
    let preamble = format!("echo $$ >'{}'", setup.folder.join("pid").display());
    setup.after(&preamble)
}

/// Stops the process, and waits until all its threads have stopped.
fn stop(proxy: &Proxy) {
    proxy.signal(Signal::SIGSTOP);
    let pid = fs::read_to_string(proxy.folder.join("pid")).unwrap();
    let tasks = format!("/proc/{}/task", pid.trim());
    let stands_still = |task: &Path| {
        let stat = fs::read_to_string(task.join("stat")).unwrap();
        stat.rsplit(')').next().unwrap().trim_start().starts_with('T')
    };
    poll("a stop", || {
        let all = fs::read_dir(&tasks).unwrap().all(|task| stands_still(&task.unwrap().path()));
        all.then_some(())
    });
}

/// Like a suspended machine or a paused container: bytes that arrived meanwhile arrived in time.
#[test]
fn requests_during_a_pause_of_the_process_are_served() {
    if std::env::var(RUNTIME).is_ok_and(|engine| engine == "tokio_uring") {
        // tokio-uring handles timers before completions: a process that was stopped for longer than a timeout may send
        // a 408.
        let _ = writeln!(std::io::stderr(), "skipped: tokio-uring handles completions after timers");
        return;
    }
    const TIMEOUT: Duration = Duration::from_secs(2);
    let (origin, go) = gated();
    let timeout_ms = u64::try_from(TIMEOUT.as_millis()).unwrap();
    let setup = Setup::to_origin(&origin)
        .with("clusters.default.response_timeout_ms", timeout_ms)
        .with("limits", json!({"header_timeout_ms": timeout_ms, "keep_alive_timeout_ms": timeout_ms}));
    let Some(proxy) = numbered(setup).start() else { return };
    (0..4).for_each(|_| go.send(()).unwrap());
    let mut kept = proxy.connect();
    assert_eq!(kept.ask("GET /once HTTP/1.1\r\nHost: a\r\n\r\n").text(), "/once");
    let mut begun = proxy.connect();
    begun.send("GET /begun HTTP/1.1\r\nHo");
    // Another exchange proves that the worker has these bytes.
    assert_eq!(proxy.get("/seen").text(), "/seen");
    stop(&proxy);
    kept.send("GET /kept HTTP/1.1\r\nHost: a\r\n\r\n");
    begun.send("st: a\r\n\r\n");
    let mut fresh = proxy.connect();
    fresh.send("GET /fresh HTTP/1.1\r\nHost: a\r\n\r\n");
    go.send(()).unwrap();
    // The duration itself is tested; a shorter one would prove less, but fail nothing.
    std::thread::sleep(TIMEOUT + Duration::from_millis(100));
    proxy.signal(Signal::SIGCONT);
    for (wire, target) in [(&mut kept, "/kept"), (&mut begun, "/begun"), (&mut fresh, "/fresh")] {
        assert_eq!(wire.response().text(), target);
    }
}

/// An application that can be stopped: another sluice process.
fn application(says: &str) -> Option<(Proxy, String)> {
    let routes = json!([{"respond": {"status": 200, "body": says}}]);
    let application = numbered(Setup::to(&["127.0.0.1:1"]).with("routes", routes)).start()?;
    let endpoint = application.address().to_string();
    Some((application, endpoint))
}

#[test]
fn a_stopped_endpoint_is_removed_and_restored() {
    let (Some((still, first)), Some((_other, second))) = (application("still"), application("other")) else {
        return;
    };
    let check = json!({"interval_ms": 500, "timeout_ms": 500, "healthy_after": 1, "unhealthy_after": 2});
    let setup = Setup::to(&[&first, &second]).with("clusters.default.health_check", check);
    let Some(proxy) = setup.with("clusters.default.ejection.consecutive_failures", 0).start() else { return };
    let served_by = |says: &str| poll(says, || (proxy.get("/").text() == says).then_some(()));
    served_by("still");
    served_by("other");
    stop(&still);
    let health = |endpoint: &str| proxy.endpoint(endpoint)["health"].clone();
    poll("bad health", || (health(&first) == "unhealthy").then_some(()));
    for _ in 0..20 {
        assert_eq!(proxy.get("/").text(), "other");
    }
    still.signal(Signal::SIGCONT);
    poll("good health", || (health(&first) == "healthy").then_some(()));
    served_by("still");
    assert_eq!(proxy.metric("sluice_panics_total"), 0.0);
}

fn series(proxy: &Proxy) -> usize {
    proxy.admin("/metrics").text().lines().filter(|line| !line.starts_with('#')).count()
}

#[test]
fn client_data_never_becomes_a_metric_label() {
    let origin = Origin::saying("hi");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let odd = |from: usize, rejected: f64| {
        for n in from..from + 20 {
            let fields = format!("Host: zyx-{n}.test\r\nUser-Agent: zyx-{n}\r\nX-Forwarded-For: 192.0.2.{n}");
            assert_eq!(proxy.ask(format!("ZYX{n} /zyx-{n} HTTP/1.1\r\n{fields}\r\n\r\n")).text(), "hi");
        }
        // One worker writes them in order.
        proxy.record(&format!("/zyx-{}", from + 19));
        let broken = proxy.ask("GET /broken HTTP/1.1\r\nHost: zyx\"}\\nzyx{x=\"y\r\n\r\n");
        assert_eq!(broken.status(), 400);
        // A response may arrive before it is counted.
        let count = || proxy.metric("sluice_errors_total{reason=\"bad_host\",side=\"downstream\"}");
        poll("the rejected request", || (count() == rejected).then_some(()));
    };
    odd(0, 1.0);
    let before = series(&proxy);
    odd(100, 2.0);
    assert_eq!(series(&proxy), before);
    assert!(!proxy.admin("/metrics").text().to_ascii_lowercase().contains("zyx"));
}

#[test]
fn a_log_line_is_not_longer_than_its_request() {
    let origin = Origin::saying("hi");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let fields = [&b"User-Agent: "[..], &[0x80; 12_000], b"\r\nReferer: ", &[0xff; 12_000]].concat();
    let request = [b"GET /long HTTP/1.1\r\nHost: a\r\n", &fields[..], b"\r\n\r\n"].concat();
    assert_eq!(proxy.ask(&request).text(), "hi");
    proxy.record("/long");
    let log = fs::read_to_string(proxy.folder.join("access.log")).unwrap();
    let line = log.lines().find(|line| line.contains("/long")).unwrap();
    assert!(line.len() < request.len(), "{} bytes of {}", line.len(), request.len());
}

/// A connection on which no byte is sent.
fn silent(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nonblocking(true).unwrap();
    stream
}

fn is_open(stream: &TcpStream) -> bool {
    matches!(stream.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// As many connections as are served at once, each of which is waited for for some seconds. A round that takes that
/// long proves nothing, however slow the machine is.
#[test]
fn silent_connections_do_not_block_the_admin_listener() {
    const PLACES: usize = 64;
    const WAITED_FOR: Duration = Duration::from_secs(5);
    let origin = Origin::saying("hi");
    let Some(proxy) = Setup::to_origin(&origin).with("admin", "127.0.0.1:0").start() else { return };
    let admin: SocketAddr = proxy.admin_address().parse().unwrap();
    let left = poll("a response before the silent connections are closed", || {
        let begun = Instant::now();
        let silent: Vec<_> = (0..PLACES).map(|_| silent(admin)).collect();
        let answer = Wire::connect(admin).ask("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(answer.text(), "ok\n");
        let left = silent.iter().filter(|stream| is_open(stream)).count();
        silent.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        (begun.elapsed() < WAITED_FOR).then_some(left)
    });
    assert!(left >= PLACES / 2, "only connections in the way are closed: {left} are left");
}

fn write_token(path: &Path, token: &str) {
    let new = path.with_extension("new");
    fs::write(&new, token).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(new, path).unwrap();
}

#[test]
fn a_reload_applies_a_new_admin_token_or_reports_a_failure() {
    let (old, new) = ("0123456789abcdef-old", "0123456789abcdef-new");
    let origin = Origin::saying("hi");
    let setup = Setup::to_origin(&origin).with("admin", "127.0.0.1:0");
    let file = setup.folder.join("token");
    write_token(&file, old);
    let Some(proxy) = setup.with("admin_token_file", file.to_str().unwrap()).start() else { return };
    let admin: SocketAddr = proxy.admin_address().parse().unwrap();
    let shows = |fields: &str| {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
        Wire::connect(admin).ask(request).status()
    };
    let bearer = |token: &str| shows(&format!("Authorization: Bearer {token}\r\n"));
    assert_eq!((bearer(old), bearer(new), shows("")), (200, 401, 401));
    for wrong in [&old[..16], &old.repeat(2), "", &old.to_uppercase()] {
        assert_eq!(bearer(wrong), 401, "{wrong}");
    }
    for fields in ["Authorization: Bearer x\r\nAuthorization: Bearer ", "Authorization: Basic ", "X-Token: "]
    {
        assert_eq!(shows(&format!("{fields}{old}\r\n")), 401, "{fields}");
    }
    write_token(&file, new);
    let (code, said) = proxy.command("reload", &[]);
    assert_eq!(code, Some(0), "{said}");
    if !said.contains("admin_token_file") {
        assert_eq!((bearer(old), bearer(new)), (401, 200), "{said}");
    }
}
