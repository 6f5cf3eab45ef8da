//! Exact rate limits in Redis: a script decides for one request of one client, for all members at once. In a thread of its
//! own, so that commands on sluice and requests do not wait for each other.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Script, cmd};
use sluice_config::RedisStore;
use sluice_core::rate_limit::{PaceRules, RateCall, RateJudge, RateQuestion, Ruling};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::StoreError;
use super::redis::{OpenConnection, Server, said};

/// Key: the client's time. Arguments: the interval, the tolerance, whether requests wait, and whether the client may be a new
/// one; all times in microseconds. Returns what becomes of the request, and after how long. A client who has used up nothing has
/// no key.
const DECIDE: &str = "
local interval, tolerance = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = redis.call('TIME')
now = tonumber(now[1]) * 1000000 + tonumber(now[2])
local known = redis.call('GET', KEYS[1])
if not known and ARGV[4] ~= '1' then return {3, 0} end
local due = math.max(tonumber(known or '0') or 0, now)
local ahead = due - now
if ahead > tolerance then return {2, math.ceil(ahead - tolerance)} end
local life = math.ceil((ahead + interval) / 1000)
redis.call('SET', KEYS[1], string.format('%.3f', due + interval), 'PX', string.format('%.0f', life))
if ARGV[3] == '1' and ahead > 0 then return {1, math.ceil(ahead)} end
return {0, 0}";

/// Asked before it is believed that Redis answers, of a key of its own.
const PROBE: PaceRules = PaceRules { interval_ns: 1_000_000, tolerance_ns: 1_000_000_000, delays: false };

/// Between attempts to reach Redis again.
const AGAIN: Duration = Duration::from_secs(1);
/// Answers that are missing in a row until no request waits for one any more.
const MISSING_MAX: u32 = 3;

