//! `sluice bans`: the addresses that a running sluice turns away.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Deserialize;
use serde_json::{Value, json};
use sluice_control::commands::{self, BANS, ClientError};
use sluice_core::bans::ListedBan;
use sluice_core::service::duration::GoDuration;

use super::ControlArgs;

/// Longest address, with two spaces behind it.
const CLIENT_WIDTH: usize = 41;

/// A command on bans, and the running sluice.
#[derive(Clone, Debug, Args)]
pub(crate) struct BansArgs {
    /// Its control socket [default: the default path of sluice]
    #[arg(long, value_name = "PATH", env = "SLUICE_CONTROL", global = true)]
    control: Option<PathBuf>,
    #[command(subcommand)]
    command: BansCommand,
}

/// A command on bans.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum BansCommand {
    /// List the banned addresses
    List(ListBansArgs),
    /// Ban an address: its new connections are closed before anything is read
    Add(AddBanArgs),
    /// End the ban of an address
    Remove(RemoveBanArgs),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ListBansArgs {
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct AddBanArgs {
    /// The address; a v6 address stands for its /64
    #[arg(value_name = "ADDR")]
    client: IpAddr,
    /// How long, at most 720h
    #[arg(long = "for", value_name = "DURATION", default_value = "10m")]
    time: GoDuration,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RemoveBanArgs {
    /// The address
    #[arg(value_name = "ADDR")]
    client: IpAddr,
}

#[derive(Deserialize)]
struct Bans {
    bans: Vec<ListedBan>,
}

impl BansArgs {
    /// Carries out the command; returns its output.
    pub(crate) fn run(&self) -> Result<String, ClientError> {
        match &self.command {
            BansCommand::List(args) => {
                let answer = self.call("GET", BANS, String::new())?;
                if args.json {
                    return Ok(format!("{answer:#}\n"));
                }
                let Bans { bans } =
                    serde_json::from_value(answer).map_err(|error| ClientError::Broken(error.to_string()))?;
                Ok(table(&bans))
            }
            BansCommand::Add(args) => {
                let for_ms = u64::try_from(args.time.to_std().as_millis()).unwrap_or(u64::MAX);
                let body = json!({ "client": args.client, "for_ms": for_ms });
                self.call("POST", BANS, body.to_string()).map(|_| String::new())
            }
            BansCommand::Remove(args) => {
                self.call("DELETE", &format!("{BANS}/{}", args.client), String::new()).map(|_| String::new())
            }
        }
    }

    fn call(&self, method: &str, path: &str, body: String) -> Result<Value, ClientError> {
        let socket = ControlArgs { control: self.control.clone() }.path();
        commands::request(&socket, method, path, body)
    }
}

fn table(bans: &[ListedBan]) -> String {
    let row = |client: &str, left: &str, by: &str| format!("{client:<CLIENT_WIDTH$}{left:<10}{by}\n");
    let rows = bans.iter().map(|ban| {
        let left = GoDuration::from_secs(i64::try_from(ban.left_ms.div_ceil(1000)).unwrap_or(i64::MAX));
        let client = if ban.client.is_ipv6() { format!("{}/64", ban.client) } else { ban.client.to_string() };
        row(&client, &left.to_string(), &ban.by)
    });
    std::iter::once(row("CLIENT", "LEFT", "BY")).chain(rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_what_is_left() {
        let ban = |client: [u16; 8], left_ms| ListedBan {
            client: IpAddr::from(client).to_canonical(),
            left_ms,
            by: "login".to_owned(),
        };
        let bans = [
            ban([0, 0, 0, 0, 0, 0xffff, 0xc000, 0x0201], 59_001),
            ban([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 90),
        ];
        let lines: Vec<String> =
            table(&bans).lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines, ["CLIENT LEFT BY", "192.0.2.1 1m0s login", "2001:db8::/64 1s login"]);
    }
}
