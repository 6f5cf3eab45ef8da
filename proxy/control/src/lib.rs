//! The control plane: starts and stops the process, applies configurations and services, and shows the state.
//!
//! Read `server` first: everything here runs on its one thread, next to the workers of `sluice_engine`.

pub mod server;
pub mod handover;
pub mod commands;
pub mod surroundings;

// -- what it manages --
pub mod health;
pub mod state_file;
pub mod resolve;
pub mod acme;
pub mod fleet;
mod authority;
mod networks;
mod outbound;
mod remote;
mod store;

// -- what it shows --
pub mod admin;
pub mod status;
pub(crate) mod runtime;
pub(crate) mod spans;
mod discovery;
pub mod docker;
pub mod doctor;
pub mod advice;
pub mod demo;
