//! Response bodies of the demo origin: complete, from a repeated block, over time, or copied from the request.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::mpsc;

/// One block of `/bytes`: printable, with line ends, so that it does not garble a terminal.
const BLOCK: &[u8; 64 * 256] = &{
    let mut block = [b'.'; 64 * 256];
    let mut i = 63;
    while i < block.len() {
        block[i] = b'\n';
        i += 64;
    }
    block
};

/// A response body.
pub(super) enum DemoBody {
    /// A complete body.
    Whole(Bytes),
    /// Remaining bytes of a repeated block.
    Repeat(u64),
    /// Pieces produced by a task.
    Pieces(mpsc::Receiver<Bytes>),
    /// The request's own body.
    Echo(Incoming),
}

impl Body for DemoBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let piece = match self.get_mut() {
            Self::Echo(incoming) => return Pin::new(incoming).poll_frame(cx),
            Self::Pieces(pieces) => ready!(pieces.poll_recv(cx)),
            Self::Whole(bytes) => Some(std::mem::take(bytes)).filter(|bytes| !bytes.is_empty()),
            Self::Repeat(left) => {
                let n = usize::try_from(*left).map_or(BLOCK.len(), |left| left.min(BLOCK.len()));
                *left -= n as u64;
                (n > 0).then(|| Bytes::from_static(&BLOCK[..n]))
            }
        };
        Poll::Ready(piece.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Repeat(left) => *left == 0,
            Self::Pieces(_) => false,
            Self::Echo(incoming) => incoming.is_end_stream(),
        }
    }

    /// An exact hint becomes Content-Length; without one the response is chunked.
    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Repeat(left) => SizeHint::with_exact(*left),
            Self::Pieces(_) => SizeHint::default(),
            Self::Echo(incoming) => incoming.size_hint(),
        }
    }
}
