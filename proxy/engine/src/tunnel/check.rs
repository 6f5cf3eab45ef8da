//! Tests spliced tunnels on sockets of sluice's own before any client gets one.
//!
//! A tunnel runs on this thread with the I/O engine of the workers, as it would on a worker; threads play both ends
//! with plain system calls. It takes a fraction of a second.

use crate::AssistError;
use std::hash::Hasher;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::pin::pin;
use std::thread;
use std::time::Duration;

use sluice_core::error::Reason;
use sluice_core::metrics::Metrics;
use sluice_core::record::BodyPath;
use sluice_net::buffers::Buffers;
use sluice_net::deadline::Deadline;
use sluice_net::stream::{self, Stream};
use sluice_ring::{self as ring, Engine};
use twox_hash::XxHash64;

use super::{Context, Ends, Outcome, Splicer, SplicerFactory, pass};

/// How long one check may take before it has failed.
const PATIENCE: Duration = Duration::from_secs(5);
const LARGE_BYTES: usize = 4 << 20;
/// It is sent and read in pieces of this size, so that the check leaves no large buffers behind.
const PIECE_BYTES: usize = 64 << 10;

/// Its name, and the actions of the two ends.
type Check = (&'static str, fn(TcpStream) -> io::Result<()>, fn(TcpStream) -> io::Result<()>);

const CHECKS: [Check; 5] = [
    ("echo", ping, echo),
    ("order", many_small, read_small),
    ("half_close", ask_and_end, answer_the_end),
    ("end_after_data", last_words, read_last_words),
    ("large", send_large, read_large),
];

/// Runs every check.
///
/// # Errors
/// The name of the first check that failed, and how.
pub(crate) fn check(shared: &SplicerFactory, engine: Engine) -> Result<(), AssistError> {
    let splicer = shared.splicer_after(0)?;
    let metrics = Metrics::new();
    let recorder = std::rc::Rc::new(metrics.add_worker());
    let buffers = Buffers::new(1 << 20);
    let with = Context { metrics: &recorder, buffers: &buffers, splicer: Some(&splicer), joiner: None };
    // The engine is left behind afterwards, as every engine is.
    let ran = ring::run(engine, async {
        for (name, client, server) in CHECKS {
            one(client, server, &with).await.map_err(|error| format!("{name}: {error}"))?;
        }
        Ok(())
    });
    ran.map_err(|error| format!("{engine}: {error}"))?
}

async fn one(
    client: fn(TcpStream) -> io::Result<()>,
    server: fn(TcpStream) -> io::Result<()>,
    with: &Context<'_>,
) -> Result<(), AssistError> {
    let (near, downstream) = pair().map_err(|error| error.to_string())?;
    let (upstream, far) = pair().map_err(|error| error.to_string())?;
    let mut tunnel = pin!(tunnel(downstream, upstream, with));
    // Bytes sent before the join would be copied.
    tokio::select! {
        biased;
        outcome = &mut tunnel => {
            return Err(outcome.reason.map_or("the tunnel ended early", Reason::word).to_owned().into());
        }
        () = joined(with) => {}
    }
    let near = thread::spawn(move || client(near));
    let far = thread::spawn(move || server(far));
    let outcome = tunnel.await;
    for end in [near, far] {
        end.join().map_err(|_| "it panicked".to_owned())?.map_err(|error| error.to_string())?;
    }
    match outcome {
        Outcome { reason: Some(reason), .. } => Err(reason.word().to_owned().into()),
        Outcome { path: BodyPath::Splice, .. } => Ok(()),
        _ => Err("the tunnel was copied, not spliced".into()),
    }
}

/// Waits until the only tunnel has been joined.
async fn joined(with: &Context<'_>) {
    while !with.splicer.is_some_and(Splicer::is_used) {
        tokio::task::yield_now().await;
    }
}

async fn tunnel(downstream: TcpStream, upstream: TcpStream, with: &Context<'_>) -> Outcome {
    let [downstream, upstream] = [downstream, upstream].map(|socket| Stream::from_socket(socket.into()));
    let (mut down_reader, mut down_writer) = stream::halves(downstream);
    let (mut up_reader, mut up_writer) = stream::halves(upstream);
    let ends =
        Ends { downstream: (&mut down_reader, &mut down_writer), upstream: (&mut up_reader, &mut up_writer) };
    let idle_ms = PATIENCE.as_millis() as u64;
    pass(ends, &Deadline::new(PATIENCE), idle_ms, with).await
}

/// Both ends of a connection, with timeouts.
fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, from) = listener.accept()?;
    if from != near.local_addr()? {
        return Err(io::Error::other("another process has connected"));
    }
    Ok((near, far))
}

