//! What would come of a request, and why, told by the code that serves: the route is the one that the
//! table's own look-up returns, the verdict the one of `policy::decide`. Nothing is dialled.
//!
//! Of what comes from Secrets only names may be told, never contents.

mod treatment;

use crate::access_log::rfc3339;
use crate::dial::DialGuard;
use crate::policy::{self, Verdict};
use crate::respond::{Rejection, Reply};
use crate::strict::{Facts, check_target};
use crate::{Config, filter, select};
use http::header::LOCATION;
use http::{HeaderMap, HeaderValue, Method};
use ingress_core::listener::TlsMode;
use ingress_core::route::host::{HostBuf, normal_name};
use ingress_core::route::path::routing_path;
use ingress_core::{
    Auth, BackendAddress, Candidate, Explanation, Local, Lost, NoMatch, RequestHost, Route, Rule, Snapshot,
    Unavailable,
};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use treatment::{backends, treatment};

/// A request that somebody asks about.
#[derive(Clone, Debug)]
pub struct Question {
    /// Over TLS.
    pub tls: bool,
    /// The authority: what stands in `Host`.
    pub host: String,
    /// The request target; a query plays no part.
    pub path: String,
    /// The method.
    pub method: Method,
    /// Further header fields.
    pub headers: HeaderMap,
    /// The server name of the TLS handshake; without one the host.
    pub sni: Option<String>,
    /// The TCP peer.
    pub client: Option<IpAddr>,
    /// The listener port; without it 443 with TLS and 80 without.
    pub port: Option<u16>,
    /// The address that it comes to, where Gateways have one each.
    pub address: Option<IpAddr>,
}

impl Question {
    /// Where the request comes in.
    fn local(&self) -> Local {
        let port = self.port.unwrap_or(if self.tls { 443 } else { 80 });
        Local { address: self.address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), port }
    }

    /// The server name of the handshake as the listeners compare it.
    fn server_name(&self) -> Option<String> {
        let mut buf = HostBuf::default();
        let host = RequestHost::parse(self.host.as_bytes(), &mut buf).ok().map(|host| host.host);
        // an address is never sent as a server name
        let host = host.filter(|host| !host.starts_with('[') && host.parse::<IpAddr>().is_err());
        self.sni.as_deref().or(host).map(normal_name)
    }
}

/// What the answer depends on beside the snapshot.
pub struct Surroundings<'a> {
    /// The data plane's settings.
    pub config: &'a Config,
    /// Addresses that are never dialled.
    pub guard: &'a DialGuard,
    /// The addresses that are known of a DNS name; `None` where there is nobody to ask.
    pub addresses: &'a dyn Fn(&str) -> Option<Vec<IpAddr>>,
    /// Seconds since the epoch.
    pub now: i64,
}

/// Losers beyond this many are only counted.
const MAX_LOST: usize = 100;

/// The whole answer. Each section has a name, one line for people, and facts for programs.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The request as routing reads it.
    pub request: Section,
    /// What the client gets.
    pub answer: Section,
    /// The rule that takes it.
    pub route: Option<Section>,
    /// Rules that did not, each with the reason.
    pub lost: Vec<Section>,
    /// How many more there are.
    pub lost_more: usize,
    /// Certificate, policies, backend, in the order of work.
    pub sections: Vec<Section>,
    /// The rule that takes it, as a value.
    pub taken_by: Option<Arc<Route>>,
}

/// One part of the answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    /// Its name.
    pub name: &'static str,
    /// One line.
    pub summary: String,
    /// The same in pieces.
    pub facts: Vec<(&'static str, Fact)>,
}

/// A piece of a section.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// Text.
    Text(String),
    /// A number.
    Number(f64),
    /// Yes or no.
    Flag(bool),
    /// Several texts.
    List(Vec<String>),
    /// Not set, or not known.
    Nothing,
}

impl Section {
    fn new(name: &'static str, summary: impl Into<String>, facts: Vec<(&'static str, Fact)>) -> Self {
        Self { name, summary: summary.into(), facts }
    }

    /// A fact by its name.
    pub fn fact(&self, name: &str) -> Option<&Fact> {
        self.facts.iter().find(|(n, _)| *n == name).map(|(_, fact)| fact)
    }
}

