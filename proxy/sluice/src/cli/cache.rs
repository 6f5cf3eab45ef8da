//! `sluice cache`: what the caches of a running sluice hold, and how to take something out.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use serde::Deserialize;
use serde_json::{Value, json};
use sluice_control::commands::{self, CACHES, ClientError};

use super::ControlArgs;

/// A command on caches, and the running sluice.
#[derive(Clone, Debug, Args)]
pub(crate) struct CacheArgs {
    /// Its control socket [default: the default path of sluice]
    #[arg(long, value_name = "PATH", env = "SLUICE_CONTROL", global = true)]
    control: Option<PathBuf>,
    #[command(subcommand)]
    command: CacheCommand,
}

/// A command on caches.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum CacheCommand {
    /// List the caches that routes use
    List(ListCachesArgs),
    /// Take stored responses out, so that the next requests get new ones
    Purge(PurgeArgs),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ListCachesArgs {
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("what").required(true).args(["url", "prefix", "tag", "all"])))]
pub(crate) struct PurgeArgs {
    /// The URL of a response; only its path and query stand for every host
    #[arg(value_name = "URL")]
    url: Option<String>,
    /// All responses whose URL begins like this
    #[arg(long, value_name = "URL")]
    prefix: Option<String>,
    /// All responses to which the application has given this word, in Cache-Tag or Surrogate-Key
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
    /// All responses
    #[arg(long)]
    all: bool,
    /// Only in the cache of this name
    #[arg(long, value_name = "NAME")]
    cache: Option<String>,
}

#[derive(Deserialize)]
struct Caches {
    caches: Vec<ListedCache>,
}

#[derive(Deserialize)]
struct ListedCache {
    name: String,
    bytes: u64,
    bytes_max: u64,
    resources: u64,
    disk: Option<ListedDisk>,
}

#[derive(Deserialize)]
struct ListedDisk {
    /// Not while another process has the folder.
    is_open: bool,
    bytes: u64,
    bytes_max: Option<u64>,
}

impl CacheArgs {
    /// Carries out the command; returns its output.
    pub(crate) fn run(&self) -> Result<String, ClientError> {
        match &self.command {
            CacheCommand::List(args) => {
                let answer = self.call("GET", CACHES, String::new())?;
                if args.json {
                    return Ok(format!("{answer:#}\n"));
                }
                let Caches { caches } =
                    serde_json::from_value(answer).map_err(|error| ClientError::Broken(error.to_string()))?;
                Ok(table(&caches))
            }
            CacheCommand::Purge(args) => {
                let body = json!({
                    "cache": args.cache,
                    "url": args.url,
                    "prefix": args.prefix,
                    "tag": args.tag,
                    "all": args.all.then_some(true),
                });
                let answer = self.call("POST", &format!("{CACHES}/purge"), body.to_string())?;
                Ok(format!("purged: {}\n", answer["purged"]))
            }
        }
    }

    fn call(&self, method: &str, path: &str, body: String) -> Result<Value, ClientError> {
        let socket = ControlArgs { control: self.control.clone() }.path();
        commands::request(&socket, method, path, body)
    }
}

fn table(caches: &[ListedCache]) -> String {
    let row = |name: &str, [memory, most, resources, disk, disk_most]: [&str; 5]| {
        format!("{name:<20}  {memory:>12}  {most:>12}  {resources:>10}  {disk:>12}  {disk_most:>12}\n")
    };
    let rows = caches.iter().map(|cache| {
        let disk = match &cache.disk {
            None => "-".to_owned(),
            Some(disk) if !disk.is_open => "waiting".to_owned(),
            Some(disk) => megabytes(disk.bytes),
        };
        let disk_most = cache.disk.as_ref().and_then(|disk| disk.bytes_max);
        let disk_most = disk_most.map_or_else(|| "-".to_owned(), megabytes);
        let (memory, most) = (megabytes(cache.bytes), megabytes(cache.bytes_max));
        row(&cache.name, [&memory, &most, &cache.resources.to_string(), &disk, &disk_most])
    });
    let names = row("CACHE", ["MEMORY", "MAX", "URLS", "DISK", "MAX"]);
    std::iter::once(names).chain(rows).collect()
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_what_is_held() {
        let disk = ListedDisk { is_open: true, bytes: 1 << 20, bytes_max: Some(1 << 30) };
        let cache = |name: &str, disk| ListedCache {
            name: name.to_owned(),
            bytes: 1 << 19,
            bytes_max: 64 << 20,
            resources: 12,
            disk,
        };
        let waiting = ListedDisk { is_open: false, bytes: 0, bytes_max: Some(1 << 30) };
        let caches = [cache("pages", None), cache("files", Some(disk)), cache("new", Some(waiting))];
        let lines: Vec<String> = table(&caches)
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            lines,
            [
                "CACHE MEMORY MAX URLS DISK MAX",
                "pages 0.5 MiB 64.0 MiB 12 - -",
                "files 0.5 MiB 64.0 MiB 12 1.0 MiB 1024.0 MiB",
                "new 0.5 MiB 64.0 MiB 12 waiting 1024.0 MiB",
            ]
        );
    }
}
