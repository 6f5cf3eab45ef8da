//! `auth`: who may use a route.

use std::path::PathBuf;

use super::codec::{Codec, File, List, Own, Table, Text, checked, keys, lowered, map, number};
use super::defaults::MINUTE_MS;
use super::out::Out;
use super::problem::quote;
use super::reader::{Fields, Item};
use super::shape::{Key, Shape};
use super::{HttpUrl, JwtAuth, text};

/// Maximum number of fields that an authority's response may add to a request.
const COPIED_MAX: usize = 50;
/// Maximum number of certificates of one route, of each kind. A request is compared with all.
const CERTIFICATES_MAX: usize = 1000;
/// Maximum bytes of a realm, which browsers show in one line.
const REALM_BYTES_MAX: usize = 200;

/// How a route finds out who sends a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Auth {
    /// By a name and a password.
    Basic(BasicAuth),
    /// By asking another server.
    Forward(ForwardAuth),
    /// By a signed token.
    Jwt(Box<JwtAuth>),
    /// By the certificate of its TLS connection.
    Certificate(CertificateAuth),
}

/// Certificates of clients, verified by the listener. One that has any of these passes; with none of them, each does.
#[derive(Clone, Debug, PartialEq)]
pub struct CertificateAuth {
    /// Subjects, whole, as X-Client-Cert-Subject has them: RFC 4514.
    pub subjects: Vec<String>,
    /// DNS names, mail addresses and URIs of its subjectAltName.
    pub names: Vec<String>,
    /// SHA-256 of the certificate, in lower-case hexadecimal without colons.
    pub fingerprints: Vec<String>,
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
    /// Fields of its response that are added to the one to the client, in lower case: a renewed cookie.
    pub copy_to_client: Vec<String>,
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

keys! { CertificateAuth, settle no_empty_list {
    subjects: Vec::new(), List(CERTIFICATES_MAX, checked(text::field_value));
    names: Vec::new(), List(CERTIFICATES_MAX, checked(text::field_value));
    fingerprints: Vec::new(), List(CERTIFICATES_MAX, FINGERPRINT);
}}

keys! { ForwardAuth {
    copy: Vec::new(), List(COPIED_MAX, FIELD);
    copy_to_client: Vec::new(), List(COPIED_MAX, FIELD_TO_CLIENT);
    // Every request waits for it; an authority that is slower than this is down.
    timeout_ms: 2000, number(1..=MINUTE_MS);
    // Those that wait hold their connections; a healthy authority on this host answers tens of thousands a second.
    waiting_max: 1000, number(1..=100_000);
    // A login page, without its pictures.
    body_bytes_max: 64 << 10, number(0..=1 << 20);
} required {
    url: HttpUrl::here(0, "/"), "http://host:port/path", URL;
}}

pub(super) const URL: Own<HttpUrl> = Own {
    read: |item| HttpUrl::parse(item.text()?, "/").map_err(|message| item.mistake(message)).ok(),
    write: |url| url.to_string().into(),
    shape: || Shape::Matching("^https?://"),
};

const FINGERPRINT: Own<String> = Own {
    read: |item| {
        let text = item.text()?.replace(':', "").to_ascii_lowercase();
        let is_digest = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_digest {
            item.mistake(format!("{} is not a SHA-256; write 64 hexadecimal digits", quote(&text)));
        }
        is_digest.then_some(text)
    },
    write: |digest| digest.as_str().into(),
    shape: || Shape::Matching("^([0-9A-Fa-f]{2}:?){32}$"),
};

const FIELD: Text = lowered(|name| text::edited_field_name(name, true));
const FIELD_TO_CLIENT: Text = lowered(|name| text::edited_field_name(name, false));

pub(super) fn realm(realm: &str) -> text::Check {
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

/// An empty list would let every certificate pass.
fn no_empty_list(_: &mut CertificateAuth, fields: &mut Fields<'_>) {
    for key in ["subjects", "names", "fingerprints"] {
        fields.refuse_null(key, "a list");
        if fields.get(key).is_some_and(|item| item.value.as_sequence().is_some_and(Vec::is_empty)) {
            fields.problems.add(&fields.path.key(key), "the list is empty; fill it or remove the key");
        }
    }
}

/// One of the ways.
pub(super) const AUTH: Own<Auth> = Own {
    read: auth,
    write: |auth| {
        let mut out = Out::default();
        match auth {
            Auth::Basic(basic) => out.put("basic", basic.written()),
            Auth::Forward(forward) => out.put("forward", forward.written()),
            Auth::Jwt(jwt) => out.put("jwt", jwt.written()),
            Auth::Certificate(certificate) => out.put("certificate", certificate.written_given()),
        }
        out.done()
    },
    shape: || {
        Shape::Map(vec![
            Key::optional("basic", Shape::Map(BasicAuth::keys())),
            Key::optional("forward", Shape::Map(ForwardAuth::keys())),
            Key::optional("jwt", Shape::Map(JwtAuth::keys())),
            Key::optional("certificate", Shape::Map(CertificateAuth::keys())),
        ])
    },
};

impl CertificateAuth {
    /// Without the lists that are empty: they are mistakes.
    fn written_given(&self) -> serde_yaml::Value {
        let mut out = Out::default();
        for (key, texts) in
            [("subjects", &self.subjects), ("names", &self.names), ("fingerprints", &self.fingerprints)]
        {
            out.put_some(key, (!texts.is_empty()).then(|| super::out::texts(texts)));
        }
        out.done()
    }
}

fn auth(item: &Item<'_>) -> Option<Auth> {
    let mut fields = item.fields();
    let ways = ["basic", "forward", "jwt", "certificate"].map(|key| fields.get(key));
    let auth = match ways {
        [Some(item), None, None, None] => map().read(&item).map(Auth::Basic),
        [None, Some(item), None, None] => map().read(&item).map(Auth::Forward),
        [None, None, Some(item), None] => map().read(&item).map(|jwt| Auth::Jwt(Box::new(jwt))),
        [None, None, None, Some(item)] => map().read(&item).map(Auth::Certificate),
        _ if fields.is_broken() => None,
        _ => {
            fields.mistake("expected exactly one key; write basic, forward, jwt or certificate");
            None
        }
    };
    fields.finish();
    auth
}
