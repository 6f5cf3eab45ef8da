//! The clients: each sends requests in its own manner over its own connections, and judges the responses.

mod answer;
mod decoder;
mod http1;
mod http2;
mod http3;
mod judge;
mod tls;
mod wire;

use std::cell::Cell;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Builder;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{sleep, timeout};

use super::findings::Findings;
use super::mode::Menu;
use super::plan::Plan;
use super::token::{Token, mix};
use http1::Manner;
pub(super) use tls::Connector;

/// Number of clients of each kind.
const PLAIN: u32 = 120;
const SECURE: u32 = 40;
const MULTIPLEXED: u32 = 16;
const MULTIPLEXED_SECURE: u32 = 16;
const OVER_QUIC: u32 = 16;
/// Clients in all.
pub(super) const CLIENTS: u32 = PLAIN + SECURE + MULTIPLEXED + MULTIPLEXED_SECURE + OVER_QUIC;

/// Maximum pause of a client between two requests, so that it does not take the whole host.
const PAUSE_MAX_MS: u64 = 60;
/// Half of all requests start at a multiple of it.
const BEAT_MS: u64 = 50;
/// How long running requests may take at the end.
const LAST_REQUESTS: Duration = Duration::from_secs(30);
const SMALL_BUFFER_BYTES: u32 = 4096;

/// How long a request may bring nothing: longer than any time limit of the configuration.
const PATIENCE: Duration = Duration::from_secs(20);

/// The addresses of sluice.
#[derive(Clone)]
pub(super) struct Doors {
    pub(super) plain: SocketAddr,
    pub(super) secure: SocketAddr,
    pub(super) connector: Connector,
}

/// Shared by all clients.
struct Context {
    seed: u64,
    menu: Menu,
    doors: Doors,
    findings: Arc<Findings>,
    started: Instant,
}

/// One client.
struct Source {
    context: Rc<Context>,
    client: u32,
    next: Cell<u32>,
}

/// The number of no client, in the tokens of responses that several ask for.
const SHARED: u32 = 0xffe;
/// How many such responses there are.
const RESOURCES: u32 = 97;

/// When a connection was started.
#[derive(Clone, Copy)]
struct Birth {
    at: Instant,
    /// Processes that had been replaced by then.
    replaced: u64,
}

/// sluice closes connections without any bytes after a second, when a process is replaced.
const LATE: Duration = Duration::from_millis(500);

impl Birth {
    fn now(context: &Context) -> Self {
        Self { at: Instant::now(), replaced: context.findings.replaced() }
    }

    /// Whether a process was replaced since.
    fn is_of_before(&self, context: &Context) -> bool {
        context.findings.replaced() > self.replaced
    }

    /// Whether this busy thread was slow with its first bytes.
    fn is_late(&self) -> bool {
        self.at.elapsed() > LATE
    }
}

/// Clients on their own thread, which ends with the findings.
pub(super) struct Clients(JoinHandle<Result<()>>);

impl Clients {
    /// Starts them.
    pub(super) fn start(seed: u64, menu: Menu, doors: Doors, findings: &Arc<Findings>) -> Self {
        let findings = Arc::clone(findings);
        Self(thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().context("runtime")?;
            let context = Context { seed, menu, doors, findings, started: Instant::now() };
            LocalSet::new().block_on(&runtime, storm(Rc::new(context)));
            Ok(())
        }))
    }

    /// Whether they have ended early.
    pub(super) fn have_ended(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits until they have ended.
    ///
    /// # Errors
    /// When they could not start, or panicked.
    pub(super) fn join(self) -> Result<()> {
        self.0.join().map_err(|_| anyhow!("the clients panicked"))?
    }
}

async fn storm(context: Rc<Context>) {
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let source = Source { context: Rc::clone(&context), client, next: Cell::new(0) };
        clients.spawn_local(run(Rc::new(source)));
    }
    while !context.findings.is_over() {
        sleep(Duration::from_millis(50)).await;
    }
    let all = async { while clients.join_next().await.is_some() {} };
    if timeout(LAST_REQUESTS, all).await.is_err() {
        context.findings.fault("clients have waited for their last responses for 30 s".to_owned());
    }
}

