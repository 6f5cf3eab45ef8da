//! Secrets that all workers of a process and of its successors share, so that each can judge what another has issued.

use std::sync::Arc;

use quinn_proto::crypto::{CryptoError, HmacKey};
use siphasher::sip::SipHasher24;
use siphasher::sip128::SipHasher24 as SipHasher24Wide;
use sluice_core::tls::crypto;

use super::identifier::IDENTIFIER_BYTES;

/// Bytes of a token that resets a connection (RFC 9000 section 10.3).
const TOKEN_BYTES: usize = 16;

/// The secrets of QUIC in one process and its successors.
#[derive(Clone)]
pub struct QuicKeys {
    /// For the check in identifiers.
    identifiers: [u8; 16],
    /// For tokens that reset connections of which nothing is known any more.
    resets: Arc<ResetKey>,
}

struct ResetKey([u8; 16]);

impl QuicKeys {
    /// A new secret.
    pub fn random_secret() -> [u8; 32] {
        let mut secret = [0; 32];
        // Without the system's randomness, an attacker could guess identifiers, but not read or change anything.
        if crypto::default_provider().secure_random.fill(&mut secret).is_err() {
            fastrand::fill(&mut secret);
        }
        secret
    }

    /// Keys of 32 random bytes.
    pub fn new(secret: &[u8; 32]) -> Self {
        let (mut identifiers, mut resets) = ([0; 16], [0; 16]);
        identifiers.copy_from_slice(&secret[..16]);
        resets.copy_from_slice(&secret[16..]);
        Self { identifiers, resets: Arc::new(ResetKey(resets)) }
    }

    pub(super) fn resets(&self) -> Arc<dyn HmacKey> {
        Arc::clone(&self.resets) as _
    }

    /// A number for a name.
    pub(super) fn name(&self, name: &[u8]) -> u64 {
        SipHasher24::new_with_key(&self.identifiers).hash(name)
    }

    /// A number that cannot be predicted from those of other seeds.
    pub(super) fn scramble(&self, seed: u64) -> u64 {
        // One byte more than what is checked: neither says anything of the other.
        let [a, b, c, d, e, f, g, h] = seed.to_le_bytes();
        SipHasher24::new_with_key(&self.identifiers).hash(&[a, b, c, d, e, f, g, h, b's'])
    }

    /// The check of the first bytes of an identifier.
    pub(super) fn check(&self, bytes: &[u8]) -> [u8; 4] {
        let hash = SipHasher24::new_with_key(&self.identifiers).hash(bytes).to_le_bytes();
        [hash[0], hash[1], hash[2], hash[3]]
    }
}

/// SipHash with a secret key cannot be told from a random function, so a token can be neither guessed nor derived from
/// others.
impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], out: &mut [u8]) {
        debug_assert!(data.len() <= IDENTIFIER_BYTES.max(20), "only identifiers are signed");
        let hash = SipHasher24Wide::new_with_key(&self.0).hash(data);
        out.copy_from_slice(&hash.as_bytes());
    }

    fn signature_len(&self) -> usize {
        TOKEN_BYTES
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        let mut expected = [0; TOKEN_BYTES];
        self.sign(data, &mut expected);
        let differs = expected.iter().zip(signature).fold(0, |differs, (a, b)| differs | (a ^ b));
        if differs == 0 && signature.len() == TOKEN_BYTES { Ok(()) } else { Err(CryptoError) }
    }
}

impl std::fmt::Debug for QuicKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QuicKeys(secret)")
    }
}
