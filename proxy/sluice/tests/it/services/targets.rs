//! Single targets of a service, and endpoints of the file: weights changed, disabled and enabled at run time.

use std::sync::mpsc::channel;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::*;
use crate::support::poll;

/// A service with two targets, `one` and `two`, each checked every 20 ms.
fn deployed(proxy: &Proxy, one: &Origin, two: &Origin) {
    let targets = format!("{},{}", one.endpoint, two.endpoint);
    done(proxy, &format!("deploy web --target {targets} --host svc.test --health-check-interval 20ms"));
}

/// The targets that respond to `count` requests.
fn answers(proxy: &Proxy, count: usize) -> String {
    let mut said: Vec<String> = (0..count).map(|_| super::said(&ask(proxy, "/"))).collect();
    said.sort();
    said.join(" ")
}

/// An endpoint of a cluster as the admin listener shows it.
fn shown(proxy: &Proxy, cluster: &str, endpoint: &Origin) -> Value {
    let clusters: Value = serde_json::from_slice(&proxy.admin("/clusters").body).unwrap();
    let of_name = |list: &Value, key: &str, name: &str| {
        list.as_array().unwrap().iter().find(|one| one[key] == name).unwrap().clone()
    };
    of_name(&of_name(&clusters, "name", cluster)["endpoints"], "label", &endpoint.endpoint)
}

/// Runs a command that must be refused, and returns its error.
fn refused(proxy: &Proxy, line: &str) -> String {
    let (code, said) = sluice(proxy, line);
    assert_eq!(code, Some(1), "{said}");
    said.strip_prefix("Error: ").unwrap_or(&said).trim_end().to_owned()
}

#[test]
fn a_weight_takes_effect_at_once() {
    let (one, two) = (app("one"), app("two"));
    let Some(proxy) = setup(&one).start() else { return };
    deployed(&proxy, &one, &two);
    assert_eq!(answers(&proxy, 4), "one one two two");
    done(&proxy, &format!("set-weight web {} 3", one.endpoint));
    assert_eq!(answers(&proxy, 8), "one one one one one one two two");
    assert_eq!(shown(&proxy, "web", &one)["weight"], 3);
    let weight = format!("sluice_endpoint_weight{{cluster=\"web\",endpoint=\"{}\"}}", one.endpoint);
    assert_eq!(proxy.metric(&weight), 3.0);
    let bounds = |weight: &str| refused(&proxy, &format!("set-weight web {} {weight}", one.endpoint));
    for weight in ["0", "1001"] {
        let said = bounds(weight);
        assert!(said.starts_with(&format!("weight {weight} is not between 1 and 1000")), "{said}");
    }
    assert_eq!(shown(&proxy, "web", &one)["weight"], 3);
    deployed(&proxy, &one, &two);
    assert_eq!(answers(&proxy, 4), "one one two two", "a deploy resets the weights");
}

#[test]
fn disabled_targets_finish_and_get_no_new_requests() {
    let (go, gate) = channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let one = Origin::answering(move |request| match request.target() {
        "/up" => ok(""),
        "/busy" => {
            let _ = gate.lock().unwrap().recv();
            ok("one")
        }
        _ => ok("one"),
    });
    let two = app("two");
    let Some(proxy) = setup(&one).start() else { return };
    deployed(&proxy, &one, &two);
    done(&proxy, &format!("disable web {}", two.endpoint));
    let mut busy = proxy.connect();
    busy.send(get("/busy"));
    poll("the request at the target", || {
        one.requests().iter().any(|asked| asked.target() == "/busy").then_some(())
    });
    done(&proxy, &format!("enable web {}", two.endpoint));
    done(&proxy, &format!("disable web {}", one.endpoint));
    assert_eq!(answers(&proxy, 6), "two two two two two two");
    let state = shown(&proxy, "web", &one);
    assert_eq!(
        (&state["disabled"], &state["health"], &state["in_flight"]),
        (&true.into(), &"healthy".into(), &1.into())
    );
    let checks = || one.requests().iter().filter(|asked| asked.target() == "/up").count();
    let before = checks();
    poll("further checks", || (checks() > before + 1).then_some(()));
    go.send(()).unwrap();
    assert_eq!(busy.response().text(), "one", "running requests finish");
    let last =
        format!("{} is the last target of web that takes requests; use \"stop web\" instead", two.endpoint);
    assert_eq!(refused(&proxy, &format!("disable web {}", two.endpoint)), last);
    done(&proxy, &format!("enable web {}", one.endpoint));
    let both = answers(&proxy, 8);
    assert!(both.starts_with("one one one") && both.ends_with("two two two"), "{both}");
    poll("each to be in the log", || (proxy.said("received a service command") >= 5).then_some(()));
}

#[test]
fn readers_may_all_be_disabled() {
    let (writer, reader) = (app("writer"), app("reader"));
    let Some(proxy) = setup(&writer).start() else { return };
    let (write, read) = (&writer.endpoint, &reader.endpoint);
    done(
        &proxy,
        &format!(
            "deploy web --target {write} --read-target {read} --host svc.test --health-check-interval 20ms"
        ),
    );
    assert_eq!(answers(&proxy, 1), "reader");
    done(&proxy, &format!("disable web {read}"));
    assert_eq!(answers(&proxy, 2), "writer writer");
    assert!(refused(&proxy, &format!("disable web {write}")).contains("the last target"));
}