/// Starts the thread, which ends with the judge.
///
/// # Errors
/// Redis cannot be asked as configured, or there is no thread.
pub(crate) fn start(config: &RedisStore) -> Result<Arc<RateJudge>, StoreError> {
    let server = Server::new(config)?;
    let failed = |error: std::io::Error| StoreError::from(error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (judge, calls) = RateJudge::new();
    let judge = Arc::new(judge);
    judge.set_away(true);
    let asked = Arc::downgrade(&judge);
    let answer = move || {
        let script = Arc::new(Script::new(DECIDE));
        let patience = AGAIN;
        let mut court = Court { server, judge: asked, calls, script, patience, keys: HashMap::new() };
        runtime.block_on(court.sit());
    };
    thread::Builder::new().name("rates".to_owned()).spawn(answer).map_err(failed)?;
    Ok(judge)
}

/// Answers questions as long as somebody can ask them.
struct Court {
    server: Server,
    judge: Weak<RateJudge>,
    calls: mpsc::Receiver<RateCall>,
    script: Arc<Script>,
    /// How long Redis has to say that it is back: as long as the last request waited, and longer after each attempt.
    patience: Duration,
    /// By the name of the limit.
    keys: HashMap<String, NamedKeys>,
}

/// The keys that were named for a limit in the longest life of one. Clients choose what they are counted by, and must not fill
/// the memory of the store: there are at most two such times' keys of each member.
struct NamedKeys {
    since: Instant,
    keys: HashSet<u64>,
}

impl NamedKeys {
    fn new(now: Instant) -> Self {
        Self { since: now, keys: HashSet::new() }
    }

    /// Whether the store may remember the client if it does not know it.
    fn has_room(&mut self, pace: PaceRules, clients_max: usize, key: u64, now: Instant) -> bool {
        let PaceRules { interval_ns, tolerance_ns, .. } = pace;
        let life = Duration::from_nanos(interval_ns.saturating_add(tolerance_ns));
        if now.saturating_duration_since(self.since) > life {
            *self = Self::new(now);
        }
        let has_room = self.keys.len() < clients_max || self.keys.contains(&key);
        if has_room {
            self.keys.insert(key);
        }
        has_room
    }
}

/// What has become of a question.
type Answered = Result<(), StoreError>;

impl Court {
    async fn sit(&mut self) {
        let mut is_known_away = false;
        while self.judge.strong_count() > 0 {
            let reason = match self.open().await {
                Ok(mut open) => {
                    if std::mem::take(&mut is_known_away) {
                        tracing::info!("Redis decides about exact rate limits again");
                    }
                    // Those that waited have given up.
                    while self.calls.try_recv().is_ok() {}
                    self.set_away(false);
                    let reason = self.answer(&mut open).await;
                    self.set_away(true);
                    let Some(reason) = reason else { return };
                    reason
                }
                Err(reason) => {
                    // No request says meanwhile that it waits longer now.
                    self.patience = (2 * self.patience).min(AGAIN);
                    reason
                }
            };
            if !std::mem::replace(&mut is_known_away, true) {
                tracing::warn!(error = %reason, "exact rate limits count for this host alone");
            }
            sleep(AGAIN).await;
        }
    }

    /// A connection over which Redis decides, in the time that requests wait: it may also be one that only reads, or that has
    /// no memory left.
    async fn open(&self) -> Result<OpenConnection, StoreError> {
        let open = self.server.open().await?;
        let key = self.server.key("rate:probe");
        let decided = timeout(self.patience, decide(open.connection.clone(), &self.script, key, PROBE, true));
        decided.await.map_err(|_| "no answer in time")?.map_err(said)?;
        Ok(open)
    }

    fn set_away(&self, is_away: bool) {
        if let Some(judge) = self.judge.upgrade() {
            judge.set_away(is_away);
        }
    }

    /// Passes questions on until answers are missing; returns why, or `None` if nobody asks any more.
    async fn answer(&mut self, open: &mut OpenConnection) -> Option<StoreError> {
        let (answered, mut outcomes) = mpsc::unbounded_channel::<Answered>();
        let mut missing = 0;
        loop {
            tokio::select! {
                Some(outcome) = outcomes.recv() => match outcome {
                    Ok(()) => missing = 0,
                    Err(reason) => {
                        missing += 1;
                        if missing >= MISSING_MAX {
                            return Some(reason);
                        }
                    }
                },
                _ = &mut open.driver => return Some("the connection is lost".into()),
                call = self.calls.recv() => match call? {
                    RateCall::Decide(question) => self.pass_on(question, &open.connection, &answered),
                    RateCall::Forget { limit, key } => {
                        let (key, mut connection) = (self.key(&limit, key), open.connection.clone());
                        tokio::spawn(async move {
                            let _ = cmd("DEL").arg(key).query_async::<()>(&mut connection).await;
                        });
                    }
                },
            }
        }
    }

    fn key(&self, limit: &str, key: u64) -> String {
        self.server.key(&format!("rate:{limit}:{key:016x}"))
    }

    fn pass_on(
        &mut self,
        question: RateQuestion,
        connection: &MultiplexedConnection,
        answered: &mpsc::UnboundedSender<Answered>,
    ) {
        let now = Instant::now();
        let keys = self.keys.entry(question.limit.clone()).or_insert_with(|| NamedKeys::new(now));
        let may_be_new = keys.has_room(question.pace, question.clients_max, question.key, now);
        self.patience = question.patience.min(AGAIN);
        let key = self.key(&question.limit, question.key);
        let (connection, script, answered) = (connection.clone(), Arc::clone(&self.script), answered.clone());
        tokio::spawn(async move {
            let deciding = decide(connection, &script, key, question.pace, may_be_new);
            let outcome = match timeout_at(question.deadline, deciding).await {
                Ok(Ok(ruling)) => {
                    // Without one, it counts alone.
                    let _ = ruling.map(|ruling| question.answer.send(ruling));
                    Ok(())
                }
                Ok(Err(error)) => Err(said(error)),
                Err(_) => Err("no answer in time".into()),
            };
            let _ = answered.send(outcome);
        });
    }
}

/// What Redis says; `None` if it does not know the client, and must not.
async fn decide(
    mut connection: MultiplexedConnection,
    script: &Script,
    key: String,
    pace: PaceRules,
    may_be_new: bool,
) -> Result<Option<Ruling>, RedisError> {
    let mut call = script.key(key);
    call.arg(micros(pace.interval_ns)).arg(micros(pace.tolerance_ns)).arg(u8::from(pace.delays));
    let (outcome, micros): (u8, u64) = call.arg(u8::from(may_be_new)).invoke_async(&mut connection).await?;
    let after = Duration::from_micros(micros);
    Ok(match outcome {
        0 => Some(Ruling::Serve),
        1 => Some(Ruling::Wait(after)),
        2 => Some(Ruling::Refuse(after)),
        _ => None,
    })
}

/// As text, because a rate may have fractions.
fn micros(nanos: u64) -> String {
    format!("{}.{:03}", nanos / 1000, nanos % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_limit_names_no_more_new_keys_than_it_has_clients() {
        let pace = PaceRules { interval_ns: 1_000_000_000, tolerance_ns: 4_000_000_000, delays: false };
        let mut keys = NamedKeys::new(Instant::now());
        let mut has_room = |key| keys.has_room(pace, 2, key, Instant::now());
        assert!([1, 2, 1, 2].into_iter().all(&mut has_room));
        sleep(Duration::from_secs(5)).await;
        assert!(!has_room(3));
        sleep(Duration::from_millis(1)).await;
        assert!(has_room(3));
    }

    #[test]
    fn times_keep_their_fractions() {
        assert_eq!([micros(1), micros(60_000_000_000)], ["0.001", "60000000.000"]);
    }
}
