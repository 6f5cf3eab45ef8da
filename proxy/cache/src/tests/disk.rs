//! A store with a disk: what outlives it, and what does not.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sluice_config::{Cache, CacheDisk};

use super::{NOW_MS, admitted, caller, request};
use crate::{Lookup, Purge, Removal, Resource, Store, StoredResponse};

const FIELDS: &str = "Cache-Control: max-age=60\r\nCache-Tag: even\r\nETag: \"1\"\r\n";
const PATIENCE: Duration = Duration::from_secs(60);

fn config(folder: &Path) -> Cache {
    let disk = CacheDisk { folder: folder.to_owned(), size_bytes_max: 1 << 20, files_max: 1000 };
    Cache { memory_bytes_max: 1 << 20, object_bytes_max: 1 << 16, disk: Some(disk), ..Cache::default() }
}

/// A store that has begun to use its disk.
fn store(config: &Cache) -> Arc<Store> {
    let store = Arc::new(Store::new("pages", config));
    store.start();
    store
}

fn open(config: &Cache) -> Arc<Store> {
    let store = store(config);
    until("the folder", || store.on_disk().unwrap().is_open);
    store
}

fn close(store: Arc<Store>) {
    store.close(Instant::now() + PATIENCE);
    let folder = store.config().disk.as_ref().unwrap().folder.join("pages");
    if store.on_disk().unwrap().failed == 0 {
        let state = fs::read_to_string(folder.join("state.json")).unwrap();
        assert!(state.contains("\"is_closed\":true"), "{state}");
    }
    assert_eq!(Arc::strong_count(&store), 1);
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn key(target: &str) -> Vec<u8> {
    let mut key = Vec::new();
    Resource { route: "app", host: b"a.test", target: target.as_bytes() }.write(&mut key);
    key
}

fn stored(store: &Store, body: &[u8]) -> Arc<StoredResponse> {
    let admission = admitted(&request(""), 200, FIELDS, &Cache::default()).unwrap();
    let end = Instant::now() + PATIENCE;
    let room = loop {
        // It may be taken by what is being written.
        match store.room(Some(body.len() as u64)) {
            Some(room) => break room,
            None => assert!(Instant::now() < end, "no room"),
        }
    };
    admission.complete(Bytes::copy_from_slice(body), room).unwrap().stored
}

fn keep(store: &Store, target: &str, body: &[u8]) -> bool {
    store.keep(&key(target), &stored(store, body), None, store.epoch())
}

fn forget(store: &Store, target: &str) -> Option<Removal> {
    let key = key(target);
    store.forget((b"a.test", target.as_bytes()), [&key[..]].into_iter())
}

fn wait(removal: Option<Removal>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    if let Some(removal) = removal {
        runtime.block_on(removal.done());
    }
}

/// What a request finds, from the disk as well.
fn find(store: &Arc<Store>, target: &str) -> Option<Bytes> {
    let (key, request) = (key(target), request(""));
    let look = || store.find(&key, &caller(&request), NOW_MS);
    let mut found = look();
    if matches!(found, Lookup::OnDisk) {
        if let Some(loading) = store.loading() {
            loading.load(&key, NOW_MS);
        }
        found = look();
    }
    if let Lookup::Stored(stored, _) = found { Some(Bytes::copy_from_slice(stored.body())) } else { None }
}

fn written(store: &Store, count: u64) {
    until("the files", || store.on_disk().unwrap().written >= count);
}

#[test]
fn what_is_stored_outlives_the_store() {
    let root = tempfile::tempdir().unwrap();
    let config = config(root.path());
    let first = open(&config);
    assert!(keep(&first, "/", b"one") && keep(&first, "/empty", b""));
    close(first);
    let second = open(&config);
    let disk = second.on_disk().unwrap();
    assert_eq!((disk.files, disk.bytes, second.resources()), (2, 8192, 0));
    assert_eq!(find(&second, "/").unwrap(), "one");
    assert_eq!(find(&second, "/empty").unwrap(), "");
    assert_eq!(find(&second, "/other"), None);
    assert_eq!((second.on_disk().unwrap().read, second.resources()), (2, 2));
}

#[test]
fn what_has_changed_is_gone_from_the_disk() {
    let root = tempfile::tempdir().unwrap();
    let config = config(root.path());
    let first = open(&config);
    for target in ["/", "/a"] {
        keep(&first, target, b"one");
    }
    written(&first, 2);
    wait(forget(&first, "/"));
    assert_eq!(first.on_disk().unwrap().files, 1);
    // Once the thread has nothing to do, nobody waits for it.
    until("its end", || forget(&first, "/nothing").is_none());
    close(first);
    let second = open(&config);
    assert_eq!((find(&second, "/"), find(&second, "/a")), (None, Some(Bytes::from("one"))));
}

#[test]
fn a_later_response_takes_the_place_of_an_earlier_one() {
    let root = tempfile::tempdir().unwrap();
    let config = config(root.path());
    let first = open(&config);
    keep(&first, "/", b"one");
    written(&first, 1);
    keep(&first, "/", b"two");
    close(first);
    let second = open(&config);
    assert_eq!(find(&second, "/").unwrap(), "two");
    // Not worth a file: the old one goes.
    let admission = admitted(&request(""), 200, "Cache-Control: max-age=1\r\n", &Cache::default()).unwrap();
    let short = admission.complete(Bytes::from("three"), second.room(Some(5)).unwrap()).unwrap().stored;
    assert!(second.keep(&key("/"), &short, None, second.epoch()));
    close(second);
    assert_eq!(find(&open(&config), "/"), None);
}

#[test]
fn an_operator_takes_out_what_is_only_on_the_disk() {
    let root = tempfile::tempdir().unwrap();
    let config = config(root.path());
    let first = open(&config);
    for target in ["/a", "/a/b", "/c"] {
        keep(&first, target, b"one");
    }
    close(first);
    let prefix = Purge::Prefix { host: b"a.test".to_vec(), target: b"/a".to_vec() };
    let second = open(&config);
    let (purged, removal) = second.purge(&prefix);
    assert_eq!(purged, 0, "nothing was in memory");
    wait(removal);
    assert_eq!(find(&second, "/a/b"), None);
    assert_eq!(find(&second, "/c").unwrap(), "one");
    // The files go although nobody asks for them.
    until("the last file", || second.on_disk().unwrap().files == 1);
    let notes = root.path().join("pages/purges");
    let is_done = || fs::read_dir(&notes).unwrap().count() == 0;
    until("the end of the purge", is_done);
    keep(&second, "/a", b"two");
    wait(second.purge(&Purge::Tag(b"other".to_vec())).1);
    close(second);
    let third = open(&config);
    assert_eq!(find(&third, "/a").unwrap(), "two", "it came after the purge");
    wait(third.purge(&Purge::All).1);
    close(third);
    let fourth = open(&config);
    assert_eq!((find(&fourth, "/a"), find(&fourth, "/c")), (None, None));
    until("the end of the purges", is_done);
}

#[test]
fn another_store_waits_for_the_folder_and_forgets_meanwhile() {
    let root = tempfile::tempdir().unwrap();
    let config = config(root.path());
    let first = open(&config);
    for target in ["/changed", "/purged", "/newer", "/same"] {
        keep(&first, target, b"one");
    }
    written(&first, 4);
    let second = store(&config);
    assert!(!second.on_disk().unwrap().is_open);
    assert_eq!(find(&second, "/same"), None);
    wait(forget(&second, "/changed"));
    wait(second.purge(&Purge::Exact { host: Vec::new(), target: b"/purged".to_vec() }).1);
    keep(&second, "/newer", b"two");
    // The first one does not know.
    keep(&first, "/changed", b"one");
    close(first);
    until("the folder", || second.on_disk().unwrap().is_open);
    assert_eq!(find(&second, "/changed"), None);
    assert_eq!(find(&second, "/purged"), None);
    assert_eq!(find(&second, "/same").unwrap(), "one");
    close(second);
    let third = open(&config);
    assert_eq!(find(&third, "/newer").unwrap(), "two");
    assert_eq!(find(&third, "/changed"), None);
}

#[test]
fn the_disk_never_holds_more_than_it_may() {
    let root = tempfile::tempdir().unwrap();
    let config = config(root.path());
    let first = open(&config);
    for at in 0..300 {
        assert!(keep(&first, &format!("/{at}"), &vec![b'a'; at * 211 % 60_000]));
        written(&first, at as u64 + 1);
        let disk = first.on_disk().unwrap();
        assert!(disk.bytes <= 1 << 20, "{disk:?}");
    }
    let disk = first.on_disk().unwrap();
    close(first);
    let parts = fs::read_dir(root.path().join("pages")).unwrap().map(|entry| entry.unwrap().path());
    let parts = parts.filter(|path| path.is_dir() && path.file_name().unwrap().len() == 2);
    let files: u64 = parts.map(|part| fs::read_dir(part).unwrap().count() as u64).sum();
    assert_eq!(files, disk.files, "what has left the table has left the folder");
    // A smaller disk, and fewer files.
    let smaller = CacheDisk { size_bytes_max: 1 << 18, ..config.disk.clone().unwrap() };
    let second = open(&Cache { disk: Some(smaller), ..config.clone() });
    assert!(second.on_disk().unwrap().bytes <= 1 << 18);
    close(second);
    let fewer = CacheDisk { files_max: 3, ..config.disk.clone().unwrap() };
    assert!(open(&Cache { disk: Some(fewer), ..config }).on_disk().unwrap().files <= 3);
}

#[test]
fn without_a_disk_that_can_be_written_memory_is_there() {
    let root = tempfile::tempdir().unwrap();
    let config = config(root.path());
    let first = open(&config);
    // Where its folders should be.
    for part in 0..256 {
        fs::write(root.path().join(format!("pages/{part:02x}")), "").unwrap();
    }
    keep(&first, "/", b"one");
    until("a failure", || first.on_disk().unwrap().failed > 0);
    assert_eq!(find(&first, "/").unwrap(), "one");
    wait(forget(&first, "/"));
    assert_eq!(find(&first, "/"), None);
    assert_eq!(first.on_disk().unwrap().files, 0);
}

#[test]
fn a_damaged_file_is_not_used() {
    let root = tempfile::tempdir().unwrap();
    let config = config(root.path());
    let first = open(&config);
    keep(&first, "/", b"one");
    close(first);
    let parts = fs::read_dir(root.path().join("pages")).unwrap().map(|entry| entry.unwrap().path());
    let part = parts.into_iter().find(|path| path.file_name().unwrap().len() == 2).unwrap();
    let file = fs::read_dir(part).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let second = open(&config);
    assert_eq!(find(&second, "/"), None);
    assert_eq!(second.on_disk().unwrap().damaged, 1);
    until("its removal", || !file.exists());
}

#[test]
fn what_changes_while_it_is_closed_is_gone() {
    let root = tempfile::tempdir().unwrap();
    let config = config(root.path());
    let first = open(&config);
    for target in ["/changed", "/purged", "/same"] {
        keep(&first, target, b"one");
    }
    first.close(Instant::now() + PATIENCE);
    // The last requests of a process end after that.
    wait(forget(&first, "/changed"));
    let waiting = store(&config);
    assert!(!waiting.on_disk().unwrap().is_open, "the folder is held until the end");
    close(waiting);
    drop(first);
    let second = open(&config);
    assert_eq!((find(&second, "/changed"), find(&second, "/same")), (None, Some(Bytes::from("one"))));
    second.close(Instant::now() + PATIENCE);
    wait(second.purge(&Purge::Tag(b"even".to_vec())).1);
    drop(second);
    assert_eq!(find(&open(&config), "/same"), None);
}

#[test]
fn what_cannot_be_noted_or_removed_is_not_trusted() {
    for is_purge in [true, false] {
        let root = tempfile::tempdir().unwrap();
        let config = config(root.path());
        let first = open(&config);
        keep(&first, "/", b"one");
        written(&first, 1);
        if is_purge {
            fs::write(root.path().join("pages/purges"), "no folder").unwrap();
            wait(first.purge(&Purge::Tag(b"other".to_vec())).1);
        } else {
            // In place of the file, something that cannot be removed.
            let parts = fs::read_dir(root.path().join("pages")).unwrap().map(|entry| entry.unwrap().path());
            let part = parts.into_iter().find(|path| path.file_name().unwrap().len() == 2).unwrap();
            let file = fs::read_dir(part).unwrap().next().unwrap().unwrap().path();
            fs::rename(&file, root.path().join("aside")).unwrap();
            fs::create_dir(&file).unwrap();
            wait(forget(&first, "/"));
            fs::remove_dir(&file).unwrap();
            fs::rename(root.path().join("aside"), &file).unwrap();
        }
        assert!(first.on_disk().unwrap().failed > 0);
        close(first);
        assert_eq!(find(&open(&config), "/"), None, "{is_purge}");
    }
}

#[test]
fn a_process_that_drains_tells_the_next_one_what_changes() {
    let root = tempfile::tempdir().unwrap();
    let config = config(root.path());
    let first = open(&config);
    let second = store(&config);
    first.drain(true);
    // The next one has asked before the change, which the first one answers.
    keep(&second, "/", b"one");
    wait(forget(&first, "/"));
    keep(&second, "/other", b"one");
    close(first);
    until("the folder", || second.on_disk().unwrap().is_open);
    until("the change", || find(&second, "/").is_none());
    assert!(find(&second, "/other").is_some());
    close(second);
    let third = open(&config);
    assert_eq!((find(&third, "/"), find(&third, "/other")), (None, Some(Bytes::from("one"))));
}

#[test]
fn a_store_that_is_replaced_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let config = config(root.path());
    let first = open(&config);
    keep(&first, "/", b"one");
    written(&first, 1);
    drop(first);
    assert_eq!(find(&open(&config), "/"), None, "nobody has told it what has changed meanwhile");
}

