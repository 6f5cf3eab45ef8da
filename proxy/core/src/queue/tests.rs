//! Order, limits and hand-over of the queue; the automatic limit.
#![allow(clippy::unwrap_used)]

use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use proptest::prelude::*;
use sluice_config::{AutoLimit, QueueOrder};

use super::gradient::{Gradient, Sample};
use super::line::Line;
use super::*;

fn rules(order: QueueOrder, fair_by_client: bool, max_length: usize) -> config::Queue {
    config::Queue { order, fair_by_client, max_length, lifo_after_ms: 100, ..config::Queue::default() }
}

fn client(number: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, number])
}

/// The order in which waiters are served, with `interval_us` before each.
fn served(rules: config::Queue, came: &[u8], interval_us: u64) -> Vec<usize> {
    let mut line = Line::new(rules);
    for (name, number) in came.iter().enumerate() {
        line.enter(name, client(*number), thread::current().id(), 0).unwrap();
    }
    let (mut order, mut now_us) = (Vec::new(), 0);
    while let Some(ticket) = line.candidates(thread::current().id()).first() {
        now_us += interval_us;
        order.push(line.serve(*ticket, now_us).unwrap().wants);
    }
    order
}

#[test]
fn the_order_is_the_configured_one() {
    let came = [1; 3];
    assert_eq!(served(rules(QueueOrder::Fifo, false, 9), &came, 1_000_000), [0, 1, 2]);
    assert_eq!(served(rules(QueueOrder::Lifo, false, 9), &came, 0), [2, 1, 0]);
}

#[test]
fn a_slow_queue_is_served_newest_first_until_it_is_short() {
    let adaptive = rules(QueueOrder::Adaptive, false, 99);
    // At 1 ms each, 60 take less than 100 ms.
    assert_eq!(served(adaptive, &[1; 60], 1000), (0..60).collect::<Vec<_>>());
    let order = served(adaptive, &[1; 60], 10_000);
    let turned = order.windows(2).filter(|pair| pair[1] < pair[0]).count();
    assert_eq!(order[0], 0, "its pace is not known yet");
    assert!(turned > 30, "{order:?}");
    assert!(order[order.len() - 9..].is_sorted(), "the queue is short again, so the oldest is first");
}

#[test]
fn waiters_of_the_current_thread_go_first_within_bounds() {
    let [here, there] = [thread::current().id(), thread::spawn(|| thread::current().id()).join().unwrap()];
    let mut line = Line::new(rules(QueueOrder::Fifo, false, 99));
    line.enter("there", client(1), there, 0).unwrap();
    line.enter("here", client(1), here, 0).unwrap();
    let mut served = Vec::new();
    while served.last() != Some(&"there") {
        line.enter("here", client(1), here, 0).unwrap();
        let next = line.candidates(here)[0];
        served.push(line.serve(next, 0).unwrap().wants);
    }
    assert_eq!(served.len(), 17, "overtaken sixteen times at most");

    let mut line = Line::new(rules(QueueOrder::Fifo, false, 99));
    for name in 0..20 {
        line.enter(name, client(1), if name < 15 { there } else { here }, 0).unwrap();
    }
    let next = line.candidates(here)[0];
    assert_eq!(line.serve(next, 0).unwrap().wants, 0, "a waiter far back does not overtake");
}

#[test]
fn clients_take_turns() {
    let came = [1, 1, 1, 2, 3, 2];
    assert_eq!(served(rules(QueueOrder::Fifo, true, 9), &came, 0), [0, 3, 4, 1, 5, 2]);
    assert_eq!(served(rules(QueueOrder::Lifo, true, 9), &came, 0), [2, 5, 4, 1, 3, 0]);
}

