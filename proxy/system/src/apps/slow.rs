//! Two hundred clients that read a kilobyte a second, with and without direct return: the app does not spin, is not
//! blocked longer, others are served meanwhile, and every body is correct.
//!
//! A socket of the app whose bytes go to a client's queue polls as writable regardless of the room in it. With a proxy
//! that let responses through without checking this, Puma was seen to spin, and nginx and Go to wait forever.

use std::fs;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sluice_testkit::metrics;
use sluice_testkit::process::raise_descriptor_limit;

use super::Check;
use super::rig::Rig;
use super::wire::Wire;

/// For joined variants of apps that have paths for it.
pub(super) const CHECKS: &[Check] = &[("slow_direct", slow_direct)];

const CLIENTS: usize = 200;
/// How long they are slow, in tenths of a second.
const TICKS: u32 = 30;
const TICK: Duration = Duration::from_millis(100);
/// A kilobyte a second.
const BYTES_A_TICK: usize = 100;
const RECEIVE_BYTES: usize = 4096;
const RECEIVE_BYTES_AFTERWARDS: usize = 1 << 20;
/// Reached only by a hang.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two requests of the fast client.
const PAUSE: Duration = Duration::from_millis(5);
/// Allowed additional CPU time, in ticks of 10 ms; a spinning app takes all there is.
const CPU_SLACK: u64 = 150;
/// Allowance for other buffers on the machine.
const NOISE: u64 = 64 << 20;

/// The cost of the clients.
#[derive(Debug)]
struct Cost {
    /// CPU time of the app, in ticks of 10 ms.
    cpu: u64,
    /// Bytes in TCP's buffers while they were slow, in addition to the earlier ones.
    buffers: u64,
    /// The same for kernel objects.
    slab: u64,
    /// Requests of a fast client that were answered meanwhile.
    meanwhile: u64,
    /// Direct returns.
    straight: u64,
    /// Responses that could not use it, completely or partly, for lack of room.
    without_room: u64,
}

fn slow_direct(rig: &Rig) -> Result<String> {
    if !rig.required {
        return Ok("not requested".to_owned());
    }
    raise_descriptor_limit()?;
    let mut wire = Wire::to(rig.place.address)?;
    let mut bodies = Vec::new();
    for path in rig.app.slow {
        wire.ask(rig, "GET", path, "")?;
        bodies.push(wire.reply().with_context(|| format!("{path}, directly"))?.body);
    }
    drop(wire);
    let begun = Instant::now();
    let off = measure(rig, "off", &bodies).context("direct return off")?;
    let on = measure(rig, "required", &bodies).context("direct return on")?;
    let both = || format!("{} s, on {on:?}, off {off:?}", begun.elapsed().as_secs());
    ensure!(on.straight > 0 && on.without_room > 0 && off.straight == 0, "{}", both());
    ensure!(on.cpu <= off.cpu + CPU_SLACK, "the app took too much: {}", both());
    ensure!(on.meanwhile > 0 && on.meanwhile >= off.meanwhile / 4, "others had to wait: {}", both());
    let bound = |off: u64| off + off / 4 + NOISE;
    ensure!(on.buffers <= bound(off.buffers) && on.slab <= bound(off.slab), "memory: {}", both());
    Ok(both())
}

fn measure(rig: &Rig, direct_return: &str, bodies: &[Vec<u8>]) -> Result<Cost> {
    let set = [
        "kernel.bypass=required".to_owned(),
        format!("kernel.direct_return={direct_return}"),
        "kernel.direct_return_bytes_min=0".to_owned(),
    ];
    let (_sluice, address, admin) = rig.plain(&format!("direct-{direct_return}"), &set)?;
    let cpu_before = cpu(rig.origin.pid())?;
    let before = (in_buffers()?, in_slab()?);
    let mut clients = Vec::with_capacity(CLIENTS);
    for (path, body) in rig.app.slow.iter().zip(bodies).cycle().take(CLIENTS) {
        clients.push(Client::ask(rig, address, path, body)?);
    }
    let done = AtomicBool::new(false);
    let (meanwhile, grown) = thread::scope(|scope| {
        let fast = scope.spawn(|| ask_meanwhile(rig, address, &done));
        let slow = read_slowly(&mut clients).and_then(|()| Ok((in_buffers()?, in_slab()?)));
        // It may wait for a thread of the app, which is free once the others have read.
        done.store(true, Ordering::Relaxed);
        let rest = read_on(&mut clients);
        let meanwhile = fast.join().unwrap_or_else(|_| bail!("panicked")).context("the fast client");
        rest.and(Ok((meanwhile?, slow?)))
    })?;
    let metrics = metrics::read(admin)?;
    Ok(Cost {
        cpu: cpu(rig.origin.pid())?.saturating_sub(cpu_before),
        buffers: grown.0.saturating_sub(before.0),
        slab: grown.1.saturating_sub(before.1),
        meanwhile,
        straight: metrics::sum(&metrics, "sluice_direct_return_exchanges_total"),
        without_room: without_room(&metrics),
    })
}

/// One of the clients, in the middle of its response.
struct Client<'a> {
    stream: TcpStream,
    /// The received part of an incomplete head.
    head: Vec<u8>,
    /// The expected body.
    wanted: &'a [u8],
    /// Bytes of it received so far.
    got: usize,
}

