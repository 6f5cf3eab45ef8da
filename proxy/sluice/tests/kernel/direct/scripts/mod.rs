//! One exchange at a time, each with a sluice that copies and with several that use direct return: the client receives
//! the same, the connection continues to serve, and the access log has the path.

mod play;
mod table;

use std::collections::HashMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use serde_json::{Value, json};

use super::{LANDED, exchanges, holding, returning, withheld};
use crate::proxy_support::{Origin, Proxy, Setup, Wire, assert_same, pattern, poll};
use play::{Plays, connect, play};
use table::{GET, Goes, Script, table, whole};

/// Heads that were held until sluice took them.
const LATE: &str = "sluice_direct_return_missed_total{reason=\"late\"}";

/// One sluice in front of one origin.
struct Mode {
    name: &'static str,
    direct: bool,
    proxy: Proxy,
    plays: Plays,
    origin: Origin,
}

impl Mode {
    fn new(name: &'static str, adapt: impl FnOnce(Setup) -> Setup) -> Self {
        let plays = Plays::default();
        let origin = plays.origin();
        let setup = Setup::to_origin(&origin).with("trusted_proxies", json!(["127.0.0.1"]));
        let proxy = adapt(setup).start().unwrap();
        Self { name, direct: name.starts_with("direct"), proxy, plays, origin }
    }

    fn all() -> [Self; 5] {
        [
            Self::new("copying", |setup| withheld(setup.with("kernel.bypass", "off"))),
            Self::new("joined", |setup| withheld(setup.with("kernel.bypass", "required"))),
            Self::new("direct", |setup| returning(setup, 0)),
            Self::new("direct, heads kept", |setup| holding(setup, 0)),
            Self::new("direct, one at a time", |setup| {
                returning(setup, 0).with("clusters.default.max_in_flight", 1).with("workers", 2)
            }),
        ]
    }

    /// A connection with one exchange behind it: only then may a response use direct return.
    fn warm(&self, receive_buffer: Option<usize>) -> Wire {
        let mut wire = connect(self.proxy.address(), receive_buffer);
        assert_eq!(wire.ask("GET /warm HTTP/1.1\r\nHost: a\r\n\r\n").text(), "/warm");
        wire
    }

    /// What the client received; otherwise the error.
    fn play(&self, script: &Script, name: &str) -> Result<Vec<String>, String> {
        let shared = self.plays.set(name, &script.acts);
        let played = catch_unwind(AssertUnwindSafe(|| {
            let mut wire = self.warm(script.receive_buffer);
            wire.send(script.request.replace("{}", name));
            let mut seen = play(wire, &script.does, &shared);
            // Whatever the outcome, the next request is served.
            seen.push(self.proxy.get("/after").text().to_owned());
            seen
        }));
        played.map_err(|panic| panic.downcast_ref::<String>().cloned().unwrap_or_default())
    }

    /// Plays all of them, and waits for their lines in the access log.
    fn play_all(&self, table: &[Script]) -> Vec<Outcome> {
        let names = || (0..table.len()).map(|number| format!("s{number}"));
        let seen: Vec<_> = table.iter().zip(names()).map(|(script, name)| self.play(script, &name)).collect();
        let mut records = HashMap::new();
        poll("their lines in the access log", || {
            records = self.records();
            names().all(|name| records.contains_key(&name)).then_some(())
        });
        let records = names().map(|name| records.remove(&name).unwrap()).collect::<Vec<_>>();
        seen.into_iter().zip(records).map(|(seen, record)| Outcome { seen, record }).collect()
    }

    /// The access log so far, by the last words of the targets.
    fn records(&self) -> HashMap<String, Value> {
        let text = fs::read_to_string(self.proxy.folder.join("access.log")).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let name = |line: &Value| Some(line["target"].as_str()?.rsplit('/').next()?.to_owned());
        lines.filter_map(|line| Some((name(&line)?, line))).collect()
    }
}

struct Outcome {
    seen: Result<Vec<String>, String>,
    record: Value,
}

impl Outcome {
    /// A difference from the result with copying, if any.
    fn fault(&self, script: &Script, mode: &Mode, copied: &Self) -> Option<String> {
        let (seen, wanted) = match (&self.seen, &copied.seen) {
            (Ok(seen), Ok(wanted)) => (seen, wanted),
            (Err(text), _) => return Some(text.clone()),
            (_, Err(text)) => return Some(format!("copied: {text}")),
        };
        if seen != wanted {
            return Some(format!("{}\nbut copied: {}", short(seen), short(wanted)));
        }
        let path = self.record["path"].as_str().unwrap();
        let right = match script.goes {
            _ if !LANDED || !mode.direct => true,
            // If the body comes late, the head is not held for it.
            Goes::Directly if mode.name.contains("kept") => true,
            Goes::Directly => path == "direct",
            Goes::ThroughSluice => path != "direct",
            Goes::Either => true,
        };
        if !right {
            return Some(format!("should go {:?}, but path={path}", script.goes));
        }
        let logged = |of: &Self| ["status", "reason", "bytes_in"].map(|field| of.record[field].clone());
        let (now, then) = (logged(self), logged(copied));
        (script.same_outcome && now != then).then(|| format!("logged {now:?}, but copied {then:?}"))
    }
}

fn short(messages: &[String]) -> String {
    messages.iter().map(|text| text.chars().take(300).collect::<String>()).collect::<Vec<_>>().join("\n  ")
}

