//! Mistakes in listeners and in process-wide keys, with their lines, paths and messages.

use super::{GOOD, mistakes};

/// The only mistake of a good file with these lines appended; they start on line 4.
pub(super) fn one(lines: &str) -> String {
    let found = mistakes(&format!("{GOOD}{lines}"));
    assert_eq!(found.len(), 1, "{found:#?}");
    found[0].clone()
}

#[test]
fn message_has_file_line_path_and_hint() {
    let text = "listeners:\n  - address: 127.0.0.1:80\nclusters:\n  api:\n    endpoints:\n      - 10.0.0.1:80\n      - 10.0.0.5\n";
    assert_eq!(
        mistakes(text),
        ["c.yaml:7: clusters.api.endpoints[1]: \"10.0.0.5\" has no port; write host:port"]
    );
}

const WHOLE: &[(&str, &str)] = &[
    ("store: {}", "c.yaml:4: store: expected exactly one engine; write etcd, consul or redis"),
    (
        "store: {etcd: {prefix: /a/}, redis: {prefix: a}}",
        "c.yaml:4: store: expected exactly one engine; write etcd, consul or redis",
    ),
    (
        "store: {redis: {}}",
        "c.yaml:4: store.redis: prefix is missing; write what the keys begin with, such as sluice:",
    ),
    (
        "store: {redis: {prefix: a, user: b}}",
        "c.yaml:4: store.redis: user has no password; write password_file",
    ),
    (
        "store: {consul: {prefix: /a}}",
        "c.yaml:4: store.consul.prefix: \"/a\" is no beginning of keys; write letters, digits, -, _, ., : and /",
    ),
    (
        "store: {consul: {prefix: a/}, member_ttl: 5s}",
        "c.yaml:4: store: member_ttl is shorter than Consul allows; write at least 10s",
    ),
    (
        "store: {redis: {prefix: a}}\nacme: {terms_agreed: true}",
        "c.yaml:4: store: key_file is missing; write a file with a key that encrypts certificates in the store",
    ),
    (
        "rate_limits: {a: {rate: 1/s, shared: exakt}}",
        "c.yaml:4: rate_limits.a.shared: \"exakt\" is not known; did you mean exact?",
    ),
    (
        "rate_limits: {a: {rate: 1000000/1s, shared: exact}}\nstore: {redis: {prefix: a}}",
        "c.yaml:4: rate_limits.a.rate: an exact limit counts at most 100000 requests a second; lower it, or write shared: \
         true",
    ),
    (
        "rate_limits: {a: {rate: 1/s, shared: exact}}\nstore: {etcd: {prefix: a/}}",
        "c.yaml:4: rate_limits.a.shared: exact limits are counted in Redis; write store: {redis: …}, or shared: true",
    ),
    (
        "rate_limits: {a: {rate: 1/s, shared: true}}",
        "c.yaml:4: rate_limits.a.shared: it has no effect without store; write both",
    ),
    (
        "store: {redis: {prefix: a}, member: a b}",
        "c.yaml:4: store.member: \"a b\" is not a name; write up to 64 letters, digits, -, _ and .",
    ),
    ("vai: true", "c.yaml:4: vai: unknown key; did you mean via?"),
    ("via: 1", "c.yaml:4: via: 1 is a number; write true or false"),
    ("via: [a]", "c.yaml:4: via: found a list; write true or false"),
    ("limits: 3", "c.yaml:4: limits: 3 is a number; write a map"),
    (
        "limits:\n  headers_max: 0",
        "c.yaml:5: limits.headers_max: 0 is out of range; write a whole number from 1 to 1000",
    ),
    (
        "limits:\n  headers_max: -1",
        "c.yaml:5: limits.headers_max: -1 is out of range; write a whole number from 1 to 1000",
    ),
    (
        "limits:\n  header_timeout_ms: soon",
        "c.yaml:5: limits.header_timeout_ms: \"soon\" is text; write a time from 1ms to 1h",
    ),
    (
        "limits:\n  header_timeout: 5000",
        "c.yaml:5: limits.header_timeout: 5000 has no unit; write a time from 1ms to 1h, such as 5s",
    ),
    (
        "limits:\n  header_timeout: 5s\n  header_timeout_ms: 5000",
        "c.yaml:6: limits.header_timeout_ms: header_timeout is the same key; write that alone",
    ),
    (
        "limits:\n  trailer_bytes_max: 1.5",
        "c.yaml:5: limits.trailer_bytes_max: 1.5 is out of range; write bytes from 0 to 1048576",
    ),
    (
        "drain_timeout_ms: []",
        "c.yaml:4: drain_timeout_ms: found a list; write milliseconds from 0 to 86400000",
    ),
    ("workers: 0", "c.yaml:4: workers: 0 is out of range; write auto, or a whole number from 1 to 256"),
    ("workers: many", "c.yaml:4: workers: \"many\" is text; write auto, or a whole number from 1 to 256"),
    (
        "trusted_proxies:\n  - 10.0.0.0/40",
        "c.yaml:5: trusted_proxies[0]: \"10.0.0.0/40\" is text; write an address or a network such as 10.0.0.0/8",
    ),
    (
        "error_pages:\n  200: /a",
        "c.yaml:5: error_pages.200: this is not an error status; write one from 400 to 599",
    ),
    ("error_pages:\n  503: 4", "c.yaml:5: error_pages.503: 4 is a number; write text, in quotes"),
    (
        "admin: 0.0.0.0:9901",
        "c.yaml:4: admin: 0.0.0.0:9901 is not a loopback address, so anyone could read it; write \
         admin_token_file, admin_metrics_only: true, or 127.0.0.1:9901",
    ),
    ("admin: here", "c.yaml:4: admin: \"here\" has no port; write host:port"),
    (
        "admin: 127.0.0.1:80",
        "c.yaml:4: admin: 127.0.0.1:80 is also the address of listeners[0].address; write another",
    ),
    (
        "demo_origin: 10.0.0.1:80",
        "c.yaml:4: demo_origin: 10.0.0.1:80 is not on loopback; write 127.0.0.1:port",
    ),
    ("user: a b", "c.yaml:4: user: \"a b\" is not an account name; write one such as www-data"),
    ("group: ''", "c.yaml:4: group: the text is empty; write a value or remove the key"),
    (
        "caches: {a: {memory_max: 1m, object_max: 512k}}",
        "c.yaml:4: caches.a.object_max: is more than a quarter of memory_max; lower it, or raise memory_max",
    ),
    (
        "caches: {a: {disk: {}}}",
        "c.yaml:4: caches.a.disk: folder is missing; write a folder that sluice may write to, such as /var/cache/sluice",
    ),
    (
        "caches: {..: {}}",
        "c.yaml:4: caches.\"..\": \"..\" is not a name here; write letters, digits and hyphens",
    ),
    (
        "caches: {a b: {}}",
        "c.yaml:4: caches.\"a b\": \"a b\" is not a name here; write letters, digits and hyphens",
    ),
    ("rate_limits: {a: {}}", "c.yaml:4: rate_limits.a: rate is missing; write requests/time such as 10/1m"),
    (
        "rate_limits: {a: {rate: 10}}",
        "c.yaml:4: rate_limits.a.rate: 10 is a number; write requests/time such as 10/1m",
    ),
    (
        "rate_limits: {a: {rate: 0/1m}}",
        "c.yaml:4: rate_limits.a.rate: \"0/1m\" is not a rate; write requests/time such as 10/1m: 1 to 1000000 \
         requests in up to a day",
    ),
    (
        "rate_limits: {a b: {rate: 1/s}}",
        "c.yaml:4: rate_limits.\"a b\": \"a b\" is not a name here; write letters, digits and hyphens",
    ),
    (
        "rate_limits: {a: {rate: 1/s, key: {cookie: s}, then: ban}}",
        "c.yaml:4: rate_limits.a.then: only addresses can be banned; write key: client_address, or then: reject",
    ),
    (
        "rate_limits: {a: {rate: 1/1h, burst: 3, then: delay}}",
        "c.yaml:4: rate_limits.a: requests would wait for up to 3h; lower burst or raise rate, to 10m at most",
    ),
    (
        "rate_limits: {a: {rate: 1/s, then: rejct}}",
        "c.yaml:4: rate_limits.a.then: \"rejct\" is not known; did you mean reject?",
    ),
    ("kernel: auto", "c.yaml:4: kernel: \"auto\" is text; write a map"),
    ("kernel: {bypass: on}", "c.yaml:4: kernel.bypass: \"on\" is not known; write auto, off or required"),
    ("kernel: {bypass: true}", "c.yaml:4: kernel.bypass: true is a boolean; write auto, off or required"),
    (
        "kernel:\n  splice: requird",
        "c.yaml:5: kernel.splice: \"requird\" is not known; did you mean required?",
    ),
    ("kernel: {bypas: off}", "c.yaml:4: kernel.bypas: unknown key; did you mean bypass?"),
    ("access_log: stdot", "c.yaml:4: access_log: \"stdot\" is not known; did you mean stdout?"),
    (
        "access_log: syslog",
        "c.yaml:4: access_log: \"syslog\" is not known; write off, stdout or a path with a /",
    ),
    (
        "access_log: {format: xml}",
        "c.yaml:4: access_log.format: \"xml\" is not known; write json, ltsv or combined",
    ),
    (
        "access_log: {fields: [tiem]}",
        "c.yaml:4: access_log.fields[0]: \"tiem\" is not known; did you mean time?",
    ),
    (
        "access_log: {fields: []}",
        "c.yaml:4: access_log.fields: the list is empty; write at least one field, or output: off",
    ),
    (
        "access_log: {format: combined, fields: [time]}",
        "c.yaml:4: access_log.fields: the fields of the combined format are fixed; take them out",
    ),
];

