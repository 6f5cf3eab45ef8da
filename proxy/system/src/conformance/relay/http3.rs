//! An HTTP/3 client that sends what it is told, well-formed or not, and returns the responses as HTTP/1.1.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use qpack::decode_stateless;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, ReadError, RecvStream, SendStream};
use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep;

use super::answer::Answer;
use super::plans::{LOOK, Session, is_gone};
use super::translate::{Field, Message};

const PIECE: usize = 64 * 1024;
const SECTION_BYTES_MAX: u64 = 1 << 20;

const DATA: u64 = 0;
const HEADERS: u64 = 1;
/// The control stream with empty settings.
const CONTROL: &[u8] = &[0, 4, 0];

/// A connection to the proxy.
pub(super) struct Http3Session {
    runtime: Runtime,
    connection: Connection,
    _endpoint: Endpoint,
    _control: SendStream,
}

/// A client like this one, over QUIC.
///
/// # Errors
/// When it has no suite for QUIC.
pub(super) fn config(tls: &rustls::ClientConfig) -> Result<ClientConfig> {
    let mut tls = tls.clone();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    Ok(ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?)))
}

impl Http3Session {
    /// Connects.
    ///
    /// # Errors
    /// When the proxy does not accept it.
    pub(super) fn open(proxy: SocketAddr, config: &ClientConfig) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (endpoint, connection, control) = runtime.block_on(async {
            let endpoint = Endpoint::client(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
            let connection = endpoint.connect_with(config.clone(), proxy, &proxy.ip().to_string())?.await?;
            let mut control = connection.open_uni().await?;
            control.write_all(CONTROL).await?;
            anyhow::Ok((endpoint, connection, control))
        })?;
        Ok(Self { runtime, connection, _endpoint: endpoint, _control: control })
    }
}

impl Session for Http3Session {
    fn exchange(&mut self, message: &Message, client: &mut TcpStream) -> Result<bool> {
        self.runtime.block_on(exchange(&self.connection, message, client))
    }
}

async fn exchange(connection: &Connection, message: &Message, client: &mut TcpStream) -> Result<bool> {
    let runner = client.try_clone()?;
    let (sending, receiving) = connection.open_bi().await?;
    let mut response = Response {
        answer: Answer::new(client, message.is_head()),
        input: Vec::new(),
        data: 0,
        trailed: false,
    };
    let mut uploading = std::pin::pin!(upload(sending, message));
    let mut answering = std::pin::pin!(response.read(receiving));
    let mut uploaded = None;
    loop {
        tokio::select! {
            biased;
            whole = &mut answering => return Ok(whole? && uploaded.is_some_and(|(whole, _)| whole)),
            done = &mut uploading, if uploaded.is_none() => uploaded = Some(done),
            () = sleep(LOOK) => {
                if is_gone(&runner)? {
                    return Ok(false);
                }
            }
        }
    }
}

/// Sends a request, and its end if it has one; returns whether all of it was sent. The stream stays open otherwise.
async fn upload(mut stream: SendStream, message: &Message) -> (bool, SendStream) {
    let sending = async {
        stream.write_all(&head(&message.fields)).await?;
        if !message.body.is_empty() {
            stream.write_all(&frame(DATA, &message.body)).await?;
        }
        if message.whole && !message.trailers.is_empty() {
            stream.write_all(&head(&message.trailers)).await?;
        }
        if message.whole {
            stream.finish()?;
        }
        anyhow::Ok(())
    };
    let whole = sending.await.is_ok() && message.whole;
    (whole, stream)
}

/// A response that is being read.
struct Response<'c> {
    answer: Answer<'c>,
    input: Vec<u8>,
    /// Bytes that are left of a DATA frame.
    data: usize,
    /// Whether trailers were seen, which end it.
    trailed: bool,
}