fn text(value: impl ToString) -> Fact {
    Fact::Text(value.to_string())
}

/// Answers the question.
pub fn explain(snapshot: &Snapshot, question: &Question, around: &Surroundings<'_>) -> Report {
    let certificate = certificate(snapshot, question, around.now);
    let scheme = if question.tls { "https" } else { "http" };
    let Question { method, host, path, client, .. } = question;
    let mut request = Section::new(
        "request",
        format!("{method} {scheme}://{host}{path}"),
        vec![
            ("method", text(method)),
            ("scheme", text(scheme)),
            ("client", client.map_or(Fact::Nothing, text)),
        ],
    );
    let raw_path = path.split(['?']).next().unwrap_or_default();
    let mut buf = HostBuf::default();
    let read = facts(question).and_then(|facts| {
        let authority = HeaderValue::from_str(host).map_err(|e| (Rejection::Malformed, e.to_string()))?;
        Ok((facts, authority))
    });
    let (facts, authority) = match read {
        Ok(read) => read,
        Err((rejection, why)) => return unread(request, rejection, &why, certificate),
    };
    let listener = snapshot.listeners.at(question.local());
    let server_name = question.server_name().filter(|_| question.tls);
    if let (Some(listener), Some(name)) = (listener, &server_name)
        && let mode = listener.mode(name)
        && !mode.http()
    {
        return carried(request, mode, certificate, around);
    }
    let (asked, routing) = match select::read(&authority, raw_path, &mut buf) {
        Ok(read) => read,
        Err(rejection) => return unread(request, rejection, &why_malformed(host, raw_path), certificate),
    };
    request.facts.push(("host", text(asked.host)));
    request.facts.push(("path", text(&routing)));
    if question.tls
        && let Some(listener) = listener
        && listener.misdirected(server_name.as_deref(), asked.host)
    {
        let why = match &server_name {
            Some(name) if listener.mode(asked.host).http() => {
                format!("server name {name} belongs to another listener than the host")
            }
            _ => "the host's connections carry no requests here, and this one was opened for another name"
                .to_owned(),
        };
        return unread(request, Rejection::Misdirected, &why, certificate);
    }
    let Some(routes) = snapshot.routes_at(question.local()) else {
        let why = format!("nothing is served on port {}", question.local().port);
        return unread(request, Rejection::NoRoute(NoMatch::Host), &why, certificate);
    };
    // A client with a certificate is taken to be one that the handshake lets in.
    let let_in_under =
        listener.filter(|_| question.tls).and_then(|l| l.routes.clients(server_name.as_deref()));
    if let Ok(host) = routes.host(asked.host, &routing)
        && let Some(clients) = host.clients()
        && clients.keeps_out(let_in_under.map(|clients| &**clients))
    {
        let name = server_name.as_deref().unwrap_or("(none)");
        let why = format!(
            "clients of the host must show a certificate, and server name {name} asks for none, or for another one"
        );
        return unread(request, Rejection::ClientCertificate, &why, certificate);
    }
    let query = path.split_once('?').map(|(_, query)| query);
    let head = select::head(method, &question.headers, query);
    let Explanation { host: deciding, outcome, lost } = routes.explain(asked.host, &routing, &head);
    let deciding = deciding.map(|pattern| pattern.to_string());
    let all = lost.len();
    let lost: Vec<_> = lost.iter().take(MAX_LOST).map(|c| loser(c, outcome.ok().map(|r| &**r))).collect();
    let lost_more = all - lost.len();
    let (answer, route, sections) = match outcome {
        Err(none) => {
            let why = match (none, &deciding) {
                (NoMatch::Path, Some(host)) => {
                    format!(
                        "host {host} is declared and has no rule for this path; less specific hosts are not asked"
                    )
                }
                _ => "no rule declares this host".to_owned(),
            };
            (rejected(Rejection::NoRoute(none), &why), None, vec![certificate])
        }
        Ok(route) => {
            let mut sections = vec![certificate];
            sections.extend(treatment(route, question, around.config));
            sections.push(backends(route, around));
            (answer(route, question, &facts, around), Some(winner(route)), sections)
        }
    };
    let taken_by = outcome.ok().cloned();
    Report { request, answer, route, lost, lost_more, sections, taken_by }
}

