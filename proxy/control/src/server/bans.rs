//! `/v1/bans`: the banned addresses, from the control socket.

use std::net::IpAddr;
use std::time::Duration;

use hyper::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sluice_core::clock::{now_ms, now_ns};
use sluice_engine::snapshot::Snapshot;

use crate::commands::{BANS, Failure, read};
use crate::handover::Predecessor;

/// Longest ban, in milliseconds: 30 days, as in the configuration.
const BAN_MS_MAX: u64 = 30 * 86_400_000;
/// Named as the one who banned.
const OPERATOR: &str = "operator";

/// `POST /v1/bans`.
#[derive(Debug, Default, Serialize, Deserialize)]
struct BanRequest {
    /// The address; required.
    client: Option<String>,
    /// How long, in milliseconds; required.
    for_ms: Option<u64>,
}

/// Carries out an operation on bans.
pub(super) fn answer(
    snapshot: &Snapshot,
    method: &Method,
    path: &str,
    body: &[u8],
) -> Result<Value, Failure> {
    let bans = &snapshot.bans;
    if let Some(client) = path.strip_prefix(BANS).and_then(|rest| rest.strip_prefix('/')) {
        return match client.parse().ok().filter(|client| bans.remove(*client, now_ms())) {
            Some(client) => {
                // Otherwise its next request would be beyond the limit that banned it.
                snapshot.limiters.values().for_each(|limit| limit.forget(client));
                Ok(json!({}))
            }
            None => Err(Failure::new(StatusCode::NOT_FOUND, &format!("{client} is not banned"))),
        };
    }
    if *method == Method::GET {
        return Ok(json!({ "bans": bans.list(now_ms()) }));
    }
    let BanRequest { client, for_ms } = read(body)?;
    let refused = |message: &str| Failure::new(StatusCode::BAD_REQUEST, message);
    let client = client.ok_or_else(|| refused("client: write an address"))?;
    let for_ms = for_ms.filter(|for_ms| (1..=BAN_MS_MAX).contains(for_ms));
    let for_ms = for_ms.ok_or_else(|| refused(&format!("for_ms: write a number from 1 to {BAN_MS_MAX}")))?;
    let client = address(&client)?;
    if snapshot.trusts(&client.to_canonical()) {
        let message = format!("{client} is one of trusted_proxies: a ban would be of everybody behind it");
        return Err(Failure::new(StatusCode::CONFLICT, &message));
    }
    let ban = (Duration::from_millis(for_ms), OPERATOR);
    match bans.add(client, ban, snapshot.config.bans_max, now_ms()) {
        Ok(_) => Ok(json!({})),
        Err(full) => Err(Failure::new(StatusCode::CONFLICT, &full.to_string())),
    }
}

/// Takes over the bans and the clients of rate limits from the old process.
pub(super) fn inherit(snapshot: &Snapshot, from: &Predecessor) {
    for ban in from.bans() {
        let time = Duration::from_millis(ban.left_ms);
        // The new file may allow fewer; the rest is free then.
        let _ = snapshot.bans.add(ban.client, (time, &ban.by), snapshot.config.bans_max, now_ms());
    }
    for clients in from.clients() {
        snapshot.limiters.get(&clients.limit).into_iter().for_each(|limit| limit.inherit(clients, now_ns()));
    }
}

fn address(text: &str) -> Result<IpAddr, Failure> {
    text.parse().map_err(|_| {
        let message = format!("{text:?} is not an address; write one such as 192.0.2.1");
        Failure::new(StatusCode::UNPROCESSABLE_ENTITY, &message)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;

    use sluice_config::Config;
    use sluice_engine::equipment::Equipment;

    use super::*;

    #[test]
    fn bans_are_added_listed_and_removed() {
        let config =
            Config { trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()], bans_max: 1, ..Config::default() };
        let snapshot = Snapshot::new(config, BTreeMap::new(), Equipment::default(), None);
        let ask = |method, path: &str, body: &str| answer(&snapshot, &method, path, body.as_bytes());
        let add = |client: &str| {
            ask(Method::POST, BANS, &format!("{{\"client\": \"{client}\", \"for_ms\": 60000}}"))
        };
        assert_eq!(add("2001:db8::1").unwrap(), json!({}));
        let listed = ask(Method::GET, BANS, "").unwrap();
        assert_eq!(
            (&listed["bans"][0]["client"], &listed["bans"][0]["by"]),
            (&json!("2001:db8::"), &json!(OPERATOR))
        );
        for refused in ["10.0.0.1", "192.0.2.1", "example.com"] {
            assert!(add(refused).is_err(), "{refused}");
        }
        for refused in ["{}", r#"{"client": "192.0.2.1"}"#, r#"{"client": "192.0.2.1", "for_ms": 0}"#] {
            assert!(ask(Method::POST, BANS, refused).is_err(), "{refused}");
        }
        assert!(ask(Method::DELETE, "/v1/bans/2001:db8::2", "").is_ok());
        assert!(ask(Method::DELETE, "/v1/bans/2001:db8::2", "").is_err());
        assert!(ask(Method::DELETE, "/v1/bans/", "").is_err());
    }
}
