//! Tunnels: bytes that enter one end come out of the other, followed by the end.

use std::rc::Rc;

use proptest::prelude::*;

use super::peer::{Ended, Sink, Source};
use super::*;

const ASK: &[u8] = b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
const AGREE: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";

/// What one side does.
#[derive(Clone, Debug)]
struct Side {
    bytes: Vec<u8>,
    pause_ms: u64,
    /// Ends only after the other side has ended.
    waits: bool,
}

fn side(length: BoxedStrategy<usize>) -> impl Strategy<Value = Side> {
    (any::<u64>(), length, 0u64..3000, any::<bool>()).prop_map(|(seed, length, pause_ms, waits)| {
        let mut bytes = vec![0; length];
        fastrand::Rng::with_seed(seed).fill(&mut bytes);
        Side { bytes, pause_ms, waits }
    })
}

/// Sends and half-closes, and at the same time reads to the end; returns what was read.
async fn speak(source: &mut Source, sink: &mut Sink, side: &Side, seed: u64) -> Vec<u8> {
    let (heard, said) =
        (tokio::sync::Notify::new(), fastrand::Rng::with_seed(seed).usize(..=side.bytes.len()));
    let writing = async {
        sink.write(&side.bytes[..said]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(side.pause_ms)).await;
        sink.write(&side.bytes[said..]).await.unwrap();
        if side.waits {
            heard.notified().await;
        }
        sink.finish();
    };
    let reading = async {
        let mut bytes = Vec::new();
        assert_eq!(source.read(usize::MAX, &mut bytes).await, Err(Ended::Eof));
        heard.notify_one();
        bytes
    };
    tokio::join!(writing, reading).1
}

/// Runs a tunnel after an upgrade, or on a `tcp` listener.
async fn tunnel(sides: [Side; 2], behaviours: (Behaviour, Behaviour), http: bool, eager: bool) {
    // Two sides that wait for one another would wait for ever.
    let [client, mut origin] = sides;
    origin.waits &= !client.waits;
    let (to_client, to_origin) = (origin.bytes.clone(), client.bytes.clone());
    let seed = behaviours.1.seed;
    let origin = Rc::new(origin);
    let (network, origins) = network(behaviours.1, move |_, end| {
        let (origin, expected) = (Rc::clone(&origin), to_origin.clone());
        async move {
            let (mut source, mut sink) = (Source::new(&end, None), Sink::new(&end, seed, None));
            drop(end);
            if http {
                assert_eq!(source.head().await.unwrap().get("upgrade"), Some("websocket"));
                sink.write(AGREE).await.unwrap();
            }
            let heard = speak(&mut source, &mut sink, &origin, seed).await;
            assert!(heard == expected, "{} bytes of {}", heard.len(), expected.len());
        }
    });
    let protocol = if http { "" } else { "protocol: tcp, cluster: api," };
    let proxy = Proxy::new(protocol, "", network);
    let end = proxy.connect(behaviours.0);
    let (mut source, mut sink) = (Source::new(&end, None), Sink::new(&end, seed, None));
    drop(end);
    let mut client = client;
    if http {
        sink.write(ASK).await.unwrap();
        if eager {
            // A client may send at once, without waiting for the response.
            let rest = client.bytes.split_off(client.bytes.len() / 2);
            sink.write(&client.bytes).await.unwrap();
            client.bytes = rest;
        }
        assert_eq!(source.head().await.unwrap().line, "HTTP/1.1 101 Switching Protocols");
    }
    let heard = speak(&mut source, &mut sink, &client, seed).await;
    assert!(heard == to_client, "{} bytes of {}", heard.len(), to_client.len());
    proxy.finish().await;
    drop((source, sink));
    ended(&origins).await;
}

fn lengths(most: usize) -> BoxedStrategy<usize> {
    prop_oneof![1 => Just(0), 4 => 1..most].boxed()
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn bytes_in_small_pieces_arrive_in_order_and_then_the_end(
        sides in [side(lengths(2000)), side(lengths(2000))],
        behaviours in (rough(), rough()),
        http: bool,
        eager: bool,
    ) {
        run(tunnel(sides, behaviours, http, eager));
    }

    #[test]
    fn many_bytes_arrive_in_order_and_then_the_end(
        sides in [side(lengths(300_000)), side(lengths(300_000))],
        behaviours in (usual(), usual()),
        http: bool,
        eager: bool,
    ) {
        run(tunnel(sides, behaviours, http, eager));
    }
}
