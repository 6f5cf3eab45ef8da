//! Developer commands of the workspace: `cargo xtask COMMAND`. Parses the command line, and hands on to the package that
//! has the work: tests to `proxy/system`, benchmarks to `bench`.

mod build_ebpf;
mod docs;
mod lint;
mod package;
mod run;
mod tidy;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer commands of sluice")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build sluice, quickly, and become `sluice run ARGS` (default: the commented config).
    Run(Handed),
    /// Build sluice, quickly, and become `sluice doctor ARGS`: what this host gives sluice.
    Doctor(Handed),
    /// Format, clippy, documentation and tidy, all without changing a file.
    Lint,
    /// Check what clippy cannot: imports, layers, names, places of unsafe.
    Tidy,
    /// Run every test, or those whose name contains the first argument; --help lists the options.
    #[command(disable_help_flag = true)]
    Test(Handed),
    /// Measure sluice beside other proxies; results go to bench/results/NAME. --help lists the options.
    #[command(disable_help_flag = true)]
    Bench(Handed),
    /// See where requests wait: run a script of scripts/, or `puma` (root, bpftrace). --help lists the options.
    #[command(disable_help_flag = true)]
    Trace(Handed),
    /// Build the eBPF object from source into proxy-ebpf/prebuilt, or compare it with what is there.
    BuildEbpf(build_ebpf::Options),
    /// Build everything that is shipped into target/xtask/package: .deb, .rpm, an archive with a static binary, symbols, a
    /// list of components, and checksums. With --image, the container images: target/xtask/image/sluice-image.tar.
    Package(package::Options),
    /// Build the book of docs/ into target/book, and renew its reference.
    Docs,
    /// Lint, then test.
    Ci,
}

/// What the program that does the work gets as it is.
#[derive(Args)]
struct Handed {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(Handed { args }) => run::run(&args),
        Command::Doctor(Handed { args }) => run::doctor(&args),
        Command::Lint => lint::lint(),
        Command::Tidy => tidy::tidy(),
        Command::Test(Handed { args }) => run::package("sluice-system", "test", &args),
        Command::Bench(Handed { args }) => run::package("sluice-bench", "bench", &args),
        Command::Trace(Handed { args }) => run::trace(&args),
        Command::BuildEbpf(options) => build_ebpf::build(&options),
        Command::Package(options) => package::package(&options),
        Command::Docs => docs::docs(),
        Command::Ci => lint::lint().and_then(|()| run::package("sluice-system", "test", &[])),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
