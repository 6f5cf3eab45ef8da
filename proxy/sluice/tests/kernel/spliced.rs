//! Spliced tunnels through the whole proxy: the bytes sent at one end arrive at the other, followed by the end.

use std::hash::Hasher;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use socket2::SockRef;
use twox_hash::XxHash64;

use crate::leftovers::{gone, held};
use crate::proxy::Proxy;
use crate::support::wait_for;

/// The behaviour of one direction.
#[derive(Clone, Copy, Debug)]
struct Play {
    seed: u64,
    bytes: usize,
    largest: usize,
    /// One in this many writes, and one in this many reads, is followed by a pause.
    write_stalls: u32,
    read_stalls: u32,
}

impl Play {
    fn random(random: &mut fastrand::Rng) -> Self {
        let bytes = random.choice([0, 1, 5_000, 300_000, 4_000_000]).unwrap();
        Self {
            seed: random.u64(..),
            bytes: random.usize(0..=bytes),
            largest: random.choice([1, 100, 5_000, 200_000]).unwrap().max(bytes / 2000),
            write_stalls: random.choice([0, 0, 20, 200]).unwrap(),
            read_stalls: random.choice([0, 0, 20, 200]).unwrap(),
        }
    }

    fn stall(random: &mut fastrand::Rng, one_in: u32) {
        if one_in > 0 && random.u32(..one_in) == 0 {
            thread::sleep(Duration::from_micros(random.u64(..3000)));
        }
    }

    /// Writes everything and shuts down; returns its hash.
    fn send(self, mut to: &TcpStream) -> u64 {
        let mut random = fastrand::Rng::with_seed(self.seed);
        let mut hash = XxHash64::with_seed(0);
        let mut buffer = vec![0; self.largest];
        let mut left = self.bytes;
        while left > 0 {
            let size = random.usize(1..=self.largest).min(left);
            random.fill(&mut buffer[..size]);
            to.write_all(&buffer[..size]).unwrap_or_else(|error| panic!("{self:?}: {left} left: {error}"));
            hash.write(&buffer[..size]);
            left -= size;
            Self::stall(&mut random, self.write_stalls);
        }
        to.shutdown(Shutdown::Write).unwrap();
        hash.finish()
    }

    /// Reads to the end; returns the number of bytes, and their hash.
    fn receive(self, mut from: &TcpStream) -> (usize, u64) {
        let mut random = fastrand::Rng::with_seed(!self.seed);
        let mut hash = XxHash64::with_seed(0);
        let mut buffer = vec![0; 100_000];
        let mut total = 0;
        loop {
            let wanted = random.usize(1..=buffer.len());
            let got = from
                .read(&mut buffer[..wanted])
                .unwrap_or_else(|error| panic!("{self:?}: {total} came: {error}"));
            if got == 0 {
                return (total, hash.finish());
            }
            hash.write(&buffer[..got]);
            total += got;
            Self::stall(&mut random, self.read_stalls);
        }
    }
}

/// Both directions at once; each ends when everything is sent.
fn play((client, server): &(TcpStream, TcpStream), up: Play, down: Play) {
    thread::scope(|scope| {
        let sent_up = scope.spawn(|| up.send(client));
        let sent_down = scope.spawn(|| down.send(server));
        let got_up = scope.spawn(|| up.receive(server));
        let got_down = scope.spawn(|| down.receive(client));
        assert_eq!(got_up.join().unwrap(), (up.bytes, sent_up.join().unwrap()), "up: {up:?}, {down:?}");
        assert_eq!(
            got_down.join().unwrap(),
            (down.bytes, sent_down.join().unwrap()),
            "down: {up:?}, {down:?}"
        );
    });
}

fn rounds() -> u64 {
    std::env::var("SLUICE_SPLICE_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60)
}

fn random_streams(after_bytes: u64) {
    let proxy = Proxy::splicing(after_bytes);
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut sent = (0, 0);
    let mut tunnels = 0;
    // A stream is spliced in the middle only if it pauses there, as one in ten does: some sixty may have none.
    let lacks_splice = || proxy.metric("sluice_splice_tunnels_total") == 0;
    while tunnels < rounds() || (tunnels < rounds() * 10 && lacks_splice()) {
        let (up, down) = (Play::random(&mut random), Play::random(&mut random));
        play(&proxy.tunnel(), up, down);
        sent = (sent.0 + up.bytes as u64, sent.1 + down.bytes as u64);
        tunnels += 1;
    }
    let records = proxy.records(tunnels as usize);
    let sum = |field: &str| records.iter().map(|record| record[field].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("bytes_in"), sum("bytes_out")), sent);
    assert!(records.iter().all(|record| record["reason"].is_null()), "{records:?}");
    assert!(records.iter().any(|record| record["path"] == "splice"), "{records:?}");
    assert_eq!(proxy.metric("sluice_splice_mismatches_total"), 0);
    assert_eq!(proxy.metric("sluice_splice_failures_total"), 0);
    eprintln!(
        "tunnels {tunnels}, spliced {}, bytes {} of {}, back by budget {}, by peer {}, closed {}",
        proxy.metric("sluice_splice_tunnels_total"),
        proxy.metric("sluice_splice_bytes_total"),
        sent.0 + sent.1,
        proxy.metric("sluice_splice_returns_total{reason=\"budget\"}"),
        proxy.metric("sluice_splice_returns_total{reason=\"no_peer\"}"),
        proxy.metric("sluice_splice_returns_total{reason=\"closed\"}"),
    );
}

