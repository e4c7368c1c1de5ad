//! Basic authentication (RFC 7617): throttle, then what was verified a moment ago, then a hash.

use super::hash;
use super::throttle::Throttle;
use super::workers::{Busy, Workers};
use super::{Asked, Identity, Outcome, X_AUTH_REQUEST_USER};
use crate::policy::Verdict;
use crate::respond::{Rejection, Reply};
use http::header::{AUTHORIZATION, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};
use ingress_core::{BasicAuth, Htpasswd};
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::pkey::{PKey, Private};
use openssl::sign::Signer;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long verified credentials are taken without another hash.
const REMEMBERED: Duration = Duration::from_secs(60);
const SHARDS: usize = 16;
/// Credentials that one shard remembers.
const MAX: usize = 2048;
/// Longest credentials that are looked at, encoded. SHA-crypt works longer for longer passwords.
const MAX_ENCODED: usize = 2048;
/// How long a request waits for its hash, with those before it.
const LONGEST: Duration = Duration::from_secs(10);
/// What a client is told to wait when the queue is full.
const BUSY_SECONDS: u64 = 1;

/// What Basic authentication keeps between requests, for all routes.
pub struct Basic {
    throttle: Throttle,
    workers: Workers,
    verified: Arc<Verified>,
}

/// Name and password under a key that nobody else has.
type Digest = [u8; 32];

/// Credentials that were found right, by digest.
struct Verified {
    key: PKey<Private>,
    shards: [Mutex<HashMap<Digest, Instant>>; SHARDS],
    /// Checks that go on now: the same credentials are hashed once.
    pending: Mutex<HashMap<Digest, watch::Receiver<Option<bool>>>>,
}

/// Name and password as they were sent.
struct Credentials {
    user: Box<[u8]>,
    password: Box<[u8]>,
}

impl Basic {
    /// Starts the hash threads.
    pub fn start(threads: usize, failures: u32, window: Duration) -> std::io::Result<Self> {
        let mut key = [0; 32];
        openssl::rand::rand_bytes(&mut key)?;
        Ok(Self {
            throttle: Throttle::new(failures, window),
            workers: Workers::start(threads)?,
            verified: Arc::new(Verified {
                key: PKey::hmac(&key)?,
                shards: Default::default(),
                pending: Mutex::default(),
            }),
        })
    }

    /// Decides about a request.
    pub async fn authenticate(
        &self,
        basic: &BasicAuth,
        asked: &Asked<'_>,
        identity: &mut Identity,
    ) -> (Verdict, Outcome) {
        let credentials = match credentials(&asked.parts.headers) {
            Ok(Some(credentials)) => credentials,
            Ok(None) => return (challenge(basic), Outcome::Missing),
            Err(Unreadable::Twice) => return (Verdict::Reject(Rejection::Malformed), Outcome::Denied),
            Err(Unreadable::Malformed) => return (challenge(basic), Outcome::Denied),
        };
        let client = asked.conn.ip;
        match self.check(&basic.file, &credentials, client).await {
            Ok(true) => {
                let Ok(user) = HeaderValue::from_bytes(&credentials.user) else {
                    return (challenge(basic), Outcome::Denied);
                };
                identity.user = Some(String::from_utf8_lossy(&credentials.user).into());
                identity.remove.push(AUTHORIZATION);
                identity.headers.push((X_AUTH_REQUEST_USER, user));
                (Verdict::Continue, Outcome::Allowed)
            }
            Ok(false) => (challenge(basic), Outcome::Denied),
            Err(Refused::Throttled(wait)) => {
                let reply = Reply::new(StatusCode::TOO_MANY_REQUESTS, "auth_throttled")
                    .header(RETRY_AFTER, HeaderValue::from(wait.as_secs_f64().ceil().max(1.0) as u64))
                    .text("429 Too Many Requests\n");
                (Verdict::Respond(Box::new(reply)), Outcome::Throttled)
            }
            Err(Refused::Busy) => {
                let reply = Reply::new(StatusCode::SERVICE_UNAVAILABLE, "auth_busy")
                    .header(RETRY_AFTER, HeaderValue::from(BUSY_SECONDS))
                    .text("503 Service Unavailable\n");
                (Verdict::Respond(Box::new(reply)), Outcome::Error)
            }
        }
    }