#[test]
fn a_full_queue_admits_only_for_a_fair_share() {
    let mut line = Line::new(rules(QueueOrder::Fifo, true, 3));
    for name in 0..3 {
        line.enter(name, client(1), thread::current().id(), 0).unwrap();
    }
    assert_eq!(line.crowded_out(client(1)), None, "a client must not crowd itself out");
    assert!(line.enter(9, client(1), thread::current().id(), 0).is_none());
    let out = line.crowded_out(client(2)).unwrap();
    assert_eq!(line.leave(out).unwrap().wants, 2, "the newest of the client with the most waiters");
    line.enter(3, client(2), thread::current().id(), 0).unwrap();
    assert_eq!(line.crowded_out(client(2)), None, "2 to 2 would not be fairer");
    let mut unfair = Line::new(rules(QueueOrder::Fifo, false, 1));
    unfair.enter(0, client(1), thread::current().id(), 0).unwrap();
    assert_eq!(unfair.crowded_out(client(2)), None);
}

/// One of several places; when dropped, it is returned and offered to waiters.
struct Place {
    free: Arc<AtomicU32>,
    queue: Arc<Queue<(), Place>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.free.fetch_add(1, Relaxed);
        serve(&self.queue, &self.free);
    }
}

fn take(queue: &Arc<Queue<(), Place>>, free: &Arc<AtomicU32>) -> Option<Place> {
    free.fetch_update(Relaxed, Relaxed, |free| free.checked_sub(1)).ok()?;
    Some(Place { free: Arc::clone(free), queue: Arc::clone(queue) })
}

fn serve(queue: &Arc<Queue<(), Place>>, free: &Arc<AtomicU32>) {
    queue.serve(0, |()| take(queue, free).map_or(Offer::Nothing, Offer::Place));
}

fn poll_one(waiting: &mut Waiting<(), Place>) -> Poll<Result<Place, Refusal>> {
    Pin::new(waiting).poll(&mut Context::from_waker(Waker::noop()))
}

proptest! {
    #[test]
    fn places_are_neither_lost_nor_duplicated(
        places in 1..4u32,
        order in prop::sample::select(vec![QueueOrder::Fifo, QueueOrder::Lifo, QueueOrder::Adaptive]),
        fair: bool,
        steps in prop::collection::vec((0..4u8, any::<prop::sample::Index>(), 0..4u8), 1..200),
    ) {
        let queue = Arc::new(Queue::new(rules(order, fair, 5)));
        let free = Arc::new(AtomicU32::new(places));
        let (mut waiting, mut held) = (Vec::new(), Vec::new());
        for (step, which, number) in steps {
            match step {
                0 => if let Ok(one) = queue.enter((), client(number), 0) {
                    waiting.push(one);
                    serve(&queue, &free);
                },
                1 if !waiting.is_empty() => drop(waiting.remove(which.index(waiting.len()))),
                2 if !held.is_empty() => drop(held.remove(which.index(held.len()))),
                3 if !waiting.is_empty() => {
                    let at = which.index(waiting.len());
                    if let Poll::Ready(given) = poll_one(&mut waiting[at]) {
                        waiting.remove(at);
                        held.extend(given);
                    }
                }
                _ => {}
            }
            let length = queue.counts().length;
            prop_assert!(length <= 5);
            prop_assert!(length == 0 || free.load(Relaxed) == 0, "{length} wait although a place is free");
            prop_assert!(held.len() as u32 + free.load(Relaxed) <= places);
        }
        drop((waiting, held));
        prop_assert_eq!((queue.counts().length, free.load(Relaxed)), (0, places));
    }
}

/// A server of `threads` threads that each take `service_us`, under more load than it can take: the limit after
/// `windows` windows, and its minimum and maximum in the second half of them.
fn under_load(bounds: AutoLimit, threads: u32, service_us: u64, windows: usize) -> (u32, u32) {
    let mut gradient = Gradient::new(bounds, 0);
    let (mut now_ms, mut low, mut high) = (0, u32::MAX, 0);
    for window in 0..windows {
        // Includes the repeated measurements.
        let mut most = 0;
        for _ in 0..120 {
            now_ms += 8;
            let in_flight = gradient.limit();
            let latency_us = service_us * u64::from(in_flight.max(threads)) / u64::from(threads);
            gradient.observe(Sample { sent_ms: now_ms, latency_us, in_flight, closes: false }, now_ms);
            most = most.max(gradient.limit());
        }
        if window >= windows / 2 {
            low = low.min(most);
            high = high.max(most);
        }
    }
    (low, high)
}

