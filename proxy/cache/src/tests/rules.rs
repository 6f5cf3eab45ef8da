//! The rules, by tables and by chance.

use proptest::prelude::*;
use sluice_config::Cache;

use super::{NOW_MS, WHEN, admitted, asked, caller, request, response, stored_for};
use crate::directives::{Directives, Wishes};
use crate::{Use, is_canonical};

/// How long a response with these fields is fresh, in seconds; `None` if it is not stored.
fn lifetime(status: u16, fields: &str) -> Option<u64> {
    let config = Cache { heuristic_max_ms: 3_600_000, ..Cache::default() };
    let admission = admitted(&request(""), status, fields, &config).ok()?;
    let stored = admission.complete("".into(), crate::Store::new("a", &config).room(None)?).unwrap().stored;
    match stored.usable(NOW_MS, None) {
        Use::Fresh(left_ms) => Some(left_ms / 1000),
        Use::Validated | Use::WhileRevalidate => Some(0),
    }
}

#[test]
fn a_response_is_fresh_for_as_long_as_it_says() {
    const DATE: &str = "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
    for (fields, wanted) in [
        ("Cache-Control: max-age=60\r\n", Some(60)),
        ("Cache-Control: MAX-AGE=\"60\"\r\n", Some(60)),
        ("Cache-Control: max-age=0060\r\n", Some(60)),
        ("Cache-Control: max-age=60, s-maxage=10\r\n", Some(10)),
        ("Cache-Control: s-maxage=600, max-age=10\r\n", Some(600)),
        ("Cache-Control: max-age=60\r\nCache-Control: max-age=10\r\n", Some(10)),
        ("Cache-Control: max-age=99999999999999999999\r\n", Some(1 << 31)),
        ("Cache-Control: a=\"max-age=60\", max-age=10\r\n", Some(10)),
        ("Cache-Control: a=\"x\\\"\", max-age=10\r\n", Some(10)),
        ("Cache-Control: max-age=60\r\nAge: 50\r\n", Some(10)),
        ("Cache-Control: max-age=60\r\nDate: Sun, 06 Nov 1994 08:49:07 GMT\r\n", Some(30)),
        ("Cache-Control: max-age=60\r\nDate: Sun, 06 Nov 1994 09:49:07 GMT\r\n", Some(60)),
        // Nobody knows how old it is, or how long it may be used; without a validator it is of no use.
        ("Cache-Control: max-age=60\r\nAge: old\r\n", None),
        ("Cache-Control: max-age=60\r\nAge: 0\r\nAge: 0\r\n", None),
        ("Cache-Control: max-age=-1\r\n", None),
        ("Cache-Control: max-age=1.5\r\n", None),
        ("Cache-Control: max-age='60'\r\n", None),
        ("Cache-Control: max-age=60a\r\nETag: \"a\"\r\n", Some(0)),
        ("Expires: Sun, 06 Nov 1994 08:50:37 GMT\r\n", Some(60)),
        ("Expires: Sun, 06 Nov 1994 08:50:37 GMT\r\nCache-Control: max-age=10\r\n", Some(10)),
        ("Expires: 0\r\nETag: \"a\"\r\n", Some(0)),
        // A tenth of the time since its last change, and an hour at most.
        ("Last-Modified: Sun, 06 Nov 1994 08:39:37 GMT\r\n", Some(60)),
        ("Last-Modified: Sun, 06 Nov 1983 08:39:37 GMT\r\n", Some(3600)),
        ("Last-Modified: Sun, 06 Nov 1983 08:39:37 GMT\r\nCDN-Cache-Control: max-age=5\r\n", Some(5)),
        ("Cache-Control: no-store\r\nCDN-Cache-Control: max-age=5, a=(1 2)\r\n", Some(5)),
        ("Cache-Control: no-store; max-age=60\r\nLast-Modified: Sun, 06 Nov 1983 08:39:37 GMT\r\n", None),
        ("Cache-Control: max-age=60, x=\"a, private\r\n", None),
        ("Cache-Control: max-age=60, x=\"a, \\\"private\"\r\n", Some(60)),
        ("CDN-Cache-Control: max-age=\"5\"\r\nCache-Control: max-age=60\r\n", Some(5)),
        ("CDN-Cache-Control: max-age=5;\r\nCache-Control: max-age=60\r\n", Some(60)),
        ("CDN-Cache-Control: private\r\nCache-Control: max-age=60\r\n", None),
        ("ETag: \"a\"\r\n", Some(0)),
        ("", None),
    ] {
        assert_eq!(
            lifetime(200, &format!("{fields}{}", if fields.contains("Date") { "" } else { DATE })),
            wanted,
            "{fields}"
        );
    }
    for (status, fields, wanted) in [
        (599, "Cache-Control: max-age=60\r\n", Some(60)),
        (599, "Cache-Control: max-age=60, must-understand\r\n", None),
        (200, "Cache-Control: max-age=60, no-store, must-understand\r\n", Some(60)),
        (206, "Cache-Control: max-age=60\r\n", None),
        (304, "Cache-Control: max-age=60\r\n", None),
        (201, "Last-Modified: Sun, 06 Nov 1983 08:39:37 GMT\r\n", None),
        (404, "Last-Modified: Sun, 06 Nov 1983 08:39:37 GMT\r\n", Some(3600)),
        (429, "Cache-Control: public, max-age=60\r\n", None),
        (400, "Cache-Control: max-age=60\r\n", None),
        (403, "Cache-Control: public\r\nLast-Modified: Sun, 06 Nov 1983 08:39:37 GMT\r\n", Some(3600)),
    ] {
        assert_eq!(lifetime(status, fields), wanted, "{status} {fields}");
    }
}

