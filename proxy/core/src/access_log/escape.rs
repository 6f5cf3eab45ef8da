//! Escapes bytes from a client for one line of a log. Pure: bytes in, bytes out.
//!
//! Whatever a peer sends, a line stays one line, stays parseable in its format, and cannot control a terminal.

use crate::logging::steers;

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Appends the inside of a JSON string (RFC 8259 section 7). Valid UTF-8 is kept; control characters, including those
/// of Latin-1, and bytes that are not UTF-8 become `\u00XX`.
pub(super) fn json(out: &mut Vec<u8>, bytes: &[u8]) {
    if bytes.iter().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\')) {
        return out.extend_from_slice(bytes);
    }
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '"' => out.extend_from_slice(b"\\\""),
                '\\' => out.extend_from_slice(b"\\\\"),
                '\0'..='\x1f' | '\x7f'..='\u{9f}' => unicode_escape(out, char as u8),
                // Some viewers treat these as line ends, or as marks that change the text direction.
                char if steers(char) => {
                    out.extend_from_slice(format!("\\u{:04x}", u32::from(char)).as_bytes())
                }
                _ => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        chunk.invalid().iter().for_each(|byte| unicode_escape(out, *byte));
    }
}

fn unicode_escape(out: &mut Vec<u8>, byte: u8) {
    out.extend_from_slice(b"\\u00");
    hex(out, byte);
}

/// Appends an LTSV value: bytes that are not printable ASCII, and the backslash, become `\xHH`.
pub(super) fn ltsv(out: &mut Vec<u8>, bytes: &[u8]) {
    printable(out, bytes, |out, byte| match byte {
        b'\\' => hex_escape(out, byte),
        _ => out.push(byte),
    });
}

/// Appends a value for use between double quotes, escaped like in Apache's log: `\"`, `\\` and `\xHH`.
pub(super) fn quoted(out: &mut Vec<u8>, bytes: &[u8]) {
    printable(out, bytes, |out, byte| {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    });
}

fn printable(out: &mut Vec<u8>, bytes: &[u8], push: impl Fn(&mut Vec<u8>, u8)) {
    for byte in bytes {
        match byte {
            b' '..=b'~' => push(out, *byte),
            _ => hex_escape(out, *byte),
        }
    }
}

fn hex_escape(out: &mut Vec<u8>, byte: u8) {
    out.extend_from_slice(b"\\x");
    hex(out, byte);
}

fn hex(out: &mut Vec<u8>, byte: u8) {
    out.push(HEX[usize::from(byte >> 4)]);
    out.push(HEX[usize::from(byte & 15)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(escape: fn(&mut Vec<u8>, &[u8]), bytes: &[u8]) -> String {
        let mut out = Vec::new();
        escape(&mut out, bytes);
        String::from_utf8(out).expect("escapes are UTF-8")
    }

    #[test]
    fn each_format_escapes_its_special_bytes() {
        let hostile = b"a \"b\\\n\t\x1b[0m\xff\x7f";
        assert_eq!(escaped(json, hostile), r#"a \"b\\\u000a\u0009\u001b[0m\u00ff\u007f"#);
        assert_eq!(escaped(ltsv, hostile), r#"a "b\x5c\x0a\x09\x1b[0m\xff\x7f"#);
        assert_eq!(escaped(quoted, hostile), r#"a \"b\\\x0a\x09\x1b[0m\xff\x7f"#);
    }

    #[test]
    fn json_keeps_text_and_escapes_terminal_controls() {
        assert_eq!(escaped(json, "grüße 🎈".as_bytes()), "grüße 🎈");
        assert_eq!(escaped(json, "\u{9b}2J\u{2028}".as_bytes()), r"\u009b2J\u2028");
    }
}
