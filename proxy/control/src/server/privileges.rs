//! Privileges of the process: descriptors and capabilities at startup, user and group once everything is bound.

use crate::server::StartError;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Gid, Group, Uid, User, getuid, setgid, setgroups, setuid};
use rustix::thread::{capabilities, set_capabilities};
use sluice_config::Config;

/// Makes this thread's permitted capabilities effective, also for threads it starts. A binary in an image has them as
/// permitted only (`setcap …+p`): with `+ep` the kernel refuses to execute it in a container that may not have them
/// all.
pub fn raise_capabilities() {
    // sluice runs without capabilities too, and reports what it lacks when it needs it.
    let Ok(mut sets) = capabilities(None) else { return };
    if !sets.effective.contains(sets.permitted) {
        sets.effective |= sets.permitted;
        let _ = set_capabilities(None, sets);
    }
}

/// Fewer descriptors cause a warning: a proxied connection needs two.
const DESCRIPTORS_MIN: u64 = 4096;

/// Descriptors for which the kernel's table has room from the start; each takes it 8 bytes and some bits. They suffice
/// for as many connections as are joined by default.
const DESCRIPTORS_RESERVED: u64 = 16_384;

/// Raises RLIMIT_NOFILE to its hard limit, and reserves room for descriptors.
pub(super) fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        if soft < hard {
            setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        }
        Ok(hard)
    });
    match raised {
        Ok(limit) if limit < DESCRIPTORS_MIN => {
            tracing::warn!(limit, "the descriptor limit (RLIMIT_NOFILE) is low; each connection needs two");
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "cannot raise the descriptor limit (RLIMIT_NOFILE)"),
    }
    // Without it, sluice works the same, apart from the pauses.
    if let Err(error) = reserve_descriptors(raised.unwrap_or(DESCRIPTORS_MIN).min(DESCRIPTORS_RESERVED)) {
        tracing::debug!(%error, "cannot reserve room for descriptors");
    }
}

/// Makes the kernel's table of descriptors large enough for `count`. It never shrinks.
///
/// The table doubles when it is full, first at 64. In a process with several threads that takes a grace period of RCU
/// (`expand_files` in fs/file.c), 5 to 20 ms, for which every thread waits that opens a socket. So do it before there
/// are connections.
fn reserve_descriptors(count: u64) -> std::io::Result<()> {
    let last = i32::try_from(count.saturating_sub(1)).unwrap_or(i32::MAX);
    // Closed at once: only its number matters.
    rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), last).map(drop)?;
    Ok(())
}

/// Switches to the configured user and group, for every thread.
///
/// # Errors
/// A sentence that names the key that cannot be applied.
pub(super) fn drop_to(config: &Config) -> Result<(), StartError> {
    let user = config.user.as_deref().map(find_user).transpose()?;
    let group = match (&config.group, &user) {
        (Some(name), _) => Some(find_group(name)?),
        (None, Some(user)) => Some(user.gid),
        (None, None) => None,
    };
    if user.as_ref().is_some_and(|user| user.uid != getuid()) && !getuid().is_root() {
        return Err("user: only root can switch to another user; start as root or remove the key"
            .to_owned()
            .into());
    }
    if let Some(gid) = group {
        // The supplementary groups of the starting user must not be kept.
        if getuid().is_root() {
            setgroups(&[gid]).map_err(|error| format!("group: setgroups: {error}"))?;
        }
        setgid(gid).map_err(|error| format!("group: setgid: {error}"))?;
    }
    if let Some(user) = user {
        setuid(user.uid).map_err(|error| format!("user: setuid: {error}"))?;
        if user.uid != Uid::from_raw(0) && setuid(Uid::from_raw(0)).is_ok() {
            return Err(StartError::Step(
                "user: root privileges could be regained; refusing to run".to_owned(),
            ));
        }
        tracing::info!(user = user.name, "privileges dropped");
    }
    Ok(())
}

fn find_user(name: &str) -> Result<User, StartError> {
    User::from_name(name)
        .map_err(|error| format!("user: {name}: {error}"))?
        .ok_or_else(|| format!("user: {name}: no such user on this host").into())
}

fn find_group(name: &str) -> Result<Gid, StartError> {
    Group::from_name(name)
        .map_err(|error| format!("group: {name}: {error}"))?
        .map(|group| group.gid)
        .ok_or_else(|| format!("group: {name}: no such group on this host").into())
}
