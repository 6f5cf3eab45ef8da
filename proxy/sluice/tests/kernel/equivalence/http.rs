//! The same responses, and the same requests at the origin, with bypass off, on, on at both sides, and with direct
//! return.

use std::cell::RefCell;
use std::thread;

use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use serde_json::json;

use super::origin::{Asked, chunks, origin};
use crate::direct;
use crate::proxy_support::{Message, Origin, Proxy, Setup, Wire, pattern};

/// Enough to combine each kind of request with each kind of response.
const CASES: u32 = 25;

/// One connection of a client.
#[derive(Clone, Debug)]
struct Client {
    requests: Vec<Vec<u8>>,
    /// All requests at once; otherwise each after the response to the previous one.
    pipelined: bool,
    /// Requests are written in pieces of at most this size.
    piece: usize,
    /// Number of responses to read, including interim ones.
    answers: usize,
    then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Leave,
    /// Reads to the end. The amount received before a reset is uncertain.
    ReadOn {
        reset: bool,
    },
    /// Takes this many more bytes, then closes or resets.
    Abort {
        after: usize,
        reset: bool,
    },
}

impl Client {
    fn asking(requests: impl Into<Vec<Vec<u8>>>) -> Self {
        let requests = requests.into();
        let answers = requests.len();
        Self { requests, pipelined: false, piece: usize::MAX, answers, then: Then::Leave }
    }

    fn answers(self, answers: usize) -> Self {
        Self { answers, ..self }
    }

    fn pipelined(self) -> Self {
        Self { pipelined: true, ..self }
    }

    fn then(self, then: Then) -> Self {
        Self { then, ..self }
    }

    /// Everything it receives.
    fn play(&self, mut wire: Wire) -> Vec<String> {
        let mut seen = Vec::new();
        if self.pipelined {
            let (mut sender, all) = (wire.twin(), self.requests.concat());
            thread::scope(|scope| {
                // The response may arrive, and the connection end, before everything is sent.
                scope.spawn(move || {
                    all.chunks(self.piece.min(all.len())).try_for_each(|piece| sender.try_send(piece))
                });
                seen.extend((0..self.answers).map(|_| shown(&wire.response())));
            });
        } else {
            for at in 0..self.answers.max(self.requests.len()) {
                if let Some(request) = self.requests.get(at) {
                    request.chunks(self.piece.min(request.len())).for_each(|piece| wire.send(piece));
                }
                if at < self.answers {
                    seen.push(shown(&wire.response()));
                }
            }
        }
        seen.extend(self.end(wire));
        seen
    }

    fn end(&self, mut wire: Wire) -> Option<String> {
        match self.then {
            Then::Leave => None,
            Then::ReadOn { reset: true } => {
                let (bytes, clean) = wire.rest();
                Some(format!("some bytes: {}, clean: {clean}", !bytes.is_empty()))
            }
            Then::ReadOn { reset: false } => {
                let (bytes, clean) = wire.rest();
                let text = String::from_utf8_lossy(&bytes).into_owned();
                Some(format!("{clean}: {}", without_dates(&text)))
            }
            Then::Abort { after, reset } => {
                wire.take(after);
                if reset {
                    wire.reset();
                }
                None
            }
        }
    }
}

/// A message without parts that vary over time, and without the optional statement that the connection is kept.
pub(crate) fn shown(message: &Message) -> String {
    let passing = ["date", "x-request-start"];
    let lasting = |(name, value): &&(String, String)| {
        let name = name.to_ascii_lowercase();
        let kept = name == "connection" && value.eq_ignore_ascii_case("keep-alive");
        !kept && !passing.contains(&name.as_str())
    };
    let fields: Vec<_> = message.fields.iter().filter(lasting).collect();
    let body = String::from_utf8_lossy(&message.body);
    format!("{} {fields:?} {} bytes {body} {:?}", message.line, message.body.len(), message.trailers)
}

fn without_dates(text: &str) -> String {
    text.lines().filter(|line| !line.to_ascii_lowercase().starts_with("date:")).collect::<Vec<_>>().join("\n")
}

/// One sluice in front of one origin.
struct Mode {
    name: &'static str,
    /// Responses use direct return, from the second one of a connection on.
    direct: bool,
    proxy: Proxy,
    asked: Asked,
    _origin: Origin,
}

