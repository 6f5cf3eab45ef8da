//! What QUIC needs before its sockets are bound: a secret that outlives the process, and how packets find their worker.

use std::path::{Path, PathBuf};

use sluice_config::Config;
use sluice_core::durable;
use sluice_net::quic::{QuicKeys, QuicProcess};

use super::StartError;

/// The file in the folder for state.
const FILE: &str = "quic-secret";
/// Bytes of a secret; a file may have more.
const SECRET_BYTES: usize = 32;
const FILE_BYTES_MAX: u64 = 4096;
/// Others could end the connections of clients.
const MODE: u32 = 0o600;

/// Prepares for HTTP/3, if a listener has it. With the secret of an earlier process, clients of that one learn at once that
/// their connections are lost (RFC 9000 section 10.3); they would wait for a timeout otherwise.
///
/// # Errors
/// The configured file cannot be used.
pub(super) fn prepare(config: &Config) -> Result<(), StartError> {
    if config.listeners.iter().all(|listener| listener.http3.is_none()) {
        return Ok(());
    }
    if !QuicProcess::has_begun()
        && let Some(secret) = secret(config)?
    {
        QuicProcess::begin(secret);
    }
    QuicProcess::this().set_steering(config.kernel.quic_steering);
    Ok(())
}

/// The secret of the configured file, or of one in the folder for state.
fn secret(config: &Config) -> Result<Option<[u8; SECRET_BYTES]>, StartError> {
    if let Some(path) = &config.http3_secret_file {
        let failed = |error: StartError| format!("http3_secret_file: {}: {error}", path.display());
        return Ok(Some(read_or_make(path).map_err(failed)?));
    }
    let Some(path) = default_path(config) else { return Ok(None) };
    let secret = read_or_make(&path);
    Ok(secret
        .inspect_err(|error| {
            tracing::warn!(path = %path.display(), %error, "after a restart, clients of HTTP/3 wait for a timeout");
        })
        .ok())
}

/// Beside the state of services, otherwise in the folder that systemd has made.
fn default_path(config: &Config) -> Option<PathBuf> {
    let beside = config.services.state_file.as_ref().and_then(|file| Some(file.parent()?.to_owned()));
    let made = || std::env::var_os("STATE_DIRECTORY").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    Some(beside.or_else(made)?.join(FILE))
}

fn read_or_make(path: &Path) -> Result<[u8; SECRET_BYTES], StartError> {
    let read = durable::read(path, FILE_BYTES_MAX).map_err(|error| error.to_string())?;
    let Some(bytes) = read else {
        let secret = QuicKeys::random_secret();
        durable::write_as(path, &secret, MODE).map_err(|error| format!("cannot be written: {error}"))?;
        return Ok(secret);
    };
    let short = || format!("it has {} bytes; write {SECRET_BYTES} random ones, or remove it", bytes.len());
    Ok(*bytes.first_chunk().ok_or_else(short)?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_secret_is_made_once_and_read_again() {
        let folder = std::env::temp_dir().join(format!("sluice-quic-secret-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(FILE);
        let made = read_or_make(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        assert_eq!(read_or_make(&path).unwrap(), made);
        std::fs::write(&path, b"short").unwrap();
        assert!(read_or_make(&path).unwrap_err().to_string().contains("5 bytes; write 32 random ones"));
        assert!(
            read_or_make(&folder.join("none/at/all")).unwrap_err().to_string().contains("cannot be written")
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_file_is_beside_other_state() {
        let mut config = Config::default();
        config.services.state_file = Some("/var/lib/x/services.json".into());
        assert_eq!(default_path(&config), Some("/var/lib/x/quic-secret".into()));
    }
}
