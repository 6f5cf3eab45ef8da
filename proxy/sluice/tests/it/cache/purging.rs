//! `sluice cache`.

use serde_json::{Value, json};

use super::{caching, is_hit, response};
use crate::support::{Origin, Proxy};

fn ask(proxy: &Proxy, host: &str, target: &str) -> bool {
    is_hit(&proxy.ask(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")))
}

#[test]
fn an_operator_takes_out_what_has_changed() {
    let origin = Origin::answering(|request| {
        response(&format!("Cache-Control: max-age=60\r\nCache-Tag: all, of {}\r\n", request.target()), "body")
    });
    let setup = caching(&origin, json!({}))
        .with("caches.other", json!({"memory_max": "2m", "object_max": "10k"}))
        .with(
            "routes",
            json!([
                {"cluster": "default", "cache": "pages", "hosts": ["a.test"]},
                {"name": "b", "cluster": "default", "cache": "other"}
            ]),
        );
    let Some(proxy) = setup.start() else { return };
    let all = [("a.test", "/"), ("a.test", "/p?q"), ("a.test", "/p/x"), ("b.test", "/p?q")];
    let look = || all.map(|(host, target)| ask(&proxy, host, target));
    let purge = |arguments: &[&str]| {
        look();
        assert_eq!(look(), [true; 4]);
        let (code, text) = proxy.command("cache", &[&["purge"], arguments].concat());
        assert_eq!(code, Some(0), "{text}");
        (text, look())
    };
    for (arguments, purged, left) in [
        (&["https://A.test/p?q"][..], 1, [true, false, true, true]),
        (&["/p?q"], 2, [true, false, true, false]),
        (&["/p?q", "--cache", "other"], 1, [true, true, true, false]),
        (&["--prefix", "http://a.test/p"], 2, [true, false, false, true]),
        (&["--prefix", "/"], 4, [false; 4]),
        (&["--tag", "of /p/x"], 1, [true, true, false, true]),
        (&["--tag", "all"], 4, [false; 4]),
        (&["--all", "--cache", "pages"], 3, [false, false, false, true]),
        (&["https://c.test/p"], 0, [true; 4]),
    ] {
        assert_eq!(purge(arguments), (format!("purged: {purged}\n"), left), "{arguments:?}");
    }
    for (arguments, wanted) in [
        (&["purge", "a.test/p"][..], "is not a URL"),
        (&["purge", "--all", "--cache", "page"], "those in use: other, pages"),
        (&["purge"], "required"),
        (&["purge", "/a", "--all"], "cannot be used with"),
    ] {
        let (code, text) = proxy.command("cache", arguments);
        assert!(code != Some(0) && text.contains(wanted), "{arguments:?}: {text}");
    }
    let (_, text) = proxy.command("cache", &["list", "--json"]);
    let listed: Value = serde_json::from_str(&text).unwrap();
    let of = |at: usize, key: &str| listed["caches"][at][key].clone();
    assert_eq!(
        (of(0, "name"), of(1, "name"), of(1, "resources")),
        (json!("other"), json!("pages"), json!(3))
    );
    assert!(proxy.command("cache", &["list"]).1.contains("64.0 MiB"));
}
