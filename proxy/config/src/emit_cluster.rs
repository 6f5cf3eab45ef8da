//! A cluster as values, every default spelled out.

use serde_yaml::Value;

use super::out::{Out, file, list};
use super::{Balance, Cluster, Endpoint, HashKey, HealthCheck, MaxInFlight, Word, upstream_tls};

/// A cluster.
pub(super) fn cluster(cluster: &Cluster) -> Value {
    let mut out = Out::default();
    out.put("endpoints", list(&cluster.endpoints, endpoint));
    out.put("tls", upstream_tls::emit(cluster.tls.as_ref()));
    out.put("protocol", cluster.protocol.word());
    out.put("balance", balance(&cluster.balance));
    out.put("health_check", cluster.health_check.as_ref().map_or(Value::from("off"), health_check));
    let mut ejection = Out::default();
    cluster.ejection.write_numbers(&mut ejection.0);
    out.put("ejection", ejection.done());
    out.put("fail_open", cluster.fail_open);
    out.put_some("state_file", cluster.state_file.as_deref().map(file));
    let mut pool = Out::default();
    cluster.pool.write_numbers(&mut pool.0);
    out.put("pool", pool.done());
    cluster.write_numbers(&mut out.0);
    out.put_some("endpoint_header", cluster.endpoint_header.clone());
    let mut retry = Out::default();
    cluster.retry.write_numbers(&mut retry.0);
    out.put("retry", retry.done());
    out.put("max_in_flight", max_in_flight(cluster.max_in_flight));
    let mut auto_limit = Out::default();
    cluster.auto_limit.write_numbers(&mut auto_limit.0);
    out.put("auto_limit", auto_limit.done());
    let mut queue = Out::default();
    cluster.queue.write_numbers(&mut queue.0);
    queue.put("order", cluster.queue.order.word());
    queue.put("fair_by_client", cluster.queue.fair_by_client);
    out.put("queue", queue.done());
    out.put("bypass", cluster.bypass.word());
    out.done()
}

fn max_in_flight(limit: MaxInFlight) -> Value {
    match limit {
        MaxInFlight::Off => Value::from("off"),
        MaxInFlight::Fixed(requests) => Value::from(requests),
        MaxInFlight::Auto => Value::from("auto"),
    }
}

fn endpoint(endpoint: &Endpoint) -> Value {
    let mut out = Out::default();
    out.put("address", endpoint.address.to_string());
    out.put("weight", endpoint.weight);
    out.put_some("max_in_flight", endpoint.max_in_flight.map(max_in_flight));
    out.put_some("bypass", endpoint.bypass.map(Word::word));
    out.done()
}

fn balance(balance: &Balance) -> Value {
    let mut named = Out::default();
    let key = match balance {
        Balance::LeastRequests => return Value::from("least_requests"),
        Balance::RoundRobin => return Value::from("round_robin"),
        Balance::RandomTwo => return Value::from("random_two"),
        Balance::Hash(HashKey::ClientAddress) => Value::from("client_address"),
        Balance::Hash(HashKey::Header(name)) => {
            named.put("header", name.as_str());
            named.done()
        }
        Balance::Hash(HashKey::Cookie(name)) => {
            named.put("cookie", name.as_str());
            named.done()
        }
    };
    let mut out = Out::default();
    out.put("hash", key);
    out.done()
}

fn health_check(check: &HealthCheck) -> Value {
    let mut out = Out::default();
    out.put("path", check.path.as_str());
    out.put_some("host", check.host.clone());
    out.put_some("port", check.port);
    check.write_numbers(&mut out.0);
    let statuses = list(&check.expected_statuses, |(low, high)| Value::from(format!("{low}-{high}")));
    out.put("expected_statuses", statuses);
    out.done()
}
