//! What is read: defaults, short forms, fallbacks.

use super::super::{
    AccessLog, Action, AssistMode, AutoLimit, Balance, Cluster, Config, HashKey, HealthCheck, KernelAssists,
    Limits, LogFormat, LogOutput, MaxInFlight, Protocol, ProxyProtocol, Queue, QueueOrder, Retry, Route,
    WorkerPlacement, WorkerScheduling,
};
use super::{GOOD, mistakes, read};

#[test]
fn ports_stand_for_addresses() {
    let config = read(
        "listeners: [{address: 8080}]\nadmin: 9901\ndemo_origin: 9902\n\
         clusters: {a: {endpoints: [3000, ':3001', 'http://b', 'http://c:81/', {address: 3002}]}}\n",
    );
    let address = |text: &str| text.parse::<crate::Address>().unwrap();
    assert_eq!(config.listeners[0].address, address("0.0.0.0:8080"));
    assert_eq!(config.admin, Some(address("127.0.0.1:9901")));
    let endpoints: Vec<_> = config.clusters["a"].endpoints.iter().map(|one| one.address.clone()).collect();
    let expected = ["127.0.0.1:3000", "127.0.0.1:3001", "b:80", "c:81", "127.0.0.1:3002"];
    assert_eq!(endpoints, expected.map(address));
    assert!(config.clusters["a"].tls.is_none());
}

#[test]
fn a_minimal_file_uses_defaults() {
    let config = read(GOOD);
    assert_eq!(config.routes, [Route::new("default", Action::Cluster("api".into()))]);
    let cluster = &config.clusters["api"];
    assert_eq!(*cluster, Cluster { endpoints: cluster.endpoints.clone(), ..Cluster::default() });
    assert_eq!(config.listeners[0].name, "127.0.0.1:80");
    assert_eq!(config.listeners[0].limits, Limits::default());
    let rest = Config { listeners: vec![], routes: vec![], clusters: Default::default(), ..config };
    assert_eq!(rest, Config::default());
}

#[test]
fn defaults_match_the_documentation() {
    let limits = Limits::default();
    assert_eq!((limits.head_bytes_max, limits.headers_max, limits.target_bytes_max), (32768, 100, 8192));
    assert_eq!((limits.body_bytes_max, limits.connections_max), (10_737_418_240, 20_000));
    let cluster = Cluster::default();
    assert_eq!((cluster.pool.idle_max_per_endpoint, cluster.pool.idle_timeout_ms), (1024, 4000));
    assert_eq!(cluster.retry, Retry::default());
    assert!(cluster.fail_open && cluster.health_check.is_none());
    assert_eq!((cluster.max_in_flight, cluster.tunnels_max), (MaxInFlight::Off, 20_000));
    let queue = Queue { max_length: 1000, timeout_ms: 10_000, lifo_after_ms: 500, ..cluster.queue };
    assert_eq!((cluster.queue, queue.order, queue.fair_by_client), (queue, QueueOrder::Adaptive, false));
    assert_eq!(cluster.auto_limit, AutoLimit { min: 3, max: 1000, measure_interval_ms: 60_000 });
}

#[test]
fn a_file_with_only_services_is_valid() {
    let config =
        read("listeners: [{address: 'a:1'}]\nservices: {state_file: /var/lib/sluice/services.json}\n");
    assert!(config.clusters.is_empty() && config.routes.is_empty());
}

#[test]
fn an_endpoint_may_override_max_in_flight() {
    let config = read(
        "listeners: [{address: 'a:1'}]\nclusters:\n  a:\n    max_in_flight: 4\n    endpoints:\n      \
         - 'a:1'\n      - {address: 'a:2', max_in_flight: auto}\n      - {address: 'a:3', max_in_flight: off}\n",
    );
    let cluster = &config.clusters["a"];
    let own: Vec<_> = cluster.endpoints.iter().map(|endpoint| endpoint.max_in_flight).collect();
    assert_eq!(cluster.max_in_flight, MaxInFlight::Fixed(4));
    assert_eq!(own, [None, Some(MaxInFlight::Auto), Some(MaxInFlight::Off)]);
}

