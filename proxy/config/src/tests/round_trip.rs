//! The effective configuration reads back to an equal one.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use proptest::prelude::*;

use super::super::*;
use super::{files, read};

#[test]
fn every_shipped_file_round_trips() {
    for config in files::all() {
        assert_eq!(parse("out", &to_yaml(&config), &[]).unwrap(), config);
    }
}

#[test]
fn an_endpoint_in_json_is_read_as_in_yaml() {
    let read = |text: &str| parse_endpoint("here", text).map_err(|error| error.to_string());
    let json = read("{\"address\": \"127.0.0.1:80\", \"weight\": 3}").unwrap();
    assert_eq!(json, read("address: 127.0.0.1:80\nweight: 3").unwrap());
    assert_eq!(json.weight, 3);
    assert_eq!(read("\"127.0.0.1:80\"").unwrap(), read("127.0.0.1:80").unwrap());
    for (mistaken, said) in [
        ("{\"address\": \"127.0.0.1:80\",\n\"wight\": 3}", "here:2: wight"),
        ("{\"address\": \"a:1\", \"address\": \"b:1\"}", "address"),
        ("{}", "address is missing"),
        ("[]", "found a list"),
    ] {
        let error = read(mistaken).unwrap_err();
        assert!(error.contains(said), "{mistaken}: {error}");
    }
}

#[test]
fn json_has_the_structure_of_the_yaml() {
    let config = read(&format!("{}error_pages: {{503: /a}}\n", super::GOOD));
    let json = to_json(&config);
    assert_eq!(json["listeners"][0]["address"], "127.0.0.1:80");
    assert_eq!(json["clusters"]["api"]["pool"]["idle_timeout"], "4s");
    assert_eq!(json["error_pages"]["503"], "/a");
    assert_eq!(json["workers"], "auto");
    assert_eq!(json["kernel"]["bypass"], "auto");
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,8}",
        "\\PC{1,20}",
        Just("off".into()),
        Just("null".into()),
        Just("1".into()),
        Just("<<a".into())
    ]
}

fn field() -> impl Strategy<Value = (String, String)> {
    ("X-[A-Za-z0-9]{1,8}", "([!-~]([ -~]{0,20}[!-~])?)?")
}

/// Braces doubled, and a variable.
fn in_template(value: &str) -> String {
    format!("{}{{client_ip}}", value.replace('{', "{{").replace('}', "}}"))
}

fn edits() -> impl Strategy<Value = HeaderEdits> {
    let fields = || {
        prop::collection::btree_map("X-[A-Z]{1,3}", field().prop_map(|(_, value)| in_template(&value)), 0..3)
    };
    (prop::collection::vec("x-[a-z]{1,8}", 0..3), fields(), fields()).prop_map(|(remove, set, add)| {
        HeaderEdits { remove, set: set.into_iter().collect(), add: add.into_iter().collect() }
    })
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        Just(Action::Cluster("c".into())),
        (
            prop::sample::select(vec![301, 302, 303, 307, 308]),
            "https://\\{host\\}/[a-z]{0,5}(\\{path\\}\\{query\\})?"
        )
            .prop_map(|(status, location)| Action::Redirect { status, location }),
        (400..=599u16, any::<String>(), "[a-z]{1,5}/[a-z]{1,5}", any::<bool>()).prop_map(
            |(status, text, content_type, is_template)| {
                let body = if is_template { in_template(&text) } else { text };
                Action::Respond { status, body, is_template, content_type }
            }
        ),
    ]
}

fn auth() -> impl Strategy<Value = Auth> {
    let url = || HttpUrl::parse("https://id.example/keys", "/").unwrap();
    let jwt =
        (any::<bool>(), "[a-z.:/]{1,9}", 0..=600_000u64).prop_map(move |(fetched, claim, clock_skew_ms)| {
            Auth::Jwt(Box::new(JwtAuth {
                jwks_url: fetched.then(url),
                keys_file: (!fetched).then(|| "/etc/keys".into()),
                issuer: fetched.then(|| "me".to_owned()),
                audience: vec!["shop".to_owned(); usize::from(fetched)],
                algorithms: if fetched { vec![JwtAlgorithm::Ps384] } else { vec![JwtAlgorithm::Hs256] },
                cookie: fetched.then(|| "token".to_owned()),
                claims_to_headers: BTreeMap::from([("x-claim".to_owned(), claim)]),
                clock_skew_ms,
                ..JwtAuth::default()
            }))
        });
    let basic = Auth::Basic(BasicAuth { file: "/etc/users".into(), realm: "a b".to_owned() });
    let forward =
        Auth::Forward(ForwardAuth { url: url(), copy: vec!["x-user".to_owned()], ..ForwardAuth::default() });
    prop_oneof![jwt, Just(basic), Just(forward)]
}

