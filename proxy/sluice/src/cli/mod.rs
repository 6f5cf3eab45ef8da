//! The command line, and the configuration of `run`'s short form. Runs nothing.

pub(crate) mod bans;
pub(crate) mod cache;
pub(crate) mod discover;
pub(crate) mod kamal;
pub(crate) mod service;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod documents;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use crate::logs::LogsArgs;
#[cfg(feature = "top")]
use crate::top;
use crate::usage::{DEFAULT_FILE, UsageError};
use clap::{ArgGroup, Args, Parser, Subcommand};
use clap_complete::Shell;
use sluice_config::{self as config, Address, Config, ConfigError, Override};
use sluice_control::commands;
use sluice_control::server::Source;

use self::bans::BansArgs;
use self::cache::CacheArgs;
use self::discover::DiscoverArgs;
use self::service::ServiceCommand;

/// An HTTP reverse proxy on io_uring.
#[derive(Debug, Parser)]
#[command(name = "sluice", about, version, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the proxy in the foreground
    Run(RunArgs),
    /// Check a configuration file and print all its mistakes
    Check(FileArgs),
    /// Print the effective configuration with all defaults
    Config(FileArgs),
    /// Print a JSON Schema of the configuration (draft 2020-12), for editors
    Schema,
    /// Show what this host supports, and how to change what is missing
    Doctor(DoctorArgs),
    /// Make a running sluice read its configuration again
    Reload(ControlArgs),
    /// Replace a running sluice with a new process without losing requests, for example after an update
    Upgrade(UpgradeArgs),
    /// Check whether a running sluice serves, through its admin listener
    Healthcheck(HealthcheckArgs),
    /// Show an access log: coloured, filtered, following the file
    Logs(LogsArgs),
    /// Show live statistics of a running sluice in this terminal
    Top(TopArgs),
    /// Show where requests wait in any server, with bpftrace (root)
    #[cfg(feature = "trace")]
    Trace(sluice_trace::Options),
    /// List and change the addresses that a running sluice turns away
    Bans(BansArgs),
    /// List the caches of a running sluice, and take stored responses out of them
    Cache(CacheArgs),
    /// Deploy what is found elsewhere, and follow it: a process of its own
    Discover(DiscoverArgs),
    #[command(flatten)]
    Service(ServiceCommand),
    /// Print the version
    Version,
    /// Print shell completions
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages into a folder
    #[command(hide = true)]
    Man {
        /// The folder; created if missing
        folder: PathBuf,
    },
    /// Write the reference pages of the guide into a folder
    #[command(hide = true)]
    Reference {
        /// The folder; created if missing
        folder: PathBuf,
    },
}

/// Where `--listen` and `--to` have an admin listener, and where `top` looks for one.
const DEFAULT_ADMIN: &str = "127.0.0.1:9901";

#[derive(Debug, Args)]
pub(crate) struct FileArgs {
    /// The configuration file [default: /etc/sluice/sluice.yaml]
    #[arg(value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,
    /// The same
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set any key by its dotted path, such as clusters.api.fail_open=false
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub(crate) sets: Vec<Override>,
}

impl FileArgs {
    /// The path of the file.
    pub(crate) fn path(&self) -> PathBuf {
        self.file.as_ref().or(self.config.as_ref()).map_or_else(|| DEFAULT_FILE.into(), Clone::clone)
    }
}

/// Selects the running sluice.
#[derive(Clone, Debug, Args)]
pub(crate) struct ControlArgs {
    /// Its control socket [default: the default path of sluice]
    #[arg(long, value_name = "PATH", env = "SLUICE_CONTROL")]
    pub(in crate::cli) control: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct UpgradeArgs {
    #[command(flatten)]
    pub(crate) control: ControlArgs,
    /// The binary to start [default: the path of the running one]
    #[arg(long, value_name = "FILE")]
    pub(crate) binary: Option<PathBuf>,
    /// Time limit until the new process serves, in milliseconds [default: 60000]
    #[arg(long, value_name = "N")]
    pub(crate) timeout_ms: Option<u64>,
}

impl ControlArgs {
    /// The path of its control socket.
    pub(crate) fn path(&self) -> PathBuf {
        self.path_or(commands::default_path)
    }