#[test]
#[ignore = "needs root and BPF"]
fn random_streams_from_the_first_moment() {
    random_streams(0);
}

#[test]
#[ignore = "needs root and BPF"]
fn random_streams_joined_in_the_middle() {
    random_streams(100_000);
}

#[test]
#[ignore = "needs root and BPF"]
fn a_drain_returns_running_streams_to_copying() {
    let mut random = fastrand::Rng::new();
    let mut returned = 0;
    for _ in 0..rounds().div_ceil(10) {
        let mut proxy = Proxy::splicing(0);
        let tunnels: Vec<_> = (0..4).map(|_| proxy.tunnel()).collect();
        let after = Duration::from_millis(random.u64(..40));
        let plays: Vec<_> = tunnels
            .iter()
            .map(|_| {
                let one = |random: &mut fastrand::Rng| Play {
                    seed: random.u64(..),
                    bytes: 3_000_000,
                    largest: random.choice([3_000, 50_000]).unwrap(),
                    write_stalls: 10,
                    read_stalls: 50,
                };
                (one(&mut random), one(&mut random))
            })
            .collect();
        thread::scope(|scope| {
            for (tunnel, (up, down)) in tunnels.iter().zip(plays) {
                scope.spawn(move || play(tunnel, up, down));
            }
            thread::sleep(after);
            proxy.signal(Signal::SIGTERM);
            for _ in 0..10 {
                let now = proxy.try_metric("sluice_splice_returns_total{reason=\"closed\"}");
                returned += now.unwrap_or(0);
            }
        });
        drop(tunnels);
        assert_eq!(proxy.child.wait().unwrap().code(), Some(0));
        let records = proxy.records(4);
        assert!(records.iter().all(|record| record["reason"].is_null()), "{records:?}");
    }
    assert!(returned > 0, "no direction was taken back");
}

/// Bytes waiting for a client that does not read must not block the bytes it sends.
#[test]
#[ignore = "needs root and BPF"]
fn a_client_that_sends_everything_before_it_reads_is_served() {
    let proxy = Proxy::splicing(0);
    send_all_before_reading(&proxy);
    assert!(proxy.metric("sluice_splice_returns_total{reason=\"budget\"}") > 0);
}

/// The same while the tunnel is about to be joined.
#[test]
#[ignore = "needs root and BPF"]
fn a_client_that_does_not_read_yet_does_not_prevent_joining() {
    send_all_before_reading(&Proxy::splicing(100_000));
}

fn send_all_before_reading(proxy: &Proxy) {
    for seed in 0..3 {
        let (client, server) = &proxy.tunnel();
        let up = Play { seed, bytes: 12_000_000, largest: 100_000, write_stalls: 0, read_stalls: 10 };
        let down = Play { seed: !seed, ..up };
        thread::scope(|scope| {
            let sent_down = scope.spawn(|| down.send(server));
            let got_up = scope.spawn(|| up.receive(server));
            let sent_up = up.send(client);
            assert_eq!(got_up.join().unwrap(), (up.bytes, sent_up));
            assert_eq!(down.receive(client), (down.bytes, sent_down.join().unwrap()));
        });
    }
}

#[test]
#[ignore = "needs root and BPF"]
fn a_close_right_after_data_loses_no_tunnel_bytes() {
    let proxy = Proxy::splicing(0);
    let mut random = fastrand::Rng::new();
    for _ in 0..200 {
        let (mut client, mut server) = proxy.tunnel();
        client.write_all(b"one").unwrap();
        server.read_exact(&mut [0; 3]).unwrap();
        let bytes = vec![7; random.usize(1..100_000)];
        client.write_all(&bytes).unwrap();
        drop(client);
        let mut got = Vec::new();
        server.read_to_end(&mut got).unwrap();
        assert_eq!(got.len(), bytes.len());
    }
}