fn patient(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))
}

fn expect_end(socket: &mut TcpStream) -> io::Result<()> {
    match socket.read(&mut [0])? {
        0 => Ok(()),
        _ => Err(io::Error::other("received more bytes than were sent")),
    }
}

fn expect(socket: &mut TcpStream, wanted: &[u8]) -> io::Result<()> {
    let mut got = vec![0; wanted.len()];
    socket.read_exact(&mut got)?;
    if got == wanted { Ok(()) } else { Err(io::Error::other("received bytes differ from those sent")) }
}

fn ping(mut socket: TcpStream) -> io::Result<()> {
    patient(&socket)?;
    for round in 0..20_u8 {
        let message = [round; 100];
        socket.write_all(&message)?;
        expect(&mut socket, &message)?;
    }
    socket.shutdown(Shutdown::Write)?;
    expect_end(&mut socket)
}

fn echo(mut socket: TcpStream) -> io::Result<()> {
    patient(&socket)?;
    let mut message = [0; 100];
    for _ in 0..20 {
        socket.read_exact(&mut message)?;
        socket.write_all(&message)?;
    }
    expect_end(&mut socket)
}

fn many_small(mut socket: TcpStream) -> io::Result<()> {
    patient(&socket)?;
    for number in 0..2000_u32 {
        socket.write_all(&number.to_be_bytes())?;
    }
    socket.shutdown(Shutdown::Write)?;
    expect_end(&mut socket)
}

fn read_small(mut socket: TcpStream) -> io::Result<()> {
    patient(&socket)?;
    for number in 0..2000_u32 {
        expect(&mut socket, &number.to_be_bytes())?;
    }
    expect_end(&mut socket)
}

fn ask_and_end(mut socket: TcpStream) -> io::Result<()> {
    patient(&socket)?;
    socket.write_all(b"question")?;
    socket.shutdown(Shutdown::Write)?;
    expect(&mut socket, b"answer")?;
    expect_end(&mut socket)
}

fn answer_the_end(mut socket: TcpStream) -> io::Result<()> {
    patient(&socket)?;
    expect(&mut socket, b"question")?;
    expect_end(&mut socket)?;
    socket.write_all(b"answer")
}

fn last_words(mut socket: TcpStream) -> io::Result<()> {
    patient(&socket)?;
    expect(&mut socket, b"ready")?;
    socket.write_all(&[1; 100_000])
}

fn read_last_words(mut socket: TcpStream) -> io::Result<()> {
    patient(&socket)?;
    socket.write_all(b"ready")?;
    expect(&mut socket, &[1; 100_000])?;
    expect_end(&mut socket)
}

fn send_large(mut socket: TcpStream) -> io::Result<()> {
    patient(&socket)?;
    let (mut bytes, mut random) = (vec![0; PIECE_BYTES], fastrand::Rng::with_seed(1));
    let mut hash = XxHash64::with_seed(0);
    for _ in 0..LARGE_BYTES / PIECE_BYTES {
        random.fill(&mut bytes);
        hash.write(&bytes);
        socket.write_all(&bytes)?;
    }
    socket.shutdown(Shutdown::Write)?;
    expect(&mut socket, &hash.finish().to_be_bytes())?;
    expect_end(&mut socket)
}

fn read_large(mut socket: TcpStream) -> io::Result<()> {
    patient(&socket)?;
    let (mut bytes, mut hash) = (Vec::with_capacity(PIECE_BYTES), XxHash64::with_seed(0));
    // A signal interrupts a receive that has a timeout; `read_to_end` continues.
    while Read::by_ref(&mut socket).take(PIECE_BYTES as u64).read_to_end(&mut bytes)? > 0 {
        hash.write(&bytes);
        bytes.clear();
    }
    socket.write_all(&hash.finish().to_be_bytes())
}
