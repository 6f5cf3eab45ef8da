//! An application that closes kept connections right after a response: the next request is still answered.

use std::thread;

use super::{LANDED, exchanges, returning};
use crate::proxy_support::{Origin, Setup, ok};

const CLIENTS: usize = 16;
const REQUESTS: usize = 120;

/// The number of statuses other than 200.
fn failures(workers: u32, limit: Option<u32>) -> usize {
    let origin = Origin::playing(|mut peer| {
        let mut random = fastrand::Rng::with_seed(peer.index as u64);
        while let Some(request) = peer.next() {
            if peer.try_send(ok(request.target())).is_err() || random.u32(..4) == 0 {
                return;
            }
        }
    });
    let mut setup = Setup::to_origin(&origin)
        .with("workers", workers)
        .with("clusters.default.ejection", serde_json::json!({"consecutive_failures": 0}));
    if let Some(limit) = limit {
        setup = setup.with("clusters.default.max_in_flight", limit);
    }
    let proxy = returning(setup, 0).start().unwrap();
    let failed = thread::scope(|scope| {
        let proxy = &proxy;
        let client = move |number: usize| {
            let mut wire = proxy.connect();
            let mut failed = 0;
            for turn in 0..REQUESTS {
                let answer = wire.ask(format!("GET /{number}/{turn} HTTP/1.1\r\nHost: a\r\n\r\n"));
                if answer.status() == 200 {
                    assert_eq!(answer.text(), format!("/{number}/{turn}"));
                } else {
                    failed += 1;
                }
            }
            failed
        };
        let clients: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(move || client(number))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert_eq!(exchanges(&proxy) > 0.0, LANDED);
    failed
}

#[test]
#[ignore = "needs root and BPF"]
fn connections_closed_after_a_response_cost_no_request() {
    for (workers, limit) in [(1, None), (2, None), (1, Some(8))] {
        assert_eq!(failures(workers, limit), 0, "{workers} workers, limit {limit:?}");
    }
}
