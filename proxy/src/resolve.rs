//! Names to addresses, without a request ever waiting for a name that is known.
//!
//! Look-ups run on the control-plane runtime. A worker thread reads the outcome with atomic loads, and
//! waits (as a future, within its budget) only for a name that has no usable addresses. What an entry
//! goes through:
//!
//! * fresh for the record's TTL, within the configured bounds;
//! * then served as it is while one look-up in the background renews it;
//! * once `SOFT_STALE` old, waited for a moment first: a name nobody used for minutes may have moved, and
//!   the address of a Pod may by now be another Pod's;
//! * while the DNS server fails, served at once up to `stale_for`;
//! * an answer that there is no such name counts at once: the Service is gone.
//!
//! hickory's own cache is off; the search list and `/etc/hosts` are not used.

use arc_swap::ArcSwap;
use futures::future::{Either, select};
use futures::stream::{self, StreamExt};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig as Servers,
    ResolverOpts,
};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

/// How long past its TTL an address is used without waiting for the look-up that renews it.
const SOFT_STALE: u64 = 30_000;

/// How long that look-up is waited for before an older address is used after all.
const STALE_WAIT: Duration = Duration::from_millis(500);

/// A name is renewed in the background at most this often (milliseconds).
const PAUSE: u64 = 1_000;

/// What nobody refers to and nobody looked up lately is kept for this long (milliseconds).
const GRACE: u64 = 60_000;

/// How long the IPv6 answer is waited for once there is an IPv4 one.
const AAAA_GRACE: Duration = Duration::from_millis(500);

/// Look-ups at once that requests wait for. Each holds a few sockets.
const WAITED_FOR: usize = 64;

/// Look-ups at once that nobody waits for.
const BACKGROUND: usize = 16;

/// Names kept that are in no snapshot.
const OTHER_NAMES: usize = 1_024;

const FOREVER: u64 = u64::MAX;

/// How names are resolved.
#[derive(Clone, Debug)]
pub struct ResolverConfig {
    /// DNS servers; empty = those of `/etc/resolv.conf`.
    pub servers: Vec<SocketAddr>,
    /// Bound for one look-up, repeated queries and the fall-back to TCP included.
    pub query_timeout: Duration,
    /// A shorter TTL counts as this.
    pub min_ttl: Duration,
    /// A longer TTL counts as this.
    pub max_ttl: Duration,
    /// How long past its TTL an answer may be used while the DNS server fails.
    pub stale_for: Duration,
    /// How long "no such name" and a failure without an older answer are remembered.
    pub negative_ttl: Duration,
}

impl Default for ResolverConfig {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            query_timeout: Duration::from_secs(5),
            min_ttl: Duration::from_secs(5),
            max_ttl: Duration::from_secs(300),
            stale_for: Duration::from_secs(600),
            negative_ttl: Duration::from_secs(1),
        }
    }
}

/// The resolver could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum ResolverError {
    /// `/etc/resolv.conf` cannot be used.
    #[error("cannot read DNS servers from /etc/resolv.conf: {0}")]
    SystemConfig(#[source] NetError),
    /// hickory refused the configuration.
    #[error("cannot set up the DNS resolver: {0}")]
    Setup(#[source] NetError),
}

/// There is no address for a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The DNS server says there is no such name, or that it has no addresses.
    #[error("no such name")]
    NotFound,
    /// No answer in time.
    #[error("no answer from the DNS server in time")]
    Timeout,
    /// The DNS server answered with a failure, cannot be reached, or the name is not one.
    #[error("look-up failed: {0}")]
    Failed(Arc<str>),
}

/// The addresses of a name, never none.
///
/// IPv4 addresses come first, each family in the order of the answer. Pingora dials one address per
/// attempt and does not race the families, so a first attempt only goes to the leading family: mixing them
/// would fail half the requests where Pods have no IPv6 route. Retries reach the other one.
#[derive(Debug)]
pub struct Addresses {
    list: Box<[IpAddr]>,
    /// Length of the leading family.
    lead: usize,
    next: AtomicUsize,
}

