//! An origin that responds as the target says, and records its requests.

use std::sync::{Arc, Mutex};

use crate::proxy_support::{Message, Origin, Peer, pattern};

/// Its requests, in order.
pub(super) type Asked = Arc<Mutex<Vec<Message>>>;

/// `/KIND/SIZE`: a response of that size and kind.
pub(super) fn origin() -> (Origin, Asked) {
    let asked = Asked::default();
    let shared = Arc::clone(&asked);
    let origin = Origin::playing(move |mut peer| {
        while let Some(more) = exchange(&mut peer, &shared) {
            match more {
                More::Exchanges => {}
                More::Nothing => return,
                More::Reset => return peer.reset(),
            }
        }
    });
    (origin, asked)
}

enum More {
    Exchanges,
    Nothing,
    Reset,
}

fn exchange(peer: &mut Peer, asked: &Asked) -> Option<More> {
    let mut request = peer.try_head().ok()?;
    let mut parts = request.target().split('/').skip(1);
    let kind = parts.next().unwrap().to_owned();
    let size = parts.next().map_or(0, |size| size.parse().unwrap());
    if kind == "refused" {
        // Before the body has arrived, which sluice then discards too.
        peer.try_send(counted(size)).ok()?;
        peer.rest();
        return Some(More::Nothing);
    }
    // A client may stop after the 100: a reader of the requests then has to wait for this one.
    let held = (kind == "continue").then(|| asked.lock().unwrap());
    if held.is_some() {
        peer.try_send("HTTP/1.1 100 Continue\r\n\r\n").ok()?;
    }
    peer.body(&mut request, true);
    held.unwrap_or_else(|| asked.lock().unwrap()).push(request);
    answer(peer, &kind, size)
}

fn answer(peer: &mut Peer, kind: &str, size: usize) -> Option<More> {
    match kind {
        "length" | "continue" => peer.try_send(counted(size)).ok()?,
        "pieces" => counted(size).chunks(977).try_for_each(|piece| peer.try_send(piece)).ok()?,
        "chunked" => peer.try_send(chunked(size)).ok()?,
        "hints" => {
            peer.try_send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n").ok()?;
            peer.try_send(counted(size)).ok()?;
        }
        "last" => {
            let answer = [b"HTTP/1.1 200 OK\r\nConnection: close\r\n", &counted(size)[17..]].concat();
            peer.try_send(answer).ok()?;
            return Some(More::Nothing);
        }
        "silent-close" => {
            peer.try_send(counted(size)).ok()?;
            return Some(More::Nothing);
        }
        "until-close" => {
            peer.try_send([b"HTTP/1.1 200 OK\r\n\r\n", &pattern(size)[..]].concat()).ok()?;
            return Some(More::Nothing);
        }
        "cut" | "torn" => {
            let whole = counted(2 * size);
            peer.try_send(&whole[..whole.len() - size]).ok()?;
            return Some(if kind == "cut" { More::Nothing } else { More::Reset });
        }
        "cut-chunked" => {
            let whole = chunked(size);
            peer.try_send(&whole[..whole.len() - 7]).ok()?;
            return Some(More::Nothing);
        }
        "empty" => peer.try_send("HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n").ok()?,
        "nothing" => return Some(More::Nothing),
        _ => {}
    }
    Some(More::Exchanges)
}

/// With a Content-Length.
fn counted(size: usize) -> Vec<u8> {
    [format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n").as_bytes(), &pattern(size)].concat()
}

/// Chunks of many sizes, and a trailer.
fn chunked(size: usize) -> Vec<u8> {
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n";
    [head, &chunks(&pattern(size))[..], b"x-sum: 1\r\n\r\n"].concat()
}

/// A body in chunks, up to its trailers.
pub(super) fn chunks(mut body: &[u8]) -> Vec<u8> {
    let (mut out, mut size) = (Vec::new(), 1);
    while !body.is_empty() {
        let (chunk, rest) = body.split_at(size.min(body.len()));
        out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
        (body, size) = (rest, (size * 3 + 1) % 40_009 + 1);
    }
    out.extend_from_slice(b"0\r\n");
    out
}
