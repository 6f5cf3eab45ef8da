//! The bounds of the store, and what leaves it.

use std::sync::Arc;

use bytes::Bytes;
use sluice_config::Cache;

use super::{NOW_MS, admitted, caller, request, stored_for};
use crate::{Lookup, Purge, Resource, Store, Use};

const FRESH: &str = "Cache-Control: max-age=60\r\n";

fn key(target: &str) -> Vec<u8> {
    let mut key = Vec::new();
    Resource { route: "app", host: b"A.test", target: target.as_bytes() }.write(&mut key);
    key
}

fn store() -> Store {
    Store::new(
        "pages",
        &Cache { memory_bytes_max: 1 << 20, object_bytes_max: 1 << 16, variants_max: 2, ..Cache::default() },
    )
}

fn keep(store: &Store, target: &str, fields: &str, body: usize) -> bool {
    let stored = stored_for(&request(""), fields, body).unwrap();
    store.keep(&key(target), &stored, None, store.epoch())
}

fn forget(store: &Store, target: &str) {
    store.forget((b"a.test", target.as_bytes()), [&key(target)[..]].into_iter());
}

fn has(store: &Store, target: &str) -> bool {
    matches!(store.find(&key(target), &caller(&request("")), NOW_MS), Lookup::Stored(..))
}

#[test]
fn it_never_holds_more_than_it_may() {
    let store = store();
    for at in 0..3000 {
        keep(&store, &format!("/{at}"), FRESH, at * 7 % 60_000);
        assert!(store.bytes() <= 1 << 20, "{at} {}", store.bytes());
    }
    assert!(store.resources() > 10);
    store.set(&Cache { memory_bytes_max: 1 << 18, ..(*store.config()).clone() });
    assert!(store.bytes() <= 1 << 18, "{}", store.bytes());
}

#[test]
fn what_was_taken_out_does_not_come_back() {
    let store = store();
    let stored = stored_for(&request(""), FRESH, 1).unwrap();
    let before = store.epoch();
    forget(&store, "/other");
    assert!(store.keep(&key("/"), &stored, None, before));
    forget(&store, "/");
    assert!(!has(&store, "/"));
    assert!(!store.keep(&key("/"), &stored, None, before));
    let before = store.epoch();
    store.purge(&Purge::Tag(b"x".to_vec()));
    assert!(!store.keep(&key("/"), &stored, None, before));
    let before = store.epoch();
    (0..5000).for_each(|at| forget(&store, &format!("/{at}")));
    assert!(!store.keep(&key("/"), &stored, None, before));
    assert!(store.keep(&key("/"), &stored, None, store.epoch()));
}

#[test]
fn an_operator_takes_out_by_url_prefix_and_tag() {
    let store = store();
    let fill = || {
        for target in ["/", "/a", "/a?b", "/ab/c"] {
            keep(
                &store,
                target,
                "Cache-Control: max-age=60\r\nCache-Tag: all, even one\r\nSurrogate-Key: x y\r\n",
                1,
            );
        }
    };
    let all = || ["/", "/a", "/a?b", "/ab/c"].map(|target| has(&store, target));
    let text = |text: &str| text.as_bytes().to_vec();
    for (purge, left) in [
        (Purge::Exact { host: text("a.test"), target: text("/a") }, [true, false, true, true]),
        (Purge::Exact { host: text(""), target: text("/a") }, [true, false, true, true]),
        (Purge::Exact { host: text("b.test"), target: text("/a") }, [true; 4]),
        (Purge::Prefix { host: text("a.test"), target: text("/a") }, [true, false, false, false]),
        (Purge::Tag(text("even one")), [false; 4]),
        (Purge::Tag(text("y")), [false; 4]),
        (Purge::Tag(text("even")), [true; 4]),
        (Purge::All, [false; 4]),
    ] {
        fill();
        let (taken, _) = store.purge(&purge);
        assert_eq!((all(), taken), (left, left.iter().filter(|has| !*has).count() as u64), "{purge:?}");
    }
}

