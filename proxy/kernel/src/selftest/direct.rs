//! Direct return: a response that the kernel sends to the client is complete and correct, and what it does not send
//! there arrives at sluice, with nothing lost or duplicated between the two.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;

use nix::poll::PollFlags;
use sluice_ebpf::Wish;
use sluice_ebpf::slot::{Line, Order, Phase, Slot};
use socket2::SockRef;

use super::answers::Answer;
use super::flow::is_later;
use super::pairs::Pair;
use super::sockets::{Sockets, unknown};
use super::trial::{Checked, Found, refused};
use super::wait::{Deadline, readable, ready, until};
use crate::program::{Bypass, ClientSocket, Lease, Marker, Slots};

/// The check for the connections that all checks need.
pub(super) const CONNECT: &str = "direct_return.connect";

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: self-test\r\n\r\n";
/// The client's send buffer, in bytes: enough for a response, and soon full.
const BUFFER: usize = 200_000;

/// A client, an application, and sluice's ends between them.
pub(super) struct Exchanges {
    pub(super) client: Pair,
    pub(super) upstream: Pair,
    lease: Lease,
    socket: ClientSocket,
    /// Bytes sent to the client so far, and bytes received by sluice.
    sent: u64,
    received: u32,
    deadline: Deadline,
}

impl Exchanges {
    /// Connections over `address`; `None` if this host does not have it.
    pub(super) fn on(
        address: IpAddr,
        bypass: &Bypass,
        slots: &Arc<Slots>,
        marker: &mut Marker,
        deadline: Deadline,
    ) -> Result<Option<Self>, Found> {
        let mut for_clients = bypass.marker().map_err(unknown)?;
        let Some(mut clients) = Sockets::on(address, bypass, &mut for_clients)? else {
            return Ok(None);
        };
        clients.mark_listener(Wish::Direct)?;
        let client = clients.open(|_, _| Ok(()), deadline)?;
        SockRef::from(&*client.passive).set_send_buffer_size(BUFFER).map_err(refused("setsockopt"))?;
        drop(clients);
        let socket = for_clients.add_client(client.passive.as_fd()).map_err(unknown)?;
        let socket = socket.ok_or_else(|| Found::new("a client was not registered"))?;

        let Some(mut applications) = Sockets::on(address, bypass, marker)? else {
            return Ok(None);
        };
        let mut lease = None;
        let upstream = applications.open(
            |marker, socket| {
                let slot = slots.lease(socket).ok_or_else(|| Found::new("no slot is available"))?;
                marker.mark(socket, Wish::SameNamespace, slot.index()).map_err(unknown)?;
                lease = Some(slot);
                Ok(())
            },
            deadline,
        )?;
        let joined = || bypass.is_joined(upstream.active.as_fd()).map_err(unknown);
        if !until(deadline.soon(), joined)? {
            return Err(Found::new("the connection to the application was not joined"));
        }
        let lease = lease.ok_or_else(|| Found::new("no slot is available"))?;
        Ok(Some(Self { client, upstream, lease, socket, sent: 0, received: 0, deadline }))
    }

    pub(super) fn slot(&self) -> &Slot {
        self.lease.slot()
    }

    /// Prepares the slot for the next response, and sends the request.
    pub(super) fn ask(&self) -> Checked {
        self.ask_for(false, Line::default())
    }

    /// The same, where a head may be kept, and gets a line in addition.
    pub(super) fn ask_for(&self, hold: bool, line: Line) -> Checked {
        self.slot().prepare(&Order {
            client: self.socket.cookie,
            client_socket: self.socket.address,
            sequence: self.socket.sent_next.wrapping_add(self.sent as u32),
            received: self.received,
            body_bytes_min: 0,
            body_bytes_max: u64::MAX >> 1,
            hold,
            slack: 0,
            line,
        });
        self.write_all(&self.upstream.active, REQUEST)?;
        self.is(Phase::Armed, "the request was sent")?;
        self.expect(&self.upstream.passive, REQUEST, "the request")
    }