#[test]
fn range_limits_are_inclusive() {
    let text = |value: u64| format!("{GOOD}limits: {{headers_max: {value}}}\n");
    assert_eq!(read(&text(1)).limits.headers_max, 1);
    assert_eq!(read(&text(1000)).limits.headers_max, 1000);
}

#[test]
fn limits_of_a_listener_fall_back_key_by_key() {
    let config = read(
        "limits: {headers_max: 50, head_bytes_max: 1000}\nclusters: {a: {endpoints: ['a:1']}}\nlisteners:\n  \
         - {address: 'a:1', limits: {headers_max: 60}}\n  - {address: 'a:2'}\n",
    );
    let seen: Vec<_> =
        config.listeners.iter().map(|one| (one.limits.headers_max, one.limits.head_bytes_max)).collect();
    assert_eq!(seen, [(60, 1000), (50, 1000)]);
}

#[test]
fn off_may_be_a_keyword_or_false() {
    for off in ["off", "'off'", "false"] {
        let config = read(&format!(
            "listeners: [{{address: 'a:1', proxy_protocol: {off}}}]\n\
             clusters: {{a: {{endpoints: ['a:1'], health_check: {off}}}}}\n\
             access_log: {off}\nadmin: {off}\ndemo_origin: {off}\n"
        ));
        assert_eq!(config.listeners[0].proxy_protocol, ProxyProtocol::Off);
        assert_eq!(config.access_log, AccessLog { output: LogOutput::Off, ..AccessLog::default() });
        assert_eq!((config.admin, config.demo_origin), (None, None));
        assert_eq!(config.clusters["a"].health_check, None);
    }
}

#[test]
fn assists_default_to_auto() {
    let kernel = |text: &str| read(&format!("{GOOD}{text}")).kernel;
    let auto = KernelAssists::default();
    assert_eq!((auto.bypass, auto.splice), (AssistMode::Auto, AssistMode::Auto));
    assert_eq!((kernel(""), kernel("kernel: {}\n"), kernel("kernel:\n")), (auto, auto, auto));
    let bypass = AssistMode::Required;
    assert_eq!(kernel("kernel: {bypass: required}\n"), KernelAssists { bypass, ..auto });
    let splice = AssistMode::Off;
    assert_eq!(kernel("kernel: {splice: off}\n"), KernelAssists { splice, ..auto });
    assert_eq!(kernel("kernel: {splice: false}\n"), KernelAssists { splice, ..auto });
}

#[test]
fn workers_and_calm_max_have_defaults() {
    let read = |text: &str| read(&format!("{GOOD}{text}"));
    let config = read("kernel: {direct_return_calm_max: auto}\n");
    assert_eq!(
        (config.worker_scheduling, config.worker_placement, config.kernel.direct_return_calm_max),
        (WorkerScheduling::Batch, WorkerPlacement::Spread, None)
    );
    let config =
        read("worker_scheduling: normal\nworker_placement: kernel\nkernel: {direct_return_calm_max: 7}\n");
    assert_eq!(config.worker_scheduling, WorkerScheduling::Normal);
    assert_eq!(config.worker_placement, WorkerPlacement::Kernel);
    assert_eq!(config.kernel.direct_return_calm_max, Some(7));
    let said =
        mistakes(&format!("{GOOD}worker_scheduling: fifo\nkernel: {{direct_return_calm_max: 5000}}\n"));
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].contains("worker_scheduling: "), "{said:?}");
    assert!(said[1].contains("kernel.direct_return_calm_max: 5000 is out of range"), "{said:?}");
}

#[test]
fn admin_and_access_log_have_long_forms() {
    let config = read(&format!(
        "{GOOD}admin: {{address: 'unix:/a'}}\naccess_log: {{output: ./a, format: combined}}\n"
    ));
    assert_eq!(config.admin, Some("unix:/a".parse().unwrap()));
    assert_eq!(
        (config.access_log.output, config.access_log.format),
        (LogOutput::File("./a".into()), LogFormat::Combined)
    );
    assert_eq!(read(&format!("{GOOD}admin: {{address: off}}\n")).admin, None);
}

