//! The table of scenarios: origin, request and load. Starts nothing.

use std::net::SocketAddr;

use clap::builder::PossibleValue;

use super::tls::Tls;

/// The origin server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Static files.
    Nginx,
    /// One process, four threads.
    Puma,
    /// The same, kept on the last core.
    PinnedPuma,
    /// net/http.
    Go,
    /// net/http, with prepared pages.
    GoPages,
    /// Node's http, with prepared pages.
    NodePages,
    /// uvicorn with Starlette.
    Starlette,
    /// uvicorn with BlackSheep.
    Blacksheep,
    /// A database server.
    Postgres,
}

/// The load generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Generator {
    /// wrk with this many threads.
    Wrk {
        /// `-t`.
        threads: usize,
    },
    /// oha, which uses as many threads as there are cores.
    Oha,
    /// h2load with one thread, for HTTP/2.
    H2load {
        /// Concurrent streams per connection.
        streams: usize,
    },
}

/// The load on the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Requests one after the other on each of some connections.
    Http {
        /// The program.
        generator: Generator,
        /// Number of connections.
        connections: usize,
        /// If false, each request uses a new connection.
        keep_alive: bool,
    },
    /// Requests at fixed times, even if responses are outstanding. Latencies count from the time at which each was due.
    Open {
        /// Number of connections for them.
        connections: usize,
        /// Their rate, in percent of what nginx achieves with the same neighbours.
        percent: u32,
        /// Whether each core also runs a busy loop.
        neighbours: bool,
    },
    /// Connections that have sent one request and then wait.
    Idle {
        /// Number of connections.
        connections: usize,
    },
    /// pgbench, selects only.
    Postgres {
        /// Clients, each with a connection.
        clients: usize,
    },
}

/// One measurement, repeated for each proxy and round.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// Unique; used in file names.
    pub(super) name: String,
    /// The origin server.
    pub(super) origin: Origin,
    /// The path to request.
    pub(super) path: String,
    /// The load.
    pub(super) work: Work,
    /// Limit of requests in flight in the proxy.
    pub(super) limit: Option<usize>,
    /// Which side uses TLS.
    pub(super) tls: Tls,
    /// Duration that replaces `--seconds`, for one round only.
    pub(super) soak_seconds: Option<u64>,
}

/// Name, description, and its cases for a soak of the given minutes.
type Scenario = (&'static str, &'static str, fn(u64) -> Vec<Case>);

