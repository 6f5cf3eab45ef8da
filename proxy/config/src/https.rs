//! From http to https: redirects, and HSTS.

use serde_yaml::Value;

use super::codec::{Codec, Flag, Own, Table, keys, map, number};
use super::defaults::PORT;
use super::reader::Item;
use super::shape::Shape;

/// The minimum that hstspreload.org requires, in seconds: a year.
pub(super) const PRELOAD_AGE_S: u64 = 365 * 86_400;

/// Redirects requests to https.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedirectToHttps {
    /// Port of the https URL.
    pub port: u16,
}

keys! { RedirectToHttps {
    // The default port of https, which URLs leave out.
    port: 443, number(PORT);
}}

/// HTTP Strict Transport Security (RFC 6797): makes browsers use https only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hsts {
    /// How long browsers remember it, in seconds; 0 makes them forget it.
    pub max_age_s: u64,
    /// Also applies to subdomains.
    pub include_subdomains: bool,
    /// Consents to inclusion in the preload list of browsers.
    pub preload: bool,
}

keys! { Hsts {
    // The preload list requires this, and most sites use it.
    max_age_s: PRELOAD_AGE_S, number(0..=20 * PRELOAD_AGE_S);
    include_subdomains: false, Flag;
    preload: false, Flag;
}}

impl Hsts {
    /// The value of Strict-Transport-Security (RFC 6797 section 6.1).
    pub fn field_value(&self) -> String {
        let mut value = format!("max-age={}", self.max_age_s);
        if self.include_subdomains {
            value.push_str("; includeSubDomains");
        }
        if self.preload {
            value.push_str("; preload");
        }
        value
    }
}

/// `redirect_to_https`: on, or a map. The caller handles off.
pub(super) const REDIRECT: Own<RedirectToHttps> = Own {
    read: redirect_to_https,
    write: Table::written,
    shape: || {
        Shape::AnyOf(vec![Shape::OneOf(vec!["on".into(), true.into()]), map::<RedirectToHttps>().shape()])
    },
};

fn redirect_to_https(item: &Item<'_>) -> Option<RedirectToHttps> {
    let is_on = matches!(item.value, Value::Bool(true)) || item.value.as_str() == Some("on");
    if !is_on && !item.value.is_mapping() {
        item.not_one_of(&["off", "on", "{port: 8443}"]);
    }
    if item.value.is_mapping() { map().read(item) } else { Some(RedirectToHttps::default()) }
}