#[test]
fn the_limit_settles_slightly_above_the_servers_concurrency() {
    for threads in [4, 16, 100] {
        let (low, high) = under_load(AutoLimit::default(), threads, 20_000, 400);
        assert!(low >= threads && high <= threads * 2 + 4, "{threads} threads: {low} to {high}");
        assert!(high - low <= 1, "{threads} threads: {low} to {high}");
    }
}

/// As Puma does: a server that is never late, but closes a connection after every 14th response while it has more than
/// five requests.
#[test]
fn the_limit_stays_below_one_at_which_the_endpoint_closes_connections() {
    let mut gradient = Gradient::new(AutoLimit::default(), 0);
    let (mut above, mut highest) = (0, 0);
    for now_ms in 0..600_000 {
        let in_flight = gradient.limit();
        let closes = in_flight > 5 && now_ms % 14 == 0;
        gradient.observe(Sample { sent_ms: now_ms, latency_us: 1000, in_flight, closes }, now_ms);
        if now_ms > 60_000 {
            above += u32::from(in_flight > 5);
            highest = highest.max(in_flight);
        }
    }
    assert!(gradient.limit() >= 4, "{}", gradient.limit());
    assert!(above < 27_000, "too much for {above} of 540 000 ms");
    assert!(highest <= 8, "{highest}");
}

/// Another server at the same address: its closings are the usual ones after the next measurement.
#[test]
fn a_limit_recovers_when_the_endpoint_begins_to_close_every_connection() {
    let mut gradient = Gradient::new(AutoLimit::default(), 0);
    let mut highest = 0;
    for now_ms in 0..400_000 {
        let in_flight = gradient.limit();
        let closes = now_ms > 10_000;
        gradient.observe(Sample { sent_ms: now_ms, latency_us: 1000, in_flight, closes }, now_ms);
        if now_ms > 200_000 {
            highest = highest.max(in_flight);
        }
    }
    assert!(highest > 5, "{highest}");
}

#[test]
fn the_limit_stays_within_its_bounds() {
    let bounds = AutoLimit { min: 5, max: 8, ..AutoLimit::default() };
    let (low, high) = under_load(bounds, 1, 1000, 100);
    assert!(low >= 5 && high <= 8, "{low} to {high}");
    assert_eq!(under_load(bounds, 100, 1000, 100), (8, 8));
}

#[test]
fn a_limit_that_is_not_reached_does_not_grow() {
    let mut gradient = Gradient::new(AutoLimit::default(), 0);
    for now_ms in 0..10_000 {
        gradient.observe(Sample { sent_ms: now_ms, latency_us: 1000, in_flight: 1, closes: false }, now_ms);
    }
    assert_eq!((gradient.limit(), gradient.base_us()), (3, 1000));
}

#[test]
fn the_latency_without_load_is_measured_again() {
    let bounds = AutoLimit { measure_interval_ms: 1000, ..AutoLimit::default() };
    let mut gradient = Gradient::new(bounds, 0);
    let mut observe = |sent_ms, latency_us, now_ms| {
        gradient.observe(Sample { sent_ms, latency_us, in_flight: gradient.limit(), closes: false }, now_ms);
        (gradient.limit(), gradient.base_us())
    };
    for now_ms in 0..1100 {
        observe(now_ms, 1000, now_ms);
    }
    let (limit, base_us) = observe(1100, 1000, 1100);
    assert!(limit > 3 && base_us == 1000);
    // The server has become slower permanently; by itself this looks like queueing.
    let mut now_ms = 1100;
    while observe(now_ms, 4000, now_ms).0 != 3 {
        now_ms += 1;
    }
    assert_eq!(observe(now_ms - 1, 9, now_ms).1, 1000, "a request sent before saw another load");
    for _ in 0..60 {
        now_ms += 5;
        observe(now_ms, 4000, now_ms);
    }
    assert_eq!(observe(now_ms, 4000, now_ms).1, 4000);
}