impl Mode {
    fn all() -> Vec<Self> {
        let usual = 131_072;
        [
            ("off", "off", "off", usual, None),
            ("upstream", "required", "off", usual, None),
            ("both sides", "required", "on", usual, None),
            // The budget overflows all the time.
            ("both sides, with a small budget", "required", "on", 4096, None),
            ("direct", "required", "off", usual, Some(0)),
            // Responses beyond the budget overflow, and empty ones are not eligible.
            ("direct, with a small budget", "required", "off", 4096, Some(1)),
        ]
        .map(|(name, bypass, downstream, budget_bytes, bytes_min)| {
            let (origin, asked) = origin();
            let setup = Setup::to_origin(&origin)
                .with("trusted_proxies", json!(["127.0.0.1"]))
                .with("kernel.bypass", bypass)
                .with("kernel.bypass_downstream", downstream)
                .with("kernel.bypass_budget_bytes", budget_bytes);
            let setup = match bytes_min {
                Some(min) => direct::returning(setup, min),
                None => direct::withheld(setup),
            };
            let (direct, proxy) = (bytes_min.is_some(), setup.start().unwrap());
            Self { name, direct, proxy, asked, _origin: origin }
        })
        .into()
    }

    /// What client and origin received.
    fn play(&self, client: &Client) -> (Vec<String>, Vec<String>) {
        let mut wire = self.proxy.connect();
        if self.direct {
            assert_eq!(wire.ask(get("/length/1")).status(), 200);
            self.asked.lock().unwrap().clear();
        }
        let seen = client.play(wire);
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        (seen, asked.iter().map(shown).collect())
    }

    fn check_used(&self) {
        let joined = self.proxy.metric("sluice_path_exchanges_total{path=\"bypass\"}");
        assert_eq!(joined > 0.0, self.name != "off", "{}: {joined} joined", self.name);
        let pairs = self.proxy.metric("sluice_bypass_pairs_joined_total");
        assert!(pairs >= if self.name.starts_with("both") { 2.0 } else { 0.0 }, "{}: {pairs}", self.name);
        if direct::LANDED {
            let exchanges = direct::exchanges(&self.proxy);
            assert_eq!(exchanges > 0.0, self.direct, "{}: {exchanges} used direct return", self.name);
        }
    }
}

/// The first difference between the modes.
fn difference(modes: &[Mode], client: &Client) -> Option<String> {
    let [off, on @ ..] = modes else { return None };
    let wanted = off.play(client);
    on.iter().find_map(|mode| {
        let got = mode.play(client);
        let sides = [("client", &got.0, &wanted.0), ("origin", &got.1, &wanted.1)];
        sides.into_iter().find_map(|(side, got, wanted)| {
            (got != wanted)
                .then(|| format!("{}, {side}: {}\nbut off: {}", mode.name, short(got), short(wanted)))
        })
    })
}

fn short(messages: &[String]) -> String {
    messages.iter().map(|text| text.chars().take(300).collect::<String>()).collect::<Vec<_>>().join("\n  ")
}

fn get(target: &str) -> Vec<u8> {
    format!("GET {target} HTTP/1.1\r\nHost: a\r\nX-Request-Id: fixed\r\n\r\n").into_bytes()
}

fn post(target: &str, size: usize) -> Vec<u8> {
    let head =
        format!("POST {target} HTTP/1.1\r\nHost: a\r\nX-Request-Id: fixed\r\nContent-Length: {size}\r\n\r\n");
    [head.as_bytes(), &pattern(size)].concat()
}

