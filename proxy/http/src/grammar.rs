//! Grammar rules that fields share (RFC 9110 sections 5.5 and 5.6). Nothing in this module knows a field by name.

/// tchar of RFC 9110 section 5.6.2, by byte.
const TOKEN_BYTE: [bool; 256] = {
    let mut table = [false; 256];
    let punctuation = b"!#$%&'*+-.^_`|~";
    let mut i = 0;
    while i < punctuation.len() {
        table[punctuation[i] as usize] = true;
        i += 1;
    }
    let mut byte = 0;
    while byte < 128 {
        if (byte as u8).is_ascii_alphanumeric() {
            table[byte] = true;
        }
        byte += 1;
    }
    table
};

/// Whether `byte` may occur in a token.
pub(crate) fn is_token_byte(byte: u8) -> bool {
    TOKEN_BYTE[usize::from(byte)]
}

/// Whether `bytes` is a token: not empty and only token bytes.
pub fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|&byte| is_token_byte(byte))
}

/// Whether `byte` may occur in a field value or reason phrase: HTAB, SP, VCHAR or obs-text.
pub(crate) fn is_value_byte(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

/// Whether `value` has no control byte except HTAB (RFC 9110 section 5.5).
pub(crate) fn is_field_value(value: &[u8]) -> bool {
    value.iter().all(|&byte| is_value_byte(byte))
}

/// `value` without surrounding SP and HTAB (OWS of RFC 9110 section 5.6.3).
pub(crate) fn trim_ows(value: &[u8]) -> &[u8] {
    let is_text = |byte: &u8| *byte != b' ' && *byte != b'\t';
    let start = value.iter().position(is_text).unwrap_or(value.len());
    let end = value.iter().rposition(is_text).map_or(start, |last| last + 1);
    &value[start..end]
}

/// The members of a comma-separated list of tokens. Empty members are skipped (RFC 9110 section 5.6.1.2).
///
/// Do not use it for lists whose members may be quoted strings: a comma in quotes would split a member.
pub(crate) fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trim_ows).filter(|member| !member.is_empty())
}