#[test]
fn unknown_targets_are_reported() {
    let (one, two) = (app("one"), app("two"));
    let Some(proxy) = setup(&one).start() else { return };
    assert_eq!(refused(&proxy, "disable web a:1"), "no service or cluster is named \"web\"");
    deployed(&proxy, &one, &two);
    let known = format!("{}, {}", one.endpoint, two.endpoint);
    for command in ["disable web a:1", "enable web a:1", "set-weight web a:1 3"] {
        assert_eq!(refused(&proxy, command), format!("web has no target \"a:1\"; it has {known}"));
    }
    let said = refused(&proxy, "disable default a:1");
    assert_eq!(said, format!("default has no target \"a:1\"; it has {}", one.endpoint));
}

#[test]
fn adjustments_survive_reload_restart_and_upgrade() {
    let (one, two, three) = (app("one"), app("two"), app("three"));
    let Some(mut proxy) = setup(&one).start() else { return };
    let targets = format!("{},{},{}", one.endpoint, two.endpoint, three.endpoint);
    done(&proxy, &format!("deploy web --target {targets} --host svc.test"));
    done(&proxy, &format!("set-weight web {} 3", one.endpoint));
    done(&proxy, &format!("disable web {}", three.endpoint));
    let as_set = "one one one two";
    let (code, said) = proxy.reload(&proxy.config);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(answers(&proxy, 4), as_set);
    let kept = std::fs::read_to_string(proxy.folder.join("services.json")).unwrap();
    proxy.signal(Signal::SIGTERM);
    proxy.wait();
    drop(proxy);
    let again = setup(&one);
    std::fs::write(again.folder.join("services.json"), &kept).unwrap();
    let Some(mut proxy) = again.start() else { return };
    assert_eq!(answers(&proxy, 4), as_set);
    let _other = crate::upgrade::upgrade(&proxy);
    proxy.wait();
    assert_eq!(answers(&proxy, 4), as_set);
    done(&proxy, &format!("enable web {}", three.endpoint));
    done(&proxy, &format!("set-weight web {} 1", one.endpoint));
    assert_eq!(answers(&proxy, 3), "one three two");
}

#[test]
fn adjustments_of_file_endpoints_last_until_the_next_reload() {
    let (one, two) = (app("one"), app("two"));
    let setup = setup(&one)
        .with("clusters.default.endpoints", json!([one.endpoint, two.endpoint]))
        .with("clusters.default.balance", "round_robin")
        .with("routes", json!([{"name": "file", "cluster": "default"}]));
    let Some(proxy) = setup.start() else { return };
    let note = "default is a cluster of the configuration file: the change lasts until the next reload, \
                restart or upgrade\n";
    for command in
        [format!("disable default {}", one.endpoint), format!("set-weight default {} 9", two.endpoint)]
    {
        assert_eq!(sluice(&proxy, &command), (Some(0), note.to_owned()));
    }
    assert_eq!(answers(&proxy, 3), "two two two");
    assert!(
        refused(&proxy, &format!("disable default {}", two.endpoint)).contains("the last target of default")
    );
    let (code, said) = proxy.reload(&proxy.config);
    assert!(code == Some(0) && said.contains("its endpoints are reset to the file"), "{said}");
    assert_eq!(answers(&proxy, 4), "one one two two");
}

#[test]
fn each_target_has_metrics_until_it_is_removed() {
    let (file, one, two, new) = (app("file"), app("one"), app("two"), app("new"));
    let Some(proxy) = setup(&file).start() else { return };
    deployed(&proxy, &one, &two);
    assert_eq!(answers(&proxy, 4), "one one two two");
    let labels =
        |target: &Origin| format!("{{route=\"web\",cluster=\"web\",endpoint=\"{}\"", target.endpoint);
    let has = |what: &str| proxy.admin("/metrics").text().contains(what);
    for target in [&one, &two] {
        poll("what was counted", || {
            has(&format!("sluice_requests_total{},class=\"2xx\"}} 2\n", labels(target))).then_some(())
        });
        assert!(has(&format!("sluice_requests_total{},class=\"5xx\"}} 0\n", labels(target))));
        assert!(has(&format!("sluice_upstream_duration_seconds_count{}}} 2\n", labels(target))));
        let of_endpoint = format!("{{cluster=\"web\",endpoint=\"{}\"}}", target.endpoint);
        assert_eq!(proxy.metric(&format!("sluice_endpoint_in_flight{of_endpoint}")), 0.0);
    }
    let targets = format!("{},{}", two.endpoint, new.endpoint);
    done(&proxy, &format!("deploy web --target {targets} --host svc.test"));
    // A kept connection must not keep the target's series alive.
    let mut kept = proxy.connect();
    assert_eq!(kept.ask(get("/")).status(), 200);
    poll("the series of the first target to go", || (!has(&one.endpoint)).then_some(()));
    assert!(has(&format!("sluice_requests_total{}", labels(&two))), "it is still there");
    done(&proxy, "remove web");
    poll("all of them to go", || (!has("cluster=\"web\"")).then_some(()));
    assert_eq!(kept.ask(get("/")).status(), 404);
}
