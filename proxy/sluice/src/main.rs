//! The `sluice` binary: parse the command line, load the configuration, run, map errors to exit codes.

mod application;
mod cli;
mod fleet_table;
mod healthcheck;
mod logs;
mod manual;
#[cfg(feature = "top")]
mod top;
mod usage;

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use sluice_config::{self as config, Config, ConfigError};
use sluice_control::commands::{self, ClientError};
use sluice_control::handover::Predecessor;
use sluice_control::server::{ControlRuntime, Source};
use sluice_control::{advice, doctor, server, surroundings};
use sluice_core::{logging, tls};

use crate::application::Application;
use crate::cli::kamal::{self, Environment, KamalCommand, KamalProxy, KamalRunArgs};
use crate::cli::service::ServiceCommand;
use crate::cli::service::words::{self, Refusal};
use crate::cli::{Cli, Command, ControlArgs, DoctorArgs, FileArgs, HealthcheckArgs, RunArgs, UpgradeArgs};

const NO_CONTROL: &str = "the control plane cannot be started";
/// An error while running.
const EXIT_RUNTIME: u8 = 1;
/// A wrong command line or configuration; the same code as clap's usage errors.
const EXIT_CONFIG: u8 = 2;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args_os().map(|one| one.to_string_lossy().into_owned()).collect();
    if kamal::is_called(std::env::args_os().next().as_deref()) {
        let code = kamal_main(&arguments);
        logging::end();
        return code;
    }
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) if is_about_services(&arguments) => return refuse_words(&error, "sluice", &arguments),
        Err(error) => error.exit(),
    };
    let code = obey(command);
    logging::end();
    code
}

fn obey(command: Command) -> ExitCode {
    match command {
        Command::Service(command) => {
            let socket = command.control().path();
            service_command(&command, "sluice", &socket)
        }
        Command::Bans(args) => match args.run() {
            Ok(text) => print(&text),
            Err(error) => fail(&error, EXIT_RUNTIME),
        },
        Command::Cache(args) => match args.run() {
            Ok(text) => print(&text),
            Err(error) => fail(&error, EXIT_RUNTIME),
        },
        Command::Discover(args) => match args.run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error, EXIT_RUNTIME),
        },
        Command::Run(args) => run_command(&args),
        Command::Check(args) => check_command(&args),
        Command::Config(args) => config_command(&args),
        Command::Schema => print(&manual::schema()),
        Command::Doctor(args) => doctor_command(&args),
        Command::Reload(args) => reload_command(&args),
        Command::Upgrade(args) => upgrade_command(&args),
        Command::Healthcheck(args) => healthcheck_command(&args),
        Command::Logs(args) => logs::run(&args),
        Command::Top(args) => top_command(&args),
        #[cfg(feature = "trace")]
        Command::Trace(options) => trace_command(&options),
        Command::Version => print(concat!("sluice ", env!("CARGO_PKG_VERSION"), "\n")),
        Command::Completions { shell } => completions_command(shell),
        Command::Man { folder } => man_command(&folder),
        Command::Reference { folder } => written(manual::write_reference(Cli::command(), &folder), &folder),
    }
}

#[cfg(feature = "top")]
fn top_command(args: &cli::TopArgs) -> ExitCode {
    match args.options() {
        Ok(options) => {
            top::run(&options).map_or_else(|error| fail(&error, EXIT_RUNTIME), |()| ExitCode::SUCCESS)
        }
        Err(error) => fail(&error, EXIT_CONFIG),
    }
}

#[cfg(feature = "trace")]
fn trace_command(options: &sluice_trace::Options) -> ExitCode {
    let done = sluice_trace::trace(options);
    done.map_or_else(|error| fail(&format!("{error:#}"), EXIT_RUNTIME), |()| ExitCode::SUCCESS)
}

#[cfg(not(feature = "top"))]
fn top_command(_: &cli::TopArgs) -> ExitCode {
    fail(
        &"this sluice was built without `top`, as `cargo xtask run` does; `cargo build` includes it",
        EXIT_RUNTIME,
    )
}

/// Whether a command line starts with one of kamal-proxy's commands, so that errors use its words.
fn is_about_services(arguments: &[String]) -> bool {
    let verbs = ["deploy", "list", "ls", "remove", "rm", "pause", "stop", "resume", "rollout"];
    arguments.get(1).is_some_and(|verb| verbs.contains(&verb.as_str()))
}

