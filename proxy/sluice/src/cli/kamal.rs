//! `kamal-proxy` compatibility: its command line, environment and files, served by sluice.

use std::ffi::OsStr;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand};
use sluice_config::{
    Acme, AcmeDirectory, Address, Config, ControlSocket, Http2, Http3, Limits, Listener, Protocol,
    ProxyProtocol, ServicesState, Tls,
};

use super::service::{ServiceCommand, boolean, integer};

/// The name under which sluice acts as kamal-proxy.
pub(crate) const PROGRAM: &str = "kamal-proxy";

/// HTTP proxy for zero downtime deployments: sluice as a replacement for kamal-proxy
#[derive(Debug, Parser)]
#[command(name = PROGRAM, about, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct KamalProxy {
    #[command(subcommand)]
    pub(crate) command: KamalCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KamalCommand {
    /// Run the server
    Run(KamalRunArgs),
    #[command(flatten)]
    Service(ServiceCommand),
}

/// Arguments of `kamal-proxy run`; environment variables are used for missing flags.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub(crate) struct KamalRunArgs {
    /// Log at debug level [env: DEBUG]
    #[arg(long, value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) debug: Option<bool>,
    /// Port for HTTP [env: HTTP_PORT] [default: 80]
    #[arg(long, value_name = "PORT", value_parser = integer::<u16>, allow_hyphen_values = true)]
    http_port: Option<u16>,
    /// Port for HTTPS, for services deployed with --tls [env: HTTPS_PORT] [default: 443]
    #[arg(long, value_name = "PORT", value_parser = integer::<u16>, allow_hyphen_values = true)]
    https_port: Option<u16>,
    /// Port for metrics on 127.0.0.1; 0 is off [env: METRICS_PORT] [default: 0]
    #[arg(long, value_name = "PORT", value_parser = integer::<u16>, allow_hyphen_values = true)]
    metrics_port: Option<u16>,
    /// HTTP/3 on the UDP port for HTTPS
    #[arg(long, value_name = "BOOL", value_parser = boolean, default_value = "false")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    http3: bool,
    #[arg(hide = true)]
    surplus: Vec<String>,
}

impl KamalRunArgs {
    /// Whether to log at debug level.
    pub(crate) fn debug(&self, environment: &Environment<'_>) -> bool {
        let from_environment = || environment.find("DEBUG").and_then(|text| boolean(&text).ok());
        self.debug.or_else(from_environment).unwrap_or(false)
    }

    /// The configuration for these arguments; services are added through the control socket.
    pub(crate) fn config(&self, environment: &Environment<'_>) -> Config {
        let port = |flag: Option<u16>, name: &str, default| {
            let from_environment = || environment.find(name).and_then(|text| integer::<u16>(&text).ok());
            flag.or_else(from_environment).unwrap_or(default)
        };
        let http = port(self.http_port, "HTTP_PORT", 80);
        let metrics = port(self.metrics_port, "METRICS_PORT", 0);
        let https = port(self.https_port, "HTTPS_PORT", 443);
        let (state, kamal) = environment.state();
        let listener = |name: &str, port: u16, tls: Option<Tls>| Listener {
            name: name.to_owned(),
            // Like Go's `:80`, this binds IPv4 too.
            address: Address::Ip(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))),
            protocol: Protocol::Http,
            proxy_protocol: ProxyProtocol::Off,
            http2: Http2::Auto,
            http3: tls.as_ref().and_then(|_| self.http3.then(Http3::default)),
            cluster: None,
            passthrough: None,
            limits: Limits::default(),
            tls,
            redirect_to_https: None,
            hsts: None,
        };
        Config {
            listeners: vec![
                listener("http", http, None),
                listener("https", https, Some(Tls { services: true, ..Tls::default() })),
            ],
            acme: Some(environment.acme()),
            control: ControlSocket::At(environment.socket()),
            services: ServicesState { state_file: Some(state), kamal_state_file: Some(kamal) },
            // As kamal-proxy: what collects metrics is another container as a rule.
            admin: (metrics != 0).then(|| Address::Ip(SocketAddr::from((Ipv6Addr::UNSPECIFIED, metrics)))),
            admin_metrics_only: true,
            ..Config::default()
        }
    }
}

/// The environment variables of kamal-proxy.
pub(crate) struct Environment<'a>(pub(crate) &'a dyn Fn(&str) -> Option<String>);