prop_compose! {
    fn route()(
        action in action(),
        hosts in prop::collection::vec("(\\*\\.)?[a-z]{1,8}\\.example", 0..3),
        path in "/[!-\"$->@-~]{0,10}",
        methods in prop::collection::vec("[A-Z]{3,7}", 0..3),
        headers in prop::collection::vec((field(), any::<bool>()), 0..3),
        request_headers in edits(),
        response_headers in edits(),
        timeout in prop::option::of(1..86_400_000u64),
        retry in prop::option::of((0..=10u32, 0..=100u32)),
        strip in any::<bool>(),
        (hold, most) in (any::<bool>(), 0..=1_048_576u32),
        auth in prop::option::of(auth()),
        (client, query) in (any::<bool>(), prop::collection::vec(("[a-z]{1,5}", prop::option::of("[ -~]{0,5}")), 0..3)),
    ) -> Route {
        let forwards = matches!(action, Action::Cluster(_));
        let headers = headers.into_iter().map(|((name, value), any)| HeaderMatch {
            name: name.to_ascii_lowercase(),
            value: (!any).then_some(value),
        });
        let conditions = Conditions {
            methods,
            headers: headers.collect(),
            query: query.into_iter().map(|(name, value)| ParameterMatch { name, value }).collect(),
            client: client.then(|| "10.0.0.0/8".parse().unwrap()).into_iter().collect(),
            ..Conditions::default()
        };
        let not = Exceptions {
            path: conditions.query.iter().map(|one| format!("/{}", one.name)).collect(),
            path_prefix: client.then(|| "/x".to_owned()).into_iter().collect(),
            path_regex: client.then(|| "^/[a-z]+$".to_owned()).into_iter().collect(),
            conditions: Conditions { methods: conditions.methods.clone(), ..Conditions::default() },
        };
        Route {
            hosts,
            path: None,
            path_regex: None,
            auth,
            cors: client.then(|| Cors { origins: vec!["https://*.a.example".into()], credentials: strip, ..Cors::default() }),
            files: client.then(|| Files {
                root: "/srv/a b".into(),
                try_paths: vec!["{path}".into(), "/app.html".into()],
                index: strip.then(|| "home.html".to_owned()),
                precompressed: vec![ContentCoding::Brotli, ContentCoding::Gzip],
                cache_control: vec![CacheRule { path_regex: strip.then(|| "[.]css$".to_owned()), value: "no-cache".into() }],
                listing: strip,
            }).filter(|_| forwards),
            compress: (client && forwards && !most.is_multiple_of(2)).then(|| Compress {
                algorithms: vec![ContentCoding::Gzip],
                level: CompressLevel::Best,
                skip_with: Vec::new(),
                ..Compress::default()
            }),
            cache: (client && forwards).then(|| "pages".to_owned()),
            sendfile: (client && forwards).then(|| Sendfile {
                roots: vec!["/srv/storage".into()],
                accel: BTreeMap::from([("/protected".to_owned(), "/srv/files".into())]),
            }),
            error_pages: if client { BTreeMap::from([(503, "/busy.html".into())]) } else { BTreeMap::new() },
            error_pages_for: (client && forwards).then(|| vec![(404, 404), (500, 599)]),
            access: strip.then(|| Access { allow: vec!["10.0.0.0/8".parse().unwrap()], deny_files: vec!["/blocked".into()], ..Access::default() }),
            conditions,
            not,
            strip_prefix: strip && forwards && path != "/",
            path_prefix: path,
            request_headers: if forwards { request_headers } else { HeaderEdits::default() },
            response_headers,
            buffering: if forwards { buffering(hold, most) } else { Buffering::default() },
            host_rewrite: (strip && forwards).then(|| "a.example:8080".into()),
            response_timeout_ms: timeout.filter(|_| forwards),
            body_idle_timeout_ms: timeout.filter(|_| forwards),
            retry: retry.filter(|_| forwards).map(|(attempts_max, connect_attempts_max)| Retry { attempts_max, connect_attempts_max, statuses: ServerErrors::of(&[(500, 500), (502, 504)]), budget_percent: 33, hedge: hold }),
            ..Route::new("", action)
        }
    }
}