#[test]
fn a_stale_response_is_used_as_it_allows() {
    for (control, late_s, wanted, on_failure) in [
        ("max-age=60", 30, Use::Fresh(30_000), true),
        ("max-age=60", 61, Use::Validated, true),
        ("max-age=60", 10_000, Use::Validated, false),
        ("max-age=60, must-revalidate", 61, Use::Validated, false),
        ("max-age=60, no-cache=\"\"", 1, Use::Validated, false),
        ("max-age=60, proxy-revalidate, stale-if-error=900", 61, Use::Validated, false),
        ("s-maxage=60", 61, Use::Validated, false),
        ("s-maxage=60, stale-if-error=900", 61, Use::Validated, true),
        ("max-age=60, stale-while-revalidate=10", 69, Use::WhileRevalidate, true),
        ("max-age=60, stale-while-revalidate=10", 70, Use::Validated, true),
        ("max-age=60, stale-while-revalidate=10, must-revalidate", 61, Use::Validated, false),
        ("max-age=60, stale-if-error=5", 64, Use::Validated, true),
        ("max-age=60, stale-if-error=5", 65, Use::Validated, false),
        ("max-age=60, no-cache", 1, Use::Validated, false),
        ("immutable, max-age=60", 61, Use::Validated, true),
    ] {
        let stored =
            stored_for(&request(""), &format!("Cache-Control: {control}\r\nETag: \"a\"\r\n"), 0).unwrap();
        let now = NOW_MS + late_s * 1000;
        assert_eq!(stored.usable(now, None), wanted, "{control} {late_s}");
        assert_eq!(stored.replaces_failure(now, 600_000), on_failure, "{control} {late_s}");
    }
}

#[test]
fn clients_wish_for_another_response_if_that_counts() {
    let stored = stored_for(&request(""), "Cache-Control: max-age=60\r\nETag: \"a\"\r\n", 0).unwrap();
    for (wish, late_s, wanted) in [
        ("Cache-Control: no-cache", 1, Use::Validated),
        ("Pragma: no-cache", 1, Use::Validated),
        ("Pragma: no-cache\r\nCache-Control: max-stale", 1, Use::Fresh(59_000)),
        ("Cache-Control: max-age=0", 0, Use::Validated),
        ("Cache-Control: max-age=10", 10, Use::Fresh(50_000)),
        ("Cache-Control: max-age=10", 11, Use::Validated),
        ("Cache-Control: min-fresh=50", 10, Use::Fresh(50_000)),
        ("Cache-Control: min-fresh=50", 11, Use::Validated),
        ("Cache-Control: max-stale=5", 64, Use::Fresh(0)),
        ("Cache-Control: max-stale=5", 66, Use::Validated),
        ("Cache-Control: max-stale", 6000, Use::Fresh(0)),
    ] {
        let wishes = Wishes::of_request(&request(&format!("{wish}\r\n")));
        assert_eq!(stored.usable(NOW_MS + late_s * 1000, Some(&wishes)), wanted, "{wish}");
    }
}