/// A connection that is not HTTP here.
fn carried(request: Section, mode: &TlsMode, certificate: Section, around: &Surroundings<'_>) -> Report {
    let route = mode.route();
    let ends = matches!(mode, TlsMode::TerminateTcp { .. });
    let summary = match (route, ends) {
        (Some(route), false) => format!("the TLS connection is passed on unread, by {}", route.source),
        (Some(route), true) => {
            format!("TLS ends here, and what is in the connection is passed on, by {}", route.source)
        }
        (None, false) => {
            "the TLS connection is closed: it would be passed on unread, and no route says where".into()
        }
        (None, true) => {
            "the TLS connection is closed: what is in it would be passed on, and no route says where".into()
        }
    };
    let facts = vec![("forwarded", Fact::Flag(route.is_some())), ("status", Fact::Nothing)];
    Report {
        request,
        answer: Section::new("answer", summary, facts),
        route: route.map(|route| winner(route)),
        lost: vec![],
        lost_more: 0,
        sections: std::iter::once(certificate).chain(route.map(|route| backends(route, around))).collect(),
        taken_by: route.cloned(),
    }
}

/// What is read of the head beside the host and path.
fn facts(question: &Question) -> Result<Facts, (Rejection, String)> {
    let malformed = |e: crate::strict::Malformed| (Rejection::Malformed, e.to_string());
    check_target(&question.method, question.path.as_bytes()).map_err(malformed)?;
    Facts::read(&question.headers).map_err(malformed)
}

fn unread(request: Section, rejection: Rejection, why: &str, certificate: Section) -> Report {
    let answer = rejected(rejection, why);
    Report {
        request,
        answer,
        route: None,
        lost: vec![],
        lost_more: 0,
        sections: vec![certificate],
        taken_by: None,
    }
}

fn why_malformed(host: &str, path: &str) -> String {
    if let Err(problem) = RequestHost::parse(host.as_bytes(), &mut HostBuf::default()) {
        return problem.to_string();
    }
    routing_path(path).err().map(|problem| problem.to_string()).unwrap_or_default()
}

fn rejected(rejection: Rejection, why: &str) -> Section {
    let status = rejection.status();
    Section::new(
        "answer",
        format!("{} {}: {why}", status.as_u16(), status.canonical_reason().unwrap_or_default()),
        vec![
            ("forwarded", Fact::Flag(false)),
            ("status", Fact::Number(status.as_u16().into())),
            ("rejected_by", text(rejection.label())),
            ("why", text(why)),
        ],
    )
}

