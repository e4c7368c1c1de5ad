//! Cookies: finding ours among others, taking them out, writing them.

use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};
use ingress_core::policy::oauth::SameSite;

/// A whole `Set-Cookie` line stays below this: browsers drop larger ones.
const MAX_COOKIE: usize = 4000;
/// Cookies that one session may be split over.
pub const MAX_PARTS: usize = 10;
/// Between the cookie's name and what a login's cookie is called by.
const LOGIN: &str = "_login_";
/// After the cookie's name: which process is about to refresh.
const CLAIM: &str = "_refresh";

/// What a cookie is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind<'a> {
    /// The whole session.
    Whole,
    /// One part of it.
    Part(usize),
    /// A login that has begun.
    Login(&'a str),
    /// A claim to refresh.
    Claim,
}

fn kind<'a>(name: &'a [u8], base: &str) -> Option<Kind<'a>> {
    let rest = std::str::from_utf8(name.strip_prefix(base.as_bytes())?).ok()?;
    if rest.is_empty() {
        return Some(Kind::Whole);
    }
    if rest == CLAIM {
        return Some(Kind::Claim);
    }
    if let Some(id) = rest.strip_prefix(LOGIN) {
        return Some(Kind::Login(id));
    }
    let digits = rest.strip_prefix('_').filter(|d| (1..=2).contains(&d.len()))?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok().map(Kind::Part))?
}

fn pairs(headers: &HeaderMap) -> impl Iterator<Item = (&[u8], &[u8])> {
    headers.get_all(COOKIE).iter().flat_map(|value| value.as_bytes().split(|b| *b == b';')).map(|pair| {
        let pair = pair.trim_ascii();
        match memchr::memchr(b'=', pair) {
            Some(at) => (pair[..at].trim_ascii_end(), pair[at + 1..].trim_ascii_start()),
            None => (&[][..], pair),
        }
    })
}

/// Our cookies of one request, by the name that the route gives them.
#[derive(Default)]
pub struct Cookies<'a> {
    whole: Option<&'a [u8]>,
    parts: [Option<&'a [u8]>; MAX_PARTS],
    /// Parts with numbers that no session of ours has.
    beyond: bool,
    /// The claim to refresh.
    pub claim: Option<&'a [u8]>,
    /// Whether there is any of ours at all.
    pub any: bool,
}

impl<'a> Cookies<'a> {
    /// The first of each name counts.
    pub fn read(headers: &'a HeaderMap, base: &str) -> Self {
        let mut found = Self::default();
        for (name, value) in pairs(headers) {
            let Some(kind) = kind(name, base) else { continue };
            found.any = true;
            let place = match kind {
                Kind::Whole => &mut found.whole,
                Kind::Part(i) => match found.parts.get_mut(i) {
                    Some(place) => place,
                    None => {
                        found.beyond = true;
                        continue;
                    }
                },
                Kind::Claim => &mut found.claim,
                Kind::Login(_) => continue,
            };
            place.get_or_insert(value);
        }
        found
    }

    /// The sealed session in the order of its parts: those with numbers, else the one without.
    pub fn session(&self) -> impl Iterator<Item = &'a [u8]> + Clone {
        let numbered = self.parts[0].is_some();
        let parts = self.parts.into_iter().map_while(|part| part);
        let whole = self.whole.filter(|_| !numbered);
        whole.into_iter().chain(parts)
    }

    /// Whether the browser sends a session, whatever it is worth.
    pub fn has_session(&self) -> bool {
        self.whole.is_some() || self.parts[0].is_some()
    }

    /// Names of the session's cookies that the browser has.
    fn present(&self, base: &str) -> Vec<String> {
        let whole = self.whole.map(|_| base.to_owned());
        let parts = self.parts.iter().enumerate().filter(|(_, part)| part.is_some());
        let beyond = if self.beyond { MAX_PARTS..100 } else { 0..0 };
        whole.into_iter().chain(parts.map(|(i, _)| i).chain(beyond).map(|i| format!("{base}_{i}"))).collect()
    }
}

/// The cookie of the login called `id`.
pub fn login<'a>(headers: &'a HeaderMap, base: &str, id: &str) -> Option<&'a [u8]> {
    pairs(headers).find(|(name, _)| kind(name, base) == Some(Kind::Login(id))).map(|(_, value)| value)
}

/// The value of a `Cookie` field without our cookies, and all others as and where they are: `None` if
/// there is none of ours in it, `Some(None)` if there is nothing else.
pub fn without_ours<'b>(
    value: &HeaderValue,
    bases: impl Iterator<Item = &'b str> + Clone,
) -> Option<Option<HeaderValue>> {
    let ours = |pair: &&[u8]| {
        let Some(end) = memchr::memchr(b'=', pair) else { return false };
        let name = pair[..end].trim_ascii_end();
        bases.clone().any(|base| kind(name, base).is_some())
    };
    let pairs = || value.as_bytes().split(|b| *b == b';').map(<[u8]>::trim_ascii).filter(|p| !p.is_empty());
    if !pairs().any(|pair| ours(&pair)) {
        return None;
    }
    let mut kept: Vec<u8> = Vec::new();
    for pair in pairs().filter(|pair| !ours(pair)) {
        if !kept.is_empty() {
            kept.extend_from_slice(b"; ");
        }
        kept.extend_from_slice(pair);
    }
    let rest = (!kept.is_empty()).then(|| HeaderValue::from_maybe_shared(bytes::Bytes::from(kept)).ok());
    Some(rest.flatten())
}

