//! Limits of how many requests a client may send in a time. Shared by the workers; survives a reload.

mod gcra;
mod judge;
mod served;
mod table;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use gcra::{Pace, Step};
pub use judge::{PaceRules, RateCall, RateJudge, RateQuestion, Ruling};
use serde::{Deserialize, Serialize};
use served::ServedCounts;
use sluice_config::{self as config, Excess, Sharing};
pub use table::ClientKey;
use table::Table;

/// Maximum number of clients that are passed to another process: it must not take long to start.
const PASSED_MAX: usize = 100_000;
/// Clients in one piece: at most 45 bytes each as text, and a packet has 64 KiB.
const PIECE: usize = 1000;

/// A limit with the clients that it knows.
pub struct RateLimiter {
    /// Its name.
    pub name: String,
    /// Its rules.
    pub config: config::RateLimit,
    pace: Pace,
    memory: Arc<Memory>,
}

/// What outlives a change of the rules.
struct Memory {
    table: Table,
    counts: Counts,
    /// What others of a fleet have to know.
    served: ServedCounts,
    /// Who decides for all members of a fleet, if the limit is exact and they can be asked.
    judge: ArcSwapOption<RateJudge>,
}

#[derive(Default)]
struct Counts {
    delayed: AtomicU64,
    rejected: AtomicU64,
    banned: AtomicU64,
    dry: AtomicU64,
    alone: AtomicU64,
}

/// What becomes of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is within the limit.
    Within,
    /// It waits for this long.
    Wait(Duration),
    /// It is beyond the limit; another one is possible after this time.
    Beyond(Duration),
}

/// Clients on their way to another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownClients {
    /// The name of the limit.
    pub limit: String,
    /// What the keys are made with.
    seed: [u64; 2],
    /// Keys, and how far they are ahead of their time, in nanoseconds.
    known: Vec<[u64; 2]>,
}

/// A limit's counters, for display.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimitCounts {
    /// Its name.
    pub name: String,
    /// Requests that waited.
    pub delayed: u64,
    /// Requests that were refused, the one before a ban included.
    pub rejected: u64,
    /// Clients that were banned.
    pub banned: u64,
    /// Requests that would have been refused or have waited, but for `dry_run`.
    pub dry: u64,
    /// Clients that were forgotten before their time, because the table was full.
    pub forgotten: u64,
    /// Requests that an exact limit counted alone, because it had no answer of the fleet's store.
    pub alone: u64,
}

impl RateLimiter {
    /// A limit of the configuration; continues with the clients of the one that had its name before.
    pub fn new(name: &str, config: &config::RateLimit, before: Option<&Self>) -> Self {
        let same = |before: &&Self| {
            (&before.config.key, before.config.clients_max) == (&config.key, config.clients_max)
        };
        let fresh = || {
            Arc::new(Memory {
                table: Table::new(config.clients_max),
                counts: Counts::default(),
                served: ServedCounts::default(),
                judge: ArcSwapOption::empty(),
            })
        };
        let rate = config.rate;
        let delays = config.then == Excess::Delay;
        Self {
            name: name.to_owned(),
            pace: Pace::new(rate.requests.into(), rate.period_ms * 1_000_000, config.burst().into(), delays),
            memory: before.filter(same).map_or_else(fresh, |before| Arc::clone(&before.memory)),
            config: config.clone(),
        }
    }

    /// Counts a request of a client at a time of [`crate::clock::now_ns`]. With `dry_run` it is always within.
    pub fn count(&self, client: ClientKey<'_>, now_ns: u64) -> Verdict {
        let (key, step) = self.memory.table.step(self.pace, client, now_ns);
        if self.config.shared == Sharing::Approximate && !matches!(step, Step::Refuse { .. }) {
            self.memory.served.count(key);
        }
        self.verdict(step.into())
    }

    /// Whether the fleet's store has to be asked for each request.
    pub fn is_exact(&self) -> bool {
        self.config.shared == Sharing::Exact
    }

    /// The key by which a client counts, for [`Self::count_exactly`].
    pub fn key(&self, client: ClientKey<'_>) -> u64 {
        self.memory.table.key(client)
    }