/// Runs a request until it ends, or until its client leaves or hears nothing of it for too long (`None`). On starved cores
/// a long response takes its time.
async fn watched<T>(
    leaves: Option<Duration>,
    heard: &Cell<u64>,
    request: impl Future<Output = T>,
) -> Option<T> {
    let mut request = pin!(request);
    let mut last = heard.get();
    loop {
        match timeout(leaves.unwrap_or(PATIENCE), &mut request).await {
            Ok(end) => return Some(end),
            Err(_) if leaves.is_none() && heard.get() != last => last = heard.get(),
            Err(_) => return None,
        }
    }
}

/// One connection after the other.
async fn run(source: Rc<Source>) {
    let context = &source.context;
    let mut random = fastrand::Rng::with_seed(mix(context.seed ^ mix(u64::from(source.client))));
    while !context.findings.is_over() {
        let (mut choices, birth) = (random.fork(), Birth::now(context));
        match source.client {
            client if client < PLAIN => {
                if let Some(stream) = connect(&source, context.doors.plain, &mut choices).await {
                    let manner = Manner::draw(&mut choices);
                    http1::run(&source, (stream, birth), manner, "HTTP/1.1", choices).await;
                }
            }
            client if client < PLAIN + SECURE => {
                if let Some(stream) = secure(&source, birth, &mut choices, false).await {
                    let manner = Manner::draw(&mut choices);
                    http1::run(&source, (stream, birth), manner, "TLS", choices).await;
                }
            }
            client if client < PLAIN + SECURE + MULTIPLEXED => {
                if let Some(stream) = connect(&source, context.doors.plain, &mut choices).await {
                    http2::run(&source, stream, "HTTP/2", choices).await;
                }
            }
            client if client < CLIENTS - OVER_QUIC => {
                if let Some(stream) = secure(&source, birth, &mut choices, true).await {
                    http2::run(&source, stream, "HTTP/2 over TLS", choices).await;
                }
            }
            _ => http3::run(&source, birth, choices).await,
        }
        sleep(source.pause(&mut random)).await;
    }
}

/// A connection to sluice; a failure is a fault, because a process always listens.
async fn connect(source: &Source, door: SocketAddr, random: &mut fastrand::Rng) -> Option<TcpStream> {
    let connecting = async {
        let socket = TcpSocket::new_v4()?;
        // Streams that share so little starve each other.
        if source.client < PLAIN + SECURE && random.u8(..6) == 0 {
            socket.set_recv_buffer_size(SMALL_BUFFER_BYTES)?;
        }
        let stream = socket.connect(door).await?;
        stream.set_nodelay(true)?;
        if random.u8(..4) == 0 {
            // It is closed by a reset.
            stream.set_zero_linger()?;
        }
        Ok::<_, std::io::Error>(stream)
    };
    match connecting.await {
        Ok(stream) => Some(stream),
        Err(error) => {
            source.context.findings.fault(format!("client {} cannot connect: {error}", source.client));
            None
        }
    }
}

async fn secure(
    source: &Source,
    birth: Birth,
    random: &mut fastrand::Rng,
    http2: bool,
) -> Option<tokio_rustls::client::TlsStream<TcpStream>> {
    let doors = &source.context.doors;
    let stream = connect(source, doors.secure, random).await?;
    match doors.connector.connect(stream, http2).await {
        Ok(stream) => Some(stream),
        Err(_) if birth.is_late() && birth.is_of_before(&source.context) => None,
        Err(error) => {
            let what = format!("client {} gets no TLS session: {error:#}", source.client);
            source.context.findings.fault(what);
            None
        }
    }
}

impl Source {
    fn next_plan(&self) -> Plan {
        let number = self.next.replace(self.next.get() + 1);
        let own = Plan::draw(Token::new(self.context.seed, self.client, number), &self.context.menu);
        // A quarter of the requests are for what others ask for as well.
        let shared = Token::new(self.context.seed, SHARED, number % RESOURCES);
        let shared = Plan::draw(shared, &self.context.menu);
        let is_shared = number.is_multiple_of(4) && shared.is_repeatable();
        if is_shared { shared } else { own }
    }

    fn pause(&self, random: &mut fastrand::Rng) -> Duration {
        let paused = match random.u8(..4) {
            0 => 0,
            1 => random.u64(..PAUSE_MAX_MS),
            // Many requests at once give a worker much to do.
            _ => BEAT_MS - u64::try_from(self.context.started.elapsed().as_millis()).unwrap_or(0) % BEAT_MS,
        };
        Duration::from_millis(paused)
    }
}