impl Environment<'_> {
    /// A variable, with or without kamal-proxy's prefix.
    fn find(&self, name: &str) -> Option<String> {
        (self.0)(&format!("KAMAL_PROXY_{name}")).or_else(|| (self.0)(name))
    }

    /// A variable with a value that is not empty.
    fn set(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    fn temporary(&self) -> PathBuf {
        self.set("TMPDIR").unwrap_or_else(|| "/tmp".to_owned()).into()
    }

    /// The control socket.
    pub(crate) fn socket(&self) -> PathBuf {
        if let Some(path) = self.set("KAMAL_PROXY_SOCKET") {
            return path.into();
        }
        let folder = self.set("XDG_RUNTIME_DIR").map_or_else(|| self.temporary(), PathBuf::from);
        folder.join("kamal-proxy.sock")
    }

    /// The ACME account. kamal-proxy agrees to Let's Encrypt's terms too; another authority is an extension of sluice.
    fn acme(&self) -> Acme {
        let directory = self.find("ACME_DIRECTORY").filter(|url| !url.is_empty());
        let ca_file = self.find("ACME_CA_FILE").filter(|file| !file.is_empty());
        Acme {
            directory: directory.map_or(AcmeDirectory::Production, |url| AcmeDirectory::of_url(&url)),
            ca_file: ca_file.map(PathBuf::from),
            ..Acme::default()
        }
    }

    /// The state file, and kamal-proxy's own state file.
    pub(crate) fn state(&self) -> (PathBuf, PathBuf) {
        let home = self.set("HOME").map_or_else(|| self.temporary(), PathBuf::from);
        let folder = home.join(".config").join("kamal-proxy");
        (folder.join("sluice-services.json"), folder.join("kamal-proxy.state"))
    }
}

/// Whether the process was called as kamal-proxy, for example through a symbolic link.
pub(crate) fn is_called(name: Option<&OsStr>) -> bool {
    name.and_then(|name| Path::new(name).file_name()).is_some_and(|name| name == PROGRAM)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn run(line: &str) -> KamalRunArgs {
        let words = std::iter::once(PROGRAM).chain(line.split_whitespace());
        match KamalProxy::try_parse_from(words).unwrap().command {
            KamalCommand::Run(args) => args,
            other => panic!("{other:?} is not run"),
        }
    }

    #[test]
    fn ports_come_from_flags_then_the_environment() {
        let env = |name: &str| match name {
            "HTTP_PORT" => Some("8081".to_owned()),
            "KAMAL_PROXY_HTTP_PORT" => Some("8080".to_owned()),
            "METRICS_PORT" => Some("junk".to_owned()),
            "DEBUG" => Some("true".to_owned()),
            _ => None,
        };
        let (env, none) = (Environment(&env), Environment(&|_| None));
        let address = |config: Config| config.listeners[0].address.to_string();
        assert_eq!(address(run("run").config(&none)), "[::]:80");
        assert_eq!(address(run("run").config(&env)), "[::]:8080");
        assert_eq!(address(run("run --http-port 8000").config(&env)), "[::]:8000");
        assert_eq!(run("run").config(&env).admin, None);
        assert_eq!(run("run --metrics-port=9000").config(&env).admin.unwrap().to_string(), "[::]:9000");
        assert!(run("run").debug(&env) && !run("run --debug=false").debug(&env) && !run("run").debug(&none));
        let http3 = |args: &str| {
            run(args).config(&none).listeners.iter().map(|one| one.http3.is_some()).collect::<Vec<_>>()
        };
        assert_eq!(http3("run"), [false, false]);
        assert_eq!(http3("run --http3 --https-port 443"), [false, true]);
        let secure = |args: &str, env| run(args).config(env).listeners[1].address.to_string();
        assert_eq!(
            (secure("run", &none), secure("run --https-port 8443", &none)),
            ("[::]:443".into(), "[::]:8443".into())
        );
        assert_eq!(run("run").config(&none).acme.unwrap().directory, AcmeDirectory::Production);
    }

    #[test]
    fn files_are_where_kamal_proxy_has_them() {
        let none = Environment(&|_| None);
        assert_eq!(none.socket(), Path::new("/tmp/kamal-proxy.sock"));
        let env = |name: &str| match name {
            "XDG_RUNTIME_DIR" => Some("/run/user/1".to_owned()),
            "HOME" => Some("/srv/kamal".to_owned()),
            _ => None,
        };
        let env = Environment(&env);
        assert_eq!(env.socket(), Path::new("/run/user/1/kamal-proxy.sock"));
        let named = |name: &str| (name == "KAMAL_PROXY_SOCKET").then(|| "/run/k.sock".to_owned());
        assert_eq!(Environment(&named).socket(), Path::new("/run/k.sock"));
        assert_eq!(env.state().1, Path::new("/srv/kamal/.config/kamal-proxy/kamal-proxy.state"));
    }

    #[test]
    fn the_program_name_selects_kamal_proxy() {
        for (name, called) in [("kamal-proxy", true), ("/usr/bin/kamal-proxy", true), ("sluice", false)] {
            assert_eq!(is_called(Some(OsStr::new(name))), called);
        }
        assert!(!is_called(None));
    }
}
