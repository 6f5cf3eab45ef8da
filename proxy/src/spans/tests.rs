//! Traces as they begin, and spans as they are built.
#![allow(clippy::unwrap_used)]