fn buffering(hold: bool, most: u32) -> Buffering {
    let switch = |on| if on { Switch::On } else { Switch::Off };
    Buffering {
        buffer_requests: switch(hold),
        buffer_responses: switch(most.is_multiple_of(2)),
        buffer_memory_bytes: most as usize,
        request_body_bytes_max: most.into(),
        ..Buffering::default()
    }
}

fn address() -> impl Strategy<Value = Address> {
    prop_oneof![
        (any::<std::net::Ipv4Addr>(), 1..=u16::MAX).prop_map(|(ip, port)| Address::Ip((ip, port).into())),
        (any::<std::net::Ipv6Addr>(), 1..=u16::MAX).prop_map(|(ip, port)| Address::Ip((ip, port).into())),
        ("[a-z]{1,8}(\\.[a-z]{1,8})?", 1..=u16::MAX).prop_map(|(name, port)| Address::Name(name, port)),
        "/\\PC{1,20}".prop_map(|path| Address::Unix(path.into())),
    ]
}

/// One engine, by a number.
fn store(number: usize) -> Option<Store> {
    let prefix = format!("sluice-{number}/");
    let mut store =
        Store { member: Some("web-1".into()), key_file: Some("/etc/key".into()), ..Store::default() };
    match number % 4 {
        0 => store.etcd = Some(EtcdSource { prefix, ..EtcdSource::default() }),
        1 => store.consul = Some(ConsulStore { prefix, ..ConsulStore::default() }),
        2 => {
            let address = "redis.example:1".parse().unwrap();
            store.redis =
                Some(RedisStore { prefix, address, tls: true, database: 3, ..RedisStore::default() });
        }
        _ => return None,
    }
    Some(store)
}

/// As the store allows.
fn sharing(is_shared: bool, number: usize) -> Sharing {
    match store(number) {
        Some(store) if is_shared && store.redis.is_some() => Sharing::Exact,
        Some(_) if is_shared => Sharing::Approximate,
        _ => Sharing::Alone,
    }
}

/// One source, by a number.
fn discovery(number: usize) -> Option<Discovery> {
    let url =
        HttpUrl { tls: number.is_multiple_of(2), address: "etcd-1:2379".parse().unwrap(), path: "/".into() };
    let name = format!("a-{number}.example");
    let mut discovery = Discovery { hold_time_ms: 1 + number as u64, ..Discovery::default() };
    match number % 7 {
        0 => {
            let servers = vec![SocketAddr::from(([192, 0, 2, 1], 53)), SocketAddr::from(([0; 8], 5353))];
            discovery.dns = Some(DnsSource { name, port: Some(1), servers, ..DnsSource::default() });
        }
        1 => discovery.dns = Some(DnsSource { name, record: RecordType::Srv, ..DnsSource::default() }),
        2 => discovery.file = Some("/a/b".into()),
        3 => {
            let tags = vec!["a".into(), "b".into()];
            discovery.consul = Some(ConsulSource { service: name, tags, ..ConsulSource::default() });
        }
        4 => {
            let endpoints = vec![url.clone(), url];
            discovery.etcd = Some(EtcdSource { prefix: name, endpoints, ..EtcdSource::default() });
        }
        5 => {
            let (url, port) = (Some(url), Some("http".into()));
            discovery.kubernetes =
                Some(KubernetesSource { service: name, url, port, ..KubernetesSource::default() });
        }
        _ => return None,
    }
    Some(discovery)
}

fn balance() -> impl Strategy<Value = Balance> {
    prop_oneof![
        Just(Balance::LeastRequests),
        Just(Balance::RoundRobin),
        Just(Balance::RandomTwo),
        Just(Balance::Hash(HashKey::ClientAddress)),
        "x-[a-z]{1,5}".prop_map(|name| Balance::Hash(HashKey::Header(name))),
        "[A-Za-z]{1,5}".prop_map(|name| Balance::Hash(HashKey::Cookie(name))),
    ]
}

fn max_in_flight() -> impl Strategy<Value = MaxInFlight> {
    prop_oneof![
        Just(MaxInFlight::Off),
        Just(MaxInFlight::Auto),
        (1..=1_000_000u32).prop_map(MaxInFlight::Fixed),
    ]
}