#[test]
fn a_route_without_name_is_named_after_its_cluster_or_place() {
    let config = read(&format!(
        "{GOOD}routes: [{{cluster: api}}, {{cluster: api, path_prefix: /a}}, {{respond: {{}}}}]\n"
    ));
    let names: Vec<&str> = config.routes.iter().map(|route| route.name.as_str()).collect();
    assert_eq!(names, ["api", "route[1]", "route[2]"]);
}

#[test]
fn compared_names_are_lower_case() {
    let config = read(&format!(
        "{GOOD}routes:\n  - cluster: api\n    hosts: [A.Example, '*.B.Example']\n    headers: [{{name: X-A, value: V}}]\n    \
         request_headers: {{remove: [X-B], set: {{X-C: d}}, add: {{X-E: ''}}}}\n"
    ));
    let route = &config.routes[0];
    assert_eq!(route.hosts, ["a.example", "*.b.example"]);
    assert_eq!(
        (route.conditions.headers[0].name.as_str(), route.conditions.headers[0].value.as_deref()),
        ("x-a", Some("V"))
    );
    assert_eq!(route.request_headers.remove, ["x-b"]);
    assert_eq!(route.request_headers.set, [("X-C".to_owned(), "d".to_owned())]);
    assert_eq!(route.request_headers.add, [("X-E".to_owned(), String::new())]);
}

#[test]
fn a_routes_retry_falls_back_to_its_clusters() {
    let config = read(
        "listeners: [{address: 'a:1'}]\nclusters: {a: {endpoints: ['a:1'], retry: {connect_attempts_max: 7}}}\n\
         routes: [{cluster: a, retry: {attempts_max: 0}}]\n",
    );
    assert_eq!(
        config.routes[0].retry,
        Some(Retry { attempts_max: 0, connect_attempts_max: 7, ..Retry::default() })
    );
}

#[test]
fn default_check_timeout_is_at_most_the_interval() {
    let check = |keys: &str| {
        let text =
            format!("{GOOD}  b: {{endpoints: ['a:1'], health_check: {keys}}}\nroutes: [{{cluster: b}}]\n");
        read(&text).clusters["b"].health_check.clone().unwrap()
    };
    assert_eq!(check("{}"), HealthCheck::default());
    assert_eq!(check("{interval_ms: 100}").timeout_ms, 100);
    assert_eq!(check("{port: 8081}").port, Some(8081));
    assert_eq!(
        check("{expected_statuses: [200, '300-399', '404']}").expected_statuses,
        [(200, 200), (300, 399), (404, 404)]
    );
}

#[test]
fn every_balance_policy_is_read() {
    for (text, expected) in [
        ("least_requests", Balance::LeastRequests),
        ("round_robin", Balance::RoundRobin),
        ("random_two", Balance::RandomTwo),
        ("{hash: client_address}", Balance::Hash(HashKey::ClientAddress)),
        ("{hash: {header: X-User}}", Balance::Hash(HashKey::Header("x-user".into()))),
        ("{hash: {cookie: Sid}}", Balance::Hash(HashKey::Cookie("Sid".into()))),
    ] {
        let config =
            read(&format!("{GOOD}  b: {{endpoints: ['a:1'], balance: {text}}}\nroutes: [{{cluster: b}}]\n"));
        assert_eq!(config.clusters["b"].balance, expected);
    }
}

#[test]
fn trusted_proxies_are_networks_or_addresses() {
    let config = read(&format!("{GOOD}trusted_proxies: [10.1.2.3/8, 192.0.2.1, '::1']\n"));
    let shown: Vec<String> = config.trusted_proxies.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["10.0.0.0/8", "192.0.2.1/32", "::1/128"]);
}

#[test]
fn tcp_listeners_need_no_routes_and_may_repeat_port_0() {
    let config = read(
        "listeners:\n  - {name: a, address: '127.0.0.1:0', protocol: tcp, cluster: db}\n  \
         - {name: b, address: '127.0.0.1:0', protocol: tcp, cluster: db}\nclusters: {db: {endpoints: ['a:1']}}\n",
    );
    assert!(config.routes.is_empty());
    assert_eq!(config.listeners[1].protocol, Protocol::Tcp);
}
