//! A small DNS server whose answers a test sets: A and AAAA records, NXDOMAIN, NODATA, SERVFAIL, delay and silence.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;

const TYPE_A: u16 = 1;
const TYPE_SOA: u16 = 6;
const TYPE_AAAA: u16 = 28;
const TYPE_OPT: u16 = 41;

/// A DNS server on 127.0.0.1, over UDP and TCP at one port. It ends when dropped.
#[derive(Debug)]
pub struct DnsServer {
    addr: SocketAddr,
    state: Arc<Mutex<State>>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct State {
    records: HashMap<String, Vec<IpAddr>>,
    queries: HashMap<String, usize>,
    ttl: u32,
    delay: Option<Duration>,
    silent: bool,
    failing: bool,
}

impl DnsServer {
    /// Starts a server that knows no name (NXDOMAIN for all) and gives a TTL of 5 s, as CoreDNS does for Services.
    pub async fn start() -> Self {
        let (udp, tcp) = bind().await.unwrap_or_else(|e| panic!("DNS server: {e}"));
        let addr = udp.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State {
            records: HashMap::new(),
            queries: HashMap::new(),
            ttl: 5,
            delay: None,
            silent: false,
            failing: false,
        }));
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_udp(udp, state.clone()));
        tasks.spawn(serve_tcp(tcp, state.clone()));
        Self { addr, state, _tasks: tasks }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sets a name's addresses of both families. A name without any address of the family asked for: NODATA.
    pub fn set(&self, name: &str, addresses: impl Into<Vec<IpAddr>>) {
        self.state().records.insert(normal(name), addresses.into());
    }

    /// Makes a name unknown again (NXDOMAIN).
    pub fn remove(&self, name: &str) {
        self.state().records.remove(&normal(name));
    }

    /// Sets the TTL in seconds of all answers, negative ones included.
    pub fn set_ttl(&self, seconds: u32) {
        self.state().ttl = seconds;
    }

    /// Answers only after this long.
    pub fn set_delay(&self, delay: Option<Duration>) {
        self.state().delay = delay;
    }

    /// Receives (and counts) queries but answers none.
    pub fn set_silent(&self, silent: bool) {
        self.state().silent = silent;
    }

    /// Answers SERVFAIL to all.
    pub fn set_failing(&self, failing: bool) {
        self.state().failing = failing;
    }

    /// How many queries came for this name, of any type.
    pub fn queries(&self, name: &str) -> usize {
        self.state().queries.get(&normal(name)).copied().unwrap_or(0)
    }

    /// How many queries came for all names.
    pub fn total_queries(&self) -> usize {
        self.state().queries.values().sum()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

async fn bind() -> io::Result<(UdpSocket, TcpListener)> {
    let mut last = None;
    for _ in 0..20 {
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        match TcpListener::bind(udp.local_addr()?).await {
            Ok(tcp) => return Ok((udp, tcp)),
            Err(e) => last = Some(e),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::other("no port")))
}

async fn serve_udp(socket: UdpSocket, state: Arc<Mutex<State>>) {
    let socket = Arc::new(socket);
    let mut answers = JoinSet::new();
    let mut buffer = [0; 4096];
    while let Ok((n, peer)) = socket.recv_from(&mut buffer).await {
        if let Some(query) = Query::parse(&buffer[..n]) {
            let (socket, state) = (socket.clone(), state.clone());
            answers.spawn(async move {
                if let Some(answer) = answer(&query, query.udp_limit, &state).await {
                    let _ = socket.send_to(&answer, peer).await;
                }
            });
        }
        while answers.try_join_next().is_some() {}
    }
}

async fn serve_tcp(listener: TcpListener, state: Arc<Mutex<State>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(serve_tcp_connection(stream, state.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve_tcp_connection(mut stream: TcpStream, state: Arc<Mutex<State>>) {
    while let Ok(length) = stream.read_u16().await {
        let mut message = vec![0; length.into()];
        if stream.read_exact(&mut message).await.is_err() {
            return;
        }
        let Some(query) = Query::parse(&message) else { return };
        if let Some(answer) = answer(&query, usize::from(u16::MAX), &state).await {
            let mut framed = (answer.len() as u16).to_be_bytes().to_vec();
            framed.extend(answer);
            if stream.write_all(&framed).await.is_err() {
                return;
            }
        }
    }
}

struct Query {
    id: [u8; 2],
    recursion_desired: bool,
    /// The question as it came: a resolver may check that the answer repeats it letter by letter.
    question: Vec<u8>,
    name: String,
    record_type: u16,
    edns: bool,
    udp_limit: usize,
}

impl Query {
    fn parse(message: &[u8]) -> Option<Self> {
        let header = message.first_chunk::<12>()?;
        let is_response = header[2] & 0x80 != 0;
        let opcode = header[2] & 0x78;
        if is_response || opcode != 0 || header[4..6] != [0, 1] {
            return None;
        }
        let mut at = 12;
        let mut labels = Vec::new();
        loop {
            let length = usize::from(*message.get(at)?);
            at += 1;
            if length == 0 {
                break;
            }
            let label = message.get(at..at + length).filter(|_| length < 64)?;
            labels.push(String::from_utf8_lossy(label).into_owned());
            at += length;
        }
        let record_type = u16::from_be_bytes(*message.get(at..)?.first_chunk()?);
        let question = message.get(12..at + 4)?.to_vec();
        at += 4;
        // An OPT record (root name, type 41, class = the sender's UDP limit) directly after the question.
        let opt = message.get(at..at + 5).filter(|r| r[..3] == [0, 0, TYPE_OPT as u8]);
        let udp_limit = opt.map_or(512, |r| usize::from(u16::from_be_bytes([r[3], r[4]])).clamp(512, 4096));
        Some(Self {
            id: [header[0], header[1]],
            recursion_desired: header[2] & 1 != 0,
            question,
            name: normal(&labels.join(".")),
            record_type,
            edns: opt.is_some(),
            udp_limit,
        })
    }
}

async fn answer(query: &Query, limit: usize, state: &Mutex<State>) -> Option<Vec<u8>> {
    let delay = {
        let mut state = state.lock().unwrap();
        *state.queries.entry(query.name.clone()).or_default() += 1;
        if state.silent {
            return None;
        }
        state.delay
    };
    if let Some(delay) = delay {
        tokio::time::sleep(delay).await;
    }
    let state = state.lock().unwrap();
    let full = encode(query, &state, false);
    Some(if full.len() > limit { encode(query, &state, true) } else { full })
}

fn encode(query: &Query, state: &State, truncated: bool) -> Vec<u8> {
    const NOERROR: u8 = 0;
    const SERVFAIL: u8 = 2;
    const NXDOMAIN: u8 = 3;
    let known = state.records.get(&query.name);
    let code = match known {
        _ if state.failing => SERVFAIL,
        Some(_) => NOERROR,
        None => NXDOMAIN,
    };
    let matching: Vec<&IpAddr> = known
        .into_iter()
        .flatten()
        .filter(|a| {
            !state.failing && !truncated && query.record_type == if a.is_ipv4() { TYPE_A } else { TYPE_AAAA }
        })
        .collect();
    let soa = matching.is_empty() && code != SERVFAIL && !truncated;

    let mut out = query.id.to_vec();
    // Response, authoritative; recursion available, as a cluster's DNS says.
    out.push(0x84 | u8::from(truncated) << 1 | u8::from(query.recursion_desired));
    out.push(0x80 | code);
    for count in [1, matching.len() as u16, u16::from(soa), u16::from(query.edns)] {
        out.extend(count.to_be_bytes());
    }
    out.extend(&query.question);
    for address in matching {
        out.extend([0xc0, 12]); // the name in the question
        out.extend(query.record_type.to_be_bytes());
        out.extend(1u16.to_be_bytes());
        out.extend(state.ttl.to_be_bytes());
        match address {
            IpAddr::V4(a) => {
                out.extend(4u16.to_be_bytes());
                out.extend(a.octets());
            }
            IpAddr::V6(a) => {
                out.extend(16u16.to_be_bytes());
                out.extend(a.octets());
            }
        }
    }
    if soa {
        // RFC 2308: what says how long a negative answer may be kept.
        out.push(0);
        out.extend(TYPE_SOA.to_be_bytes());
        out.extend(1u16.to_be_bytes());
        out.extend(state.ttl.to_be_bytes());
        out.extend(22u16.to_be_bytes());
        out.extend([0, 0]); // primary server and mailbox: the root
        for number in [1, 3600, 600, 86_400, state.ttl] {
            out.extend(number.to_be_bytes());
        }
    }
    if query.edns {
        out.push(0);
        out.extend(TYPE_OPT.to_be_bytes());
        out.extend(4096u16.to_be_bytes());
        out.extend([0; 6]);
    }
    out
}

fn normal(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}
