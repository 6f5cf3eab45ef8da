//! The control plane: it starts and ends the process, puts configurations and services in force, and shows how things
//! stand.
//!
//! `server` is the file to read first: everything here runs on its one thread, beside the workers of `sluice_engine`.

pub mod server;
pub mod handover;
pub mod commands;
pub mod surroundings;

// -- what it keeps looking after --
pub mod health;
pub mod state_file;
pub mod resolve;
pub mod acme;

// -- what it shows --
pub mod admin;
pub mod status;
pub(crate) mod runtime;
pub(crate) mod spans;
pub mod doctor;
pub mod advice;
pub mod demo;
