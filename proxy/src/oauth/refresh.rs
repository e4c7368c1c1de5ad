//! Keeping a session alive: when it is refreshed, and by which process.
//!
//! Sessions live in browsers, and processes do not talk to each other. Many providers take a refresh
//! token that comes a second time for stolen, and end the login. So:
//!
//! * from `due` on a request is still served with the session as it is, and its response sets a cookie
//!   that claims the refresh for this process;
//! * a request that brings back a claim of this process, older than the time that other responses
//!   need to arrive, makes it refresh. A browser has one claim, that of the last response, so one
//!   process refreshes, whatever number of requests went to whatever number of processes at once;
//! * within a process all requests of a session share one refresh and its outcome, for a minute: a
//!   response that did not arrive costs nothing;
//! * from `late` on (nobody used the session for long, or the claim was lost) the next request
//!   refreshes whether it has a claim or not;
//! * whoever loses all the same goes on with the session that they have until its tokens end.

use super::session::Session;
use openssl::sha::sha256;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::watch;

/// Longest time before the end of the tokens at which they are refreshed (seconds).
const MAX_LEAD: u64 = 60;
/// How long other responses may take to arrive before a claim counts (milliseconds).
const MAX_SETTLE: u64 = 3000;
/// A claim counts for this long, and then another process may claim (milliseconds).
const CLAIM_TTL: u64 = 60_000;
/// How long an outcome is kept for requests with the old session (milliseconds).
const KEEP: u64 = 60_000;
/// How long a failure to reach the provider is kept (milliseconds).
const KEEP_FAILURE: u64 = 2000;
/// Outcomes that are kept at most.
const MAX_KEPT: usize = 10_000;

/// Where a session is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing to do.
    Fresh,
    /// To be refreshed by whoever has the claim.
    Due,
    /// To be refreshed now.
    Late,
    /// Past its end.
    Over,
}

/// The seconds at which a session changes phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    pub due: u64,
    pub late: u64,
    pub over: u64,
}

impl Times {
    pub fn of(session: &Session, refresh: Option<Duration>, expire: Duration) -> Self {
        let over = session.issued.saturating_add(expire.as_secs());
        let Some(refresh) = refresh else { return Self { due: u64::MAX, late: u64::MAX, over } };
        let asked = session.issued.saturating_add(refresh.as_secs());
        let lead = lead(session, refresh);
        let due = match session.expires {
            0 => asked,
            end => asked.min(end.saturating_sub(lead)),
        };
        let late = due.saturating_add(lead).max(session.expires.saturating_sub(lead));
        Self { due, late, over }
    }

    pub fn phase(&self, now: u64) -> Phase {
        match now {
            now if now >= self.over => Phase::Over,
            now if now >= self.late => Phase::Late,
            now if now >= self.due => Phase::Due,
            _ => Phase::Fresh,
        }
    }
}

fn lead(session: &Session, refresh: Duration) -> u64 {
    let life = match session.expires.saturating_sub(session.issued) {
        0 => refresh.as_secs(),
        life => life.min(refresh.as_secs()),
    };
    (life / 4).clamp(1, MAX_LEAD)
}

/// What a request does about a session that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Somebody has the claim: go on with what there is.
    Wait,
    /// Claim the refresh, with this cookie for so many seconds; but not with a response that comes
    /// later than this after its request: the claims of others may count by then.
    Claim(String, u64, Duration),
    /// The claim is ours and old enough.
    Refresh,
}

/// Reads a claim. It is not sealed: a client that forges one harms its own session at most.
pub fn step(
    claim: Option<&[u8]>,
    session: &Session,
    refresh: Option<Duration>,
    process: u64,
    now_ms: u64,
) -> Step {
    let settle = lead(session, refresh.unwrap_or_default()) * 1000 / 4;
    let settle = settle.min(MAX_SETTLE);
    let generation = generation(session);
    let read = || {
        let mut fields = std::str::from_utf8(claim?).ok()?.split('.');
        let mut number = || u64::from_str_radix(fields.next()?, 16).ok();
        let (of, owner, at) = (number()?, number()?, number()?);
        (of == generation && at <= now_ms && now_ms < at + CLAIM_TTL).then_some((owner, at))
    };
    match read() {
        Some((owner, at)) if owner == process && now_ms >= at + settle => Step::Refresh,
        Some(_) => Step::Wait,
        None => {
            let value = format!("{generation:x}.{process:x}.{now_ms:x}");
            Step::Claim(value, CLAIM_TTL / 1000, Duration::from_millis(settle / 2))
        }
    }
}

/// Tells a session before a refresh from the one after it.
fn generation(session: &Session) -> u64 {
    let digest = sha256(session.refresh_token.as_bytes());
    digest.first_chunk::<4>().map_or(0, |bytes| u64::from(u32::from_be_bytes(*bytes)))
}

/// Refreshes under way, and those that ended lately.
pub struct Refreshes<T> {
    by_token: Mutex<HashMap<[u8; 32], Kept<T>>>,
}

struct Kept<T> {
    outcome: watch::Receiver<Option<T>>,
    until: u64,
}

