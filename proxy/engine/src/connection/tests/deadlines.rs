//! What happens when one side is silent for too long; slowness alone is not a fault.

use std::rc::Rc;

use tokio::time::{Instant, sleep};

use super::client::{Manner, Outcome, Shared, converse};
use super::exchange::Exchange;
use super::origin::{Script, serve};
use super::peer::{Ended, Fault, Framing, Kind, Sink, Source};
use super::*;

const TIMEOUTS: &str = "response_timeout_ms: 3000, body_idle_timeout_ms: 5000,";

/// Runs one exchange with these faults of reading and of writing; returns the outcome and its time.
async fn with_faults(
    exchange: Exchange,
    client: [Option<Fault>; 2],
    origin: [Option<Fault>; 2],
) -> (Option<Outcome>, Duration) {
    let exchanges: Shared = Rc::new(vec![exchange]);
    let script = Script::new(&exchanges);
    let (network, origins) = network(CALM, move |_, end| serve(Rc::clone(&script), end, 1, origin));
    let proxy = Proxy::new("", TIMEOUTS, network);
    let begun = Instant::now();
    let manner = Manner { seed: 1, pipelines: true, faults: client };
    let outcomes = converse(proxy.connect(CALM), &exchanges, 0, manner).await;
    let taken = begun.elapsed();
    proxy.finish().await;
    ended(&origins).await;
    (outcomes.first().copied(), taken)
}

fn stall(after: usize) -> Option<Fault> {
    Some(Fault { after, kind: Kind::Stall })
}

fn between(taken: Duration, low_ms: u64, high_ms: u64) {
    let taken = taken.as_millis() as u64;
    assert!((low_ms..high_ms).contains(&taken), "after {taken} ms of the test's clock");
}

#[test]
fn an_origin_that_does_not_respond_is_a_504() {
    let (outcome, taken) = run(with_faults(Exchange::get(10), [None, None], [None, stall(0)]));
    assert_eq!(outcome, Some(Outcome::Local(504)));
    between(taken, 3000, 4000);
}

#[test]
fn an_origin_that_stops_inside_its_head_is_a_504() {
    let (outcome, taken) = run(with_faults(Exchange::get(10), [None, None], [None, stall(12)]));
    assert_eq!(outcome, Some(Outcome::Local(504)));
    between(taken, 3000, 4000);
}

#[test]
fn a_stalled_response_is_truncated_visibly() {
    let (outcome, taken) = run(with_faults(Exchange::get(50_000), [None, None], [None, stall(20_000)]));
    assert_eq!(outcome, Some(Outcome::Cut));
    between(taken, 5000, 8000);
}

#[test]
fn a_stalled_request_body_is_a_408() {
    let (outcome, taken) = run(with_faults(Exchange::post(50_000), [None, stall(20_000)], [None, None]));
    assert_eq!(outcome, Some(Outcome::Local(408)));
    between(taken, 5000, 8000);
}

#[test]
fn a_stalled_request_head_is_a_408() {
    let (outcome, taken) = run(with_faults(Exchange::get(10), [None, stall(12)], [None, None]));
    assert_eq!(outcome, Some(Outcome::Local(408)));
    between(taken, 10_000, 11_000);
}

#[test]
fn an_origin_that_does_not_read_is_a_504() {
    let (outcome, taken) = run(with_faults(Exchange::post(3_000_000), [None, None], [stall(1000), None]));
    assert_eq!(outcome, Some(Outcome::Local(504)));
    between(taken, 5000, 8000);
}

/// Reads a response of `length` bytes, 5000 bytes per second.
async fn read_slowly(end: &End, length: usize) -> Source {
    let mut source = Source::new(end, None);
    assert_eq!(source.head().await.unwrap().framing(Framing::Close), Framing::Length(length));
    let mut body = Vec::new();
    while body.len() < length {
        sleep(Duration::from_secs(1)).await;
        source.read(5000.min(length - body.len()), &mut body).await.unwrap();
    }
    assert_eq!(body, Exchange::get(length).answered(0));
    source
}

/// A proxy whose client side accepts 5 KB at a time, and the request for a response of `length` bytes.
async fn ask_narrowly(listener: &str, length: usize) -> (Proxy, End) {
    let exchanges: Shared = Rc::new(vec![Exchange::get(length)]);
    let script = Script::new(&exchanges);
    let (network, _) = network(CALM, move |_, end| serve(Rc::clone(&script), end, 1, [None, None]));
    let proxy = Proxy::new(listener, TIMEOUTS, network);
    let end = proxy.connect(Behaviour { capacity: 5000, ..CALM });
    Sink::new(&end, 1, None).write(&exchanges[0].request_head(0)).await.unwrap();
    (proxy, end)
}

