//! A worker's thread: it follows the control plane until a drain has ended its last connection.

use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use sluice_net::listener::{Bound, DatagramSockets, Listening};
use sluice_net::quic::Close;
use sluice_ring::{self as ring, Engine};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;

use super::accept::{AcceptContext, Entrance, accept_loop};
use super::datagrams;
use super::share::{Handed, Share};
use super::{Command, Stage};
use crate::worker::Worker;

/// How often the worker maintains its pool and its log.
const TICK: Duration = Duration::from_millis(200);
/// How often a draining worker checks whether its last connection has ended.
const DRAIN_TICK: Duration = Duration::from_millis(20);

/// How the control plane controls a worker.
pub struct WorkerControl {
    /// The stage of the process; a worker drains when it changes.
    pub stage: watch::Receiver<Stage>,
    /// Commands of the control thread to this worker alone.
    pub commands: mpsc::UnboundedReceiver<Command>,
    /// Hands connections to other workers.
    pub share: Share,
    /// Connections handed over by other workers.
    pub handed: Handed,
}

/// Runs a worker on this thread until a drain has ended its last connection. After [`Stage::End`] it does not return.
///
/// # Errors
/// The I/O engine could not be created.
pub fn run(
    engine: Engine,
    worker: impl FnOnce() -> Worker,
    listeners: Vec<Bound>,
    told: WorkerControl,
) -> std::io::Result<()> {
    ring::run(engine, serve(worker, listeners, told))
}

/// A listener that is being accepted from.
struct Accepting {
    /// Owned by the task, like the socket, which is closed as soon as the task has ended.
    listening: Weak<Listening>,
    interrupt: Rc<Notify>,
    task: JoinHandle<()>,
}

impl Accepting {
    fn begin(door: &AcceptContext, bound: Bound) -> Self {
        let Bound { listening, socket, .. } = bound;
        let (interrupt, weak_listening) = (Rc::<Notify>::default(), Arc::downgrade(&listening));
        let entrance = Entrance { listening, socket: socket.into(), interrupt: Rc::clone(&interrupt) };
        let task = tokio::task::spawn_local(keep_accepting(door.clone(), entrance));
        Self { listening: weak_listening, interrupt, task }
    }

    /// Makes the loop check why its wait was cancelled.
    fn interrupt(&self) {
        self.interrupt.notify_one();
    }
}

/// What the worker serves.
#[derive(Default)]
struct Served {
    accepting: Vec<Accepting>,
    /// HTTP/3, by listener.
    datagrams: Vec<(Weak<Listening>, Close)>,
}

impl Served {
    fn listen(&mut self, door: &AcceptContext, mut bound: Bound) {
        if let Some(sockets) = bound.datagrams.take() {
            self.serve_datagrams(door, &bound.listening, sockets);
        }
        self.accepting.push(Accepting::begin(door, bound));
    }

    /// Without HTTP/3, clients use TCP.
    fn serve_datagrams(
        &mut self,
        door: &AcceptContext,
        listening: &Arc<Listening>,
        sockets: DatagramSockets,
    ) {
        match datagrams::begin(door, listening, sockets) {
            Ok(close) => {
                self.datagrams.retain(|(_, close)| !close.has_ended());
                self.datagrams.push((Arc::downgrade(listening), close));
            }
            Err(error) => {
                let name = &listening.current().config.name;
                tracing::error!(listener = name, %error, "cannot serve HTTP/3");
            }
        }
    }

    fn close_datagrams(&mut self, listening: &Arc<Listening>) {
        let of_listener = |(known, _): &&(Weak<Listening>, Close)| known.as_ptr() == Arc::as_ptr(listening);
        self.datagrams.iter().filter(of_listener).for_each(|(_, close)| close.close(false));
    }
}