impl<T: Clone + Send + Sync + 'static> Refreshes<T> {
    pub fn new() -> Self {
        Self { by_token: Mutex::default() }
    }

    /// The outcome of refreshing with this token: of `start`, unless that has begun before. It runs
    /// to its end whether or not the request that began it does.
    pub async fn run<F>(
        &self,
        token: &str,
        now_ms: u64,
        failed: impl Fn(&T) -> bool,
        start: impl FnOnce() -> F,
    ) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let key = sha256(token.as_bytes());
        let mut outcome = {
            let mut all = self.by_token.lock();
            let again = |kept: &Kept<T>| {
                kept.until <= now_ms
                    || (kept.until <= now_ms + KEEP - KEEP_FAILURE
                        && kept.outcome.borrow().as_ref().is_some_and(&failed))
            };
            match all.get(&key) {
                Some(kept) if !again(kept) => kept.outcome.clone(),
                _ => {
                    all.retain(|_, kept| kept.until > now_ms);
                    if all.len() >= MAX_KEPT {
                        return None;
                    }
                    let (sender, outcome) = watch::channel(None);
                    let work = start();
                    tokio::spawn(async move {
                        let _ = sender.send(Some(work.await));
                    });
                    all.insert(key, Kept { outcome: outcome.clone(), until: now_ms + KEEP });
                    outcome
                }
            }
        };
        let done = outcome.wait_for(Option::is_some).await.ok()?;
        done.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    fn session(issued: u64, expires: u64) -> Session {
        Session { issued, expires, refresh_token: "r1".into(), ..Session::default() }
    }

    fn secs(n: u64) -> Option<Duration> {
        Some(Duration::from_secs(n))
    }

    #[test]
    fn a_session_is_refreshed_when_asked_and_before_its_tokens_end() {
        let week = Duration::from_secs(604_800);
        let times = |expires, refresh| Times::of(&session(1000, expires), refresh, week);
        assert_eq!(times(1300, None), Times { due: u64::MAX, late: u64::MAX, over: 605_800 });
        assert_eq!(times(1300, secs(3600)), Times { due: 1240, late: 1300, over: 605_800 });
        assert_eq!(times(8200, secs(3600)), Times { due: 4600, late: 8140, over: 605_800 });
        assert_eq!(times(0, secs(3600)), Times { due: 4600, late: 4660, over: 605_800 });
        assert_eq!(times(1008, secs(60)), Times { due: 1006, late: 1008, over: 605_800 });
        let t = times(1300, secs(3600));
        assert_eq!(
            [1239, 1240, 1299, 1300, 605_800].map(|now| t.phase(now)),
            [Phase::Fresh, Phase::Due, Phase::Due, Phase::Late, Phase::Over]
        );
        let far = Session { issued: u64::MAX, ..session(0, 0) };
        assert_eq!(Times::of(&far, secs(60), week).phase(5), Phase::Fresh);
    }

    #[test]
    fn one_process_refreshes_and_only_after_other_claims_had_time_to_arrive() {
        let s = session(1000, 1300);
        let at =
            |claim: Option<&str>, process, now| step(claim.map(str::as_bytes), &s, secs(3600), process, now);
        let Step::Claim(mine, ..) = at(None, 7, 1_240_000) else { panic!() };
        let Step::Claim(theirs, ..) = at(None, 8, 1_240_100) else { panic!() };
        assert_eq!(at(Some(&mine), 7, 1_241_000), Step::Wait);
        assert_eq!(at(Some(&mine), 7, 1_243_000), Step::Refresh);
        assert_eq!(at(Some(&theirs), 7, 1_243_100), Step::Wait);
        assert_eq!(at(Some(&theirs), 8, 1_243_100), Step::Refresh);
        assert!(matches!(at(Some(&theirs), 7, 1_301_000), Step::Claim(..)), "its process is gone");
        let next = Session { refresh_token: "r2".into(), ..s.clone() };
        assert!(
            matches!(step(Some(mine.as_bytes()), &next, secs(3600), 7, 1_243_000), Step::Claim(..)),
            "a claim on the session before"
        );
        for junk in ["", ".", "x.y.z", "1.2", "ffffffffffffffffff.1.1", "é"] {
            assert!(matches!(at(Some(junk), 7, 1_240_000), Step::Claim(..)), "{junk}");
        }
    }

    #[tokio::test]
    async fn requests_share_one_refresh_also_when_the_first_gives_up() {
        let refreshes = Arc::new(Refreshes::<u32>::new());
        let calls = Arc::new(AtomicU32::new(0));
        let (go, gate) = watch::channel(false);
        let ask = |now_ms| {
            let (refreshes, calls, mut gate) = (refreshes.clone(), calls.clone(), gate.clone());
            async move {
                let work = || async move {
                    let n = calls.fetch_add(1, Relaxed) + 1;
                    gate.wait_for(|open| *open).await.unwrap();
                    n
                };
                refreshes.run("r1", now_ms, |n| *n == 9, work).await
            }
        };
        let first = tokio::spawn(ask(0));
        tokio::task::yield_now().await;
        first.abort();
        let second = tokio::spawn(ask(0));
        tokio::task::yield_now().await;
        go.send(true).unwrap();
        assert_eq!(second.await.unwrap(), Some(1));
        assert_eq!(ask(KEEP - 1).await, Some(1), "kept for those with the old session");
        assert_eq!(ask(KEEP).await, Some(2));
    }

    #[tokio::test]
    async fn a_failure_is_tried_again_sooner() {
        let refreshes = Refreshes::<Result<u32, ()>>::new();
        let run = |now, result| refreshes.run("r", now, Result::is_err, move || async move { result });
        assert_eq!(run(0, Err(())).await, Some(Err(())));
        assert_eq!(run(KEEP_FAILURE - 1, Ok(1)).await, Some(Err(())));
        assert_eq!(run(KEEP_FAILURE, Ok(1)).await, Some(Ok(1)));
    }
}
