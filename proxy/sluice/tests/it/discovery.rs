//! Endpoints that are found: in a file, and by servers that do what they should not.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{Origin, Proxy, Setup, free_port, ok, poll, upgrade};

/// A sluice without endpoints of its own, and the file of its source.
fn setup(discover: Value) -> Setup {
    Setup::to(&[]).without("clusters").with("clusters", json!({"default": {"discover": discover}}))
}

/// A folder of the files of a test, removed when dropped.
struct Files(Setup);

impl Files {
    fn new() -> Self {
        Self(Setup::to(&[]))
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        self.0.file(name, content)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0.folder);
    }
}

/// Replaces a file as editors and configuration management do.
fn put(path: &Path, endpoints: &Value) {
    let beside = path.with_extension("new");
    fs::write(&beside, endpoints.to_string()).unwrap();
    fs::rename(&beside, path).unwrap();
}

/// The labels of the endpoints in use.
fn labels(proxy: &Proxy) -> Vec<String> {
    let clusters: Value = serde_json::from_slice(&proxy.admin("/clusters").body).unwrap();
    let endpoints = clusters[0]["endpoints"].as_array().unwrap();
    endpoints.iter().map(|one| one["label"].as_str().unwrap().to_owned()).collect()
}

fn wait_for(proxy: &Proxy, wanted: &[&str]) {
    poll("the endpoints", || (labels(proxy) == wanted).then_some(()));
}