impl Addresses {
    /// `None` when the list is empty.
    fn new(v4: Vec<IpAddr>, v6: Vec<IpAddr>, next: usize) -> Option<Self> {
        let lead = if v4.is_empty() { v6.len() } else { v4.len() };
        let list: Box<[IpAddr]> = v4.into_iter().chain(v6).collect();
        (!list.is_empty()).then_some(Self { list, lead, next: AtomicUsize::new(next) })
    }

    fn one(ip: IpAddr) -> Self {
        Self { list: [ip].into(), lead: 1, next: AtomicUsize::new(0) }
    }

    /// All addresses.
    pub fn list(&self) -> &[IpAddr] {
        &self.list
    }

    /// The address for a first attempt; rotates through the leading family.
    pub fn pick(&self) -> IpAddr {
        if self.lead == 1 {
            return self.list[0];
        }
        self.list[self.next.fetch_add(1, Relaxed) % self.lead]
    }

    /// The address for the `n`th retry: the ones after the latest [`pick`](Self::pick), then the other
    /// family's, then from the start. Does not rotate.
    pub fn pick_nth(&self, n: usize) -> IpAddr {
        let n = n % self.list.len();
        if n >= self.lead {
            return self.list[n];
        }
        self.list[(self.next.load(Relaxed).wrapping_add(self.lead - 1) % self.lead + n) % self.lead]
    }

    fn same(&self, v4: &[IpAddr], v6: &[IpAddr]) -> bool {
        let known: HashSet<_> = self.list.iter().collect();
        self.list.len() == v4.len() + v6.len() && v4.iter().chain(v6).all(|ip| known.contains(ip))
    }
}

/// What is known of a name. Times are milliseconds of [`Inner::now`].
#[derive(Default)]
struct State {
    addresses: Option<Arc<Addresses>>,
    fresh_until: u64,
    stale_until: u64,
    /// How the latest look-up failed.
    error: Option<ResolveError>,
    error_until: u64,
}

impl State {
    /// The addresses if they may be used without waiting.
    fn at_once(&self, now: u64) -> Option<&Arc<Addresses>> {
        let limit = if self.error.is_some() {
            self.stale_until
        } else {
            self.stale_until.min(self.fresh_until.saturating_add(SOFT_STALE))
        };
        self.addresses.as_ref().filter(|_| now < limit)
    }

    /// The addresses if they are better than none.
    fn usable(&self, now: u64) -> Option<&Arc<Addresses>> {
        self.addresses.as_ref().filter(|_| now < self.stale_until)
    }
}

struct Entry {
    /// Absolute; `None` for an address literal.
    name: Option<Name>,
    state: ArcSwap<State>,
    /// The look-up under way; its sender is dropped at the end.
    flight: Mutex<Option<watch::Receiver<()>>>,
    /// When the latest look-up began.
    began: AtomicU64,
    /// A background look-up is queued.
    queued: AtomicBool,
    /// The address did not work.
    suspect: AtomicBool,
    /// Since when no snapshot refers to it; `FOREVER` = one does.
    unreferenced: AtomicU64,
}

impl Entry {
    fn new(target: Target, unreferenced: u64) -> Self {
        let (name, state) = match target {
            Target::Name(name) => (Some(name), State::default()),
            Target::Literal(ip) => {
                let addresses = Some(Arc::new(Addresses::one(ip)));
                (None, State { addresses, fresh_until: FOREVER, stale_until: FOREVER, ..State::default() })
            }
        };
        Self {
            name,
            state: ArcSwap::from_pointee(state),
            flight: Mutex::new(None),
            began: AtomicU64::new(0),
            queued: AtomicBool::new(false),
            suspect: AtomicBool::new(false),
            unreferenced: AtomicU64::new(unreferenced),
        }
    }

