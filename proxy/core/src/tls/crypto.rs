//! The crypto library for TLS: aws-lc, which has post-quantum key exchange. Without the feature `aws-lc` it is ring,
//! which compiles in a third of the time, so that `cargo xtask run` starts sooner.

#[cfg(feature = "aws-lc")]
pub use rustls::crypto::aws_lc_rs::*;
#[cfg(not(feature = "aws-lc"))]
pub use rustls::crypto::ring::*;