#[test]
fn other_settings_and_an_earlier_clock_make_a_file_useless() {
    let root = tempfile::tempdir().unwrap();
    let cookies = Cache { store_set_cookie: true, ..config(root.path()) };
    let first = open(&cookies);
    let fields = "Cache-Control: max-age=60\r\nSet-Cookie: a\r\nETag: \"1\"\r\n";
    let admission = admitted(&request(""), 200, fields, &cookies).unwrap();
    let stored = admission.complete(Bytes::from("one"), first.room(Some(3)).unwrap()).unwrap().stored;
    assert!(first.keep(&key("/cookie"), &stored, None, first.epoch()));
    keep(&first, "/", b"one");
    assert!(!first.can_become(&config(root.path())), "a cookie in memory");
    close(first);
    let second = open(&config(root.path()));
    assert_eq!(find(&second, "/cookie"), None);
    second.loading().unwrap().load(&key("/"), NOW_MS - 1000);
    assert_eq!(find(&second, "/"), None);
}

/// Many threads keep, change, purge and ask, with a memory in which little stays: nobody may get what was changed before.
#[test]
fn nobody_gets_what_has_changed() {
    const TARGETS: usize = 24;
    const ROUNDS: usize = 4000;
    let root = tempfile::tempdir().unwrap();
    let small = Cache { memory_bytes_max: 1 << 18, object_bytes_max: 1 << 15, ..config(root.path()) };
    let store = open(&small);
    // What the application would say, and what everybody must have heard of.
    let present: Vec<AtomicU64> = (0..TARGETS).map(|_| AtomicU64::new(1)).collect();
    let heard: Vec<AtomicU64> = (0..TARGETS).map(|_| AtomicU64::new(0)).collect();
    let hits = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for seed in 0..4_usize {
            let (store, present, heard, hits) = (&store, &present, &heard, &hits);
            scope.spawn(move || {
                let mut random = seed as u64 + 1;
                for _ in 0..ROUNDS {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let at = (random >> 33) as usize % TARGETS;
                    let target = format!("/{at}");
                    match (random >> 50) % 16 {
                        0 => {
                            let now = present[at].fetch_add(1, SeqCst) + 1;
                            wait(forget(store, &target));
                            heard[at].fetch_max(now, SeqCst);
                        }
                        1 => {
                            let now = present[at].fetch_add(1, SeqCst) + 1;
                            let exact =
                                Purge::Exact { host: b"a.test".to_vec(), target: target.into_bytes() };
                            wait(store.purge(&exact).1);
                            heard[at].fetch_max(now, SeqCst);
                        }
                        _ => {
                            let least = heard[at].load(SeqCst);
                            if let Some(body) = find(store, &target) {
                                let version = u64::from_le_bytes(body[..8].try_into().unwrap());
                                assert!(version >= least, "{target}: {version} after {least}");
                                hits.fetch_add(1, SeqCst);
                            } else {
                                let epoch = store.epoch();
                                let mut body = present[at].load(SeqCst).to_le_bytes().to_vec();
                                body.resize(20_000, 0);
                                store.keep(&key(&target), &stored(store, &body), None, epoch);
                            }
                        }
                    }
                }
            });
        }
    });
    let disk = store.on_disk().unwrap();
    assert!(hits.load(SeqCst) > 1000 && disk.read > 100 && disk.written > 100, "{disk:?}");
    // The same for the next process.
    close(store);
    let next = open(&small);
    for (at, heard) in heard.iter().enumerate() {
        if let Some(body) = find(&next, &format!("/{at}")) {
            let version = u64::from_le_bytes(body[..8].try_into().unwrap());
            assert!(version >= heard.load(SeqCst), "/{at}: {version} in the next process");
        }
    }
}
