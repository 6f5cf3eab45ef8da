//! Exact rate limits in Redis: a script decides for one request of one client, for all members at once. In a thread of its
//! own, so that commands on sluice and requests do not wait for each other.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Script, cmd};
use sluice_config::RedisStore;
use sluice_core::rate_limit::{PaceRules, RateJudge, RateQuestion, Ruling};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::StoreError;
use super::redis::{OpenConnection, Server};

/// Key: the client's time. Arguments: the interval, the tolerance, and whether requests wait; all times in microseconds.
/// Returns what becomes of the request, after how long, and whether the key is new. A client who has used up nothing has no key.
const DECIDE: &str = "
local interval, tolerance = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = redis.call('TIME')
now = tonumber(now[1]) * 1000000 + tonumber(now[2])
local known = redis.call('GET', KEYS[1])
local due = math.max(tonumber(known or '0'), now)
local ahead = due - now
if ahead > tolerance then return {2, math.ceil(ahead - tolerance), 0} end
local life = math.ceil((ahead + interval) / 1000)
redis.call('SET', KEYS[1], string.format('%.3f', due + interval), 'PX', string.format('%.0f', life))
if ARGV[3] == '1' and ahead > 0 then return {1, math.ceil(ahead), 0} end
return {0, 0, known and 0 or 1}";

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
    let (judge, questions) = RateJudge::new();
    let judge = Arc::new(judge);
    judge.set_away(true);
    let asked = Arc::downgrade(&judge);
    let answer = move || {
        let mut court = Court { server, judge: asked, questions, made: HashMap::new() };
        runtime.block_on(court.sit());
    };
    thread::Builder::new().name("rates".to_owned()).spawn(answer).map_err(failed)?;
    Ok(judge)
}

/// Answers questions as long as somebody can ask them.
struct Court {
    server: Server,
    judge: Weak<RateJudge>,
    questions: mpsc::Receiver<RateQuestion>,
    made: HashMap<String, MadeKeys>,
}

/// The keys that were made for a limit in the longest life of one. Clients choose what they are counted by, and must not fill
/// the memory of the store: there are at most two such times' keys of each member.
struct MadeKeys {
    since: Instant,
    count: usize,
}

impl MadeKeys {
    fn has_room(&mut self, question: &RateQuestion, now: Instant) -> bool {
        let PaceRules { interval_ns, tolerance_ns, .. } = question.pace;
        let life = Duration::from_nanos(interval_ns.saturating_add(tolerance_ns));
        if now.saturating_duration_since(self.since) > life {
            *self = Self { since: now, count: 0 };
        }
        self.count < question.clients_max
    }
}

/// What has become of a question: the limit if it has a new key.
type Answered = Result<Option<String>, StoreError>;

impl Court {
    async fn sit(&mut self) {
        let mut is_known_away = false;
        while self.judge.strong_count() > 0 {
            match self.open().await {
                Ok(open) => {
                    if std::mem::take(&mut is_known_away) {
                        tracing::info!("Redis decides about exact rate limits again");
                    }
                    self.set_away(false);
                    let reason = self.answer(&open).await;
                    self.set_away(true);
                    let Some(reason) = reason else { return };
                    is_known_away = true;
                    tracing::warn!(error = %reason, "exact rate limits count for this host alone");
                }
                Err(reason) if !is_known_away => {
                    is_known_away = true;
                    tracing::warn!(error = %reason, "exact rate limits count for this host alone");
                }
                Err(_) => {}
            }
            sleep(AGAIN).await;
        }
    }

    /// A connection over which Redis answers.
    async fn open(&self) -> Result<OpenConnection, StoreError> {
        let mut open = self.server.open().await?;
        let answer = timeout(AGAIN, cmd("PING").query_async::<()>(&mut open.connection)).await;
        answer.map_err(|_| "no answer in time")?.map_err(|error| StoreError::from(error.to_string()))?;
        Ok(open)
    }

    fn set_away(&self, is_away: bool) {
        if let Some(judge) = self.judge.upgrade() {
            judge.set_away(is_away);
        }
    }

    /// Passes questions on until answers are missing; returns why, or `None` if nobody asks any more.
    async fn answer(&mut self, open: &OpenConnection) -> Option<StoreError> {
        let script = Arc::new(Script::new(DECIDE));
        let (answered, mut outcomes) = mpsc::unbounded_channel::<Answered>();
        let mut missing = 0;
        loop {
            tokio::select! {
                Some(outcome) = outcomes.recv() => match outcome {
                    Ok(new) => {
                        missing = 0;
                        let made = new.and_then(|limit| self.made.get_mut(&limit));
                        made.into_iter().for_each(|made| made.count += 1);
                    }
                    Err(reason) => {
                        missing += 1;
                        if missing >= MISSING_MAX {
                            return Some(reason);
                        }
                    }
                },
                question = self.questions.recv() => {
                    let question = question?;
                    let now = Instant::now();
                    let made = self.made.entry(question.limit.clone());
                    let made = made.or_insert_with(|| MadeKeys { since: now, count: 0 });
                    if !made.has_room(&question, now) {
                        continue;
                    }
                    let key = self.server.key(&format!("rate:{}:{:016x}", question.limit, question.key));
                    let (connection, script) = (open.connection.clone(), Arc::clone(&script));
                    let answered = answered.clone();
                    tokio::spawn(async move {
                        let limit = question.patience;
                        let decided = timeout(limit, decide(connection, &script, key, question.pace)).await;
                        let outcome = match decided {
                            Ok(Ok((ruling, is_new))) => {
                                let _ = question.answer.send(ruling);
                                Ok(is_new.then_some(question.limit))
                            }
                            Ok(Err(error)) => Err(error.to_string().into()),
                            Err(_) => Err(format!("no answer within {limit:?}").into()),
                        };
                        let _ = answered.send(outcome);
                    });
                }
            }
        }
    }
}

async fn decide(
    mut connection: MultiplexedConnection,
    script: &Script,
    key: String,
    pace: PaceRules,
) -> Result<(Ruling, bool), RedisError> {
    let mut call = script.key(key);
    call.arg(micros(pace.interval_ns)).arg(micros(pace.tolerance_ns)).arg(u8::from(pace.delays));
    let (outcome, micros, is_new): (u8, u64, bool) = call.invoke_async(&mut connection).await?;
    let after = Duration::from_micros(micros);
    let ruling = match outcome {
        0 => Ruling::Serve,
        1 => Ruling::Wait(after),
        _ => Ruling::Refuse(after),
    };
    Ok((ruling, is_new))
}

/// As text, because a rate may have fractions.
fn micros(nanos: u64) -> String {
    format!("{}.{:03}", nanos / 1000, nanos % 1000)
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_limit_makes_no_more_keys_than_it_has_clients() {
        let question = RateQuestion {
            limit: "a".to_owned(),
            key: 1,
            pace: PaceRules { interval_ns: 1_000_000_000, tolerance_ns: 4_000_000_000, delays: false },
            patience: Duration::from_secs(1),
            clients_max: 2,
            answer: oneshot::channel().0,
        };
        let mut made = MadeKeys { since: Instant::now(), count: 0 };
        assert!(made.has_room(&question, Instant::now()));
        made.count = 2;
        sleep(Duration::from_secs(5)).await;
        assert!(!made.has_room(&question, Instant::now()));
        sleep(Duration::from_millis(1)).await;
        assert!(made.has_room(&question, Instant::now()));
    }

    #[test]
    fn times_keep_their_fractions() {
        assert_eq!([micros(1), micros(60_000_000_000)], ["0.001", "60000000.000"]);
    }
}
