//! Programs of this machine: where they are, and how they end with us.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A command that ends with the thread that starts it, even if that thread is killed before it can clean up.
///
/// `setpriv` replaces itself, so the pid is the program's. Without setpriv, only a clean end stops the program.
pub fn bound(program: impl AsRef<Path>) -> Command {
    let program = program.as_ref();
    match find_program("setpriv") {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "TERM", "--"]).arg(program);
            command
        }
        None => Command::new(program),
    }
}

/// Path of a program in PATH or in the usual folders for system administration.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}
