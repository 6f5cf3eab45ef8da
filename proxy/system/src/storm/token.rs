//! Identifies bytes: a token for each request, and a body derived from it byte by byte.

use std::fmt;

/// Bytes of a body that repeat its token: 16 hexadecimal digits, 15 bytes derived from the position, a line feed.
pub(super) const LINE_BYTES: usize = 32;
const DIGITS: usize = 16;

/// Identifies one request of one run; unrequested bytes have the token of the preceding request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Token(u64);

/// The kind of bytes with a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// The requested response.
    Answer,
    /// Surplus that a proxy could have noticed before it reused the connection.
    Surplus,
    /// Surplus that may arrive after the connection is in use again: no proxy can distinguish it from the next
    /// response.
    Untellable,
}

const KINDS: [Kind; 3] = [Kind::Answer, Kind::Surplus, Kind::Untellable];

impl Token {
    /// The token of request `number` of client `client`: 4 bits kind, 12 client, 20 number, 28 of the seed.
    pub(super) fn new(seed: u64, client: u32, number: u32) -> Self {
        let place = u64::from(client & 0xfff) << 20 | u64::from(number & 0xf_ffff);
        Self(place << 28 | mix(seed ^ mix(place)) >> 36)
    }

    pub(super) fn with(self, kind: Kind) -> Self {
        Self(self.0 & (u64::MAX >> 4) | (kind as u64) << 60)
    }

    pub(super) fn kind(self) -> Option<Kind> {
        KINDS.get(usize::try_from(self.0 >> 60).ok()?).copied()
    }

    pub(super) fn client(self) -> u32 {
        (self.0 >> 48 & 0xfff) as u32
    }

    pub(super) fn number(self) -> u32 {
        (self.0 >> 28 & 0xf_ffff) as u32
    }

    /// Whether it belongs to this run.
    pub(super) fn is_of(self, seed: u64) -> bool {
        self.kind().is_some_and(|kind| Self::new(seed, self.client(), self.number()).with(kind) == self)
    }

    /// The seed of the choices made for it, the same for all kinds.
    pub(super) fn choices(self) -> fastrand::Rng {
        fastrand::Rng::with_seed(mix(self.with(Kind::Answer).0))
    }

    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() == DIGITS)?;
        u64::from_str_radix(text, 16).ok().map(Self)
    }

    /// The first token of this run in `bytes`.
    pub(super) fn find(bytes: &[u8], seed: u64) -> Option<Self> {
        bytes.windows(DIGITS).filter_map(Self::parse).find(|token| token.is_of(seed))
    }

    /// The prefix of each line of its body.
    fn digits(self) -> [u8; DIGITS] {
        std::array::from_fn(|place| b"0123456789abcdef"[(self.0 >> (60 - 4 * place) & 0xf) as usize])
    }

    fn line(self, digits: &[u8; DIGITS], index: usize) -> [u8; LINE_BYTES] {
        let mut line = [b'\n'; LINE_BYTES];
        line[..DIGITS].copy_from_slice(digits);
        let first = mix(self.0 ^ mix(index as u64));
        line[DIGITS..DIGITS + 8].copy_from_slice(&first.to_le_bytes());
        line[DIGITS + 8..LINE_BYTES - 1].copy_from_slice(&mix(first).to_le_bytes()[..7]);
        line
    }

    /// The first `size` bytes of its body.
    pub(super) fn body(self, size: usize) -> Vec<u8> {
        let digits = self.digits();
        let mut body = Vec::with_capacity(size + LINE_BYTES);
        for index in 0..size.div_ceil(LINE_BYTES) {
            body.extend_from_slice(&self.line(&digits, index));
        }
        body.truncate(size);
        body
    }

    /// The position of the first wrong byte of `got`, which should be at `offset` in the body.
    pub(super) fn difference(self, offset: usize, got: &[u8]) -> Option<usize> {
        let digits = self.digits();
        let (mut at, mut rest) = (offset, got);
        while !rest.is_empty() {
            let line = self.line(&digits, at / LINE_BYTES);
            let expected = &line[at % LINE_BYTES..];
            let length = expected.len().min(rest.len());
            if expected[..length] != rest[..length] {
                return (0..length).find(|place| expected[*place] != rest[*place]).map(|place| at + place);
            }
            (at, rest) = (at + length, &rest[length..]);
        }
        None
    }
}

impl fmt::Display for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:016x}", self.0)
    }
}

/// SplitMix64's finalizer.
pub(super) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_token_identifies_its_request() {
        let token = Token::new(7, 300, 4000);
        assert_eq!((token.client(), token.number(), token.kind()), (300, 4000, Some(Kind::Answer)));
        let surplus = token.with(Kind::Surplus);
        assert_eq!((surplus.client(), surplus.kind()), (300, Some(Kind::Surplus)));
        assert!(token.is_of(7) && surplus.is_of(7) && !token.is_of(8));
        assert_eq!(Token::parse(token.to_string().as_bytes()), Some(token));
        assert_eq!(Token::find(&[b"?".to_vec(), surplus.body(40)].concat(), 7), Some(surplus));
    }

    #[test]
    fn each_byte_of_a_body_is_distinguishable() {
        let (one, other) = (Token::new(1, 1, 1), Token::new(1, 1, 2));
        let body = one.body(1000);
        for offset in [0, 1, 31, 32, 333] {
            assert_eq!(one.difference(offset, &body[offset..]), None);
        }
        assert!(one.difference(0, &body[LINE_BYTES..]).is_some(), "a line was left out");
        assert!(one.difference(0, &other.body(1000)).unwrap() < LINE_BYTES);
        let mut wrong = body.clone();
        wrong[777] ^= 1;
        assert_eq!(one.difference(3, &wrong[3..]), Some(777));
    }
}
