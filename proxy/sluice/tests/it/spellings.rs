//! Spellings of a path that may evade a rule, and how other proxies treat each of them.

use serde_json::json;

use crate::support::{Origin, Setup, ok};

/// What is sent, and whether a rule that forbids /admin applies: with sluice, nginx 1.22 (`location /admin`), HAProxy
/// 2.6 (`path_beg`), the same with all options of its `normalize-uri`, and Caddy 2.6 (`/admin*`). The results of the
/// others were observed; `?` is another refusal. Their rules match everything with the same first letters; sluice's
/// match whole segments.
const SPELLINGS: [(&str, &str); 31] = [
    ("/admin", "yes yes yes yes yes"),
    ("/admin/", "yes yes yes yes yes"),
    ("/admin/x", "yes yes yes yes yes"),
    ("/admin?x", "yes yes yes yes yes"),
    ("/%61dmin", "yes yes no yes yes"),
    ("/%61%64min/x", "yes yes no yes yes"),
    ("//admin", "yes yes no yes yes"),
    ("///admin", "yes yes no yes yes"),
    ("/.//admin", "yes yes no yes yes"),
    ("/./admin", "yes yes no yes yes"),
    ("/x/../admin", "yes yes no yes yes"),
    ("/x/..//admin", "yes yes no yes yes"),
    ("/x/%2e%2e/admin", "yes yes no yes yes"),
    ("/%2e/admin", "yes yes no yes yes"),
    ("/%2fadmin", "yes yes no no yes"),
    ("/admin%2fx", "yes yes yes yes yes"),
    ("/x%2f../admin", "yes yes no no yes"),
    ("/x/..%2fadmin", "yes yes no no yes"),
    ("/x/../../admin", "yes ? no yes yes"),
    ("http://a.test/admin", "yes yes yes yes yes"),
    ("http://a.test//admin", "yes yes no yes yes"),
    // A fragment is never sent (RFC 9112 section 3.2).
    ("/admin#x", "? yes ? ? yes"),
    // No proxy decodes twice.
    ("/%2561dmin", "no no no no no"),
    // Paths are case-sensitive (RFC 3986 section 6.2.2.1), and a backslash is not a slash.
    ("/ADMIN", "no no no no yes"),
    ("/%5cadmin", "no no no no no"),
    ("/\\admin", "no no no no no"),
    // Other segments: their meaning depends on the application, which the reference mentions.
    ("/adminx", "no yes yes yes yes"),
    ("/admin;x", "no yes yes yes yes"),
    ("/admin.", "no yes yes yes yes"),
    ("/admin%20", "no yes yes yes yes"),
    ("/admin%00", "no ? yes yes yes"),
];

#[test]
fn rules_match_every_spelling_and_the_target_is_forwarded_unchanged() {
    let origin = Origin::answering(|request| ok(request.target()));
    let routes = json!([
        {"path_prefix": "/admin", "respond": {"status": 403}},
        {"cluster": "default"},
    ]);
    let Some(proxy) = Setup::to_origin(&origin).with("routes", routes).start() else { return };
    for (target, verdicts) in SPELLINGS {
        let answer = proxy.get(target);
        match verdicts.split(' ').next() {
            Some("yes") => assert_eq!(answer.status(), 403, "{target}"),
            Some("?") => assert_eq!(answer.status(), 400, "{target}"),
            _ => assert_eq!((answer.status(), answer.text()), (200, target)),
        }
    }
}