/// The entry point when called as kamal-proxy.
fn kamal_main(arguments: &[String]) -> ExitCode {
    let variable = |name: &str| std::env::var(name).ok();
    let environment = Environment(&variable);
    match KamalProxy::try_parse() {
        Ok(KamalProxy { command: KamalCommand::Run(args) }) => kamal_run(&args, &environment),
        Ok(KamalProxy { command: KamalCommand::Service(command) }) => {
            let socket = command.control().path_or(|| environment.socket());
            service_command(&command, kamal::PROGRAM, &socket)
        }
        Err(error) => refuse_words(&error, kamal::PROGRAM, arguments),
    }
}

fn kamal_run(args: &KamalRunArgs, environment: &Environment<'_>) -> ExitCode {
    server::raise_capabilities();
    let runtime = match ControlRuntime::start() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("{NO_CONTROL}: {error}"), EXIT_RUNTIME),
    };
    let predecessor = match Predecessor::from_environment() {
        Ok(predecessor) => predecessor,
        Err(error) => {
            return fail(&format!("cannot take over from the running process: {error}"), EXIT_RUNTIME);
        }
    };
    logging::init_at(if args.debug(environment) { "debug" } else { "info" });
    let config = args.config(environment);
    let same = config.clone();
    let source = Source { read: Arc::new(move || Ok(same.clone())), watched: None, show_line: None };
    server::run(runtime, config, source, predecessor).unwrap_or_else(|error| fail(&error, EXIT_RUNTIME))
}

fn service_command(command: &ServiceCommand, program: &str, socket: &Path) -> ExitCode {
    match command.run(program, socket) {
        Ok(text) => print(&text),
        Err(lines) => complain(&lines),
    }
}

/// Prints clap's error in cobra's words.
fn refuse_words(error: &clap::Error, program: &str, arguments: &[String]) -> ExitCode {
    match words::refusal(error, program, arguments.get(1..).unwrap_or_default()) {
        Refusal::Help(text) => print(&text),
        Refusal::Error(lines) => complain(&lines),
    }
}

fn complain(lines: &[String]) -> ExitCode {
    let _ = writeln!(io::stderr(), "Error: {}", lines.join("\n"));
    ExitCode::from(EXIT_RUNTIME)
}

fn run_command(args: &RunArgs) -> ExitCode {
    server::raise_capabilities();
    let runtime = match ControlRuntime::start() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("{NO_CONTROL}: {error}"), EXIT_RUNTIME),
    };
    let predecessor = match Predecessor::from_environment() {
        Ok(predecessor) => predecessor,
        Err(error) => {
            return fail(&format!("cannot take over from the running process: {error}"), EXIT_RUNTIME);
        }
    };
    match args.load() {
        Ok(config) => {
            logging::init();
            let application = match Application::start(&args.application, args.application_port()) {
                Ok(application) => application,
                Err(error) => {
                    let command = args.application[0].display();
                    return fail(&format!("{command} cannot be started: {error}"), EXIT_RUNTIME);
                }
            };
            let code = server::run(runtime, config, args.source(), predecessor)
                .unwrap_or_else(|error| fail(&error, EXIT_RUNTIME));
            application.and_then(Application::end).map_or(code, ExitCode::from)
        }
        Err(error) => {
            predecessor.iter().for_each(|predecessor| predecessor.fail(&error.to_string()));
            refuse(&error)
        }
    }
}

fn check_command(args: &FileArgs) -> ExitCode {
    let path = args.path();
    let config = match config::load(&path, &args.sets) {
        Ok(config) => config,
        Err(error) => return refuse(&error),
    };
    let (findings, file) = (tls::check(&config), path.display());
    for finding in &findings {
        let warning = if finding.is_mistake { "" } else { "warning: " };
        say(&format!("{file}: {warning}{finding}"));
    }
    if findings.iter().any(|finding| finding.is_mistake) {
        return ExitCode::from(EXIT_CONFIG);
    }
    if let Err(error) = surroundings::read_files(&config) {
        error.to_string().lines().for_each(|line| say(&format!("{file}: {line}")));
        return ExitCode::from(EXIT_CONFIG);
    }
    for note in config::outdated_keys(&path) {
        let line = note.line.map(|line| format!(":{line}")).unwrap_or_default();
        say(&format!("{file}{line}: warning: {note}"));
    }
    for warning in advice::warnings(&config).iter().chain(&surroundings::warnings(&config)) {
        say(&format!("{file}: warning: {warning}"));
    }
    for cost in advice::costs(&config) {
        say(&format!("{file}: note: {cost}"));
    }
    print(&format!("{file}: ok\n"))
}

