//! Buffered bodies: what is in memory and what in a file, and who waits for whom.

use std::rc::Rc;

use super::client::{Manner, Outcome, Shared, converse};
use super::exchange::{Coding, Exchange, Message};
use super::origin::{Script, serve};
use super::peer::{Ended, Fault, Framing, Kind, Sink, Source};
use super::*;

const TIMEOUTS: &str = "response_timeout_ms: 3000, body_idle_timeout_ms: 5000,";

/// A proxy whose route has these keys, in front of origins that play the exchange.
fn proxy(route: &str, exchange: Exchange) -> (Proxy, Rc<Script>, Origins, Shared) {
    let held = (route.contains("buffer_requests: on"), route.contains("buffer_responses: on"));
    let exchanges: Shared = Rc::new(vec![Exchange { held, ..exchange }]);
    let script = Script::new(&exchanges);
    let shared = Rc::clone(&script);
    let (network, origins) =
        network(CALM, move |number, end| serve(Rc::clone(&shared), end, number as u64, [None, None]));
    (Proxy::with_route(route, ("", TIMEOUTS), network), script, origins, exchanges)
}

const CALMLY: Manner = Manner { seed: 1, pipelines: false, faults: [None, None] };

/// The outcome of one exchange, and the number of files it created.
fn play(route: &str, exchange: Exchange) -> (Option<Outcome>, u64) {
    run(async {
        let (proxy, _, origins, exchanges) = proxy(route, exchange);
        let outcomes = converse(proxy.connect(CALM), &exchanges, 0, CALMLY).await;
        proxy.finish().await;
        ended(&origins).await;
        (outcomes.first().copied(), proxy.worker.metrics().budget().files_made())
    })
}

fn chunked(length: usize) -> Message {
    Message { length, coding: Coding::Chunked { size: 700, extended: false, trailers: false } }
}

#[test]
fn a_file_is_created_for_the_first_byte_beyond_memory() {
    const MEMORY: usize = 10_000;
    for (length, files) in [(0, 0), (1, 0), (MEMORY - 1, 0), (MEMORY, 0), (MEMORY + 1, 1), (300_000, 1)] {
        let requests = format!("buffer_requests: on, buffer_memory_bytes: {MEMORY},");
        let responses = format!("buffer_responses: on, buffer_memory_bytes: {MEMORY},");
        let mut asked = Exchange::post(length);
        asked.answer.message.length = 5;
        let mut asked_in_chunks = asked.clone();
        asked_in_chunks.body = Some(chunked(length));
        let mut answered_in_chunks = Exchange::get(length);
        answered_in_chunks.answer.message = chunked(length);
        for (route, exchange) in [
            (&requests, asked),
            (&requests, asked_in_chunks),
            (&responses, Exchange::get(length)),
            (&responses, answered_in_chunks),
        ] {
            // A response without a body is not buffered, so it stays chunked.
            let told = format!("{length} bytes, {exchange:?}");
            assert_eq!(play(route, exchange), (Some(Outcome::Whole), files), "{told}");
        }
    }
}

#[test]
fn buffered_or_limited_responses_never_use_direct_return() {
    let goes_direct = |route: &str| {
        let proxy = proxy(route, Exchange::get(1)).0;
        proxy.worker.snapshot().routes[0].direct_return
    };
    assert!(run(async { goes_direct("") && goes_direct("request_body_bytes_max: 9,") }));
    for key in ["buffer_requests: on,", "buffer_responses: on,", "response_body_bytes_max: 9,"] {
        assert!(!run(async { goes_direct(key) }), "{key}");
    }
}

#[test]
fn without_memory_the_whole_body_goes_into_a_file() {
    assert_eq!(play(&holding(0), Exchange::post(5000)), (Some(Outcome::Whole), 2));
}

#[test]
fn a_request_beyond_the_spool_is_a_503_and_a_response_a_500() {
    let length = SPOOL as usize + 2000;
    assert_eq!(play(&holding(1000), Exchange::post(length)).0, Some(Outcome::Local(503)));
    assert_eq!(play(&holding(1000), Exchange::get(length)).0, Some(Outcome::Local(500)));
    assert_eq!(play(&holding(2000), Exchange::get(length)).0, Some(Outcome::Whole));
}

#[test]
fn beyond_the_total_memory_a_body_goes_into_a_file() {
    let beyond = MEMORY as usize + 100_000;
    let (outcome, files) = play(&holding(1 << 30), Exchange::get(beyond));
    assert_eq!((outcome, files), (Some(Outcome::Whole), 1));
    assert_eq!(play(&holding(1 << 30), Exchange::get(1_000_000)), (Some(Outcome::Whole), 0));
}

