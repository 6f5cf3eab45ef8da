//! Three members with load on each, and what operators do with them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use sluice_testkit::process::free_ports;

use super::super::client::Client;
use super::super::discovery::{APPLICATIONS, Applications};
use super::super::etcd::{POLL, TRIES};
use super::super::load::{FEW, Judge, Load};
use super::super::site::{HOST, Outcome, Site, local};

const MEMBERS: usize = 3;
/// Responses to our own clients of each member between two deploys.
const BETWEEN: u64 = 20;
const FLAGS: &str = "--host app.test --health-check-interval 50ms";

/// The deploy of each port. Earlier ones than the last that is done are drained on every member.
#[derive(Default)]
struct Book {
    deploys: Mutex<BTreeMap<u16, u64>>,
    done: AtomicU64,
}

impl Judge for Book {
    fn least(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }

    fn number(&self, text: &str) -> Result<u64> {
        let port: u16 = text.trim().parse().with_context(|| format!("response {text:?}"))?;
        let deploys = self.deploys.lock().unwrap_or_else(PoisonError::into_inner);
        deploys.get(&port).copied().with_context(|| format!("port {port} was not deployed"))
    }
}

/// Three members, with load on each.
pub(super) struct Scene {
    name: String,
    binary: PathBuf,
    store: Value,
    sites: Vec<Site>,
    loads: Vec<Load>,
    book: Arc<Book>,
    applications: Applications,
    deploys: u64,
}

impl Scene {
    /// Starts them, with a first deploy.
    ///
    /// # Errors
    /// They do not serve it.
    pub(super) fn start(name: &str, binary: &Path, store: &Value) -> Result<Self> {
        let applications = Applications::start(name)?;
        let mut scene = Self {
            name: name.to_owned(),
            binary: binary.to_owned(),
            store: store.clone(),
            sites: Vec::new(),
            loads: Vec::new(),
            book: Arc::default(),
            applications,
            deploys: 0,
        };
        for member in 0..MEMBERS {
            let [address] = free_ports(std::net::Ipv4Addr::LOCALHOST.into())?.map(local);
            let site = scene.member(member, address)?;
            scene.sites.push(site);
        }
        scene.until(|scene| scene.members(0).is_ok_and(|members| members == MEMBERS), "three members")?;
        scene.deploy(0)?;
        for (member, site) in scene.sites.iter().enumerate() {
            scene.loads.push(Load::start(
                &format!("{name}-{member}"),
                FEW,
                site,
                Arc::<Book>::clone(&scene.book),
            )?);
        }
        scene.serve()?;
        Ok(scene)
    }

    fn member(&self, member: usize, address: SocketAddr) -> Result<Site> {
        let mut store = self.store.clone();
        store["member"] = json!(format!("web{member}"));
        store["confirm_timeout"] = json!("5s");
        store["first_timeout"] = json!("1s");
        if self.store["consul"].is_null() {
            store["member_ttl"] = json!("3s");
        }
        let keys = json!({"store": store, "workers": 1, "listeners": [{"name": "web", "address": address}]});
        Site::start_at(&format!("{}-{member}", self.name), &self.binary, address, keys)
    }

    /// Members that a member sees.
    fn members(&self, member: usize) -> Result<usize> {
        let said = self.sites[member].must("list --fleet")?;
        said.split(' ').next().and_then(|count| count.parse().ok()).context(said)
    }

    fn until(&mut self, is_so: impl Fn(&Self) -> bool, what: &str) -> Result<()> {
        for _ in 0..TRIES {
            if is_so(self) {
                return Ok(());
            }
            thread::sleep(POLL);
        }
        bail!("{what}: not in time\n{}", self.sites[0].sluice.tail())
    }

    /// Waits until each member has answered some more requests.
    fn serve(&mut self) -> Result<()> {
        self.loads.iter_mut().try_for_each(|load| load.wait_for(BETWEEN))
    }

    /// Deploys the next application from a member; all members serve it then.
    fn deploy(&mut self, member: usize) -> Result<()> {
        let Outcome { code, said } = self.try_deploy(member)?;
        ensure!(code == Some(0), "deploy {} from member {member}: {code:?} {said}", self.deploys);
        Ok(())
    }

