//! `auth.jwt`: signed tokens (RFC 7519) say who sends a request.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::HttpUrl;
use super::auth::{URL, realm};
use super::codec::{File, List, Optional, Own, checked, keys, number, word};
use super::defaults::{DAY_MS, MINUTE_MS};
use super::names::words;
use super::out::Out;
use super::problem::quote;
use super::reader::{Fields, Item};
use super::shape::Shape;
use super::text;

/// Maximum number of audiences, and of claims that are passed on.
const ITEMS_MAX: usize = 50;

/// How tokens are checked.
///
/// Many fields: one for each key.
#[derive(Clone, Debug, PartialEq)]
pub struct JwtAuth {
    /// Where the issuer publishes its keys (RFC 7517). Exactly one of this and the next is given.
    pub jwks_url: Option<HttpUrl>,
    /// A file with a set of keys, or with one public key in PEM.
    pub keys_file: Option<PathBuf>,
    /// The `iss` that a token must have; `None` is any.
    pub issuer: Option<String>,
    /// One of these must be in a token's `aud`; empty is any.
    pub audience: Vec<String>,
    /// The only algorithms that are accepted.
    pub algorithms: Vec<JwtAlgorithm>,
    /// The cookie that has the token of a request without a bearer token.
    pub cookie: Option<String>,
    /// Claims that the application gets, by the field that has them, in lower case. Clients' own fields are removed.
    pub claims_to_headers: BTreeMap<String, String>,
    /// How far the clocks of the issuer and of this host may be apart, in milliseconds.
    pub clock_skew_ms: u64,
    /// How old keys are when they are fetched again, in milliseconds.
    pub refresh_ms: u64,
    /// Limit for fetching them, in milliseconds.
    pub timeout_ms: u64,
    /// What clients are told that the token is for.
    pub realm: String,
}

/// How a token is signed (RFC 7518 section 3.1, RFC 8037).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JwtAlgorithm {
    /// RSA, PKCS #1 1.5, SHA-256.
    Rs256,
    /// The same with SHA-384.
    Rs384,
    /// The same with SHA-512.
    Rs512,
    /// RSA, PSS, SHA-256.
    Ps256,
    /// The same with SHA-384.
    Ps384,
    /// The same with SHA-512.
    Ps512,
    /// P-256.
    Es256,
    /// P-384.
    Es384,
    /// Ed25519.
    EdDsa,
    /// A secret that the issuer and sluice share.
    Hs256,
    /// The same with SHA-384.
    Hs384,
    /// The same with SHA-512.
    Hs512,
}

words!(JwtAlgorithm {
    Rs256 = "RS256",
    Rs384 = "RS384",
    Rs512 = "RS512",
    Ps256 = "PS256",
    Ps384 = "PS384",
    Ps512 = "PS512",
    Es256 = "ES256",
    Es384 = "ES384",
    EdDsa = "EdDSA",
    Hs256 = "HS256",
    Hs384 = "HS384",
    Hs512 = "HS512",
});

impl JwtAlgorithm {
    /// Whether its key is a secret: who can check a token can also make one.
    pub fn is_symmetric(self) -> bool {
        matches!(self, Self::Hs256 | Self::Hs384 | Self::Hs512)
    }
}

keys! { JwtAuth, settle consistent {
    jwks_url: None, Optional(URL);
    keys_file: None, Optional(File);
    issuer: None, Optional(checked(text::field_value));
    audience: Vec::new(), List(ITEMS_MAX, checked(text::field_value));
    // What issuers sign with, all of it by private keys.
    algorithms: vec![JwtAlgorithm::Rs256, JwtAlgorithm::Es256, JwtAlgorithm::EdDsa], List(ITEMS_MAX, word());
    cookie: None, Optional(checked(text::field_name));
    claims_to_headers: BTreeMap::new(), CLAIMS;
    // Hosts with NTP are apart by milliseconds, those without it by a minute.
    clock_skew_ms: 30_000, number(0..=10 * MINUTE_MS);
    // An issuer publishes a new key long before it withdraws the old one; a token with a new one is not waited for.
    refresh_ms: 10 * MINUTE_MS, number(MINUTE_MS..=DAY_MS);
    // The first requests wait for it.
    timeout_ms: 5000, number(1..=MINUTE_MS);
    realm: "Restricted".to_owned(), checked(realm);
}}

/// A claim for each field, in one map: `{sub: X-User}`.
const CLAIMS: Own<BTreeMap<String, String>> = Own {
    read: |item| {
        let mut claims = BTreeMap::new();
        for (claim, item) in item.entries(ITEMS_MAX) {
            let Some(field) = item.checked(|name| text::edited_field_name(name, true)) else { continue };
            // Applications by CGI, WSGI and Rack read an underscore as a dash.
            let is_same =
                |other: &String| other.replace('_', "-") == field.to_ascii_lowercase().replace('_', "-");
            let is_taken = claims.keys().any(is_same);
            claims.insert(field.to_ascii_lowercase(), claim);
            if is_taken {
                item.mistake(format!(
                    "{} has the value of another claim as well; write another field",
                    quote(&field)
                ));
            }
        }
        Some(claims)
    },
    write: |claims| {
        let mut out = Out::default();
        claims.iter().for_each(|(field, claim)| out.put(claim, field.as_str()));
        out.done()
    },
    shape: || Shape::entries(Shape::TEXT, ITEMS_MAX),
};

fn consistent(jwt: &mut JwtAuth, fields: &mut Fields<'_>) {
    for key in ["issuer", "audience", "algorithms", "cookie"] {
        fields.refuse_null(key, "a value");
    }
    let given = [fields.get("jwks_url").is_some(), fields.get("keys_file").is_some()];
    match given {
        [false, false] if !fields.is_broken() => fields.mistake("no keys; write jwks_url or keys_file"),
        [true, true] => fields.mistake("jwks_url and keys_file exclude each other; keep one"),
        _ => {}
    }
    let is_empty =
        |item: Option<Item<'_>>| item.is_some_and(|item| item.value.as_sequence().is_some_and(Vec::is_empty));
    let audience = fields.get("audience");
    let needs_audience = given == [true, false] && (audience.is_none() || is_empty(audience));
    let needs_algorithm = is_empty(fields.get("algorithms"));
    let mistake = |key: &str, what: &str| fields.problems.add(&fields.path.key(key), what);
    if needs_audience {
        mistake(
            "audience",
            "none is given, so a token that the issuer made for another application would pass; write the name of \
             this one",
        );
    }
    let symmetric = jwt.algorithms.iter().filter(|algorithm| algorithm.is_symmetric()).count();
    if needs_algorithm {
        mistake("algorithms", "the list is empty; write what tokens are signed with, such as RS256");
    } else if symmetric > 0 && given[0] {
        mistake("algorithms", "a secret is not published by a URL; write keys_file in place of jwks_url");
    } else if symmetric > 0 && symmetric < jwt.algorithms.len() {
        // A public key that is taken for a secret lets anybody make tokens.
        mistake(
            "algorithms",
            "those with a secret exclude the others; keep HS256 and the like, or the others",
        );
    }
}
