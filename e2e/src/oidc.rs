//! An identity provider in the test's process: authorization code with PKCE, rotation of refresh tokens as
//! strict as the strictest real ones, JWTs, introspection, and ways to make it misbehave.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use openssl::hash::MessageDigest;
use openssl::pkey::{PKey, Private};
use openssl::rsa::Rsa;
use openssl::sha::sha256;
use openssl::sign::Signer;
use serde_json::{Value, json};

use crate::origin::{Origin, Received, Reply};
use crate::pki::Leaf;

/// A provider. Its endpoints stop when it is dropped; what it knows can be served again by [`Provider::restart`].
pub struct Provider {
    origin: Option<Origin>,
    addr: SocketAddr,
    state: Arc<Mutex<State>>,
}

/// What a provider knows and does.
pub struct State {
    /// `iss`, and what its URLs begin with.
    pub issuer: String,
    /// Claims of whoever logs in, in the ID token and from the userinfo endpoint.
    pub claims: Value,
    /// Seconds that access tokens live.
    pub expires_in: u64,
    /// What introspection answers, by token.
    pub introspection: HashMap<String, Value>,
    /// Another `nonce` than asked for.
    pub nonce: Option<String>,
    /// Calls so far, by path.
    pub calls: BTreeMap<String, usize>,
    /// A refresh token came a second time: the whole family was ended.
    pub reused: bool,
    key: PKey<Private>,
    key_id: u32,
    codes: HashMap<String, (String, String)>,
    refresh: HashSet<String>,
    spent: HashSet<String>,
    next: u32,
}

/// The client that the provider knows, with its secret.
pub const CLIENT: (&str, &str) = ("web", "web-secret/+1");

impl Provider {
    /// A provider on plain HTTP at a free port of 127.0.0.1.
    pub async fn start() -> Self {
        Self::with(|addr| format!("http://{addr}"), None).await
    }

    /// A provider over TLS that is called by this name.
    pub async fn start_tls(name: &str, leaf: &Leaf) -> Self {
        Self::with(|addr| format!("https://{name}:{}", addr.port()), Some(leaf)).await
    }

    async fn with(issuer: impl Fn(SocketAddr) -> String, leaf: Option<&Leaf>) -> Self {
        let state = Arc::new(Mutex::new(State {
            issuer: String::new(),
            claims: json!({"sub": "u-alice", "email": "alice@example.com", "email_verified": true,
                "preferred_username": "alice", "groups": ["team-a", "ops"]}),
            expires_in: 300,
            introspection: HashMap::new(),
            nonce: None,
            calls: BTreeMap::new(),
            reused: false,
            key: rsa(),
            key_id: 1,
            codes: HashMap::new(),
            refresh: HashSet::new(),
            spent: HashSet::new(),
            next: 0,
        }));
        let handler = handler(state.clone());
        let origin = match leaf {
            Some(leaf) => Origin::https(&leaf.cert_pem, &leaf.key_pem, handler).await,
            None => Origin::http(handler).await,
        };
        let addr = origin.addr();
        state.lock().unwrap().issuer = issuer(addr);
        Self { origin: Some(origin), addr, state }
    }

    /// Stops listening.
    pub async fn stop(&mut self) {
        if let Some(origin) = self.origin.take() {
            origin.stop().await;
        }
    }

    /// Listens again where it did, on plain HTTP.
    pub async fn restart(&mut self) {
        self.origin = Some(Origin::http_on(self.addr, handler(self.state.clone())).await);
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `iss`
    pub fn issuer(&self) -> String {
        self.state().issuer.clone()
    }

    /// What it knows, to look at and to change.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// How often an endpoint was called.
    pub fn calls(&self, path: &str) -> usize {
        self.state().calls.get(path).copied().unwrap_or_default()
    }

    /// Signs with a new key from now on; the old one is no longer published.
    pub fn rotate_key(&self) {
        let mut state = self.state();
        state.key = rsa();
        state.key_id += 1;
    }

    /// A JWT of this provider for the client, its claims replaced by these where they are named.
    pub fn token(&self, claims: &Value) -> String {
        self.state().token(claims)
    }
}

impl State {
    fn token(&self, more: &Value) -> String {
        let mut claims = self.claims.clone();
        claims["iss"] = self.issuer.as_str().into();
        claims["aud"] = CLIENT.0.into();
        claims["iat"] = now().into();
        claims["exp"] = (now() + 300).into();
        for (name, value) in more.as_object().expect("claims are an object") {
            claims[name] = value.clone();
        }
        self.sign(&json!({"alg": "RS256", "kid": format!("k{}", self.key_id)}), &claims)
    }

    /// Signs with the current key under any header.
    pub fn sign(&self, header: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", base64url(header.to_string()), base64url(claims.to_string()));
        let mut signer = Signer::new(MessageDigest::sha256(), &self.key).unwrap();
        let signature = signer.sign_oneshot_to_vec(signed.as_bytes()).unwrap();
        format!("{signed}.{}", base64url(signature))
    }

    fn name(&mut self, kind: &str) -> String {
        self.next += 1;
        format!("{kind}-{}", self.next)
    }