    fn needs_look_up(&self, now: u64) -> bool {
        now >= self.state.load().fresh_until || self.suspect.load(Relaxed)
    }

    /// Whether it may be dropped. A name in use is looked up again and again, so one that went stale long
    /// ago is not in use.
    fn idle(&self, now: u64) -> bool {
        let since = self.unreferenced.load(Relaxed);
        let used = match self.state.load().fresh_until {
            FOREVER => 0,
            until => until,
        };
        now >= since.max(used).max(self.began.load(Relaxed)).saturating_add(GRACE)
    }
}

/// The right to look a name up; giving it back wakes those who wait.
struct Flight {
    entry: Arc<Entry>,
    _wake: watch::Sender<()>,
}

impl Flight {
    /// `slot` is the entry's, and empty.
    fn begin(
        entry: &Arc<Entry>,
        slot: &mut Option<watch::Receiver<()>>,
        now: u64,
    ) -> (Self, watch::Receiver<()>) {
        let (wake, done) = watch::channel(());
        *slot = Some(done.clone());
        entry.began.store(now, Relaxed);
        entry.suspect.store(false, Relaxed);
        (Self { entry: entry.clone(), _wake: wake }, done)
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        *self.entry.flight.lock() = None;
    }
}

/// How a caller gets at an outcome.
enum Join {
    Wait(watch::Receiver<()>),
    Done(Result<Arc<Addresses>, ResolveError>),
}

enum Target {
    Name(Name),
    Literal(IpAddr),
}

impl Target {
    fn parse(name: &str) -> Option<Self> {
        if let Some(ip) = literal(name) {
            return Some(Self::Literal(ip));
        }
        let mut name = Name::from_ascii(name).ok().filter(|name| name.num_labels() > 0)?;
        // Otherwise `a.svc.cluster.local` would be tried with every suffix of the search list first.
        name.set_fqdn(true);
        Some(Self::Name(name))
    }
}

fn literal(name: &str) -> Option<IpAddr> {
    name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name).parse().ok()
}

type Names = HashMap<Arc<str>, Arc<Entry>>;

/// The DNS cache. Clones share it.
#[derive(Clone)]
pub struct Resolver(Arc<Inner>);

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Resolver").field(&self.0.config).finish()
    }
}

struct Inner {
    config: ResolverConfig,
    dns: TokioResolver,
    handle: Handle,
    /// The names of snapshots: changed once per snapshot, however many are new.
    known: ArcSwap<Names>,
    /// Names looked up without being in a snapshot: few, so that adding one by copying is cheap.
    others: ArcSwap<Names>,
    /// Held while `known` is made anew.
    retaining: Mutex<()>,
    /// Held while `others` is made anew, which a worker thread may have to wait for: microseconds.
    adding: Mutex<()>,
    waited_for: Semaphore,
    background: Semaphore,
    start: Instant,
    #[cfg(test)]
    skew: AtomicU64,
}

impl Resolver {
    /// Sets the resolver up; sends nothing yet. Look-ups run on the runtime of `handle`.
    pub fn new(config: ResolverConfig, handle: Handle) -> Result<Self, ResolverError> {
        let servers = if config.servers.is_empty() {
            // Only the servers: `ndots`, `search`, `timeout` and `attempts` do not apply here.
            let (system, _) =
                hickory_resolver::system_conf::read_system_conf().map_err(ResolverError::SystemConfig)?;
            system.name_servers
        } else {
            config.servers.iter().map(server).collect()
        };
        let mut builder = TokioResolver::builder_with_config(
            Servers::from_name_servers(servers),
            TokioRuntimeProvider::default(),
        );
        *builder.options_mut() = options(&config);
        let dns = builder.build().map_err(ResolverError::Setup)?;
        Ok(Self(Arc::new(Inner {
            config,
            dns,
            handle,
            known: ArcSwap::default(),
            others: ArcSwap::default(),
            retaining: Mutex::new(()),
            adding: Mutex::new(()),
            waited_for: Semaphore::new(WAITED_FOR),
            background: Semaphore::new(BACKGROUND),
            start: Instant::now(),
            #[cfg(test)]
            skew: AtomicU64::new(0),
        })))
    }

