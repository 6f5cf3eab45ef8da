//! Allowed and refused requests: hosts, sites and tokens, over real sockets.

use super::*;

/// The status code and the response.
fn status(answer: &str) -> (&str, &str) {
    (answer.split(' ').nth(1).unwrap_or_default(), answer)
}

/// The response to each of these heads on loopback, without a token.
fn answers(heads: Vec<String>) -> Vec<String> {
    let (listener, address) = tcp();
    with_admin(listener, state(), move || {
        heads.iter().map(|head| ask(TcpStream::connect(address).unwrap(), head)).collect()
    })
}

#[test]
fn hosts_of_this_listener_are_allowed() {
    let hosts = ["localhost", "LOCALHOST:9", "127.0.0.1", "127.0.0.1:9901", "[::1]", "[::1]:80"];
    let heads = hosts.map(|host| format!("GET /status.json HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    for (host, answer) in hosts.iter().zip(answers(heads.into())) {
        assert_eq!(status(&answer).0, "200", "{host}: {answer}");
    }
}

#[test]
fn any_other_host_is_refused() {
    let mut heads: Vec<String> = [
        "evil.example",
        "evil.example:9901",
        "localhost.evil.example",
        "localhost.",
        "127.0.0.1.evil.example",
        "127.0.0.2",
        "2130706433",
        "0.0.0.0",
        "[::]",
        "localhost@evil.example",
        "evil.example@localhost",
        "",
        "a b",
    ]
    .iter()
    .map(|host| format!("GET /status.json HTTP/1.1\r\nHost: {host}\r\n\r\n"))
    .collect();
    heads.push("GET /status.json HTTP/1.0\r\n\r\n".to_owned());
    heads.push("GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n".to_owned());
    heads.push("GET http://evil.example/config HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned());
    for path in ["/", "/status", "/events", "/healthz", "/metrics", "/clusters", "/config", "/nope"] {
        heads.push(format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\nAccept: text/html\r\n\r\n"));
    }
    for (head, answer) in heads.clone().iter().zip(answers(heads)) {
        let code = status(&answer).0;
        assert!(code == "421" || code == "400", "{head:?}: {answer}");
        assert!(!answer.contains("puma"), "{answer}");
    }
}

#[test]
fn pages_of_other_sites_are_refused() {
    let with = |fields: &str| format!("GET /status.json HTTP/1.1\r\nHost: localhost:9901\r\n{fields}\r\n");
    let refused = [
        "Origin: http://evil.example\r\n",
        "Origin: null\r\n",
        "Origin: http://localhost:9902\r\n",
        "Origin: http://localhost:9901.evil.example\r\n",
        "Origin: http://localhost:9901\r\nOrigin: http://evil.example\r\n",
        "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: script\r\n",
        "Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: cors\r\n",
        "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n",
    ];
    for (fields, answer) in refused.iter().zip(answers(refused.map(with).into())) {
        assert_eq!(status(&answer).0, "403", "{fields}: {answer}");
        assert!(answer.ends_with("requests from pages of other sites are refused\n"));
        assert!(!answer.to_ascii_lowercase().contains("access-control"));
    }
    let answered = [
        "",
        "Origin: http://localhost:9901\r\n",
        "Origin: http://LOCALHOST:9901\r\nSec-Fetch-Site: same-origin\r\n",
        "Sec-Fetch-Site: none\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n",
        "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n",
    ];
    for (fields, answer) in answered.iter().zip(answers(answered.map(with).into())) {
        assert_eq!(status(&answer).0, "200", "{fields}: {answer}");
    }
}

#[test]
fn browsers_get_the_page_with_a_strict_policy() {
    let head = |path: &str, accept: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n")
    };
    let html = "text/html,application/xhtml+xml,*/*;q=0.8";
    let heads = vec![head("/", html), head("/status", "*/*"), head("/", "*/*"), head("/config", "*/*")];
    let [page, status_page, index, config] = answers(heads).try_into().unwrap();
    for page in [page, status_page] {
        assert!(page.contains("content-type: text/html; charset=utf-8\r\n"), "{page}");
        assert!(page.contains("content-security-policy: default-src 'none'; script-src 'sha256-"));
        assert!(page.ends_with(status::page::HTML));
    }
    assert!(index.ends_with(INDEX));
    for answer in [index, config] {
        let fields = ["cache-control: no-store", "x-frame-options: DENY", "x-content-type-options: nosniff"];
        for field in fields {
            assert!(answer.contains(&format!("{field}\r\n")), "{answer}");
        }
        assert!(answer.contains("content-security-policy: default-src 'none'; frame-ancestors 'none'\r\n"));
    }
}

/// A token in its own file.
fn token() -> Token {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("sluice-gate-{}-{count}", std::process::id()));
    std::fs::write(&path, "correct-horse-battery\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let token = Token::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    token
}

#[test]
fn with_a_token_only_its_bearer_is_allowed() {
    let (listener, address) = tcp();
    let state = gated(Gate::new(&listener, &LOOPBACK, Some(shared(token()))));
    let cases = [
        ("/config", "", "401"),
        ("/events", "", "401"),
        ("/nope", "", "401"),
        ("/healthz", "Authorization: Bearer correct-horse-batterx\r\n", "401"),
        ("/healthz", "Authorization: Bearer correct-horse\r\n", "401"),
        ("/healthz", "Authorization: Basic correct-horse-battery\r\n", "401"),
        ("/healthz?token=correct-horse-battery", "", "401"),
        ("/healthz", "Authorization: Bearer correct-horse-battery\r\nAuthorization: Bearer x\r\n", "401"),
        ("/healthz", "Authorization: Bearer correct-horse-battery\r\n", "200"),
        ("/healthz", "authorization: bearer correct-horse-battery\r\n", "200"),
        // The page contains no data; it asks the user for the token.
        ("/status", "", "200"),
    ];
    let answers = with_admin(listener, state, move || {
        cases.map(|(path, fields, _)| {
            let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
            ask(TcpStream::connect(address).unwrap(), &head)
        })
    });
    for ((path, fields, code), answer) in cases.iter().zip(answers) {
        assert_eq!(status(&answer).0, *code, "{path} {fields}: {answer}");
        assert_eq!(answer.contains("www-authenticate: Bearer\r\n"), *code == "401");
    }
}

#[test]
fn other_addresses_than_loopback_need_a_token() {
    for address in ["0.0.0.0:0", "[::]:0"] {
        let address: Address = address.parse().unwrap();
        let error = AdminListener::bind(&address, false).unwrap_err().to_string();
        assert!(error.contains("is not a loopback address") && error.contains("admin_token_file"), "{error}");
    }
    let address: Address = "0.0.0.0:0".parse().unwrap();
    let listener = AdminListener::bind(&address, true).unwrap();
    let AdminListener::Tcp(tcp) = &listener else { panic!("a TCP address binds a TCP socket") };
    let at = SocketAddr::from(([127, 0, 0, 1], tcp.local_addr().unwrap().port()));
    let state = gated(Gate::new(&listener, &address, Some(shared(token()))));
    // Any Host is accepted; what counts is the token, which pages of other sites do not have.
    let head = "GET /healthz HTTP/1.1\r\nHost: sluice.internal\r\nAuthorization: Bearer correct-horse-battery\r\n\r\n";
    let foreign = format!("{}Origin: http://evil.example\r\n\r\n", head.strip_suffix("\r\n").unwrap());
    let [own, foreign] = with_admin(listener, state, move || {
        [head.to_owned(), foreign].map(|head| ask(TcpStream::connect(at).unwrap(), &head))
    });
    assert_eq!((status(&own).0, status(&foreign).0), ("200", "403"));
}

fn shared(token: Token) -> SharedToken {
    Arc::new(ArcSwap::from_pointee(token))
}
