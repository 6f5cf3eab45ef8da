//! The keys that tokens are signed with.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind};
use serde_json::Value;
use sluice_config::JwtAlgorithm;

/// Maximum number of keys: a token without the name of its key is tried with each.
const KEYS_MAX: usize = 100;
/// Minimum length of the modulus of an RSA key, in bytes.
const RSA_BYTES_MIN: usize = 256;

/// How a public key in PEM begins. A private key is no business of a proxy.
const PEM_OF_KEYS: [&[u8]; 2] = [b"-----BEGIN PUBLIC KEY-----", b"-----BEGIN RSA PUBLIC KEY-----"];

/// What is wrong with keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, derive_more::From)]
#[error("{0}")]
#[from(String, &'static str)]
pub struct KeyError(String);

/// Keys of an issuer.
pub struct KeySet {
    keys: Vec<Key>,
    /// Its number among those of its source.
    pub(super) version: u64,
}

struct Key {
    name: Option<String>,
    /// The only algorithms that it is for: a key must not be used with another one (RFC 8725 section 3.1).
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

impl KeySet {
    /// Reads a set of keys (RFC 7517), or one public key in PEM. Keys that are not for signatures, or of a kind that is
    /// not known, are left out. Secrets are left out unless `has_secrets`.
    ///
    /// # Errors
    /// It is neither of both, or has too many keys.
    pub fn parse(text: &[u8], has_secrets: bool) -> Result<Self, KeyError> {
        let keys = match text.trim_ascii_start() {
            [b'{', ..] => from_json(text, has_secrets)?,
            trimmed if PEM_OF_KEYS.iter().any(|start| trimmed.starts_with(start)) => vec![from_pem(text)?],
            _ => return Err("neither a set of keys in JSON nor a public key in PEM".into()),
        };
        match keys.len() {
            0..=KEYS_MAX => Ok(Self { keys, version: 0 }),
            many => Err(format!("{many} keys; the maximum is {KEYS_MAX}").into()),
        }
    }

    /// Whether none of them can be used: an issuer that withdraws its last key lets nobody through.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The keys that may have signed a token which names this key and this algorithm.
    pub(super) fn fitting<'k>(
        &'k self,
        name: Option<&'k str>,
        algorithm: Algorithm,
    ) -> impl Iterator<Item = &'k DecodingKey> {
        let fits = move |key: &&Key| {
            // A key without a name may be the one of any token, and a token without one may be of any key.
            let is_named = name.zip(key.name.as_deref()).is_none_or(|(name, own)| name == own);
            is_named && key.algorithms.contains(&algorithm)
        };
        self.keys.iter().filter(fits).map(|key| &key.key)
    }
}

fn from_json(text: &[u8], has_secrets: bool) -> Result<Vec<Key>, KeyError> {
    let json: Value = serde_json::from_slice(text).map_err(|error| format!("not JSON: {error}"))?;
    let one = [json.clone()];
    let keys = match json.get("keys") {
        Some(Value::Array(keys)) => &keys[..],
        Some(_) => return Err("keys is not a list".into()),
        // A key alone.
        None if json.get("kty").is_some() => &one,
        None => return Err("no keys in it".into()),
    };
    // One that cannot be read must not make the others useless: issuers publish kinds of which we know nothing.
    let known = keys.iter().filter_map(|key| serde_json::from_value::<Jwk>(key.clone()).ok());
    Ok(known.filter_map(|key| from_jwk(&key, has_secrets)).collect())
}

