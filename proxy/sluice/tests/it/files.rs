//! Files of a route: which are found, what is said of them, and how they are sent.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{Message, Origin, Proxy, Setup, Wire, assert_same, pattern};

/// A folder with this content.
fn folder(setup: &Setup, files: &[(&str, &[u8])]) -> PathBuf {
    let root = setup.folder.join("public");
    for (name, content) in files {
        write(&root.join(name), content);
    }
    fs::create_dir_all(&root).unwrap();
    root
}

fn write(path: &Path, content: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// A proxy that looks at files for each request.
fn serve(setup: Setup, routes: Value) -> Option<Proxy> {
    setup.with("file_cache", json!({"recheck": 0})).with("routes", routes).start()
}

fn get(proxy: &Proxy, target: &str, fields: &str) -> Message {
    proxy.ask(format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n"))
}

const HTML: &str = "text/html; charset=utf-8";

#[test]
fn a_path_finds_a_file_below_the_folder_and_nothing_else() {
    let setup = Setup::to(&[]).without("clusters");
    let root = folder(
        &setup,
        &[
            ("index.html", b"home"),
            ("about.html", b"about"),
            ("sub/index.html", b"sub"),
            ("sub/a b%.txt", b"odd"),
            ("empty/.keep", b""),
            (".env", b"secret"),
            (".git/config", b"secret"),
            (".well-known/security.txt", b"mail"),
            ("none.txt", b""),
        ],
    );
    write(&setup.folder.join("outside.txt"), b"secret");
    symlink("../outside.txt", root.join("out.txt")).unwrap();
    symlink("/etc/passwd", root.join("passwd")).unwrap();
    symlink("..", root.join("up")).unwrap();
    symlink("../index.html", root.join("sub/in.html")).unwrap();
    nix::unistd::mkfifo(&root.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let Some(proxy) = serve(
        setup,
        json!([
            {"files": {"root": root, "try_paths": ["{path}", "{path}.html"]}},
            {"path_prefix": "/static", "strip_prefix": true, "files": {"root": root, "index": "off"}},
            {"path_prefix": "/app", "strip_prefix": true, "files": {"root": root, "try_paths": ["{path}", "/about.html"]}},
        ]),
    ) else {
        return;
    };
    for (target, wanted) in [
        ("/", Some("home")),
        ("/?a=b", Some("home")),
        ("/index.html", Some("home")),
        ("//index.html", Some("home")),
        ("/x/../index.html", Some("home")),
        ("/%69ndex.html", Some("home")),
        ("/about", Some("about")),
        ("/about/", None),
        ("/index.html/", None),
        ("/sub/", Some("sub")),
        ("/sub/a%20b%25.txt", Some("odd")),
        ("/sub/in.html", Some("home")),
        ("/none.txt", Some("")),
        ("/.well-known/security.txt", Some("mail")),
        ("/.env", None),
        ("/%2eenv", None),
        ("/.git/config", None),
        ("/sub/../.git/config", None),
        ("/.well-known/../.env", None),
        ("/empty", None),
        ("/empty/", None),
        ("/out.txt", None),
        ("/passwd", None),
        ("/up/outside.txt", None),
        ("/../outside.txt", None),
        ("/%2e%2e/outside.txt", None),
        ("/..%2foutside.txt", None),
        ("/..%252foutside.txt", None),
        ("/..\\outside.txt", None),
        ("/pipe", None),
        ("/index.html%00.txt", None),
        ("/static/about.html", Some("about")),
        ("/static/", None),
        ("/static/../about.html", Some("about")),
        ("/app/users/7", Some("about")),
        ("/app/.env", Some("about")),
        ("/app/sub/", Some("sub")),
    ] {
        let answer = get(&proxy, target, "");
        match wanted {
            Some(body) => assert_eq!((answer.status(), answer.text()), (200, body), "{target}"),
            None => {
                assert_eq!(
                    (answer.status(), answer.get("x-sluice-reason")),
                    (404, Some("no_file")),
                    "{target}"
                );
            }
        }
    }
    let long = get(&proxy, &format!("/{}", "a".repeat(300)), "");
    assert_eq!(long.status(), 404);
    for (target, location) in
        [("/sub", "/sub/"), ("/sub?a=b", "/sub/?a=b"), ("/app/sub", "/app/sub/"), ("//sub", "/sub/")]
    {
        let answer = get(&proxy, target, "");
        assert_eq!((answer.status(), answer.get("location")), (301, Some(location)), "{target}");
    }
    let answer = proxy.ask("POST /index.html HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
    assert_eq!((answer.status(), answer.get("allow")), (405, Some("GET, HEAD")));
}

#[test]
fn what_is_not_a_file_goes_to_the_cluster() {
    let origin = Origin::saying("app");
    let setup = Setup::to_origin(&origin);
    let root = folder(&setup, &[("a.css", b"body{}"), ("index.html", b"home"), ("users/x", b"")]);
    let Some(proxy) = serve(setup, json!([{"cluster": "default", "files": {"root": root, "index": "off"}}]))
    else {
        return;
    };
    let answer = get(&proxy, "/a.css", "");
    assert_eq!((answer.text(), answer.get("content-type")), ("body{}", Some("text/css; charset=utf-8")));
    for target in ["/", "/users", "/users/", "/users/7", "/.env", "/b.css"] {
        assert_eq!(get(&proxy, target, "").text(), "app", "{target}");
        assert_eq!(origin.last().target(), target);
    }
    let answer = proxy.ask("POST /a.css HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
    assert_eq!(answer.text(), "app");
    let upgrade = "Connection: upgrade\r\nUpgrade: websocket\r\n";
    assert_eq!(get(&proxy, "/a.css", upgrade).text(), "app");
    let record = proxy.record("/b.css");
    assert_eq!((&record["status"], &record["cluster"]), (&json!(200), &json!("default")));
}

#[test]
fn conditions_and_ranges_are_answered_for_files_in_memory_and_on_the_disk() {
    let setup = Setup::to(&[]).without("clusters");
    let content = pattern(100_000);
    let root = folder(&setup, &[("small.txt", b"0123456789"), ("large.bin", &content)]);
    let Some(proxy) = serve(setup, json!([{"files": {"root": root}}])) else { return };
    for (target, content) in [("/small.txt", &b"0123456789"[..]), ("/large.bin", &content[..])] {
        let whole = get(&proxy, target, "");
        assert_same(&whole.body, content);
        let (tag, modified) = (whole.get("etag").unwrap(), whole.get("last-modified").unwrap());
        assert!(tag.starts_with('"') && whole.get("date").is_some(), "{whole:?}");
        assert_eq!(whole.get("accept-ranges"), Some("bytes"));
        for (fields, status) in [
            (format!("If-None-Match: {tag}\r\n"), 304),
            (format!("If-None-Match: \"x\", W/{tag}\r\n"), 304),
            ("If-None-Match: \"x\"\r\n".to_owned(), 200),
            (format!("If-Modified-Since: {modified}\r\n"), 304),
            (format!("If-None-Match: \"x\"\r\nIf-Modified-Since: {modified}\r\n"), 200),
            (format!("If-Match: {tag}\r\n"), 200),
            ("If-Match: \"x\"\r\n".to_owned(), 412),
            ("If-Unmodified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n".to_owned(), 412),
            (format!("If-Range: {tag}\r\nRange: bytes=0-1\r\n"), 206),
            ("If-Range: \"x\"\r\nRange: bytes=0-1\r\n".to_owned(), 200),
        ] {
            let answer = get(&proxy, target, &fields);
            assert_eq!(answer.status(), status, "{target} {fields}");
            if status == 304 {
                assert_eq!(
                    (answer.get("etag"), answer.get("content-length")),
                    (Some(tag), None),
                    "{answer:?}"
                );
            }
        }
        let length = content.len();
        for (range, first, last) in [
            ("0-0", 0, 0),
            ("2-4", 2, 4),
            ("5-", 5, length - 1),
            ("-3", length - 3, length - 1),
            ("1-99999999", 1, length - 1),
        ] {
            let answer = get(&proxy, target, &format!("Range: bytes={range}\r\n"));
            assert_eq!(answer.status(), 206, "{range}");
            assert_eq!(answer.get("content-range"), Some(&*format!("bytes {first}-{last}/{length}")));
            assert_same(&answer.body, &content[first..=last]);
        }
        let answer = get(&proxy, target, &format!("Range: bytes={length}-\r\n"));
        assert_eq!(
            (answer.status(), answer.get("content-range")),
            (416, Some(&*format!("bytes */{length}")))
        );
        let answer = get(&proxy, target, "Range: bytes=1-2,5-7,-1\r\n");
        let kind = answer.get("content-type").unwrap();
        let boundary = kind.strip_prefix("multipart/byteranges; boundary=").unwrap();
        let mut wanted = Vec::new();
        for (at, (first, last)) in [(1, 2), (5, 7), (length - 1, length - 1)].into_iter().enumerate() {
            let line_end = if at == 0 { "" } else { "\r\n" };
            let kind = whole.get("content-type").unwrap();
            let head = format!(
                "{line_end}--{boundary}\r\nContent-Type: {kind}\r\nContent-Range: bytes {first}-{last}/{length}\r\n\r\n"
            );
            wanted.extend_from_slice(head.as_bytes());
            wanted.extend_from_slice(&content[first..=last]);
        }
        wanted.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
        assert_same(&answer.body, &wanted);
        let mut wire = proxy.connect();
        wire.send(format!("HEAD {target} HTTP/1.1\r\nHost: a\r\nRange: bytes=0-1\r\n\r\n"));
        let head = wire.head();
        assert_eq!((head.status(), head.get("content-length")), (200, Some(&*length.to_string())));
        // Nothing of the file follows: the next response does.
        assert_same(&wire.ask(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")).body, content);
    }
}

#[test]
fn large_files_arrive_whole_on_one_connection_whoever_reads_slowly() {
    let setup = Setup::to(&[]).without("clusters");
    let (large, larger) = (pattern(700_001), pattern(9_000_000));
    let root = folder(&setup, &[("large", &large), ("larger", &larger), ("small", b"s")]);
    let Some(proxy) = serve(setup, json!([{"files": {"root": root}}])) else { return };
    let ask = |name: &str| format!("GET /{name} HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut slow = proxy.connect();
    slow.send([ask("larger"), ask("small"), ask("large")].concat());
    let mut wire = proxy.connect();
    for _ in 0..3 {
        assert_same(&wire.ask(ask("large")).body, &large);
        assert_eq!(wire.ask(ask("small")).text(), "s");
    }
    assert_same(&slow.response().body, &larger);
    assert_eq!(slow.response().text(), "s");
    assert_same(&slow.response().body, &large);
    let record = proxy.record("/larger");
    let bytes = record["bytes_out"].as_u64().unwrap();
    assert!((9_000_000..9_001_000).contains(&bytes), "{record}");
    // A client that goes away in the middle harms nobody.
    let mut gone = proxy.connect();
    gone.send(ask("larger"));
    gone.take(1000);
    gone.reset();
    assert_same(&wire.ask(ask("large")).body, &large);
}

#[test]
fn a_file_that_becomes_shorter_breaks_the_response_off() {
    let setup = Setup::to(&[]).without("clusters");
    let root = folder(&setup, &[]);
    let file = fs::File::create(root.join("shrinks")).unwrap();
    file.set_len(64 << 20).unwrap();
    let Some(proxy) = serve(setup, json!([{"files": {"root": root}}])) else { return };
    let mut wire = proxy.connect();
    wire.send("GET /shrinks HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(wire.head().get("content-length"), Some("67108864"));
    file.set_len(4096).unwrap();
    let (bytes, _) = wire.rest();
    assert!(bytes.len() < 64 << 20, "{}", bytes.len());
    assert_eq!(proxy.outcome("/shrinks"), (200, "file_failed".to_owned()));
    // It is as long as it is now.
    assert_eq!(get(&proxy, "/shrinks", "").body.len(), 4096);
}

#[test]
fn a_file_that_is_written_to_in_place_has_another_tag_at_once() {
    let setup = Setup::to(&[]).without("clusters");
    let root = folder(&setup, &[("large", &[b'a'; 50_000])]);
    let setup = setup.with("file_cache", json!({"recheck": "1h"}));
    let Some(proxy) = setup.with("routes", json!([{"files": {"root": root}}])).start() else { return };
    let before = get(&proxy, "/large", "");
    fs::write(root.join("large"), [b'b'; 50_000]).unwrap();
    let fields = format!("If-Range: {}\r\nRange: bytes=1-2\r\n", before.get("etag").unwrap());
    let after = get(&proxy, "/large", &fields);
    assert_eq!((after.status(), after.body.len(), after.body[0]), (200, 50_000, b'b'));
    assert_ne!(before.get("etag"), after.get("etag"));
}

#[test]
fn a_folder_behind_a_rewrite_is_served_without_a_further_slash() {
    let setup = Setup::to(&[]).without("clusters");
    let root = folder(&setup, &[("docs/index.html", b"docs"), ("start.html", b"home")]);
    let Some(proxy) = serve(
        setup,
        json!([
            {"path": "/", "rewrite": "/docs", "files": {"root": root}},
            {"path_regex": "^/start", "rewrite": "/start.html", "files": {"root": root}},
            {"path_regex": "^/fix", "rewrite": "/docs", "files": {"root": root}},
        ]),
    ) else {
        return;
    };
    assert_eq!(get(&proxy, "/?a=//b", "").text(), "docs");
    assert_eq!(get(&proxy, "/start/", "").text(), "home");
    assert_eq!(get(&proxy, "/fix", "").get("location"), Some("/fix/"));
    assert_eq!(get(&proxy, "/fix/", "").text(), "docs");
}

#[test]
fn open_files_leave_descriptors_to_connections() {
    let setup = Setup::to(&[]).without("clusters").after("ulimit -n 400");
    let root = folder(&setup, &[]);
    for at in 0..600 {
        write(&root.join(format!("f{at}")), &pattern(40_000 + at));
    }
    let setup = setup.with("file_cache", json!({"recheck": "1h"}));
    let Some(proxy) = setup.with("routes", json!([{"files": {"root": root}}])).start() else { return };
    let mut wire = proxy.connect();
    for at in 0..600 {
        let answer = wire.ask(format!("GET /f{at} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_same(&answer.body, &pattern(40_000 + at));
    }
    let mut others: Vec<_> = (0..50).map(|_| proxy.connect()).collect();
    for other in &mut others {
        assert_eq!(other.ask("GET /f0 HTTP/1.1\r\nHost: a\r\n\r\n").status(), 200);
    }
}

#[test]
fn a_file_that_cannot_be_kept_is_not_read_into_memory() {
    let setup = Setup::to(&[]).without("clusters");
    let root = folder(&setup, &[("large", &pattern(8 << 20))]);
    let setup = setup.with("file_cache", json!({"memory_max": "1m", "object_max": "16m"}));
    // The last reader waits until all others have everything, which takes as long as the machine is busy.
    let route = json!({"files": {"root": root}, "body_idle_timeout": "1h"});
    let Some(proxy) = setup.with("routes", json!([route])).start() else { return };
    let before = proxy.memory_kb();
    let mut readers: Vec<_> = (0..20).map(|_| proxy.connect()).collect();
    for reader in &mut readers {
        reader.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(reader.head().status(), 200);
    }
    let after = proxy.memory_kb();
    assert!(after < before + 20_000, "{before} {after}");
    for reader in &mut readers {
        assert_same(&reader.take(8 << 20), &pattern(8 << 20));
    }
}

#[test]
fn a_route_says_how_long_a_client_may_take_nothing_of_a_file() {
    let setup = Setup::to(&[]).without("clusters");
    let root = folder(&setup, &[("large", &pattern(16 << 20))]);
    let Some(proxy) = serve(setup, json!([{"files": {"root": root}, "body_idle_timeout": "200ms"}])) else {
        return;
    };
    let mut reader = proxy.connect();
    reader.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(proxy.outcome("/large"), (200, "client_stalled".to_owned()));
}

#[test]
fn files_are_sent_whoever_owns_them() {
    if !nix::unistd::geteuid().is_root() {
        return eprintln!("skipped: another user's files need root");
    }
    let setup = Setup::to(&[]).without("clusters");
    let root = folder(&setup, &[("large", &pattern(1_500_000))]);
    for open in [&setup.folder, &root] {
        fs::set_permissions(open, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let setup = setup.with("user", "nobody").with("group", "nogroup");
    let Some(proxy) = serve(setup, json!([{"files": {"root": root}}])) else { return };
    for _ in 0..3 {
        assert_same(&get(&proxy, "/large", "").body, &pattern(1_500_000));
    }
    fs::set_permissions(root.join("large"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(get(&proxy, "/large", "").status(), 404);
}

#[test]
fn encoded_files_beside_the_plain_one_are_sent_to_those_that_take_them() {
    let setup = Setup::to(&[]).without("clusters");
    let root = folder(
        &setup,
        &[
            ("a.css", b"plain"),
            ("a.css.br", b"brotli"),
            ("a.css.gz", b"gzipped"),
            ("b.css", b"b"),
            ("c.css.br", b"c"),
        ],
    );
    let routes = json!([{"files": {"root": root, "precompressed": ["br", "zstd", "gzip"]}}]);
    let Some(proxy) = serve(setup, routes) else { return };
    let mut tags = Vec::new();
    for (accept, coding, body) in [
        ("", None, "plain"),
        ("gzip, br", Some("br"), "brotli"),
        ("gzip", Some("gzip"), "gzipped"),
        ("gzip;q=1, br;q=0.1", Some("gzip"), "gzipped"),
        ("br;q=0, zstd", None, "plain"),
    ] {
        let answer = get(&proxy, "/a.css", &format!("Accept-Encoding: {accept}\r\n"));
        assert_eq!((answer.text(), answer.get("content-encoding")), (body, coding), "{accept}");
        assert_eq!(answer.get("content-type"), Some("text/css; charset=utf-8"));
        assert_eq!(answer.get("vary"), Some("Accept-Encoding"));
        tags.push(answer.get("etag").unwrap().to_owned());
        let condition = format!("Accept-Encoding: {accept}\r\nIf-None-Match: {}\r\n", tags.last().unwrap());
        let answer = get(&proxy, "/a.css", &condition);
        assert_eq!((answer.status(), answer.get("vary")), (304, Some("Accept-Encoding")));
    }
    assert_eq!(tags[0], tags[4]);
    tags.truncate(3);
    tags.sort();
    tags.dedup();
    assert_eq!(tags.len(), 3);
    assert_eq!(get(&proxy, "/b.css", "Accept-Encoding: br\r\n").text(), "b");
    assert_eq!(get(&proxy, "/c.css", "Accept-Encoding: br\r\n").status(), 404);
}

#[test]
fn rules_and_edits_of_the_route_apply_to_files() {
    let setup = Setup::to(&[]).without("clusters");
    let root = folder(
        &setup,
        &[("a-0123abcd.css", b"a"), ("index.html", b"i"), ("x.txt", b"x"), ("typed.bin", b"0123456789")],
    );
    let immutable = "public, max-age=31536000, immutable";
    let Some(proxy) = serve(
        setup,
        json!([
            {"files": {"root": root, "cache_control":
                [{"path_regex": "-[0-9a-f]{8}[.]", "value": immutable}, {"path_regex": "[.]html$|/$", "value": "no-cache"}]},
             "response_headers": {"set": {"X-Frame-Options": "DENY", "X-Path": "{path}"}}},
            {"path": "/typed.bin", "files": {"root": root}, "response_headers": {"set": {"Content-Type": "text/x-own"}}},
            {"path": "/x.txt", "files": {"root": root, "cache_control": [{"value": "max-age=1"}]},
             "response_headers": {"set": {"Cache-Control": "private"}, "remove": ["etag"]},
             "cors": {"origins": ["https://b.test"]}},
        ]),
    ) else {
        return;
    };
    for (target, wanted) in
        [("/a-0123abcd.css", Some(immutable)), ("/", Some("no-cache")), ("/index.html", Some("no-cache"))]
    {
        let answer = get(&proxy, target, "");
        assert_eq!(answer.get("cache-control"), wanted, "{target}");
        assert_eq!((answer.get("x-frame-options"), answer.get("x-path")), (Some("DENY"), Some(target)));
    }
    let answer = get(&proxy, "/x.txt", "Origin: https://b.test\r\n");
    assert_eq!((answer.get("cache-control"), answer.get("etag")), (Some("private"), None));
    assert_eq!(answer.get("access-control-allow-origin"), Some("https://b.test"));
    let answer = get(&proxy, "/typed.bin", "");
    assert_eq!(answer.get("content-type"), Some("text/x-own"));
    let answer = get(&proxy, "/typed.bin", "Range: bytes=0-1,3-4\r\n");
    assert!(answer.get("content-type").unwrap().starts_with("multipart/byteranges; boundary="), "{answer:?}");
    assert_eq!(answer.text().matches("Content-Type: text/x-own\r\n").count(), 2);
    let answer = get(&proxy, "/typed.bin", "If-None-Match: *\r\n");
    assert_eq!((answer.status(), answer.get("content-type")), (304, None));
}

#[test]
fn a_folder_is_listed_only_if_the_route_says_so() {
    let setup = Setup::to(&[]).without("clusters");
    let root = folder(
        &setup,
        &[
            ("sub/<b>.txt", b"x"),
            ("sub/.hidden", b"x"),
            ("sub/deep/index.html", b"deep"),
            ("with/index.html", b"w"),
        ],
    );
    let Some(proxy) = serve(setup, json!([{"files": {"root": root, "listing": true}}])) else { return };
    let answer = get(&proxy, "/sub/", "");
    assert_eq!((answer.status(), answer.get("content-type")), (200, Some(HTML)));
    let page = answer.text();
    assert!(page.contains("<a href=\"./%3Cb%3E.txt\">&lt;b&gt;.txt</a>"), "{page}");
    assert!(page.contains("<a href=\"./deep/\">deep/</a>") && !page.contains("hidden"), "{page}");
    assert_eq!(get(&proxy, "/sub", "").get("location"), Some("/sub/"));
    assert_eq!(get(&proxy, "/with/", "").text(), "w");
    assert_eq!(get(&proxy, "/nothing/", "").status(), 404);
}

#[test]
fn a_replaced_file_and_a_replaced_folder_are_seen() {
    let setup = Setup::to(&[]).without("clusters");
    let releases = setup.folder.join("releases");
    // Of other lengths: two files that are written in the same tick of the clock differ by nothing else.
    for (release, content) in [("1", "one"), ("2", "second")] {
        write(&releases.join(release).join("a.txt"), content.as_bytes());
        write(
            &releases.join(release).join("large"),
            &pattern(50_000 + content.len() * usize::from(release == "2")),
        );
    }
    let current = setup.folder.join("current");
    symlink(releases.join("1"), &current).unwrap();
    let Some(proxy) = serve(setup, json!([{"files": {"root": current}}])) else { return };
    let before = get(&proxy, "/a.txt", "");
    assert_eq!((before.text(), get(&proxy, "/large", "").body.len()), ("one", 50_000));
    symlink(releases.join("2"), current.with_extension("new")).unwrap();
    fs::rename(current.with_extension("new"), &current).unwrap();
    let after = get(&proxy, "/a.txt", "");
    assert_eq!((after.text(), get(&proxy, "/large", "").body.len()), ("second", 50_006));
    assert_ne!(before.get("etag"), after.get("etag"));
    write(&current.join("next"), b"three, renamed");
    fs::rename(current.join("next"), current.join("a.txt")).unwrap();
    assert_eq!(get(&proxy, "/a.txt", "").text(), "three, renamed");
    fs::write(current.join("a.txt"), "four").unwrap();
    assert_eq!(get(&proxy, "/a.txt", "").text(), "four");
    fs::remove_file(current.join("a.txt")).unwrap();
    assert_eq!(get(&proxy, "/a.txt", "").status(), 404);
    fs::remove_file(&current).unwrap();
    assert_eq!(get(&proxy, "/large", "").status(), 404);
}

#[test]
fn what_is_kept_of_files_is_bounded() {
    let setup = Setup::to(&[]).without("clusters");
    let root = folder(&setup, &[]);
    for at in 0..300 {
        write(&root.join(format!("f{at}")), &pattern(30_000 + at));
        write(&root.join(format!("large{at}")), &pattern(40_000 + at));
    }
    let setup = setup.with("file_cache", json!({"memory_max": "1m", "recheck": "1h"}));
    let Some(proxy) = setup.with("routes", json!([{"files": {"root": root}}])).start() else { return };
    let before = (proxy.memory_kb(), descriptors(&proxy));
    let mut wire = proxy.connect();
    for _ in 0..2 {
        for at in 0..300 {
            for (name, length) in [("f", 30_000), ("large", 40_000)] {
                let answer = wire.ask(format!("GET /{name}{at} HTTP/1.1\r\nHost: a\r\n\r\n"));
                assert_same(&answer.body, &pattern(length + at));
            }
        }
    }
    let after = (proxy.memory_kb(), descriptors(&proxy));
    assert!(after.0 < before.0 + 6_000, "{before:?} {after:?}");
    assert!(after.1 < before.1 + 270, "{before:?} {after:?}");
}

fn descriptors(proxy: &Proxy) -> usize {
    fs::read_dir(format!("/proc/{}/fd", proxy.id())).unwrap().count()
}

#[test]
fn files_are_sent_by_https() {
    let setup = Setup::to(&[]).without("clusters");
    let content = pattern(3_000_000);
    let root = folder(&setup, &[("large", &content), ("small", b"s")]);
    let authority = crate::support::Authority::new();
    let identity = authority.identity(&["a.test"]);
    let (cert, key) = (setup.file("cert.pem", &identity.cert_pem), setup.file("key.pem", &identity.key_pem));
    let tls = json!({"certificates": [{"cert": cert, "key": key}]});
    let Some(proxy) = serve(setup.with("listeners.0.tls", tls), json!([{"files": {"root": root}}])) else {
        return;
    };
    let config = std::sync::Arc::new(authority.client());
    let mut wire = Wire::connect_tls(proxy.address(), "a.test", &config).unwrap();
    for _ in 0..2 {
        assert_same(&wire.ask("GET /large HTTP/1.1\r\nHost: a.test\r\n\r\n").body, &content);
        assert_eq!(wire.ask("GET /small HTTP/1.1\r\nHost: a.test\r\n\r\n").text(), "s");
    }
}

/// An application that names a file by these fields.
fn naming(fields: impl Fn(&Message) -> String + Send + Sync + 'static) -> Origin {
    Origin::answering(move |request| {
        format!("HTTP/1.1 200 OK\r\n{}Content-Length: 6\r\n\r\nplain\n", fields(request)).into_bytes()
    })
}

#[test]
fn an_application_names_a_file_and_clients_get_it_with_its_fields() {
    let origin = Origin::answering(|request| {
        let target = request.target();
        let name = target.split('?').next().unwrap().to_owned();
        let (status, more) = match target.split_once('?') {
            Some((_, "404")) => ("404 Not Found", ""),
            Some((_, "304")) => ("304 Not Modified", ""),
            Some((_, "206")) => {
                ("206 Partial Content", "Content-Range: bytes 0-1/6\r\nContent-Digest: sha-256=:a:\r\n")
            }
            Some((_, "pdf")) => {
                ("200 OK", "Content-Type: application/pdf\r\nContent-Disposition: inline\r\n")
            }
            _ => (
                "200 OK",
                "Set-Cookie: a=b\r\nCache-Control: private\r\nETag: \"app\"\r\nX-Accel-Expires: 9\r\n",
            ),
        };
        let body = if status.starts_with("304") { "" } else { "Content-Length: 6\r\n\r\nplain\n" };
        let end = if body.is_empty() { "\r\n" } else { body };
        format!("HTTP/1.1 {status}\r\nX-Sendfile: /{name}\r\n{more}{end}").replace("//", "/").into_bytes()
    });
    let setup = Setup::to_origin(&origin);
    let large = pattern(2_000_000);
    let root = folder(&setup, &[("a b%.txt", b"small"), (".hidden", b"hidden"), ("large.bin", &large)]);
    write(&setup.folder.join("outside.txt"), b"secret");
    symlink("../outside.txt", root.join("out.txt")).unwrap();
    let routes = json!([{"cluster": "default", "sendfile": {"roots": [root]}}]);
    let Some(proxy) = serve(setup, routes) else { return };
    let path = root.display().to_string();
    let mut wire = proxy.connect();
    let mut ask = |method: &str, target: &str, fields: &str| {
        wire.send(format!("{method} {path}{target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
        if method == "HEAD" { wire.head() } else { wire.response() }
    };
    let answer = ask("GET", "/a%20b%25.txt", "");
    assert_eq!(answer.status(), 502, "the name is a path, not a URL: {answer:?}");
    let answer = ask("GET", "/large.bin", "");
    assert_same(&answer.body, &large);
    assert_eq!((answer.get("set-cookie"), answer.get("cache-control")), (Some("a=b"), Some("private")));
    assert_eq!((answer.get("x-sendfile"), answer.get("x-accel-expires")), (None, None));
    assert_eq!(answer.get("content-type"), Some("application/octet-stream"));
    let tag = answer.get("etag").unwrap().to_owned();
    assert_ne!(tag, "\"app\"");
    let answer = ask("GET", "/large.bin", &format!("If-None-Match: {tag}\r\n"));
    assert_eq!((answer.status(), answer.get("set-cookie")), (304, Some("a=b")));
    let answer = ask("GET", "/large.bin", "Range: bytes=5-9\r\n");
    assert_eq!((answer.status(), &answer.body[..]), (206, &large[5..10]));
    let answer = ask("HEAD", "/large.bin", "");
    assert_eq!((answer.status(), answer.get("content-length")), (200, Some("2000000")));
    let answer = ask(
        "POST",
        "/large.bin",
        &format!("Content-Length: 0\r\nIf-None-Match: {tag}\r\nRange: bytes=0-1\r\n"),
    );
    assert_eq!(answer.status(), 200);
    assert_same(&answer.body, &large);
    let answer = ask("GET", "/.hidden?pdf", "");
    assert_eq!((answer.text(), answer.get("content-type")), ("hidden", Some("application/pdf")));
    assert_eq!(answer.get("content-disposition"), Some("inline"));
    let answer = ask("GET", "/.hidden?404", "If-None-Match: *\r\n");
    assert_eq!((answer.status(), answer.text()), (404, "hidden"));
    let answer = ask("GET", "/.hidden?206", "");
    assert_eq!((answer.status(), answer.text(), answer.get("content-range")), (200, "hidden", None));
    assert_eq!(answer.get("content-digest"), None);
    let answer = ask("GET", "/.hidden?pdf", "Range: bytes=0-0,2-2\r\n");
    assert_eq!(answer.text().matches("Content-Type: application/pdf\r\n").count(), 2);
    let answer = ask("GET", "/.hidden?304", "");
    assert_eq!((answer.status(), answer.get("x-sendfile")), (304, None));
    for target in ["/nothing", "/out.txt", "/../outside.txt", "", "/"] {
        let answer = ask("GET", target, "");
        assert_eq!(
            (answer.status(), answer.get("x-sluice-reason")),
            (502, Some("sendfile_refused")),
            "{target}"
        );
    }
    let request = origin.last();
    assert_eq!(request.get("x-sendfile-type"), Some("X-Sendfile"));
    assert_eq!(proxy.record(&format!("{path}/nothing"))["cluster"], "default");
}

#[test]
fn an_application_names_a_file_by_a_url() {
    let origin = naming(|request| format!("X-Accel-Redirect: {}\r\n", request.target()));
    let setup = Setup::to_origin(&origin);
    let root = folder(&setup, &[("a b.txt", b"accel")]);
    let routes = json!([{"cluster": "default", "sendfile": {"accel": {"/protected": root}}}]);
    let Some(proxy) = serve(setup, routes) else { return };
    assert_eq!(get(&proxy, "/protected/a%20b.txt?x=y", "").text(), "accel");
    for target in ["/other/a%20b.txt", "/protected/../a%20b.txt", "/protected/nothing"] {
        assert_eq!(get(&proxy, target, "X-Accel-Mapping: /=/protected/\r\n").status(), 502, "{target}");
    }
    let request = origin.last();
    assert_eq!(request.get("x-sendfile-type"), Some("X-Accel-Redirect"));
    assert_eq!(request.get("x-accel-mapping"), Some(&*format!("{}/=/protected/", root.display())));
}

#[test]
fn a_route_without_sendfile_passes_names_on_and_hides_what_clients_say_of_it() {
    let origin = naming(|_| "X-Sendfile: /etc/passwd\r\n".to_owned());
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let answer = get(
        &proxy,
        "/",
        "X-Sendfile-Type: X-Sendfile\r\nX-Accel-Mapping: /=/\r\nX_Sendfile_Type: X-Sendfile\r\n",
    );
    assert_eq!((answer.text(), answer.get("x-sendfile")), ("plain\n", Some("/etc/passwd")));
    let request = origin.last();
    assert_eq!((request.get("x-sendfile-type"), request.get("x-accel-mapping")), (None, None));
    assert_eq!(request.get("x_sendfile_type"), None);
}
