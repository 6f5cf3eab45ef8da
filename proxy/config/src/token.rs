//! Secret tokens, which are kept in files so that no configuration that is shown contains them.

use crate::Mistake;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

/// Minimum bytes of a token: 128 random bits cannot be guessed, and 16 hexadecimal digits would still take very long.
const TOKEN_BYTES_MIN: usize = 16;
/// Maximum bytes of a token; it is sent with requests.
const TOKEN_BYTES_MAX: usize = 256;

/// Reads the token of a file; surrounding whitespace is ignored.
///
/// # Errors
/// A sentence: the file cannot be read, or contains no token that a field could carry.
pub fn read_token(path: &Path) -> Result<Vec<u8>, Mistake> {
    let shown = path.display();
    let cannot = |error: std::io::Error| format!("{shown} cannot be read: {error}");
    // Checked before opening: opening a named pipe would block until it has a writer.
    if !fs::metadata(path).map_err(cannot)?.is_file() {
        return Err(format!("{shown} is not a file; write the path of one").into());
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(cannot)?;
    file.take(2 * TOKEN_BYTES_MAX as u64).read_to_end(&mut bytes).map_err(cannot)?;
    let token = bytes.trim_ascii();
    if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.len()) {
        return Err(format!(
            "{shown} must contain a token of {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} bytes; create one with \
             `openssl rand -hex 32`"
        )
        .into());
    }
    if !token.iter().all(u8::is_ascii_graphic) {
        return Err(format!("{shown} contains a byte that is not visible ASCII; remove it").into());
    }
    Ok(token.to_vec())
}