fn tracing() -> impl Strategy<Value = Option<Tracing>> {
    let url =
        (any::<bool>(), address(), "/[!-\"$-~]{0,10}").prop_filter_map("no host", |(tls, address, path)| {
            (!matches!(address, Address::Unix(_))).then_some(HttpUrl { tls, address, path })
        });
    let some = (url, "\\PC{1,20}", 0.0..=1.0, 16..=10_000usize);
    prop::option::of(some.prop_map(|(otlp_endpoint, service_name, sample_ratio, spans)| Tracing {
        otlp_endpoint,
        service_name,
        sample_ratio,
        buffer_spans_max: spans,
        batch_spans_max: spans,
        export_interval_ms: spans as u64,
        export_timeout_ms: spans as u64 + 1,
    }))
}

fn upstream_tls(number: usize) -> UpstreamTls {
    let skip = number.is_multiple_of(3);
    UpstreamTls {
        ca_file: (!skip).then(|| "/etc/ca.pem".into()),
        // Endpoints may be unix sockets, which have no host names.
        server_name: Some("a.example".into()),
        client_certificate: skip.then(|| ClientCertificate { cert: "/c".into(), key: "/k".into() }),
        pinned_sha256: vec![Pin([number as u8; 32]); number % 4],
        min_version: if skip { TlsVersion::V13 } else { TlsVersion::V12 },
        danger_skip_verification: skip,
    }
}

fn passthrough(bytes: usize) -> Passthrough {
    let sni = [("a.example", "p"), ("*.b.example", "p")].map(|(name, cluster)| (name.into(), cluster.into()));
    let starttls = if bytes.is_multiple_of(2) { StartTls::Postgres } else { StartTls::Off };
    let client_hello_bytes_max = bytes.min(262_144);
    Passthrough { sni: sni.into(), starttls, client_hello_bytes_max, ..Passthrough::default() }
}

fn assist() -> impl Strategy<Value = AssistMode> {
    prop::sample::select(AssistMode::ALL.to_vec())
}

prop_compose! {
    fn cluster()(
        addresses in prop::collection::btree_map(address(), 1..=1000u32, 1..4),
        balance in balance(),
        check in prop::option::of((10..=100_000u64, "/[!-\"$-~]{0,10}", (100..=599u16, 100..=599u16))),
        fail_open in any::<bool>(),
        state_file in prop::option::of("/\\PC{1,10}"),
        idle in 0..=100_000usize,
        eject in 0..=1_000_000u32,
        header in prop::option::of("[A-Za-z]{3}-[A-Za-z]{1,5}"),
        tunnel in 1..=604_800_000u64,
        limit in prop::option::of(max_in_flight()),
        order in prop::sample::select(QueueOrder::ALL.to_vec()),
        (max_length, fair_by_client) in (0..=1_000_000usize, any::<bool>()),
        (min, more) in (1..=1000u32, 0..=1000u32),
    ) -> Cluster {
        Cluster {
            endpoints: addresses.into_iter().map(|(address, weight)| Endpoint {
                max_in_flight: limit.filter(|_| weight % 2 == 0),
                address,
                weight,
                bypass: (weight % 3 == 0).then_some(EndpointBypass::Off),
                backup: false,
            }).collect(),
            tls: (idle % 2 == 0).then(|| upstream_tls(idle)),
            protocol: if fair_by_client { UpstreamProtocol::H2 } else { UpstreamProtocol::Http1 },
            affinity: (fair_by_client && !matches!(balance, Balance::Hash(_))).then(|| Affinity {
                cookie: AffinityCookie {
                    ttl_ms: limit.is_some().then_some(3_600_000),
                    same_site: SameSite::ALL[max_length % 3],
                    ..AffinityCookie::default()
                },
            }),
            balance,
            health_check: check.map(|(interval_ms, path, (low, high))| HealthCheck {
                interval_ms,
                timeout_ms: interval_ms,
                path,
                port: u16::try_from(interval_ms).ok(),
                expected_statuses: vec![(low.min(high), low.max(high))],
                ..HealthCheck::default()
            }),
            fail_open,
            slow_start_ms: 31_000,
            state_file: state_file.map(Into::into),
            pool: Pool { idle_max_per_endpoint: idle, ..Pool::default() },
            ejection: Ejection { consecutive_failures: eject, ..Ejection::default() },
            endpoint_header: header,
            tunnel_idle_timeout_ms: tunnel,
            max_in_flight: limit.unwrap_or(MaxInFlight::Off),
            queue: Queue { order, max_length, fair_by_client, ..Queue::default() },
            auto_limit: AutoLimit { min, max: min + more, ..AutoLimit::default() },
            discover: discovery(max_length),
            ..Cluster::default()
        }
    }
}