#[test]
fn a_response_is_for_requests_with_the_same_fields() {
    let first = request("A: 1\r\nA: 2 , 3\r\nAccept-Encoding: GZIP,br\r\nX-Dropped: a\r\n");
    let fields = "Cache-Control: max-age=60\r\nVary: a, Accept-Encoding\r\nVary: B, x-dropped\r\n";
    let stored = stored_for(&first, fields, 0).unwrap();
    for (fields, wanted) in [
        ("A: 1,2,3\r\nAccept-Encoding: gzip, br\r\n", true),
        ("A: 1,2,3\r\nAccept-Encoding: gzip, br\r\nC: d\r\nX-Dropped: b\r\n", true),
        ("A: 1,2\r\nAccept-Encoding: gzip, br\r\n", false),
        ("A: 1,2,3\r\nAccept-Encoding: br\r\n", false),
        ("A: 1,2,3\r\nAccept-Encoding: gzip, br\r\nB:\r\n", false),
        ("", false),
    ] {
        assert_eq!(stored.fits(&caller(&request(fields))), wanted, "{fields}");
    }
    let underscored =
        stored_for(&request("A_B: 1\r\n"), "Cache-Control: max-age=60\r\nVary: A-B\r\n", 0).unwrap();
    assert!(!underscored.fits(&caller(&request(""))) && underscored.fits(&caller(&request("A-B: 1\r\n"))));
    for vary in ["*", "a, *", "X-Ours"] {
        assert!(
            stored_for(&first, &format!("Cache-Control: max-age=60\r\nVary: {vary}\r\n"), 0).is_none(),
            "{vary}"
        );
    }
    let many: Vec<String> = (0..17).map(|at| format!("f{at}")).collect();
    assert!(
        stored_for(&first, &format!("Cache-Control: max-age=60\r\nVary: {}\r\n", many.join(",")), 0)
            .is_none()
    );
}

#[test]
fn a_304_changes_what_may_change() {
    let plain = request("");
    let stored = stored_for(
        &plain,
        "Cache-Control: max-age=0\r\nETag: \"a\"\r\nContent-Type: text/css\r\nX-A: 1\r\nX-B: 1\r\nContent-Encoding: br\r\nAge: 7\r\n",
        3,
    )
    .unwrap();
    let fields = "Cache-Control: max-age=60\r\nETag: \"b\"\r\nX-A: 2\r\nX-A: 3\r\nContent-Encoding: gzip\r\n\
                  Content-Length: 99\r\nSet-Cookie: a=b\r\nConnection: X-Hop\r\nX-Hop: a\r\n";
    let refresh =
        |fields: &str| stored.refreshed(&asked(&plain), &response(304, fields), WHEN, &Cache::default());
    let (new, is_kept) = refresh(fields).unwrap();
    assert!(is_kept);
    let shown = |name: &str| -> Vec<String> {
        let fields =
            new.stored.head().fields().filter(|field| field.name.eq_ignore_ascii_case(name.as_bytes()));
        fields.map(|field| String::from_utf8_lossy(field.value).into_owned()).collect()
    };
    for (name, wanted) in [
        ("ETag", &["\"a\""][..]),
        ("Cache-Control", &["max-age=60"]),
        ("X-A", &["2", "3"]),
        ("X-B", &["1"]),
        ("Content-Encoding", &["br"]),
        ("Content-Length", &["3"]),
        ("Set-Cookie", &[]),
        ("X-Hop", &[]),
        ("Age", &[]),
    ] {
        assert_eq!(shown(name), wanted, "{name}");
    }
    assert_eq!(new.for_client().head().get(b"set-cookie"), Some(&b"a=b"[..]));
    assert_eq!(new.stored.usable(NOW_MS, None), Use::Fresh(60_000));
    for (fields, is_kept) in [
        ("Cache-Control: private\r\n", false),
        ("Cache-Control: no-store\r\n", false),
        ("Cache-Control: no-store, must-understand\r\n", true),
        ("Vary: *\r\n", false),
        ("Vary: Cookie\r\n", true),
        ("", true),
    ] {
        let (new, kept) = refresh(fields).unwrap();
        assert_eq!(kept, is_kept, "{fields}");
        let cookie = request("Cookie: a\r\n");
        if fields.is_empty() || fields == "Vary: Cookie\r\n" {
            assert_eq!(new.stored.fits(&caller(&cookie)), fields.is_empty(), "{fields}");
        }
    }
    // What one says of the fields of the other.
    let stored =
        stored_for(&plain, "Cache-Control: max-age=0, no-cache=\"x-user\"\r\nETag: \"a\"\r\n", 0).unwrap();
    let (new, _) =
        stored.refreshed(&asked(&plain), &response(304, "X-User: b\r\n"), WHEN, &Cache::default()).unwrap();
    assert_eq!(
        (new.stored.head().get(b"x-user"), new.for_client().head().get(b"x-user")),
        (None, Some(&b"b"[..]))
    );
}