    /// The given path, or another one. A file writes the key `control` with `unix:` in front, so that is accepted, too.
    pub(crate) fn path_or(&self, other: impl FnOnce() -> PathBuf) -> PathBuf {
        let Some(given) = &self.control else { return other() };
        given
            .to_str()
            .and_then(|text| text.strip_prefix("unix:"))
            .map_or_else(|| given.clone(), PathBuf::from)
    }
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// The configuration whose requirements are checked [default: the defaults]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
    /// Set any key by its dotted path, such as kernel.bypass=required
    #[arg(long = "set", value_name = "PATH=VALUE", requires = "config")]
    pub(crate) sets: Vec<Override>,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("whom").args(["config", "admin"]))]
pub(crate) struct HealthcheckArgs {
    /// The configuration file of the running sluice, which contains the address and the token file of its admin
    /// listener [default: /etc/sluice/sluice.yaml]
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The address of the admin listener, as 9901, host:port or unix:/path
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// A file with the token of the admin listener
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// An admin listener, and the file with the token that it requires.
pub(crate) struct AdminAddress {
    pub(crate) address: Address,
    pub(crate) token_file: Option<PathBuf>,
}

impl HealthcheckArgs {
    /// The admin listener to ask; `None` if the configuration has none.
    pub(crate) fn address(&self) -> Result<Option<AdminAddress>, UsageError> {
        if let Some(admin) = &self.admin {
            let address = admin_address(admin)?;
            return Ok(Some(AdminAddress { address, token_file: self.token_file.clone() }));
        }
        let file = self.config.clone().unwrap_or_else(|| DEFAULT_FILE.into());
        let config = config::load(&file, &[]).map_err(|error| error.to_string())?;
        let token_file = self.token_file.clone().or(config.admin_token_file);
        Ok(config.admin.map(|address| AdminAddress { address, token_file }))
    }
}

fn admin_address(text: &str) -> Result<Address, UsageError> {
    let address = config::with_host(text, "127.0.0.1").parse();
    address.map_err(|error| format!("--admin: {error}").into())
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// The configuration file of the running sluice, which contains the address and the token file of its admin
    /// listener
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The address of its admin listener, as 9901, host:port or unix:/path [default: 127.0.0.1:9901]
    #[arg(long, value_name = "ADDR", conflicts_with = "config")]
    admin: Option<String>,
    /// File with the token of the admin listener
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print a table once and exit
    #[arg(long)]
    once: bool,
    /// Print the status document as JSON
    #[arg(long, requires = "once")]
    json: bool,
    /// Show the members of the fleet instead of the endpoints
    #[arg(long, conflicts_with = "json")]
    fleet: bool,
}

#[cfg(feature = "top")]
impl TopArgs {
    /// The options of `top`.
    pub(crate) fn options(&self) -> Result<top::Options, UsageError> {
        let mut options = top::Options {
            admin: Address::Ip(([127, 0, 0, 1], 9901).into()),
            token_file: self.token_file.clone(),
            once: self.once,
            json: self.json,
            fleet: self.fleet,
        };
        if let Some(file) = &self.config {
            let config = config::load(file, &[]).map_err(|error| error.to_string())?;
            let none = || format!("{}: admin is off; write an address for it", file.display());
            options.admin = config.admin.ok_or_else(none)?;
            options.token_file = options.token_file.or(config.admin_token_file);
        }
        if let Some(admin) = &self.admin {
            options.admin = admin_address(admin)?;
        }
        Ok(options)
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    /// The configuration file [default: /etc/sluice/sluice.yaml]
    #[arg(value_name = "FILE", conflicts_with_all = ["config", "listen", "to"])]
    file: Option<PathBuf>,
    /// The same
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["listen", "to"])]
    config: Option<PathBuf>,
    /// Without a file: the address to listen on, as 8080, host:port or unix:/path
    #[arg(long, value_name = "ADDR", requires = "to")]
    listen: Option<String>,
    /// Without a file: an endpoint to forward to, as 3000, host:port, http://host or unix:/path
    #[arg(long, value_name = "ADDR", requires = "listen")]
    to: Vec<String>,
    /// Number of worker threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: Option<u16>,
    /// The address of the admin listener, as 9901, host:port or unix:/path; or off
    #[arg(long, value_name = "ADDR|off")]
    admin: Option<String>,
    /// Set any key by its dotted path, such as clusters.default.response_timeout_ms=5000
    #[arg(long = "set", value_name = "PATH=VALUE")]
    sets: Vec<Override>,
    /// Reload the configuration file whenever it changes
    #[arg(long, conflicts_with = "listen")]
    watch: bool,
    /// The application to start, and to end when sluice ends; sluice ends when it ends
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) application: Vec<OsString>,
}