    fn try_deploy(&mut self, member: usize) -> Result<Outcome> {
        self.deploys += 1;
        let at = usize::try_from(self.deploys)? % APPLICATIONS;
        let (deploy, port) = (self.deploys, self.applications.ports[at]);
        self.book.deploys.lock().unwrap_or_else(PoisonError::into_inner).insert(port, deploy);
        let line = format!("deploy app --target {} {FLAGS}", self.applications.address(at));
        let outcome = self.sites[member].run(&line)?;
        if outcome.code == Some(0) {
            self.book.done.store(deploy, Ordering::Release);
            for site in &self.sites {
                let answer = Client::connect(site.address)?.get("/", true)?;
                ensure!(answer.text.trim() == port.to_string(), "{}: {}", site.address, answer.text);
            }
        } else {
            // Nothing has changed, so that the port may be tried again.
            self.deploys -= 1;
        }
        Ok(outcome)
    }

    /// Deploys from one member after the other.
    ///
    /// # Errors
    /// One fails.
    pub(super) fn deploy_many(&mut self, count: usize) -> Result<()> {
        for number in 0..count {
            self.deploy(number % MEMBERS)?;
            self.serve()?;
        }
        Ok(())
    }

    /// Pauses on one member and resumes on another: no request fails. Then stops and resumes a second service.
    ///
    /// # Errors
    /// A member serves something else than the others.
    pub(super) fn hold_and_resume(&mut self) -> Result<()> {
        self.sites[0].must("pause app")?;
        let answered = self.loads.iter().map(Load::answers).sum::<u64>();
        for site in &self.sites {
            ensure!(site.must("list")?.contains("paused"), "a member is not paused");
        }
        thread::sleep(POLL * 4);
        let since = self.loads.iter().map(Load::answers).sum::<u64>() - answered;
        let clients = self.loads.iter().map(Load::clients).sum::<u64>();
        ensure!(since <= clients, "{since} responses while it was paused");
        self.sites[1].must("resume app")?;
        self.serve()?;
        let target = self.applications.address(0);
        self.sites[2].must(&format!("deploy other --host other.test --target {target}"))?;
        self.sites[0].must("stop other --message closed")?;
        for site in &self.sites {
            ensure!(site.must("list")?.contains("stopped"), "a member is not stopped");
        }
        self.sites[1].must("remove other")?;
        for site in &self.sites {
            ensure!(!site.must("list")?.contains("other"), "a member has a service that was removed");
        }
        self.serve()
    }

    /// Two operators deploy other services at the same time, again and again: none is lost.
    ///
    /// # Errors
    /// One is lost, or a member has others.
    pub(super) fn two_operators(&mut self) -> Result<()> {
        let target = self.applications.address(0);
        let lines: Vec<Vec<String>> = (0..MEMBERS)
            .map(|member| {
                let line = |number| {
                    format!("deploy s{member}-{number} --host s{member}-{number}.test --target {target}")
                };
                (0..5).map(line).collect()
            })
            .collect();
        thread::scope(|scope| {
            let operators = self.sites.iter().zip(&lines).map(|(site, lines)| {
                scope.spawn(move || lines.iter().try_for_each(|line| site.must(line).map(drop)))
            });
            let operators: Vec<_> = operators.collect();
            operators.into_iter().try_for_each(|one| one.join().unwrap_or_else(|_| bail!("panicked")))
        })?;
        for site in &self.sites {
            let listed = site.must("list")?;
            let missing: Vec<_> = (0..MEMBERS)
                .flat_map(|member| (0..5).map(move |number| format!("s{member}-{number}.test")))
                .filter(|host| !listed.contains(host))
                .collect();
            ensure!(missing.is_empty(), "{missing:?} are missing in\n{listed}");
        }
        // The same host for two services: only one of them may have it.
        let clash = |name: &str| format!("deploy {name} --host clash.test --target {target}");
        let outcomes = thread::scope(|scope| {
            let [one, two] = [(0, "clash-a"), (1, "clash-b")].map(|(member, name)| {
                let (site, line) = (&self.sites[member], clash(name));
                scope.spawn(move || site.run(&line))
            });
            [one, two].map(|one| one.join().unwrap_or_else(|_| bail!("panicked")))
        });
        let codes = outcomes.map(|outcome| outcome.map(|outcome| outcome.code)).into_iter();
        let mut codes = codes.collect::<Result<Vec<_>>>()?;
        codes.sort_unstable();
        ensure!(codes == [Some(0), Some(1)], "two services got the same host: {codes:?}");
        self.serve()
    }

