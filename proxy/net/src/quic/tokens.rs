//! Tokens by which a client that returns proves its address (RFC 9000 section 8.1). All workers of a process and of its
//! successors take what any of them has issued.

use std::sync::Arc;
use std::time::Duration;

use quinn_proto::crypto::{AeadKey, CryptoError, HandshakeTokenKey};
use quinn_proto::{BloomTokenLog, TokenLog, ValidationTokenConfig};
use rustls::Tls13CipherSuite;
use rustls::crypto::cipher::{AeadKey as Key, Iv};
use rustls::crypto::tls13::HkdfExpander;
use rustls::quic::{Algorithm, PacketKey};
use sluice_core::tls::crypto;

/// How long a token is of use. A client that comes less often proves its address anew.
const LIFETIME: Duration = Duration::from_secs(7 * 86_400);
/// Tokens that a connection issues: for one of now, and one of later.
const ISSUED: u32 = 2;
/// The most bytes in which it is noted which tokens were used, for twice as long as they live.
const LOG_BYTES: usize = 1 << 20;
/// How many uses these bytes are for. With more, some clients have to prove their address although they have a token.
const LOGGED: u64 = 200_000;
/// Binds the keys of tokens to their purpose.
const PURPOSE: &[u8] = b"sluice address validation";

/// What tokens are sealed with, and which of them were used.
pub(super) struct Tokens {
    key: Option<Arc<TokenKey>>,
    used: Arc<dyn TokenLog>,
}

impl Tokens {
    /// Tokens of this secret.
    pub(super) fn new(secret: &[u8; 32]) -> Self {
        let used = Arc::new(BloomTokenLog::new_expected_items(LOG_BYTES, LOGGED));
        Self { key: TokenKey::new(secret).map(Arc::new), used }
    }

    /// The key, if the crypto library has what it needs, which both have.
    pub(super) fn key(&self) -> Option<Arc<dyn HandshakeTokenKey>> {
        self.key.clone().map(|key| key as _)
    }

    /// What a connection issues.
    pub(super) fn config(&self) -> ValidationTokenConfig {
        let mut config = ValidationTokenConfig::default();
        config.lifetime(LIFETIME).log(Arc::clone(&self.used)).sent(ISSUED);
        config
    }
}

/// Makes the key of each token from its random part.
struct TokenKey {
    expander: Box<dyn HkdfExpander>,
    algorithm: &'static dyn Algorithm,
}

impl TokenKey {
    fn new(secret: &[u8; 32]) -> Option<Self> {
        let suite: &'static Tls13CipherSuite = crypto::cipher_suite::TLS13_AES_256_GCM_SHA384.tls13()?;
        let expander = suite.hkdf_provider.extract_from_secret(Some(PURPOSE), secret);
        Some(Self { expander, algorithm: suite.quic? })
    }
}

impl HandshakeTokenKey for TokenKey {
    fn aead_from_hkdf(&self, random_bytes: &[u8]) -> Box<dyn AeadKey> {
        let mut key = [0; 32];
        // It cannot fail for so few bytes; a key of zeroes would open nothing that was sealed by another one.
        let is_derived = self.expander.expand_slice(&[random_bytes], &mut key).is_ok();
        debug_assert!(is_derived, "a key is short");
        // Each key seals one token.
        Box::new(OneToken(self.algorithm.packet_key(Key::from(key), Iv::from([0; _]))))
    }
}

/// Seals one token.
struct OneToken(Box<dyn PacketKey>);

impl AeadKey for OneToken {
    fn seal(&self, data: &mut Vec<u8>, additional_data: &[u8]) -> Result<(), CryptoError> {
        let tag = self.0.encrypt_in_place(0, additional_data, data).map_err(|_| CryptoError)?;
        data.extend_from_slice(tag.as_ref());
        Ok(())
    }

    fn open<'a>(&self, data: &'a mut [u8], additional_data: &[u8]) -> Result<&'a mut [u8], CryptoError> {
        let length = self.0.decrypt_in_place(0, additional_data, data).map_err(|_| CryptoError)?.len();
        Ok(&mut data[..length])
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_secret_opens_a_token() {
        let key = |secret: u8| Tokens::new(&[secret; 32]).key().unwrap();
        let mut sealed = b"192.0.2.1".to_vec();
        key(1).aead_from_hkdf(b"random").seal(&mut sealed, b"more").unwrap();
        assert_ne!(&sealed[..9], b"192.0.2.1");
        let open = |secret, random: &[u8], more: &[u8]| {
            let mut sealed = sealed.clone();
            key(secret).aead_from_hkdf(random).open(&mut sealed, more).map(|plain| plain.to_vec()).ok()
        };
        assert_eq!(open(1, b"random", b"more").as_deref(), Some(&b"192.0.2.1"[..]));
        assert_eq!(open(2, b"random", b"more"), None);
        assert_eq!(open(1, b"other", b"more"), None);
        assert_eq!(open(1, b"random", b"less"), None);
    }
}