    /// The addresses of a name as far as they can be had at once; `None` = use
    /// [`resolve`](Self::resolve).
    ///
    /// For the request path: takes no lock and, but for an address literal that is in no snapshot, does not
    /// allocate. An answer past its TTL is renewed in the background.
    pub fn cached(&self, name: &str) -> Option<Arc<Addresses>> {
        let known = self.0.known.load();
        if let Some(entry) = known.get(name) {
            return self.0.current(entry);
        }
        let others = self.0.others.load();
        if let Some(entry) = others.get(name) {
            return self.0.current(entry);
        }
        literal(name).map(|ip| Arc::new(Addresses::one(ip)))
    }

    /// The addresses of a name, looked up if need be, within `budget`.
    ///
    /// Callers that ask for the same name at the same time share one look-up, which goes on when a caller
    /// gives up. Where an older answer is usable it is preferred to an error.
    pub async fn resolve(&self, name: &str, budget: Duration) -> Result<Arc<Addresses>, ResolveError> {
        if let Some(addresses) = self.cached(name) {
            return Ok(addresses);
        }
        let inner = &self.0;
        let entry = inner.entry(name)?;
        let mut done = match inner.join(&entry) {
            Join::Wait(done) => done,
            Join::Done(outcome) => return outcome,
        };
        let fallback = entry.state.load().usable(inner.now()).cloned();
        let wait = if fallback.is_some() { budget.min(STALE_WAIT) } else { budget };
        match timeout(wait, async { while done.changed().await.is_ok() {} }).await {
            Ok(()) => {
                let state = entry.state.load();
                match (state.usable(inner.now()), &state.error) {
                    (Some(addresses), _) => Ok(addresses.clone()),
                    (None, Some(error)) => Err(error.clone()),
                    (None, None) => Err(ResolveError::Failed("look-up ended without an outcome".into())),
                }
            }
            Err(_) => fallback.ok_or(ResolveError::Timeout),
        }
    }

    /// To be called when a connection to an address of this name is refused or times out: it is looked up
    /// again now, or a second after the latest look-up began. A Service that was deleted and made again
    /// has another ClusterIP long before its TTL ends.
    pub fn mark_stale(&self, name: &str) {
        let known = self.0.known.load();
        let others = self.0.others.load();
        if let Some(entry) = known.get(name).or_else(|| others.get(name)) {
            entry.suspect.store(true, Relaxed);
            self.0.look_up_soon(entry, self.0.now());
        }
    }

