//! `auth`: who may use a route.

use std::path::PathBuf;

use super::codec::{Codec, File, List, Own, Table, checked, keys, map, number};
use super::defaults::MINUTE_MS;
use super::out::Out;
use super::problem::quote;
use super::reader::Item;
use super::shape::{Key, Shape};
use super::{HttpUrl, text};

/// Maximum number of fields that an authority's response may add to a request.
const COPIED_MAX: usize = 50;
/// Maximum bytes of a realm, which browsers show in one line.
const REALM_BYTES_MAX: usize = 200;

/// How a route finds out who sends a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Auth {
    /// By a name and a password.
    Basic(BasicAuth),
    /// By asking another server.
    Forward(ForwardAuth),
}

/// Names and passwords (RFC 7617).
#[derive(Clone, Debug, PartialEq)]
pub struct BasicAuth {
    /// Lines of a name, a colon and a hash of bcrypt or argon2.
    pub file: PathBuf,
    /// What browsers show when they ask.
    pub realm: String,
}

/// An authority that decides about each request.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardAuth {
    /// Where it is asked.
    pub url: HttpUrl,
    /// Fields of its response that are passed to the application, in lower case. Clients' own are removed.
    pub copy: Vec<String>,
    /// Limit for an answer, in milliseconds.
    pub timeout_ms: u64,
    /// Requests that wait for it at the same time; further ones get 503.
    pub waiting_max: usize,
    /// Maximum size of an answer that is passed to the client, in bytes.
    pub body_bytes_max: usize,
}

keys! { BasicAuth {
    realm: "Restricted".to_owned(), checked(realm);
} required {
    file: PathBuf::new(), "a file that htpasswd -B writes", File;
}}

keys! { ForwardAuth {
    copy: Vec::new(), List(COPIED_MAX, FIELD);
    // Every request waits for it; an authority that is slower than this is down.
    timeout_ms: 2000, number(1..=MINUTE_MS);
    // Those that wait hold their connections; a healthy authority on this host answers tens of thousands a second.
    waiting_max: 1000, number(1..=100_000);
    // A login page, without its pictures.
    body_bytes_max: 64 << 10, number(0..=1 << 20);
} required {
    url: HttpUrl::here(0, "/"), "http://host:port/path", URL;
}}

const URL: Own<HttpUrl> = Own {
    read: |item| HttpUrl::parse(item.text()?, "/").map_err(|message| item.mistake(message)).ok(),
    write: |url| url.to_string().into(),
    shape: || Shape::Matching("^https?://"),
};

const FIELD: Own<String> = Own {
    read: |item| {
        item.checked(|name| text::edited_field_name(name, true)).map(|name| name.to_ascii_lowercase())
    },
    write: |name| name.as_str().into(),
    shape: || Shape::TEXT,
};

fn realm(realm: &str) -> text::Check {
    text::field_value(realm)?;
    if realm.len() > REALM_BYTES_MAX || realm.contains(['"', '\\']) {
        return Err(format!(
            "{} is not a realm; write up to {REALM_BYTES_MAX} characters without quotes and backslashes",
            quote(realm)
        )
        .into());
    }
    Ok(())
}

/// One of the ways.
pub(super) const AUTH: Own<Auth> = Own {
    read: auth,
    write: |auth| {
        let mut out = Out::default();
        match auth {
            Auth::Basic(basic) => out.put("basic", basic.written()),
            Auth::Forward(forward) => out.put("forward", forward.written()),
        }
        out.done()
    },
    shape: || {
        Shape::Map(vec![
            Key::optional("basic", Shape::Map(BasicAuth::keys())),
            Key::optional("forward", Shape::Map(ForwardAuth::keys())),
        ])
    },
};

fn auth(item: &Item<'_>) -> Option<Auth> {
    let mut fields = item.fields();
    let (basic, forward) = (fields.get("basic"), fields.get("forward"));
    let auth = match (basic, forward) {
        (Some(item), None) => map().read(&item).map(Auth::Basic),
        (None, Some(item)) => map().read(&item).map(Auth::Forward),
        _ if fields.is_broken() => None,
        _ => {
            fields.mistake("expected exactly one key; write basic or forward");
            None
        }
    };
    fields.finish();
    auth
}
