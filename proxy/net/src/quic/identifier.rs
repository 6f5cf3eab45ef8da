//! Connection identifiers (RFC 9000 section 5.1): they say which worker of which process has the connection.
//!
//! An identifier is the generation of the process, the number of the worker, bytes that nobody else can predict, and a
//! check that only sluice can compute. A packet with another check never was one of ours, and gets no answer.

use std::time::Duration;

use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};
use sluice_kernel::steering::IdentifierLayout;

use super::keys::QuicKeys;

/// Bytes of an identifier.
pub(super) const IDENTIFIER_BYTES: usize = 12;
/// Of these, the ones that the check covers.
const CHECKED_BYTES: usize = 8;
/// Of these, the one with the number of the worker.
const WORKER_AT: usize = 1;
/// Of these, those that say where the connection is.
const ORIGIN_BYTES: usize = 2;

/// What the kernel needs to know to find the worker.
pub(crate) const LAYOUT: IdentifierLayout =
    IdentifierLayout { length: IDENTIFIER_BYTES as u8, index_at: WORKER_AT as u8 };

/// Where a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The generation of the process; an upgrade counts it up.
    pub generation: u8,
    /// The number of the worker.
    pub worker: u8,
}

/// Makes the identifiers of one worker.
pub(super) struct Identifiers {
    pub(super) origin: Origin,
    pub(super) keys: QuicKeys,
}

impl ConnectionIdGenerator for Identifiers {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut bytes = [0; IDENTIFIER_BYTES];
        bytes[..ORIGIN_BYTES].copy_from_slice(&[self.origin.generation, self.origin.worker]);
        // Another client sees other identifiers, and must not guess the next one from them.
        let random = self.keys.scramble(fastrand::u64(..)).to_ne_bytes();
        bytes[ORIGIN_BYTES..CHECKED_BYTES].copy_from_slice(&random[..CHECKED_BYTES - ORIGIN_BYTES]);
        let check = self.keys.check(&bytes[..CHECKED_BYTES]);
        bytes[CHECKED_BYTES..].copy_from_slice(&check);
        ConnectionId::new(&bytes)
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        if origin_of(id, &self.keys).is_some() { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        IDENTIFIER_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Where the connection of an identifier is, if sluice has issued it.
fn origin_of(id: &[u8], keys: &QuicKeys) -> Option<Origin> {
    let (checked, check) = id.split_at_checked(CHECKED_BYTES)?;
    let &[generation, worker, ..] = checked else { return None };
    (id.len() == IDENTIFIER_BYTES && keys.check(checked) == check).then_some(Origin { generation, worker })
}

/// Where the connection of a datagram is, if it has one of ours.
pub(super) fn destination(datagram: &[u8], keys: &QuicKeys) -> Option<Origin> {
    /// The bit that marks a long header (RFC 9000 section 17.2).
    const LONG: u8 = 0x80;
    let id = match datagram.first()? & LONG {
        0 => datagram.get(1..1 + IDENTIFIER_BYTES)?,
        _ => datagram.get(6..6 + usize::from(*datagram.get(5)?))?,
    };
    origin_of(id, keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_say_where_a_connection_is() {
        let keys = QuicKeys::new(&[7; 32]);
        let origin = Origin { generation: 3, worker: 9 };
        let mut identifiers = Identifiers { origin, keys: keys.clone() };
        let (one, other) = (identifiers.generate_cid(), identifiers.generate_cid());
        assert_ne!(one, other);
        let short = [&[0x40][..], &one, b"more"].concat();
        let long = [&[0xc0, 0, 0, 0, 1, IDENTIFIER_BYTES as u8][..], &one, b"more"].concat();
        for datagram in [short, long] {
            assert_eq!(destination(&datagram, &keys), Some(origin));
            assert_eq!(destination(&datagram, &QuicKeys::new(&[8; 32])), None, "another process");
            let mut forged = datagram.clone();
            let at = forged.len() - 10;
            forged[at] ^= 1;
            assert_eq!(destination(&forged, &keys), None);
        }
        assert_eq!(destination(&[0xc0, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8], &keys), None);
        assert_eq!(destination(&[], &keys), None);
        assert!(identifiers.validate(&one).is_ok());
    }
}
