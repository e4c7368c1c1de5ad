use super::*;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::time::sleep;

const A: u16 = 1;
const CNAME: u16 = 5;
const AAAA: u16 = 28;
const SERVFAIL: u16 = 2;
const NXDOMAIN: u16 = 3;
const LONG: Duration = Duration::from_secs(10);

/// What the server says about a name.
#[derive(Clone, Default)]
struct Zone {
    addresses: Vec<IpAddr>,
    ttl: u32,
    /// The alias the addresses are under, with its TTL.
    alias: Option<(&'static str, u32)>,
    code: u16,
    /// Record types never answered.
    silent: Vec<u16>,
    /// Record types answered with SERVFAIL.
    broken: Vec<u16>,
    /// Answers over UDP are cut off.
    truncated: bool,
}

impl Zone {
    fn of(addresses: &[&str]) -> Self {
        Self {
            addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
            ttl: 30,
            ..Self::default()
        }
    }
}

#[derive(Default)]
struct Shared {
    zones: BTreeMap<String, Zone>,
    asked: Vec<(String, u16)>,
    tcp: usize,
    dead: bool,
    delay: Duration,
}

/// A DNS server on a loopback port; unknown names do not exist.
struct Server {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
}

impl Server {
    async fn start() -> Self {
        let (udp, tcp) = loop {
            let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
                break (Arc::new(udp), tcp);
            }
        };
        let address = udp.local_addr().unwrap();
        let shared = Arc::new(Mutex::new(Shared::default()));
        let state = shared.clone();
        tokio::spawn(async move {
            let mut buffer = [0; 2048];
            loop {
                let (n, from) = udp.recv_from(&mut buffer).await.unwrap();
                let (reply, delay) = reply(&state, &buffer[..n], false);
                let udp = udp.clone();
                tokio::spawn(async move {
                    sleep(delay).await;
                    if let Some(reply) = reply {
                        udp.send_to(&reply, from).await.unwrap();
                    }
                });
            }
        });
        let state = shared.clone();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = tcp.accept().await.unwrap();
                let state = state.clone();
                tokio::spawn(async move {
                    while let Ok(n) = stream.read_u16().await {
                        let mut query = vec![0; n.into()];
                        stream.read_exact(&mut query).await.unwrap();
                        if let (Some(reply), _) = reply(&state, &query, true) {
                            stream.write_u16(reply.len().try_into().unwrap()).await.unwrap();
                            stream.write_all(&reply).await.unwrap();
                        }
                    }
                });
            }
        });
        Self { address, shared }
    }

    fn set(&self, name: &str, zone: Zone) {
        self.shared.lock().zones.insert(name.into(), zone);
    }

    fn asked(&self, name: &str, kind: u16) -> usize {
        self.shared.lock().asked.iter().filter(|(n, k)| n == name && *k == kind).count()
    }

    fn resolver(&self) -> Resolver {
        self.resolver_with(ResolverConfig::default())
    }

    fn resolver_with(&self, config: ResolverConfig) -> Resolver {
        Resolver::new(ResolverConfig { servers: vec![self.address], ..config }, Handle::current()).unwrap()
    }
}

fn wire(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for label in name.split_terminator('.') {
        out.push(label.len().try_into().unwrap());
        out.extend(label.as_bytes());
    }
    out.push(0);
    out
}

