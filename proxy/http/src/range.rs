//! Byte ranges (RFC 9110 section 14): which parts of its content a request asks for.

/// Maximum number of parts of one response. Players ask for one, readers of PDF for some.
const PARTS_MAX: usize = 16;

/// Bytes of a content, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// Position of the first byte.
    pub first: u64,
    /// Position of the last byte.
    pub last: u64,
}

impl ByteRange {
    /// The number of bytes; never 0.
    pub fn length(&self) -> u64 {
        self.last - self.first + 1
    }
}

/// What a Range field comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ranges {
    /// The whole content: the field is malformed, in another unit, or asks for more than the content.
    Whole,
    /// These parts, at least one, in the order of the request.
    Parts(Vec<ByteRange>),
    /// Nothing that the content has (416).
    Unsatisfiable,
}

impl Ranges {
    /// Reads the field for a content of `length` bytes. Many small parts, and parts that overlap, cost a server more
    /// than the whole (section 14.2), which is then sent.
    pub fn read(value: &[u8], length: u64) -> Self {
        let Some(specs) = specs(value) else { return Self::Whole };
        let parts: Vec<ByteRange> = specs.iter().filter_map(|spec| spec.within(length)).collect();
        let sum = parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.length()));
        match parts.len() {
            0 => Self::Unsatisfiable,
            1 => Self::Parts(parts),
            PARTS_MAX.. => Self::Whole,
            _ if sum > length || overlap(&parts) => Self::Whole,
            _ => Self::Parts(parts),
        }
    }
}

/// One part, as asked for.
enum Spec {
    From { first: u64, last: Option<u64> },
    Last(u64),
}

impl Spec {
    fn within(&self, length: u64) -> Option<ByteRange> {
        let end = length.checked_sub(1)?;
        match *self {
            Self::From { first, last } => {
                (first <= end).then(|| ByteRange { first, last: last.map_or(end, |last| last.min(end)) })
            }
            Self::Last(count) => {
                (count > 0).then(|| ByteRange { first: length - count.min(length), last: end })
            }
        }
    }
}

/// The parts of a field; `None` if it is malformed or too long.
fn specs(value: &[u8]) -> Option<Vec<Spec>> {
    let mark = value.iter().position(|byte| *byte == b'=')?;
    if !value[..mark].trim_ascii().eq_ignore_ascii_case(b"bytes") {
        return None;
    }
    let members = value[mark + 1..].split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    let mut specs = Vec::new();
    for member in members.filter(|member| !member.is_empty()) {
        if specs.len() == PARTS_MAX {
            return None;
        }
        let dash = member.iter().position(|byte| *byte == b'-')?;
        let (first, last) = (&member[..dash], &member[dash + 1..]);
        specs.push(match (first, last) {
            ([], []) => return None,
            ([], count) => Spec::Last(number(count)?),
            (first, []) => Spec::From { first: number(first)?, last: None },
            (first, last) => {
                let (first, last) = (number(first)?, number(last)?);
                if last < first {
                    return None;
                }
                Spec::From { first, last: Some(last) }
            }
        });
    }
    (!specs.is_empty()).then_some(specs)
}

/// Digits only; a number that is too large is larger than every content.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let add = |sum: u64, digit: &u8| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    Some(digits.iter().fold(0, add))
}

fn overlap(parts: &[ByteRange]) -> bool {
    let mut sorted = parts.to_vec();
    sorted.sort_by_key(|part| part.first);
    sorted.windows(2).any(|pair| pair[1].first <= pair[0].last)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(ranges: &[(u64, u64)]) -> Ranges {
        Ranges::Parts(ranges.iter().map(|&(first, last)| ByteRange { first, last }).collect())
    }

    #[test]
    fn ranges_of_a_content_of_ten_bytes() {
        for (value, wanted) in [
            ("bytes=0-0", parts(&[(0, 0)])),
            ("bytes=0-", parts(&[(0, 9)])),
            ("bytes=9-", parts(&[(9, 9)])),
            ("bytes=2-4", parts(&[(2, 4)])),
            ("bytes=2-99999999999999999999999", parts(&[(2, 9)])),
            ("bytes=-3", parts(&[(7, 9)])),
            ("bytes=-99", parts(&[(0, 9)])),
            ("Bytes = 1-2", parts(&[(1, 2)])),
            ("bytes=0-1, 4-5 ,-2", parts(&[(0, 1), (4, 5), (8, 9)])),
            ("bytes=8-9,0-1", parts(&[(8, 9), (0, 1)])),
            ("bytes=0-1,,20-30", parts(&[(0, 1)])),
            ("bytes=10-", Ranges::Unsatisfiable),
            ("bytes=-0", Ranges::Unsatisfiable),
            ("bytes=99999999999999999999999-", Ranges::Unsatisfiable),
            ("bytes=20-30,40-", Ranges::Unsatisfiable),
            ("bytes=0-5,5-9", Ranges::Whole),
            ("bytes=0-,0-", Ranges::Whole),
            ("bytes=3-2", Ranges::Whole),
            ("bytes=", Ranges::Whole),
            ("bytes=-", Ranges::Whole),
            ("bytes=a-b", Ranges::Whole),
            ("bytes=+1-2", Ranges::Whole),
            ("bytes=0-1-2", Ranges::Whole),
            ("items=0-1", Ranges::Whole),
            ("bytes", Ranges::Whole),
            ("", Ranges::Whole),
        ] {
            assert_eq!(Ranges::read(value.as_bytes(), 10), wanted, "{value}");
        }
        assert_eq!(Ranges::read(b"bytes=0-", 0), Ranges::Unsatisfiable);
        let many = (0..17).map(|at| format!("{0}-{0}", at * 2)).collect::<Vec<_>>().join(",");
        assert_eq!(Ranges::read(format!("bytes={many}").as_bytes(), 100), Ranges::Whole);
    }

    proptest! {
        #[test]
        fn parts_lie_within_the_content(value in "bytes=([0-9]{0,3}-[0-9]{0,3},?){0,5}", length in 0_u64..300) {
            if let Ranges::Parts(parts) = Ranges::read(value.as_bytes(), length) {
                prop_assert!(!parts.is_empty());
                prop_assert!(parts.iter().all(|part| part.first <= part.last && part.last < length));
                prop_assert!(parts.iter().map(ByteRange::length).sum::<u64>() <= length);
            }
        }
    }
}
