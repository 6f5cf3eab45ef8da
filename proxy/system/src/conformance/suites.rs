//! The runners, how they are called, and what they must say.

use super::verdicts::{Bar, Disputed};

/// Verdicts that we hold to be wrong; each is said aloud when it is met.
pub(super) const DISPUTED: &[Disputed] = &[Disputed {
    id: "proxy/hop/0-Connection:close,X-Forwarded-F",
    verdict: "UNCLEAN",
    why: "the client's X-Forwarded-For, nominated by Connection, is removed as RFC 9110 7.6.1 says; the one \
          that arrives is made by sluice. Leaving it out because the client asks so would let anybody hide \
          from the origin (CVE-2022-31813)",
}];

/// Cases that HTTP/1.1 refuses and HTTP/2 answers, with the reason; each is said aloud when it is met.
pub(super) const ANSWERED_BY_HTTP2: &[(&str, &str)] = &[
    (
        "cve/CVE-2023-45539",
        "a fragment is cut off :path where it is parsed: routes and origins see it without",
    ),
    (
        "proxy/big/cookie-split",
        "crumbs of Cookie are one field (RFC 9113 8.2.3), so they are not too many fields",
    ),
];

/// One runner, how it is called and what it must say.
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

/// Run side by side: they mostly wait.
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
