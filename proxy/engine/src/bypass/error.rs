//! Why connections cannot be joined.

use sluice_kernel::program::ProgramError;
use sluice_kernel::selftest::Failure;

/// The step that failed.
#[derive(Debug, thiserror::Error)]
pub enum BypassError {
    /// The programs cannot be loaded or attached.
    #[error("its programs cannot be loaded: {0}")]
    Load(#[from] ProgramError),
    /// The programs do not work as they should.
    #[error("its self-test failed: {0}")]
    SelfTest(#[from] Failure),
}
