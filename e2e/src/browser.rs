//! What a browser does about redirects and cookies, as far as logins need it.

use std::net::SocketAddr;

use crate::client::{RawConn, Response};

/// A browser that knows one product: every https host leads to its TLS listener. A host that is an IP address with a
/// port leads there.
#[derive(Clone)]
pub struct Browser {
    https: SocketAddr,
    http: SocketAddr,
    cookies: Vec<Cookie>,
}

#[derive(Clone, Debug)]
struct Cookie {
    host: String,
    /// Goes to the hosts below as well.
    domain: bool,
    path: String,
    secure: bool,
    name: String,
    value: String,
}

/// Scheme, authority and target of a URL.
fn parts(url: &str) -> (bool, &str, &str) {
    let (scheme, rest) = url.split_once("://").unwrap_or_else(|| panic!("{url:?} is no absolute URL"));
    let at = rest.find(['/', '?']).unwrap_or(rest.len());
    (scheme == "https", &rest[..at], if at == rest.len() { "/" } else { &rest[at..] })
}

impl Browser {
    /// A browser without cookies.
    pub fn new(https: SocketAddr, http: SocketAddr) -> Self {
        Self { https, http, cookies: Vec::new() }
    }

    /// The same cookies, at another product.
    pub fn at(&self, https: SocketAddr) -> Self {
        Self { https, ..self.clone() }
    }

    /// GET of one URL; redirects are not followed.
    pub async fn get(&mut self, url: &str) -> Response {
        self.send("GET", url, &[], b"").await
    }

    /// One request; redirects are not followed.
    pub async fn send(&mut self, method: &str, url: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        let (tls, authority, target) = parts(url);
        let host = authority.split(':').next().unwrap();
        let cookies = self.cookie_header(tls, host, target);
        let mut all = headers.to_vec();
        if !cookies.is_empty() {
            all.push(("Cookie", &cookies));
        }
        let request = async {
            let elsewhere = authority.parse::<SocketAddr>().ok();
            let mut conn = if tls {
                let name = elsewhere.is_none().then_some(host);
                RawConn::connect_tls(elsewhere.unwrap_or(self.https), name, &["http/1.1"]).await?
            } else {
                RawConn::connect(elsewhere.unwrap_or(self.http)).await?
            };
            conn.request(method, authority, target, &all, body).await
        };
        let answer = request.await.unwrap_or_else(|e| panic!("{method} {url}: {e:#}"));
        self.take(url, &answer);
        answer
    }

    /// Keeps the cookies of an answer that came to a copy of this browser.
    pub fn take(&mut self, url: &str, answer: &Response) {
        let (tls, authority, _) = parts(url);
        for line in answer.header_all("set-cookie") {
            self.keep(tls, authority.split(':').next().unwrap(), line);
        }
    }

    /// GETs of one URL at the same time, three at each of these products, and all must be answered 200. What
    /// the answers set is taken in.
    pub async fn burst(&mut self, url: &'static str, products: &[SocketAddr]) {
        let mut burst = tokio::task::JoinSet::new();
        for at in products.repeat(3) {
            let mut one = self.at(at);
            burst.spawn(async move {
                let answer = one.get(url).await;
                assert_eq!(answer.status, 200, "{}", answer.text());
                answer
            });
        }
        for answer in burst.join_all().await {
            self.take(url, &answer);
        }
    }

    /// GET and all redirects from there: the URL at which they end, and its answer.
    pub async fn go(&mut self, url: &str) -> (String, Response) {
        let mut url = url.to_owned();
        for _ in 0..10 {
            let answer = self.get(&url).await;
            match answer.header("location") {
                Some(next) if (300..400).contains(&answer.status) => url = absolute(&url, next),
                _ => return (url, answer),
            }
        }
        panic!("more than ten redirects, at last to {url}")
    }

    /// The cookies that would go to a URL, as `name=value` in the order in which they were set.
    pub fn cookies(&self, url: &str) -> Vec<String> {
        let (tls, authority, target) = parts(url);
        let header = self.cookie_header(tls, authority.split(':').next().unwrap(), target);
        header.split("; ").filter(|c| !c.is_empty()).map(str::to_owned).collect()
    }

    /// Sets a cookie for one host.
    pub fn set(&mut self, host: &str, name: &str, value: &str) {
        self.keep(true, host, &format!("{name}={value}; Path=/"));
    }

    /// Forgets all cookies.
    pub fn clear(&mut self) {
        self.cookies.clear();
    }

    fn cookie_header(&self, tls: bool, host: &str, target: &str) -> String {
        let path = target.split('?').next().unwrap();
        let goes = |c: &&Cookie| {
            let below = c.domain && host.ends_with(&format!(".{}", c.host));
            (c.host == host || below) && path.starts_with(&c.path) && (tls || !c.secure)
        };
        let pairs = self.cookies.iter().filter(goes).map(|c| format!("{}={}", c.name, c.value));
        pairs.collect::<Vec<_>>().join("; ")
    }

    fn keep(&mut self, tls: bool, host: &str, line: &str) {
        // what real browsers do not keep must not work here either (RFC 6265bis section 5.7)
        assert!(line.len() <= 4096, "a cookie of {} bytes", line.len());
        let mut fields = line.split(';').map(str::trim);
        let (name, value) = fields.next().unwrap().split_once('=').unwrap();
        let mut cookie = Cookie {
            host: host.into(),
            domain: false,
            path: "/".into(),
            secure: false,
            name: name.into(),
            value: value.into(),
        };
        let mut gone = false;
        for field in fields {
            let (name, value) = field.split_once('=').unwrap_or((field, ""));
            match (name.to_ascii_lowercase().as_str(), value) {
                ("path", path) => cookie.path = path.into(),
                ("domain", domain) => {
                    let domain = domain.trim_start_matches('.');
                    if host != domain && !host.ends_with(&format!(".{domain}")) {
                        return;
                    }
                    (cookie.host, cookie.domain) = (domain.into(), true);
                }
                ("max-age", age) => gone = age.parse::<i64>().unwrap() <= 0,
                ("expires", time) => gone |= time.contains(" 1970 "),
                ("secure", _) => cookie.secure = true,
                _ => {}
            }
        }
        if cookie.secure && !tls {
            return;
        }
        let same = |c: &Cookie| (&c.host, &c.path, &c.name) == (&cookie.host, &cookie.path, &cookie.name);
        let at = self.cookies.iter().position(same);
        match (at, gone) {
            (Some(at), true) => drop(self.cookies.remove(at)),
            (Some(at), false) => self.cookies[at] = cookie,
            (None, true) => {}
            (None, false) => self.cookies.push(cookie),
        }
    }
}

/// Where a `Location` leads.
pub fn absolute(from: &str, location: &str) -> String {
    if location.contains("://") {
        return location.to_owned();
    }
    let (tls, authority, _) = parts(from);
    let scheme = if tls { "https" } else { "http" };
    // as browsers read it: two slashes, also written as backslashes, begin a host
    let slashes = location.replace('\\', "/");
    if slashes.starts_with("//") {
        format!("{scheme}:{slashes}")
    } else {
        format!("{scheme}://{authority}{location}")
    }
}