fn listener_acme() -> impl Strategy<Value = ListenerAcme> {
    let names = prop::collection::btree_set("[a-z]{1,8}\\.example", 1..4);
    let on_demand =
        (address(), "/[a-z]{0,8}", 1..=100_000usize).prop_filter_map("no host", |(address, path, most)| {
            let ask_url = HttpUrl { tls: most % 2 == 0, address, path };
            let is_host = !matches!(ask_url.address, Address::Unix(_));
            is_host.then(|| OnDemand { ask_url, names_max: most, ..OnDemand::default() })
        });
    (names, prop::option::of(on_demand)).prop_map(|(names, on_demand)| ListenerAcme {
        names: names.into_iter().collect(),
        on_demand,
        ..ListenerAcme::default()
    })
}

fn acme() -> impl Strategy<Value = Acme> {
    let directory = prop_oneof![
        Just(AcmeDirectory::Production),
        Just(AcmeDirectory::Staging),
        "https://[a-z]{1,8}(:[0-9]{1,5})?/[a-z]{0,5}".prop_map(AcmeDirectory::At),
    ];
    let path = || prop::option::of("/\\PC{1,10}");
    let challenges = prop::sample::select(AcmeChallenge::ALL.to_vec());
    let arguments = prop::collection::vec("\\PC{0,5}", 0..3);
    (directory, path(), path(), challenges, arguments, path(), 0..=365u64).prop_map(
        |(directory, ca_file, state_folder, challenge, arguments, hmac_file, days)| Acme {
            contacts: ca_file.iter().map(|_| "mailto:a@b.example".to_owned()).collect(),
            directory,
            ca_file: ca_file.map(Into::into),
            state_folder: state_folder.map(Into::into),
            challenge,
            dns_hook: (challenge == AcmeChallenge::Dns01).then(|| DnsHook {
                command: "/bin/hook".into(),
                arguments,
                wait_ms: days,
                ..DnsHook::default()
            }),
            external_account: hmac_file
                .map(|file| ExternalAccount { key_id: "some id".to_owned(), hmac_file: file.into() }),
            profile: (days > 300).then(|| "shortlived".to_owned()),
            renew_before_days: days,
            ..Acme::default()
        },
    )
}

fn tls() -> impl Strategy<Value = Tls> {
    let path = || "/\\PC{1,10}".prop_map(std::path::PathBuf::from);
    let files = prop_oneof![
        path().prop_map(CertificateFiles::Folder),
        (path(), path(), prop::option::of(path())).prop_map(|(cert, key, ocsp)| CertificateFiles::Pair {
            cert,
            key,
            ocsp
        }),
    ];
    let files = prop::collection::vec(files, 1..3);
    let suites =
        prop::sample::subsequence(vec!["TLS13_AES_128_GCM_SHA256", "TLS13_AES_256_GCM_SHA384"], 0..=2);
    let modes = prop::sample::select(ClientAuthMode::ALL.to_vec());
    let versions = prop::sample::select(TlsVersion::ALL.to_vec());
    (files, suites, modes, versions, path(), 1..=1_000_000usize, any::<bool>()).prop_map(
        |(certificates, suites, mode, min_version, ca_file, handshakes_max, session_tickets)| Tls {
            certificates,
            min_version,
            cipher_suites: suites.into_iter().map(str::to_owned).collect(),
            session_tickets,
            client_auth: ClientAuth { mode, ca_file: (mode != ClientAuthMode::Off).then_some(ca_file) },
            handshakes_max,
            ..Tls::default()
        },
    )
}