    /// Whether the credentials are right. The throttle comes first: guesses are to cost nothing.
    async fn check(
        &self,
        file: &Arc<Htpasswd>,
        credentials: &Credentials,
        client: IpAddr,
    ) -> Result<bool, Refused> {
        let now = Instant::now();
        self.throttle.check(client, now).map_err(Refused::Throttled)?;
        let digest = self.verified.digest(file, credentials).map_err(|_| Refused::Busy)?;
        if self.verified.remembers(&digest, now) {
            self.throttle.succeeded(client);
            return Ok(true);
        }
        let joined = self.verified.pending.lock().get(&digest).cloned();
        let right = match joined {
            Some(result) => outcome(result).await?,
            None => {
                let _attempt = self.throttle.begin(client, now).map_err(Refused::Throttled)?;
                outcome(self.hash(file, credentials, digest)?).await?
            }
        };
        if right {
            self.throttle.succeeded(client);
        } else {
            self.throttle.failed(client, Instant::now());
        }
        Ok(right)
    }

    /// Has the password hashed.
    fn hash(
        &self,
        file: &Arc<Htpasswd>,
        credentials: &Credentials,
        digest: Digest,
    ) -> Result<watch::Receiver<Option<bool>>, Refused> {
        let (tell, told) = watch::channel(None);
        // Under the lock: whoever comes between look-up and here joins in.
        let mut pending = self.verified.pending.lock();
        if let Some(joined) = pending.get(&digest) {
            return Ok(joined.clone());
        }
        let (file, verified) = (file.clone(), self.verified.clone());
        let (user, password) = (credentials.user.clone(), credentials.password.clone());
        self.workers
            .submit(move || {
                {
                    let mut pending = verified.pending.lock();
                    // Only the list itself still listens: nobody waits any more.
                    if tell.receiver_count() <= 1 {
                        pending.remove(&digest);
                        return;
                    }
                }
                // Dropped whatever happens.
                let end = Pending { verified: &verified, digest };
                let right = verify(&file, &user, &password);
                if right {
                    verified.remember(digest, Instant::now());
                }
                drop(end);
                let _ = tell.send(Some(right));
            })
            .map_err(|Busy| Refused::Busy)?;
        pending.insert(digest, told.clone());
        Ok(told)
    }
}

/// A check that goes on.
struct Pending<'a> {
    verified: &'a Verified,
    digest: Digest,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.verified.pending.lock().remove(&self.digest);
    }
}

/// Why nothing was checked.
enum Refused {
    Throttled(Duration),
    Busy,
}

async fn outcome(mut result: watch::Receiver<Option<bool>>) -> Result<bool, Refused> {
    let right = tokio::time::timeout(LONGEST, result.wait_for(Option::is_some)).await;
    right.ok().and_then(|told| told.ok().and_then(|right| *right)).ok_or(Refused::Busy)
}

/// Equal work whether the user exists or not: a missing one is checked against the costliest hash, and
/// so is one whose own hash costs less and did not match.
fn verify(file: &Htpasswd, user: &[u8], password: &[u8]) -> bool {
    let known = file.users.get(user);
    if known.is_some_and(|own| hash::matches(own, password)) {
        return true;
    }
    if known.is_none_or(|own| own.work < file.stand_in.work) {
        std::hint::black_box(hash::matches(&file.stand_in, password));
    }
    false
}

impl Verified {
    fn digest(&self, file: &Htpasswd, credentials: &Credentials) -> Result<Digest, ErrorStack> {
        let mut signer = Signer::new(MessageDigest::sha256(), &self.key)?;
        signer.update(&file.fingerprint)?;
        signer.update(&(credentials.user.len() as u64).to_be_bytes())?;
        signer.update(&credentials.user)?;
        signer.update(&credentials.password)?;
        let mut digest = [0; 32];
        signer.sign(&mut digest)?;
        Ok(digest)
    }

    fn shard(&self, digest: &Digest) -> &Mutex<HashMap<Digest, Instant>> {
        &self.shards[usize::from(digest[0]) % SHARDS]
    }

    fn remembers(&self, digest: &Digest, now: Instant) -> bool {
        self.shard(digest).lock().get(digest).is_some_and(|until| now < *until)
    }

    fn remember(&self, digest: Digest, now: Instant) {
        let mut shard = self.shard(&digest).lock();
        if shard.len() >= MAX {
            shard.retain(|_, until| now < *until);
            if shard.len() >= MAX {
                shard.clear();
            }
        }
        shard.insert(digest, now + REMEMBERED);
    }
}

