//! The secret that asks for debug fields: a file, so that no configuration that is shown has it.

use crate::Mistake;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

/// Bytes of a token at least: 128 bits of it cannot be guessed, even in hexadecimal half as many take for ever.
const TOKEN_BYTES_MIN: usize = 16;
/// Bytes of a token at most; it is sent with requests.
const TOKEN_BYTES_MAX: usize = 256;

/// Reads the token of a file; white space around it is none of it.
///
/// # Errors
/// A sentence: the file cannot be read, or holds no token that a field could carry.
pub fn read_token(path: &Path) -> Result<Vec<u8>, Mistake> {
    let shown = path.display();
    let cannot = |error: std::io::Error| format!("{shown} cannot be read: {error}");
    // Asked before opening: opening a named pipe would wait for its writer.
    if !fs::metadata(path).map_err(cannot)?.is_file() {
        return Err(format!("{shown} is not a file; write the path of one").into());
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(cannot)?;
    file.take(2 * TOKEN_BYTES_MAX as u64).read_to_end(&mut bytes).map_err(cannot)?;
    let token = bytes.trim_ascii();
    if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.len()) {
        return Err(format!(
            "{shown} holds no token of {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} bytes; write one, such as from \
             `openssl rand -hex 32`"
        )
        .into());
    }
    if !token.iter().all(u8::is_ascii_graphic) {
        return Err(format!("{shown} holds a byte that is no visible ASCII character; take it out").into());
    }
    Ok(token.to_vec())
}
