//! What the application of a real server saw, compared with what the client sent and the strict origin received.

use super::mismatch::Mismatch;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use super::findings::Findings;
use super::report::escaped;
use super::sent::Request;

/// Maximum bytes shown of a body.
const SHORT_BYTES: usize = 100;

/// One request as recorded by the application.
struct Seen {
    client: Vec<u8>,
    token: Vec<u8>,
    method: Vec<u8>,
    target: Vec<u8>,
    body: Vec<u8>,
}

/// The requests that sluice forwards, by client.
pub(super) type Taken = BTreeMap<Ipv4Addr, Vec<Request>>;

/// What the application may have seen.
pub(super) struct Expected<'a> {
    pub(super) taken: &'a Taken,
    /// The value of the added field.
    pub(super) token: &'a str,
    /// Whether the application sees the target as it was sent.
    pub(super) keeps_target: bool,
    /// The bytes sent by the client at an address, for display.
    pub(super) bytes: &'a dyn Fn(Ipv4Addr) -> String,
}

impl Expected<'_> {
    /// Adds a fault for each request in `log` that no client sent in the way sluice forwards it.
    pub(super) fn compare(&self, log: &str, findings: &Findings) {
        let mut by_client: BTreeMap<Ipv4Addr, Vec<Seen>> = BTreeMap::new();
        for line in log.lines().filter(|line| line.contains("request=")) {
            let Some(seen) = read(line) else {
                findings.fault("the log", &format!("the application's output cannot be read\n    {line}"));
                continue;
            };
            match String::from_utf8_lossy(&seen.client).parse() {
                Ok(client) => by_client.entry(client).or_default().push(seen),
                Err(_) => {
                    let text = format!("a request without a client was seen\n    {}", described(&seen));
                    findings.fault("somebody", &text);
                }
            }
        }
        let seen_count: usize = by_client.values().map(Vec::len).sum();
        let taken_count: usize = self.taken.values().map(Vec::len).sum();
        findings.count("seen", seen_count as u64);
        findings.count("not seen", taken_count.saturating_sub(seen_count) as u64);
        for (client, seen) in by_client {
            if let Err(fault) = self.in_order(client, &seen, findings) {
                let sent = (self.bytes)(client);
                findings.fault(&client.to_string(), &format!("{fault}\n  sent\n    {sent}"));
            }
        }
    }

    /// Whether the seen requests are those that were forwarded, in order. A server may refuse some of them.
    fn in_order(&self, client: Ipv4Addr, seen: &[Seen], findings: &Findings) -> Result<(), Mismatch> {
        let all = self.taken.get(&client).map(Vec::as_slice).unwrap_or_default();
        let mut left = all.iter();
        for one in seen {
            if one.token != self.token.as_bytes() {
                let with = if one.token.starts_with(self.token.as_bytes()) {
                    "more than"
                } else {
                    "another value than"
                };
                return Err(
                    format!("a request with {with} our field was seen\n    {}", described(one)).into()
                );
            }
            let same = |taken: &&Request| {
                let same_target = !self.keeps_target || taken.target == one.target;
                same_target && taken.method == one.method && taken.body == one.body
            };
            let Some(taken) = left.by_ref().find(same) else {
                let all: Vec<String> = all.iter().map(forwarded).collect();
                let all = all.join("\n    ");
                return Err(format!(
                    "a request was seen\n    {}\n  forwarded were\n    {all}",
                    described(one)
                )
                .into());
            };
            findings.count("other target", u64::from(taken.target != one.target));
        }
        Ok(())
    }
}

/// `request=CLIENT TOKEN METHOD TARGET BODY=`, each in hex. Other output may precede it.
fn read(line: &str) -> Option<Seen> {
    let (_, words) = line.split_once("request=")?;
    let mut words = words.strip_suffix('=')?.split(' ').map(unhex);
    let mut next = || words.next().flatten();
    Some(Seen { client: next()?, token: next()?, method: next()?, target: next()?, body: next()? })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

fn described(seen: &Seen) -> String {
    let Seen { client, token, method, target, body } = seen;
    let [client, token, method, target, body] = [client, token, method, target, body].map(|part| short(part));
    format!("{method} {target} of {client} with {token:?} and the body {body}")
}

fn forwarded(taken: &Request) -> String {
    let [method, target, body] = [&taken.method, &taken.target, &taken.body].map(|part| short(part));
    format!("{method} {target} with the body {body}")
}

/// The start of some bytes, for display.
fn short(bytes: &[u8]) -> String {
    escaped(bytes.get(..SHORT_BYTES).unwrap_or(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(method: &str, target: &str, body: &str) -> Request {
        Request {
            method: method.into(),
            target: target.into(),
            host: b"a".to_vec(),
            fields: Vec::new(),
            body: body.into(),
            trailers: Vec::new(),
        }
    }

    fn faults(lines: &[[&str; 5]], keeps_target: bool) -> bool {
        let hex = |word: &str| word.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        let line = |words: &[&str; 5]| format!("request={}=\n", words.map(hex).join(" "));
        let log: String = lines.iter().map(line).collect();
        let sent = vec![taken("GET", "/a", ""), taken("POST", "/b", "x")];
        let findings = Findings::default();
        let taken = [(Ipv4Addr::new(127, 64, 0, 1), sent)].into();
        Expected { taken: &taken, token: "t", keeps_target, bytes: &|_| String::new() }
            .compare(&log, &findings);
        findings.verdict().is_err()
    }

    #[test]
    fn an_application_may_see_less_but_nothing_else() {
        let get = ["127.64.0.1", "t", "GET", "/a", ""];
        let post = ["127.64.0.1", "t", "POST", "/b", "x"];
        assert!(!faults(&[get, post], true));
        assert!(!faults(&[post], true));
        assert!(faults(&[post, get], true));
        assert!(faults(&[get, get], true));
        assert!(faults(&[["127.64.0.1", "", "GET", "/a", ""]], true));
        assert!(faults(&[["127.64.0.1, ::1", "t", "GET", "/a", ""]], true));
        assert!(faults(&[["127.64.0.1", "t", "POST", "/b", "xy"]], true));
        assert!(faults(&[["127.64.0.1", "t", "GET", "/A", ""]], true));
        assert!(!faults(&[["127.64.0.1", "t", "GET", "/A", ""]], false));
    }
}