fn from_jwk(jwk: &Jwk, has_secrets: bool) -> Option<Key> {
    let operations = jwk.common.key_operations.as_ref();
    if operations.is_some_and(|operations| !operations.contains(&KeyOperations::Verify)) {
        return None;
    }
    if !matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature)) {
        return None;
    }
    let of_kind = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => AlgorithmFamily::Rsa.algorithms(),
        AlgorithmParameters::EllipticCurve(curve) => match curve.curve {
            EllipticCurve::P256 => &[Algorithm::ES256],
            EllipticCurve::P384 => &[Algorithm::ES384],
            _ => return None,
        },
        AlgorithmParameters::OctetKeyPair(pair) => match pair.curve {
            EllipticCurve::Ed25519 => &[Algorithm::EdDSA],
            _ => return None,
        },
        AlgorithmParameters::OctetKey(_) if has_secrets => AlgorithmFamily::Hmac.algorithms(),
        _ => return None,
    };
    let algorithms = match jwk.common.key_algorithm {
        None => of_kind.to_vec(),
        Some(own) => of_kind.iter().copied().filter(|algorithm| key_algorithm(*algorithm) == own).collect(),
    };
    let key = DecodingKey::from_jwk(jwk).ok()?;
    let algorithms: Vec<Algorithm> =
        algorithms.into_iter().filter(|algorithm| is_strong(&key, *algorithm)).collect();
    (!algorithms.is_empty()).then(|| Key { name: jwk.common.key_id.clone(), algorithms, key })
}

/// Whether a key is long enough: RSA of 2048 bits, and a secret as long as its hash (RFC 7518 sections 3.2 and 3.3).
fn is_strong(key: &DecodingKey, algorithm: Algorithm) -> bool {
    let secret_bytes = key.try_get_as_bytes().map_or(0, <[u8]>::len);
    match algorithm {
        Algorithm::HS256 => secret_bytes >= 32,
        Algorithm::HS384 => secret_bytes >= 48,
        Algorithm::HS512 => secret_bytes >= 64,
        _ => match key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, .. } => {
                n.len() - n.iter().take_while(|byte| **byte == 0).count() >= RSA_BYTES_MIN
            }
            // In DER, the exponent and the lengths take a few bytes more.
            DecodingKeyKind::SecretOrDer(der) => {
                key.family() != AlgorithmFamily::Rsa || der.len() > RSA_BYTES_MIN
            }
        },
    }
}

fn from_pem(text: &[u8]) -> Result<Key, KeyError> {
    let key = |key, algorithms: &[Algorithm]| Key { name: None, algorithms: algorithms.to_vec(), key };
    if let Ok(found) = DecodingKey::from_rsa_pem(text) {
        if !is_strong(&found, Algorithm::RS256) {
            return Err("an RSA key of less than 2048 bits".into());
        }
        return Ok(key(found, AlgorithmFamily::Rsa.algorithms()));
    }
    if let Ok(found) = DecodingKey::from_ed_pem(text) {
        return Ok(key(found, &[Algorithm::EdDSA]));
    }
    let found = DecodingKey::from_ec_pem(text).map_err(
        |_| "not a public key of RSA, P-256, P-384 or Ed25519; write it with openssl pkey -pubout",
    )?;
    // The length of an uncompressed point (SEC 1 section 2.3.3) tells the curve.
    match found.try_get_as_bytes().map(<[u8]>::len) {
        Ok(65) => Ok(key(found, &[Algorithm::ES256])),
        Ok(97) => Ok(key(found, &[Algorithm::ES384])),
        _ => Err("a public key of a curve that is not known; P-256 and P-384 are".into()),
    }
}

macro_rules! algorithms {
    ($($ours:ident = $theirs:ident,)*) => {
        /// The same algorithm.
        pub(super) fn algorithm(ours: JwtAlgorithm) -> Algorithm {
            match ours { $(JwtAlgorithm::$ours => Algorithm::$theirs,)* }
        }

        fn key_algorithm(algorithm: Algorithm) -> KeyAlgorithm {
            match algorithm {
                $(Algorithm::$theirs => KeyAlgorithm::$theirs,)*
                _ => KeyAlgorithm::UNKNOWN_ALGORITHM,
            }
        }
    };
}

algorithms! {
    Rs256 = RS256,
    Rs384 = RS384,
    Rs512 = RS512,
    Ps256 = PS256,
    Ps384 = PS384,
    Ps512 = PS512,
    Es256 = ES256,
    Es384 = ES384,
    EdDsa = EdDSA,
    Hs256 = HS256,
    Hs384 = HS384,
    Hs512 = HS512,
}
