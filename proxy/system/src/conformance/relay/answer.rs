//! Writes a response of HTTP/2 or HTTP/3 as HTTP/1.1.

use std::io::Write;
use std::net::TcpStream;

use anyhow::{Context, Result, bail};

use super::translate::Field;

/// A response for the runner.
pub(super) struct Answer<'c> {
    pub(super) client: &'c mut TcpStream,
    /// The request was HEAD.
    head: bool,
    body: Body,
    /// Whether it refuses a request that is not one.
    refuses: bool,
}

/// How a response is being written to the runner.
#[derive(Clone, Copy, PartialEq)]
enum Body {
    /// No final head yet.
    Awaited,
    None,
    Counted,
    Chunked,
}

impl<'c> Answer<'c> {
    /// Nothing received yet.
    pub(super) fn new(client: &'c mut TcpStream, head: bool) -> Self {
        Self { client, head, body: Body::Awaited, refuses: false }
    }

    /// Whether HTTP/1.1 would close after it: where that request ends, and what follows, is not known there.
    pub(super) fn closes(&self) -> bool {
        self.refuses
    }

    /// A head, or trailers; `ends` says that nothing follows.
    ///
    /// # Errors
    /// When the runner does not accept it, or it is not a response.
    pub(super) fn fields(&mut self, fields: &[Field], ends: bool) -> Result<()> {
        match self.body {
            Body::Awaited => self.start(fields, ends),
            Body::Chunked => Ok(self.client.write_all(&[b"0\r\n", &lines(fields)[..], b"\r\n"].concat())?),
            Body::None | Body::Counted => Ok(()),
        }
    }

    /// A part of the body.
    ///
    /// # Errors
    /// As `fields`.
    pub(super) fn data(&mut self, payload: &[u8], ends: bool) -> Result<()> {
        match self.body {
            Body::Chunked => {
                if !payload.is_empty() {
                    let size = format!("{:x}\r\n", payload.len());
                    self.client.write_all(&[size.as_bytes(), payload, b"\r\n"].concat())?;
                }
                if ends {
                    self.client.write_all(b"0\r\n\r\n")?;
                }
            }
            Body::Counted => self.client.write_all(payload)?,
            Body::Awaited | Body::None if payload.is_empty() => {}
            Body::Awaited | Body::None => bail!("DATA that has no place"),
        }
        Ok(())
    }

    fn start(&mut self, fields: &[Field], ends: bool) -> Result<()> {
        let (_, status) = fields.iter().find(|(name, _)| name == b":status").context("no :status")?;
        let status = String::from_utf8_lossy(status);
        self.refuses = status == "400";
        let mut text = format!("HTTP/1.1 {status} \r\n").into_bytes();
        text.extend(lines(fields));
        let counted = fields.iter().any(|(name, _)| name == b"content-length");
        self.body = match &*status {
            early if early.starts_with('1') => Body::Awaited,
            "204" | "304" => Body::None,
            _ if self.head => Body::None,
            _ if counted => Body::Counted,
            _ if ends => {
                text.extend(b"content-length: 0\r\n");
                Body::None
            }
            _ => {
                text.extend(b"transfer-encoding: chunked\r\n");
                Body::Chunked
            }
        };
        text.extend(b"\r\n");
        Ok(self.client.write_all(&text)?)
    }
}

fn lines(fields: &[Field]) -> Vec<u8> {
    let real = fields.iter().filter(|(name, _)| !name.starts_with(b":"));
    real.flat_map(|(name, value)| [&name[..], b": ", value, b"\r\n"].concat()).collect()
}
