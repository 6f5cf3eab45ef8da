//! The `sluice` binary: parse the command line, load the configuration, run, map errors to exit codes.
fn main() {}
