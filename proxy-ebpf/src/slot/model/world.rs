//! The actors, the order in which they act, and what must hold.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::vec::Vec;

use super::bytes::{Byte, Text, UNASKED};
use super::ends::{Client, Connection, Push};
use super::program::Run;
use super::sluice::Handler;
use crate::slot::{Pool, Slot};
use crate::word::Word;
use crate::word::watch::{self, Watch};

pub(super) const CLIENTS: usize = 2;
/// Connections that are open at the same time.
const CONNECTIONS: usize = 3;
const SLOTS: u32 = 4;
/// Capacity of a send queue, in bytes.
pub(super) const ROOM: usize = 16;
/// How deeply other actors may act within an access.
const DEPTH: usize = 3;

/// Who acts. No actor acts again while it is already acting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Actor {
    /// An application and the program on its socket, by the connection's number.
    App(usize),
    /// The program on sluice's socket of that connection.
    Sender(usize),
    /// sluice, for one client.
    Sluice(usize),
    Client(usize),
}

pub(super) struct World {
    choices: RefCell<std::vec::IntoIter<u8>>,
    pub(super) slots: Vec<Slot>,
    pub(super) pool: RefCell<Pool>,
    /// The owner of each slot.
    pub(super) owners: RefCell<Vec<Option<usize>>>,
    pub(super) clients: Vec<RefCell<Client>>,
    /// Every response that was ever requested.
    pub(super) texts: RefCell<Vec<Text>>,
    pub(super) connections: RefCell<Vec<Rc<Connection>>>,
    acting: RefCell<Vec<Actor>>,
    numbers: Cell<u32>,
    /// Nothing bad or new happens any more.
    pub(super) calm: Cell<bool>,
}

struct Watcher(Weak<World>);

impl Watch for Watcher {
    fn before(&self) {
        if let Some(world) = self.0.upgrade() {
            world.interrupt();
        }
    }

    fn wrote(&self, word: *const Word) {
        if let Some(world) = self.0.upgrade() {
            world.check_write(word);
        }
    }
}

impl World {
    pub(super) fn new(choices: Vec<u8>) -> Rc<Self> {
        let world = Rc::new(Self {
            choices: RefCell::new(choices.into_iter()),
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            pool: RefCell::new(Pool::new(SLOTS)),
            owners: RefCell::new(std::vec![None; SLOTS as usize]),
            clients: (0..CLIENTS).map(|_| RefCell::new(Client::new(1, 0))).collect(),
            texts: RefCell::default(),
            connections: RefCell::default(),
            acting: RefCell::default(),
            numbers: Cell::new(1),
            calm: Cell::new(false),
        });
        for index in 0..CLIENTS {
            world.connect_client(index);
        }
        watch::begin(Some(Rc::new(Watcher(Rc::downgrade(&world)))));
        world
    }

    /// A number that was never used before.
    pub(super) fn number(&self) -> u32 {
        self.numbers.replace(self.numbers.get() + 1)
    }

    /// The next choice; 0 if there are none left.
    pub(super) fn choice(&self) -> u32 {
        if self.calm.get() { 0 } else { self.choices.borrow_mut().next().unwrap_or(0).into() }
    }

    /// True once in `of` times, and never when all is calm.
    pub(super) fn chance(&self, of: u32) -> bool {
        !self.calm.get() && self.choice() % of == of - 1
    }

    pub(super) fn connection(&self, number: usize) -> Rc<Connection> {
        Rc::clone(&self.connections.borrow()[number])
    }

    pub(super) fn play(&self) {
        while !self.choices.borrow().as_slice().is_empty() {
            self.act();
        }
    }

    fn act(&self) {
        let (who, which) = (self.choice() % 8, self.choice() as usize);
        let connections = self.connections.borrow().len();
        // The last connections are the ones in use.
        let connection = connections.checked_sub(1 + which % (CONNECTIONS + 1));
        let actor = match (who, connection) {
            (0..=3, Some(connection)) => Actor::App(connection),
            (4, Some(connection)) => Actor::Sender(connection),
            (7, _) => Actor::Client(which % CLIENTS),
            _ => Actor::Sluice(which % CLIENTS),
        };
        // Usually one step. A whole run of the program, or what sluice does within one, takes several.
        for _ in 0..[1, 2, 4, 12][self.choice() as usize % 4] {
            self.turn(actor);
        }
    }

    /// Lets an actor act, unless it is already acting.
    fn turn(&self, actor: Actor) {
        if self.acting.borrow().contains(&actor) {
            return;
        }
        self.acting.borrow_mut().push(actor);
        match actor {
            Actor::App(number) => self.app(&self.connection(number)),
            Actor::Sender(number) => self.sender(&self.connection(number)),
            // The pool has a lock.
            Actor::Sluice(index) if self.pool.try_borrow_mut().is_ok() => self.sluice(index),
            Actor::Sluice(_) => {}
            Actor::Client(index) => self.client(index),
        }
        self.acting.borrow_mut().pop();
    }

    /// Called between two accesses to a slot.
    fn interrupt(&self) {
        let depth = self.acting.borrow().len();
        if depth > 0 && depth < DEPTH && self.chance(5) {
            // Long enough for a connection to be closed, and for its slot to get another owner.
            for _ in 0..self.choice() % 12 {
                self.act();
            }
        }
    }

    /// Only the program of its connection and sluice write to a slot.
    fn check_write(&self, word: *const Word) {
        let slot = (word.addr() - self.slots.as_ptr().addr()) / size_of::<Slot>();
        let acting = self.acting.borrow().last().copied();
        if let (Some(Actor::App(number) | Actor::Sender(number)), Some(owner)) =
            (acting, self.owners.borrow()[slot])
        {
            assert_eq!(number, owner, "{acting:?} wrote to the slot of another connection");
        }
    }