    /// Counts a request by asking for the whole fleet. Without an answer it counts by what is known here.
    pub async fn count_exactly(&self, key: u64, now_ns: u64) -> Verdict {
        let (table, pace) = (&self.memory.table, self.pace);
        // Here is what the store has said to this member, and what was counted without it: who is refused by that is refused
        // without a question.
        let known = table.foresee(pace, key, now_ns);
        if let Step::Refuse { .. } = known {
            return self.verdict(known.into());
        }
        let ruling = match self.memory.judge.load_full() {
            Some(judge) => judge.ask(self, key).await,
            None => None,
        };
        let Some(ruling) = ruling else {
            self.memory.counts.alone.fetch_add(1, Ordering::Relaxed);
            return self.verdict(table.step_of(pace, key, now_ns).into());
        };
        match ruling {
            Ruling::Refuse(after) => table.refuse_for(pace, key, nanos(after), now_ns),
            Ruling::Serve | Ruling::Wait(_) => table.advance(pace, key, 1, now_ns),
        }
        self.verdict(ruling)
    }

    /// Names who decides for the whole fleet, if the limit is exact.
    pub fn set_judge(&self, judge: Option<&Arc<RateJudge>>) {
        self.memory.judge.store(judge.filter(|_| self.is_exact()).map(Arc::clone));
    }

    fn verdict(&self, ruling: Ruling) -> Verdict {
        let verdict = match ruling {
            Ruling::Serve => return Verdict::Within,
            Ruling::Wait(wait) => Verdict::Wait(wait),
            Ruling::Refuse(after) => Verdict::Beyond(after),
        };
        let counts = &self.memory.counts;
        let count = match verdict {
            _ if self.config.dry_run => &counts.dry,
            Verdict::Wait(_) => &counts.delayed,
            _ => &counts.rejected,
        };
        count.fetch_add(1, Ordering::Relaxed);
        if self.config.dry_run { Verdict::Within } else { verdict }
    }

    /// Forgets what a client sent, if the limit counts by address.
    pub fn forget(&self, client: IpAddr) {
        let client = ClientKey::Address(crate::client::share(client));
        self.memory.table.forget(client);
        if let Some(judge) = self.memory.judge.load_full() {
            judge.forget(self, self.key(client));
        }
    }

    /// What another process needs to continue, in pieces.
    pub fn known_clients(&self, now_ns: u64) -> Vec<KnownClients> {
        let table = &self.memory.table;
        let known = table.known(now_ns, PASSED_MAX);
        let piece = |known: &[[u64; 2]]| KnownClients {
            limit: self.name.clone(),
            seed: table.seed(),
            known: known.to_vec(),
        };
        known.chunks(PIECE).map(piece).collect()
    }

    /// Continues with the clients of another process; call it before the first request.
    pub fn inherit(&self, clients: &KnownClients, now_ns: u64) {
        self.memory.table.inherit(clients.seed, &clients.known, now_ns);
    }

    /// What was served since the last time, by keys that are the same wherever the seed is: the clients that sent most, at
    /// most some.
    pub fn take_served(&self, most: usize) -> Vec<(u64, u32)> {
        self.memory.served.take(most)
    }

    /// Counts what another member of the fleet has served.
    pub fn add_served(&self, served: &[(u64, u32)], now_ns: u64) {
        for (key, count) in served {
            self.memory.table.advance(self.pace, *key, (*count).into(), now_ns);
        }
    }

    /// Makes keys with this seed from now on. If it is another one, all clients are forgotten.
    pub fn set_seed(&self, seed: [u64; 2]) {
        self.memory.table.set_seed(seed);
    }

    /// Counts a client that was banned.
    pub fn count_ban(&self) {
        self.memory.counts.banned.fetch_add(1, Ordering::Relaxed);
    }

    /// The counters.
    pub fn counts(&self) -> RateLimitCounts {
        let counts = &self.memory.counts;
        RateLimitCounts {
            name: self.name.clone(),
            delayed: counts.delayed.load(Ordering::Relaxed),
            rejected: counts.rejected.load(Ordering::Relaxed),
            banned: counts.banned.load(Ordering::Relaxed),
            dry: counts.dry.load(Ordering::Relaxed),
            forgotten: self.memory.table.forgotten(),
            alone: counts.alone.load(Ordering::Relaxed),
        }
    }

