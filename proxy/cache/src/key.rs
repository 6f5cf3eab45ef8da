//! The name of a resource in a cache.

/// What requests have in common whose responses belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource<'k> {
    /// The route: another one may lead to another application.
    pub route: &'k str,
    /// Host, with its port, in lower case.
    pub host: &'k [u8],
    /// Path and query as sent.
    pub target: &'k [u8],
}

/// Between the parts; none of them has it.
const SEPARATOR: u8 = 0;

impl<'k> Resource<'k> {
    /// Writes the key to `out`, in place of what is there.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(self.route.as_bytes());
        out.push(SEPARATOR);
        out.extend(self.host.iter().map(u8::to_ascii_lowercase));
        out.push(SEPARATOR);
        out.extend_from_slice(self.target);
    }

    /// The host and the target of a key.
    pub(crate) fn place(key: &[u8]) -> (&[u8], &[u8]) {
        let mut parts = key.splitn(3, |byte| *byte == SEPARATOR).skip(1);
        (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
    }
}

/// Whether a path has one spelling alone. An application may take `/%61` or `/x/../a` for `/a`, or for nothing at all:
/// what it says of one spelling must not become the response for another.
pub fn is_canonical(target: &[u8]) -> bool {
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    if !path.starts_with(b"/") || target.contains(&SEPARATOR) {
        return false;
    }
    let mut segments = path[1..].split(|byte| *byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        let is_dots = matches!(segment, b"." | b"..");
        if is_dots || (segment.is_empty() && !is_last) || !is_plain(segment) {
            return false;
        }
    }
    true
}

/// Whether a segment is written with the bytes that need it encoded, and in upper case.
fn is_plain(segment: &[u8]) -> bool {
    let mut rest = segment;
    while let [byte, after @ ..] = rest {
        rest = after;
        match byte {
            b'%' => {
                let Some((code, after)) = after.split_at_checked(2) else { return false };
                let digit = |byte: u8| char::from(byte).to_digit(16).filter(|_| !byte.is_ascii_lowercase());
                let (Some(high), Some(low)) = (digit(code[0]), digit(code[1])) else { return false };
                let decoded = (high * 16 + low) as u8;
                if decoded.is_ascii_alphanumeric() || b"-._~/\\%\0".contains(&decoded) || decoded < b' ' {
                    return false;
                }
                rest = after;
            }
            b'\\' | b'#' | 0..=b' ' | 127.. => return false,
            _ => {}
        }
    }
    true
}