    /// Tells which names a snapshot refers to, best before it is published. New ones are looked up in the
    /// background, a few at a time; others are dropped once they have not been needed for a while.
    pub fn retain(&self, names: impl IntoIterator<Item = Arc<str>>) {
        let names: HashSet<Arc<str>> = names.into_iter().collect();
        let inner = &self.0;
        let retaining = inner.retaining.lock();
        let now = inner.now();
        let known = inner.known.load_full();
        let others = inner.others.load_full();

        let mut dropped = Vec::new();
        for (name, entry) in &*known {
            if names.contains(name) {
                entry.unreferenced.store(FOREVER, Relaxed);
            } else if entry.unreferenced.load(Relaxed) == FOREVER {
                entry.unreferenced.store(now, Relaxed);
            } else if entry.idle(now) {
                dropped.push(name);
            }
        }
        let mut added = Vec::new();
        for name in names.iter().filter(|name| !known.contains_key(*name)) {
            let entry = match (others.get(name), Target::parse(name)) {
                (Some(entry), _) => entry.clone(),
                (None, Some(target)) => Arc::new(Entry::new(target, FOREVER)),
                (None, None) => {
                    tracing::debug!(%name, "not a name that DNS could know");
                    continue;
                }
            };
            entry.unreferenced.store(FOREVER, Relaxed);
            added.push((name.clone(), entry));
        }
        if !dropped.is_empty() || !added.is_empty() {
            let mut next = Names::clone(&known);
            for name in dropped {
                next.remove(name);
            }
            next.extend(added.iter().cloned());
            inner.known.store(Arc::new(next));
        }
        drop(retaining);
        let spare = |(name, entry): (&Arc<str>, &Arc<Entry>)| names.contains(name) || entry.idle(now);
        if others.iter().any(spare) {
            let _adding = inner.adding.lock();
            let mut next = Names::clone(&inner.others.load());
            next.retain(|name, entry| !spare((name, entry)));
            inner.others.store(Arc::new(next));
        }

        if added.is_empty() {
            return;
        }
        let shared = inner.clone();
        inner.handle.spawn(async move {
            stream::iter(added)
                .for_each_concurrent(BACKGROUND, |(_, entry)| {
                    let inner = shared.clone();
                    async move {
                        if entry.unreferenced.load(Relaxed) == FOREVER {
                            inner.look_up_in_background(&entry).await;
                        }
                    }
                })
                .await;
        });
    }
}

impl Inner {
    /// Milliseconds; begins at a pause so that 0 is long ago.
    fn now(&self) -> u64 {
        #[cfg(test)]
        let skew = self.skew.load(Relaxed);
        #[cfg(not(test))]
        let skew = 0;
        PAUSE + millis(self.start.elapsed()) + skew
    }

    fn current(self: &Arc<Self>, entry: &Arc<Entry>) -> Option<Arc<Addresses>> {
        let state = entry.state.load();
        let now = self.now();
        let addresses = state.at_once(now)?;
        if now >= state.fresh_until || entry.suspect.load(Relaxed) {
            self.look_up_soon(entry, now);
        }
        Some(addresses.clone())
    }

    /// The entry of a name, made if need be.
    fn entry(&self, name: &str) -> Result<Arc<Entry>, ResolveError> {
        let find = || self.known.load().get(name).cloned().or_else(|| self.others.load().get(name).cloned());
        if let Some(entry) = find() {
            return Ok(entry);
        }
        let target = Target::parse(name).ok_or_else(|| ResolveError::Failed("not a valid name".into()))?;
        let _adding = self.adding.lock();
        if let Some(entry) = find() {
            return Ok(entry);
        }
        let mut next = Names::clone(&self.others.load());
        if next.len() >= OTHER_NAMES {
            // The quarter that has gone longest without a look-up.
            let mut began: Vec<u64> = next.values().map(|entry| entry.began.load(Relaxed)).collect();
            let (_, limit, _) = began.select_nth_unstable(OTHER_NAMES / 4);
            let (limit, mut spare) = (*limit, OTHER_NAMES / 4);
            next.retain(|_, entry| {
                let drop = spare > 0 && entry.began.load(Relaxed) <= limit;
                spare -= usize::from(drop);
                !drop
            });
        }
        let entry = Arc::new(Entry::new(target, self.now()));
        next.insert(name.into(), entry.clone());
        self.others.store(Arc::new(next));
        Ok(entry)
    }

    /// Joins the look-up of a name, or starts one unless it is known how it would end.
    fn join(self: &Arc<Self>, entry: &Arc<Entry>) -> Join {
        let mut slot = entry.flight.lock();
        if let Some(done) = &*slot {
            return Join::Wait(done.clone());
        }
        // One may have ended since the caller looked.
        let now = self.now();
        let state = entry.state.load();
        if let Some(addresses) = state.at_once(now) {
            return Join::Done(Ok(addresses.clone()));
        }
        if let Some(error) = state.error.as_ref().filter(|_| now < state.error_until) {
            return Join::Done(Err(error.clone()));
        }
        let (flight, done) = Flight::begin(entry, &mut slot, now);
        drop(slot);
        let inner = self.clone();
        self.handle.spawn(async move {
            if let Ok(_permit) = inner.waited_for.acquire().await {
                inner.look_up(&flight).await;
            }
        });
        Join::Wait(done)
    }