fn config_command(args: &FileArgs) -> ExitCode {
    match config::load(&args.path(), &args.sets) {
        Ok(config) => print(&config::to_yaml(&config)),
        Err(error) => refuse(&error),
    }
}

fn doctor_command(args: &DoctorArgs) -> ExitCode {
    server::raise_capabilities();
    let file = args.config.as_deref();
    let config = match file.map_or_else(|| Ok(Config::default()), |file| config::load(file, &args.sets)) {
        Ok(config) => config,
        Err(error) => return refuse(&error),
    };
    let report = doctor::examine(&config, file.map(|file| file.display().to_string()));
    let text = if args.json { format!("{:#}\n", report.to_json()) } else { report.to_text() };
    let printed = print(&text);
    if report.is_well() { printed } else { ExitCode::from(EXIT_RUNTIME) }
}

fn reload_command(args: &ControlArgs) -> ExitCode {
    match commands::call(&args.path(), "/v1/reload", &serde_json::json!({})) {
        Ok(done) => {
            let notes = done["notes"].as_array().map(Vec::as_slice).unwrap_or_default();
            notes.iter().filter_map(|note| note.as_str()).for_each(say);
            print("configuration applied\n")
        }
        Err(error @ ClientError::Refused(_)) if error.is_busy() => fail(&error.to_string(), EXIT_RUNTIME),
        // In the format of `check`: one line per mistake.
        Err(ClientError::Refused(body)) => {
            let _ = writeln!(io::stderr(), "{}", ClientError::Refused(body));
            ExitCode::from(EXIT_CONFIG)
        }
        Err(error) => fail(&error.to_string(), EXIT_RUNTIME),
    }
}

fn upgrade_command(args: &UpgradeArgs) -> ExitCode {
    // The running process has another working directory.
    let binary = match args.binary.as_deref().map(std::path::absolute).transpose() {
        Ok(binary) => binary,
        Err(error) => return fail(&format!("--binary: {error}"), EXIT_CONFIG),
    };
    let wanted = serde_json::json!({ "binary": binary, "timeout_ms": args.timeout_ms });
    match commands::call(&args.control.path(), "/v1/upgrade", &wanted) {
        Ok(done) => print(&format!("process {} has taken over\n", done["pid"])),
        Err(error) => fail(&error.to_string(), EXIT_RUNTIME),
    }
}

fn say(message: &str) {
    let _ = writeln!(io::stderr(), "sluice: {message}");
}

fn healthcheck_command(args: &HealthcheckArgs) -> ExitCode {
    match args.address() {
        Ok(Some(admin)) => match healthcheck::ask(&admin) {
            Ok(()) => print("ok\n"),
            Err(error) => fail(&format!("{}: {error}", admin.address), EXIT_RUNTIME),
        },
        Ok(None) => fail(
            &"healthcheck needs the admin listener, which is off; set admin: 127.0.0.1:9901",
            EXIT_CONFIG,
        ),
        Err(error) => fail(&error, EXIT_CONFIG),
    }
}

fn man_command(folder: &Path) -> ExitCode {
    written(manual::write(Cli::command(), folder), folder)
}

fn written(outcome: io::Result<()>, folder: &Path) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&format!("{}: {error}", folder.display()), EXIT_RUNTIME),
    }
}

fn completions_command(shell: Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "sluice", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Prints to standard output. Unlike `println!`, does not panic if the reader has gone.
fn print(text: &str) -> ExitCode {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(EXIT_RUNTIME),
    }
}

fn refuse(error: &ConfigError) -> ExitCode {
    // One line per mistake, without a prefix, so that editors find file and line.
    let _ = writeln!(io::stderr(), "{error}");
    ExitCode::from(EXIT_CONFIG)
}

fn fail(message: &dyn Display, code: u8) -> ExitCode {
    // Printed after everything that was logged.
    logging::end();
    let _ = writeln!(io::stderr(), "sluice: {message}");
    ExitCode::from(code)
}
