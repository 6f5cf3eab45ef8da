//! Tests the assists as they would be used: loads them, attaches them, tries them on sluice's own sockets, and removes
//! them.
//!
//! Everything is owned by descriptors of this process, so nothing is left behind.

use sluice_config::Config;
use sluice_engine::barrier;
use sluice_engine::bypass;
use sluice_engine::bypass::BypassError;
use sluice_engine::tunnel;
use sluice_kernel::accept::Chooser;
use sluice_kernel::selftest::Failure;
use sluice_ring::Engine;

use super::Assists;

/// Records in the verdict why bypass cannot be used, if so.
pub(super) fn bypass(assists: &mut Assists, config: &Config) {
    match bypass::start(config, assists.returns_directly(), &[]) {
        Ok(control) => control.direct_failure.iter().for_each(|failure| note_direct(assists, failure)),
        Err(trouble) => note(assists, &trouble),
    }
}

/// Records in the verdict why tunnels cannot be spliced, if so.
pub(super) fn splice(assists: &mut Assists, config: &Config, engine: Engine) {
    if let Err((code, means)) = tunnel::ready(config.kernel, engine) {
        assists.note_failure("splice", code, &means);
    }
}

/// Records in the verdict why the kernel cannot turn banned clients away, if so.
pub(super) fn bans(assists: &mut Assists, config: &Config) {
    if let Err(error) = barrier::load(config.kernel.bans_clients_max) {
        assists.note_failure("bans", "load", &error.to_string());
    }
}

/// Records in the verdict why the kernel cannot give each connection to the worker with the fewest, if so.
pub(super) fn accept(assists: &mut Assists, config: &Config) {
    if let Err(error) = Chooser::load(config.worker_count() as u32) {
        assists.note_failure("accept_steering", "load", &error.to_string());
    }
}

/// Adds the reason to the verdict on bypass.
pub(crate) fn note(assists: &mut Assists, trouble: &BypassError) {
    let code = match trouble {
        BypassError::Load(_) => "load".to_owned(),
        BypassError::SelfTest(failure) => format!("self_test.{}", failure.check),
    };
    assists.note_failure("bypass", code, &trouble.to_string());
}

/// Adds the reason to the verdict on direct return only.
pub(crate) fn note_direct(assists: &mut Assists, failure: &Failure) {
    let code = format!("self_test.{}", failure.check);
    assists.note_failure("direct_return", code, &format!("its self-test failed: {failure}"));
}