fn reply(shared: &Mutex<Shared>, query: &[u8], tcp: bool) -> (Option<Vec<u8>>, Duration) {
    let mut name = String::new();
    let mut at = 12;
    while query[at] != 0 {
        let end = at + 1 + usize::from(query[at]);
        name += std::str::from_utf8(&query[at + 1..end]).unwrap();
        name.push('.');
        at = end;
    }
    let kind = u16::from_be_bytes([query[at + 1], query[at + 2]]);
    let question = &query[12..at + 5];

    let mut shared = shared.lock();
    shared.asked.push((name.clone(), kind));
    shared.tcp += usize::from(tcp);
    let zone = shared.zones.get(&name).cloned().unwrap_or(Zone { code: NXDOMAIN, ..Zone::default() });
    if shared.dead || zone.silent.contains(&kind) {
        return (None, Duration::ZERO);
    }
    let code = if zone.broken.contains(&kind) { SERVFAIL } else { zone.code };
    let truncated = zone.truncated && !tcp;
    let mut count = 0_u16;
    let mut answers = Vec::new();
    let mut record = |owner: &[u8], kind: u16, ttl: u32, data: &[u8]| {
        count += 1;
        answers.extend(owner);
        answers.extend(kind.to_be_bytes());
        answers.extend([0, 1]);
        answers.extend(ttl.to_be_bytes());
        answers.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
        answers.extend(data);
    };
    if code == 0 && !truncated {
        let mut owner = vec![0xc0, 12];
        if let Some((alias, ttl)) = zone.alias {
            record(&owner, CNAME, ttl, &wire(alias));
            owner = wire(alias);
        }
        for ip in &zone.addresses {
            match ip {
                IpAddr::V4(ip) if kind == A => record(&owner, A, zone.ttl, &ip.octets()),
                IpAddr::V6(ip) if kind == AAAA => record(&owner, AAAA, zone.ttl, &ip.octets()),
                _ => {}
            }
        }
    }
    let flags = 0x8180 | code | if truncated { 0x0200 } else { 0 };
    let mut out = query[..2].to_vec();
    for field in [flags, 1, count, 0, 0] {
        out.extend(field.to_be_bytes());
    }
    out.extend(question);
    out.extend(answers);
    (Some(out), shared.delay)
}