const SCENARIOS: &[Scenario] = &[
    ("1kb", "a file of 1 KiB from nginx, wrk -t1 -c50", |_| vec![file("1kb")]),
    ("64kb", "a file of 64 KiB from nginx, wrk -t1 -c50", |_| vec![file("64kb")]),
    ("1mb", "a file of 1 MiB from nginx, wrk -t1 -c50", |_| vec![file("1mb")]),
    ("1kb-4", "a file of 1 KiB from nginx, wrk -t1 -c4: the latency that a proxy adds", |_| {
        vec![file_at("1kb", 4)]
    }),
    ("1kb-many", "a file of 1 KiB from nginx, wrk -t1 with 100, 1 000 and 4 000 connections", |_| {
        [100, 1_000, 4_000].map(|connections| file_at("1kb", connections)).into()
    }),
    ("64kb-16", "a file of 64 KiB from nginx, wrk -t1 -c16", |_| vec![file_at("64kb", 16)]),
    ("1mb-16", "a file of 1 MiB from nginx, wrk -t1 -c16", |_| vec![file_at("1mb", 16)]),
    ("puma-10kb", "pages of 10 KiB from Puma of 4 threads, wrk -t1 with 4 and 16 connections", |_| {
        pages("puma-10kb", Origin::Puma, "/bytes?n=10240", &[4, 16])
    }),
    ("puma-100kb", "pages of 100 KiB from Puma of 4 threads, wrk -t1 with 4 and 16 connections", |_| {
        pages("puma-100kb", Origin::Puma, "/bytes?n=102400", &[4, 16])
    }),
    ("go-10kb", "pages of 10 KiB from Go's net/http, wrk -t1 -c16", |_| {
        pages("go-10kb", Origin::GoPages, "/10kb", &[16])
    }),
    ("go-100kb", "pages of 100 KiB from Go's net/http, wrk -t1 -c16", |_| {
        pages("go-100kb", Origin::GoPages, "/100kb", &[16])
    }),
    ("node-10kb", "pages of 10 KiB from Node's http, wrk -t1 -c16", |_| {
        pages("node-10kb", Origin::NodePages, "/10kb", &[16])
    }),
    ("node-100kb", "pages of 100 KiB from Node's http, wrk -t1 -c16", |_| {
        pages("node-100kb", Origin::NodePages, "/100kb", &[16])
    }),
    ("puma", "Puma, oha with 200 connections, delay 0 and 20 ms", |_| delays(Origin::Puma, "puma")),
    ("go", "Go's net/http, oha with 200 connections, delay 0 and 20 ms", |_| delays(Origin::Go, "go")),
    ("uvicorn", "Starlette and BlackSheep, oha with 200 connections, delay 0 and 20 ms", |_| {
        let mut cases = delays(Origin::Starlette, "uvicorn-starlette");
        cases.extend(delays(Origin::Blacksheep, "uvicorn-blacksheep"));
        cases
    }),
    ("echo", "a small response of Go's net/http, wrk -t4 -c500", |_| {
        vec![case("echo", Origin::Go, "/", http(Generator::Wrk { threads: 4 }, 500))]
    }),
    (
        "overload",
        "Puma of 4 threads, wrk -t1 with 4, 32 and 200 connections; proxies allow 4 in flight",
        overload,
    ),
    (
        "overload-pinned",
        "Puma of 4 threads on one core, wrk -t1 with 32 connections; proxies allow 4 in flight",
        |_| vec![overloaded("overload-pinned-32", Origin::PinnedPuma, 32)],
    ),
    (
        "open",
        "1 KiB from nginx at 30, 60 and 80 % of nginx's rate, open loop, with and without busy loops on each core; oha",
        |_| open_loops(),
    ),
    ("new-connections", "1 KiB from nginx, a connection for each request, wrk -t1 -c50", |_| {
        let generator = Generator::Wrk { threads: 1 };
        let work = Work::Http { generator, connections: 50, keep_alive: false };
        vec![case("new-connections", Origin::Nginx, "/1kb.bin", work)]
    }),
    ("https-1kb", "1 KiB from nginx to clients over TLS, wrk -t1 -c50", |_| vec![secure_file("1kb")]),
    ("https-64kb", "64 KiB from nginx to clients over TLS, wrk -t1 -c50", |_| vec![secure_file("64kb")]),
    ("https-1mb", "1 MiB from nginx to clients over TLS, wrk -t1 -c50", |_| vec![secure_file("1mb")]),
    ("https-handshakes", "1 KiB over TLS, a connection and a full handshake for each, wrk -t1 -c50", |_| {
        let work =
            Work::Http { generator: Generator::Wrk { threads: 1 }, connections: 50, keep_alive: false };
        vec![secure("https-handshakes", Tls::ClientsAnew, work)]
    }),
    ("https-upstream", "1 KiB from nginx over TLS, wrk -t1 -c50", |_| {
        vec![secure("https-upstream", Tls::Origin, http(Generator::Wrk { threads: 1 }, 50))]
    }),
    ("h2-1kb", "1 KiB over HTTP/2 and TLS, h2load with 100 streams on each of 10 connections", |_| {
        vec![secure("h2-1kb", Tls::Clients, http(Generator::H2load { streams: 100 }, 10))]
    }),
    ("https-idle", "memory added by 2 000 idle TLS connections", |_| {
        vec![secure("https-idle", Tls::Clients, Work::Idle { connections: 2_000 })]
    }),
    ("idle-10k", "memory added by 10 000 idle keep-alive connections", |_| {
        vec![case("idle-10k", Origin::Nginx, "/1kb.bin", Work::Idle { connections: 10_000 })]
    }),
    ("postgres", "pgbench -S with 10 clients through a tcp listener", |_| {
        vec![case("postgres", Origin::Postgres, "", Work::Postgres { clients: 10 })]
    }),
];

/// Every scenario as a command line value.
pub(super) fn values() -> Vec<PossibleValue> {
    SCENARIOS.iter().map(|(name, about, _)| PossibleValue::new(*name).help(*about)).collect()
}

/// The cases of the named scenarios, or of all.
pub(super) fn cases(names: &[String], soak_minutes: u64) -> Vec<Case> {
    let wanted = |name: &str| names.is_empty() || names.iter().any(|wanted| wanted == name);
    let found = SCENARIOS.iter().filter(|(name, ..)| wanted(name));
    found.flat_map(|(_, _, cases)| cases(soak_minutes)).collect()
}

impl Case {
    /// The URL of the request at this address.
    pub(super) fn url(&self, address: SocketAddr) -> String {
        let scheme = if self.tls.is_to_clients() { "https" } else { "http" };
        format!("{scheme}://{address}{}", self.path)
    }

