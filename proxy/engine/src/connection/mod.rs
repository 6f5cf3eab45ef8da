//! The life of one downstream connection: read a head, run its exchange, and again. Read this file first.

mod account;
mod answer;
mod close;
mod forward;
mod head;
mod held;
mod http2;
mod passthrough;
mod request;
mod secure;
mod service;
mod tcp;
mod trace;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use head::Arrival;
use sluice_config::{Limits, Protocol};
use sluice_core::metrics::Counted;
use sluice_core::metrics::Event;
use sluice_core::service::entry::ServiceEntry;
use sluice_core::tls::ClientIdentity;
use sluice_http::{HeadScanner, RequestHead};
use sluice_net::buffers::IDLE_BYTES;
use sluice_net::deadline::Deadline;
use sluice_net::listener::ListenerState;
use sluice_net::stream::{self, Reader, Stream, Writer};

use crate::direct;
use crate::worker::{Phase, Worker};

/// One downstream connection.
pub(crate) struct Connection {
    worker: Rc<Worker>,
    listener: Arc<ListenerState>,
    /// The client's address: the peer's, or what a PROXY protocol header says.
    client: IpAddr,
    /// The same as text, for X-Forwarded-For.
    client_text: Rc<str>,
    reader: Reader,
    writer: Writer,
    deadline: Deadline,
    head: RequestHead,
    scanner: HeadScanner,
    exchanges: u64,
    /// Whether answers can be sent to this connection past sluice.
    direct: direct::Client,
    /// The service that the exchange under way is of.
    service: Option<Arc<ServiceEntry>>,
    /// Who the client is by its certificate, where it is asked for one.
    identity: Option<Rc<ClientIdentity>>,
    /// Where the worker finds this connection when it drains; a stream of another one is found by that.
    slot: Option<usize>,
    _open: Option<Counted>,
}

/// What follows an exchange.
pub(crate) enum Next {
    /// The next request.
    KeepAlive,
    /// Send what is under way, then close; what the client still sends is read for a while if `linger`.
    Close { linger: bool },
    /// Close at once and visibly: the client must not take what it has for complete.
    Abort { reset: bool },
}

impl Connection {
    /// Takes an accepted connection.
    pub(crate) fn new(
        worker: Rc<Worker>,
        listener: Arc<ListenerState>,
        stream: Stream,
        client: IpAddr,
    ) -> Self {
        let open = worker.count_while(Event::DownstreamAccepted, Event::DownstreamClosed);
        let slot = worker.enrol(stream.clone(), Arc::clone(&listener));
        let mut connection = Self::bare(worker, listener, stream, (client, client_text(client)));
        (connection.slot, connection._open) = (Some(slot), Some(open));
        connection
    }

    fn bare(
        worker: Rc<Worker>,
        listener: Arc<ListenerState>,
        stream: Stream,
        (client, client_text): (IpAddr, Rc<str>),
    ) -> Self {
        let (reader, writer) = stream::halves(stream);
        // Nobody, until a certificate is seen.
        let asks = listener.tls().is_some_and(|tls| tls.asks_for_certificates());
        let identity = asks.then(|| Rc::new(ClientIdentity::new(None)));
        Self {
            deadline: Deadline::new(std::time::Duration::from_millis(
                listener.config.limits.keep_alive_timeout_ms,
            )),
            worker,
            listener,
            client,
            client_text,
            reader,
            writer,
            head: RequestHead::new(),
            scanner: HeadScanner::new(),
            exchanges: 0,
            direct: direct::Client::default(),
            service: None,
            identity,
            slot: None,
            _open: None,
        }
    }

    /// Notes what it is doing, for the drain.
    fn set_phase(&self, phase: Phase) {
        if let Some(slot) = self.slot {
            self.worker.set_phase(slot, phase);
        }
    }

    /// Whether what is under way is the last of this connection.
    fn is_ending(&self) -> bool {
        self.worker.is_draining() || self.listener.is_closed()
    }

    fn limits(&self) -> &Limits {
        &self.listener.config.limits
    }

    /// Serves requests until the connection ends.
    pub(crate) async fn serve(mut self) {
        // Boxed, for most of its life a connection is neither greeted nor secured.
        if !self.greet().await || (self.listener.tls().is_some() && !Box::pin(self.secure()).await) {
            return;
        }
        match self.listener.config.protocol {
            Protocol::Http => {}
            Protocol::Tcp => return Box::pin(self.tunnel_connection()).await,
            Protocol::TlsPassthrough => return Box::pin(self.pass_through()).await,
        }
        match self.begins_http2().await {
            Some(true) => Box::pin(self.serve_http2()).await,
            Some(false) => self.serve_requests().await,
            None => {}
        }
    }

    /// Serves requests of HTTP/1.1 until the connection ends.
    async fn serve_requests(mut self) {
        loop {
            let next = match self.next_head().await {
                Arrival::Head => {
                    self.set_phase(Phase::Busy);
                    if self.exchanges > 0 {
                        self.worker.metrics().count(Event::DownstreamReused);
                    }
                    self.exchanges += 1;
                    // Boxed, so that an idle connection does not hold the memory of an exchange.
                    Box::pin(self.exchange()).await
                }
                Arrival::Refused(reason) if self.is_broken_preface(reason) => self.drop_unanswered(reason),
                Arrival::Refused(reason) => {
                    let is_head = self.reader.data().starts_with(b"HEAD ");
                    Box::pin(self.refuse(reason, is_head)).await
                }
                // The last answer may still be leaving: a client that has half-closed may read slowly.
                Arrival::Closed => Next::Close { linger: false },
            };
            match next {
                // Also when it is to end: the client was not told, so its next request may be on its way.
                Next::KeepAlive => self.rest(),
                end => return self.follow(end).await,
            }
        }
    }

    /// Ends the connection as its last exchange asks for.
    async fn follow(&mut self, next: Next) {
        match next {
            Next::KeepAlive => Box::pin(self.close(false)).await,
            Next::Close { linger } => Box::pin(self.close(linger)).await,
            Next::Abort { reset } => Box::pin(self.abort(reset)).await,
        }
    }

    /// Prepares for the wait between two requests.
    fn rest(&mut self) {
        self.set_phase(Phase::Idle);
        self.service = None;
        self.reader.shrink(IDLE_BYTES);
        self.writer.shrink(sluice_net::buffers::SMALL_BYTES);
    }
}

fn client_text(client: IpAddr) -> Rc<str> {
    client.to_canonical().to_string().into()
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.worker.strike_off(slot);
        }
    }
}
