//! What a fleet costs its store: hundreds of members in one process, with real clients, against a real engine. Run by
//! `bench/fleet.py`, which starts the engine and reads what it has spent.

use std::collections::BTreeSet;
use std::io::{BufRead, Write};
use std::rc::Rc;
use std::time::{Duration, Instant};

use sluice_config::{Config, Store};
use sluice_core::service::model::Service;
use tokio::task::LocalSet;
use tokio::time::sleep;

use super::state::{Head, Proposal, ServiceChange, new_id};
use super::{Fleet, Readiness, first};

/// Reached only by a hang.
const PATIENCE: Duration = Duration::from_secs(120);

fn config(text: &str) -> Store {
    let whole = format!(
        "listeners: [{{address: '127.0.0.1:1'}}]\nclusters: {{a: {{endpoints: ['127.0.0.1:2']}}}}\nstore: {text}\n"
    );
    let config: Config = sluice_config::parse("simulation", &whole, &[]).expect("a store");
    config.store.expect("a store")
}

/// A member that serves at once what it sees, and finds every target healthy.
fn join(config: &Store) -> Rc<Fleet> {
    let fleet = Fleet::new(config, None).expect("a member");
    let (following, announcing, serving) = (Rc::clone(&fleet), Rc::clone(&fleet), Rc::clone(&fleet));
    tokio::task::spawn_local(async move { following.follow().await });
    tokio::task::spawn_local(async move { announcing.announce().await });
    tokio::task::spawn_local(async move {
        let mut changes = serving.changes();
        while changes.changed().await.is_ok() {
            let head = Head::of(&serving.keys()).unwrap_or_default();
            let proposals = Proposal::all(&serving.keys());
            serving.say(|report| {
                (report.applied, report.fleet) = (head.version, head.fleet);
                report.ready = proposals.into_keys().map(|id| (id, Readiness::Healthy)).collect();
            });
        }
    });
    fleet
}

fn service(number: usize, targets: usize) -> Service {
    let targets =
        (0..targets).map(|target| format!("10.{}.{}.{}:3000", number % 200, target / 250, target % 250));
    let mut service = Service { name: format!("service-{number}"), ..Service::default() };
    service.active_targets = targets.collect();
    service.options.hosts = vec![format!("service-{number}.example")];
    service
}

/// As `sluice deploy` does it: a proposal, the answers of all, the change, and all serve it.
async fn deploy(fleet: &Fleet, service: &Service, members: &BTreeSet<String>) {
    let id = new_id();
    let proposal = Proposal { owner: fleet.member.clone(), service: service.clone(), ..Proposal::default() };
    fleet.commit(&proposal.announcement(&id)).await.expect("a proposal");
    let missing = fleet.until_nothing_is_missing(PATIENCE, |all| all.without_check(&id, members)).await;
    assert!(missing.is_nothing(), "{missing:?}");
    let mut change = ServiceChange::after(&fleet.keys(), fleet.name(), "deploy");
    change.put(&super::state::Record { service: service.clone(), ..Default::default() });
    change.settle(&id);
    fleet.change(&change).await.expect("a change");
    let missing = fleet
        .until_nothing_is_missing(PATIENCE, |all| {
            all.without((&change.fleet, change.version), &service.name, members)
        })
        .await;
    assert!(missing.is_nothing(), "{missing:?}");
    let until = tokio::time::Instant::now() + PATIENCE;
    fleet.sees(until, |head| head.version >= change.version).await.expect("the own change");
}

/// Obeys lines of standard input, and answers each with one: `join N`, `idle SECONDS`, `deploy COUNT`, `services COUNT
/// TARGETS`, `read`, `end`.
#[test]
#[ignore = "run by bench/fleet.py"]
fn obey() {
    let Ok(store) = std::env::var("SLUICE_SIMULATED_STORE") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let mut members: Vec<Rc<Fleet>> = Vec::new();
        for line in std::io::stdin().lock().lines() {
            let line = line.expect("a line");
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words.get(at).and_then(|word| word.parse::<usize>().ok()).unwrap_or(0);
            let begun = Instant::now();
            match words[0] {
                "join" => {
                    while members.len() < number(1) {
                        let named = config(&store.replace("NAME", &format!("m{}", members.len())));
                        members.push(join(&named));
                    }
                    let wanted = members.len();
                    while members[0].members().await.map_or(0, |all| all.0.len()) < wanted {
                        sleep(Duration::from_millis(100)).await;
                    }
                }
                "idle" => sleep(Duration::from_secs(number(1) as u64)).await,
                "deploy" => {
                    members[0].until_seen().await;
                    let names = members[0].members().await.expect("the members").names();
                    for round in 0..number(1) {
                        deploy(&members[round % members.len()], &service(0, 3), &names).await;
                    }
                }
                "services" => {
                    members[0].until_seen().await;
                    for at in 0..number(1) {
                        let mut change = ServiceChange::after(&members[0].keys(), "m0", "many");
                        change.put(&super::state::Record {
                            service: service(at, number(2)),
                            ..Default::default()
                        });
                        members[0].change(&change).await.expect("a change");
                        let until = tokio::time::Instant::now() + PATIENCE;
                        members[0].sees(until, |head| head.version >= change.version).await.expect("it");
                    }
                }
                "read" => {
                    let named = config(&store.replace("NAME", "late"));
                    let keys = first(&named).await.expect("the keys");
                    assert!(keys.len() >= number(1));
                }
                _ => return,
            }
            println!("done {:.6}", begun.elapsed().as_secs_f64());
            std::io::stdout().flush().expect("standard output");
        }
    });
}
