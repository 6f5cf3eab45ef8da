//! The guarantees of a transfer for any division of its input, and how much of the input it takes.
#![allow(clippy::unwrap_used)]

use std::future::Future;

use proptest::collection::vec;
use proptest::prelude::*;
use sluice_net::stream::{self, Stream, memory};

use super::*;

const LIMITS: ChunkLimits = ChunkLimits { line_bytes_max: 64, trailer_bytes_max: 256 };

fn transfer(from: Framing, to: Framing, bytes_max: u64) -> Transfer {
    Transfer::new(from, to, LIMITS, bytes_max)
}

/// The output, how much input was taken, and whether the body has ended.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    out: Vec<u8>,
    taken: usize,
    done: bool,
}

/// Passes `input` in pieces of these sizes, the last piece with all the rest, and then the end if `ends`.
fn pass_in(transfer: &mut Transfer, input: &[u8], sizes: &[usize], ends: bool) -> Result<Outcome, BodyError> {
    let (mut out, mut taken, mut sizes) = (Vec::new(), 0, sizes.iter());
    loop {
        let size = sizes.next().copied().unwrap_or(input.len());
        let piece = &input[taken..input.len().min(taken + size)];
        let count = transfer.push(piece, &mut out)?;
        taken += count;
        assert!(count == piece.len() || transfer.is_done(), "input left over before the end");
        if transfer.is_done() || taken == input.len() {
            break;
        }
    }
    if ends {
        transfer.end(&mut out)?;
    }
    Ok(Outcome { out, taken, done: transfer.is_done() })
}

/// A body in chunks of these sizes.
fn chunked(bytes: &[u8], sizes: &[usize], trailers: &[u8]) -> Vec<u8> {
    let (mut out, mut rest, mut sizes) = (Vec::new(), bytes, sizes.iter());
    while !rest.is_empty() {
        let size = sizes.next().copied().unwrap_or(rest.len()).clamp(1, rest.len());
        out.extend(format!("{size:x};e=\"1\"\r\n").into_bytes());
        out.extend_from_slice(&rest[..size]);
        out.extend_from_slice(b"\r\n");
        rest = &rest[size..];
    }
    out.extend_from_slice(b"0\r\n");
    out.extend_from_slice(trailers);
    out.extend_from_slice(b"\r\n");
    out
}

/// The body in `framed`, as decoded by a transfer that removes the framing.
fn plain(framing: Framing, framed: &[u8]) -> Vec<u8> {
    let mut transfer = transfer(framing, Framing::CloseDelimited, u64::MAX);
    let outcome = pass_in(&mut transfer, framed, &[], framing == Framing::CloseDelimited).unwrap();
    assert!(outcome.done && outcome.taken == framed.len());
    outcome.out
}

const FRAMINGS: [Framing; 3] = [Framing::Length(0), Framing::Chunked, Framing::CloseDelimited];

/// `bytes` framed like `kind`, and the exact framing.
fn frame(kind: Framing, bytes: &[u8], sizes: &[usize], trailers: &[u8]) -> (Framing, Vec<u8>) {
    match kind {
        Framing::Chunked => (kind, chunked(bytes, sizes, trailers)),
        Framing::CloseDelimited | Framing::Stream | Framing::None => (kind, bytes.to_vec()),
        Framing::Length(_) => (Framing::Length(bytes.len() as u64), bytes.to_vec()),
    }
}

proptest! {
    #[test]
    fn any_division_gives_the_same_body(
        bytes in vec(any::<u8>(), 0..400),
        kinds in (prop::sample::select(&FRAMINGS[..]), prop::sample::select(&FRAMINGS[..])),
        chunks in vec(1usize..60, 0..10),
        pieces in vec(1usize..30, 0..60),
    ) {
        let trailers = b"X-A: b\r\n";
        let (from, input) = frame(kinds.0, &bytes, &chunks, trailers);
        // A body with a length keeps it; no other body can get one, because its length is unknown.
        let to = match (from, kinds.1) {
            (Framing::Length(_), _) => from,
            (_, Framing::Length(_)) => Framing::CloseDelimited,
            (_, to) => to,
        };
        let mut transfer = transfer(from, to, u64::MAX);
        let outcome = pass_in(&mut transfer, &input, &pieces, from == Framing::CloseDelimited).unwrap();
        prop_assert!(outcome.done);
        prop_assert_eq!(outcome.taken, input.len());
        prop_assert_eq!(transfer.bytes(), bytes.len() as u64);
        prop_assert_eq!(transfer.remaining(), Some(0));
        prop_assert_eq!(plain(to, &outcome.out), bytes);
        if (from, to) == (Framing::Chunked, Framing::Chunked) {
            prop_assert!(outcome.out.ends_with(b"0\r\nX-A: b\r\n\r\n"));
        }
    }

    #[test]
    fn bytes_after_a_body_are_not_taken(
        bytes in vec(any::<u8>(), 0..200),
        is_chunked: bool,
        chunks in vec(1usize..60, 0..10),
        next in vec(any::<u8>(), 0..50),
    ) {
        let kind = if is_chunked { Framing::Chunked } else { Framing::Length(0) };
        let (from, body) = frame(kind, &bytes, &chunks, b"");
        let input = [body.as_slice(), &next].concat();
        let mut transfer = transfer(from, from, u64::MAX);
        let outcome = pass_in(&mut transfer, &input, &[], false).unwrap();
        prop_assert!(outcome.done);
        prop_assert_eq!(outcome.taken, body.len());
        prop_assert_eq!(transfer.push(&next, &mut Vec::new()), Ok(0));
    }

    #[test]
    fn a_truncated_body_never_looks_complete(
        bytes in vec(any::<u8>(), 1..200),
        is_chunked: bool,
        chunks in vec(1usize..60, 0..10),
        cut in any::<prop::sample::Index>(),
    ) {
        let kind = if is_chunked { Framing::Chunked } else { Framing::Length(0) };
        let (from, body) = frame(kind, &bytes, &chunks, b"");
        let cut = cut.index(body.len());
        let mut transfer = transfer(from, from, u64::MAX);
        let outcome = pass_in(&mut transfer, &body[..cut], &[7, 7, 7], false).unwrap();
        prop_assert!(!outcome.done);
        prop_assert_eq!(transfer.end(&mut Vec::new()), Err(BodyError::Incomplete));
    }

    #[test]
    fn the_limit_is_exact(
        bytes in vec(any::<u8>(), 1..200),
        kind in prop::sample::select(&FRAMINGS[..]),
        chunks in vec(1usize..60, 0..10),
        pieces in vec(1usize..30, 0..60),
    ) {
        let (from, input) = frame(kind, &bytes, &chunks, b"");
        let length = bytes.len() as u64;
        let ends = from == Framing::CloseDelimited;
        prop_assert!(pass_in(&mut transfer(from, from, length), &input, &pieces, ends).is_ok());
        let over = pass_in(&mut transfer(from, from, length - 1), &input, &pieces, ends);
        prop_assert_eq!(over, Err(BodyError::TooLarge));
    }
}