/// Where and how cookies are set.
pub struct Jar<'a> {
    pub name: &'a str,
    pub domain: Option<&'a str>,
    pub path: &'a str,
    pub same_site: SameSite,
    /// The client's connection is TLS.
    pub secure: bool,
}

impl Jar<'_> {
    /// The session in as many cookies as it takes, and the removal of those that the browser has
    /// and that are not among them. `None`: it is too large.
    pub fn session(&self, sealed: &str, max_age: u64, old: &Cookies<'_>) -> Option<Vec<HeaderValue>> {
        let attributes = self.attributes(self.path, self.same_site, Some(max_age));
        let room = |name: &str| MAX_COOKIE.checked_sub(name.len() + 1 + attributes.len()).filter(|r| *r > 0);
        let mut names = Vec::new();
        let mut set = Vec::new();
        if sealed.len() <= room(self.name)? {
            names.push(self.name.to_owned());
            set.push(line(self.name, sealed, &attributes)?);
        } else {
            let mut rest = sealed;
            while !rest.is_empty() {
                if names.len() == MAX_PARTS {
                    return None;
                }
                let name = format!("{}_{}", self.name, names.len());
                let (part, tail) = rest.split_at_checked(room(&name)?).unwrap_or((rest, ""));
                set.push(line(&name, part, &attributes)?);
                names.push(name);
                rest = tail;
            }
        }
        let stale = old.present(self.name);
        set.extend(stale.iter().filter(|name| !names.contains(name)).filter_map(|name| self.gone(name)));
        Some(set)
    }

    /// Removes the session.
    pub fn no_session(&self, old: &Cookies<'_>) -> Vec<HeaderValue> {
        let claim = old.claim.map(|_| format!("{}{CLAIM}", self.name));
        old.present(self.name).iter().chain(&claim).filter_map(|name| self.gone(name)).collect()
    }

    /// The cookie of a login: it goes to our own endpoints only. Its `SameSite` is never strict,
    /// because the provider's redirect back comes from another site.
    pub fn login(&self, id: &str, sealed: &str, max_age: u64) -> Option<HeaderValue> {
        line(&format!("{}{LOGIN}{id}", self.name), sealed, &self.login_attributes(max_age))
    }

    /// Removes the cookie of a login.
    pub fn no_login(&self, id: &str) -> Option<HeaderValue> {
        line(&format!("{}{LOGIN}{id}", self.name), "", &self.login_attributes(0))
    }

    /// The claim to refresh.
    pub fn claim(&self, value: &str, max_age: u64) -> Option<HeaderValue> {
        let attributes = self.attributes(self.path, self.same_site, Some(max_age));
        line(&format!("{}{CLAIM}", self.name), value, &attributes)
    }

    fn gone(&self, name: &str) -> Option<HeaderValue> {
        line(name, "", &self.attributes(self.path, self.same_site, Some(0)))
    }

    fn login_attributes(&self, max_age: u64) -> String {
        let same_site = match self.same_site {
            SameSite::Strict => SameSite::Lax,
            other => other,
        };
        // never for a whole domain: a login comes back to the host it set out from
        Jar { domain: None, ..*self }.attributes(super::ENDPOINTS, same_site, Some(max_age))
    }

    fn attributes(&self, path: &str, same_site: SameSite, max_age: Option<u64>) -> String {
        let mut text = format!("; Path={path}");
        if let Some(domain) = self.domain {
            text.push_str("; Domain=");
            text.push_str(domain);
        }
        if let Some(age) = max_age {
            text.push_str("; Max-Age=");
            text.push_str(itoa::Buffer::new().format(age));
        }
        text.push_str("; HttpOnly");
        if self.secure {
            text.push_str("; Secure");
        }
        match same_site {
            SameSite::Lax => text.push_str("; SameSite=Lax"),
            SameSite::Strict => text.push_str("; SameSite=Strict"),
            SameSite::None => text.push_str("; SameSite=None"),
        }
        text
    }
}

