//! The client of a request that nobody waits for: it takes everything, and never leaves.

use std::io;
use std::task::{Context, Poll};

use sluice_http::{FieldBlock, Trailers};
use sluice_net::stream::Channel;

/// Takes a response and drops it.
pub(crate) struct Sink;

impl Channel for Sink {
    fn send_head(&self, _: &FieldBlock, _ends: bool) -> io::Result<()> {
        Ok(())
    }

    fn poll_recv(&self, _: &mut Context<'_>, _buf: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        Poll::Pending
    }

    fn has_ended(&self) -> bool {
        false
    }

    fn trailers(&self, _show: &mut dyn FnMut(&[u8], &[u8])) {}

    fn push(&self, buf: &mut Vec<u8>, start: usize) -> io::Result<usize> {
        Ok(buf.len() - start)
    }

    fn end_after(&self, _bytes: usize, _: &Trailers) -> io::Result<()> {
        Ok(())
    }

    fn poll_room(&self, _: &mut Context<'_>, _wanted: usize) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
