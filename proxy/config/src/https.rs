//! The way from http to https: redirects, and HSTS.

use serde_yaml::{Mapping, Value};

use super::defaults::{NumberRange, PORT, numbers};
use super::reader::Fields;

/// What hstspreload.org asks for, in seconds: a year.
pub(super) const PRELOAD_AGE_S: u64 = 365 * 86_400;

/// Has requests come again over https.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedirectToHttps {
    /// Where https is served.
    pub port: u16,
}

numbers! { RedirectToHttps {
    // The port of https, which URLs leave out.
    port: u16 = 443, PORT;
}}

/// RFC 6797: has browsers use https only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hsts {
    /// For how long, in seconds; 0 has them forget it.
    pub max_age_s: u64,
    /// Also for the hosts below.
    pub include_subdomains: bool,
    /// Agrees to be in the list that browsers come with.
    pub preload: bool,
}

numbers! { Hsts {
    // What the browsers' list asks for, and what most sites say.
    max_age_s: u64 = PRELOAD_AGE_S, 0..=20 * PRELOAD_AGE_S;
} rest {
    include_subdomains: false,
    preload: false,
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

/// `redirect_to_https`: off, on, or a map.
pub(super) fn redirect_to_https(listener: &mut Fields<'_>) -> Option<RedirectToHttps> {
    let item = listener.get("redirect_to_https").filter(|item| !item.is_off())?;
    let mut redirect = RedirectToHttps::default();
    if matches!(item.value, Value::Bool(true)) || item.value.as_str() == Some("on") {
        return Some(redirect);
    }
    if !item.value.is_mapping() {
        item.not_one_of(&["off", "on", "{port: 8443}"]);
        return Some(redirect);
    }
    let mut fields = item.fields();
    redirect.read_numbers(&mut fields);
    fields.finish();
    Some(redirect)
}

/// `hsts`: off, or a map.
pub(super) fn hsts(listener: &mut Fields<'_>) -> Option<Hsts> {
    let item = listener.get("hsts").filter(|item| !item.is_off())?;
    let mut hsts = Hsts::default();
    let mut fields = item.fields();
    hsts.read_numbers(&mut fields);
    hsts.include_subdomains = fields.boolean("include_subdomains", false);
    hsts.preload = fields.boolean("preload", false);
    fields.finish();
    Some(hsts)
}