async fn serve(worker: impl FnOnce() -> Worker, listeners: Vec<Bound>, told: WorkerControl) {
    let WorkerControl { mut stage, mut commands, share, mut handed } = told;
    let worker = Rc::new(worker());
    let door = AcceptContext { worker: Rc::clone(&worker), runners: Rc::default(), share: Rc::new(share) };
    let mut served = Served::default();
    listeners.into_iter().for_each(|bound| served.listen(&door, bound));
    tokio::task::spawn_local(look_after_heads(Rc::clone(&worker)));
    tokio::task::spawn_local(watch_schedule(Rc::clone(&worker)));
    let mut tick = tokio::time::interval(TICK);
    loop {
        let now = *stage.borrow_and_update();
        match now {
            Stage::Serve => {}
            Stage::Announce => worker.announce_drain(),
            Stage::Drain | Stage::HandOver | Stage::End => break,
        }
        tokio::select! {
            _ = tick.tick() => {
                worker.tick();
                door.runners.reap();
                door.share.tick();
                door.level();
            }
            () = called(&worker) => if let Some(direct) = worker.direct() { direct.call_in_waited_for() },
            Some(accepted) = handed.recv() => door.begin(accepted),
            Some(command) = commands.recv() => obey(&door, command, &mut served),
            // An error means that the control plane is gone, which ends the process anyway.
            changed = stage.changed() => if changed.is_err() { break },
        }
    }
    door.share.gather(false);
    worker.shed(false);
    worker.shares_sockets.set(*stage.borrow() == Stage::HandOver);
    worker.drain();
    served.datagrams.iter().for_each(|(_, close)| close.close(worker.shares_sockets.get()));
    // From now on other workers keep their connections; one that is just being handed over is awaited.
    handed.close();
    while let Some(accepted) = handed.recv().await {
        door.begin(accepted);
    }
    // The loops end soon, and connections that waited in the queue have then been accepted.
    for accepting in served.accepting {
        accepting.interrupt();
        let _ = accepting.task.await;
    }
    let mut tick = tokio::time::interval(DRAIN_TICK);
    while *stage.borrow_and_update() != Stage::End {
        tokio::select! {
            _ = tick.tick() => {}
            changed = stage.changed() => if changed.is_err() { break },
        }
        worker.tick();
        if worker.is_done() {
            return;
        }
    }
    served.datagrams.iter().for_each(|(_, close)| close.end());
    // The control plane waits for this, and then ends the process.
    drop(stage);
    std::future::pending().await
}

fn obey(door: &AcceptContext, command: Command, served: &mut Served) {
    served.accepting.retain(|accepting| !accepting.task.is_finished());
    match command {
        Command::Listen(bound) => served.listen(door, bound),
        Command::Close(listening) => {
            let is_closed = |accepting: &&Accepting| accepting.listening.as_ptr() == Arc::as_ptr(&listening);
            served.accepting.iter().filter(is_closed).for_each(Accepting::interrupt);
            served.close_datagrams(&listening);
            door.worker.begin_to_end();
        }
        Command::ServeDatagrams(listening, sockets) => served.serve_datagrams(door, &listening, sockets),
        Command::CloseDatagrams(listening) => {
            served.close_datagrams(&listening);
            door.worker.end_http3(&listening.current());
        }
    }
}

/// Without this, a socket whose accept loop has panicked would stay open, and its share of the clients would wait for
/// ever.
async fn keep_accepting(door: AcceptContext, entrance: Entrance) {
    loop {
        let accepting = accept_loop(door.clone(), entrance.clone());
        if tokio::task::spawn_local(accepting).await.is_ok() {
            return;
        }
        let name = &entrance.listening.current().config.name;
        tracing::error!(listener = name, "the accept loop panicked; restarting it");
    }
}

async fn look_after_heads(worker: Rc<Worker>) {
    if let Some(direct) = worker.direct() {
        direct.look_after_heads().await;
    }
}

async fn watch_schedule(worker: Rc<Worker>) {
    worker.watch_schedule().await;
}

/// Resolves when a request of another worker waits for something that an exchange here may hold.
async fn called(worker: &Worker) {
    match worker.direct() {
        Some(direct) => direct.called().await,
        None => std::future::pending().await,
    }
}
