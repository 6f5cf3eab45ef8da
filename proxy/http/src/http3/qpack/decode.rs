//! Decodes a field section (RFC 9204 section 4.5).

use super::{huffman, integer, table};

/// Why a section cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// It is malformed, or refers to a dynamic table, which sluice has not.
    Invalid,
    /// `field` wants no more.
    Stopped,
}

/// Decodes `section` and gives each name and value to `field`, until it returns false.
///
/// # Errors
/// See [`DecodeError`].
pub fn decode(mut section: &[u8], mut field: impl FnMut(&[u8], &[u8]) -> bool) -> Result<(), DecodeError> {
    let rest = &mut section;
    let (required, sign) =
        (integer::read(rest, 8).ok_or(DecodeError::Invalid)?, rest.first().map_or(0, |byte| byte & 0x80));
    let base = integer::read(rest, 7);
    if required != 0 || sign != 0 || base.is_none() {
        return Err(DecodeError::Invalid);
    }
    let (mut name, mut value) = (Vec::new(), Vec::new());
    while let Some(first) = rest.first().copied() {
        name.clear();
        value.clear();
        let wants_more = match first {
            // An indexed line of the static table.
            0xc0.. => {
                let (name, value) = static_line(rest, 6)?;
                field(name, value)
            }
            // A literal value with a name of the static table.
            0x50..=0x5f | 0x70..=0x7f => {
                let (name, _) = static_line(rest, 4)?;
                text(rest, 7, &mut value)?;
                field(name, &value)
            }
            // A literal name and value.
            0x20..=0x3f => {
                text(rest, 3, &mut name)?;
                text(rest, 7, &mut value)?;
                field(&name, &value)
            }
            _ => return Err(DecodeError::Invalid),
        };
        if !wants_more {
            return Err(DecodeError::Stopped);
        }
    }
    Ok(())
}

fn static_line(rest: &mut &[u8], prefix_bits: u32) -> Result<(&'static [u8], &'static [u8]), DecodeError> {
    integer::read(rest, prefix_bits).and_then(table::line).ok_or(DecodeError::Invalid)
}

/// Reads a text whose length has a prefix of so many bits, after the bit that says whether it is Huffman-coded.
fn text(rest: &mut &[u8], prefix_bits: u32, out: &mut Vec<u8>) -> Result<(), DecodeError> {
    let is_coded = rest.first().is_some_and(|byte| byte >> prefix_bits & 1 == 1);
    let length = integer::read(rest, prefix_bits).ok_or(DecodeError::Invalid)?;
    let (bytes, after) = rest.split_at_checked(length).ok_or(DecodeError::Invalid)?;
    *rest = after;
    match is_coded {
        true => huffman::decode(bytes, out).ok_or(DecodeError::Invalid)?,
        false => out.extend_from_slice(bytes),
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::super::Encoder;
    use super::*;

    type Fields = Vec<(Vec<u8>, Vec<u8>)>;

    fn decoded(section: &[u8]) -> Result<Fields, DecodeError> {
        let mut fields = Fields::new();
        decode(section, |name, value| {
            fields.push((name.to_vec(), value.to_vec()));
            true
        })?;
        Ok(fields)
    }

    /// RFC 9204 appendix B.1.
    #[test]
    fn section_of_the_standard_is_read() {
        let section =
            [0x00, 0x00, 0x51, 0x0b, 0x2f, 0x69, 0x6e, 0x64, 0x65, 0x78, 0x2e, 0x68, 0x74, 0x6d, 0x6c];
        assert_eq!(decoded(&section).unwrap(), [(b":path".to_vec(), b"/index.html".to_vec())]);
    }

    #[test]
    fn references_to_a_dynamic_table_are_refused() {
        for section in [
            &[0x02, 0x00, 0x80][..],
            &[0x00, 0x80],
            &[0x00, 0x00, 0x80],
            &[0x00, 0x00, 0x10],
            &[0x00, 0x00, 0x40, 0x00],
            &[0x00, 0x00, 0x00, 0x00],
            &[0x00, 0x00, 0xff, 0x24],
            &[0x00, 0x00, 0x51, 0x0b, 0x2f],
            &[0x00],
            &[],
        ] {
            assert_eq!(decoded(section), Err(DecodeError::Invalid), "{section:x?}");
        }
        assert_eq!(decoded(&[0x00, 0x00]).unwrap(), []);
    }

    proptest! {
        #[test]
        fn every_section_survives(
            fields in prop::collection::vec(("[a-z0-9-]{1,40}", prop::collection::vec(any::<u8>(), 0..80)), 0..20)
        ) {
            let mut encoder = Encoder::new();
            for (name, value) in &fields {
                encoder.field(name.as_bytes(), value);
            }
            let expected: Fields = fields.into_iter().map(|(name, value)| (name.into_bytes(), value)).collect();
            prop_assert_eq!(decoded(encoder.bytes()).unwrap(), expected);
        }

        #[test]
        fn no_bytes_break_the_decoder(section in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decoded(&section);
        }
    }
}