impl RunArgs {
    /// The source of the configuration, for reading it again.
    pub(crate) fn source(&self) -> Source {
        let args = self.clone();
        let watched = self.path().filter(|_| self.watch);
        Source { read: Arc::new(move || args.load()), watched, show_line: Some(crate::logs::show_line) }
    }

    /// The configuration for these arguments.
    pub(crate) fn load(&self) -> Result<Config, ConfigError> {
        let overrides = self.overrides();
        if let Some(file) = self.path() {
            return config::load(&file, &overrides);
        }
        let text = config::short_form(self.listen.as_deref().unwrap_or_default(), &self.to);
        let mut config = config::parse("command line", &text, &overrides).map_err(without_lines)?;
        // With its default address, `sluice top` finds it. A second sluice on this host runs without.
        config.admin_if_free = self.admin.is_none();
        Ok(config)
    }

    /// The port of the only endpoint of the short form, if it is one of this host.
    pub(crate) fn application_port(&self) -> Option<u16> {
        let [to] = &self.to[..] else { return None };
        match config::with_host(to, "127.0.0.1").parse() {
            Ok(Address::Ip(address)) if address.ip().is_loopback() => Some(address.port()),
            _ => None,
        }
    }

    /// The configuration file, unless the short form is used.
    fn path(&self) -> Option<PathBuf> {
        let given = self.file.as_ref().or(self.config.as_ref());
        self.listen.is_none().then(|| given.map_or_else(|| DEFAULT_FILE.into(), Clone::clone))
    }

    /// `--workers`, `--admin`, then every `--set`, which therefore takes precedence.
    fn overrides(&self) -> Vec<Override> {
        let workers = self.workers.map(|count| Override::number("--workers", "workers", count.into()));
        let default = self.listen.as_ref().map(|_| DEFAULT_ADMIN);
        let admin = self.admin.as_deref().or(default);
        let admin = admin.map(|admin| Override::text("--admin", "admin", admin));
        workers.into_iter().chain(admin).flatten().chain(self.sets.iter().cloned()).collect()
    }
}

