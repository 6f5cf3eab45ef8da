//! Signed tokens (RFC 7519, RFC 8725): what they say of a client, once their signature and their claims are right.

mod claims;
mod key_set;
mod key_store;
mod recent;

use std::sync::Arc;

use claims::fields_of;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Header, Validation, decode, decode_header};
pub use key_set::{KeyError, KeySet};
pub use key_store::{KeyStore, Supply};
use recent::RecentTokens;
use serde_json::{Map, Value};
use sluice_config::JwtAuth;

use crate::clock::unix_s;

/// Maximum bytes of a token. Issuers stay far below it, because servers limit heads.
pub const TOKEN_BYTES_MAX: usize = 16 << 10;

/// Keys that a token without the name of its key is tried with: each takes some tens of microseconds of a worker.
const TRIES_MAX: usize = 16;

/// What a token says of its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenHolder {
    /// The subject.
    pub user: Option<String>,
    /// Fields for the application.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
    /// When the token is no longer accepted, in seconds since 1970.
    until_unix_s: u64,
}

/// Why a token is refused. Clients are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenFault {
    /// It is not a token, or is signed in a way that is not accepted.
    Malformed,
    /// No key that is known has signed it.
    UnknownKey,
    /// Its signature is wrong.
    Signature,
    /// It is no longer valid.
    Expired,
    /// It is not valid yet.
    Early,
    /// It is of another issuer, or for another application, or lacks a claim.
    Claims,
}

impl TokenFault {
    /// The description for the client (RFC 6750 section 3).
    pub fn text(self) -> &'static str {
        match self {
            Self::Malformed => "the token is malformed, or its algorithm is not accepted",
            Self::UnknownKey => "the key of the token is not known",
            Self::Signature => "the signature is wrong",
            Self::Expired => "the token has expired",
            Self::Early => "the token is not valid yet",
            Self::Claims => "the token has not the claims that are needed here",
        }
    }
}

/// Checks the tokens of one route.
pub struct Tokens {
    config: JwtAuth,
    /// The keys that it trusts.
    pub keys: Arc<KeyStore>,
    recent: RecentTokens,
}

impl Tokens {
    /// A check by these keys.
    pub fn new(config: JwtAuth, keys: Arc<KeyStore>) -> Self {
        // Without a choice, a build with both libraries would panic at the first token. It stays the first one made.
        #[cfg(feature = "aws-lc")]
        let _ = jsonwebtoken::crypto::aws_lc::DEFAULT_PROVIDER.install_default();
        #[cfg(all(feature = "ring", not(feature = "aws-lc")))]
        let _ = jsonwebtoken::crypto::rust_crypto::DEFAULT_PROVIDER.install_default();
        Self { config, keys, recent: RecentTokens::new() }
    }

    /// How the tokens of the route are checked.
    pub fn config(&self) -> &JwtAuth {
        &self.config
    }

    /// Who has a token, if it was checked by these keys a moment ago.
    pub fn recent(&self, token: &[u8], keys: &KeySet) -> Option<Arc<TokenHolder>> {
        self.recent.get(&self.recent.mark(token, keys.version), unix_s())
    }

    /// Checks a token by these keys.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn check(&self, token: &[u8], keys: &KeySet) -> Result<Arc<TokenHolder>, TokenFault> {
        let mark = self.recent.mark(token, keys.version);
        let holder = Arc::new(self.holder(token, keys)?);
        self.recent.note(mark, &holder, unix_s());
        Ok(holder)
    }

    fn holder(&self, token: &[u8], keys: &KeySet) -> Result<TokenHolder, TokenFault> {
        let header = header(token)?;
        if !self.config.algorithms.iter().any(|accepted| key_set::algorithm(*accepted) == header.alg) {
            return Err(TokenFault::Malformed);
        }
        let validation = self.validation(header.alg);
        let mut fault = TokenFault::UnknownKey;
        for key in keys.fitting(header.kid.as_deref(), header.alg).take(TRIES_MAX) {
            match decode::<Map<String, Value>>(token, key, &validation) {
                Ok(decoded) => return self.described(&decoded.claims),
                Err(error) => match fault_of(error.kind()) {
                    // Perhaps it is of the next key.
                    TokenFault::Signature => fault = TokenFault::Signature,
                    other => return Err(other),
                },
            }
        }
        Err(fault)
    }

    /// What a token must have, with this algorithm.
    fn validation(&self, algorithm: Algorithm) -> Validation {
        let config = &self.config;
        let mut validation = Validation::new(algorithm);
        validation.leeway = config.clock_skew_ms / 1000;
        validation.validate_nbf = true;
        validation.validate_aud = !config.audience.is_empty();
        let mut required = vec!["exp"];
        if !config.audience.is_empty() {
            validation.set_audience(&config.audience);
            required.push("aud");
        }
        if let Some(issuer) = &config.issuer {
            validation.set_issuer(&[issuer]);
            required.push("iss");
        }
        validation.set_required_spec_claims(&required);
        validation
    }

    fn described(&self, claims: &Map<String, Value>) -> Result<TokenHolder, TokenFault> {
        let (user, fields) = fields_of(claims, &self.config.claims_to_headers).ok_or(TokenFault::Claims)?;
        let expiry = claims.get("exp").and_then(Value::as_f64).unwrap_or_default() as u64;
        Ok(TokenHolder {
            user,
            fields,
            until_unix_s: expiry.saturating_add(self.config.clock_skew_ms / 1000),
        })
    }

    /// Whether a token names a key that is not among these. If so, the issuer may have a new one.
    pub fn wants_other_keys(&self, token: &[u8], keys: &KeySet) -> bool {
        header(token).is_ok_and(|header| keys.fitting(header.kid.as_deref(), header.alg).next().is_none())
    }
}

fn header(token: &[u8]) -> Result<Header, TokenFault> {
    if token.len() > TOKEN_BYTES_MAX {
        return Err(TokenFault::Malformed);
    }
    let header = decode_header(token).map_err(|_| TokenFault::Malformed)?;
    // RFC 7515 4.1.11: extensions that must be understood; none is.
    if header.crit.is_some() { Err(TokenFault::Malformed) } else { Ok(header) }
}

fn fault_of(kind: &ErrorKind) -> TokenFault {
    match kind {
        ErrorKind::InvalidSignature | ErrorKind::InvalidKeyFormat => TokenFault::Signature,
        ErrorKind::ExpiredSignature => TokenFault::Expired,
        ErrorKind::ImmatureSignature => TokenFault::Early,
        ErrorKind::InvalidIssuer | ErrorKind::InvalidAudience | ErrorKind::MissingRequiredClaim(_) => {
            TokenFault::Claims
        }
        _ => TokenFault::Malformed,
    }
}