#[test]
fn variants_are_bounded_and_the_last_used_by_nobody_leaves() {
    let store = store();
    for language in ["a", "b", "c"] {
        let request = request(&format!("Accept-Language: {language}\r\n"));
        let stored =
            stored_for(&request, "Cache-Control: max-age=60\r\nVary: Accept-Language\r\n", 1).unwrap();
        assert!(store.keep(&key("/"), &stored, None, store.epoch()));
    }
    let find = |language: &str| {
        let request = request(&format!("Accept-Language: {language}\r\n"));
        matches!(store.find(&key("/"), &caller(&request), NOW_MS), Lookup::Stored(_, Use::Fresh(_)))
    };
    assert_eq!(["a", "b", "c"].map(find), [false, true, true]);
}

#[test]
fn a_resource_for_one_client_is_remembered_for_a_while() {
    let store = store();
    store.pass(&key("/"), NOW_MS);
    let find = |now| store.find(&key("/"), &caller(&request("")), now);
    assert!(matches!(find(NOW_MS + 59_000), Lookup::Passed));
    assert!(matches!(find(NOW_MS + 61_000), Lookup::Nothing { signature: None }));
    keep(&store, "/", FRESH, 1);
    store.pass(&key("/"), NOW_MS);
    assert!(has(&store, "/"));
}

#[test]
fn bodies_are_counted_until_nobody_has_them() {
    let store = store();
    // Half of the memory in addition to all of it.
    let rooms: Vec<_> = (0..24).map(|_| store.room(Some(1 << 16))).collect();
    assert!(rooms.iter().all(Option::is_some));
    assert!(store.room(Some(1)).is_none() && store.room(None).is_none());
    drop(rooms);
    assert!(store.room(Some((1 << 16) + 1)).is_none());
    let mut room = store.room(None).unwrap();
    assert!(room.grow(1 << 16) && !room.grow((1 << 16) + 1));
    drop(room);
    // One that is kept no longer, and that somebody still sends.
    let sent: Vec<_> = (0..24)
        .map(|_| {
            let admission = admitted(&request(""), 200, FRESH, &store.config()).unwrap();
            let room = store.room(Some(1 << 16)).unwrap();
            admission.complete(Bytes::from(vec![0; 1 << 16]), room).unwrap()
        })
        .collect();
    assert!(store.room(Some(1)).is_none());
    drop(sent);
    assert!(store.room(Some(1)).is_some());
}

#[test]
fn threads_put_in_and_take_out_at_the_same_time() {
    let store = Arc::new(store());
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let store = Arc::clone(&store);
            std::thread::spawn(move || {
                for at in 0..2000 {
                    let target = format!("/{}", (at * 31 + thread) % 50);
                    match at % 7 {
                        0 => forget(&store, &target),
                        1 => {
                            _ = store.purge(&Purge::Prefix { host: Vec::new(), target: target.into_bytes() })
                        }
                        _ => _ = keep(&store, &target, FRESH, 1000),
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(store.bytes() <= 1 << 20);
    store.purge(&Purge::All);
    assert_eq!(store.resources(), 0);
}

#[test]
fn what_is_too_heavy_takes_nothing_else_out() {
    let store = store();
    let part = (1 << 20) / 4;
    for language in ["a", "b"] {
        let request = request(&format!("Accept-Language: {language}\r\n"));
        let stored =
            stored_for(&request, "Cache-Control: max-age=60\r\nVary: Accept-Language\r\n", part / 10 * 6)
                .unwrap();
        assert!(store.keep(&key("/"), &stored, None, store.epoch()));
        let find = store.find(&key("/"), &caller(&request), NOW_MS);
        assert!(matches!(find, Lookup::Stored(..)), "{language}");
    }
    assert!(!keep(&store, "/", FRESH, part));
    assert!(store.can_become(&Cache {
        memory_bytes_max: 1 << 20,
        object_bytes_max: 1 << 16,
        ..Cache::default()
    }));
    assert!(!store.can_become(&Cache {
        memory_bytes_max: 64 << 20,
        object_bytes_max: 1 << 16,
        ..Cache::default()
    }));
}
