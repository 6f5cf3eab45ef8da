//! What one client leaves unread or cancels on an upstream connection shared with others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use bytes::Bytes;
use h2::client::Builder;

use super::client::{get, piece, talk_by, to};
use super::server::{Asked, Server};
use super::upstream::setup;
use crate::support::until;

/// As much as a stream's window allows.
const WINDOW: usize = 128 * 1024;

async fn hello(mut asked: Asked) {
    let mut stream = asked.begin(200, &[]);
    stream.send_data(Bytes::from_static(b"hi"), true).unwrap();
}

#[test]
fn unread_small_frames_affect_no_other_exchange() {
    const SLOW: usize = 24;
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let server = Server::new(move |mut asked| {
        let sent = Arc::clone(&counted);
        async move {
            if asked.request.uri().path() != "/slow" {
                return hello(asked).await;
            }
            let mut stream = asked.begin(200, &[]);
            loop {
                stream.reserve_capacity(20);
                let Some(Ok(room)) = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await else {
                    return;
                };
                let count = room.min(20);
                if stream.send_data(Bytes::from_static(&[b'x'; 20]).slice(..count), false).is_err() {
                    return;
                }
                sent.fetch_add(count, SeqCst);
            }
        }
    });
    let Some(proxy) = setup(&server).start() else { return };
    // It never opens a window, so everything has to wait.
    talk_by(&proxy, Builder::new().initial_window_size(0), async |sender| {
        let mut open = Vec::new();
        for _ in 0..SLOW {
            let mut sender = sender.clone().ready().await.unwrap();
            let (response, _) = sender.send_request(to("/slow").body(()).unwrap(), true).unwrap();
            open.push(response.await.unwrap());
        }
        until(|| sent.load(SeqCst) >= SLOW * WINDOW).await;
        assert_eq!(proxy.get("/").text(), "hi");
        assert_eq!((server.connections(), server.open()), (1, 1));
        drop(open);
    });
}

#[test]
fn late_frames_of_cancelled_exchanges_are_no_error() {
    const AT_ONCE: usize = 100;
    let server = Server::new(|mut asked: Asked| async move {
        if asked.request.uri().path() != "/endless" {
            return hello(asked).await;
        }
        let mut stream = asked.begin(200, &[]);
        // Until it is told to stop.
        loop {
            stream.reserve_capacity(256);
            let Some(Ok(room)) = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await else { return };
            if stream.send_data(Bytes::from(vec![b'x'; room.min(256)]), false).is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
    });
    let Some(proxy) = setup(&server).with("limits.http2.resets_max", 1_000_000).start() else { return };
    // There is room for everything that is not read, and late frames are not errors here.
    talk_by(
        &proxy,
        Builder::new()
            .initial_window_size(1000)
            .initial_connection_window_size(16 << 20)
            .max_local_error_reset_streams(None),
        async |sender| {
            for _ in 0..24 {
                let mut asked = Vec::new();
                for _ in 0..AT_ONCE {
                    let mut sender = sender.clone().ready().await.unwrap();
                    asked.push(sender.send_request(to("/endless").body(()).unwrap(), true).unwrap().0);
                }
                let mut open = Vec::new();
                for response in asked {
                    open.push(response.await.unwrap());
                }
                for response in &mut open {
                    piece(response.body_mut()).await.unwrap().unwrap();
                }
            }
            assert_eq!(get(&sender, "/").await.body, b"hi");
        },
    );
    assert_eq!(server.connections(), 1, "the first connection served all of them");
}