    pub(super) fn app(&self, connection: &Connection) {
        if connection.run.borrow().is_some() {
            return self.step(connection);
        }
        if !connection.pushes.borrow().is_empty() && !self.chance(16) {
            // The kernel takes its time. Another thread of the application may even send before it is done.
            return if self.calm.get() || self.chance(3) {
                self.push(connection)
            };
        }
        if connection.ended.get() {
            return;
        }
        let again = std::mem::take(&mut *connection.again.borrow_mut());
        if !again.is_empty() {
            return self.send(connection, again);
        }
        match connection.writing.get() {
            Some((text, start)) if self.calm.get() || !self.chance(150) => {
                let length = if self.calm.get() { u32::MAX / 2 } else { self.choice() % 6 + 1 };
                self.send(connection, text.part(start, length));
                let next = start + length;
                connection.writing.set((next < text.length()).then_some((text, next)));
            }
            None if !connection.requests.borrow().is_empty() => {
                let text = connection.requests.borrow_mut().pop_front();
                connection.writing.set(text.map(|text| (text, 0)));
            }
            None if self.chance(100) => {
                self.send(connection, std::vec![Byte { answer: UNASKED, at: self.number() }]);
            }
            None if self.calm.get() || !self.chance(250) => {}
            _ => connection.ended.set(true),
        }
    }

    fn send(&self, connection: &Connection, bytes: Vec<Byte>) {
        *connection.run.borrow_mut() = Some(Run::new(bytes));
    }

    /// The kernel redirects what the program decided.
    fn push(&self, connection: &Connection) {
        let Some(Push { cookie, mut bytes }) = connection.pushes.borrow_mut().pop_front() else {
            return;
        };
        let last = bytes.last().and_then(|byte| Some((self.text(*byte)?, byte.at)));
        let is_end = last.is_none_or(|(text, at)| at + 1 >= text.head + text.body);
        // An end with a missing part would stay announced forever, and be cut off in time: this is not modelled.
        if bytes.len() > 1 && !is_end && connection.pushes.borrow().is_empty() && self.chance(20) {
            let taken = 1 + self.choice() as usize % (bytes.len() - 1);
            *connection.again.borrow_mut() = bytes.split_off(taken);
        }
        let client = self.clients.iter().find(|client| client.borrow().cookie == cookie);
        match client {
            Some(client) if client.borrow().is_open() => {
                let mut client = client.borrow_mut();
                assert!(
                    client.queue.len() + bytes.len() <= ROOM + 1,
                    "announced bytes exceed the free space"
                );
                bytes.into_iter().for_each(|byte| client.enter(byte));
            }
            _ => connection.ended.set(true),
        }
    }

    fn client(&self, index: usize) {
        let (what, much) = (self.choice() % 16, self.choice() as usize % 6 + 1);
        let mut client = self.clients[index].borrow_mut();
        // sluice has one task per client connection, from its start to its end.
        let handled = self.acting.borrow().contains(&Actor::Sluice(index));
        let reconnects = !handled && !client.is_open() && matches!(client.handler, Handler::Idle);
        match what {
            0..3 => {
                let much = much.min(client.queue.len());
                client.queue.drain(..much);
            }
            3..14 if client.is_open() && client.asked.len() < client.begun + 2 => {
                let text = Text {
                    number: self.number(),
                    head: 3,
                    cut: self.choice() % 2,
                    body: self.choice() % 9,
                    surplus: if self.chance(12) { 2 } else { 0 },
                    added: [0, 4, 0, 5][self.choice() as usize % 4],
                };
                client.asked.push(text);
                self.texts.borrow_mut().push(text);
            }
            14 if self.chance(12) => client.alive = false,
            15 if reconnects => {
                drop(client);
                self.connect_client(index);
            }
            _ => {}
        }
    }

    /// Another client's socket, at the same place in memory as the previous one.
    fn connect_client(&self, index: usize) {
        let near_the_end = u32::MAX - self.choice() % 20;
        *self.clients[index].borrow_mut() = Client::new(u64::from(self.number()), near_the_end);
    }

    /// Number of bytes announced to that client that are not in its queue.
    pub(super) fn is_promised(&self, cookie: u64) -> usize {
        let connections = self.connections.borrow();
        let pushes = connections.iter().map(|connection| {
            let pushes = connection.pushes.borrow();
            pushes.iter().filter(|push| push.cookie == cookie).map(|push| push.bytes.len()).sum::<usize>()
        });
        pushes.sum()
    }

    /// All actors continue until nothing moves: then each request has its response, or its client sees an end.
    pub(super) fn come_to_rest(&self) {
        self.calm.set(true);
        for _ in 0..400 {
            for number in 0..self.connections.borrow().len() {
                self.turn(Actor::Sender(number));
                self.turn(Actor::App(number));
            }
            for index in 0..CLIENTS {
                self.turn(Actor::Sluice(index));
                self.clients[index].borrow_mut().queue.clear();
            }
        }
        for client in &self.clients {
            let client = client.borrow();
            let done = client.entering.0 == client.asked.len() && matches!(client.handler, Handler::Idle);
            assert!(
                done || !client.is_open(),
                "a response is stuck: {:?} {:?}",
                client.handler,
                client.entering
            );
        }
        watch::begin(None);
    }

    /// Whether sluice may open another connection.
    pub(super) fn may_connect(&self) -> bool {
        let connections = self.connections.borrow();
        connections.iter().filter(|connection| !connection.closed.get()).count() < CONNECTIONS
    }
}