    /// Sends as the application does; it may take more than one write.
    fn write_all(&self, mut to: &TcpStream, mut bytes: &[u8]) -> Checked {
        while !bytes.is_empty() {
            match to.write(bytes) {
                Ok(taken) => bytes = bytes.get(taken..).unwrap_or_default(),
                Err(error) if is_later(&error) => {
                    ready(&[(to, PollFlags::POLLOUT)], self.deadline, "room to send")?;
                }
                Err(error) => return Err(refused("send")(error)),
            }
        }
        Ok(())
    }

    pub(super) fn answer(&self, bytes: &[u8]) -> Checked {
        self.write_all(&self.upstream.passive, bytes)
    }

    /// Checks that these bytes arrive.
    fn expect(&self, mut from: &TcpStream, bytes: &[u8], what: &str) -> Checked {
        let mut came = vec![0; bytes.len()];
        let mut length = 0;
        while length < came.len() {
            let rest = came.get_mut(length..).unwrap_or_default();
            match from.read(rest) {
                Ok(0) => return Err(Found::new(format!("the stream ended within {what}"))),
                Ok(more) => length += more,
                Err(error) if is_later(&error) => readable(from, self.deadline, what)?,
                Err(error) => return Err(refused("receive")(error)),
            }
        }
        match came.iter().zip(bytes).position(|(came, sent)| came != sent) {
            Some(at) => Err(Found::new(format!("received bytes differ at byte {at} of {what}"))),
            None => Ok(()),
        }
    }

    /// Checks that nothing has arrived.
    pub(super) fn silent(&self, socket: &TcpStream, whose: &str) -> Checked {
        match socket.peek(&mut [0; 1]) {
            Err(error) if is_later(&error) => Ok(()),
            Ok(_) => Err(Found::new(format!("{whose} received bytes that were not for it"))),
            Err(error) => Err(refused("peek")(error)),
        }
    }

    pub(super) fn is(&self, phase: Phase, when: &str) -> Checked {
        let (now, reason) = (self.slot().phase(), self.slot().reason.get());
        if now == phase {
            return Ok(());
        }
        Err(Found::new(format!("the slot is {now:?} (reason {reason}) instead of {phase:?} after {when}")))
    }

    /// Checks that the client has received the whole response, and sluice nothing.
    pub(super) fn whole(&mut self, answer: &Answer) -> Checked {
        self.expect(&self.client.active, &answer.seen, "the response, at the client")?;
        self.is(Phase::Done, "the whole response")?;
        let slot = self.slot();
        let counted = [slot.sent.get(), slot.total.get(), slot.status.get()];
        let length = answer.seen.len() as u64;
        if counted != [length, length, 200] {
            return Err(Found::new(format!("{counted:?} were counted for a response of {length} bytes")));
        }
        self.sent += length;
        self.nothing_more()
    }

    /// Checks that the client has received what the slot reports, and sluice everything after it.
    pub(super) fn divided(&mut self, answer: &Answer) -> Checked {
        self.is(Phase::Left, "a response that was left to sluice")?;
        let sent = self.slot().sent.get();
        let Some((gone, rest)) = usize::try_from(sent).ok().and_then(|at| answer.seen.split_at_checked(at))
        else {
            return Err(Found::new(format!("{sent} bytes were counted, more than were sent")));
        };
        self.expect(&self.client.active, gone, "the start, at the client")?;
        self.expect(&self.upstream.active, rest, "the rest, at sluice")?;
        self.sent += sent;
        self.received = self.received.wrapping_add(rest.len() as u32);
        self.nothing_more()
    }

    pub(super) fn nothing_more(&self) -> Checked {
        self.silent(&self.client.active, "the client")?;
        self.silent(&self.upstream.active, "sluice")
    }
}
