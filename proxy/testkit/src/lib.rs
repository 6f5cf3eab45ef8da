//! What tests and benchmarks start, find and count. Contains no checks itself.

pub mod arm64;
pub mod workspace;
pub mod process;
pub mod packages;
pub mod pinned;
pub mod ship;
pub mod nginx;
#[cfg(feature = "tls")]
pub mod identity;
pub mod metrics;
pub mod tally;