impl<'a> Client<'a> {
    /// Has received one response, and requests another one.
    fn ask(rig: &Rig, address: SocketAddr, path: &str, wanted: &'a [u8]) -> Result<Self> {
        // If it were reduced later, TCP itself would stay slow.
        let mut wire = Wire::narrow(address, RECEIVE_BYTES)?;
        wire.ask(rig, "GET", rig.app.path, "")?;
        wire.reply().context("the previous response")?;
        wire.ask(rig, "GET", path, "")?;
        let stream = wire.into_stream();
        stream.set_nonblocking(true)?;
        Ok(Self { stream, head: Vec::new(), wanted, got: 0 })
    }

    fn is_done(&self) -> bool {
        self.got == self.wanted.len()
    }

    /// Reads available bytes; returns how many.
    fn read(&mut self, most: usize) -> Result<usize> {
        let mut room = [0; 65_536];
        match self.stream.read(&mut room[..most]) {
            Ok(0) if !self.is_done() => bail!("ended after {} of {} bytes", self.got, self.wanted.len()),
            Ok(count) => self.take(&room[..count]).map(|()| count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error).with_context(|| format!("after {} of {}", self.got, self.wanted.len())),
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<()> {
        if self.got > 0 {
            return self.check(bytes);
        }
        self.head.extend_from_slice(bytes);
        let Some(at) = self.head.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(()) };
        let head = String::from_utf8_lossy(&self.head);
        ensure!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let body = self.head.split_off(at + 4);
        self.check(&body)
    }

    /// Compares every byte, which shows more than a hash.
    fn check(&mut self, bytes: &[u8]) -> Result<()> {
        let (from, to) = (self.got, self.got + bytes.len());
        ensure!(self.wanted.get(from..to) == Some(bytes), "wrong between {from} and {to}");
        self.got = to;
        Ok(())
    }
}

fn read_slowly(clients: &mut [Client<'_>]) -> Result<()> {
    for _ in 0..TICKS {
        for client in &mut *clients {
            client.read(BYTES_A_TICK)?;
        }
        thread::sleep(TICK);
    }
    Ok(())
}

/// Reads the rest from all of them.
fn read_on(clients: &mut [Client<'_>]) -> Result<()> {
    for client in &*clients {
        super::wire::receive_buffer(&client.stream, RECEIVE_BYTES_AFTERWARDS)?;
    }
    let mut moved = Instant::now();
    loop {
        let mut count = 0;
        for client in clients.iter_mut().filter(|client| !client.is_done()) {
            count += client.read(65_536)?;
        }
        if clients.iter().all(Client::is_done) {
            return Ok(());
        }
        if count > 0 {
            moved = Instant::now();
        } else {
            ensure!(moved.elapsed() < PATIENCE, "stuck: {}", stuck(clients));
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn stuck(clients: &[Client<'_>]) -> String {
    let waiting = clients.iter().filter(|client| !client.is_done());
    waiting.map(|client| format!("{} of {}", client.got, client.wanted.len())).collect::<Vec<_>>().join(", ")
}

/// Small requests one after the other; returns how many were answered before `done`.
fn ask_meanwhile(rig: &Rig, address: SocketAddr, done: &AtomicBool) -> Result<u64> {
    let mut wire = Wire::to(address)?;
    let mut count = 0;
    loop {
        wire.ask(rig, "GET", rig.app.path, "")?;
        let reply = wire.reply()?;
        ensure!(reply.status() == 200 && reply.text() == rig.app.hello, "{}", reply.head);
        if done.load(Ordering::Relaxed) {
            return Ok(count);
        }
        count += 1;
        thread::sleep(PAUSE);
    }
}

fn without_room(metrics: &str) -> u64 {
    let name = "sluice_direct_return_missed_total{reason=\"room\"} ";
    metrics.lines().find_map(|line| line.strip_prefix(name)?.parse().ok()).unwrap_or(0)
}

/// CPU time of a process and its children, in ticks of 10 ms.
fn cpu(pid: u32) -> Result<u64> {
    let mut total = 0;
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(one) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // It may be gone by now.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        if let Some((parent, ticks)) = parent_and_ticks(&stat)
            && (one == pid || parent == pid)
        {
            total += ticks;
        }
    }
    Ok(total)
}

/// Parses a line of `/proc/PID/stat`, where the name may contain spaces and parentheses.
fn parent_and_ticks(stat: &str) -> Option<(u32, u64)> {
    let words: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let number = |at: usize| words.get(at)?.parse::<u64>().ok();
    Some((words.get(1)?.parse().ok()?, number(11)? + number(12)?))
}

fn in_buffers() -> Result<u64> {
    let text = fs::read_to_string("/proc/net/sockstat")?;
    let line = text.lines().find(|line| line.starts_with("TCP: ")).context("no TCP in sockstat")?;
    let pages: u64 = line.rsplit(' ').next().context("sockstat")?.parse()?;
    Ok(pages * 4096)
}

fn in_slab() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("SUnreclaim:")).context("no SUnreclaim")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_hide_the_ticks() {
        let stat = "7 (a) b) S 5 7 7 0 -1 4194304 100 0 0 0 31 11 0 0 20 0 1 0 99 1 1";
        assert_eq!(parent_and_ticks(stat), Some((5, 42)));
        assert_eq!(parent_and_ticks("7 (a"), None);
    }
}