fn line(name: &str, value: &str, attributes: &str) -> Option<HeaderValue> {
    HeaderValue::try_from(format!("{name}={value}{attributes}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "_tak_oauth2";

    fn headers(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(COOKIE, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn jar(secure: bool) -> Jar<'static> {
        Jar { name: BASE, domain: None, path: "/", same_site: SameSite::Lax, secure }
    }

    fn text(values: &[HeaderValue]) -> Vec<&str> {
        values.iter().map(|v| v.to_str().unwrap()).collect()
    }

    fn read_back(values: &[HeaderValue]) -> HeaderMap {
        let pairs: Vec<_> = text(values).into_iter().map(|v| v.split(';').next().unwrap()).collect();
        headers(&[&pairs.join("; ")])
    }

    #[test]
    fn the_backend_keeps_its_cookies_in_order_and_gets_none_of_ours() {
        let strip = |value: &str, bases: &[&str]| {
            let rest = without_ours(&HeaderValue::from_str(value).unwrap(), bases.iter().copied());
            rest.map(|rest| rest.map(|value| value.to_str().unwrap().to_owned()))
        };
        let all = "a=1; _tak_oauth2_0=x; b=2; _tak_oauth2_1=y; _tak_oauth2=z;_tak_oauth2_login_0011=s; c=\"3\"; \
                   _tak_oauth2_refresh=q; lone; _tak_oauth2x=4; _tak_oauth2";
        let rest = "a=1; b=2; c=\"3\"; lone; _tak_oauth2x=4; _tak_oauth2";
        assert_eq!(strip(all, &[BASE]), Some(Some(rest.into())));
        assert_eq!(strip("a=1; sso=2; _tak_oauth2=3", &[BASE, "sso"]), Some(Some("a=1".into())));
        assert_eq!(strip("_tak_oauth2=z", &[BASE]), Some(None));
        assert_eq!(strip("a=1;b=2", &[BASE]), None, "what holds none of ours is not touched");
    }

    #[test]
    fn a_session_is_split_below_what_browsers_keep_and_read_back() {
        for len in [1, 100, 3800, 3900, 4000, 9000, 32000] {
            let sealed: String = (0..len).map(|i| char::from(b'a' + (i % 26) as u8)).collect();
            let set = jar(true).session(&sealed, 604_800, &Cookies::default()).unwrap();
            assert!(set.iter().all(|line| line.len() < 4096));
            let map = read_back(&set);
            let back = Cookies::read(&map, BASE);
            let joined: Vec<u8> = back.session().flatten().copied().collect();
            assert_eq!(joined, sealed.as_bytes(), "{len}");
        }
        assert!(jar(true).session(&"a".repeat(50_000), 60, &Cookies::default()).is_none());
    }

    #[test]
    fn stale_parts_are_removed() {
        let map = headers(&["_tak_oauth2_0=a; _tak_oauth2_1=b; _tak_oauth2_77=c; _tak_oauth2_refresh=d"]);
        let old = Cookies::read(&map, BASE);
        let set = jar(false).session("new", 60, &old).unwrap();
        let set = text(&set);
        assert_eq!(set[0], "_tak_oauth2=new; Path=/; Max-Age=60; HttpOnly; SameSite=Lax");
        assert_eq!(set[1], "_tak_oauth2_0=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax");
        assert!(set.iter().any(|line| line.starts_with("_tak_oauth2_77=;")));
        let gone = jar(false).no_session(&old);
        assert!(text(&gone).iter().any(|line| line.starts_with("_tak_oauth2_refresh=; ")));
        assert!(text(&gone).iter().all(|line| line.contains("=; ") && line.contains("Max-Age=0")));
    }

    #[test]
    fn attributes_follow_the_settings_and_the_connection() {
        let jar = Jar {
            name: "sso",
            domain: Some("example.com"),
            path: "/app",
            same_site: SameSite::Strict,
            secure: true,
        };
        let set = jar.session("v", 5, &Cookies::default()).unwrap();
        assert_eq!(
            text(&set),
            ["sso=v; Path=/app; Domain=example.com; Max-Age=5; HttpOnly; Secure; SameSite=Strict"]
        );
        assert_eq!(
            jar.login("0a", "v", 9).unwrap(),
            "sso_login_0a=v; Path=/_tak/oauth2/; Max-Age=9; HttpOnly; Secure; SameSite=Lax"
        );
    }

    #[test]
    fn parts_out_of_order_are_put_in_order_and_gaps_end_the_session() {
        let map = headers(&["_tak_oauth2_2=c; _tak_oauth2_0=a; _tak_oauth2_1=b; _tak_oauth2_0=evil"]);
        let joined: Vec<u8> = Cookies::read(&map, BASE).session().flatten().copied().collect();
        assert_eq!(joined, b"abc");
        let map = headers(&["_tak_oauth2_2=c; _tak_oauth2_0=a"]);
        let joined: Vec<u8> = Cookies::read(&map, BASE).session().flatten().copied().collect();
        assert_eq!(joined, b"a");
        let map = headers(&["_tak_oauth2_1=c"]);
        assert!(!Cookies::read(&map, BASE).has_session());
    }

    #[test]
    fn a_logins_cookie_is_found_by_its_id() {
        let map = headers(&["_tak_oauth2_login_ab=1; _tak_oauth2_login_cd=2"]);
        assert_eq!(login(&map, BASE, "cd"), Some(&b"2"[..]));
        assert_eq!(login(&map, BASE, "ef"), None);
    }
}
