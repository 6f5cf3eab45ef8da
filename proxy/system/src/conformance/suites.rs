//! The runners, their commands, and the required results.

use super::verdicts::{Bar, Disputed};

/// Verdicts that we consider wrong; each is printed when it occurs.
pub(super) const DISPUTED: &[Disputed] = &[Disputed {
    id: "proxy/hop/0-Connection:close,X-Forwarded-F",
    verdict: "UNCLEAN",
    why: "the client's X-Forwarded-For, nominated by Connection, is removed as RFC 9110 7.6.1 requires; \
          the one that arrives is sluice's own. Omitting it at the client's request would let anyone hide \
          from the origin (CVE-2022-31813)",
}];

/// Cases that HTTP/1.1 refuses and HTTP/2 and HTTP/3 answer, with the reason; each is printed when it occurs.
pub(super) const ANSWERED_AS_MESSAGES: &[(&str, &str)] = &[
    ("cve/CVE-2023-45539", "the parser removes a fragment from :path: routes and origins see it without one"),
    (
        "proxy/big/cookie-split",
        "crumbs of Cookie are one field (RFC 9113 8.2.3, RFC 9114 4.2.1), so they are not too many fields",
    ),
];

/// One runner, its command, and the required results.
pub(super) struct Suite {
    pub(super) name: &'static str,
    pub(super) script: &'static str,
    /// Its cases, in the same folder.
    pub(super) corpus: &'static str,
    pub(super) args: &'static [&'static str],
    pub(super) bars: &'static [Bar],
}

const REQUEST_BARS: &[Bar] = &[
    Bar::none(&["SMUGGLED"]),
    Bar::none(&["AMBIGUOUS"]),
    Bar::none(&["UNCLEAN"]),
    Bar::none(&["REFUSED"]),
    Bar::none(&["HUNG"]),
    Bar::at_most(&["LENIENT"], 9),
];

const RESPONSE_BARS: &[Bar] = &[
    Bar::none(&["DESYNC"]),
    Bar::none(&["SILENT-TRUNCATION"]),
    Bar::none(&["CORRUPT"]),
    Bar::none(&["REFUSED"]),
    Bar::none(&["HUNG"]),
    Bar::at_most(&["LENIENT", "UNCLEAN"], 2),
];

/// Run in parallel: they mostly wait.
pub(super) const VERDICT_SUITES: &[Suite] = &[
    Suite {
        name: "requests_lenient",
        script: "run-requests.py",
        corpus: "requests.jsonl",
        args: &["--profile", "lenient"],
        bars: REQUEST_BARS,
    },
    Suite {
        name: "requests_te_contains",
        script: "run-requests.py",
        corpus: "requests.jsonl",
        args: &["--profile", "te-contains"],
        bars: REQUEST_BARS,
    },
    Suite {
        name: "responses",
        script: "run-responses.py",
        corpus: "responses.jsonl",
        args: &[],
        bars: RESPONSE_BARS,
    },
];