#[test]
#[ignore = "needs root and BPF"]
fn a_reset_is_forwarded_from_either_side() {
    let proxy = Proxy::splicing(0);
    for from_client in [true, false] {
        let (mut client, mut server) = proxy.tunnel();
        client.write_all(b"x").unwrap();
        server.read_exact(&mut [0]).unwrap();
        let (gone, mut left) = if from_client { (client, server) } else { (server, client) };
        SockRef::from(&gone).set_linger(Some(Duration::ZERO)).unwrap();
        drop(gone);
        let error = left.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "from the client: {from_client}");
    }
    let reasons: Vec<_> = proxy.records(2).iter().map(|record| record["reason"].clone()).collect();
    assert!(reasons.contains(&"client_gone".into()), "{reasons:?}");
}

#[test]
#[ignore = "needs root and BPF"]
fn a_killed_proxy_leaves_nothing_behind() {
    let mut proxy = Proxy::splicing(0);
    let (mut client, mut server) = proxy.tunnel();
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
    let objects = held(&proxy.child.id().to_string());
    assert!(objects.iter().any(|(kind, _)| kind == "map"), "{objects:?}");
    assert!(objects.iter().any(|(kind, _)| kind == "prog"), "{objects:?}");
    // SIGKILL.
    proxy.child.kill().unwrap();
    proxy.child.wait().unwrap();
    // Ended or reset, but not left hanging.
    assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)));
    assert!(matches!(server.read(&mut [0]), Ok(0) | Err(_)));
    drop((client, server));
    gone(&objects);
}

/// Pages used by TCP on the whole machine.
fn tcp_pages() -> u64 {
    let text = std::fs::read_to_string("/proc/net/sockstat").unwrap();
    let line = text.lines().find(|line| line.starts_with("TCP:")).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// The third number of a setting of TCP's buffers: the largest that the kernel makes one by itself.
fn buffer_max(setting: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{setting}")).unwrap();
    text.split_whitespace().nth(2).unwrap().parse().unwrap()
}

/// What one direction of a tunnel may hold when its reader does not read: the send buffers of both connections, what
/// the proxy has received, and the program's budget. Linux 6.16 lets a receive buffer grow to 32 MB. The reader's own
/// buffer is small.
fn held_max() -> u64 {
    let budget = (1 << 20) + (64 << 10);
    2 * buffer_max("tcp_wmem") + buffer_max("tcp_rmem") + budget + (1 << 20)
}

/// Writes until the connection has taken nothing for a while. Returns how much it took.
fn fill((client, server): &(TcpStream, TcpStream)) -> u64 {
    // The budget limits it, not the buffers at both ends.
    SockRef::from(server).set_recv_buffer_size(20_000).unwrap();
    client.set_nonblocking(true).unwrap();
    let block = vec![7; 100_000];
    let (mut sent, mut quiet) = (0, 0);
    wait_for("the sender to be blocked", || {
        let mut moved = false;
        let mut client = client;
        while let Ok(count) = client.write(&block) {
            sent += count as u64;
            moved = true;
        }
        quiet = if moved { 0 } else { quiet + 1 };
        quiet > 20
    });
    sent
}

fn read_all((client, mut server): (TcpStream, TcpStream)) -> u64 {
    drop(client);
    std::io::copy(&mut server, &mut std::io::sink()).unwrap()
}

#[test]
#[ignore = "needs root and BPF"]
fn readers_that_do_not_read_cost_at_most_their_budgets() {
    let proxy = Proxy::splicing(0);
    let before = tcp_pages();
    let tunnels: Vec<_> = (0..20).map(|_| proxy.tunnel()).collect();
    let sent: Vec<_> = tunnels.iter().map(fill).collect();
    let pages = tcp_pages() - before.min(tcp_pages());
    eprintln!("sent {sent:?}, pages of TCP {pages}");
    assert!(sent.iter().all(|sent| *sent < held_max()), "{sent:?}, at most {}", held_max());
    let returned = || proxy.metric("sluice_splice_returns_total{reason=\"budget\"}");
    wait_for("all to have come back", || returned() == 20);
    for (tunnel, sent) in tunnels.into_iter().zip(sent) {
        assert_eq!(read_all(tunnel), sent);
    }
}

/// What the program leaves to sluice is charged to the socket that received it, so it is bounded without sluice too.
#[test]
#[ignore = "needs root and BPF"]
fn a_stopped_proxy_lets_no_more_in() {
    let proxy = Proxy::splicing(0);
    let tunnels: Vec<_> = (0..5).map(|_| proxy.tunnel()).collect();
    for (client, server) in &tunnels {
        let (mut client, mut server) = (client, server);
        client.write_all(b"x").unwrap();
        server.read_exact(&mut [0]).unwrap();
    }
    proxy.signal(Signal::SIGSTOP);
    let sent: Vec<_> = tunnels.iter().map(fill).collect();
    proxy.signal(Signal::SIGCONT);
    eprintln!("sent {sent:?}");
    assert!(sent.iter().all(|sent| *sent < held_max()), "{sent:?}, at most {}", held_max());
    for (tunnel, sent) in tunnels.into_iter().zip(sent) {
        assert_eq!(read_all(tunnel), sent);
    }
}