#[test]
fn mistakes_in_process_wide_keys() {
    for (given, expected) in WHOLE {
        let found = one(given);
        assert!(found.starts_with(expected), "{given}\n  found    {found}\n  expected {expected}");
    }
}

const LISTENERS: &[(&str, &str)] = &[
    ("name: a", "c.yaml:2: listeners[0]: address is missing; write host:port or unix:/path"),
    (
        "address: true",
        "c.yaml:2: listeners[0].address: true is a boolean; write host:port, a port or unix:/path",
    ),
    (
        "address: 80800",
        "c.yaml:2: listeners[0].address: \"0.0.0.0:80800\" has no port from 1 to 65535; write host:port",
    ),
    ("address: a:1\n    adress: b", "c.yaml:3: listeners[0].adress: unknown key; did you mean address?"),
    (
        "address: a:1\n    protocol: htp",
        "c.yaml:3: listeners[0].protocol: \"htp\" is not known; did you mean http?",
    ),
    (
        "address: a:1\n    proxy_protocol: v3",
        "c.yaml:3: listeners[0].proxy_protocol: \"v3\" is not known; did you mean v1?",
    ),
    (
        "address: a:1\n    proxy_protocol: true",
        "c.yaml:3: listeners[0].proxy_protocol: true is a boolean; write off, v1, v2 or any",
    ),
    (
        "address: a:1\n    protocol: tcp",
        "c.yaml:2: listeners[0]: cluster is missing; write the cluster that this tcp listener tunnels to",
    ),
    (
        "address: a:1\n    protocol: tcp\n    cluster: api\n    http2: prior_knowledge",
        "c.yaml:5: listeners[0].http2: a tcp listener speaks no HTTP; remove it, or write protocol: http",
    ),
    (
        "address: a:1\n    http2: h2c",
        "c.yaml:3: listeners[0].http2: \"h2c\" is not known; write auto, prior_knowledge or off",
    ),
    (
        "address: a:1\n    cluster: api",
        "c.yaml:3: listeners[0].cluster: an http listener has no cluster; write routes, or protocol: tcp",
    ),
    (
        "address: a:1\n    protocol: tcp\n    cluster: aip",
        "c.yaml:4: listeners[0].cluster: no cluster is named \"aip\"; did you mean api?",
    ),
    (
        "address: a:1\n    name: ''",
        "c.yaml:3: listeners[0].name: the text is empty; write a value or remove the key",
    ),
    (
        "address: a:1\n    limits: {head_bytes_max: 255}",
        "c.yaml:3: listeners[0].limits.head_bytes_max: 255 is out of range; write bytes from 256 to 1048576",
    ),
    (
        "address: a:1\n  - {address: 'a:1', name: b}",
        "c.yaml:3: listeners[1].address: a:1 is also the address of listeners[0].address; write another",
    ),
    (
        "{address: 'a:1', name: b}\n  - {address: 'a:2', name: b}",
        "c.yaml:3: listeners[1].name: \"b\" is also the name of listeners[0]; write another name",
    ),
    ("text", "c.yaml:2: listeners[0]: \"text\" is text; write a map"),
];