    /// A ban on one member is one on all, and so is its end.
    ///
    /// # Errors
    /// It does not reach a member.
    pub(super) fn bans_reach_all(&mut self) -> Result<()> {
        const CLIENT: &str = "203.0.113.7";
        self.sites[0].must(&format!("bans add {CLIENT} --for 10m"))?;
        let is_banned = |site: &Site| site.must("bans list").is_ok_and(|said| said.contains(CLIENT));
        self.until(|scene| scene.sites.iter().all(is_banned), "a ban on all members")?;
        self.sites[1].must(&format!("bans remove {CLIENT}"))?;
        self.until(|scene| !scene.sites.iter().any(is_banned), "no ban on any member")?;
        self.serve()
    }

    /// A deploy of targets that nobody answers is refused, and says which members have found that.
    ///
    /// # Errors
    /// It is not, or something has changed.
    pub(super) fn unhealthy_targets_change_nothing(&mut self) -> Result<()> {
        let [closed] = free_ports(std::net::Ipv4Addr::LOCALHOST.into())?.map(local);
        let line = format!("deploy app --target {closed} {FLAGS} --deploy-timeout 1s");
        let Outcome { code, said } = self.sites[1].run(&line)?;
        // The first member that has found it ends the wait.
        let is_named = ["web0", "web2"].iter().any(|member| said.contains(&format!("{member}: {closed}: ")));
        ensure!(code == Some(1) && is_named, "{code:?} {said}");
        self.serve()
    }

    /// Changes are refused while the store is away, and what is deployed is served.
    ///
    /// # Errors
    /// It is otherwise.
    pub(super) fn is_refused(&mut self) -> Result<()> {
        let Outcome { code, said } = self.try_deploy(1)?;
        ensure!(code == Some(1), "a change without the store: {code:?} {said}");
        let is_aloud = ["nothing has changed", "has not confirmed"].iter().any(|text| said.contains(text));
        ensure!(is_aloud, "{said}");
        self.serve()
    }

    /// Deploys as soon as the store takes it.
    ///
    /// # Errors
    /// It does not, or a member does not follow.
    pub(super) fn deploy_until_accepted(&mut self) -> Result<()> {
        let mut last = String::new();
        for _ in 0..TRIES {
            let Outcome { code, said } = self.try_deploy(2)?;
            if code == Some(0) {
                return self.serve();
            }
            last = said;
            thread::sleep(POLL);
        }
        bail!("no deploy is accepted: {last}")
    }

    /// Restarts a member while the store is away: it serves what it last knew.
    ///
    /// # Errors
    /// It does not.
    pub(super) fn restart_member(&mut self, member: usize) -> Result<()> {
        let load = self.loads.remove(member);
        load.finish()?;
        self.sites[member].restart()?;
        let answer = Client::connect(self.sites[member].address)?.get("/", true)?;
        ensure!(answer.status == 200, "{HOST} after a restart: {}", answer.text);
        let load = Load::start(
            &format!("{}-{member}-again", self.name),
            FEW,
            &self.sites[member],
            Arc::<Book>::clone(&self.book),
        )?;
        self.loads.insert(member, load);
        self.serve()
    }

    /// A member that comes later serves what the others have. Then everything stops.
    ///
    /// # Errors
    /// It does not, or a request has failed.
    pub(super) fn finish(mut self) -> Result<String> {
        let [address] = free_ports(std::net::Ipv4Addr::LOCALHOST.into())?.map(local);
        let late = self.member(MEMBERS, address)?;
        let wanted = Client::connect(self.sites[0].address)?.get("/", true)?.text;
        let answer = Client::connect(late.address)?.get("/", true)?;
        ensure!(answer.text == wanted, "a new member serves {} {}", answer.status, answer.text);
        self.sites.push(late);
        self.until(|scene| scene.members(0).is_ok_and(|members| members == MEMBERS + 1), "four members")?;
        self.deploy(MEMBERS)?;
        self.serve()?;
        let said = self.loads.into_iter().map(Load::finish).collect::<Result<Vec<_>>>()?;
        for mut site in self.sites {
            site.sluice.stop()?;
        }
        Ok(format!("{} deploys: {}", self.deploys, said.join("; ")))
    }
}