#[test]
fn a_path_has_one_spelling() {
    for good in [
        "/",
        "/a",
        "/a/",
        "/a/b?c=//..%61",
        "/a%20b",
        "/%C3%A4",
        "/a;b=c",
        "/a.b/.c",
        "/~a",
        "/a%3Fb",
        "/a%2Cb",
    ] {
        assert!(is_canonical(good.as_bytes()), "{good}");
    }
    for bad in [
        "*", "", "a", "//", "/a//b", "/.", "/a/..", "/a/./b", "/%61", "/%2e", "/%2F", "/a%5Cb", "/a\\b",
        "/%c3%a4", "/%C", "/%", "/%zz", "/a#b", "/a b", "/\u{e4}", "/%00", "/%25", "/a\0",
    ] {
        assert!(!is_canonical(bad.as_bytes()), "{bad}");
    }
}

proptest! {
    /// Nothing in a field makes it panic, and what is forbidden stays so whatever stands beside it.
    #[test]
    fn any_directives_can_be_read(before in "[ -~]{0,40}", after in "[ -~]{0,40}") {
        let quotes = before.matches('"').count();
        let text = format!("Cache-Control: {before}, no-store,{after}\r\n");
        let directives = Directives::of_response(&response(200, &text));
        prop_assert!(directives.no_store || quotes > 0);
        Wishes::of_request(&request(&text));
    }

    #[test]
    fn any_targeted_field_can_be_read(text in "[ -~]{0,60}") {
        let directives = Directives::of_response(&response(200, &format!("CDN-Cache-Control: {text}\r\nCache-Control: no-store\r\n")));
        prop_assert!(directives.no_store || directives.is_targeted);
    }

    #[test]
    fn any_path_is_judged(path in "/[ -~]{0,40}") {
        let _ = is_canonical(path.as_bytes());
    }
}

#[test]
fn those_that_wait_get_what_took_longer_than_it_may_be_used() {
    let config = Cache::default();
    let plain = request("");
    let when = crate::ExchangeTimes { asked_ms: NOW_MS - 5000, received_ms: NOW_MS };
    for (control, wanted) in [("max-age=1", true), ("max-age=0", false), ("no-cache, max-age=9", false)] {
        let head = response(200, &format!("Cache-Control: {control}\r\nETag: \"a\"\r\n"));
        let admission = crate::Admission::of(&asked(&plain), &head, when, &config).unwrap();
        let room = crate::Store::new("a", &config).room(None).unwrap();
        let stored = admission.complete("".into(), room).unwrap().stored;
        assert_eq!(stored.usable(NOW_MS, None), Use::Validated);
        assert_eq!(stored.answers_wait(NOW_MS - 100), wanted, "{control}");
        assert!(!stored.answers_wait(NOW_MS + 1));
    }
}
