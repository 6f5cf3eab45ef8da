//! How bytes and faults are shown, so that a fault can be repeated manually or added to the file of finds.

/// Maximum kinds of faults, of which one each is shown in full.
pub(super) const SHOWN_MAX: usize = 12;
/// Maximum bytes shown of a message.
const SHOWN_BYTES_MAX: usize = 2000;

/// Bytes in the format of the file of finds: escapes of a Rust or Python byte string.
pub(super) fn escaped(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// The same, truncated if it is long.
pub(super) fn shown(bytes: &[u8]) -> String {
    match bytes.get(..SHOWN_BYTES_MAX) {
        Some(front) => format!("{}[{} bytes in all]", escaped(front), bytes.len()),
        None => escaped(bytes),
    }
}

/// The opposite of [`escaped`]; none if it is malformed.
pub(super) fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        (rest, _) = match (first, after) {
            (b'\\', [b'x', high, low, after @ ..]) => {
                let digits = [*high, *low];
                let digits = std::str::from_utf8(&digits).ok()?;
                (after, bytes.push(u8::from_str_radix(digits, 16).ok()?))
            }
            (b'\\', [escape, after @ ..]) => {
                let byte = match escape {
                    b'r' => b'\r',
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'0' => 0,
                    b'\\' | b'\'' | b'"' => *escape,
                    _ => return None,
                };
                (after, bytes.push(byte))
            }
            (b'\\', []) => return None,
            _ => (after, bytes.push(*first)),
        };
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_bytes_round_trip() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unescaped(&escaped(&all)), Some(all));
        assert_eq!(unescaped("\\q"), None);
    }
}
