//! What TLS computes with: aws-lc, which has post-quantum key exchange. Where the feature `aws-lc` is off it is ring, which
//! compiles in a third of the time: `cargo xtask run` is to answer soon.

#[cfg(feature = "aws-lc")]
pub use rustls::crypto::aws_lc_rs::*;
#[cfg(not(feature = "aws-lc"))]
pub use rustls::crypto::ring::*;
