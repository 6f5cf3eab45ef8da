//! The futures of exchanges: used again after an exchange has ended, and dropped with one that has not.

use std::rc::Rc;

use super::client::{Manner, Outcome, Shared, converse};
use super::exchange::Exchange;
use super::origin::{Script, serve};
use super::peer::{Fault, Kind};
use super::*;

const MANNER: Manner = Manner { seed: 1, pipelines: false, faults: [None, None] };

#[test]
fn exchanges_one_after_the_other_use_one_future() {
    let exchanges: Shared = Rc::new(vec![Exchange::get(5), Exchange::post(5), Exchange::get(7)]);
    let script = Script::new(&exchanges);
    let (network, origins) = network(CALM, move |_, end| serve(Rc::clone(&script), end, 1, [None, None]));
    run(async {
        let proxy = Proxy::new("", "", network);
        for _ in 0..2 {
            let outcomes = converse(proxy.connect(CALM), &exchanges, 0, MANNER).await;
            assert_eq!(outcomes, [Outcome::Whole; 3]);
        }
        assert_eq!(proxy.runners.unused(), 1);
        proxy.finish().await;
        ended(&origins).await;
    });
}

#[test]
fn exchanges_at_the_same_time_use_one_future_each() {
    let exchanges: Shared = Rc::new(vec![Exchange::get(5)]);
    let script = Script::new(&exchanges);
    let behaviour = Behaviour { piece_max: 1, stall_of: 4, ..CALM };
    let (network, origins) =
        network(behaviour, move |_, end| serve(Rc::clone(&script), end, 1, [None, None]));
    run(async {
        let proxy = Proxy::new("", "", network);
        let [first, second, third] = [(); 3].map(|()| converse(proxy.connect(CALM), &exchanges, 0, MANNER));
        let (first, second, third) = tokio::join!(first, second, third);
        assert_eq!([first, second, third].concat(), [Outcome::Whole; 3]);
        let runners = &proxy.runners;
        assert_eq!(runners.unused(), 3);
        runners.reap();
        assert_eq!(runners.unused(), 3, "they were needed since");
        assert_eq!(converse(proxy.connect(CALM), &exchanges, 0, MANNER).await, [Outcome::Whole]);
        runners.reap();
        assert_eq!(runners.unused(), 1, "one was enough");
        runners.reap();
        assert_eq!(runners.unused(), 0);
        proxy.finish().await;
        ended(&origins).await;
    });
}

#[test]
fn a_dropped_exchange_takes_its_future_with_it() {
    let exchanges: Shared = Rc::new(vec![Exchange::get(5)]);
    let script = Script::new(&exchanges);
    let silent = Some(Fault { after: 0, kind: Kind::Stall });
    let (network, origins) = network(CALM, move |_, end| serve(Rc::clone(&script), end, 1, [None, silent]));
    run(async {
        let proxy = Proxy::new("", "", network);
        let client = spawn_local({
            let (end, exchanges) = (proxy.connect(CALM), Rc::clone(&exchanges));
            async move { converse(end, &exchanges, 0, MANNER).await }
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(proxy.cluster.endpoints().iter().map(|endpoint| endpoint.in_flight()).sum::<u32>(), 1);
        let serving = proxy.serving.borrow_mut().pop().unwrap();
        serving.abort();
        assert!(serving.await.unwrap_err().is_cancelled());
        assert_eq!(client.await.unwrap(), [Outcome::None]);
        assert_eq!(proxy.runners.unused(), 0);
        proxy.finish().await;
        ended(&origins).await;
    });
}
