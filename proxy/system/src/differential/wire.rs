//! A cursor over the bytes of one connection. It parses lines, fields and bodies by the strictest grammar, and shares
//! no code with the proxy: a fault in both would go unnoticed.

/// Why the next item cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Halt {
    /// It may become valid with more bytes.
    Short,
    /// No further byte makes it valid.
    Invalid(String),
}

/// The parsed item.
pub(super) type Read<T> = Result<T, Halt>;

/// A header or trailer field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) name: Vec<u8>,
    /// The value without surrounding whitespace.
    pub(super) value: Vec<u8>,
}

/// How strictly whitespace and chunk extensions are parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// What RFC 9112 allows a peer to send.
    Rfc,
    /// What sluice itself writes: `Name: value`, no chunk extension.
    Sluice,
}

/// Largest chunk size and Content-Length.
const LENGTH_MAX: u64 = i64::MAX as u64;
/// Maximum digits of a chunk size.
const SIZE_DIGITS_MAX: usize = 16;
/// The default of `chunk_line_bytes_max`.
const SIZE_LINE_BYTES_MAX: usize = 4096;

/// Reads from the front of `bytes`.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'b> {
    bytes: &'b [u8],
    pub(super) at: usize,
    dialect: Dialect,
}

/// The `Invalid` of a reason.
pub(super) fn invalid<T>(reason: impl Into<String>) -> Read<T> {
    Err(Halt::Invalid(reason.into()))
}

impl Field {
    pub(super) fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name.as_bytes())
    }
}

/// The values of all fields of this name.
pub(super) fn values<'f>(fields: &'f [Field], name: &str) -> Vec<&'f [u8]> {
    fields.iter().filter(|field| field.is(name)).map(|field| &field.value[..]).collect()
}

impl<'b> Cursor<'b> {
    pub(super) fn new(bytes: &'b [u8], dialect: Dialect) -> Self {
        Self { bytes, at: 0, dialect }
    }

    /// The unread bytes.
    pub(super) fn rest(&self) -> &'b [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.rest().is_empty()
    }

    /// Skips at most `count` CRLFs.
    pub(super) fn skip_empty_lines(&mut self, count: usize) {
        for _ in 0..count {
            if !self.rest().starts_with(b"\r\n") {
                return;
            }
            self.at += 2;
        }
    }

    /// A line without its CRLF; it contains no CR, LF or NUL.
    pub(super) fn line(&mut self) -> Read<&'b [u8]> {
        let rest = self.rest();
        let Some(end) = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n' | 0)) else {
            return Err(Halt::Short);
        };
        match (rest[end], rest.get(end + 1)) {
            (b'\r', Some(b'\n')) => {
                self.at += end + 2;
                Ok(&rest[..end])
            }
            (b'\r', None) => Err(Halt::Short),
            _ => invalid("bare CR, LF or NUL"),
        }
    }

    /// Field lines and the empty line after them.
    pub(super) fn fields(&mut self) -> Read<Vec<Field>> {
        let mut fields = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(fields);
            }
            fields.push(self.field(line)?);
        }
    }

    fn field(&self, line: &[u8]) -> Read<Field> {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            return invalid("field line without a colon");
        };
        let (name, rest) = (&line[..colon], &line[colon + 1..]);
        if !is_token(name) {
            return invalid("field name that is not a token");
        }
        let value = trim(rest);
        if !is_text(value) {
            return invalid("control character in a field value");
        }
        if self.dialect == Dialect::Sluice && rest != [b" ", value].concat() {
            return invalid("field line with whitespace other than one space");
        }
        Ok(Field { name: name.to_vec(), value: value.to_vec() })
    }

    /// A body of this many bytes.
    pub(super) fn counted(&mut self, length: u64) -> Read<Vec<u8>> {
        let rest = self.rest();
        let wanted = usize::try_from(length).unwrap_or(usize::MAX);
        match rest.get(..wanted) {
            Some(body) => {
                self.at += wanted;
                Ok(body.to_vec())
            }
            None => Err(Halt::Short),
        }
    }

    /// A chunked body and its trailers.
    pub(super) fn chunked(&mut self) -> Read<(Vec<u8>, Vec<Field>)> {
        let mut body = Vec::new();
        loop {
            let size = self.chunk_size()?;
            if size == 0 {
                return Ok((body, self.fields()?));
            }
            body.extend(self.counted(size)?);
            match self.rest() {
                [b'\r', b'\n', ..] => self.at += 2,
                [] | [b'\r'] => return Err(Halt::Short),
                _ => return invalid("no CRLF after the data of a chunk"),
            }
        }
    }

    fn chunk_size(&mut self) -> Read<u64> {
        let line = self.line()?;
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let extension = &line[digits..];
        // sluice accepts no longer ones, as documented.
        if digits > SIZE_DIGITS_MAX || line.len() > SIZE_LINE_BYTES_MAX {
            return invalid("chunk-size line beyond a limit");
        }
        let is_plain = extension.is_empty() || self.dialect == Dialect::Rfc && is_extension(extension);
        if !is_plain {
            return invalid("malformed chunk-size line");
        }
        let size =
            std::str::from_utf8(&line[..digits]).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
        match size {
            Some(size) if size <= LENGTH_MAX => Ok(size),
            _ => invalid("malformed chunk size"),
        }
    }
}

