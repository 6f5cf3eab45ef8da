//! Clients that hardly read.