    /// The fields of a 429 that say when to come again (RFC 9110 10.2.3; draft-ietf-httpapi-ratelimit-headers-10).
    pub fn fields(&self, after: Duration) -> [(&'static [u8], Vec<u8>); 3] {
        // Rounded up: one who comes at the time that is named must be served.
        let seconds = after.as_millis().div_ceil(1000).max(1);
        let (name, window) = (&self.name, self.config.rate.period_ms.div_ceil(1000));
        let quota = self.config.rate.requests;
        [
            (b"Retry-After", seconds.to_string().into_bytes()),
            (b"RateLimit-Policy", format!("\"{name}\";q={quota};w={window}").into_bytes()),
            (b"RateLimit", format!("\"{name}\";r=0;t={seconds}").into_bytes()),
        ]
    }

    /// Which client sent a request. One without the field or cookie counts by its address.
    pub fn client<'a>(&self, address: IpAddr, value: Option<&'a [u8]>) -> ClientKey<'a> {
        match value {
            Some(value) => ClientKey::Value(value),
            None => ClientKey::Address(crate::client::share(address)),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use sluice_config::Rate;

    use super::*;

    fn limit() -> config::RateLimit {
        config::RateLimit {
            rate: Rate { requests: 1, period_ms: 60_000 },
            burst: Some(2),
            ..config::RateLimit::default()
        }
    }

    fn ask(limiter: &RateLimiter) -> Verdict {
        let client = limiter.client([192, 0, 2, 1].into(), None);
        limiter.count(client, 1_000_000_000)
    }

    #[test]
    fn clients_and_counts_outlive_a_change_of_the_rate() {
        let first = RateLimiter::new("login", &limit(), None);
        assert_eq!([ask(&first), ask(&first)], [Verdict::Within; 2]);
        assert_eq!(ask(&first), Verdict::Beyond(Duration::from_secs(60)));
        let wider = config::RateLimit { burst: Some(3), ..limit() };
        let second = RateLimiter::new("login", &wider, Some(&first));
        assert_eq!(ask(&second), Verdict::Within);
        assert_eq!(ask(&second), Verdict::Beyond(Duration::from_secs(60)));
        assert_eq!(second.counts().rejected, 2);
        let other = config::RateLimit { key: config::HashKey::Header("x-key".to_owned()), ..wider };
        assert_eq!(ask(&RateLimiter::new("login", &other, Some(&second))), Verdict::Within);
    }

    #[test]
    fn clients_outlive_the_process() {
        let first = RateLimiter::new("login", &limit(), None);
        assert_eq!([ask(&first), ask(&first)], [Verdict::Within; 2]);
        let second = RateLimiter::new("login", &limit(), None);
        // Clocks begin with their process.
        first.known_clients(1_000_000_000).iter().for_each(|known| second.inherit(known, 1_000_000_000));
        assert_eq!(ask(&second), Verdict::Beyond(Duration::from_secs(60)));
    }

    #[test]
    fn a_dry_run_only_counts() {
        let limiter = RateLimiter::new("dry", &config::RateLimit { dry_run: true, ..limit() }, None);
        assert!((0..5).all(|_| ask(&limiter) == Verdict::Within));
        assert_eq!((limiter.counts().dry, limiter.counts().rejected), (3, 0));
    }

    #[test]
    fn the_fields_round_up() {
        let limiter = RateLimiter::new("login", &limit(), None);
        let text =
            |after| limiter.fields(after).map(|(_, value)| String::from_utf8(value).unwrap_or_default());
        assert_eq!(text(Duration::from_millis(1001)), ["2", "\"login\";q=1;w=60", "\"login\";r=0;t=2"]);
        assert_eq!(text(Duration::ZERO)[0], "1");
    }

    /// What members serve of one greedy client who asks all of them all the time, by their sum, after some seconds.
    fn served_by(members: usize, seconds: u64, delay_ms: u64) -> u64 {
        let config = config::RateLimit {
            rate: Rate { requests: 10, period_ms: 1000 },
            burst: Some(20),
            shared: Sharing::Approximate,
            ..config::RateLimit::default()
        };
        let limiters: Vec<_> = (0..members).map(|_| RateLimiter::new("a", &config, None)).collect();
        limiters.iter().for_each(|limiter| limiter.set_seed([1, 2]));
        let (mut served, mut reports) = (0, Vec::new());
        for ms in 0..seconds * 1000 {
            let now_ns = (1000 + ms) * 1_000_000;
            for limiter in &limiters {
                let client = limiter.client([192, 0, 2, 1].into(), None);
                served += u64::from(limiter.count(client, now_ns) == Verdict::Within);
            }
            if ms % 1000 == 999 {
                let taken = limiters.iter().enumerate().map(|(of, limiter)| (of, limiter.take_served(100)));
                reports.push((ms + delay_ms, taken.collect::<Vec<_>>()));
            }
            if reports.first().is_some_and(|(at, _)| *at <= ms) {
                for (of, served) in reports.remove(0).1 {
                    let others = limiters.iter().enumerate().filter(|(other, _)| *other != of);
                    others.for_each(|(_, limiter)| limiter.add_served(&served, now_ns));
                }
            }
        }
        served
    }

    #[test]
    fn members_together_serve_the_rate_and_once_what_they_did_not_know_yet() {
        for (members, delay_ms) in [(1, 0), (2, 100), (3, 200), (10, 500)] {
            let seconds = 300;
            let served = served_by(members, seconds, delay_ms);
            let rate = 10 * seconds;
            // Each its burst, and the rate until it hears of the others.
            let unknown = members as u64 * (20 + 10 * (1000 + delay_ms) / 1000);
            assert!(served <= rate + unknown, "{members}: {served}");
            assert!(served + unknown >= rate, "{members}: {served}");
        }
    }

    /// Answers as the store does: one table for all, by its own clock.
    async fn judge_all(mut calls: tokio::sync::mpsc::Receiver<RateCall>, mut now_ns: u64) {
        let table = Table::new(1000);
        while let Some(RateCall::Decide(question)) = calls.recv().await {
            let PaceRules { interval_ns, tolerance_ns, delays } = question.pace;
            let burst = tolerance_ns / interval_ns + u64::from(!delays);
            let pace = Pace::new(1, interval_ns, burst, delays);
            now_ns += 1;
            let _ = question.answer.send(table.step_of(pace, question.key, now_ns).into());
        }
    }

    #[tokio::test]
    async fn an_exact_limit_serves_what_all_together_may_have() {
        let exact = config::RateLimit { shared: Sharing::Exact, burst: Some(5), ..limit() };
        let limiters = [0; 3].map(|_| RateLimiter::new("a", &exact, None));
        let (judge, questions) = RateJudge::new();
        let judge = Arc::new(judge);
        limiters.iter().for_each(|limiter| {
            limiter.set_seed([1, 2]);
            limiter.set_judge(Some(&judge));
        });
        tokio::spawn(judge_all(questions, 7_000_000_000_000));
        let ask = async |limiter: &RateLimiter| {
            let client = limiter.client([192, 0, 2, 1].into(), None);
            limiter.count_exactly(limiter.key(client), 1_000_000_000).await
        };
        let mut served = 0;
        for limiter in limiters.iter().cycle().take(30) {
            served += u32::from(ask(limiter).await == Verdict::Within);
        }
        assert_eq!(served, 5);
        assert!(limiters.iter().all(|limiter| limiter.counts().alone == 0));

        // Who is refused once is refused without a question, until it may come again.
        judge.set_away(true);
        assert!(matches!(ask(&limiters[0]).await, Verdict::Beyond(_)));
        assert_eq!(limiters[0].counts().alone, 0);
        let other = limiters[0].key(limiters[0].client([192, 0, 2, 2].into(), None));
        assert_eq!(limiters[0].count_exactly(other, 1_000_000_000).await, Verdict::Within);
        assert_eq!(limiters[0].counts().alone, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn without_an_answer_a_limit_counts_alone() {
        let exact = config::RateLimit { shared: Sharing::Exact, ..limit() };
        let limiter = RateLimiter::new("a", &exact, None);
        let (judge, _questions) = RateJudge::new();
        limiter.set_judge(Some(&Arc::new(judge)));
        let mut verdicts = Vec::new();
        for _ in 0..3 {
            let client = limiter.client([192, 0, 2, 1].into(), None);
            let key = limiter.key(client);
            verdicts.push(limiter.count_exactly(key, 1_000_000_000).await == Verdict::Within);
        }
        assert_eq!(verdicts, [true, true, false]);
        assert_eq!(limiter.counts().alone, 2);
    }

    #[test]
    fn another_seed_forgets() {
        let shared = config::RateLimit { shared: Sharing::Approximate, ..limit() };
        let limiter = RateLimiter::new("a", &shared, None);
        assert_eq!([ask(&limiter), ask(&limiter)], [Verdict::Within; 2]);
        limiter.set_seed([3, 4]);
        assert_eq!([ask(&limiter), ask(&limiter)], [Verdict::Within; 2]);
        limiter.set_seed([3, 4]);
        assert_ne!(ask(&limiter), Verdict::Within);
        assert_eq!(limiter.take_served(10).iter().map(|(_, count)| count).sum::<u32>(), 4);
        assert!(limiter.take_served(10).is_empty());
    }
}
