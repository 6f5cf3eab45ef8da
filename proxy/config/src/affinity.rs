//! `affinity`: requests of one client go to the same endpoint.

use super::codec::{Optional, checked, keys, map, number};
use super::defaults::DAY_MS;
use super::names::words;
use super::problem::quote;
use super::reader::Fields;
use super::text;

/// How a client is recognised.
#[derive(Clone, Debug, PartialEq)]
pub struct Affinity {
    /// A cookie that sluice sets.
    pub cookie: AffinityCookie,
}

/// The cookie that stands for an endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct AffinityCookie {
    /// Its name.
    pub name: String,
    /// How long browsers keep it, in milliseconds; `None` is until they are closed.
    pub ttl_ms: Option<u64>,
    /// With which requests from other sites browsers send it.
    pub same_site: SameSite,
}

/// RFC 6265bis 4.1.2.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameSite {
    /// Links from other sites only.
    Lax,
    /// None.
    Strict,
    /// All; needs https.
    None,
}

words!(SameSite {
    Lax = "lax",
    Strict = "strict",
    None = "none",
});

keys! { Affinity {
} required {
    cookie: AffinityCookie::default(), "cookie: {}", map();
}}

keys! { AffinityCookie, settle whole_seconds {
    name: "sluice".to_owned(), checked(cookie_name);
    ttl_ms: None, Optional(number(1000..=400 * DAY_MS));
    same_site: SameSite::Lax, super::codec::word();
}}

/// Browsers count in seconds.
fn whole_seconds(cookie: &mut AffinityCookie, fields: &mut Fields<'_>) {
    if cookie.ttl_ms.is_some_and(|ttl| ttl % 1000 != 0) {
        fields
            .problems
            .add(&fields.path.key("ttl"), "browsers count in seconds; write a whole number of them");
    }
}

fn cookie_name(name: &str) -> text::Check {
    if text::is_token(name) {
        return Ok(());
    }
    Err(format!("{} is not a name of a cookie; write letters, digits and hyphens", quote(name)).into())
}