impl Response<'_> {
    /// Passes it to the runner; returns whether it is complete, and others may follow.
    async fn read(&mut self, mut stream: RecvStream) -> Result<bool> {
        let mut piece = vec![0; PIECE];
        loop {
            match stream.read(&mut piece).await {
                Ok(Some(count)) => self.input.extend_from_slice(&piece[..count]),
                Ok(None) => break,
                Err(ReadError::Reset(_) | ReadError::ConnectionLost(_)) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
            while self.step()? {}
        }
        if self.data > 0 || !self.input.is_empty() {
            bail!("the response ends within a frame");
        }
        if !self.trailed {
            self.answer.data(&[], true)?;
        }
        Ok(!self.answer.closes())
    }

    /// Passes a part of the input; returns whether there may be more.
    fn step(&mut self) -> Result<bool> {
        if self.data > 0 {
            let piece: Vec<u8> = self.input.drain(..self.data.min(self.input.len())).collect();
            self.data -= piece.len();
            self.answer.data(&piece, false)?;
            return Ok(!self.input.is_empty());
        }
        let Some((kind, first)) = number(&self.input) else {
            return Ok(false);
        };
        let Some((length, second)) = number(&self.input[first..]) else {
            return Ok(false);
        };
        let (length, start) = (usize::try_from(length)?, first + second);
        if kind == DATA {
            self.input.drain(..start);
            self.data = length;
            return Ok(true);
        }
        let Some(payload) = self.input.get(start..start + length) else {
            return Ok(false);
        };
        if kind == HEADERS {
            let fields = decode(payload)?;
            self.trailed = !fields.iter().any(|(name, _)| name == b":status");
            self.answer.fields(&fields, false)?;
        }
        self.input.drain(..start + length);
        Ok(true)
    }
}

fn decode(mut section: &[u8]) -> Result<Vec<Field>> {
    let decoded = decode_stateless(&mut section, SECTION_BYTES_MAX).map_err(|error| anyhow!("{error:?}"))?;
    let field = |field: qpack::HeaderField| {
        let (name, value) = field.into_inner();
        (name.into_owned(), value.into_owned())
    };
    Ok(decoded.fields.into_iter().map(field).collect())
}

/// A HEADERS frame.
fn head(fields: &[Field]) -> Vec<u8> {
    frame(HEADERS, &[&[0, 0][..], &fields.iter().flat_map(literal).collect::<Vec<u8>>()].concat())
}

/// A field as a literal without references and without Huffman coding (RFC 9204 section 4.5.6): it can contain any
/// byte. The scheme is the listener's.
fn literal((name, value): &Field) -> Vec<u8> {
    let value = if name == b":scheme" && value == b"http" { b"https" } else { &value[..] };
    [prefixed(0x20, 3, name.len()), name.clone(), prefixed(0, 7, value.len()), value.to_vec()].concat()
}

/// A number behind the upper bits of a byte (RFC 7541 section 5.1).
fn prefixed(upper: u8, bits: u32, number: usize) -> Vec<u8> {
    let most = (1 << bits) - 1;
    let byte = |number: usize| u8::try_from(number).unwrap_or_default();
    if number < most {
        return vec![upper | byte(number)];
    }
    let (mut bytes, mut rest) = (vec![upper | byte(most)], number - most);
    while rest >= 128 {
        bytes.push(byte(rest % 128) | 128);
        rest /= 128;
    }
    bytes.push(byte(rest));
    bytes
}

fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    // Four bytes are enough for every case.
    let length = 0x8000_0000 | u32::try_from(payload.len()).unwrap_or_default();
    [&[u8::try_from(kind).unwrap_or_default()][..], &length.to_be_bytes(), payload].concat()
}

/// The number at the start, and its bytes (RFC 9000 section 16).
fn number(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let length = 1 << (first >> 6);
    let rest = bytes.get(1..length)?;
    let number = rest.iter().fold(u64::from(first & 0x3f), |number, byte| number << 8 | u64::from(*byte));
    Some((number, length))
}