    fn answer(&mut self, request: &Received) -> Reply {
        let (path, query) = request.target().split_once('?').unwrap_or((request.target(), ""));
        *self.calls.entry(path.to_owned()).or_default() += 1;
        let issuer = self.issuer.clone();
        match path {
            "/.well-known/openid-configuration" => json_reply(
                200,
                json!({
                    "issuer": issuer,
                    "authorization_endpoint": format!("{issuer}/auth?theme=dark"),
                    "token_endpoint": format!("{issuer}/token"),
                    "jwks_uri": format!("{issuer}/jwks"),
                    "userinfo_endpoint": format!("{issuer}/userinfo"),
                    "end_session_endpoint": format!("{issuer}/end"),
                }),
            ),
            "/jwks" => {
                let rsa = self.key.rsa().unwrap();
                let (n, e) = (base64url(rsa.n().to_vec()), base64url(rsa.e().to_vec()));
                let kid = format!("k{}", self.key_id);
                json_reply(
                    200,
                    json!({"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": kid, "n": n, "e": e}]}),
                )
            }
            "/auth" => self.authorize(&fields(query)),
            "/token" => {
                let form = fields(&String::from_utf8_lossy(&request.body));
                let basic = openssl::base64::encode_block(b"web:web-secret%2F%2B1");
                if request.header("authorization") != Some(&format!("Basic {basic}")) {
                    return json_reply(401, json!({"error": "invalid_client"}));
                }
                self.tokens(&form)
            }
            "/userinfo" => json_reply(200, self.claims.clone()),
            "/introspect" => {
                let form = fields(&String::from_utf8_lossy(&request.body));
                let known = self.introspection.get(&form["token"]).cloned();
                json_reply(200, known.unwrap_or(json!({"active": false})))
            }
            "/end" => redirect(&fields(query)["post_logout_redirect_uri"]),
            _ => json_reply(404, json!({})),
        }
    }

    /// Everybody is logged in here already, and agrees.
    fn authorize(&mut self, query: &BTreeMap<String, String>) -> Reply {
        let get = |name: &str| query.get(name).cloned().unwrap_or_default();
        let whole = get("client_id") == CLIENT.0
            && get("response_type") == "code"
            && get("code_challenge_method") == "S256"
            && get("theme") == "dark"
            && get("scope").split(' ').any(|scope| scope == "openid")
            && [get("state"), get("nonce"), get("code_challenge")].iter().all(|text| text.len() >= 43);
        if !whole {
            return json_reply(400, json!({"error": "invalid_request", "query": query}));
        }
        let code = self.name("code");
        self.codes.insert(code.clone(), (get("code_challenge"), get("nonce")));
        redirect(&format!("{}?code={code}&state={}", get("redirect_uri"), encode(&get("state"))))
    }

    fn tokens(&mut self, form: &BTreeMap<String, String>) -> Reply {
        let refused = json_reply(400, json!({"error": "invalid_grant"}));
        let mut claims = json!({});
        match form.get("grant_type").map(String::as_str) {
            Some("authorization_code") => {
                let Some((challenge, nonce)) = self.codes.remove(&form["code"]) else { return refused };
                if base64url(sha256(form["code_verifier"].as_bytes())) != challenge {
                    return refused;
                }
                claims["nonce"] = self.nonce.clone().unwrap_or(nonce).into();
            }
            Some("refresh_token") => {
                let token = &form["refresh_token"];
                if self.spent.contains(token) {
                    self.reused = true;
                    self.refresh.clear();
                }
                if !self.refresh.remove(token) {
                    return refused;
                }
                self.spent.insert(token.clone());
            }
            _ => return json_reply(400, json!({"error": "unsupported_grant_type"})),
        }
        let (access, refresh) = (self.name("access"), self.name("refresh"));
        self.refresh.insert(refresh.clone());
        json_reply(
            200,
            json!({"access_token": access, "token_type": "Bearer", "expires_in": self.expires_in,
            "refresh_token": refresh, "id_token": self.token(&claims)}),
        )
    }
}

fn handler(state: Arc<Mutex<State>>) -> impl Fn(&Received) -> Reply + Send + Sync + 'static {
    move |request| state.lock().unwrap().answer(request)
}

fn rsa() -> PKey<Private> {
    PKey::from_rsa(Rsa::generate(2048).unwrap()).unwrap()
}

/// Seconds since the epoch.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn json_reply(status: u16, body: Value) -> Reply {
    Reply::new(status, body.to_string()).header("Content-Type", "application/json")
}

fn redirect(to: &str) -> Reply {
    Reply::new(302, "").header("Location", to)
}

/// base64url without padding.
pub fn base64url(bytes: impl AsRef<[u8]>) -> String {
    openssl::base64::encode_block(bytes.as_ref())
        .replace('+', "-")
        .replace('/', "_")
        .trim_end_matches('=')
        .to_owned()
}

/// The fields of a query or form, decoded.
pub fn fields(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (decode(name), decode(value))).collect()
}

/// A value of a form.
pub fn encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

fn decode(text: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let hex: Vec<u8> = bytes.by_ref().take(2).collect();
                u8::from_str_radix(std::str::from_utf8(&hex).unwrap(), 16).unwrap()
            }
            b'+' => b' ',
            byte => byte,
        });
    }
    String::from_utf8(out).unwrap()
}