fn post_chunked(target: &str, size: usize) -> Vec<u8> {
    let head = format!(
        "POST {target} HTTP/1.1\r\nHost: a\r\nX-Request-Id: fixed\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    [head.as_bytes(), &chunks(&pattern(size)), b"\r\n"].concat()
}

/// Named connections, each followed by another one that must find everything in order.
fn table() -> Vec<(String, Client)> {
    let read_on = Then::ReadOn { reset: false };
    let mut table: Vec<(String, Client)> = [
        (
            "kept alive",
            Client::asking([get("/length/1"), get("/chunked/9"), get("/empty"), post("/length/5", 5)]),
        ),
        (
            "pipelined",
            Client::asking([get("/length/70000"), post("/chunked/1", 3000), get("/length/0")]).pipelined(),
        ),
        ("hints", Client::asking([get("/hints/5")]).answers(2)),
        ("the last response", Client::asking([get("/last/5"), get("/length/6")])),
        ("closed after the response", Client::asking([get("/silent-close/5"), get("/length/6")])),
        ("until the close", Client::asking([get("/until-close/200000")])),
        ("no response", Client::asking([get("/nothing"), get("/length/1")])),
        ("cut", Client::asking([get("/cut/100000")]).answers(0).then(read_on)),
        ("cut between chunks", Client::asking([get("/cut-chunked/1")]).answers(0).then(read_on)),
        ("torn", Client::asking([get("/torn/10000")]).answers(0).then(Then::ReadOn { reset: true })),
    ]
    .map(|(name, client)| (name.to_owned(), client))
    .into();
    let mut partial = post("/refused/3", 100);
    partial.truncate(partial.len() - 90);
    table.push(("refused during the body".into(), Client::asking([partial]).then(read_on)));
    let expecting = String::from_utf8(post("/continue/4", 0)).unwrap();
    let expecting = expecting.replace("Content-Length: 0", "Expect: 100-continue\r\nContent-Length: 0");
    table.push(("expects to continue".into(), Client::asking([expecting.into_bytes()])));
    for reset in [false, true] {
        let abort = Then::Abort { after: 20_000, reset };
        let name = format!("aborted, by reset: {reset}");
        table.push((name, Client::asking([get("/length/3000000")]).answers(0).then(abort)));
    }
    for edge in [65_536, 131_072] {
        for size in [edge - 300, edge - 1, edge, edge + 1] {
            let target = |kind: &str| format!("/{kind}/{size}");
            let requests = [get(&target("length")), get(&target("pieces")), get(&target("chunked"))];
            table.push((format!("responses of {size}"), Client::asking(requests)));
            let requests = [post("/length/1", size), post_chunked("/length/2", size)];
            table.push((format!("requests of {size}"), Client::asking(requests)));
        }
    }
    table
}

#[test]
#[ignore = "needs root and BPF"]
fn every_http_script_is_equivalent() {
    let modes = Mode::all();
    let mut differences = Vec::new();
    for (name, client) in table() {
        let after = Client::asking([get("/length/10")]);
        differences.extend(difference(&modes, &client).map(|text| format!("{name}: {text}")));
        differences.extend(difference(&modes, &after).map(|text| format!("after {name}: {text}")));
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    modes.iter().for_each(Mode::check_used);
}

fn size() -> impl Strategy<Value = usize> {
    let edges = prop_oneof![Just(65_536_usize), Just(131_072)];
    prop_oneof![4 => 0_usize..3000, 2 => edges.prop_flat_map(|edge| edge - 400..edge + 2), 1 => 0_usize..300_000]
}

/// Several requests on one connection, with complete responses.
fn any() -> impl Strategy<Value = Client> {
    let kind = prop_oneof![Just("length"), Just("pieces"), Just("chunked"), Just("empty")];
    let request = (kind, size(), size(), 0_u8..4).prop_map(|(kind, up, down, how)| {
        let target = format!("/{kind}/{down}");
        match how {
            0 => post(&target, up),
            1 => post_chunked(&target, up),
            _ => get(&target),
        }
    });
    let piece = prop_oneof![2 => Just(usize::MAX), 1 => 300_usize..5000];
    (prop::collection::vec(request, 1..6), prop::bool::ANY, piece)
        .prop_map(|(requests, pipelined, piece)| Client { pipelined, piece, ..Client::asking(requests) })
}

#[test]
#[ignore = "needs root and BPF"]
fn random_exchanges_are_equivalent() {
    let modes = RefCell::new(Mode::all());
    let config = super::config(CASES);
    let played = TestRunner::new(config).run(&any(), |client| match difference(&modes.borrow(), &client) {
        Some(text) => Err(TestCaseError::fail(text)),
        None => Ok(()),
    });
    if let Err(error) = played {
        panic!("{}", error.to_string().chars().take(3000).collect::<String>());
    }
}