    /// Queues a background look-up unless there was one just now.
    fn look_up_soon(self: &Arc<Self>, entry: &Arc<Entry>, now: u64) {
        if entry.name.is_none()
            || now < entry.began.load(Relaxed) + PAUSE
            || entry.queued.load(Relaxed)
            || entry.queued.swap(true, Relaxed)
        {
            return;
        }
        let (inner, entry) = (self.clone(), entry.clone());
        self.handle.spawn(async move {
            inner.look_up_in_background(&entry).await;
        });
    }

    async fn look_up_in_background(&self, entry: &Arc<Entry>) {
        let permit = self.background.acquire().await;
        // Cleared before the look-up begins: a mark that comes later asks for another one.
        entry.queued.store(false, Relaxed);
        if permit.is_err() {
            return;
        }
        let now = self.now();
        let flight = {
            let mut slot = entry.flight.lock();
            if slot.is_some() || !entry.needs_look_up(now) {
                return;
            }
            Flight::begin(entry, &mut slot, now).0
        };
        self.look_up(&flight).await;
    }

    async fn look_up(&self, flight: &Flight) {
        let Some(name) = &flight.entry.name else { return };
        let answer = match timeout(self.config.query_timeout, self.query(name)).await {
            Ok(answer) => answer,
            Err(_) => Answer::Failed(ResolveError::Timeout),
        };
        self.record(&flight.entry, name, answer);
    }

    /// Asks for both families at once.
    async fn query(&self, name: &Name) -> Answer {
        let a = pin!(self.dns.lookup(name.clone(), RecordType::A));
        let aaaa = pin!(self.dns.lookup(name.clone(), RecordType::AAAA));
        let (a, aaaa) = match select(a, aaaa).await {
            Either::Left((a, rest)) => {
                let a = Family::of(a);
                // Some servers never answer AAAA.
                let aaaa = match a {
                    Family::Found(..) => timeout(AAAA_GRACE, rest).await.unwrap_or(Err(NetError::Timeout)),
                    _ => rest.await,
                };
                (a, Family::of(aaaa))
            }
            Either::Right((aaaa, rest)) => (Family::of(rest.await), Family::of(aaaa)),
        };
        match (a, aaaa) {
            (Family::Found(v4, ttl), Family::Found(v6, other)) => {
                Answer::Found { v4, v6, ttl: ttl.min(other), missing: None }
            }
            (Family::Found(v4, ttl), _) => Answer::Found { v4, v6: vec![], ttl, missing: None },
            (Family::None, Family::Found(v6, ttl)) => Answer::Found { v4: vec![], v6, ttl, missing: None },
            (Family::Failed(e), Family::Found(v6, _)) => {
                Answer::Found { v4: vec![], v6, ttl: 0, missing: Some(e) }
            }
            (Family::None, Family::None) => Answer::NotFound,
            (Family::Failed(e), _) | (_, Family::Failed(e)) => Answer::Failed(e),
        }
    }