#[test]
fn a_changed_file_changes_endpoints_without_dropping_a_request() {
    let origins = ["one", "two", "three"].map(Origin::saying);
    let [one, two, three] = origins.each_ref().map(|origin| origin.endpoint.as_str());
    let files = Files::new();
    let path = files.file("endpoints", &json!([one, {"address": two, "weight": 3}]).to_string());
    let file = setup(json!({"file": path, "min_percent": 0}));
    let Some(proxy) = file.start() else { return };
    assert_eq!(labels(&proxy), [one, two]);
    assert_eq!(proxy.endpoint(two)["weight"], 3);
    let mut client = proxy.connect();
    assert_eq!(client.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").status(), 200);
    put(&path, &json!([three]));
    // Whatever moment it is, a request is answered.
    poll("the third", || (client.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").text() == "three").then_some(()));
    assert_eq!(labels(&proxy), [three]);
    // A reload and an upgrade keep what was found.
    let mut config = proxy.config.clone();
    config["clusters"]["default"]["connect_timeout"] = json!("2s");
    assert_eq!(proxy.reload(&config).0, Some(0));
    assert_eq!((labels(&proxy), proxy.get("/").text()), (vec![three.to_owned()], "three"));
    let _next = upgrade(&proxy);
    assert_eq!(proxy.get("/").text(), "three");
}

#[test]
fn a_list_that_is_not_believed_changes_nothing() {
    let origins = ["one", "two", "three"].map(Origin::saying);
    let [one, two, three] = origins.each_ref().map(|origin| origin.endpoint.as_str());
    let files = Files::new();
    let path = files.file("endpoints", &json!([one, two, three]).to_string());
    let file = setup(json!({"file": path, "min_percent": 60, "hold_time": "1h", "endpoints_max": 4}));
    let Some(proxy) = file.start() else { return };
    let many: Vec<_> = (0..5).map(|port| format!("127.0.0.1:{}", port + 1)).collect();
    let doubted = "sluice_discovery_doubted{cluster=\"default\"}";
    let failing = "sluice_discovery_failing{cluster=\"default\"}";
    for (list, metric, said) in [
        ("[]".to_owned(), doubted, "a list of endpoints is not believed: it is empty"),
        (
            json!([one]).to_string(),
            doubted,
            "a list of endpoints is not believed: it has 1 endpoints of 3, less than min_percent",
        ),
        (json!(many).to_string(), failing, "endpoints cannot be found; using the last known"),
        ("{not: a list}".to_owned(), failing, "endpoints cannot be found; using the last known"),
        ("[{address: [}".to_owned(), failing, "endpoints cannot be found; using the last known"),
    ] {
        fs::write(&path, &list).unwrap();
        poll(&list, || (proxy.metric(metric) == 1.0).then_some(()));
        proxy.line(said);
        assert_eq!(labels(&proxy), [one, two, three], "{list}");
        put(&path, &json!([one, two, three]));
        poll("it to be believed again", || (proxy.metric(metric) == 0.0).then_some(()));
    }
    put(&path, &json!([two, one]));
    wait_for(&proxy, &[two, one]);
    fs::remove_file(&path).unwrap();
    poll("it to fail", || (proxy.metric(failing) == 1.0).then_some(()));
    assert_eq!(labels(&proxy), [two, one]);
}

#[test]
fn names_that_do_not_resolve_and_sluice_itself_are_no_endpoints() {
    let origin = Origin::saying("one");
    let one = origin.endpoint.as_str();
    let files = Files::new();
    let path = files.file("endpoints", &json!([one]).to_string());
    // A port that is known before.
    let own = format!("127.0.0.1:{}", free_port());
    let file = setup(json!({"file": path, "min_percent": 0}))
        .with("listeners", json!([{"name": "main", "address": own}]));
    let Some(proxy) = file.start() else { return };
    for list in [json!(["a.invalid:80", "b.invalid:80", "c.invalid:80"]), json!([own])] {
        put(&path, &list);
        let doubted = "sluice_discovery_doubted{cluster=\"default\"}";
        poll("it to be doubted", || (proxy.metric(doubted) == 1.0).then_some(()));
        assert_eq!((labels(&proxy), proxy.get("/").text()), (vec![one.to_owned()], "one"));
        put(&path, &json!([one]));
        poll("it to be believed again", || (proxy.metric(doubted) == 0.0).then_some(()));
    }
    put(&path, &json!([own, one, "a.invalid:80"]));
    poll("the list", || {
        (proxy.metric("sluice_discovery_endpoints{cluster=\"default\"}") == 3.0).then_some(())
    });
    assert_eq!((labels(&proxy), proxy.get("/").text()), (vec![one.to_owned()], "one"));
}

#[test]
fn an_upgrade_and_a_reload_while_the_source_is_away_keep_what_was_found() {
    let origin = Origin::saying("one");
    let one = origin.endpoint.as_str();
    let files = Files::new();
    let path = files.file("endpoints", &json!([one, {"address": "127.0.0.2:1", "backup": true}]).to_string());
    let discover = json!({"file": path, "first_timeout": "100ms"});
    let Some(proxy) = setup(discover).start() else { return };
    fs::remove_file(&path).unwrap();
    let failing = "sluice_discovery_failing{cluster=\"default\"}";
    poll("it to fail", || (proxy.metric(failing) == 1.0).then_some(()));
    let mut config = proxy.config.clone();
    config["clusters"]["default"]["discover"]["hold_time"] = json!("1s");
    assert_eq!(proxy.reload(&config).0, Some(0));
    assert_eq!((labels(&proxy).len(), proxy.get("/").text()), (2, "one"));
    // Another source, which is away as well.
    config["clusters"]["default"]["discover"]["file"] = json!(path.with_extension("other"));
    assert_eq!(proxy.reload(&config).0, Some(0));
    assert_eq!((labels(&proxy).len(), proxy.get("/").text()), (2, "one"));
    let _next = upgrade(&proxy);
    assert_eq!((labels(&proxy).len(), proxy.get("/").text()), (2, "one"));
}

#[test]
fn a_start_without_the_source_uses_what_was_found_before() {
    let origin = Origin::saying("one");
    let one = origin.endpoint.as_str();
    let files = Files::new();
    let path = files.file("endpoints", &json!([one]).to_string());
    let memory = path.with_file_name("memory");
    let discover = json!({"file": path, "memory_file": memory, "first_timeout": "100ms"});
    let Some(proxy) = setup(discover.clone()).start() else { return };
    wait_for(&proxy, &[one]);
    poll("the memory of a list that has not changed", || fs::read_to_string(&memory).ok());
    put(&path, &json!([one, {"address": one.replace("127.0.0.1", "127.0.0.2"), "backup": true}]));
    poll("the memory", || {
        fs::read_to_string(&memory).is_ok_and(|text| text.contains("127.0.0.2")).then_some(())
    });
    drop(proxy);
    fs::remove_file(&path).unwrap();
    let Some(proxy) = setup(discover).start() else { return };
    assert_eq!((labels(&proxy).len(), proxy.get("/").text()), (2, "one"));
    assert_eq!(proxy.metric("sluice_discovery_endpoints{cluster=\"default\"}"), 2.0);
}

#[test]
fn servers_that_answer_nonsense_harm_nobody() {
    let origin = Origin::saying("one");
    let endpoints = json!([origin.endpoint]);
    let routes = json!([{"path_prefix": "/etcd", "cluster": "etcd"}, {"path_prefix": "/k", "cluster": "kubernetes"}, {"cluster": "default"}]);
    let long = "x".repeat(1 << 20);
    let one = |port: usize| format!(r#"{{"Node":{{"Address":"10.0.0.1"}},"Service":{{"Port":{port}}}}}"#);
    let huge = format!("[{}]", (1..=20_000).map(one).collect::<Vec<_>>().join(","));
    let bodies =
        ["", "null", "[]", "{}", "[1]", "<html>", "{\"header\":{}}", &long, &huge].map(str::to_owned);
    for body in bodies {
        let bad = Origin::answering(move |_| ok(&body));
        let url = format!("http://{}", bad.endpoint);
        let files = Files::new();
        let token = files.file("token", "secret\n");
        let sources = [
            json!({"consul": {"url": url, "service": "a"}}),
            json!({"etcd": {"endpoints": [url], "prefix": "/a/"}}),
            json!({"kubernetes": {"url": url, "service": "a", "token_file": token, "ca_file": token}}),
        ];
        let cluster = |mut source: Value| {
            source["first_timeout"] = json!("200ms");
            json!({"endpoints": endpoints, "discover": source})
        };
        let [consul, etcd, kubernetes] = sources.map(cluster);
        let clusters = json!({"default": consul, "etcd": etcd, "kubernetes": kubernetes});
        let Some(proxy) = Setup::to(&[]).with("clusters", clusters).with("routes", routes.clone()).start()
        else {
            return;
        };
        assert_eq!(proxy.get("/").text(), "one");
        assert_eq!(labels(&proxy), [origin.endpoint.as_str()]);
    }
}
