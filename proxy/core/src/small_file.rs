//! Reads the files that a configuration names whole, and never more than fits.

use std::fs::{File, metadata};
use std::io::{self, Error, Read};
use std::path::Path;

/// The content of a regular file of at most `bytes_max` bytes. Blocks.
///
/// # Errors
/// It cannot be read, is larger, or is no regular file: a pipe would wait for ever, and a device never ends.
pub fn read(file: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let found = metadata(file)?;
    if !found.is_file() {
        return Err(Error::other("not a regular file"));
    }
    if found.len() > bytes_max {
        return Err(Error::other(format!("{} bytes; the maximum is {bytes_max}", found.len())));
    }
    let mut content = Vec::new();
    // It may grow in the meantime.
    File::open(file)?.take(bytes_max + 1).read_to_end(&mut content)?;
    if content.len() as u64 > bytes_max {
        return Err(Error::other(format!("more than {bytes_max} bytes")));
    }
    Ok(content)
}

/// The same as text.
///
/// # Errors
/// As for [`read`], or it is not UTF-8.
pub fn read_text(file: &Path, bytes_max: u64) -> io::Result<String> {
    String::from_utf8(read(file, bytes_max)?).map_err(|_| Error::other("it is not UTF-8"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_small_regular_files_are_read() {
        let file = std::env::temp_dir().join(format!("sluice-small-{}", std::process::id()));
        std::fs::write(&file, "four").unwrap();
        assert_eq!(read_text(&file, 4).unwrap(), "four");
        assert_eq!(read(&file, 3).unwrap_err().to_string(), "4 bytes; the maximum is 3");
        std::fs::write(&file, [0xff]).unwrap();
        assert!(read_text(&file, 4).is_err());
        std::fs::remove_file(&file).unwrap();
        assert!(read(&file, 4).is_err());
        for odd in ["/dev/zero", "/tmp"] {
            assert_eq!(read(Path::new(odd), 4).unwrap_err().to_string(), "not a regular file", "{odd}");
        }
    }
}
