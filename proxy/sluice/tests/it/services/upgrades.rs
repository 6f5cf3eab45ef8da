//! Changes during an upgrade, and upgrades during a change: the second one is refused, and no state is lost.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::support::{poll, script};
use crate::upgrade::{upgrade, upgrade_with};

/// A binary that becomes sluice when something is written to the pipe `go`; it creates the file `begun` before.
fn patient_binary(proxy: &Proxy) -> String {
    let at = |name: &str| proxy.folder.join(name).display().to_string();
    assert!(Command::new("mkfifo").arg(at("go")).status().unwrap().success());
    let sluice = env!("CARGO_BIN_EXE_sluice");
    let text = format!("#!/bin/sh\n: > '{}'\nread _ < '{}'\nexec '{sluice}' \"$@\"\n", at("begun"), at("go"));
    let path = at("patient");
    script(&path, &text);
    path
}

#[test]
fn a_change_during_an_upgrade_is_refused() {
    let (old, new) = (app("old"), app("new"));
    let Some(mut proxy) = setup(&old).start() else { return };
    done(&proxy, &format!("deploy web --target {} --host svc.test", old.endpoint));
    let deploy = format!("deploy web --target {} --host svc.test", new.endpoint);
    let (_, table) = sluice(&proxy, "list");
    let binary = patient_binary(&proxy);
    let busy = "an upgrade is in progress; nothing has changed, try again when it has finished\n";
    let next = std::thread::scope(|scope| {
        let next = scope.spawn(|| upgrade_with(&proxy, &["--binary", &binary]));
        poll("the new process", || proxy.folder.join("begun").exists().then_some(()));
        let target = format!("set-weight web {} 2", old.endpoint);
        for line in [deploy.as_str(), "pause web", "remove web", "rollout stop web", &target] {
            assert_eq!(sluice(&proxy, line), (Some(1), format!("Error: {busy}")), "{line}");
        }
        assert_eq!(proxy.command("reload", &[]), (Some(1), format!("sluice: {busy}")));
        assert_eq!(
            proxy.command("upgrade", &[]),
            (Some(1), "sluice: another upgrade is in progress\n".to_owned())
        );
        assert_eq!(said(&ask(&proxy, "/")), "old");
        std::fs::write(proxy.folder.join("go"), "\n").unwrap();
        next.join().unwrap()
    });
    proxy.wait();
    assert_eq!(sluice(&proxy, "list"), (Some(0), table));
    assert_eq!(said(&ask(&proxy, "/")), "old");
    done(&proxy, &deploy);
    assert_eq!(said(&ask(&proxy, "/")), "new");
    drop(next);
}

#[test]
fn an_upgrade_during_a_deploy_is_refused() {
    static WELL: AtomicBool = AtomicBool::new(false);
    let old = app("old");
    let new = Origin::answering(|request| match (request.target(), WELL.load(Ordering::Relaxed)) {
        ("/up", false) => b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n".to_vec(),
        _ => ok("new"),
    });
    let Some(mut proxy) = setup(&old).start() else { return };
    done(&proxy, &format!("deploy web --target {} --host svc.test", old.endpoint));
    let line = format!("deploy web --target {} --host svc.test --health-check-interval 20ms", new.endpoint);
    let mut deploy = command(&proxy, &line).spawn().unwrap();
    poll("a check of the new target", || (!new.requests().is_empty()).then_some(()));
    let busy = "sluice: deploy of web is in progress; nothing has changed, try again when it has finished\n";
    assert_eq!(proxy.command("upgrade", &[]), (Some(1), busy.to_owned()));
    WELL.store(true, Ordering::Relaxed);
    assert!(deploy.wait().unwrap().success());
    assert_eq!(said(&ask(&proxy, "/")), "new");
    // A failed one is over.
    assert_eq!(proxy.command("upgrade", &["--binary", "/bin/false"]).0, Some(1));
    done(&proxy, &format!("set-weight web {} 3", new.endpoint));
    let _next = upgrade(&proxy);
    assert_eq!(proxy.wait().code(), Some(0));
    assert_eq!(said(&ask(&proxy, "/")), "new");
    let kept = std::fs::read_to_string(proxy.folder.join("services.json")).unwrap();
    let kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
    assert_eq!(kept["services"][0]["active_adjusted"][&new.endpoint]["weight"], 3);
}