    /// Called by the one flight of the entry.
    fn record(&self, entry: &Entry, name: &Name, answer: Answer) {
        let now = self.now();
        let old = entry.state.load();
        let next = match answer {
            // Half an answer does not replace a whole one.
            Answer::Found { missing: Some(error), .. } if old.usable(now).is_some() => {
                self.failed(&old, name, error, now)
            }
            Answer::Found { v4, v6, ttl, .. } => {
                if old.error.is_some() {
                    tracing::debug!(%name, "resolved again");
                }
                // The order of an answer is no news, and rotation goes on where it was.
                let cursor = match &old.addresses {
                    Some(known) if known.same(&v4, &v6) => Err(known.clone()),
                    known => Ok(known.as_ref().map_or(0, |known| known.next.load(Relaxed))),
                };
                let addresses = match cursor {
                    Err(known) => Some(known),
                    Ok(next) => {
                        tracing::debug!(%name, ?v4, ?v6, "addresses changed");
                        Addresses::new(v4, v6, next).map(Arc::new)
                    }
                };
                let ttl = Duration::from_secs(ttl.into()).min(self.config.max_ttl).max(self.config.min_ttl);
                let fresh_until = now.saturating_add(millis(ttl));
                let stale_until = fresh_until.saturating_add(millis(self.config.stale_for));
                State { addresses, fresh_until, stale_until, ..State::default() }
            }
            Answer::NotFound => {
                if old.addresses.is_some() {
                    tracing::debug!(%name, "name is gone");
                }
                State {
                    error: Some(ResolveError::NotFound),
                    error_until: now.saturating_add(millis(self.config.negative_ttl)),
                    ..State::default()
                }
            }
            Answer::Failed(error) => self.failed(&old, name, error, now),
        };
        drop(old);
        entry.state.store(Arc::new(next));
    }

    fn failed(&self, old: &State, name: &Name, error: ResolveError, now: u64) -> State {
        let addresses = old.usable(now).cloned();
        if old.error.as_ref() != Some(&error) {
            tracing::warn!(%name, %error, stale = addresses.is_some(), "DNS look-up failed");
        }
        State {
            addresses,
            fresh_until: old.fresh_until,
            stale_until: old.stale_until,
            error: Some(error),
            error_until: now.saturating_add(millis(self.config.negative_ttl)),
        }
    }
}

enum Answer {
    /// `ttl` in seconds; `missing`: why there are no IPv4 addresses although there may be some.
    Found {
        v4: Vec<IpAddr>,
        v6: Vec<IpAddr>,
        ttl: u32,
        missing: Option<ResolveError>,
    },
    NotFound,
    Failed(ResolveError),
}

/// The answer for one record type.
enum Family {
    Found(Vec<IpAddr>, u32),
    None,
    Failed(ResolveError),
}

impl Family {
    fn of(result: Result<Lookup, NetError>) -> Self {
        match result {
            Ok(lookup) => {
                let mut list = Vec::new();
                let mut ttl = u32::MAX;
                for record in lookup.answers() {
                    match &record.data {
                        RData::A(_) | RData::AAAA(_) => {
                            ttl = ttl.min(record.ttl);
                            list.extend(record.data.ip_addr().filter(|ip| !list.contains(ip)));
                        }
                        // An alias may be due earlier than what it points to.
                        RData::CNAME(_) => ttl = ttl.min(record.ttl),
                        _ => {}
                    }
                }
                if list.is_empty() { Self::None } else { Self::Found(list, ttl) }
            }
            Err(NetError::Dns(DnsError::NoRecordsFound(none)))
                if matches!(none.response_code, ResponseCode::NXDomain | ResponseCode::NoError) =>
            {
                Self::None
            }
            Err(NetError::Timeout) => Self::Failed(ResolveError::Timeout),
            Err(error) => Self::Failed(ResolveError::Failed(error.to_string().into())),
        }
    }
}

fn server(address: &SocketAddr) -> NameServerConfig {
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
        connection.port = address.port();
        connection
    });
    NameServerConfig::new(address.ip(), true, connections.into())
}

fn options(config: &ResolverConfig) -> ResolverOpts {
    let mut options = ResolverOpts::default();
    // One more attempt, so that another server is asked when the first ones are silent.
    options.attempts = 1;
    options.timeout = config.query_timeout / 2;
    options.cache_size = 0;
    options.use_hosts_file = ResolveHosts::Never;
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.preserve_intermediates = true;
    options.case_randomization = false;
    options.max_active_requests = 2 * (WAITED_FOR + BACKGROUND);
    options
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(FOREVER)
}

#[cfg(test)]
mod tests;