    /// A description for the report.
    pub(super) fn about(&self) -> String {
        let work = match self.work {
            Work::Http { generator, connections, keep_alive } => {
                let program = match generator {
                    Generator::Wrk { threads } => format!("wrk -t{threads}"),
                    Generator::Oha => "oha".to_owned(),
                    Generator::H2load { streams } => format!("h2load, {streams} concurrent streams"),
                };
                let kept = if keep_alive { "" } else { ", each for one request" };
                format!("{program}, {connections} connections{kept}")
            }
            Work::Open { connections, percent, neighbours } => {
                let beside = if neighbours { ", with a busy loop on each core" } else { "" };
                format!("oha at {percent} % of nginx's rate, {connections} connections{beside}")
            }
            Work::Idle { connections } => format!("{connections} waiting connections"),
            Work::Postgres { clients } => format!("pgbench -S, {clients} clients"),
        };
        let tls = match self.tls {
            Tls::None => "",
            Tls::Clients => ", clients use TLS",
            Tls::ClientsAnew => ", clients use TLS and resume no session",
            Tls::Origin => ", the origin uses TLS",
        };
        let limit = self.limit.map_or(String::new(), |limit| format!(", at most {limit} in flight"));
        format!(
            "{:?} origin, {}{}{work}{limit}{tls}",
            self.origin,
            self.path,
            if self.path.is_empty() { "" } else { ", " }
        )
    }
}

fn case(name: &str, origin: Origin, path: &str, work: Work) -> Case {
    Case {
        name: name.to_owned(),
        origin,
        path: path.to_owned(),
        work,
        limit: None,
        tls: Tls::None,
        soak_seconds: None,
    }
}

fn http(generator: Generator, connections: usize) -> Work {
    Work::Http { generator, connections, keep_alive: true }
}

/// A file of 1 KiB with TLS on one side.
fn secure(name: &str, tls: Tls, work: Work) -> Case {
    Case { tls, ..case(name, Origin::Nginx, "/1kb.bin", work) }
}

fn file(size: &str) -> Case {
    case(size, Origin::Nginx, &format!("/{size}.bin"), http(Generator::Wrk { threads: 1 }, 50))
}

/// The same to clients over TLS.
fn secure_file(size: &str) -> Case {
    Case { name: format!("https-{size}"), tls: Tls::Clients, ..file(size) }
}

fn file_at(size: &str, connections: usize) -> Case {
    let work = http(Generator::Wrk { threads: 1 }, connections);
    Case { name: format!("{size}-{connections}"), work, ..file(size) }
}

/// A page, requested over each of these numbers of connections.
fn pages(name: &str, origin: Origin, path: &str, connections: &[usize]) -> Vec<Case> {
    let at = |count: &usize| {
        case(&format!("{name}-{count}"), origin, path, http(Generator::Wrk { threads: 1 }, *count))
    };
    connections.iter().map(at).collect()
}

fn open_loops() -> Vec<Case> {
    let mut cases = Vec::new();
    for (suffix, neighbours) in [("", false), ("-busy", true)] {
        for percent in [30, 60, 80] {
            let work = Work::Open { connections: 100, percent, neighbours };
            cases.push(case(&format!("open-{percent}{suffix}"), Origin::Nginx, "/1kb.bin", work));
        }
    }
    cases
}

fn delays(origin: Origin, name: &str) -> Vec<Case> {
    [("0ms", "/"), ("20ms", "/delay?ms=20")]
        .map(|(delay, path)| case(&format!("{name}-{delay}"), origin, path, http(Generator::Oha, 200)))
        .into()
}

fn overloaded(name: &str, origin: Origin, connections: usize) -> Case {
    // One thread of load: two of them and the proxy would compete with Puma on two cores.
    let generator = Generator::Wrk { threads: 1 };
    Case { limit: Some(4), ..case(name, origin, "/", http(generator, connections)) }
}

fn overload(soak_minutes: u64) -> Vec<Case> {
    let at = |name: &str, connections, soak_seconds| Case {
        soak_seconds,
        ..overloaded(name, Origin::Puma, connections)
    };
    let slow = Case { path: "/delay?ms=20".to_owned(), ..at("overload-200-20ms", 200, None) };
    let mut cases = vec![at("overload-4", 4, None), at("overload-32", 32, None), slow];
    if soak_minutes > 0 {
        cases.push(at("overload-soak", 32, Some(soak_minutes * 60)));
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn case_names_are_unique() {
        let cases = cases(&[], 5);
        let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names.len(), cases.len());
    }

    #[test]
    fn only_named_scenarios_are_measured() {
        let found = cases(&["overload".to_owned()], 0);
        let names: Vec<&str> = found.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names, ["overload-4", "overload-32", "overload-200-20ms"]);
    }
}