fn challenge(basic: &BasicAuth) -> Verdict {
    let reply = Reply::new(StatusCode::UNAUTHORIZED, "auth")
        .header(WWW_AUTHENTICATE, basic.challenge.clone())
        .text("401 Unauthorized\n");
    Verdict::Respond(Box::new(reply))
}

/// Why credentials cannot be read.
#[derive(Debug, PartialEq, Eq)]
enum Unreadable {
    /// Two `Authorization` fields: backend and proxy might each read another one.
    Twice,
    Malformed,
}

/// Reads `Authorization`; `None` where there is none.
fn credentials(headers: &HeaderMap) -> Result<Option<Credentials>, Unreadable> {
    let mut fields = headers.get_all(AUTHORIZATION).iter();
    let Some(field) = fields.next() else { return Ok(None) };
    if fields.next().is_some() {
        return Err(Unreadable::Twice);
    }
    parse(field.as_bytes()).map(Some).ok_or(Unreadable::Malformed)
}

fn parse(field: &[u8]) -> Option<Credentials> {
    let (scheme, encoded) = field.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let encoded = encoded.trim_ascii();
    if encoded.is_empty() || encoded.len() > MAX_ENCODED {
        return None;
    }
    let plain = openssl::base64::decode_block(std::str::from_utf8(encoded).ok()?).ok()?;
    let colon = plain.iter().position(|b| *b == b':')?;
    // RFC 7617 section 2: no control characters in either part.
    if colon == 0 || plain.iter().any(u8::is_ascii_control) {
        return None;
    }
    Some(Credentials { user: plain[..colon].into(), password: plain[colon + 1..].into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ingress_core::{Kind, PasswordHash, ResourceRef, Scheme};

    fn file(users: &[(&str, Scheme, String)]) -> Arc<Htpasswd> {
        let hash = |scheme: &Scheme, text: &String| PasswordHash {
            scheme: *scheme,
            work: if *scheme == Scheme::Bcrypt { 100 } else { 1 },
            text: text.as_str().into(),
        };
        let users: std::collections::BTreeMap<Box<[u8]>, _> =
            users.iter().map(|(user, scheme, text)| (user.as_bytes().into(), hash(scheme, text))).collect();
        let stand_in = users.values().max_by_key(|hash| hash.work).unwrap().clone();
        Arc::new(Htpasswd {
            users,
            stand_in,
            source: ResourceRef::new(Kind::Secret, "ns", "users"),
            fingerprint: [7; 32],
        })
    }

    fn of(user: &str, password: &str) -> Credentials {
        Credentials { user: user.as_bytes().into(), password: password.as_bytes().into() }
    }

    fn sha(password: &str) -> String {
        format!("{{SHA}}{}", openssl::base64::encode_block(&openssl::sha::sha1(password.as_bytes())))
    }

    fn field(plain: &[u8]) -> Vec<u8> {
        format!("Basic {}", openssl::base64::encode_block(plain)).into_bytes()
    }

    #[test]
    fn credentials_end_at_the_first_colon_and_hold_no_control_characters() {
        for (plain, user, password) in [
            (&b"alice:pa:ss:word"[..], &b"alice"[..], &b"pa:ss:word"[..]),
            ("alice:p\u{e4}ss".as_bytes(), b"alice", "p\u{e4}ss".as_bytes()),
            (b"alice:", b"alice", b""),
            (b"alice: spaced ", b"alice", b" spaced "),
        ] {
            let read = parse(&field(plain)).unwrap();
            assert_eq!((&*read.user, &*read.password), (user, password));
        }
        for plain in [&b":secret"[..], b"alice", b"", b"a\0b:c", b"alice:a\0", b"alice:\r\nX: y", b":"] {
            assert!(parse(&field(plain)).is_none(), "{plain:?}");
        }
        for raw in
            [&b"Basic"[..], b"Basic ", b"Basic  ", b"Basic !!!", b"Bearer x", b"basi", b"", b"Basic\tYTpi"]
        {
            assert!(parse(raw).is_none(), "{raw:?}");
        }
        assert!(parse(b"bAsIc   YTpi").is_some());
        assert!(parse(&field(&[b'a'; 10 << 10])).is_none());
        let mut two = HeaderMap::new();
        two.append(AUTHORIZATION, HeaderValue::from_static("Basic YTpi"));
        two.append(AUTHORIZATION, HeaderValue::from_static("Basic YTpi"));
        assert_eq!(credentials(&two).err(), Some(Unreadable::Twice));
    }

    #[test]
    fn right_wrong_and_unknown() {
        let bcrypt = bcrypt::hash("secret", 4).unwrap();
        let file = file(&[("alice", Scheme::Bcrypt, bcrypt), ("bob", Scheme::Sha1, sha("hidden"))]);
        for (user, password, right) in [
            ("alice", "secret", true),
            ("alice", "hidden", false),
            ("bob", "hidden", true),
            ("bob", "secret", false),
            ("Alice", "secret", false),
            ("nobody", "secret", false), // the password of the hash that stands in
            ("", "", false),
        ] {
            assert_eq!(verify(&file, user.as_bytes(), password.as_bytes()), right, "{user} {password}");
        }
    }

    fn basic(failures: u32) -> Basic {
        Basic::start(1, failures, Duration::from_secs(60)).unwrap()
    }

    #[tokio::test]
    async fn what_was_verified_is_remembered_for_its_file_alone() {
        let basic = basic(100);
        let (ip, now) = (IpAddr::from([192, 0, 2, 1]), Instant::now());
        let first = file(&[("alice", Scheme::Sha1, sha("secret"))]);
        let right = of("alice", "secret");
        assert!(basic.check(&first, &right, ip).await.is_ok_and(|right| right));
        let digest = basic.verified.digest(&first, &right).unwrap();
        assert!(basic.verified.remembers(&digest, now));
        assert!(!basic.verified.remembers(&digest, now + REMEMBERED + Duration::from_secs(1)));
        let mut second = (*first).clone();
        second.fingerprint = [8; 32];
        assert_ne!(basic.verified.digest(&second, &right).unwrap(), digest);
        // Where name and password meet is part of it.
        let (one, other) = (of("alice", "xsecret"), of("alicex", "secret"));
        assert_ne!(
            basic.verified.digest(&first, &one).unwrap(),
            basic.verified.digest(&first, &other).unwrap()
        );
        assert!(basic.check(&first, &of("alice", "wrong"), ip).await.is_ok_and(|right| !right));
        assert!(basic.verified.pending.lock().is_empty());
    }

    #[tokio::test]
    async fn guesses_are_throttled_also_where_the_last_one_is_right() {
        let basic = basic(3);
        let file = file(&[("alice", Scheme::Sha1, sha("secret"))]);
        let (guesser, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let right = of("alice", "secret");
        assert!(basic.check(&file, &right, other).await.is_ok_and(|right| right));
        for i in 0..3 {
            let guess = of("alice", &format!("guess {i}"));
            assert!(basic.check(&file, &guess, guesser).await.is_ok_and(|right| !right));
        }
        assert!(matches!(basic.check(&file, &right, guesser).await, Err(Refused::Throttled(_))));
        assert!(basic.check(&file, &right, other).await.is_ok_and(|right| right));
    }

    #[tokio::test]
    async fn the_same_credentials_at_the_same_time_are_hashed_once() {
        let basic = Arc::new(basic(5));
        let file = file(&[("alice", Scheme::Bcrypt, bcrypt::hash("secret", 6).unwrap())]);
        let ip = IpAddr::from([192, 0, 2, 1]);
        // More than may be pending for one client, were each to be hashed.
        let checks = (0..50).map(|_| {
            let (basic, file) = (basic.clone(), file.clone());
            tokio::spawn(async move { basic.check(&file, &of("alice", "secret"), ip).await.is_ok_and(|r| r) })
        });
        for check in checks.collect::<Vec<_>>() {
            assert!(check.await.unwrap());
        }
    }

    #[tokio::test]
    async fn a_full_queue_is_said_at_once() {
        let basic = basic(1_000_000);
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let (begun, begins) = std::sync::mpsc::channel();
        let blocked = move || {
            begun.send(()).unwrap();
            let _ = held.recv();
        };
        basic.workers.submit(blocked).unwrap();
        begins.recv().unwrap();
        while basic.workers.submit(|| ()).is_ok() {}
        let file = file(&[("alice", Scheme::Sha1, sha("secret"))]);
        let ip = IpAddr::from([192, 0, 2, 1]);
        assert!(matches!(basic.check(&file, &of("alice", "secret"), ip).await, Err(Refused::Busy)));
        assert!(basic.verified.pending.lock().is_empty());
        drop(hold);
    }
}
