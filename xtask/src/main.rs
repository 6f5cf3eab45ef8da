//! Developer commands of the workspace: `cargo xtask COMMAND`. Parses the command line, nothing else.

mod apps;
mod bench;
mod browser;
mod build_ebpf;
mod conformance;
mod differential;
mod kernels;
mod lint;
mod metrics;
mod operate;
mod package;
mod page;
mod process;
mod run;
mod sockets;
mod storm;
mod packages;
mod tally;
mod test;
mod tidy;
mod tls;
mod trace;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer commands of sluice")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build the release binary and become `sluice run ARGS` (default: the commented config).
    Run {
        /// Arguments of `sluice run`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Build the release binary and become `sluice doctor ARGS`: what this host gives sluice.
    Doctor {
        /// Arguments of `sluice doctor`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Format, clippy, documentation and tidy, all without changing a file.
    Lint,
    /// Check what clippy cannot: imports, names, paths, places of unsafe.
    Tidy,
    /// Run every test, or those whose name contains FILTER.
    Test(test::Options),
    /// Measure sluice beside other proxies; results go to bench/results/NAME.
    Bench(bench::Options),
    /// See where requests wait: run a script of scripts/, or `puma` (root, bpftrace).
    Trace(trace::Options),
    /// Build the eBPF object from source into proxy-ebpf/prebuilt, or compare it with what is there.
    BuildEbpf(build_ebpf::Options),
    /// Build the Debian package with cargo-deb, and look into it: target/xtask/package/sluice.deb.
    Package(package::Options),
    /// Lint, then test.
    Ci,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run { args } => run::run(&args),
        Command::Doctor { args } => run::doctor(&args),
        Command::Lint => lint::lint(),
        Command::Tidy => tidy::tidy(),
        Command::Test(options) => test::test(&options),
        Command::Bench(options) => bench::bench(&options),
        Command::Trace(options) => trace::trace(&options),
        Command::BuildEbpf(options) => build_ebpf::build(&options),
        Command::Package(options) => package::package(&options),
        Command::Ci => lint::lint().and_then(|()| test::test(&test::Options::default())),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
