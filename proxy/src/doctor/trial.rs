//! The bypass as it would be used: loaded, attached, tried on sockets of sluice's own, and taken away again.
//!
//! Everything hangs on descriptors of this process, so nothing is left however it ends.

use super::Assists;
use crate::kernel::program::{Bypass, Limits, ProgramError, cgroup2};
use crate::kernel::selftest::{self, Failure};

/// Notes with the verdict why the bypass cannot be used, if so.
pub(super) fn bypass(assists: &mut Assists) {
    note(assists, attempt());
}

/// Where it failed.
#[derive(Debug)]
pub(super) enum Trouble {
    Load(ProgramError),
    SelfTest(Failure),
}

fn attempt() -> Result<(), Trouble> {
    let cgroup = cgroup2().map_err(Trouble::Load)?;
    let bypass = Bypass::load(Limits::default(), &cgroup).map_err(Trouble::Load)?;
    let mut marker = bypass.marker().map_err(Trouble::Load)?;
    selftest::run(&bypass, &mut marker).map_err(Trouble::SelfTest)
}

pub(super) fn note(assists: &mut Assists, outcome: Result<(), Trouble>) {
    match outcome {
        Ok(()) => {}
        Err(Trouble::Load(error)) => {
            assists.note_failure("bypass", "load", &format!("its programs cannot be loaded: {error}"));
        }
        Err(Trouble::SelfTest(failure)) => {
            let code = format!("self_test.{}", failure.check);
            assists.note_failure("bypass", code, &format!("its self-test failed: {failure}"));
        }
    }
}