#[test]
fn a_slow_reader_that_progresses_gets_everything() {
    for length in [15_000, 60_000, 400_000] {
        run(async {
            let (proxy, end) = ask_narrowly("", length).await;
            drop(read_slowly(&end, length).await);
            drop(end);
            proxy.finish().await;
        });
    }
}

#[test]
fn a_slow_reader_that_has_half_closed_gets_everything() {
    for length in [15_000, 60_000, 400_000] {
        run(async {
            // After a half-close, the proxy waits only for this long while no bytes are seen to leave.
            let (proxy, end) = ask_narrowly("limits: {half_close_timeout_ms: 10000},", length).await;
            end.shutdown_write();
            let mut source = read_slowly(&end, length).await;
            assert_eq!(source.rest().await, (0, Ended::Eof));
            proxy.finish().await;
        });
    }
}

#[test]
fn a_reader_that_stops_is_dropped() {
    run(async {
        let (proxy, end) = ask_narrowly("", 400_000).await;
        proxy.finish().await;
        drop(end);
    });
}

#[test]
fn an_idle_connection_is_closed_without_a_response() {
    let (network, _) = network(CALM, |_, _| async {});
    run(async {
        let proxy = Proxy::new("", "", network);
        let end = proxy.connect(CALM);
        let begun = Instant::now();
        assert_eq!(Source::new(&end, None).rest().await, (0, Ended::Eof));
        between(begun.elapsed(), 20_000, 21_000);
        proxy.finish().await;
    });
}

/// The status that a client gets which sends a body of 6000 bytes in pieces of this size, one a second, and the time.
async fn upload_slowly(route: &str, piece: usize) -> (u16, Duration) {
    let exchanges: Shared = Rc::new(vec![Exchange::post(6000)]);
    let script = Script::new(&exchanges);
    let (network, _) = network(CALM, move |_, end| serve(Rc::clone(&script), end, 1, [None, None]));
    let proxy = Proxy::with_route(route, ("limits: {receive_rate_min: 100b},", TIMEOUTS), network);
    let end = proxy.connect(CALM);
    let begun = Instant::now();
    let mut sink = Sink::new(&end, 1, None);
    let sending = async {
        sink.write(&exchanges[0].request_head(0)).await?;
        for piece in exchanges[0].request_body(0).chunks(piece) {
            sleep(Duration::from_secs(1)).await;
            sink.write(piece).await?;
        }
        std::future::pending::<Result<(), Ended>>().await
    };
    let mut source = Source::new(&end, None);
    let head = tokio::select! {
        head = source.head() => head,
        _ = sending => source.head().await,
    };
    (head.unwrap().line[9..12].parse().unwrap(), begun.elapsed())
}

#[test]
fn a_client_that_dribbles_its_body_is_a_408() {
    for route in ["", "buffer_requests: on,"] {
        let (status, taken) = run(upload_slowly(route, 10));
        assert_eq!(status, 408, "{route}");
        // The wait for the first byte does not count.
        between(taken, 11_000, 14_000);
        let (status, taken) = run(upload_slowly(route, 150));
        assert_eq!(status, 200, "{route}");
        between(taken, 40_000, 42_000);
    }
}

#[test]
fn a_request_that_has_arrived_when_idle_connections_end_is_served() {
    run(async {
        let exchanges: Shared = Rc::new(vec![Exchange::post(6000)]);
        let script = Script::new(&exchanges);
        let (network, origins) = network(CALM, move |_, end| serve(Rc::clone(&script), end, 1, [None, None]));
        let proxy = Proxy::new("", TIMEOUTS, network);
        let (end, silent) = (proxy.connect(CALM), proxy.connect(CALM));
        // Both connections wait for a message.
        sleep(Duration::from_secs(2)).await;
        let mut request = exchanges[0].request_head(0);
        let body = exchanges[0].request_body(0);
        request.extend_from_slice(&body[..100]);
        // Without a pause in which the proxy's task could look at them.
        end.send(request, 0, true).await.0.unwrap();
        proxy.worker.drain();
        assert_eq!(Source::new(&silent, None).rest().await, (0, Ended::Eof));
        sleep(Duration::from_secs(2)).await;
        Sink::new(&end, 1, None).write(&body[100..]).await.unwrap();
        let mut source = Source::new(&end, None);
        let head = source.head().await.unwrap();
        assert!(head.line.starts_with("HTTP/1.1 200"), "{head:?}");
        assert_eq!(head.get("connection"), Some("close"));
        drop((source, end, silent));
        proxy.finish().await;
        ended(&origins).await;
    });
}