#[test]
fn the_limits_of_a_route_apply_with_and_without_buffering() {
    for on in ["", "buffer_requests: on, buffer_responses: on,"] {
        let asked = format!("{on} request_body_bytes_max: 3000,");
        let answered = format!("{on} response_body_bytes_max: 3000,");
        for (length, request, response) in
            [(3000, Outcome::Whole, Outcome::Whole), (3001, Outcome::Local(413), Outcome::Local(500))]
        {
            let mut small = Exchange::post(length);
            small.answer.message.length = 1;
            assert_eq!(play(&asked, small).0, Some(request), "{asked} {length}");
            assert_eq!(play(&answered, Exchange::get(length)).0, Some(response), "{answered} {length}");
        }
    }
    // In chunks, its size is known only on the way.
    let mut long = Exchange::get(100_000);
    long.answer.message = chunked(100_000);
    assert_eq!(play("response_body_bytes_max: 50000,", long.clone()).0, Some(Outcome::Cut));
    assert_eq!(
        play("buffer_responses: on, response_body_bytes_max: 50000,", long).0,
        Some(Outcome::Local(500))
    );
    let mut asked = Exchange::post(100_000);
    asked.body = Some(chunked(100_000));
    assert_eq!(
        play("buffer_requests: on, request_body_bytes_max: 50000,", asked).0,
        Some(Outcome::Local(413))
    );
}

#[test]
fn no_endpoint_is_used_before_the_request_is_complete() {
    run(async {
        let (proxy, script, origins, exchanges) = proxy(&holding(100), Exchange::post(5000));
        let end = proxy.connect(CALM);
        let mut sink = Sink::new(&end, 1, None);
        sink.write(&exchanges[0].request_head(0)).await.unwrap();
        let body = exchanges[0].request_body(0);
        for piece in body[..4999].chunks(500) {
            sink.write(piece).await.unwrap();
            tokio::time::sleep(Duration::from_secs(4)).await;
            assert!(origins.borrow().is_empty(), "an origin was connected to");
        }
        sink.write(&body[4999..]).await.unwrap();
        let mut source = Source::new(&end, None);
        assert_eq!(source.head().await.unwrap().framing(Framing::Close), Framing::Length(5000));
        assert_eq!(source.body(Framing::Length(5000)).await.end, Ok(()));
        assert!(script.seen.borrow()[0].whole);
        drop((end, sink, source));
        proxy.finish().await;
        ended(&origins).await;
    });
}

#[test]
fn a_request_in_a_file_is_retried_if_allowed() {
    for (method, second, sent) in [("PUT", Outcome::Whole, 3), ("POST", Outcome::Local(502), 2)] {
        let held = (true, true);
        let exchanges: Shared = Rc::new(vec![
            Exchange { held, ..Exchange::get(10) },
            Exchange { held, method, ..Exchange::post(50_000) },
        ]);
        let script = Script::new(&exchanges);
        let shared = Rc::clone(&script);
        run(async {
            // The first connection ends in the middle of the second request, without a response.
            let (network, origins) = network(CALM, move |number, end| {
                let fault = Some(Fault { after: 20_000, kind: Kind::Close }).filter(|_| number == 0);
                serve(Rc::clone(&shared), end, number as u64, [fault, None])
            });
            let cluster = ("", "balance: {hash: client_address},");
            let proxy = Proxy::with_route(&holding(1000), cluster, network);
            let outcomes = converse(proxy.connect(CALM), &exchanges, 0, CALMLY).await;
            proxy.finish().await;
            ended(&origins).await;
            assert_eq!(outcomes, [Outcome::Whole, second]);
        });
        assert_eq!(script.seen.borrow().len(), sent, "{method}");
    }
}

#[test]
fn a_stalled_buffered_request_is_a_408_and_reaches_no_origin() {
    run(async {
        let (proxy, _, origins, exchanges) = proxy(&holding(100), Exchange::post(5000));
        let end = proxy.connect(CALM);
        let mut sink = Sink::new(&end, 1, None);
        sink.write(&exchanges[0].request_head(0)).await.unwrap();
        sink.write(&exchanges[0].request_body(0)[..4000]).await.unwrap();
        let mut source = Source::new(&end, None);
        assert!(source.head().await.unwrap().line.starts_with("HTTP/1.1 408 "));
        assert!(origins.borrow().is_empty());
        drop((end, sink, source));
        proxy.finish().await;
    });
}

#[test]
fn a_place_is_free_once_the_response_is_complete() {
    run(async {
        let (proxy, _, origins, exchanges) = proxy(&holding(1000), Exchange::get(50_000));
        let end = proxy.connect(Behaviour { capacity: 500, ..CALM });
        Sink::new(&end, 1, None).write(&exchanges[0].request_head(0)).await.unwrap();
        let mut source = Source::new(&end, None);
        source.head().await.unwrap();
        for endpoint in proxy.cluster.endpoints().iter() {
            assert_eq!(endpoint.in_flight(), 0, "the client has only its head");
        }
        assert!(proxy.worker.metrics().budget().bytes(Medium::Spool) > 0);
        assert_eq!(source.body(Framing::Length(50_000)).await.end, Ok(()));
        drop((end, source));
        proxy.finish().await;
        ended(&origins).await;
    });
}

#[test]
fn a_client_that_does_not_read_a_buffered_response_is_dropped() {
    run(async {
        let (proxy, _, origins, exchanges) = proxy(&holding(1000), Exchange::get(50_000));
        let end = proxy.connect(Behaviour { capacity: 500, ..CALM });
        Sink::new(&end, 1, None).write(&exchanges[0].request_head(0)).await.unwrap();
        proxy.finish().await;
        ended(&origins).await;
        let mut source = Source::new(&end, None);
        assert_eq!(source.rest().await.1, Ended::Reset);
    });
}
