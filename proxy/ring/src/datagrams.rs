//! Waits for datagrams. How they are received, many with one call, is the caller's: an operation for each would cost more.

use std::io;

use super::{Engine, Fd, epoll, uring};

/// Calls `attempt` until it returns something: now, and whenever there is something to read on `fd`.
///
/// # Errors
/// Those of poll(2).
pub async fn when_readable<T>(fd: &Fd, mut attempt: impl FnMut() -> Option<T>) -> io::Result<T> {
    if Engine::current() == Engine::Epoll {
        return epoll::when_readable(fd, attempt).await;
    }
    loop {
        if let Some(outcome) = attempt() {
            return Ok(outcome);
        }
        match uring::poll(fd, libc::POLLIN).await {
            // With tokio-uring, the end of another wait on the descriptor ends this one, too.
            Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => {}
            waited => waited?,
        }
    }
}