/// What the client gets, by the verdict of the code that serves.
fn answer(route: &Route, question: &Question, facts: &Facts, around: &Surroundings<'_>) -> Section {
    let client = question.client.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let asked =
        policy::Asked { method: &question.method, headers: &question.headers, client, https: question.tls };
    match policy::decide(route, &asked) {
        Verdict::RedirectToHttps => Section::new(
            "answer",
            "308 Permanent Redirect: to https, with the same host, path and query",
            vec![
                ("forwarded", Fact::Flag(false)),
                ("status", Fact::Number(308.0)),
                ("rejected_by", Fact::Nothing),
                ("why", text("plain HTTP is redirected to https")),
            ],
        ),
        Verdict::Reject(rejection) => rejected(rejection, why_rejected(rejection)),
        Verdict::Preflight => Section::new(
            "answer",
            "204 No Content: a preflight, answered by the proxy",
            vec![
                ("forwarded", Fact::Flag(false)),
                ("status", Fact::Number(204.0)),
                ("rejected_by", Fact::Nothing),
                ("why", text("CORS is enabled on the route")),
            ],
        ),
        // Answers of ours beside these come from authentication, which a description does not run.
        verdict @ (Verdict::Respond(_) | Verdict::Continue | Verdict::Exempt) => {
            if verdict != Verdict::Exempt && route.policy.auth == Auth::Misconfigured {
                return rejected(Rejection::AuthNotConfigured, why_rejected(Rejection::AuthNotConfigured));
            }
            if around.config.max_request_body_size.is_some_and(|max| facts.length > max) {
                return rejected(Rejection::BodyTooLarge, why_rejected(Rejection::BodyTooLarge));
            }
            match filtered(route, question) {
                Some(Verdict::Respond(reply)) => return replied(&reply),
                Some(Verdict::Reject(rejection)) => return rejected(rejection, why_rejected(rejection)),
                _ => {}
            }
            let several = route.actions.as_ref().and_then(|actions| actions.backends.as_ref());
            let unavailable = match (several, &route.backend.address) {
                (Some(several), _) => several.pick(0).is_none().then_some(Unavailable::Broken),
                (None, BackendAddress::Unavailable(why)) => Some(*why),
                (None, _) => None,
            };
            if let Some(why) = unavailable {
                let rejection = Rejection::Unavailable(why);
                return rejected(rejection, why_rejected(rejection));
            }
            let service = match several {
                Some(several) if several.entries().len() > 1 => "one of several, by weight".to_owned(),
                Some(several) => several.entries().iter().map(|e| e.backend.service.to_string()).collect(),
                None => route.backend.service.to_string(),
            };
            Section::new(
                "answer",
                match route.policy.auth {
                    Auth::Open => format!("forwarded to Service {service}"),
                    _ => format!("forwarded to Service {service}, if authentication lets it pass"),
                },
                vec![
                    ("forwarded", Fact::Flag(true)),
                    ("status", Fact::Nothing),
                    ("rejected_by", Fact::Nothing),
                    ("why", text("every step lets it pass")),
                ],
            )
        }
    }
}

/// The answer that a filter of the route gives.
fn filtered(route: &Route, question: &Question) -> Option<Verdict> {
    let asked = filter::Asked {
        https: question.tls,
        authority: &question.host,
        target: &question.path,
        port: Some(question.local().port),
    };
    filter::answer(route, &asked)
}

fn replied(reply: &Reply) -> Section {
    let location = reply.headers.iter().find(|(name, _)| *name == LOCATION);
    let location = location.and_then(|(_, value)| value.to_str().ok()).unwrap_or_default();
    let status = reply.status;
    Section::new(
        "answer",
        format!("{} {}: to {location}", status.as_u16(), status.canonical_reason().unwrap_or_default()),
        vec![
            ("forwarded", Fact::Flag(false)),
            ("status", Fact::Number(status.as_u16().into())),
            ("rejected_by", Fact::Nothing),
            ("location", text(location)),
            ("why", text("a filter of the rule answers with a redirect")),
        ],
    )
}

fn why_rejected(rejection: Rejection) -> &'static str {
    match rejection {
        Rejection::Denied => "an address list refuses the client, or cannot be honoured",
        Rejection::AuthNotConfigured => "authentication is asked for and cannot be done as configured",
        Rejection::BodyTooLarge => "the stated length of the body is beyond --max-request-body-size",
        Rejection::Unavailable(Unavailable::NoService) => "the Service does not exist",
        Rejection::Unavailable(Unavailable::NoPort) => "the Service has no such port",
        Rejection::Unavailable(Unavailable::NoEndpoints) => "the Service has no endpoint",
        Rejection::Unavailable(Unavailable::ExternalName) => "ExternalName Services are not allowed",
        Rejection::Unavailable(Unavailable::Broken) => {
            "a reference of the rule does not resolve or is not permitted, or it names no backend"
        }
        Rejection::Filter => "a filter of the rule cannot be honoured",
        other => other.label(),
    }
}

fn winner(route: &Route) -> Section {
    let Route { source, host, path, conditions, created, .. } = route;
    let rule = route.place();
    let asks = conditions.as_ref().map(ToString::to_string);
    let and = asks.as_ref().map_or(String::new(), |asks| format!(", {asks}"));
    Section::new(
        "route",
        format!("{source} {rule}: host {host}, {path}{and}"),
        vec![
            ("object", text(source)),
            ("rule", text(&rule)),
            ("host", text(host)),
            ("path", text(path)),
            ("conditions", asks.map_or(Fact::Nothing, Fact::Text)),
            ("created", if *created == 0 { Fact::Nothing } else { text(rfc3339(*created)) }),
        ],
    )
}

