//! The token that the admin listener requires if `admin_token_file` is set.

use std::fmt;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Why there is no token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, derive_more::From)]
#[error("{0}")]
#[from(String, &'static str)]
pub struct TokenError(String);

/// Shorter tokens could be guessed.
const BYTES_MIN: usize = 16;
/// Maximum bytes of the file.
const BYTES_MAX: u64 = 4096;
/// Mode bits that must not be set: write for the group, any access for others.
const MODE_REFUSED: u32 = 0o027;

/// A secret that requests must contain. It is never printed.
#[derive(Clone)]
pub struct Token(Vec<u8>);

impl Token {
    /// Reads the token from a file that only its owner and group can read: one line of at least 16 characters.
    ///
    /// # Errors
    /// A sentence about what is wrong with the file.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let shown = path.display();
        let cannot = |error: std::io::Error| format!("{shown} cannot be read: {error}");
        // Checked before opening: opening a named pipe would block until it has a writer.
        if !fs::metadata(path).map_err(cannot)?.is_file() {
            return Err(format!("{shown} is not a file; write the path of one").into());
        }
        let file = File::open(path).map_err(cannot)?;
        let mode = file.metadata().map_err(cannot)?.mode() & 0o777;
        if mode & MODE_REFUSED != 0 {
            return Err(format!(
                "{shown} is accessible to others (mode {mode:04o}); restrict it to its owner: chmod 600 \
                 {shown}"
            )
            .into());
        }
        let mut text = Vec::new();
        file.take(BYTES_MAX + 1).read_to_end(&mut text).map_err(cannot)?;
        let token = text.trim_ascii();
        let plain = token.iter().all(u8::is_ascii_graphic);
        if token.len() < BYTES_MIN || text.len() as u64 > BYTES_MAX || !plain {
            return Err(format!(
                "{shown} must contain one line with a token of {BYTES_MIN} or more letters and digits; \
                 create one with `openssl rand -hex 32`"
            )
            .into());
        }
        Ok(Self(token.to_vec()))
    }

    /// Whether `given` is the token, in constant time.
    pub fn is(&self, given: &[u8]) -> bool {
        let mut differences = given.len() ^ self.0.len();
        for (given, own) in given.iter().zip(self.0.iter().cycle()) {
            differences |= usize::from(given ^ own);
        }
        black_box(differences) == 0
    }

    /// The bytes of the token, to send it.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn read(content: &str, mode: u32) -> Result<Token, TokenError> {
        let name = format!("sluice-token-{}-{mode:o}-{}", std::process::id(), content.len());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let token = Token::read(&path);
        fs::remove_file(&path).unwrap();
        token
    }

    #[test]
    fn a_token_file_must_not_be_readable_by_others() {
        for mode in [0o400, 0o600, 0o640] {
            assert!(read("0123456789abcdef\n", mode).unwrap().is(b"0123456789abcdef"));
        }
        for mode in [0o604, 0o644, 0o660, 0o666, 0o777] {
            let error = read("0123456789abcdef\n", mode).unwrap_err();
            assert!(
                error.0.contains("is accessible to others (mode 0") && error.0.contains("chmod 600"),
                "{error}"
            );
        }
    }

    #[test]
    fn invalid_tokens_are_refused() {
        for text in ["", "short", "0123456789 abcdef", "0123456789abcdé\u{1}f", &"a".repeat(5000)] {
            assert!(
                read(text, 0o600).unwrap_err().0.contains("must contain one line with a token"),
                "{text:.20}"
            );
        }
        assert!(Token::read(Path::new("/")).unwrap_err().0.contains("is not a file"));
        assert!(Token::read(Path::new("/no/such")).unwrap_err().0.contains("cannot be read"));
    }

    #[test]
    fn only_equal_tokens_match() {
        let token = Token(b"0123456789abcdef".to_vec());
        let double = b"0123456789abcdef0123456789abcdef";
        for other in [&b""[..], b"0123456789abcde", b"0123456789abcdeg", b"1123456789abcdef", double] {
            assert!(!token.is(other));
        }
        assert!(token.is(b"0123456789abcdef"));
        assert_eq!(format!("{token:?}"), "Token(…)");
    }
}