fn advance(resolver: &Resolver, by: Duration) {
    resolver.0.skew.fetch_add(millis(by), Relaxed);
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn ips(list: &[&str]) -> Vec<IpAddr> {
    list.iter().map(|ip| ip.parse().unwrap()).collect()
}

async fn eventually(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..2_000 {
        if condition() {
            return;
        }
        sleep(Duration::from_millis(5)).await;
    }
    panic!("never: {what}");
}

/// Whether no look-up is queued or under way.
fn quiet(resolver: &Resolver) -> bool {
    let (known, others) = (resolver.0.known.load(), resolver.0.others.load());
    known
        .values()
        .chain(others.values())
        .all(|entry| entry.flight.lock().is_none() && !entry.queued.load(Relaxed))
}

const NAME: &str = "web.shop.svc.cluster.local";
const ABSOLUTE: &str = "web.shop.svc.cluster.local.";

#[tokio::test]
async fn one_look_up_for_many_callers() {
    let server = Server::start().await;
    server.set(ABSOLUTE, Zone::of(&["10.0.0.1", "fd00::1"]));
    server.shared.lock().delay = Duration::from_millis(50);
    let resolver = server.resolver();
    assert!(resolver.cached(NAME).is_none());
    let all = futures::future::join_all((0..100).map(|_| resolver.resolve(NAME, LONG))).await;
    for outcome in all {
        assert_eq!(outcome.unwrap().list(), ips(&["10.0.0.1", "fd00::1"]));
    }
    assert_eq!((server.asked(ABSOLUTE, A), server.asked(ABSOLUTE, AAAA)), (1, 1));
    assert_eq!(resolver.cached(NAME).unwrap().pick(), ips(&["10.0.0.1"])[0]);
    assert_eq!(server.shared.lock().asked.len(), 2);
}

#[tokio::test]
async fn a_caller_that_gives_up_does_not_end_the_look_up() {
    let server = Server::start().await;
    server.set(ABSOLUTE, Zone::of(&["10.0.0.1"]));
    server.shared.lock().delay = Duration::from_millis(100);
    let resolver = server.resolver();
    assert_eq!(resolver.resolve(NAME, Duration::from_millis(10)).await.unwrap_err(), ResolveError::Timeout);
    eventually("the look-up ends", || resolver.cached(NAME).is_some()).await;
    assert_eq!(server.asked(ABSOLUTE, A), 1);
}

#[tokio::test]
async fn names_are_absolute() {
    let server = Server::start().await;
    server.set(ABSOLUTE, Zone::of(&["10.0.0.1"]));
    let resolver = server.resolver();
    for name in [NAME, ABSOLUTE, "single", "a.b"] {
        let _ = resolver.resolve(name, LONG).await;
    }
    let asked: HashSet<_> = server.shared.lock().asked.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(asked, [ABSOLUTE, "single.", "a.b."].map(String::from).into());
}

#[tokio::test]
async fn literals_and_what_is_no_name() {
    let server = Server::start().await;
    let resolver = server.resolver();
    resolver.retain(["10.1.2.3", "fd00::9", "not a..name"].map(Arc::from));
    for (name, ip) in [("10.1.2.3", "10.1.2.3"), ("fd00::9", "fd00::9"), ("[fd00::8]", "fd00::8")] {
        assert_eq!(resolver.cached(name).unwrap().list(), ips(&[ip]));
        assert_eq!(resolver.resolve(name, LONG).await.unwrap().list(), ips(&[ip]));
        resolver.mark_stale(name);
        assert_eq!(resolver.cached(name).unwrap().pick_nth(1), ips(&[ip])[0]);
    }
    let long = "x".repeat(300);
    for name in ["", ".", "a..b", &long] {
        let error = resolver.resolve(name, LONG).await.unwrap_err();
        assert!(matches!(error, ResolveError::Failed(_)), "{name:?}: {error}");
    }
    assert!(server.shared.lock().asked.is_empty());
}

#[tokio::test]
async fn negative_answers_are_remembered_briefly() {
    let server = Server::start().await;
    server.set("nodata.", Zone::of(&[]));
    let resolver = server.resolver();
    for name in ["gone.", "nodata."] {
        for _ in 0..20 {
            assert_eq!(resolver.resolve(name, LONG).await.unwrap_err(), ResolveError::NotFound);
        }
        assert_eq!((server.asked(name, A), server.asked(name, AAAA)), (1, 1), "{name}");
        server.set(name, Zone::of(&["10.0.0.2"]));
        advance(&resolver, Duration::from_millis(1_100));
        assert_eq!(resolver.resolve(name, LONG).await.unwrap().list(), ips(&["10.0.0.2"]));
        assert_eq!(server.asked(name, A), 2);
    }
}

#[tokio::test]
async fn a_name_that_is_gone_is_no_longer_served() {
    let server = Server::start().await;
    server.set(ABSOLUTE, Zone::of(&["10.0.0.1"]));
    let resolver = server.resolver();
    resolver.resolve(NAME, LONG).await.unwrap();
    server.shared.lock().zones.clear();
    advance(&resolver, secs(31));
    assert!(resolver.cached(NAME).is_some());
    eventually("dropped", || resolver.cached(NAME).is_none()).await;
    assert_eq!(resolver.resolve(NAME, LONG).await.unwrap_err(), ResolveError::NotFound);
}

#[tokio::test]
async fn ttl_has_bounds() {
    let server = Server::start().await;
    for (name, ttl, fresh) in [("zero.", 0, 5), ("normal.", 30, 30), ("long.", 86_400, 300)] {
        server.set(name, Zone { ttl, ..Zone::of(&["10.0.0.1"]) });
        let resolver = server.resolver();
        resolver.resolve(name, LONG).await.unwrap();
        advance(&resolver, secs(fresh - 1));
        resolver.cached(name).unwrap();
        sleep(Duration::from_millis(20)).await;
        assert!(quiet(&resolver));
        assert_eq!(server.asked(name, A), 1, "{name} renewed too early");
        advance(&resolver, secs(1));
        for _ in 0..50 {
            resolver.cached(name).unwrap();
        }
        eventually("renewed", || server.asked(name, A) == 2 && quiet(&resolver)).await;
        resolver.cached(name).unwrap();
        assert_eq!((server.asked(name, A), server.asked(name, AAAA)), (2, 2), "{name}");
    }
}

#[tokio::test]
async fn aliases_are_followed_and_bound_the_ttl() {
    let server = Server::start().await;
    server.set("ext.", Zone { ttl: 300, alias: Some(("real.example.", 10)), ..Zone::of(&["192.0.2.7"]) });
    let resolver = server.resolver();
    assert_eq!(resolver.resolve("ext", LONG).await.unwrap().list(), ips(&["192.0.2.7"]));
    let entry = resolver.0.others.load().get("ext").cloned().unwrap();
    let left = entry.state.load().fresh_until - resolver.0.now();
    assert!((9_000..=10_000).contains(&left), "{left}");
}

#[tokio::test]
async fn stale_addresses_outlive_the_server() {
    let server = Server::start().await;
    server.set(ABSOLUTE, Zone::of(&["10.0.0.1"]));
    let resolver = server
        .resolver_with(ResolverConfig { query_timeout: Duration::from_millis(200), ..Default::default() });
    resolver.resolve(NAME, LONG).await.unwrap();
    server.shared.lock().dead = true;
    advance(&resolver, secs(31));
    assert!(resolver.cached(NAME).is_some());
    eventually("noticed", || {
        resolver.0.others.load()[NAME].state.load().error == Some(ResolveError::Timeout)
    })
    .await;
    // Served at once from now on, with at most one look-up under way.
    advance(&resolver, secs(590));
    let asked = server.asked(ABSOLUTE, A);
    for _ in 0..100 {
        assert_eq!(resolver.cached(NAME).unwrap().list(), ips(&["10.0.0.1"]));
    }
    eventually("tried once more", || server.asked(ABSOLUTE, A) > asked && quiet(&resolver)).await;
    // Not for ever.
    advance(&resolver, secs(20));
    assert!(resolver.cached(NAME).is_none());
    assert_eq!(resolver.resolve(NAME, LONG).await.unwrap_err(), ResolveError::Timeout);
    // Back again.
    server.shared.lock().dead = false;
    advance(&resolver, secs(2));
    assert_eq!(resolver.resolve(NAME, LONG).await.unwrap().list(), ips(&["10.0.0.1"]));
}

#[tokio::test]
async fn after_a_long_silence_the_new_address_is_waited_for() {
    let server = Server::start().await;
    server.set(ABSOLUTE, Zone::of(&["10.0.0.1"]));
    let resolver = server.resolver();
    resolver.resolve(NAME, LONG).await.unwrap();
    server.set(ABSOLUTE, Zone::of(&["10.0.0.2"]));
    advance(&resolver, secs(90));
    assert!(resolver.cached(NAME).is_none());
    assert_eq!(resolver.resolve(NAME, LONG).await.unwrap().list(), ips(&["10.0.0.2"]));
    // A dead server does not make it wait for long.
    server.shared.lock().dead = true;
    advance(&resolver, secs(90));
    let began = Instant::now();
    assert_eq!(resolver.resolve(NAME, LONG).await.unwrap().list(), ips(&["10.0.0.2"]));
    assert!(began.elapsed() < secs(2));
}

#[tokio::test]
async fn silent_server_is_a_timeout_within_the_budget() {
    let server = Server::start().await;
    server.shared.lock().dead = true;
    let resolver = server
        .resolver_with(ResolverConfig { query_timeout: Duration::from_millis(300), ..Default::default() });
    for (name, budget) in [("a", Duration::from_millis(50)), ("b", LONG)] {
        let began = Instant::now();
        assert_eq!(resolver.resolve(name, budget).await.unwrap_err(), ResolveError::Timeout);
        assert!(began.elapsed() < Duration::from_millis(800), "{:?}", began.elapsed());
    }
    // Remembered: the server is not asked for every request.
    let asked = server.asked("b.", A);
    for _ in 0..100 {
        assert_eq!(resolver.resolve("b", LONG).await.unwrap_err(), ResolveError::Timeout);
    }
    assert_eq!(server.asked("b.", A), asked);
}

#[tokio::test]
async fn server_failure_is_an_error_and_remembered() {
    let server = Server::start().await;
    server.set(ABSOLUTE, Zone { code: SERVFAIL, ..Zone::default() });
    let resolver = server.resolver();
    let error = resolver.resolve(NAME, LONG).await.unwrap_err();
    assert!(matches!(error, ResolveError::Failed(_)), "{error}");
    let asked = server.asked(ABSOLUTE, A);
    assert_eq!(resolver.resolve(NAME, LONG).await.unwrap_err(), error);
    assert_eq!(server.asked(ABSOLUTE, A), asked);
}

#[tokio::test]
async fn mark_stale_finds_the_new_address() {
    let server = Server::start().await;
    server.set(ABSOLUTE, Zone { ttl: 300, ..Zone::of(&["10.0.0.1"]) });
    let resolver = server.resolver();
    resolver.retain([Arc::from(NAME)]);
    eventually("primed", || resolver.cached(NAME).is_some() && quiet(&resolver)).await;
    server.set(ABSOLUTE, Zone { ttl: 300, ..Zone::of(&["10.0.0.2"]) });
    // Too early: remembered, and done by the first use a second later.
    for _ in 0..100 {
        resolver.mark_stale(NAME);
        assert_eq!(resolver.cached(NAME).unwrap().pick(), ips(&["10.0.0.1"])[0]);
    }
    sleep(Duration::from_millis(20)).await;
    assert_eq!(server.asked(ABSOLUTE, A), 1);
    advance(&resolver, secs(1));
    resolver.cached(NAME);
    eventually("changed", || resolver.cached(NAME).unwrap().list() == ips(&["10.0.0.2"])).await;
    assert_eq!(server.asked(ABSOLUTE, A), 2);
    // Later marks take effect without a use.
    advance(&resolver, secs(1));
    server.set(ABSOLUTE, Zone::of(&["10.0.0.3"]));
    resolver.mark_stale(NAME);
    eventually("asked", || server.asked(ABSOLUTE, A) == 3 && quiet(&resolver)).await;
    assert_eq!(resolver.cached(NAME).unwrap().list(), ips(&["10.0.0.3"]));
    resolver.mark_stale("unknown");
}

#[tokio::test]
async fn retain_primes_and_drops() {
    let server = Server::start().await;
    let names: Vec<Arc<str>> = (0..200).map(|n| format!("s{n}.ns.svc.cluster.local").into()).collect();
    for name in &names {
        server.set(&format!("{name}."), Zone::of(&["10.0.0.1"]));
    }
    let resolver = server.resolver();
    resolver.retain(names.iter().cloned());
    eventually("primed", || names.iter().all(|name| resolver.cached(name).is_some())).await;
    assert_eq!(server.shared.lock().asked.len(), 400);
    // The same names again: nothing changes.
    let before = resolver.0.known.load_full();
    resolver.retain(names.iter().cloned());
    assert!(Arc::ptr_eq(&before, &resolver.0.known.load_full()));
    // Requests on an older snapshot still find theirs.
    resolver.retain([names[0].clone()]);
    assert!(resolver.cached(&names[1]).is_some());
    advance(&resolver, secs(59));
    resolver.retain([names[0].clone()]);
    assert_eq!(resolver.0.known.load().len(), 200);
    // A name that comes back in time keeps what is known of it.
    resolver.retain([names[0].clone(), names[1].clone()]);
    advance(&resolver, secs(60));
    resolver.retain([names[0].clone(), names[1].clone()]);
    assert_eq!(resolver.0.known.load().len(), 2);
    sleep(Duration::from_millis(20)).await;
    assert_eq!(server.shared.lock().asked.len(), 400);
}

#[tokio::test]
async fn retain_takes_over_and_clears_other_names() {
    let server = Server::start().await;
    server.set(ABSOLUTE, Zone::of(&["10.0.0.1"]));
    server.set("idp.", Zone::of(&["10.0.0.9"]));
    let resolver = server.resolver();
    resolver.resolve(NAME, LONG).await.unwrap();
    resolver.resolve("idp", LONG).await.unwrap();
    resolver.retain([Arc::from(NAME)]);
    assert_eq!(resolver.cached(NAME).unwrap().list(), ips(&["10.0.0.1"]));
    assert_eq!(resolver.0.others.load().len(), 1);
    assert!(resolver.cached("idp").is_some());
    advance(&resolver, secs(100));
    resolver.retain([Arc::from(NAME)]);
    assert!(resolver.0.others.load().is_empty());
    eventually("quiet", || quiet(&resolver)).await;
    assert_eq!(server.asked(ABSOLUTE, A), 1);
}

#[tokio::test]
async fn other_names_are_bounded() {
    let server = Server::start().await;
    let resolver = server.resolver();
    for n in 0..3 * OTHER_NAMES {
        resolver.0.entry(&format!("n{n}.example")).unwrap().began.store(n as u64, Relaxed);
        assert!(resolver.0.others.load().len() <= OTHER_NAMES);
    }
    let others = resolver.0.others.load();
    assert!(others.len() >= OTHER_NAMES * 3 / 4);
    assert!(others.contains_key(format!("n{}.example", 3 * OTHER_NAMES - OTHER_NAMES / 2).as_str()));
    assert!(!others.contains_key("n0.example"));
}

#[tokio::test]
async fn truncated_answers_are_fetched_over_tcp() {
    let server = Server::start().await;
    let many: Vec<String> = (0..200).map(|n| format!("10.0.1.{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    server.set(ABSOLUTE, Zone { truncated: true, ..Zone::of(&many) });
    let resolver = server.resolver();
    assert_eq!(resolver.resolve(NAME, LONG).await.unwrap().list(), ips(&many));
    assert_eq!(server.shared.lock().tcp, 2);
}

#[tokio::test]
async fn half_an_answer() {
    let server = Server::start().await;
    let resolver = server
        .resolver_with(ResolverConfig { query_timeout: Duration::from_millis(1_500), ..Default::default() });
    // A server that ignores AAAA costs half a second, not the time-out.
    server.set("mute.", Zone { silent: vec![AAAA], ..Zone::of(&["10.0.0.1", "fd00::1"]) });
    let began = Instant::now();
    assert_eq!(resolver.resolve("mute", LONG).await.unwrap().list(), ips(&["10.0.0.1"]));
    assert!(began.elapsed() < Duration::from_millis(1_200), "{:?}", began.elapsed());
    // Only IPv6 known because the other query failed: better than nothing, not better than before.
    let dual = Zone::of(&["10.0.0.1", "fd00::1"]);
    server.set("dual.", Zone { broken: vec![A], ..dual.clone() });
    assert_eq!(resolver.resolve("dual", LONG).await.unwrap().list(), ips(&["fd00::1"]));
    for (zone, list) in [
        (dual.clone(), ["10.0.0.1", "fd00::1"]),
        (Zone { broken: vec![A], ..dual.clone() }, ["10.0.0.1", "fd00::1"]),
    ] {
        server.set("dual.", zone);
        let asked = server.asked("dual.", A);
        advance(&resolver, secs(31));
        resolver.cached("dual").unwrap();
        eventually("renewed", || server.asked("dual.", A) > asked && quiet(&resolver)).await;
        assert_eq!(resolver.cached("dual").unwrap().list(), ips(&list));
    }
    // No IPv4 records, and the other query failed: unknown, which is not "no such name".
    server.set("odd.", Zone { broken: vec![AAAA], ..Zone::of(&[]) });
    assert!(matches!(resolver.resolve("odd", LONG).await.unwrap_err(), ResolveError::Failed(_)));
    // IPv6 only.
    server.set("six.", Zone::of(&["fd00::1", "fd00::2"]));
    assert_eq!(resolver.resolve("six", LONG).await.unwrap().list(), ips(&["fd00::1", "fd00::2"]));
}

#[tokio::test]
async fn a_shuffled_answer_does_not_restart_the_rotation() {
    let server = Server::start().await;
    server.set(ABSOLUTE, Zone::of(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]));
    let resolver = server.resolver();
    let first = resolver.resolve(NAME, LONG).await.unwrap();
    first.pick();
    server.set(ABSOLUTE, Zone::of(&["10.0.0.3", "10.0.0.1", "10.0.0.2"]));
    advance(&resolver, secs(31));
    resolver.cached(NAME);
    eventually("renewed", || server.asked(ABSOLUTE, A) == 2 && quiet(&resolver)).await;
    assert!(Arc::ptr_eq(&first, &resolver.cached(NAME).unwrap()));
}

#[test]
fn works_across_runtimes() {
    let control = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let data = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (server, resolver) = control.block_on(async {
        let server = Server::start().await;
        server.set(ABSOLUTE, Zone::of(&["10.0.0.1"]));
        let resolver = server.resolver();
        (server, resolver)
    });
    let found = data.block_on(resolver.resolve(NAME, LONG)).unwrap();
    assert_eq!(found.list(), ips(&["10.0.0.1"]));
    // Outside any runtime, as in a `Drop` or a plain thread.
    advance(&resolver, secs(31));
    assert!(resolver.cached(NAME).is_some());
    resolver.mark_stale(NAME);
    drop(server);
    // When the control plane is gone: an error, not a hang.
    control.shutdown_timeout(secs(1));
    let error = data.block_on(resolver.resolve("other", LONG)).unwrap_err();
    assert!(matches!(error, ResolveError::Failed(_)), "{error}");
}

#[test]
fn picks() {
    let mixed = Addresses::new(ips(&["10.0.0.1", "10.0.0.2"]), ips(&["fd00::1"]), 0).unwrap();
    let picked: Vec<_> = (0..5).map(|_| mixed.pick()).collect();
    assert_eq!(picked, ips(&["10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.2", "10.0.0.1"]));
    let retries: Vec<_> = (1..5).map(|n| mixed.pick_nth(n)).collect();
    assert_eq!(retries, ips(&["10.0.0.2", "fd00::1", "10.0.0.1", "10.0.0.2"]));
    assert_eq!(mixed.pick(), ips(&["10.0.0.2"])[0]);

    let one = Addresses::new(vec![], ips(&["fd00::1"]), 0).unwrap();
    assert_eq!((one.pick(), one.pick_nth(7)), (one.list()[0], one.list()[0]));
    assert!(Addresses::new(vec![], vec![], 0).is_none());
}