fn loser(candidate: &Candidate<'_>, winner: Option<&Route>) -> Section {
    let (word, why) = match candidate.lost {
        Lost::To(Rule::ExactFirst) => {
            ("exact_first", "an Exact path comes before a Regex, and that before a Prefix")
        }
        Lost::To(Rule::LongerPath) => ("longer_path", "the longer path comes first"),
        Lost::To(Rule::Method) => {
            ("method", "of two rules with one path one that asks for a method comes first")
        }
        Lost::To(Rule::MoreHeaders) => (
            "more_headers",
            "of two rules with one path the one that asks for more header fields comes first",
        ),
        Lost::To(Rule::MoreQuery) => {
            ("more_query", "of two rules with one path the one that asks for more of the query comes first")
        }
        Lost::To(Rule::OlderObject) => {
            ("older_object", "of two rules with one path the older object's counts")
        }
        Lost::To(Rule::SmallerName) => {
            ("smaller_name", "of two objects of one age the smaller namespace/name counts")
        }
        Lost::To(Rule::EarlierRule) => ("earlier_rule", "of two rules of one object the earlier one counts"),
        Lost::Host => ("more_specific_host", "a more specific host is declared, and that alone decides"),
        Lost::Path => ("path", "the path is not one that it takes"),
        Lost::Conditions => ("conditions", "it takes the path, and asks for more that the request has not"),
    };
    let mut section = self::winner(candidate.route);
    let to = winner.filter(|_| matches!(candidate.lost, Lost::To(_)));
    section.name = "lost";
    section.summary.push_str(": ");
    section.summary.push_str(why);
    section.facts.push(("lost_by", text(word)));
    section.facts.push(("why", text(why)));
    section
        .facts
        .push(("lost_to", to.map_or(Fact::Nothing, |r| text(format!("{} {}", r.source, r.place())))));
    section
}

fn certificate(snapshot: &Snapshot, question: &Question, now: i64) -> Section {
    let sni = question.server_name();
    let sni = sni.as_deref();
    let name = sni.unwrap_or("(none)");
    // what https would show, where it is asked about plain HTTP
    let mut local = question.local();
    if !question.tls {
        local.port = 443;
    }
    let (summary, mut facts) = match snapshot.explain_certificate(Some(local), sni) {
        Some((pattern, key)) => {
            let until = rfc3339(key.not_after);
            let expired = key.not_after < now;
            let state = if expired { "expired" } else { "valid until" };
            let declared = match pattern {
                ingress_core::HostPattern::Any => "the default".to_owned(),
                host => format!("declared for {host}"),
            };
            (
                format!("{} for server name {name}, {declared}, {state} {until}", key.source),
                vec![
                    ("source", text(&key.source)),
                    ("fallback", Fact::Flag(false)),
                    ("not_after", text(until)),
                    ("expired", Fact::Flag(expired)),
                ],
            )
        }
        None => (
            format!("the self-signed fallback for server name {name}: no certificate is declared for it"),
            vec![
                ("source", Fact::Nothing),
                ("fallback", Fact::Flag(true)),
                ("not_after", Fact::Nothing),
                ("expired", Fact::Flag(false)),
            ],
        ),
    };
    facts.insert(0, ("sni", sni.map_or(Fact::Nothing, text)));
    let listener = snapshot.listeners.at(local);
    let asked = listener.and_then(|listener| match sni.map(|name| listener.mode(name)) {
        Some(TlsMode::TerminateTcp { clients, .. }) => clients.as_ref(),
        Some(TlsMode::Passthrough(_)) => None,
        _ => listener.routes.clients(sni),
    });
    let (word, asked) = match asked {
        None => (Fact::Nothing, ""),
        Some(clients) if clients.required => (text("required"), "; clients must show a certificate"),
        Some(_) => (text("asked_for"), "; clients are asked for a certificate and let in without"),
    };
    facts.push(("client_certificate", word));
    let summary = format!("{summary}{asked}");
    let summary = if question.tls { summary } else { format!("none on plain HTTP; on https {summary}") };
    Section::new("certificate", summary, facts)
}

#[cfg(test)]
mod tests;
