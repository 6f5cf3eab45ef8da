//! The system tests of sluice, and its container images, which some of them run. Only parses the command line.

mod apps;
mod browser;
mod conformance;
mod containers;
mod differential;
mod image;
mod kernels;
mod operate;
mod page;
mod storm;
mod test;
mod tls;
mod trace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "System tests of sluice")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run every test, or those whose name contains FILTER.
    Test(test::Options),
    /// Build the container images, without a container engine.
    Image(image::Options),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Test(options) => test::test(&options),
        Command::Image(options) => image::package(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