/// A Content-Length by its grammar.
pub(super) fn length(value: &[u8]) -> Read<u64> {
    let digits =
        std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    match digits.and_then(|text| text.parse().ok()).filter(|length| *length <= LENGTH_MAX) {
        Some(length) => Ok(length),
        None => invalid("malformed Content-Length"),
    }
}

/// `*( BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] )` of RFC 9112 section 7.1.1.
fn is_extension(mut rest: &[u8]) -> bool {
    while !rest.is_empty() {
        let Some(after) = trim_start(rest).strip_prefix(b";") else {
            return false;
        };
        let Some(after) = take_token(trim_start(after)) else {
            return false;
        };
        rest = match trim_start(after).strip_prefix(b"=").map(trim_start) {
            None => after,
            Some(quoted @ [b'"', ..]) => match take_quoted(&quoted[1..]) {
                Some(after) => after,
                None => return false,
            },
            Some(value) => match take_token(value) {
                Some(after) => after,
                None => return false,
            },
        };
    }
    true
}

/// The bytes after a token, if there is one.
fn take_token(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.iter().position(|byte| !is_token_byte(*byte)).unwrap_or(bytes.len());
    (end > 0).then(|| &bytes[end..])
}

/// The bytes after the closing quote.
fn take_quoted(mut bytes: &[u8]) -> Option<&[u8]> {
    loop {
        bytes = match bytes {
            [b'"', after @ ..] => return Some(after),
            [b'\\', escaped, after @ ..] if is_text(&[*escaped]) => after,
            [byte, after @ ..] if is_text(&[*byte]) && *byte != b'\\' => after,
            _ => return None,
        };
    }
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Whether `bytes` is a token (RFC 9110 section 5.6.2).
pub(super) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| is_token_byte(*byte))
}

/// Whether `bytes` may be a field value: no control character but HTAB.
pub(super) fn is_text(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f))
}

/// `bytes` without spaces and tabs around it.
pub(super) fn trim(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| !matches!(byte, b' ' | b'\t')).map_or(0, |last| last + 1);
    trim_start(&bytes[..end])
}

fn trim_start(bytes: &[u8]) -> &[u8] {
    let start = bytes.iter().position(|byte| !matches!(byte, b' ' | b'\t')).unwrap_or(bytes.len());
    &bytes[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunked(bytes: &[u8], dialect: Dialect) -> Option<Vec<u8>> {
        Cursor::new(bytes, dialect).chunked().ok().map(|(body, _)| body)
    }

    #[test]
    fn extensions_follow_their_grammar() {
        for (line, valid) in [
            ("", true),
            (";a", true),
            (" ; a = \"b;\\\"\" ;c=d", true),
            (";", false),
            (" ", false),
            (";a=", false),
            (";a=\"b", false),
            (";a b", false),
        ] {
            let bytes = format!("3{line}\r\nabc\r\n0\r\n\r\n");
            assert_eq!(chunked(bytes.as_bytes(), Dialect::Rfc).is_some(), valid, "{line:?}");
        }
        assert_eq!(chunked(b"1;a\r\nx\r\n0\r\n\r\n", Dialect::Sluice), None);
    }

    #[test]
    fn a_line_ends_with_crlf_only() {
        let line = |bytes| Cursor::new(bytes, Dialect::Rfc).line();
        assert_eq!(line(b"a\r\nb"), Ok(&b"a"[..]));
        assert_eq!(line(b"a\r"), Err(Halt::Short));
        for bytes in [&b"a\nb"[..], b"a\rb", b"a\0\r\n"] {
            assert!(matches!(line(bytes), Err(Halt::Invalid(_))));
        }
    }

    #[test]
    fn lengths_are_digits() {
        assert_eq!(length(b"007"), Ok(7));
        for value in [&b""[..], b"+1", b"1 ", b"0x1", b"9223372036854775808", b"1,1"] {
            assert!(length(value).is_err());
        }
    }
}