#[test]
#[ignore = "needs root and BPF"]
fn every_direct_return_script_passes() {
    let (modes, table) = (Mode::all(), table());
    let outcomes = thread::scope(|scope| {
        let players: Vec<_> = modes.iter().map(|mode| scope.spawn(|| mode.play_all(&table))).collect();
        players.into_iter().map(|player| player.join().unwrap()).collect::<Vec<_>>()
    });
    let mut faults = Vec::new();
    for (mode, outcome) in modes.iter().zip(&outcomes) {
        for ((script, got), copied) in table.iter().zip(outcome).zip(&outcomes[0]) {
            let fault = got.fault(script, mode, copied);
            faults.extend(fault.map(|text| format!("{}, {}: {text}", script.name, mode.name)));
        }
    }
    let went: Vec<_> = modes.iter().map(|mode| (mode.name, mode.direct, exchanges(&mode.proxy))).collect();
    let late = modes.iter().filter(|mode| mode.name.contains("kept")).map(|mode| mode.proxy.metric(LATE));
    let late: Vec<_> = late.collect();
    // The logs of the proxies would bury the errors.
    drop(modes);
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
    assert!(!LANDED || late.iter().all(|late| *late > 0.0), "no head was held: {late:?}");
    for (name, direct, went) in went {
        assert_eq!(went > 0.0, LANDED && direct, "{name}: {went} used direct return");
    }
}

/// Responses edited by the configuration, or of a route without direct return, are copied.
#[test]
#[ignore = "needs root and BPF"]
fn routes_that_edit_responses_or_disable_it_do_not_use_direct_return() {
    let edited = json!({"path_prefix": "/edited", "cluster": "default",
        "response_headers": {"set": {"X-Edited": "yes"}, "remove": ["x-secret"]}});
    let mut kept = json!({"path_prefix": "/kept", "cluster": "default"});
    if LANDED {
        kept["direct_return"] = "off".into();
    }
    let routes = json!([edited, kept, {"path_prefix": "/", "cluster": "default"}]);
    let mode = Mode::new("direct", |setup| returning(setup, 0).with("routes", routes));
    let acts = table::Script::answering("", Goes::Either, &[&whole(900, "X-Secret: 1\r\n")]).acts;
    mode.plays.set("x", &acts);
    let mut wire = mode.warm(None);
    for (prefix, edits, straight) in [("/edited", true, false), ("/kept", false, false), ("", false, true)] {
        for turn in 0..2 {
            let target = format!("{prefix}/{turn}/x");
            let answer = wire.ask(GET.replace("/{}", &target));
            assert_same(&answer.body, &pattern(900));
            assert_eq!(
                (answer.get("x-edited"), answer.get("x-secret").is_none()),
                (edits.then_some("yes"), edits)
            );
            let _ = wire.ask("GET /flush HTTP/1.1\r\nHost: a\r\n\r\n");
            let path = mode.proxy.record(&target)["path"].as_str().unwrap().to_owned();
            assert_eq!(path == "direct", LANDED && straight, "{target}: {path}");
        }
    }
}

/// Many exchanges on one connection, all of which use direct return except the first.
#[test]
#[ignore = "needs root and BPF"]
fn a_connection_is_reused_with_direct_return() {
    const EXCHANGES: usize = 300;
    let mode = Mode::new("direct", |setup| holding(setup, 0));
    let sizes = [1, 700, 5000, 40_000];
    for (at, size) in sizes.iter().enumerate() {
        let acts = Script::answering("", Goes::Either, &[&whole(*size, "")]).acts;
        mode.plays.set(&format!("k{at}"), &acts);
    }
    let mut wire = mode.warm(None);
    for turn in 0..EXCHANGES {
        let at = turn % sizes.len();
        let answer = wire.ask(GET.replace("{}", &format!("k{at}")));
        assert_same(&answer.body, &pattern(sizes[at]));
    }
    drop(wire);
    assert_eq!(mode.origin.connections(), 1);
    if LANDED {
        poll("all to be counted", || (exchanges(&mode.proxy) >= EXCHANGES as f64).then_some(()));
    }
}

/// Two clients take turns on the only connection allowed to the origin, then send requests at once.
#[test]
#[ignore = "needs root and BPF"]
fn two_clients_share_one_upstream_connection() {
    const TURNS: usize = 200;
    for workers in [1, 2] {
        let mode = Mode::new("direct", |setup| {
            returning(setup, 0).with("clusters.default.max_in_flight", 1).with("workers", workers)
        });
        let mut clients = [mode.warm(None), mode.warm(None)];
        for turn in 0..TURNS {
            let target = format!("/turn/{turn}");
            let answer = clients[turn % 2].ask(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
            assert_eq!(answer.text(), target);
        }
        thread::scope(|scope| {
            for (number, wire) in clients.iter_mut().enumerate() {
                scope.spawn(move || {
                    for turn in 0..TURNS {
                        let target = format!("/client/{number}/{turn}");
                        let answer = wire.ask(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
                        assert_eq!(answer.text(), target);
                    }
                });
            }
        });
        assert_eq!(mode.origin.connections(), 1, "{workers} workers");
        if LANDED {
            // Not all: a queued request may find the other's response not counted yet.
            let wanted = TURNS as f64;
            poll("most to be counted", || (exchanges(&mode.proxy) >= wanted).then_some(()));
        }
    }
}