#[test]
fn an_absent_body_is_done() {
    for framing in [Framing::None, Framing::Length(0)] {
        let mut transfer = transfer(framing, framing, 0);
        assert!(transfer.is_done());
        assert_eq!(transfer.framing(), framing);
        assert_eq!(transfer.push(b"next", &mut Vec::new()), Ok(0));
        assert_eq!(transfer.end(&mut Vec::new()), Ok(()));
    }
}

#[test]
fn malformed_chunks_are_refused() {
    let mut transfer = transfer(Framing::Chunked, Framing::Chunked, u64::MAX);
    assert_eq!(transfer.push(b"1\r\nab\r\n", &mut Vec::new()), Err(BodyError::Malformed));
}

#[test]
fn a_body_is_declared_with_the_framing_it_is_sent_with() {
    let leaves = |from, to| transfer(from, to, u64::MAX).framing();
    assert_eq!(leaves(Framing::Length(5), Framing::Length(5)), Framing::Length(5));
    assert_eq!(leaves(Framing::CloseDelimited, Framing::Chunked), Framing::Chunked);
    assert_eq!(leaves(Framing::CloseDelimited, Framing::CloseDelimited), Framing::CloseDelimited);
    assert_eq!(leaves(Framing::Chunked, Framing::Chunked), Framing::Chunked);
    for from in [Framing::Chunked, Framing::Stream] {
        let mut transfer = transfer(from, Framing::Chunked, u64::MAX);
        transfer.set_receiver(Version::Http2);
        assert_eq!(transfer.framing(), Framing::Stream);
        transfer.set_receiver(Version::Http11);
        assert_eq!(transfer.framing(), Framing::Chunked);
    }
}

/// A stream ends when its protocol says so, and not when no more bytes arrive.
#[test]
fn a_truncated_stream_never_looks_complete() {
    let mut transfer = transfer(Framing::Stream, Framing::Stream, u64::MAX);
    assert_eq!(transfer.push(b"abc", &mut Vec::new()), Ok(3));
    assert_eq!(transfer.end(&mut Vec::new()), Err(BodyError::Incomplete));
}

#[tokio::test]
async fn a_dropped_copy_counts_only_what_it_sent() {
    let behaviour = memory::Behaviour { seed: 1, piece_max: 64, capacity: 64, stall_of: 4 };
    let (client, downstream) = memory::connection(behaviour);
    let (upstream, _origin) = memory::connection(behaviour);
    drop(client.send(b"the rest".to_vec(), 0, true));
    let (mut reader, _writer) = stream::halves(Stream::Memory(downstream));
    let (_reader, mut writer) = stream::halves(Stream::Memory(upstream));
    // Nobody reads at the other end, so this never settles.
    writer.submit(vec![0; 64 * 1024], 0);

    let (limits, length) = (ChunkLimits { line_bytes_max: 0, trailer_bytes_max: 0 }, Framing::Length(8));
    let mut transfer = Transfer::new(length, length, limits, u64::MAX);
    let (deadline, buffers) = (Deadline::new(std::time::Duration::from_secs(60)), Buffers::new(0));
    {
        let copy = copy(&mut reader, &mut writer, &mut transfer, Vec::new(), &deadline, &buffers);
        let mut copy = std::pin::pin!(copy);
        for _ in 0..100 {
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(copy.as_mut().poll(&mut cx).is_pending());
        }
    }
    assert!(!reader.data().is_empty(), "the body has arrived");
    assert_eq!(transfer.bytes(), 0, "bytes were counted that were never sent");
}

#[test]
fn a_last_chunk_alone_counts_as_a_body() {
    let passed = |framing, bytes: &[u8]| {
        let mut transfer = Transfer::new(framing, framing, LIMITS, u64::MAX);
        transfer.push(bytes, &mut Vec::new()).unwrap();
        (transfer.is_done(), transfer.has_carried())
    };
    assert_eq!(passed(Framing::None, b""), (true, false));
    assert_eq!(passed(Framing::Length(0), b""), (true, false));
    assert_eq!(passed(Framing::Length(1), b"x"), (true, true));
    assert_eq!(passed(Framing::Chunked, b"0\r\n\r\n"), (true, true));
}
