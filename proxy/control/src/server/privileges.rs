//! What the process may do: descriptors at start, user and group once everything is bound.

use crate::server::StartError;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Gid, Group, Uid, User, getuid, setgid, setgroups, setuid};
use rustix::thread::{capabilities, set_capabilities};
use sluice_config::Config;

/// Puts into force the capabilities that this thread is permitted to have, and threads that it starts have them, too. A
/// binary in an image has them as permitted only (`setcap …+p`), for with `+ep` the kernel refuses to execute it where
/// the container may not have them all.
pub fn raise_capabilities() {
    // Without them sluice runs, too: what it then lacks, it says where it wants to use it.
    let Ok(mut sets) = capabilities(None) else { return };
    if !sets.effective.contains(sets.permitted) {
        sets.effective |= sets.permitted;
        let _ = set_capabilities(None, sets);
    }
}

/// Descriptors below which a warning is due: two a proxied connection.
const DESCRIPTORS_MIN: u64 = 4096;

/// Raises RLIMIT_NOFILE to its hard limit.
pub(super) fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        if soft < hard {
            setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        }
        Ok(hard)
    });
    match raised {
        Ok(limit) if limit < DESCRIPTORS_MIN => {
            tracing::warn!(limit, "few descriptors are allowed (RLIMIT_NOFILE); two are needed a connection");
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "the descriptor limit (RLIMIT_NOFILE) cannot be raised"),
    }
}

/// Becomes the configured user and group, for every thread.
///
/// # Errors
/// A sentence that names the key that cannot be obeyed.
pub(super) fn drop_to(config: &Config) -> Result<(), StartError> {
    let user = config.user.as_deref().map(find_user).transpose()?;
    let group = match (&config.group, &user) {
        (Some(name), _) => Some(find_group(name)?),
        (None, Some(user)) => Some(user.gid),
        (None, None) => None,
    };
    if user.as_ref().is_some_and(|user| user.uid != getuid()) && !getuid().is_root() {
        return Err("user: only root can become another user; start as root or leave the key out"
            .to_owned()
            .into());
    }
    if let Some(gid) = group {
        // The groups of whoever started us are of no use to the new user.
        if getuid().is_root() {
            setgroups(&[gid]).map_err(|error| format!("group: setgroups: {error}"))?;
        }
        setgid(gid).map_err(|error| format!("group: setgid: {error}"))?;
    }
    if let Some(user) = user {
        setuid(user.uid).map_err(|error| format!("user: setuid: {error}"))?;
        if user.uid != Uid::from_raw(0) && setuid(Uid::from_raw(0)).is_ok() {
            return Err(StartError::Step("user: root could be taken back; refusing to run".to_owned()));
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