/// The user has not seen the text generated from the short form, so line numbers would only confuse.
fn without_lines(mut error: ConfigError) -> ConfigError {
    for problem in &mut error.problems {
        problem.line = None;
    }
    error
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::CommandFactory;
    use clap::error::ErrorKind;
    use sluice_config::Word;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("sluice").chain(line.split_whitespace()))
    }

    fn run(line: &str) -> Result<Config, ConfigError> {
        match parse(line).unwrap().command {
            Command::Run(args) => args.load(),
            other => panic!("{other:?} is not run"),
        }
    }

    #[test]
    fn the_clap_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_control_socket_is_written_as_in_a_file() {
        for given in ["/run/a.sock", "unix:/run/a.sock"] {
            let Command::Reload(args) = parse(&format!("reload --control {given}")).unwrap().command else {
                panic!("this is not reload")
            };
            assert_eq!(args.path(), PathBuf::from("/run/a.sock"));
        }
    }

    #[test]
    fn the_short_form_is_one_listener_one_route_one_cluster() {
        let config = run("run --listen :8080 --to 3000 --to unix:/run/app.sock").unwrap();
        assert_eq!(config.listeners[0].name, "default");
        assert_eq!(config.listeners[0].address, "0.0.0.0:8080".parse().unwrap());
        assert_eq!(config.listeners[0].protocol.word(), "http");
        assert_eq!(config.routes[0].name, "default");
        let endpoints: Vec<String> = config.clusters["default"]
            .endpoints
            .iter()
            .map(|endpoint| endpoint.address.to_string())
            .collect();
        assert_eq!(endpoints, ["127.0.0.1:3000", "unix:/run/app.sock"]);
        assert_eq!(config.admin, Some(Address::Ip("127.0.0.1:9901".parse().unwrap())));
        assert!(config.admin_if_free);
    }

    #[test]
    fn addresses_may_leave_the_host_out() {
        for (given, read) in [
            ("8080", "0.0.0.0:8080"),
            (":8080", "0.0.0.0:8080"),
            ("localhost:80", "localhost:80"),
            ("[::]:80", "[::]:80"),
            ("unix:/a", "unix:/a"),
        ] {
            let config = run(&format!("run --listen {given} --to :1")).unwrap();
            assert_eq!(config.listeners[0].address.to_string(), read);
        }
    }

    #[test]
    fn set_takes_precedence_over_other_flags() {
        let line = "run --listen 1 --to 2 --workers 3 --admin 9901 --set workers=4 --set access_log=off \
                    --set clusters.default.response_timeout_ms=5000 --set listeners.default.proxy_protocol=v2";
        let config = run(line).unwrap();
        assert_eq!(config.workers, 4);
        assert_eq!(config.admin, Some(Address::Ip("127.0.0.1:9901".parse().unwrap())));
        assert_eq!(config.clusters["default"].response_timeout_ms, 5000);
        assert_eq!(config.listeners[0].proxy_protocol.word(), "v2");
        assert_eq!(run("run --listen 1 --to 2 --admin off").unwrap().admin, None);
    }

    #[test]
    fn mistakes_name_the_flag_without_a_line() {
        let error = run("run --listen 1 --to host --admin x --set via=3").unwrap_err().to_string();
        assert_eq!(
            error,
            "command line: clusters.default.endpoints[0]: \"host\" has no port; write host:port\n\
             --set: via: 3 is a number; write true or false\n\
             --admin: admin: \"x\" has no port; write host:port"
        );
    }

    #[test]
    fn usage_errors_come_from_clap() {
        for (line, kind) in [
            ("run --listen 1", ErrorKind::MissingRequiredArgument),
            ("run --to 1", ErrorKind::MissingRequiredArgument),
            ("run --config a --listen 1 --to 2", ErrorKind::ArgumentConflict),
            ("run --config a --to 2", ErrorKind::ArgumentConflict),
            ("run --config a --workers 0", ErrorKind::ValueValidation),
            ("run --config a --workers 257", ErrorKind::ValueValidation),
            ("run --config a --set nothing", ErrorKind::ValueValidation),
            ("check a --config b", ErrorKind::ArgumentConflict),
            ("run a --listen 1 --to 2", ErrorKind::ArgumentConflict),
            ("nonsense", ErrorKind::InvalidSubcommand),
        ] {
            let error = parse(line).unwrap_err();
            assert_eq!((error.kind(), error.exit_code()), (kind, 2), "{line}");
        }
    }
}