/// A schema cannot tell the size of what a text with a unit says.
#[test]
fn times_and_sizes_have_ranges() {
    for (keys, message) in [
        ("{header_timeout: 2h}", "limits.header_timeout: 2h is out of range; write a time from 1ms to 1h"),
        (
            "{header_timeout_ms: 2h}",
            "limits.header_timeout_ms: 2h is out of range; write a time from 1ms to 1h",
        ),
        ("{head_max: 64m}", "limits.head_max: 64m is out of range; write a size from 256b to 1m"),
    ] {
        let error = super::parse("c.yaml", &format!("{}limits: {keys}\n", GOOD), &[]).unwrap_err();
        assert_eq!(error.to_string(), format!("c.yaml:4: {message}"));
    }
}

#[test]
fn mistakes_in_listener_keys() {
    let tail = "clusters: {api: {endpoints: ['10.0.0.1:80']}}\n";
    for (given, expected) in LISTENERS {
        let found = mistakes(&format!("listeners:\n  - {given}\n{tail}"));
        assert_eq!(found, [*expected], "{given}");
    }
    assert_eq!(mistakes(tail), ["c.yaml: listeners: no listeners; write at least one with an address"]);
}

#[test]
fn all_mistakes_are_reported_in_line_order() {
    let text = "via: 1\nlisteners:\n  - address: x\n    protocol: udp\nclusters:\n  a: {endpoints: [y], balance: z}\nworkers: 0\n";
    let lines: Vec<String> =
        mistakes(text).iter().map(|line| line.split(':').nth(1).unwrap().to_owned()).collect();
    assert_eq!(lines, ["1", "3", "4", "6", "6", "7"]);
}

#[test]
fn list_lengths_are_limited() {
    let listeners: String = (1..=257).map(|port| format!("  - address: a:{port}\n")).collect();
    let text = format!("listeners:\n{listeners}clusters: {{a: {{endpoints: ['a:1']}}}}\n");
    assert_eq!(mistakes(&text), ["c.yaml:1: listeners: 257 items exceed the limit; write at most 256"]);
    let exact = text.replace("  - address: a:257\n", "");
    assert_eq!(super::read(&exact).listeners.len(), 256);
}
