//! Many more concurrent clients than the server has threads: sluice queues them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};
use sluice_testkit::process::raise_descriptor_limit;
use sluice_trace::sockets;

use super::rig::Rig;
use super::wire::Wire;

const CLIENTS: usize = 2000;
/// Twice the threads of Puma: those that sluice allows, and earlier connections that it has closed meanwhile.
const DEPTH_MAX: u64 = 8;
/// The length of the queue.
const LINE: usize = 1000;

/// Two thousand clients send requests at once: the server's accept queue stays short, and all of them are answered,
/// with the app's line or with a 503 that says when to retry.
pub(super) fn storm(rig: &Rig) -> Result<String> {
    raise_descriptor_limit()?;
    let port = rig.place.address.port();
    let over = AtomicBool::new(false);
    let (answers, deepest) = thread::scope(|scope| {
        let watch = scope.spawn(|| -> Result<u64> {
            let mut deepest = 0;
            while !over.load(Ordering::Relaxed) {
                deepest = deepest.max(sockets::depth(port)?);
                // Its core is needed for what it measures.
                thread::sleep(Duration::from_millis(1));
            }
            Ok(deepest)
        });
        let answers = ask(rig);
        over.store(true, Ordering::Relaxed);
        let deepest = watch.join().unwrap_or_else(|_| bail!("the watch panicked"));
        (answers, deepest)
    });
    let (served, turned_away) = answers?;
    let deepest = deepest?;
    ensure!(deepest <= DEPTH_MAX, "{deepest} connections waited in the accept queue");
    ensure!(served >= LINE, "{served} of {CLIENTS} were served, but the queue has room for {LINE}");
    Ok(format!("{served} served, {turned_away} told to retry, accept queue at most {deepest}"))
}

/// Returns how many were served, and how many rejected.
fn ask(rig: &Rig) -> Result<(usize, usize)> {
    let clients: Result<Vec<Wire>> = (0..CLIENTS).map(|_| Wire::connect(rig)).collect();
    let mut clients = clients?;
    for client in &mut clients {
        client.ask(rig, "GET", &rig.target(rig.app.path), "Connection: close\r\n")?;
    }
    let (mut served, mut turned_away) = (0, 0);
    for (number, mut client) in clients.into_iter().enumerate() {
        let answer = client.rest().map_err(|error| anyhow!("client {number}: {error:#}"))?;
        let answer = String::from_utf8_lossy(&answer);
        if answer.starts_with("HTTP/1.1 200 ") && answer.trim_end().ends_with(rig.app.hello) {
            served += 1;
        } else if answer.starts_with("HTTP/1.1 503 ")
            && answer.to_ascii_lowercase().contains("\nretry-after: ")
        {
            turned_away += 1;
        } else {
            bail!("client {number}: {answer:?}");
        }
    }
    Ok((served, turned_away))
}
