//! Buffered bodies on a full disk: a small tmpfs in a mount namespace, which ends with sluice.

use serde_json::json;

use crate::proxy_support::{Message, Origin, Setup, assert_same, ok, pattern, poll};

/// Takes half of the disk plus the memory limit of a body.
const FITS: usize = 200_000;
const TOO_MUCH: usize = 1_000_000;

/// Mounts over the folder in a new namespace, and continues there in place of this shell.
fn on_small_disk(folder: &std::path::Path) -> String {
    let folder = folder.display();
    format!(
        "exec unshare --mount sh -c 'mount -t tmpfs -o size=400k,mode=700 none \"$0\" && exec \"$@\"' '{folder}' \"$@\""
    )
}

fn answer(size: usize) -> Vec<u8> {
    [format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n").as_bytes(), &pattern(size)].concat()
}

fn post(target: &str, size: usize) -> Vec<u8> {
    let head = format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n");
    [head.as_bytes(), &pattern(size)].concat()
}

#[test]
#[ignore = "needs root, to mount"]
fn a_full_disk_fails_the_request_and_leaves_no_files() {
    let origin = Origin::answering(|request| match request.target() {
        "/large" => answer(TOO_MUCH),
        "/fits" => answer(FITS),
        _ => ok("small"),
    });
    let setup = Setup::to_origin(&origin);
    let spool = setup.folder.join("spool");
    std::fs::create_dir(&spool).unwrap();
    let route = json!({
        "cluster": "default", "buffer_requests": "on", "buffer_responses": "on", "buffer_memory_bytes": 1000,
    });
    let setup = setup
        .with("routes", json!([route]))
        .with("buffers", json!({"spool_directory": spool}))
        .after(&on_small_disk(&spool));
    let Some(proxy) = setup.start() else { return };
    // Repeated: a disk that is not released would be full the second time.
    for _ in 0..3 {
        let large = proxy.get("/large");
        assert_eq!((large.status(), large.get("x-sluice-reason")), (500, Some("response_spool_failed")));
        let mut client = proxy.connect();
        // sluice may close before it has read everything.
        let _ = client.try_send(post("/up", TOO_MUCH));
        let refused = client.response();
        assert_eq!((refused.status(), refused.get("x-sluice-reason")), (503, Some("request_spool_failed")));
        poll("the files' end", || (proxy.metric("sluice_spool_bytes") == 0.0).then_some(()));
        // The kernel frees the blocks of each file a moment after the counters.
        let well = |ask: &dyn Fn() -> Message| poll("room", || Some(ask()).filter(|got| got.status() == 200));
        for _ in 0..2 {
            assert_same(&well(&|| proxy.get("/fits")).body, &pattern(FITS));
        }
        assert_eq!(well(&|| proxy.ask(post("/fitting", FITS))).text(), "small");
        assert_same(&origin.last().body, &pattern(FITS));
    }
    proxy.wait_for("a spool file cannot be written");
    assert!(proxy.metric("sluice_spool_files_total") > 5.0);
}
