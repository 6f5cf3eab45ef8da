//! Encrypts what a store must not read: the keys of certificates and accounts.
//!
//! Each value has a key of its own, derived from a line of the key file and 32 random bytes (HKDF, AES-256-GCM), and is
//! bound to its name, so that nobody can put one value in the place of another.

use std::path::Path;

use rustls::Tls13CipherSuite;
use rustls::crypto::tls13::HkdfExpander;
use rustls::quic::{Algorithm, PacketKey};
use sluice_core::durable;
use sluice_core::tls::crypto;

use crate::store::StoreError;

/// The first byte of a sealed value.
const VERSION: u8 = 1;
/// Bytes that name the key.
const ID_BYTES: usize = 4;
/// Bytes that no other value has.
const RANDOM_BYTES: usize = 32;
/// Separates these keys from others that are made of the same text.
const PURPOSE: &[u8] = b"sluice store";
/// The largest key file.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// The shortest line: 32 characters of base64 are 192 bits.
const LINE_MIN: usize = 32;

/// The keys of a fleet. The first one seals, each opens.
pub(crate) struct Sealer(Vec<FleetKey>);

struct FleetKey {
    id: [u8; ID_BYTES],
    expander: Box<dyn HkdfExpander>,
    algorithm: &'static dyn Algorithm,
}

impl Sealer {
    /// The keys in a file, one in each line.
    ///
    /// # Errors
    /// The file cannot be used.
    pub(crate) fn read(path: &Path) -> Result<Self, StoreError> {
        let said = |what: &str| StoreError::from(format!("key_file: {}: {what}", path.display()));
        let bytes = durable::read(path, FILE_BYTES_MAX).map_err(|error| said(&error.to_string()))?;
        let text = String::from_utf8(bytes.ok_or_else(|| said("it does not exist"))?);
        let text =
            text.map_err(|_| said("it is not text; write a line such as `openssl rand -base64 32` prints"))?;
        Self::of_lines(&text).map_err(|error| said(&error.to_string()))
    }

    fn of_lines(text: &str) -> Result<Self, StoreError> {
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if let Some(short) = lines.iter().find(|line| line.len() < LINE_MIN) {
            return Err(
                format!("a line has {} characters; a key has at least {LINE_MIN}", short.len()).into()
            );
        }
        let keys: Option<Vec<_>> = lines.iter().map(|line| FleetKey::new(line.as_bytes())).collect();
        match keys.ok_or("the crypto library lacks AES-256-GCM")? {
            keys if keys.is_empty() => {
                Err("it is empty; write a line such as `openssl rand -base64 32` prints".into())
            }
            keys => Ok(Self(keys)),
        }
    }

    /// Encrypts the value of a name.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub(crate) fn seal(&self, name: &str, plain: &[u8]) -> Result<Vec<u8>, StoreError> {
        let key = &self.0[0];
        let mut random = [0; RANDOM_BYTES];
        let filled = crypto::default_provider().secure_random.fill(&mut random);
        filled.map_err(|_| "the system has no random bytes")?;
        let mut sealed = plain.to_vec();
        let packet = key.packet_key(&random);
        let tag = packet.and_then(|packet| packet.encrypt_in_place(0, name.as_bytes(), &mut sealed).ok());
        let tag = tag.ok_or("a value cannot be encrypted")?;
        Ok([&[VERSION], &key.id[..], &random, &sealed, tag.as_ref()].concat())
    }

    /// Decrypts the value of a name.
    ///
    /// # Errors
    /// It was sealed with another key, or for another name.
    pub(crate) fn open(&self, name: &str, sealed: &[u8]) -> Result<Vec<u8>, StoreError> {
        let (version, rest) = sealed.split_first().ok_or("it is empty")?;
        if *version != VERSION || rest.len() < ID_BYTES + RANDOM_BYTES {
            return Err("it is not a value that this release reads".into());
        }
        let (id, rest) = rest.split_at(ID_BYTES);
        let (random, sealed) = rest.split_at(RANDOM_BYTES);
        let key = self.0.iter().find(|key| key.id == id);
        let key = key.ok_or("it was encrypted with a key that key_file does not have")?;
        let mut plain = sealed.to_vec();
        let packet = key.packet_key(random);
        let length = packet.and_then(|packet| {
            packet.decrypt_in_place(0, name.as_bytes(), &mut plain).ok().map(|plain| plain.len())
        });
        plain.truncate(length.ok_or("it was changed, or is of another name")?);
        Ok(plain)
    }
}

impl FleetKey {
    fn new(secret: &[u8]) -> Option<Self> {
        let suite: &'static Tls13CipherSuite = crypto::cipher_suite::TLS13_AES_256_GCM_SHA384.tls13()?;
        let expander = suite.hkdf_provider.extract_from_secret(Some(PURPOSE), secret);
        let mut id = [0; ID_BYTES];
        expander.expand_slice(&[b"id"], &mut id).ok()?;
        Some(Self { id, expander, algorithm: suite.quic? })
    }

    /// The key of one value.
    fn packet_key(&self, random: &[u8]) -> Option<Box<dyn PacketKey>> {
        let mut key = [0; 32];
        self.expander.expand_slice(&[b"value", random], &mut key).ok()?;
        // No other value has the key, so that the nonce may be the same.
        Some(
            self.algorithm.packet_key(
                rustls::crypto::cipher::AeadKey::from(key),
                rustls::crypto::cipher::Iv::from([0; _]),
            ),
        )
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const ONE: &str = "one0one0one0one0one0one0one0one0one0";
    const TWO: &str = "two0two0two0two0two0two0two0two0two0";

    #[test]
    fn only_the_same_key_and_name_open_a_value() {
        let one = Sealer::of_lines(ONE).unwrap();
        let sealed = one.seal("a", b"secret").unwrap();
        assert!(!sealed.windows(6).any(|part| part == b"secret"));
        assert_ne!(sealed, one.seal("a", b"secret").unwrap(), "each has its own key");
        assert_eq!(one.open("a", &sealed).unwrap(), b"secret");
        assert!(one.open("b", &sealed).is_err());
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(one.open("a", &changed).is_err(), "byte {at}");
            assert!(one.open("a", &sealed[..at]).is_err(), "{at} bytes");
        }
    }

    #[test]
    fn a_key_is_replaced_by_writing_the_next_one_above_it() {
        let [one, two] = [ONE, TWO].map(|line| Sealer::of_lines(line).unwrap());
        let both = Sealer::of_lines(&format!("{TWO}\n\n {ONE} \n")).unwrap();
        assert_eq!(both.open("a", &one.seal("a", b"x").unwrap()).unwrap(), b"x");
        assert_eq!(two.open("a", &both.seal("a", b"y").unwrap()).unwrap(), b"y");
        assert!(one.open("a", &both.seal("a", b"y").unwrap()).is_err());
    }

    #[test]
    fn short_keys_are_refused() {
        assert!(Sealer::of_lines("").is_err());
        assert!(Sealer::of_lines("password").is_err());
    }
}