fn rate_limits() -> impl Strategy<Value = BTreeMap<String, RateLimit>> {
    let keys = prop_oneof![
        Just(HashKey::ClientAddress),
        "x-[a-z]{1,5}".prop_map(HashKey::Header),
        "[A-Za-z]{1,5}".prop_map(HashKey::Cookie),
    ];
    let rates =
        (1..=1_000_000u32, 1..=86_400_000u64).prop_map(|(requests, period_ms)| Rate { requests, period_ms });
    let excess = prop::sample::select(Excess::ALL.to_vec());
    let limits = (keys, rates, prop::option::of(1..=1_000_000u32), excess, any::<bool>());
    let limits = limits.prop_map(|(key, rate, burst, then, dry_run)| RateLimit {
        then: match then {
            Excess::Ban if key != HashKey::ClientAddress => Excess::Reject,
            Excess::Delay if rate.period_ms > 1000 || burst.is_some() => Excess::Reject,
            other => other,
        },
        key,
        rate,
        burst,
        dry_run,
        ..RateLimit::default()
    });
    prop::collection::btree_map("[a-z]{1,8}", limits, 0..3)
}

// Boxed, because all of them together are too large for the stack of a test thread.
prop_compose! {
    fn config()(
        names in prop::collection::btree_set(name(), 1..4),
        mut addresses in prop::collection::btree_set(address(), 4),
        mut routes in prop::collection::vec(route().boxed(), 1..4),
        mut clusters in prop::collection::btree_map(name(), cluster().boxed(), 0..3),
        main in cluster().boxed(),
        pages in prop::collection::btree_map(400..=599u16, "/\\PC{1,10}", 0..3),
        (via, workers, drain_timeout_ms) in (any::<bool>(), 0..=256usize, 0..=86_400_000u64),
        heads in 256..=1_048_576usize,
        format in prop::sample::select(LogFormat::ALL.to_vec()),
        fields in prop::sample::subsequence(LogField::ALL.to_vec(), 1..LogField::ALL.len()),
        log in prop_oneof![Just(LogOutput::Off), Just(LogOutput::Stdout), "\\PC{0,5}/\\PC{1,5}".prop_map(|path| LogOutput::File(path.into()))],
        http2 in prop::sample::select(Http2::ALL.to_vec()),
        proxy_protocol in prop::sample::select(ProxyProtocol::ALL.to_vec()),
        (bypass, splice, bans) in (assist(), assist(), assist()),
        runtime in prop::sample::select(Runtime::ALL.to_vec()),
        worker_scheduling in prop::sample::select(WorkerScheduling::ALL.to_vec()),
        worker_placement in prop::sample::select(WorkerPlacement::ALL.to_vec()),
        (user, token) in (prop::option::of("[a-z][a-z-]{0,8}"), prop::option::of("/\\PC{1,10}")),
        tracing in tracing().boxed(),
        rate_limits in rate_limits().boxed(),
        (tls, max_age_s, port) in (prop::option::of(tls()).boxed(), 0..=1_000_000u64, 1..=u16::MAX),
        (acme, listener_acme) in (prop::option::of(acme()).boxed(), prop::option::of(listener_acme()).boxed()),
    ) -> Config {
        for (index, (route, name)) in routes.iter_mut().zip(names.iter().cycle()).enumerate() {
            route.name = format!("{name}{index}");
            route.rate_limits = rate_limits.keys().take(2).cloned().collect();
        }
        clusters.insert("p".into(), Cluster { tls: None, ..main.clone() });
        clusters.insert("c".into(), main);
        let limits = Limits { head_bytes_max: heads, ..Limits::default() };
        let admin = addresses.pop_last();
        let listeners = names.iter().zip(addresses).enumerate().map(|(index, (name, address))| Listener {
            name: name.clone(),
            protocol: [Protocol::Http, Protocol::Tcp, Protocol::TlsPassthrough][index.min(2)],
            proxy_protocol,
            http2: if index == 0 { http2 } else { Http2::Auto },
            http3: (index == 0 && !matches!(address, Address::Unix(_)) && tls.is_some() && proxy_protocol == ProxyProtocol::Off).then_some(Http3 { advertised_port: port, advertised_age_s: max_age_s, ..Http3::default() }),
            address,
            cluster: [None, Some("c".into()), via.then(|| "p".into())][index.min(2)].clone(),
            passthrough: (index > 1).then(|| passthrough(heads)),
            hsts: (index == 0 && tls.is_some()).then_some(Hsts { max_age_s, include_subdomains: via, preload: false }),
            redirect_to_https: (index == 0 && tls.is_none()).then_some(RedirectToHttps { port }),
            tls: tls.clone().filter(|_| index < 2).map(|tls| Tls { acme: listener_acme.clone().filter(|_| acme.is_some()), ..tls }),
            limits: Limits {
                headers_max: index + 1,
                http2: Http2Limits { streams_max: index as u32 + 1, ..Http2Limits::default() },
                http3: Http3Limits { streams_max: index as u32 + 1, ..Http3Limits::default() },
                ..limits.clone()
            },
        });
        Config {
            listeners: listeners.collect(),
            routes,
            clusters: clusters.into_iter().collect::<BTreeMap<_, _>>(),
            limits,
            trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()],
            error_pages_for: if via { vec![(404, 404), (502, 504)] } else { Vec::new() },
            access: vec![AccessRule {
                path_prefix: vec!["/admin".into()],
                listeners: names.iter().take(1).cloned().collect(),
                hosts: vec!["a.example".into()],
                access: Access { allow: vec!["10.0.0.0/8".parse().unwrap()], deny_files: vec!["/blocked".into()], ..Access::default() },
            }],
            rate_limits: rate_limits
                .into_iter()
                .map(|(name, limit)| (name, RateLimit { shared: sharing(via && u64::from(limit.rate.requests) <= 100 * limit.rate.period_ms, workers), exact_timeout_ms: 1 + workers as u64, ..limit }))
                .collect(),
            caches: BTreeMap::from([("pages".to_owned(), Cache {
                encoded_bytes_max: 3 << 20,
                memory_bytes_max: 1 << 24,
                object_bytes_max: 1 << 20,
                variants_max: workers + 1,
                heuristic_max_ms: 1500,
                wait_max_ms: 0,
                stale_on_failure_ms: 60_000,
                obey_requests: via,
                store_set_cookie: !via,
                early_hints: via,
                disk: via.then(|| CacheDisk { folder: "/var/cache".into(), size_bytes_max: 1 << 20, files_max: 9 }),
            })]),
            file_cache: FileCache { memory_bytes_max: 1 << 20, object_bytes_max: 4096, recheck_ms: 5 },
            compression: Compression { memory_bytes_max: 1 << 20, cpu_percent_max: 7 },
            bans_max: workers + 1,
            via,
            response_request_id: via,
            error_pages: pages.into_iter().map(|(status, page)| (status, page.into())).collect(),
            access_log: AccessLog { output: log, format, fields: if format == LogFormat::Combined { LogField::ALL.to_vec() } else { fields }, variables: if via && format != LogFormat::Combined { vec![("tenant".into(), "{header:x-a}".into())] } else { Vec::new() } },
            control: user.as_ref().map_or(if via { ControlSocket::Off } else { ControlSocket::Auto }, |name| {
                ControlSocket::At(format!("/run/{name}").into())
            }),
            qlog: token.clone().map(|path| Qlog { folder: path.into(), sample_ratio: 0.5, file_bytes_max: 9999, files_max: workers + 1 }),
            http3_secret_file: token.clone().map(Into::into),
            debug_token_file: token.map(Into::into),
            tracing,
            store: store(workers),
            services: ServicesState {
                state_file: user.as_ref().map(|name| format!("/var/lib/{name}").into()),
                kamal_state_file: via.then(|| "/srv/kamal-proxy.state".into()),
            },
            acme: acme.clone(),
            admin,
            admin_metrics_only: via,
            admin_if_free: false,
            admin_token_file: Some("/etc/token".into()),
            workers,
            runtime,
            worker_scheduling,
            worker_placement,
            user: user.clone(),
            group: user,
            kernel: KernelAssists {
                bypass,
                splice,
                bans,
                bans_clients_max: 77,
                accept_steering: splice,
                quic_steering: bans,
                bypass_downstream: if via { Switch::On } else { Switch::Off },
                bypass_stall_ms: drain_timeout_ms.max(100),
                splice_after_bytes: 7,
                direct_return_calm_max: via.then_some(7),
                ..KernelAssists::default()
            },
            drain_timeout_ms,
            drain_delay_ms: drain_timeout_ms.min(1000),
            buffers: Buffers {
                spool_directory: via.then(|| "/var/spool".into()),
                spool_bytes_max: drain_timeout_ms,
                ..Buffers::default()
            },
            demo_origin: None,
        }
    }
}

proptest! {
    #[test]
    fn any_configuration_round_trips(config in config()) {
        let text = to_yaml(&config);
        match parse("out", &text, &[]) {
            Ok(back) => prop_assert_eq!(&back, &config),
            Err(error) => prop_assert!(false, "{error}\n{text}"),
        }
        super::schema::takes_value(&to_json(&config));
    }
}
