//! An origin's HTTP/1.1 connection: requests are read one after the other, and answered as requested.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::super::findings::Findings;
use super::super::mode::Mode;
use super::super::plan::Plan;
use super::super::token::Kind;
use super::guard::Answering;
use super::script::{End, Step, script};

const HEAD_BYTES_MAX: usize = 64 << 10;
/// How long the rest of a refused request is read, and how long sluice may take to read a response: on starved cores
/// its clients are slow.
const LINGER: Duration = Duration::from_secs(10);
const RECEIVE_BYTES: usize = 16 << 10;

/// A connection, and bytes that were received but not used.
struct Wire {
    stream: TcpStream,
    received: Vec<u8>,
}

/// A request's head, as far as an origin needs it.
struct Head {
    plan: Option<Plan>,
    length: Option<usize>,
    chunked: bool,
    expects: bool,
}

/// Serves until one side ends.
///
/// # Errors
/// When the connection breaks, which its client sees too.
pub(super) async fn serve(stream: TcpStream, findings: Arc<Findings>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut wire = Wire { stream, received: Vec::new() };
    let mut patience = None;
    loop {
        let head = match patience {
            None => wire.head().await?,
            Some((time, last)) => match timeout(time, wire.head()).await {
                Ok(head) => head?,
                Err(_) => return wire.stream.write_all(last).await,
            },
        };
        let Some(head) = head else {
            return Ok(());
        };
        let Some(plan) = head.plan else {
            // Bytes of an unread body need not be a request.
            return Ok(());
        };
        let answering = Answering::new(&findings, plan.token);
        let end = answer(&mut wire, &head, &plan, &findings).await;
        if matches!(end, Ok(End::Linger)) && !wire.end_in_order().await? {
            // A close during it discards sent bytes.
            findings.break_off(plan.token);
        }
        answering.done();
        let end = end?;
        patience = match end {
            End::Keep => None,
            End::CloseAfter(ms) => Some((Duration::from_millis(ms), &b""[..])),
            End::TimeoutAfter(ms) => Some((Duration::from_millis(ms), TIMED_OUT)),
            End::Close | End::Linger => return Ok(()),
            End::Reset => return wire.stream.set_zero_linger(),
            End::Silence => return wire.silence().await,
        };
    }
}

/// It names no token, because it is true for any client that gets it instead of a response: it comes from a server that
/// was idle.
const TIMED_OUT: &[u8] =
    b"HTTP/1.1 408 Request Timeout\r\nX-Idle: yes\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

async fn answer(wire: &mut Wire, head: &Head, plan: &Plan, findings: &Findings) -> io::Result<End> {
    if !plan.mode.is_early() {
        if head.expects {
            wire.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let body = wire.body(head).await?;
        if let Some(at) = plan.token.difference(0, &body) {
            let got = String::from_utf8_lossy(&body[at..body.len().min(at + 48)]).into_owned();
            findings.fault(format!(
                "origin: the body of request {} ({:?}) differs at byte {at} of {}: {got:?}",
                plan.token,
                plan.mode,
                body.len()
            ));
        }
    }
    if plan.mode == Mode::CloseDelimited {
        // Only a reset shows that it was broken off.
        wire.stream.set_zero_linger()?;
    }
    let (steps, end) = script(plan, &mut plan.token.choices());
    for step in steps {
        match step {
            Step::Write(bytes) => wire.stream.write_all(&bytes).await?,
            Step::Pause(time) => sleep(time).await,
        }
    }
    if plan.mode == Mode::CloseDelimited && !wire.end_in_order().await? {
        // The close that follows is a reset, and discards unread bytes.
        findings.break_off(plan.token);
    }
    // After the response to a smuggled request, everything is off by one.
    let smuggled = plan.token.kind() != Some(Kind::Answer);
    Ok(if smuggled { End::Silence } else { end })
}

impl Wire {
    async fn receive(&mut self) -> io::Result<bool> {
        self.received.reserve(RECEIVE_BYTES);
        Ok(self.stream.read_buf(&mut self.received).await? > 0)
    }

    /// The next head, unless the connection ends before it.
    async fn head(&mut self) -> io::Result<Option<Head>> {
        loop {
            if let Some(end) = self.received.windows(4).position(|four| four == b"\r\n\r\n") {
                let head: Vec<u8> = self.received.drain(..end + 4).collect();
                return Ok(Some(Head::parse(&String::from_utf8_lossy(&head))));
            }
            if self.received.len() > HEAD_BYTES_MAX || !self.receive().await? {
                return Ok(None);
            }
        }
    }

    async fn body(&mut self, head: &Head) -> io::Result<Vec<u8>> {
        if head.chunked {
            return self.chunks().await;
        }
        self.take(head.length.unwrap_or(0)).await
    }

    async fn take(&mut self, bytes: usize) -> io::Result<Vec<u8>> {
        while self.received.len() < bytes {
            if !self.receive().await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.received.drain(..bytes).collect())
    }

    async fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let mut line = Vec::new();
            while !line.ends_with(b"\r\n") {
                line.extend(self.take(1).await?);
            }
            let size = String::from_utf8_lossy(&line).trim().to_owned();
            let size = usize::from_str_radix(&size, 16).map_err(io::Error::other)?;
            let chunk = self.take(size + 2).await?;
            if size == 0 {
                return Ok(body);
            }
            body.extend_from_slice(&chunk[..size]);
        }
    }

    /// Reads everything, and responds to nothing.
    async fn drain(&mut self) -> io::Result<()> {
        while self.receive().await? {
            self.received.clear();
        }
        Ok(())
    }

    /// Waits for the next request or the end.
    async fn silence(&mut self) -> io::Result<()> {
        if self.received.is_empty() {
            self.receive().await?;
        }
        Ok(())
    }

    /// Ends the sending side with a FIN after the last byte, instead of a reset. False if the other side has not read
    /// everything in time, as far as can be known.
    async fn end_in_order(&mut self) -> io::Result<bool> {
        self.stream.shutdown().await?;
        Ok(timeout(LINGER, self.drain()).await.is_ok())
    }
}

impl Head {
    fn parse(text: &str) -> Self {
        let mut lines = text.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let mut head =
            Self { plan: Plan::parse(method, target), length: None, chunked: false, expects: false };
        for line in lines {
            let Some((name, value)) = line.split_once(':') else { continue };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => head.length = value.trim().parse().ok(),
                "transfer-encoding" => head.chunked = true,
                "expect" => head.expects = true,
                _ => {}
            }
        }
        head
    }
}
